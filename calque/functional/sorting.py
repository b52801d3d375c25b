"""Sorting, selection by rank, distinct values, histograms and searches.

`sort`, `topk` and `kthvalue` are recorded and differentiable (the gradient goes to the selected elements). Functions whose
result's shape
depends on the values (`unique`, `bincount`, ...) read the values: they are sync points.
"""

from __future__ import annotations

import math
from math import prod as product
from typing import Any

import numpy as np

from calque.autograd.host import on_host
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, OutOfRangeError, ShapeError, UnsupportedTypeError
from calque.base.shapes import normalize_dim, whole
from calque.base.text import shown
from calque.functional.common import (
    Operand,
    cast,
    is_tensor,
    method,
    number,
    prim,
    require_dims,
    require_operands,
    require_real,
    result_dtype,
)
from calque.functional.declared import public
from calque.functional.math import with_formula
from calque.functional.placing import beside_input, host_values
from calque.functional.reductions import numpy_names, take_chosen
from calque.functional.results import KthResult, SortResult, TopkResult
from calque.functional.views import reshape
from calque.record.recorder import local
from calque.tensor import Tensor, read, upload

Array = np.ndarray[Any, Any]


def order_along(op: str, x: Tensor, dim: int, descending: bool = False) -> tuple[Tensor, int]:
    """(stable sorting permutation along dim, the dim as a non-negative number)."""
    d = normalize_dim(dim, x._layout.ndim, op)
    return prim("argsort", sortable(x), d, bool(descending)), d


def sortable(x: Tensor) -> Tensor:
    """The values alone, as numbers with an order."""
    return (cast(x, dt.uint8) if x._layout.dtype is dt.bool_ else x).detach()  # type: ignore[attr-defined, no-any-return]


def ranked(x: Tensor, d: int, start: int, stop: int, descending: bool = False) -> Tensor:
    """Positions along dim d of the elements of ranks start..stop, in order and without sorting the others; a 0-d x has one element."""
    return prim("ranked", sortable(x), d, start, stop, descending) if x._layout.ndim else prim("argsort", sortable(x), d, descending)


@public(out=True)
@numpy_names
def sort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Any:
    """Values in order along `dim` and where they came from: (*) -> (values (*), indices (*) int64). Always stable; NaN counts as
    largest.

    >>> import calque
    >>> calque.sort(calque.tensor([3.0, 1.0, 2.0])).indices
    tensor([1, 2, 0])
    """
    order, d = order_along("sort", input, dim, descending)
    return SortResult(*take_chosen(input, order, d, True))


@public(out=True, steps=True)
@numpy_names
def argsort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    """Indices (int64) that sort along `dim`: (*) -> (*). Always stable."""
    return order_along("argsort", input, dim, descending)[0]


@public(out="exact")
def msort(input: Tensor) -> Tensor:
    """Values in order along the first dim: (*) -> (*)."""
    return sort(input, 0).values  # type: ignore[no-any-return]


@public(out=True, steps=True)
def topk(input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """The k largest (or smallest) elements along `dim`, in order: (*, n, *) -> (values (*, k, *), indices (*, k, *) int64).

    >>> import calque
    >>> calque.topk(calque.tensor([3.0, 1.0, 2.0]), 2).values
    tensor([3., 2.])
    """
    d, k = normalize_dim(dim, input._layout.ndim, "topk"), whole("topk", "k", k)
    size = input._layout.shape[d] if input._layout.ndim else 1
    if not 0 <= k <= size:
        raise OutOfRangeError(
            f"[topk] selected index k out of range: expected 0 <= k <= {size} along dim {d} of shape "
            f"{tuple(input._layout.shape)}, got {k}"
        )
    return TopkResult(*take_chosen(input, ranked(input, d, 0, k, bool(largest)), d, True))


@public(out=True, steps=True)
def kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    """The k-th smallest element along `dim`, k from 1: (*) -> (values, indices)."""
    d = normalize_dim(dim, input._layout.ndim, "kthvalue")
    size = input._layout.shape[d] if input._layout.ndim else 1
    k = whole("kthvalue", "k", k)
    if not 1 <= k <= size:
        raise OutOfRangeError(f"[kthvalue] selected number k out of range for dimension {d}: expected 1 <= k <= {size}, got {k}")
    return KthResult(*take_chosen(input, ranked(input, d, k - 1, k), d, keepdim))


# ---------------------------------------------------------------------------------------------------- distinct values


def _rows(values: Array, dim: int) -> Array:
    moved = np.moveaxis(values, dim, 0)
    return moved.reshape(moved.shape[0], product(moved.shape[1:]))


def _results(values: Tensor, inverse: Tensor, counts: Tensor, wanted: tuple[bool, bool]) -> Any:
    extra = [t for t, keep in zip((inverse, counts), wanted, strict=True) if keep]
    return (values, *extra) if extra else values


def _flat(x: Tensor) -> Tensor:
    return reshape(x, (x._layout.numel,))


def _chosen(x: Tensor, positions: Array, dim: int) -> Tensor:
    """The slices of x at positions along dim, which get the gradient: that of equal slices goes to the first of them."""
    return prim("index_select", x, upload(positions, dt.int64), dim)


def _distinct_rows(values: Array, dim: int) -> tuple[Array, Array, Array]:
    """(positions of the first of each distinct slice in sorted order, inverse, counts)."""
    rows = _rows(values, dim)
    if rows.shape[1] == 0:
        found = min(1, rows.shape[0])
        return np.arange(found), np.zeros(rows.shape[0], np.int64), np.full(found, rows.shape[0])
    _, first, inverse, counts = np.unique(rows, axis=0, return_index=True, return_inverse=True, return_counts=True)
    return first, inverse.reshape(-1), counts


@public()
@beside_input
def unique(
    input: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """Distinct values in increasing order, (*) -> (n), or distinct slices along `dim`; on request with the position of every
    element among
    them (shape of input, or (size of dim)) and with counts (n). Reads the values.

    >>> import calque
    >>> calque.unique(calque.tensor([3, 1, 3]), return_counts=True)
    (tensor([1, 3]), tensor([1, 2]))
    """
    require_real("unique", input)
    values = read(input, "unique")
    wanted = (return_inverse, return_counts)
    if dim is None:
        asked: dict[str, Any] = {"return_inverse": return_inverse, "return_counts": return_counts}
        _, first, *found = np.unique(values, return_index=True, equal_nan=False, **asked)
        if return_inverse:
            found[0] = found[0].reshape(values.shape)
        distinct = _chosen(_flat(input), first, 0)
        return (distinct, *[upload(x, dt.int64) for x in found]) if found else distinct
    require_dims("unique", input, 1)
    d = normalize_dim(dim, values.ndim, "unique")
    if 0 in values.shape and values.shape[d]:
        raise ShapeError(
            "[unique] There are 0 sized dimensions, and they aren't selected, so unique cannot be applied: shape "
            f"{values.shape}, dim {d}"
        )
    first, inverse, counts = _distinct_rows(values, d)
    return _results(_chosen(input, first, d), upload(inverse, dt.int64), upload(counts, dt.int64), wanted)


@public()
@beside_input
def unique_consecutive(input: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None) -> Any:
    """As `unique`, but only neighbours are compared and the order is kept. Reads the values. The gradient of equal neighbours goes to the first."""
    require_real("unique_consecutive", input)
    values = read(input, "unique_consecutive")
    source = _flat(input) if dim is None else input
    flat = values.reshape(-1) if dim is None else values
    if dim is not None:
        require_dims("unique_consecutive", input, 1)
    d = 0 if dim is None else normalize_dim(dim, values.ndim, "unique_consecutive")
    if 0 in values.shape and dim is not None and values.shape[d]:
        raise ShapeError(
            "[unique_consecutive] There are 0 sized dimensions, and they aren't selected, so unique cannot be applied: shape "
            f"{values.shape}, dim {d}"
        )
    count = flat.shape[d]
    rows = _rows(flat, d)
    starts = np.ones(count, dtype=bool)
    if count:
        starts[1:] = (rows[1:] != rows[:-1]).any(axis=1)
    first = np.nonzero(starts)[0]
    inverse = np.cumsum(starts) - 1
    counts = np.diff(np.append(first, count))
    shaped = inverse.reshape(values.shape) if dim is None else inverse
    return _results(_chosen(source, first, d), upload(shaped, dt.int64), upload(counts, dt.int64), (return_inverse, return_counts))


@public(out="exact")
@beside_input
def isin(elements: Operand, test_elements: Operand, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """Whether each element is among the test elements: (*), any shape -> (*) bool. Reads the values."""
    require_real("isin", elements, test_elements)
    require_operands("isin", elements, test_elements)
    if local.state.trace.exports:
        found_in = _is_among(elements, test_elements)
        return prim("logical_not", found_in) if invert else found_in

    def found() -> Array:
        left, right = (read(x, "isin") if is_tensor(x) else np.asarray(number(x)) for x in (elements, test_elements))
        left, right = (x.astype(np.float32) if x.dtype == dt.bfloat16.np else x for x in (left, right))  # NumPy has no common type for others
        return np.isin(left, right, invert=invert)

    return host_values(tuple(elements._layout.shape) if is_tensor(elements) else (), dt.bool_, found)


def _is_among(elements: Any, tested: Any) -> Tensor:
    """`isin` as operations of a program: every element is compared with every other one."""
    left, right = (x if is_tensor(x) else prim("full", (number(x), result_dtype(elements, tested)), ()) for x in (elements, tested))
    kind = result_dtype(left, right)
    one = reshape(cast(left, kind), (*left._layout.shape, 1))
    other = reshape(cast(right, kind), (right._layout.numel,))
    return prim("any", one == other, (left._layout.ndim,), False)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------- histograms and searches


@public()
@beside_input
def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often each value occurs (or the sum of its weights, which get its gradient): (n) non-negative integers -> (max + 1). Reads the values."""
    if input._layout.ndim != 1 or input._layout.dtype.category != 1:
        raise ArgumentError(
            f"[bincount] bincount only supports 1-d non-negative integral inputs, got shape {tuple(input._layout.shape)} and "
            f"{input._layout.dtype!r}"
        )
    if minlength < 0:
        raise ArgumentError(f"[bincount] minlength should be >= 0, got {minlength}")
    values = read(input, "bincount")
    if values.size and values.min() < 0:
        position = int(np.argmax(values < 0))
        raise ArgumentError(
            f"[bincount] bincount only supports 1-d non-negative integral inputs, got {values[position]} at position {position}"
        )
    if weights is None:
        return upload(np.bincount(values, minlength=minlength), dt.int64)
    if weights._layout.shape != input._layout.shape:
        raise ShapeError(f"[bincount] expected weights of shape {tuple(input._layout.shape)}, got {tuple(weights._layout.shape)}")
    wide = cast(weights, weights._layout.dtype if weights._layout.dtype is dt.float32 else dt.float64)
    kind = wide._layout.dtype
    shape = (max(minlength, int(values.max(initial=-1)) + 1),)

    def value() -> Tensor:
        return upload(on_host("bincount", lambda w: np.bincount(values, w, minlength).astype(kind.np), (wide,), [shape])[0], kind)

    places = upload(values, dt.int64) if wide._requires_grad else input  # what was counted may be written
    return with_formula("BincountBackward0", (wide,), value, lambda g: (prim("index_select", g, places, 0),))


@public(out="exact")
@beside_input
def histc(input: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """Counts in `bins` equal intervals of [min, max] (both 0: the data's range); values outside are ignored: (*) -> (bins).
    Reads the values."""
    if input._layout.dtype.category != 2:
        raise UnsupportedTypeError(f"[histc] expected a floating dtype, got {input._layout.dtype!r}; convert with .float()")
    bins = whole("histc", "bins", bins)
    if not 0 < bins < 1 << 31:
        raise ArgumentError(f"[histc] bins must be > 0, got {bins}")
    if max < min:
        raise ArgumentError(f"[histc] max must be larger than min, got min={min} and max={max}")
    return host_values((bins,), input._layout.dtype, lambda: _histogram(read(input, "histc"), bins, float(min), float(max)))


def _histogram(array: Array, bins: int, low: float, high: float) -> Array:
    values = array.reshape(-1).astype(np.float64)
    if low == high and values.size:
        low, high = float(values.min()), float(values.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ArgumentError(f"[histc] range of [{low}, {high}] is not finite")
    if low == high:
        low, high = low - 1, high + 1
    inside = values[(values >= low) & (values <= high)]
    positions = np.minimum(((inside - low) / (high - low) * bins).astype(np.int64), bins - 1)
    return np.bincount(positions, minlength=bins)


@public(out="exact")
@beside_input
def searchsorted(
    sorted_sequence: Tensor,
    input: Operand,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """Where values would be inserted to keep the order: (*, n), (*, m) -> (*, m) int64; a 1-d sequence serves values of any
    shape.

    right (or side="right"): after equal elements instead of before them. sorter: indices that sort the sequence. Reads the
    values.
    """
    require_real("searchsorted", sorted_sequence, input)
    if side not in (None, "left", "right") or (side == "left" and right):
        raise ArgumentError(f"[searchsorted] expected side 'left' or 'right' in agreement with right={right}, got {shown(side)}")
    require_operands("searchsorted", input)
    require_dims("searchsorted", sorted_sequence, 1, name="sorted_sequence")
    if sorter is not None and (sorter._layout.dtype is not dt.int64 or sorter._layout.shape != sorted_sequence._layout.shape):
        raise ArgumentError(
            f"[searchsorted] expected sorter as int64 indices of shape {tuple(sorted_sequence._layout.shape)}, got {sorter._layout.dtype} of shape "
            f"{tuple(sorter._layout.shape)}; pass what argsort() returns"
        )
    where: Any = "right" if right or side == "right" else "left"
    rows = tuple(sorted_sequence._layout.shape)
    shape = tuple(input._layout.shape) if is_tensor(input) else ()
    if len(rows) != 1 and rows[:-1] != shape[:-1]:
        raise ShapeError(
            "[searchsorted] boundaries tensor should be 1 dimension or the first N-1 dimensions of boundaries tensor and input "
            f"value tensor must match, got shapes {rows} and {shape}"
        )

    if local.state.trace.exports:
        return _counted_places(sorted_sequence, input, where == "right", sorter, dt.int32 if out_int32 else dt.int64)

    def places() -> Array:
        sequence = read(sorted_sequence, "searchsorted")
        if sorter is not None:
            sequence = np.take_along_axis(sequence, read(sorter, "searchsorted"), -1)
        values = read(input, "searchsorted") if is_tensor(input) else np.asarray(number(input))
        if sequence.ndim == 1:
            return np.asarray(np.searchsorted(sequence, values, where))
        found = np.empty(values.shape, np.int64)
        for index in np.ndindex(*values.shape[:-1]):
            found[index] = np.searchsorted(sequence[index], values[index], where)
        return found

    return host_values(shape, dt.int32 if out_int32 else dt.int64, places)


def _counted_places(sequence: Tensor, input: Operand, right: bool, sorter: Tensor | None, wanted: dt.DType) -> Tensor:
    """The same as operations of a program: how many elements stand before each value. NaN stands behind all others."""
    if sorter is not None:
        sequence = prim("gather", sequence, sorter, sequence._layout.ndim - 1)
    values: Any = input if is_tensor(input) else prim("full", (number(input), result_dtype(sequence, input)), ())
    kind = result_dtype(sequence, values)
    a = reshape(cast(values, kind), (*values._layout.shape, 1))
    shape = tuple(sequence._layout.shape)
    b = cast(sequence if len(shape) == 1 else reshape(sequence, (*shape[:-1], 1, shape[-1])), kind)
    before = (b <= a) if right else (b < a)  # type: ignore[operator]
    if kind.category == 2:
        nan, other = a != a, b == b
        before = before | (nan if right else nan & other)
    return cast(prim("sum", cast(before, dt.int64), (before._layout.ndim - 1,), False), wanted)


@public(method=False, out="exact")
def bucketize(input: Operand, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """Number of the interval between `boundaries` (n) that each value falls into: (*) -> (*) int64. Reads the values."""
    require_real("bucketize", input, boundaries)
    if boundaries._layout.ndim != 1:
        raise ShapeError(f"[bucketize] boundaries tensor must be 1 dimension, got shape {tuple(boundaries._layout.shape)}")
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


method("bucketize")(bucketize)
