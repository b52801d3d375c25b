"""Checks of run-time indices: at once where the values are known, else by a check that runs with the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, DTypeError, IndexTypeError, OutOfRangeError, ShapeError
from calque.base.text import type_name
from calque.functional.common import cast, is_tensor, prim
from calque.observe.source import user_line
from calque.record.recorder import add_check, local
from calque.replay.macro import known_values as values_now
from calque.tensor import Tensor, slot_of

_BIG = (1 << 63) - 1
_HALF = 1 << 31
_FEW = 64


def index_error(op: str, value: int, position: tuple[int, ...], size: int, low: int, line: str = "") -> OutOfRangeError:
    """The error for one bad index."""
    where = f" at position {list(position)}" if position else ""
    return OutOfRangeError(
        f"[{op}] index {value}{where} of the index tensor is out of bounds for dimension with size {size}: expected {low} to "
        f"{size - 1}"
        + (f" (recorded at {line})" if line else "")
    )


def known_values(index: Tensor) -> np.ndarray[Any, Any] | None:
    """The index tensor's values if they are in memory already, without waiting."""
    capture = local.state.capture
    if capture is not None and not capture.rehearses:  # what is recorded for replay must not depend on values; see `peek`
        return None
    return values_now(index._storage, index._layout)  # type: ignore[no-any-return]


def peek(t: Tensor, verdict: Callable[[Any], Any]) -> Any:
    """`verdict` on the values if they are in memory already, else None. A replay of the call asks again, and holds for the same verdict only."""
    capture = local.state.capture
    if capture is not None and capture.blind:  # an export: no file could look again
        return None
    found = values_now(t._storage, t._layout)
    if found is None:
        trace, within = local.state.trace, verdict.__class__ is Within
        return verdict.good if within and trace.eager and trace.all_within(t, 0, verdict.size - 1) else None  # type: ignore[attr-defined]
    result = verdict(found)
    if capture is not None:
        capture.peek(t._storage, t._layout, verdict, result)
    return result


class Within:
    """A verdict on integers that is `good` if and only if all of them are in 0..size-1: a replay may look at that alone."""

    __slots__ = ("size", "good", "verdict")

    def __init__(self, size: int, good: Any, verdict: Callable[[Any], Any]) -> None:
        self.size, self.good, self.verdict = size, good, verdict

    def __call__(self, values: Any) -> Any:
        return self.verdict(values)


def check_index(op: str, index: Tensor, size: int, negative: bool = True) -> Tensor:
    """`index` as int64 positions in 0..size-1 (negative ones counted from the end if allowed); raises or records a check."""
    view = index._layout
    if view.dtype.category != 1:
        raise IndexTypeError(
            f"[{op}] tensors used as indices must be long, int, byte or bool tensors, got {view.dtype}; convert with .long()"
        )
    low = -size if negative else 0
    if not view.numel:
        return cast(index, dt.int64)
    known = peek(index, Within(size, (None, 0, False), lambda values: _verdict(values, size, low, negative)))
    if known is not None:
        position, value, wraps = known
        if position is not None:
            raise index_error(op, value, position, size, low)
        wide = cast(index, dt.int64)
        return _wrapped(wide, size) if wraps else wide
    wide = cast(index, dt.int64)
    _record_check(op, wide, size, low)
    return _wrapped(wide, size) if negative and view.dtype.is_signed else wide


def _verdict(values: np.ndarray[Any, Any], size: int, low: int, negative: bool) -> tuple[tuple[int, ...] | None, int, bool]:
    """Position and value of the first bad index, if any; whether some count from the end."""
    if values.size <= _FEW:  # sooner looked at one by one
        numbers = values.reshape(-1).tolist()
        if min(numbers) >= low and max(numbers) < size:
            return None, 0, negative and min(numbers) < 0
    bad = (values < low) | (values >= size)
    if bad.any():
        position = tuple(int(i) for i in np.argwhere(bad)[0])
        return position, int(values[position]), False
    return None, 0, negative and bool((values < 0).any())


def check_probabilities(op: str, p: Tensor) -> None:
    """Raise, or record a check, unless all values are in [0, 1]; NaN is not."""
    if not p._layout.numel:
        return
    known = peek(p, _not_probable)
    if known is not None:
        if known:
            raise _improbable(op, *known)
        return
    shape, line, dtype = tuple(p._layout.shape), user_line(), p._layout.dtype
    p = p.detach()
    outside = prim("bitwise_or", prim("lt", p, (0.0, dtype)), prim("gt", p, (1.0, dtype)))
    bad = prim("bitwise_or", outside, prim("ne", p, p))
    code = prim("where", bad, prim("iota", shape, dt.int64), (_BIG, dt.int64))
    first = prim("amin", code, tuple(range(len(shape))), False) if shape else code
    found = prim("where", prim("eq", first, (_BIG, dt.int64)), (-1, dt.int64), first)

    def error(position: int) -> Exception:
        return _improbable(op, tuple(int(i) for i in np.unravel_index(position, shape)) if shape else (), None, line)

    add_check(slot_of(local.state.trace, found), error)


def _not_probable(values: np.ndarray[Any, Any]) -> Any:
    bad = ~((values >= 0) & (values <= 1))
    if not bad.any():
        return ()
    position = tuple(int(i) for i in np.argwhere(bad)[0])
    return position, float(values[position])


def _improbable(op: str, position: tuple[int, ...], value: float | None, line: str = "") -> ArgumentError:
    shown = "another number" if value is None else f"{value}"
    where = f" at position {list(position)}" if position else ""
    recorded = f" (recorded at {line})" if line else ""
    return ArgumentError(f"[{op}] expected probabilities, all values in [0, 1], got {shown}{where}{recorded}; use sigmoid() or clamp(0, 1)")


def _wrapped(index: Tensor, size: int) -> Tensor:
    """Negative positions counted from the end."""
    return prim("where", prim("lt", index, (0, dt.int64)), prim("add", index, (size, dt.int64)), index)


def _record_check(op: str, index: Tensor, size: int, low: int) -> None:
    """A check that yields, for the first bad element, its position and value in one number: position * 2**32 + value + 2**31."""
    shape = tuple(index._layout.shape)
    line = user_line()
    bad = prim("bitwise_or", prim("lt", index, (low, dt.int64)), prim("ge", index, (size, dt.int64)))
    clipped = prim("maximum", prim("minimum", index, (_HALF - 1, dt.int64)), (-_HALF, dt.int64))
    where = prim("mul", prim("iota", shape, dt.int64), (1 << 32, dt.int64))
    code = prim("where", bad, prim("add", prim("add", clipped, (_HALF, dt.int64)), where), (_BIG, dt.int64))
    first = prim("amin", code, tuple(range(len(shape))), False) if shape else code
    found = prim("where", prim("eq", first, (_BIG, dt.int64)), (-1, dt.int64), first)

    def error(packed: int) -> Exception:
        position, value = packed >> 32, (packed & 0xFFFFFFFF) - _HALF
        index_ = tuple(int(i) for i in np.unravel_index(position, shape)) if shape else ()
        return index_error(op, value, index_, size, low, line)

    add_check(slot_of(local.state.trace, found), error)


def require_pivot_count(op: str, shape: tuple[int, ...], rows: int, exactly: bool = True) -> None:
    """Raise unless there is one pivot (`exactly`: else at most one) for each row."""
    if not shape or (shape[-1] != rows if exactly else shape[-1] > rows):
        raise ShapeError(
            f"[{op}] number of pivots per batch should be same as the dimension of the matrix: expected {rows} in the last dim, got shape "
            f"{tuple(shape)}; pass those that the factorisation gave"
        )


def require_pivot_dims(op: str, matrix: tuple[int, ...], pivots: tuple[int, ...]) -> None:
    """Raise for pivots that are not one vector per matrix."""
    if len(pivots) != len(matrix) - 1 or not pivots[-1] and matrix[-1]:
        raise ShapeError(
            f"[linalg.{op}] Expected LD.shape[:-1] and pivots.shape to be the same, got LD of {matrix} and pivots of {pivots}; pass what "
            "the factorisation gave"
        )


def require_pivots(op: str, pivots: Any, rows: int, signed: bool = False) -> Any:
    """The values of pivots, at most one per row, which count rows from 1 (`signed`: or from -1 down); raises for others."""
    require_pivot_count(op, pivots.shape, rows, False)
    if pivots.dtype.kind not in "iu":
        raise DTypeError(f"[{op}] expected pivots as integers, got {pivots.dtype}; pass those that the factorisation gave")
    size = np.abs(pivots) if signed else pivots
    wrong = (size < 1) | (size > rows)
    if wrong.any():
        raise OutOfRangeError(
            f"[{op}] pivots passed to {op} must be between 1 and {rows} inclusive, got {pivots[wrong][0]}; pass those that the factorisation gave"
        )
    return pivots


def require_rows(op: str, x: Tensor, B: Tensor) -> None:
    """Raise unless `B` is a matrix, or several, with a row for each of a square matrix."""
    if B._layout.ndim < 2 or B._layout.shape[-2] != x._layout.shape[-1]:
        got = f"{tuple(x._layout.shape)} and {tuple(B._layout.shape)}: Incompatible shapes of A and B for the equation AX = B"
        raise ShapeError(f"[linalg.{op}] expected B with {x._layout.shape[-1]} rows, got shapes {got}")


def index_tensors(op: str, indices: Any) -> tuple[Any, ...]:
    """Index tensors, one for each of the first dims."""
    if not isinstance(indices, (tuple, list)):
        raise TypeError(f"[{op}] expected a tuple of index tensors, one for each dim, got {type_name(indices)}; write (index,) for one")
    for k, item in enumerate(indices):
        if not is_tensor(item):
            raise TypeError(f"[{op}] expected Tensor as element {k} of indices, but got {type_name(item)}; calque.tensor(index) makes one")
    return tuple(indices)
