"""`torch.distributions.utils`: private names that libraries of distributions import."""

from __future__ import annotations

from typing import Any

import calque
from calque.distributions.utils import sum_rightmost as _sum_rightmost

__all__ = ["_standard_normal", "_sum_rightmost"]


def _standard_normal(shape: Any, dtype: Any, device: Any) -> Any:
    return calque.randn(tuple(shape), dtype=dtype, device=device)
