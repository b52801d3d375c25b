"""Python's numbers in recorded operations: few are part of the key of an edge and known when a program is compiled, all others come at run time."""

from __future__ import annotations

import math
from typing import Any

from calque.backend.base import Scalar
from calque.base.errors import IntegerOverflowError
from calque.record.live import LIVE

ROOT_HALF = math.sqrt(0.5)
ROOT_HALF_TWIN = math.nextafter(ROOT_HALF, 0.0)
"""Two numbers next to each other, both within 7e-17 of the root of 1/2 and the same in float32."""
BAKED: dict[Scalar, str] = {0: "0", 1: "1", -1: "-1", 2: "2", 0.5: "0.5", ROOT_HALF: "root", ROOT_HALF_TWIN: "twin"}
"""Constants that may be part of the key."""


def in_float(value: int) -> float:
    """An integer as a float."""
    try:
        return value * 1.0
    except OverflowError:
        digits = len(str(abs(value) >> 1000)) + 301
        text = f"[number] expected an integer that fits into float64, got one of more than {digits} digits; divide it first"
        raise IntegerOverflowError(text) from None


def scalar_tag(value: Scalar) -> Any:
    """Key part of a Python number: a baked constant, or "s" for a run-time argument."""
    if value.__class__ in LIVE:
        return "s"
    tag = BAKED.get(value)
    if tag is None or (value == 0 and math.copysign(1.0, value) < 0):
        return "s"
    return tag
