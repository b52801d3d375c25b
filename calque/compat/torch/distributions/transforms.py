"""`torch.distributions.transforms`: the class of inverse transforms, which libraries test for, and the sigmoid that stays inside (0, 1)."""

from typing import Any

import calque
from calque.distributions.transform import _InverseTransform

__all__ = ["_InverseTransform", "_clipped_sigmoid"]


def _clipped_sigmoid(x: Any) -> Any:
    kind = calque.finfo(x.dtype)
    return calque.clamp(calque.sigmoid(x), min=kind.tiny, max=1.0 - kind.eps)
