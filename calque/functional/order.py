"""Order statistics and running reductions: median, quantile, mode, cumsum, cummax and relatives; the larger of two where NaN is missing."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from calque.base import dtypes as dt
from calque.base.device import META
from calque.base.errors import ArgumentError, DTypeError
from calque.base.shapes import normalize_dim
from calque.base.text import shown
from calque.functional.arithmetic import Binary, _ge, _le, _maximum, _minimum, _ne, _of_tensor
from calque.functional.common import Operand, cast, is_tensor, linked, number, prim, require_fractions, require_real, result_dtype
from calque.functional.declared import public
from calque.functional.elementary import floor
from calque.functional.joining import cat
from calque.functional.math import clamp, isnan, logaddexp, where, with_formula
from calque.functional.placing import beside_input, host_values
from calque.functional.precision import full_precision
from calque.functional.reductions import numpy_names, require_elements, take_chosen
from calque.functional.results import CummaxResult, CumminResult, MedianResult, ModeResult, NanMedianResult
from calque.functional.sorting import order_along, ranked, sortable
from calque.functional.ternary import lerp
from calque.functional.views import expand, reshape
from calque.functional.windows import narrow, select
from calque.ir.symint import any_free
from calque.record.recorder import local
from calque.tensor import Tensor, read

# ------------------------------------------------------------------------------------------------------------ running


def _running(name: str, x: Tensor, dim: int, dtype: dt.DType | None) -> Tensor:
    d = normalize_dim(dim, x._layout.ndim, name)
    if dtype is not None:
        x = cast(x, dtype)
    elif x._layout.dtype.category < 2:
        x = cast(x, dt.int64)
    return prim(name, x, d)


@public(in_place="method", out=True)
@numpy_names
def cumsum(input: Tensor, dim: int, *, dtype: dt.DType | None = None) -> Tensor:
    """Running sum along `dim`: (*) -> (*). Integers and bool give int64.

    >>> import calque
    >>> calque.cumsum(calque.tensor([1, 2, 3]), 0)
    tensor([1, 3, 6])
    """
    return _running("cumsum", input, dim, dtype)


@public(in_place="method", out=True)
@numpy_names
def cumprod(input: Tensor, dim: int, *, dtype: dt.DType | None = None) -> Tensor:
    """Running product along `dim`: (*) -> (*). Integers and bool give int64."""
    return _running("cumprod", input, dim, dtype)


@public(out="exact", steps=True)
@numpy_names
def logcumsumexp(input: Tensor, dim: int) -> Tensor:
    """`log(cumsum(exp(x)))` along `dim`, without overflow: (*) -> (*). Computed by doubling: log2(n) passes over n elements."""
    require_fractions("logcumsumexp", input)
    given = input
    d = normalize_dim(dim, given._layout.ndim, "logcumsumexp")
    x = cast(given, given._layout.dtype.compute)  # rounded once, not in every pass
    if x._layout.numel == 0 or not x._layout.ndim:
        return prim("copy", given)
    steps, extent = 1, x._layout.shape[d]
    while steps < extent:
        head, rest = narrow(x, d, 0, steps), narrow(x, d, steps, extent - steps)
        x = cat([head, logaddexp(rest, narrow(x, d, 0, extent - steps))], d)
        steps *= 2
    if extent > 1:
        return cast(x, given._layout.dtype)
    return linked(prim("copy", given), given)  # its second gradient is zero there, as elsewhere it would be


def _running_extreme(name: str, kind: Any, x: Tensor, dim: int) -> Any:
    require_real(name, x)
    d = normalize_dim(dim, x._layout.ndim, name)
    return kind(*take_chosen(x, prim(f"cumarg{name[3:]}", sortable(x), d), d, True))


@public(out=True, steps=True)
@numpy_names
def cummax(input: Tensor, dim: int) -> Any:
    """Running maximum along `dim` and where it is: (*) -> (values (*), indices (*) int64).
    Of equal elements the last, and NaN before all.

    >>> import calque
    >>> calque.cummax(calque.tensor([1.0, 3.0, 2.0]), 0).values
    tensor([1., 3., 3.])
    """
    return _running_extreme("cummax", CummaxResult, input, dim)


@public(out=True, steps=True)
@numpy_names
def cummin(input: Tensor, dim: int) -> Any:
    """Running minimum along `dim` and where it is: (*) -> (values (*), indices (*) int64). As `cummax`."""
    return _running_extreme("cummin", CumminResult, input, dim)


# -------------------------------------------------------------------------------------------------------- order statistics


def _flat(x: Tensor) -> Tensor:
    return reshape(x, (x._layout.numel,))


def _extent(x: Tensor, d: int) -> int:
    return x._layout.shape[d] if x._layout.ndim else 1


def _missing(x: Tensor, d: int, last: bool = False) -> Tensor:
    """Position along dim d, which is kept, of the first NaN, or its size where there is none; of the last, or -1."""
    shape = [1] * x._layout.ndim
    size = shape[d] = _extent(x, d)
    positions = reshape(prim("iota", (size,), dt.int64), tuple(shape))
    if last:
        return prim("amax", where(isnan(x), positions, -1), (d,), True)
    return size - 1 - prim("amax", where(isnan(x), size - 1 - positions, -1), (d,), True)


def _median(name: str, kind: Any, x: Tensor, dim: int, keepdim: bool) -> Any:
    d = normalize_dim(dim, x._layout.ndim, name)
    if not x._layout.ndim:
        return kind(*take_chosen(x, order_along(name, x, dim)[0], d, keepdim))
    require_elements(name, x, (d,))
    size = _extent(x, d)
    middle = (size - 1) // 2
    if x._layout.dtype.category < 2:
        return kind(*take_chosen(x, ranked(x, d, middle, middle + 1), d, keepdim))
    if name == "median":
        missing = _missing(x, d)
        return kind(*take_chosen(x, where(missing < size, missing, ranked(x, d, middle, middle + 1)), d, keepdim))
    order, _ = order_along(name, x, dim)
    missing = prim("sum", cast(isnan(x), dt.int64), (d,), True)  # NaN is sorted last
    rank = clamp((size - 1 - missing) // 2, min=0)
    return kind(*take_chosen(x, prim("gather", order, cast(rank, dt.int64), d), d, keepdim))


@beside_input
def _median_of(name: str, kind: Any, x: Tensor, dim: int | None, keepdim: bool) -> Any:
    if dim is not None:
        return _median(name, kind, x, dim, keepdim)
    if not x._layout.numel:
        nothing = math.nan if x._layout.dtype.category == 2 else -(1 << (x._layout.dtype.bits - 1))
        return linked(prim("full", (nothing, x._layout.dtype), ()), x)

    middle: Any = None

    def value() -> Tensor:  # without history, but not detached: in forward mode it moves on the levels around this one
        nonlocal middle
        flat = _flat(x)
        middle = _median(name, kind, flat, 0, False).values
        if local.state.trace.transforms and x._layout.dtype.category == 2:  # there equal elements share the tangent
            middle = prim("amax", where(where(isnan(middle), isnan(flat), flat == middle), flat, -math.inf), (0,), False)
        return middle  # type: ignore[no-any-return]

    def backward(g: Tensor) -> tuple[Tensor]:
        equal = where(isnan(middle), isnan(x), x == middle)
        return (where(equal, g / cast(prim("sum", cast(equal, dt.int64), tuple(range(x._layout.ndim)), False), x._layout.dtype), 0.0),)

    return with_formula("MedianBackward0", (x,), value, backward, uses=True)


@public(out=True, steps=True)
@partial(numpy_names, with_dim=True)
def median(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """Middle value (the lower of two) of all elements, which share the gradient if they are equal; along `dim` a named tuple (values, indices).
    NaN wins.

    >>> import calque
    >>> calque.median(calque.tensor([4.0, 1.0, 3.0, 2.0]))
    tensor(2.)
    """
    return _median_of("median", MedianResult, input, dim, keepdim)


@public(out=True, steps=True)
@partial(numpy_names, with_dim=True)
def nanmedian(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """As `median`, without the NaNs."""
    return _median_of("nanmedian", NanMedianResult, input, dim, keepdim)


@public(out=True)
@numpy_names
@beside_input
def mode(input: Tensor, dim: int = -1, keepdim: bool = False) -> Any:
    """Most frequent value along `dim` (the smallest of several) and its last position: (values, indices). Reads the values."""
    require_real("mode", input)
    d = normalize_dim(dim, input._layout.ndim, "mode")
    if not input._layout.ndim:
        return ModeResult(prim("copy", input), prim("full", (0, dt.int64), ()))
    require_elements("mode", input, (d,))
    shape = tuple(1 if k == d else extent for k, extent in enumerate(input._layout.shape))
    chosen = host_values(shape, dt.int64, lambda: _last_most_frequent(read(input, "mode"), d))
    return ModeResult(*take_chosen(input, chosen, d, keepdim))


def _last_most_frequent(array: np.ndarray[Any, Any], d: int) -> np.ndarray[Any, Any]:
    """Last position along dim d, which is kept, of the most frequent value."""
    rows = np.moveaxis(array, d, -1)
    found = np.empty((*rows.shape[:-1], 1), np.int64)
    for index in np.ndindex(*rows.shape[:-1]):
        values, counts = np.unique(rows[index], return_counts=True)
        most = values[np.argmax(counts)]
        found[index] = np.nonzero(rows[index] == most if most == most else rows[index] != rows[index])[0][-1]  # NaN equals nothing
    return np.moveaxis(found, -1, d)


_INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")


def _quantile(name: str, x: Tensor, q: Any, dim: int | None, keepdim: bool, interpolation: str) -> Tensor:
    if x._layout.dtype not in (dt.float32, dt.float64):
        raise DTypeError(
            f"[{name}] input tensor must be either float or double dtype, got {x._layout.dtype!r}; convert with .float()"
        )
    if is_tensor(q) and q._layout.dtype is not x._layout.dtype:
        raise DTypeError(f"[{name}] q tensor must be same dtype as the input tensor: expected {x._layout.dtype!r}, got {q._layout.dtype!r}")
    if not x._layout.numel:
        raise ArgumentError(f"[{name}] input tensor must be non-empty, got shape {tuple(x._layout.shape)}")
    if interpolation not in _INTERPOLATIONS:
        raise ArgumentError(f"[{name}] expected interpolation among {', '.join(_INTERPOLATIONS)}, got {shown(interpolation)}")
    if is_tensor(q) and q._layout.device is META:
        levels = np.zeros(tuple(q._layout.shape))  # which levels makes no difference to a shape
    else:
        levels = np.asarray(read(q, name) if is_tensor(q) else number(q), np.float64)
    if levels.ndim > 1:
        raise ArgumentError(f"[{name}] q must be a scalar or 1D tensor, got {levels.ndim} dims")
    if levels.size and not (np.all(levels >= 0) and np.all(levels <= 1)):
        raise ArgumentError(f"[{name}] q values must be in the range [0, 1], got {levels.tolist()}")
    full_rank = x._layout.ndim
    if dim is None:
        rows, d = _flat(x), 0
    else:
        d = normalize_dim(dim, full_rank, name)
        rows = x if full_rank else _flat(x)
    require_elements(name, rows, (d,))
    numbers = [float(level) for level in levels.reshape(-1)]
    parts: list[Any] = numbers
    if is_tensor(q) and q._requires_grad and interpolation == "linear":  # the others choose an element, whatever exactly the level is
        flat = reshape(cast(q, x._layout.dtype), (len(numbers),))
        parts = [select(flat, 0, k) for k in range(len(numbers))]
    pieces = (_with_missing if name == "nanquantile" else _selected)(rows, d, parts, numbers, interpolation)
    shaped = [_finish_shape(p, x, d, dim, keepdim) for p in pieces]
    if levels.ndim == 0:
        return shaped[0]
    stacked = [reshape(p, (1, *p._layout.shape)) for p in shaped]
    if stacked:
        return prim("cat", *stacked, 0)
    one = _finish_shape(prim("sum", rows, (d,), True), x, d, dim, keepdim)
    return linked(prim("full", (0, x._layout.dtype), (0, *one._layout.shape)), x, q if interpolation == "linear" else None)


_ROUNDED: dict[str, tuple[str, Callable[[Any], Any]]] = {"nearest": ("round", np.rint), "lower": ("floor", np.floor), "higher": ("ceil", np.ceil)}


def _selected(x: Tensor, d: int, levels: list[Any], numbers: list[float], interpolation: str) -> list[Tensor]:
    """The quantiles of each line, dim kept, without sorting more than what lies between their ranks. NaN wins, and has the gradient."""
    dtype, size = x._layout.dtype, _extent(x, d)
    if any_free(size):
        return [_selected_of_free(x, d, level, interpolation) for level in levels]
    exact = dtype.np.type
    ranks = [exact(size - 1) * exact(level) for level in numbers]
    if interpolation in _ROUNDED:
        ranks = [_ROUNDED[interpolation][1](rank) for rank in ranks]
    if not ranks:
        return []
    start, stop = int(np.floor(min(ranks))), int(np.ceil(max(ranks))) + 1
    order, missing = ranked(x, d, start, stop), _missing(x, d, last=True)

    def at(rank: int) -> Tensor:
        return prim("gather", x, where(missing < 0, narrow(order, d, rank - start, 1), missing), d)

    found = []
    for level, rank in zip(levels, ranks, strict=True):
        below, above = int(np.floor(rank)), int(np.ceil(rank))
        weight: Any = float(rank) - below
        if interpolation == "midpoint":
            weight = 0.0 if below == above else 0.5
        elif is_tensor(level):
            weight = level * float(size - 1) - float(below)
        found.append(lerp(at(below), at(above), weight))
    return found


def _selected_of_free(x: Tensor, d: int, level: Any, interpolation: str) -> Tensor:
    """A quantile along a dim whose size is free: which ranks that means is computed where the program runs."""
    order, missing = order_along("quantile", x, d)[0], _missing(x, d, last=True)
    rank = prim("full", (_extent(x, d) - 1, x._layout.dtype), (1,) * x._layout.ndim) * level  # type: ignore[operator]

    def at(rank: Tensor) -> Tensor:
        shape = tuple(missing._layout.shape)
        return prim("gather", x, where(missing < 0, prim("gather", order, expand(cast(rank, dt.int64), shape), d), missing), d)

    if interpolation in _ROUNDED:
        return at(prim(_ROUNDED[interpolation][0], rank))
    below = prim("floor", rank)
    weight = rank - below  # type: ignore[operator]
    return lerp(at(below), at(prim("ceil", rank)), cast(weight != 0, x._layout.dtype) * 0.5 if interpolation == "midpoint" else weight)


def _with_missing(x: Tensor, d: int, levels: list[Any], numbers: list[float], interpolation: str) -> list[Tensor]:
    """The quantiles of what is no NaN in each line, dim kept: their ranks differ."""
    dtype, size = x._layout.dtype, _extent(x, d)
    values = prim("gather", x, order_along("nanquantile", x, d)[0], d)
    top = cast(clamp(size - 1 - prim("sum", cast(isnan(x), dt.int64), (d,), True), min=0), dtype)
    found = []
    for level in levels:
        rank = top * level
        if interpolation in _ROUNDED:
            rank = prim(_ROUNDED[interpolation][0], rank)
        below, above = floor(rank), prim("ceil", rank)
        low, high = (prim("gather", values, cast(r, dt.int64), d) for r in (below, above))
        found.append(lerp(low, high, cast(where(below == above, 0.0, 0.5), dtype) if interpolation == "midpoint" else rank - below))
    return found


def _finish_shape(piece: Tensor, x: Tensor, d: int, dim: int | None, keepdim: bool) -> Tensor:
    if dim is None:
        return reshape(piece, (1,) * x._layout.ndim if keepdim else ())
    if keepdim:
        return reshape(piece, tuple(1 if k == d else s for k, s in enumerate(x._layout.shape)))
    return select(piece, d, 0)


@public(out="exact", steps=True)
@numpy_names
@full_precision
def quantile(input: Tensor, q: Operand, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear") -> Tensor:
    """The q-quantiles, q in [0, 1], of all elements or along `dim`; a 1-d q gives a leading dim. NaN wins.

    interpolation between neighbours: linear, lower, higher, midpoint or nearest.

    >>> import calque
    >>> calque.quantile(calque.tensor([1.0, 2.0, 3.0, 5.0]), 0.5)
    tensor(2.5000)
    """
    return _quantile("quantile", input, q, dim, keepdim, interpolation)


@public(out="exact", steps=True)
@numpy_names
@full_precision
def nanquantile(input: Tensor, q: Operand, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear") -> Tensor:
    """As `quantile`, without the NaNs."""
    return _quantile("nanquantile", input, q, dim, keepdim, interpolation)


def _ignoring_nan(name: str, function: Binary, wins: Binary, a: Any, b: Any) -> Tensor:
    """The first operand where it wins or the other is NaN, so that it has the whole gradient of equal ones, as in PyTorch."""
    best = _of_tensor(name, function, a, b, both=True)
    dtype = result_dtype(a, b)
    if dtype.category != 2:
        return best
    a, b = (cast(x, dtype) if is_tensor(x) else prim("full", (number(x), dtype), ()) for x in (a, b))
    return prim("where", prim("bitwise_or", wins(a, b), _ne(b, b)), a, b)


@public(out=True, steps=True)
def fmax(input: Operand, other: Operand) -> Tensor:
    """Larger of two, broadcast, where NaN counts as missing."""
    return _ignoring_nan("fmax", _maximum, _ge, input, other)


@public(out=True, steps=True)
def fmin(input: Operand, other: Operand) -> Tensor:
    """Smaller of two, broadcast, where NaN counts as missing."""
    return _ignoring_nan("fmin", _minimum, _le, input, other)
