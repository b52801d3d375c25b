"""`torch.nn._reduction`: numbers of reductions, and the deprecated arguments of losses, for libraries with losses of their own."""

from __future__ import annotations

from typing import Any

from calque.base.errors import ArgumentError
from calque.nn.functional.legacy import legacy_reduction

__all__ = ["get_enum", "legacy_get_enum", "legacy_get_string"]


def get_enum(reduction: str) -> int:
    """The number of "none", "mean" or "sum"."""
    if reduction not in ("none", "mean", "sum"):
        raise ArgumentError(f"[get_enum] expected reduction 'none', 'mean' or 'sum', got {reduction!r}: it is not a valid value for reduction")
    return ("none", "mean", "sum").index(reduction)


def legacy_get_string(size_average: bool | None, reduce: bool | None, emit_warning: bool = True) -> str:
    """The reduction that the deprecated arguments mean."""
    if emit_warning:
        return legacy_reduction(size_average, reduce, "mean")
    return "none" if reduce is False else "mean" if size_average is not False else "sum"


def legacy_get_enum(size_average: Any, reduce: Any, emit_warning: bool = True) -> int:
    """The number of what `legacy_get_string` says."""
    return get_enum(legacy_get_string(size_average, reduce, emit_warning))
