"""`torch.cpu.amp`: autocast for the processor."""

from __future__ import annotations

from typing import Any

import calque
from calque.amp import GradScaler

__all__ = ["GradScaler", "autocast"]


class autocast(calque.autocast):
    """`torch.autocast("cpu", ...)`."""

    def __init__(self, enabled: bool = True, dtype: Any = calque.bfloat16, cache_enabled: bool = True) -> None:
        super().__init__("cpu", enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)
