"""Views of a strided part of a tensor: select, slices, narrow, diagonal, sliding windows, `as_strided`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index
from typing import Any

from calque.base.cache import memoised
from calque.base.errors import ArgumentError, DTypeError, OutOfRangeError, ShapeError
from calque.base.layout import Layout, dense_layout, layout
from calque.base.shapes import Shape, normalize_dim, overlaps, view_bounds, whole
from calque.functional.blame import NOTHING, answer
from calque.functional.common import is_tensor, prim
from calque.functional.declared import public
from calque.functional.views import Entry, int_tuple, lookup, remember
from calque.ir.symint import SymInt
from calque.tensor import Tensor, make_view, sub_layout


def as_int(value: Any) -> int:
    """What Python takes for an int, as one; symbols of sizes stay what they are."""
    return value if value.__class__ is int else index(value)


def _part(view: Layout, shape: Shape, steps: Callable[[Shape], Shape], start: Callable[[Shape], int]) -> Entry:
    """A strided part of `view`. `steps` and `start` give strides and relative offset for given strides of the source."""
    part = layout(shape, steps(view.strides), view.offset + start(view.strides), view.dtype, view.device)
    source = tuple(view.shape)
    dense = dense_layout(source, view.dtype, view.device).strides
    strides, offset = steps(dense), start(dense)
    name = "update_add" if overlaps(shape, strides) else "update"

    def backward(g: Any) -> Any:
        return prim(name, prim("full", (0.0, g._layout.dtype), source), g, shape, strides, offset)

    return part, backward


def selected(view: Layout, dim: int, position: int, op: str = "select") -> Entry:
    """Layout and gradient rule of one index along one dimension."""
    if not view.ndim:
        raise OutOfRangeError(f"[{op}] cannot index a 0-d tensor; use .item() to read its number")
    d = normalize_dim(dim, view.ndim, op)
    extent = view.shape[d]
    if not -extent <= position < extent:
        valid = f"expected {-extent} to {extent - 1}" if extent else "the dimension is empty"
        raise OutOfRangeError(
            f"[{op}] index {position} is out of bounds for dimension {d} with size {extent} (shape {tuple(view.shape)}); {valid}"
        )
    where = position + extent if position < 0 else position
    shape, strides, source, within, step, name = _without(view, d)
    offset = where * step

    def backward(g: Any) -> Any:
        return prim(name, prim("full", (0.0, g._layout.dtype), source), g, shape, within, offset)

    return layout(shape, strides, view.offset + where * view.strides[d], view.dtype, view.device), backward


@memoised("views without a dimension", 600, 1 / 512)
def _without(view: Layout, d: int) -> tuple[Shape, Shape, Shape, Shape, int, str]:
    """What all indices along a dimension have in common: shape and strides of the parts, shape of the source, strides of the parts in its dense copy,
    and how far they are apart there; what adds one up in a gradient."""
    source = tuple(view.shape)
    dense = dense_layout(source, view.dtype, view.device).strides
    shape, strides, within = ((*values[:d], *values[d + 1 :]) for values in (source, view.strides, dense))
    return shape, strides, source, within, dense[d], "update_add" if overlaps(shape, within) else "update"


@public()
def select(input: Tensor, dim: int, index: int) -> Tensor:
    """One index along `dim`, which disappears: (A, B) -> (A) for dim=1."""
    try:
        index = as_int(index)
        key = ("select", input._layout, dim, index)
        found = lookup(key) or remember(key, selected(input._layout, dim, index))
    except Exception as error:
        if (meant := answer("select", select, (input, dim, index), {}, error)) is not NOTHING:
            return meant
        raise
    return make_view(input, found, "SelectBackward0")


def clipped(start: Any, stop: Any, step: Any, extent: int) -> tuple[int, int, int]:
    """`slice(start, stop, step).indices(extent)` for a positive step, also of sizes that are symbols."""
    if not any(isinstance(x, SymInt) for x in (start, stop, step, extent)):
        return slice(start, stop, step).indices(extent)
    first, last = (default if x is None else max(x + extent, 0) if x < 0 else min(x, extent) for x, default in ((start, 0), (stop, extent)))
    return first, last, 1 if step is None else step


def sliced(view: Layout, dim: int, start: int | None, stop: int | None, step: int | None, op: str = "slice") -> Entry:
    """Layout and gradient rule of a slice with a positive step along one dimension."""
    if step is not None and step <= 0:
        raise ArgumentError(f"[{op}] slice step must be positive, got {step}; use calque.flip(x, dims) to reverse")
    if step is not None:
        step = min(step, max(view.shape[dim], 1 << 30))  # one element then: a stride that machines can count with
    first, last, stride = clipped(start, stop, step, view.shape[dim])
    count = max(-((first - last) // stride), 0)
    replace = lambda values, new: (*values[:dim], new, *values[dim + 1 :])  # noqa: E731
    first = min(first, view.shape[dim])
    return _part(
        view,
        replace(tuple(view.shape), count),
        lambda strides: replace(strides, strides[dim] * stride),
        lambda strides: first * strides[dim],
    )


@public()
def narrow(input: Tensor, dim: int, start: int, length: int) -> Tensor:
    """Positions start .. start + length - 1 along `dim`: (A, B) -> (A, length) for dim=1."""
    try:
        if start.__class__ is not int and is_tensor(start) and (start._layout.ndim or start._layout.dtype.category != 1):  # type: ignore[attr-defined]
            raise DTypeError(f"[narrow] start must be an 0-dim integral Tensor, got {start!r}; pass an int")
        start, length = as_int(start), as_int(length)
        key = ("narrow", input._layout, dim, start, length)
        found = lookup(key)
    except Exception as error:
        if (meant := answer("narrow", narrow, (input, dim, start, length), {}, error)) is not NOTHING:
            return meant
        raise
    if found is None:
        d = normalize_dim(dim, input._layout.ndim, "narrow") if input._layout.ndim else -1
        if d < 0:
            raise ShapeError("[narrow] cannot be applied to a 0-dim tensor")
        extent = input._layout.shape[d]
        first = start + extent if start < 0 else start
        if length < 0 or not 0 <= first <= extent or first + length > extent:
            raise OutOfRangeError(f"[narrow] start ({start}) + length ({length}) exceeds dimension size ({extent}) of dim {d}")
        found = remember(key, sliced(input._layout, d, first, first + length, 1))
    return make_view(input, found, "SliceBackward0")


def _diagonal(view: Layout, offset: int, dim1: int, dim2: int) -> Entry:
    offset = whole("diagonal", "offset", offset)
    a, b = normalize_dim(dim1, view.ndim, "diagonal"), normalize_dim(dim2, view.ndim, "diagonal")
    if a == b:
        raise ShapeError(
            f"[diagonal] expected two different dims, got {dim1} and {dim2}; diagonal dimensions cannot be identical"
        )
    rows, columns = view.shape[a], view.shape[b]
    length = max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))
    kept = [d for d in range(view.ndim) if d not in (a, b)]
    shape = (*(view.shape[d] for d in kept), length)
    skip = 0 if not length else offset

    def steps(strides: Shape) -> Shape:
        return (*(strides[d] for d in kept), strides[a] + strides[b])

    return _part(view, shape, steps, lambda strides: skip * strides[b] if skip >= 0 else -skip * strides[a])


@public()
def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """The diagonal over two dims as the last dim: (N, A, A) -> (N, A) for dims 1, 2."""
    key = ("diagonal", input._layout, offset, dim1, dim2)
    found = lookup(key) or remember(key, _diagonal(input._layout, offset, dim1, dim2))
    return make_view(input, found, "DiagonalBackward0")


def _unfolded(view: Layout, dimension: int, size: int, step: int) -> Entry:
    d = normalize_dim(dimension, view.ndim, "unfold")
    size, step = whole("unfold", "size", size), whole("unfold", "step", step)
    extent = view.shape[d] if view.ndim else 1
    if step <= 0 or not 0 <= size <= extent:
        raise ArgumentError(f"[unfold] expected 0 <= size <= {extent} and step > 0, got size {size}, step {step}")
    if not view.ndim:
        return _part(view, (size,), lambda strides: (1,), lambda strides: 0)
    count = (extent - size) // step + 1
    shape = (*view.shape[:d], count, *view.shape[d + 1 :], size)
    return _part(view, shape, lambda strides: (*strides[:d], strides[d] * step, *strides[d + 1 :], strides[d]), lambda strides: 0)


@public()
def unfold(input: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """All windows of `size` elements along `dimension` as a new last dim: (L,) -> ((L - size) // step + 1, size)."""
    key = ("unfold", input._layout, dimension, size, step)
    found = lookup(key) or remember(key, _unfolded(input._layout, dimension, size, step))
    return make_view(input, found, "UnfoldBackward0")


@public()
def as_strided(input: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> Tensor:
    """Any strided view of the tensor's storage; strides and offset in elements."""
    view = input._layout
    shape, strides = int_tuple("as_strided", (tuple(size),)), int_tuple("as_strided", (tuple(stride),))
    offset = view.offset if storage_offset is None else as_int(storage_offset)
    total = input._storage.layout.numel
    key = ("as_strided", view, total, shape, strides, offset)
    found = lookup(key)
    if found is None:
        if len(shape) != len(strides) or min(strides, default=0) < 0 or min(shape, default=0) < 0 or offset < 0:
            raise ArgumentError(
                f"[as_strided] expected as many strides >= 0 as sizes >= 0, got sizes {shape}, strides {strides}, offset {offset}"
            )
        if 0 not in shape and view_bounds(shape, strides, offset)[1] >= total:
            raise ArgumentError(
                f"[as_strided] sizes {shape}, strides {strides} and offset {offset} reach element "
                f"{view_bounds(shape, strides, offset)[1]} of a "
                f"storage of {total} elements (out of bounds for storage)"
            )
        target = sub_layout(view, shape, strides, offset)
        found = remember(key, (target, _storage_backward(view, target, total)))
    return make_view(input, found, "AsStridedBackward0")


def _storage_backward(source: Layout, view: Layout, total: int) -> Callable[[Any], Any]:
    """Gradient rule of a view that is related to its source by the storage only: scatter into the storage, read back as the
    source."""

    def backward(g: Any) -> Any:
        flat = prim("full", (0.0, g._layout.dtype), (total,))
        name = "update_add" if overlaps(tuple(view.shape), view.strides) else "update"
        flat = prim(name, flat, g, tuple(view.shape), view.strides, view.offset)
        return prim("view", flat, tuple(source.shape), source.strides, source.offset)

    return backward
