"""`torch.cuda.amp`: autocast and the scaler of losses for CUDA, which is not there: they are disabled, and a warning says so."""

from __future__ import annotations

import functools
from typing import Any

import calque
from calque.amp import GradScaler as _GradScaler
from calque.amp import custom_bwd as _custom_bwd
from calque.amp import custom_fwd as _custom_fwd

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]


class autocast(calque.autocast):
    """`torch.autocast("cuda", ...)`."""

    def __init__(self, enabled: bool = True, dtype: Any = calque.float16, cache_enabled: bool = True) -> None:
        super().__init__("cuda", enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)


class GradScaler(_GradScaler):
    """`torch.amp.GradScaler("cuda", ...)`."""

    def __init__(
        self, init_scale: float = 65536.0, growth_factor: float = 2.0, backoff_factor: float = 0.5, growth_interval: int = 2000, enabled: bool = True
    ) -> None:
        super().__init__("cuda", init_scale, growth_factor, backoff_factor, growth_interval, enabled)


custom_fwd = functools.partial(_custom_fwd, device_type="cuda")
custom_bwd = functools.partial(_custom_bwd, device_type="cuda")
