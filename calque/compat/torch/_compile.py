"""`torch._compile`: the decorator of what PyTorch's reader of bytecode leaves alone. There is none here."""

from __future__ import annotations

from calque.compat.torch.compiler import disable as _disable_dynamo

__all__ = ["_disable_dynamo"]
