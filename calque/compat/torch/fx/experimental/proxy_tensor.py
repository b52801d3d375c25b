"""`torch.fx.experimental.proxy_tensor`: nobody traces below functions here."""

from __future__ import annotations

from calque.compat.refused import nothing, refused

__all__ = ["get_proxy_mode", "make_fx"]

get_proxy_mode = nothing
make_fx = refused("torch.fx.experimental.proxy_tensor.make_fx")
