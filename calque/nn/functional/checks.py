"""Checks of values, made before anything changes: at once where the values exist already, else inside the recorded program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from calque import functional as T
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, DTypeError, OutOfRangeError, ShapeError
from calque.base.text import shown
from calque.functional.checks import Within, known_values, peek
from calque.functional.common import cast, prim
from calque.nn.functional.rows import choose, positions
from calque.ops.index import outside_code
from calque.ops.opdef import get
from calque.record.recorder import add_check, local
from calque.tensor import Tensor, record, slot_of, wrap

OUTSIDE = get("outside")
SMALL = 1 << 20  # elements; larger values are checked inside the program, by compiled code
_FEW = 256  # behind a program that has used all caches, what NumPy's `max` loads costs more than looking at so many
_INT64 = np.dtype(np.int64)
_FAR = (1 << 62) - 1


def values_of(t: Tensor) -> Any:
    """The tensor's values if they exist already and are not many, else None."""
    return None if t._layout.numel > SMALL else known_values(t)


def _place(position: int, shape: Any) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(position, tuple(shape))) if len(shape) else ()


def check_indices(t: Tensor, size: int, skip: int | None, error: Callable[[tuple[int, ...], int], Exception]) -> bool:
    """Raise `error(position, value)` for the first element outside 0..size-1 that is not `skip`. True if it is known that none is `skip`."""
    shape = tuple(t._layout.shape)
    if t._layout.numel == 0:
        return False
    plain = skip is None or not 0 <= skip < size
    if plain and t._layout.numel <= SMALL and (values := known_values(t)) is not None and _all_in(values, size):
        return True  # as at most steps of a loop; the rest is for replays, and names the first bad one

    def verdict(found: Any) -> tuple[bool, int, int]:
        if plain and _all_in(found, size):
            return True, -1, 0
        bad = _first_bad(found, size, skip)
        return False, bad, int(found.reshape(-1)[bad]) if bad >= 0 else 0

    # Where one of 0..size-1 is skipped, all may lie within and some be skipped.
    known = peek(t, Within(size, (True, -1, 0), verdict) if plain else verdict) if t._layout.numel <= SMALL else None
    if known is not None:
        none_skipped, bad, value = known
        if bad >= 0:
            raise error(_place(bad, shape), value)
        return bool(none_skipped)
    index = cast(wrap(t._storage, t._layout), dt.int64)
    code = record(OUTSIDE, (index, positions(shape)), (size, skip), row_major=True)
    worst = prim("amax", code, tuple(range(len(shape))), False) if shape else code

    def from_code(c: int) -> Exception:
        place, value = outside_code(c)
        return error(_place(place, shape), value)

    add_check(slot_of(local.state.trace, worst), from_code)
    return False


def _integer(value: int) -> Tensor:
    return prim("full", (value, dt.int64), ())


def _all_in(found: Any, size: int) -> bool:
    """Whether all are in 0..size-1, in one pass: as unsigned numbers negative ones are large. A few are sooner looked at one by one."""
    if found.dtype is not _INT64 and found.dtype != _INT64:
        return False
    if found.size > _FEW:
        return found.flags.c_contiguous and int(found.view(np.uint64).max()) < size
    numbers = (found if found.ndim == 1 else found.reshape(-1)).tolist()
    return min(numbers) >= 0 and max(numbers) < size


def _first_bad(found: Any, size: int, skip: int | None) -> int:
    wrong = (found < 0) | (found >= size)
    if skip is not None:
        wrong &= found != skip
    flat = wrong.reshape(-1)
    first = int(flat.argmax())
    return first if flat[first] else -1


def _record(wrong: Tensor, code: Tensor, shape: tuple[int, ...], error: Callable[[int], Exception]) -> None:
    """Attach a check to the program: `code` of the first wrong element, -1 if there is none."""
    code = choose(wrong, code, _FAR, dt.int64)
    least = prim("amin", code, tuple(range(len(shape))), False) if shape else code
    result = choose(least == _FAR, -1, least, dt.int64)
    add_check(slot_of(local.state.trace, result), error)


# A recorded check reports one int64: 28 bits position, 17 bits count, 18 bits value in thousandths.
_VALUE, _COUNT = 1 << 18, 1 << 17


def check_interval(t: Tensor, low: float, high: float, error: Callable[[tuple[int, ...], float, int], Exception]) -> None:
    """Raise `error(position, value, count)` if elements lie outside [low, high] (NaN passes: it is the caller's value)."""
    shape = tuple(t._layout.shape)
    if t._layout.numel == 0:
        return
    found = values_of(t)
    if found is not None:
        wrong = ((found < low) | (found > high)).reshape(-1)
        first = int(wrong.argmax())
        if wrong[first]:
            raise error(_place(first, shape), float(found.reshape(-1)[first]), int(wrong.sum()))
        return
    trace = local.state.trace
    if trace.eager and trace.all_within(t, low, high):
        return
    x = cast(wrap(t._storage, t._layout), dt.float64)
    wrong_now = T.logical_or(x < low, x > high)
    dims = tuple(range(len(shape)))
    ones = cast(wrong_now, dt.int64)
    count = T.minimum(prim("sum", ones, dims, False) if shape else ones, _integer(_COUNT - 1))
    thousandths = cast(T.round(T.minimum(T.maximum(x * 1000.0, -131071.0 + x * 0.0), 131071.0 + x * 0.0)), dt.int64)
    code = (positions(shape) * _COUNT + count) * _VALUE + (thousandths + _VALUE // 2)

    def from_code(c: int) -> Exception:
        return error(_place(c // _VALUE // _COUNT, shape), (c % _VALUE - _VALUE // 2) / 1000, c // _VALUE % _COUNT)

    _record(wrong_now, code, shape, from_code)


def bad_label(op: str, classes: int, where: tuple[int, ...], value: int) -> Exception:
    """Error of a class label that does not exist."""
    hint = f"; use ignore_index={value} to skip such rows" if value < 0 else "; are labels counted from 1, or is the last layer too narrow?"
    place = f"row {where[0]}" + (f" (position {where})" if len(where) > 1 else "") if where else "the target"
    return OutOfRangeError(f"[{op}] expected labels in 0..{classes - 1} ({classes} classes), got {value} at {place}{hint}")


def require_dtype(op: str, x: Tensor, weight: Tensor) -> None:
    """Raise unless input and weight have one dtype."""
    a, b = x._layout.dtype, weight._layout.dtype
    if a is not b:
        raise DTypeError(
            f"[{op}] expected an input of the weight's dtype {b!r}, got {a!r}; "
            f"convert the input with .to({b!r})" + (f" or the layer with .to({a!r})" if a.category == 2 else " (layers need floating inputs)")
        )


def reduced(loss: Tensor, reduction: str, op: str) -> Tensor:
    """Mean, sum or the losses themselves."""
    if reduction == "mean":
        return T.mean(loss)
    if reduction == "sum":
        return T.sum(loss)
    check_reduction(op, reduction)
    return loss


def check_reduction(op: str, reduction: Any) -> None:
    """Raise unless it is a word for what becomes of the losses."""
    if reduction not in ("none", "mean", "sum"):
        got = f"got {shown(reduction)}: {reduction} is not a valid value for reduction"
        raise ArgumentError(f"[{op}] expected reduction 'none', 'mean' or 'sum', {got}")


def channels_last(shape: tuple[int, ...], channels: int) -> str:
    """How to turn images, sequences or volumes whose last dim is the channels, if that explains a shape that does not fit; else "".

    >>> channels_last((8, 32, 32, 3), 3)
    'the last dim is 3: if channels come last, use x.permute(0, 3, 1, 2)'
    """
    last = len(shape) - 1
    if last < 2 or shape[-1] != channels:
        return ""
    moved = (last, *range(1, last))
    one = f", or x.permute{tuple(d - 1 for d in moved)} if it is a single one" if shape[0] == 1 else ""
    return f"the last dim is {channels}: if channels come last, use x.permute{(0, *moved)}{one}"


def check_norm(op: str, norm_type: float) -> None:
    """Raise if the order of a norm is 0."""
    if not norm_type:
        raise ArgumentError(f"[{op}] expected norm_type as a number other than 0, got {norm_type}; use 1 or 2")


def require_filled(op: str, x: Tensor, n: int, first: bool = False) -> None:
    """Raise if an input (N, C, *) or (C, *) of n spatial dims is empty elsewhere than in its batch or, if `first`, in its first dim."""
    shape = tuple(x._layout.shape)
    if 0 in shape[1 if first else len(shape) - n - 1 :]:
        raise ShapeError(
            f"[{op}] Expected {n + 1}D or {n + 2}D (batch mode) tensor with optional 0 dim batch size for input and non-batch dimensions of positive "
            f"length, but got: {list(shape)}; only the batch may be empty"
        )
