"""Elements put at places: reductions into rows, segments, strided windows, tensors of given strides, coordinates of flat positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from calque.autograd.assign import assign
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, DTypeError, ShapeError
from calque.base.shapes import Shape, contiguous_strides, fills, normalize_dim
from calque.base.text import shown
from calque.functional.checks import check_index
from calque.functional.common import cast, is_tensor, linked, method, prim, require_real, row_major
from calque.functional.creation import empty, full, zeros
from calque.functional.declared import public, takes_out
from calque.functional.formats import reordered
from calque.functional.inplace import filling
from calque.functional.joining import cat
from calque.functional.math import isnan, where, with_formula
from calque.functional.options import marked, resolve_dtype
from calque.functional.placing import placed, placed_like
from calque.functional.reductions import amax, amin, mean, prod, vector_norm
from calque.functional.reductions import sum as total
from calque.functional.selection import nonzero, scatter_reduce
from calque.functional.views import expand, reshape
from calque.functional.windows import as_strided, narrow
from calque.functional.writing import in_place_form
from calque.record.places import require_one_place
from calque.tensor import Tensor, read, upload_known

# ------------------------------------------------------------------------------------------------------------ into rows


@method()
@takes_out
def index_reduce(input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True) -> Tensor:
    """`input` with the rows of `source` combined into the rows that `index` names, by "prod", "mean", "amax" or "amin" (with the row that was there,
    unless include_self=False): (*, n, *), (k), (*, k, *) -> (*, n, *).

    >>> import calque
    >>> calque.index_reduce(calque.tensor([1, 2]), 0, calque.tensor([0, 0]), calque.tensor([5, 7]), "amax")
    tensor([7, 2])
    """
    require_real("index_reduce", input)
    if reduce not in ("prod", "mean", "amax", "amin"):
        raise ArgumentError(f"[index_reduce] reduce argument must be either prod, mean, amax or amin, got {shown(reduce)}")
    x = input if input._layout.ndim else reshape(input, (1,))
    rows = source if source._layout.ndim else reshape(source, (1,))
    d = normalize_dim(dim, x._layout.ndim, "index_reduce")
    if index._layout.dtype not in (dt.int32, dt.int64) or index._layout.ndim > 1:
        raise ShapeError(f"[index_reduce] Index is supposed to be a vector of int32 or int64, got {index._layout.dtype!r} {index._layout.shape!r}")
    if rows._layout.dtype is not x._layout.dtype:
        raise DTypeError(f"[index_reduce] self and source expected to have the same dtype, but got {x._layout.dtype!r} and {rows._layout.dtype!r}")
    wanted = tuple(index._layout.numel if k == d else s for k, s in enumerate(x._layout.shape))
    if tuple(rows._layout.shape) != wanted:
        raise ShapeError(f"[index_reduce] expected a source of shape {wanted}, as many rows as the index names, got {tuple(rows._layout.shape)}")
    places = reshape(check_index("index_reduce", index, x._layout.shape[d], negative=False), tuple(-1 if k == d else 1 for k in range(len(wanted))))
    found = scatter_reduce(x, d, expand(places, wanted), rows, reduce, include_self=include_self)
    return reshape(found, tuple(input._layout.shape))


method("index_reduce_")(in_place_form("index_reduce_", index_reduce))


@method()
@takes_out
def renorm(input: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """The parts along `dim` whose p-norm is above `maxnorm` scaled down to it: (*) -> (*).

    >>> import calque
    >>> calque.renorm(calque.tensor([[3.0, 4.0], [0.3, 0.4]]), 2, 0, 1.0)
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000]])
    """
    if p <= 0:
        raise ArgumentError(f"[renorm] non-positive-norm not supported: expected p > 0, got {p}")
    if maxnorm < 0:
        raise ArgumentError(f"[renorm] expected maxnorm to be >= 0 but got {maxnorm}")
    if input._layout.ndim < 2:
        raise ShapeError(f"[renorm] input needs at least 2 dimensions, got shape {tuple(input._layout.shape)}")
    d = normalize_dim(dim, input._layout.ndim, "renorm")
    wide = cast(row_major(input), input._layout.dtype.compute)
    size = vector_norm(wide, p, tuple(k for k in range(input._layout.ndim) if k != d), True)
    factor = where(size > maxnorm, float(maxnorm) / (size + 1e-7), 1.0)
    return cast(wide * factor, input._layout.dtype)


method("renorm_")(in_place_form("renorm_", renorm))


_REDUCERS: dict[str, tuple[Any, float]] = {
    "sum": (total, 0.0), "mean": (mean, math.nan), "max": (amax, -math.inf), "min": (amin, math.inf), "prod": (prod, 1.0),
}  # fmt: skip


@public("_segment_reduce", method=False)
def segment_reduce(
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    indices: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> Tensor:
    """Segments of `data` along `axis`, of the given `lengths` or between `offsets`, each reduced by "sum", "mean", "max", "min" or "prod" (beginning
    with `initial`; empty segments give it, or else the neutral element): (*, n, *), (*, segments) -> (*, segments, *). Reads the lengths.

    >>> import calque
    >>> calque.segment_reduce(calque.tensor([1.0, 2.0, 3.0]), "sum", lengths=calque.tensor([2, 0, 1]))
    tensor([3., 0., 3.])
    """
    reduce = {"amax": "max", "amin": "min"}.get(reduce, reduce)  # PyTorch takes both names
    if reduce not in _REDUCERS:
        raise ArgumentError(f"[segment_reduce] expected reduce 'sum', 'mean', 'max', 'min' or 'prod', got {shown(reduce)}")
    if indices is not None or (lengths is None) == (offsets is None):
        raise ArgumentError("[segment_reduce] expected lengths or offsets, got " + ("indices" if indices is not None else "neither or both of them"))
    d = normalize_dim(axis, data._layout.ndim, "segment_reduce")
    given = lengths if lengths is not None else offsets
    assert given is not None
    require_one_place("segment_reduce", (data, given))
    rows = np.asarray(read(given, "segment_reduce"))
    if rows.dtype.kind not in "iu":
        raise DTypeError(f"[segment_reduce] expected lengths or offsets as integers, got {given._layout.dtype!r}; convert them with .long()")
    rows = rows.astype(np.int64)
    lead = tuple(data._layout.shape[:d])
    if rows.shape[:-1] != lead:
        raise ShapeError(f"[segment_reduce] expected lengths of shape {(*lead, 'segments')} for axis {axis}, got {rows.shape}")
    starts = rows if offsets is not None else np.concatenate([np.zeros((*rows.shape[:-1], 1), np.int64), np.cumsum(rows, -1)], -1)
    size = data._layout.shape[d]
    if (np.diff(starts, axis=-1) < 0).any() or (lengths is not None and not unsafe and (starts[..., -1] != size).any()):
        raise ArgumentError(f"[segment_reduce] Expected all rows of lengths along axis to sum to data.size(axis) = {size}, got {rows.tolist()}")
    function, neutral = _REDUCERS[reduce]
    tail = tuple(data._layout.shape[d + 1 :])
    parts = []
    for place in np.ndindex(*lead):
        row = data[place] if place else data
        for a, b in zip(starts[place][:-1], starts[place][1:], strict=True):
            parts.append(_segment(row, int(a), int(b), tail, reduce, function, neutral, initial))
    if parts and not starts[..., -1].any():  # nothing but empty segments, which depend on the data all the same
        return linked(reshape(cat(parts, 0), (*lead, starts.shape[-1] - 1, *tail)), data)
    if not parts:
        return linked(zeros((*lead, starts.shape[-1] - 1, *tail), dtype=data._layout.dtype, device=data._layout.device), data)
    return reshape(cat(parts, 0), (*lead, starts.shape[-1] - 1, *tail))


def _segment(row: Tensor, a: int, b: int, tail: Shape, reduce: str, function: Any, neutral: float, initial: float | None) -> Tensor:
    """One segment as (1, *tail)."""
    kind = row._layout.dtype
    if a == b:
        return full((1, *tail), neutral if initial is None else float(initial), dtype=kind)
    start = None if initial is None else full((1, *tail), float(initial), dtype=kind)
    if reduce in ("max", "min"):
        return _extreme(function, narrow(row, 0, a, b - a), start)
    found = function(narrow(row, 0, a, b - a), 0, True)
    if start is None:
        return found  # type: ignore[no-any-return]
    if reduce == "mean":
        return (found * float(b - a) + start) / float(b - a)  # type: ignore[no-any-return]
    return found + start if reduce == "sum" else found * start  # type: ignore[no-any-return]


def _extreme(function: Any, elements: Tensor, start: Tensor | None) -> Tensor:
    """Largest or smallest of the elements and of what they begin with. Equal elements share the gradient, and so do NaNs, which win."""
    rows = elements if start is None else cat([start, elements], 0)
    found: Any = None

    def value() -> Tensor:
        nonlocal found
        found = function(rows, 0, True)
        return found  # type: ignore[no-any-return]

    def backward(g: Tensor) -> tuple[Tensor]:
        equal = where(isnan(found), isnan(rows), rows == found)
        return (where(equal, g / cast(total(equal, 0, True), g._layout.dtype), 0.0),)

    return with_formula("SegmentReduceBackward0", (rows,), value, backward)


# -------------------------------------------------------------------------------------------------------- tensors of given strides


@method()
def as_strided_scatter(input: Tensor, src: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> Tensor:
    """A copy of `input` with `copy.as_strided(size, stride, storage_offset)` set to `src`.

    >>> import calque
    >>> calque.as_strided_scatter(calque.zeros(2, 2), calque.ones(2), (2,), (3,))
    tensor([[1., 0.],
            [0., 1.]])
    """
    copy = prim("copy", input)
    view = as_strided(copy, size, stride, storage_offset)
    if tuple(src._layout.shape) != tuple(view._layout.shape):
        raise ShapeError(
            f"[as_strided_scatter] expected src to have a size equal to the slice of self: {tuple(view._layout.shape)}, got "
            f"{tuple(src._layout.shape)}"
        )
    assign(view, cast(src, copy._layout.dtype))
    return copy


def _of_strides(shape: Shape, strides: Shape, dtype: Any, device: Any, requires_grad: bool, op: str) -> Tensor:
    if len(shape) != len(strides) or any(s < 0 for s in (*shape, *strides)):
        raise ArgumentError(f"[{op}] expected as many strides as sizes, none negative, got {shape} and {strides}: mismatch in length")
    if fills(shape, strides) or strides == contiguous_strides(shape):
        return marked(reordered(empty(shape, dtype=dtype, device=device), strides), requires_grad, op)
    span = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if 0 not in shape else 0
    return marked(as_strided(empty((span,), dtype=dtype, device=device), shape, strides).detach(), requires_grad, op)  # type: ignore[attr-defined]


@takes_out
@placed
def empty_strided(size: Sequence[int], stride: Sequence[int], *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of a shape and strides, whose elements are zeros: () -> size.

    >>> import calque
    >>> calque.empty_strided((2, 3), (1, 2)).stride()
    (1, 2)
    """
    kind = resolve_dtype(dtype, dt.get_default_dtype(), "empty_strided")
    return _of_strides(tuple(size), tuple(stride), kind, None, requires_grad, "empty_strided")


@method()
@placed_like
def new_empty_strided(
    input: Tensor, size: Sequence[int], stride: Sequence[int], *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """`empty_strided` with the dtype and device of the tensor."""
    kind = resolve_dtype(dtype, input._layout.dtype, "new_empty_strided")
    return _of_strides(tuple(size), tuple(stride), kind, None, requires_grad, "new_empty_strided")


@takes_out
@placed
def empty_permuted(
    size: Sequence[int], physical_layout: Sequence[int], *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A tensor of a shape whose memory is in the order of `physical_layout`, the outermost dim first; its elements are zeros: () -> size.

    >>> import calque
    >>> calque.empty_permuted((2, 3, 5), (0, 2, 1)).stride()
    (15, 1, 3)
    """
    shape, order = tuple(size), tuple(physical_layout)
    if sorted(order) != list(range(len(shape))):
        raise ArgumentError(f"[empty_permuted] Number of dimensions in size does not match the length of the physical_layout, or its dims are no "
                            f"permutation: got {shape} and {order}")  # fmt: skip
    dense = contiguous_strides(tuple(shape[d] for d in order))
    strides = tuple(dense[order.index(d)] for d in range(len(shape)))
    kind = resolve_dtype(dtype, dt.get_default_dtype(), "empty_permuted")
    return _of_strides(shape, strides, kind, None, requires_grad, "empty_permuted")


@method()
def resize_as_(input: Tensor, the_template: Tensor, *, memory_format: Any = None) -> Tensor:
    """`resize_` to the shape of another tensor."""
    return input.resize_(tuple(the_template._layout.shape), memory_format=memory_format)  # type: ignore[attr-defined, no-any-return]


def fill(input: Tensor, value: Any) -> Tensor:
    """A tensor of the shape and dtype of `input` that holds one value, a number or a 0-d Tensor: (*) -> (*).

    >>> import calque
    >>> calque.fill(calque.zeros(2), 3)
    tensor([3., 3.])
    """
    found, device = filling(input, value, "fill"), input._layout.device
    return linked(found if found._layout.device is device else found.to(device), input)  # type: ignore[attr-defined]


# --------------------------------------------------------------------------------------------------------------- positions


@method()
@takes_out
def nonzero_static(input: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """The first `size` positions of elements other than 0, and rows of `fill_value` where there are fewer: (*) -> (size, ndim) int64.

    >>> import calque
    >>> calque.nonzero_static(calque.tensor([0, 5, 7]), size=3)
    tensor([[ 1],
            [ 2],
            [-1]])
    """
    if size < 0:
        raise ArgumentError(f"[nonzero_static] nonzero_static: 'size' must be an non-negative integer, got {size}")
    found = nonzero(input)
    count, n = found._layout.shape
    if count >= size:
        return narrow(found, 0, 0, size)
    return cat([found, full((size - count, n), fill_value, dtype=dt.int64)], 0)


def unravel_index(indices: Tensor, shape: Any) -> tuple[Tensor, ...]:
    """Coordinates of flat positions in a row-major tensor of a shape: (*) -> one (*) for each dim.

    >>> import calque
    >>> calque.unravel_index(calque.tensor([5, 1]), (2, 3))
    (tensor([1, 0]), tensor([2, 1]))
    """
    if indices._layout.dtype.category != 1:
        raise DTypeError(f"[unravel_index] expected 'indices' to be integer dtype, but got {indices._layout.dtype!r}; convert with .long()")
    if is_tensor(shape):
        shape = [int(s) for s in read(shape, "unravel_index").reshape(-1)]
    sizes = (shape,) if isinstance(shape, int) else tuple(int(s) for s in shape)
    if any(s < 0 for s in sizes):
        raise ArgumentError(f"[unravel_index] 'shape' cannot have negative values, but got {sizes}")
    return tuple([indices // stride % size for stride, size in zip(contiguous_strides(sizes), sizes, strict=True)])


@public("range", own=False, method=False, out="flat")
@placed
def range_(
    start: float = 0, end: float | None = None, step: float = 1, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """`start`, `start + step`, ... up to and with `end`, by default of the default floating type: () -> (n). PyTorch's old form of `arange`.

    >>> import calque
    >>> calque.range(1, 3)
    tensor([1., 2., 3.])
    """
    if end is None:
        start, end = 0, start
    if step == 0 or (end - start) / step < 0:
        raise ArgumentError(f"[range] upper bound and lower bound inconsistent with step sign: expected a step from {start} to {end}, got {step}")
    kind = resolve_dtype(dtype, dt.get_default_dtype(), "range")
    found = np.asarray(start + np.arange(int((end - start) / step) + 1, dtype=np.float64) * step).astype(kind.np)
    return marked(upload_known(found, kind, (start, end, step)), requires_grad, "range")
