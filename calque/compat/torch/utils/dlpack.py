"""`torch.utils.dlpack`."""

from __future__ import annotations

from typing import Any

import calque
from calque import from_dlpack

__all__ = ["from_dlpack", "to_dlpack"]


def to_dlpack(tensor: calque.Tensor) -> Any:
    """A capsule that shares the memory of a tensor, for one `from_dlpack`."""
    return tensor.__dlpack__()
