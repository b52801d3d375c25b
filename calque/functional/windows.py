"""Views of a strided part of a tensor: select, slices, narrow, diagonal, sliding windows, `as_strided`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index
from typing import Any

from calque.base.errors import ArgumentError, DTypeError, OutOfRangeError, ShapeError
from calque.base.layout import Layout, layout
from calque.base.shapes import Shape, contiguous_strides, normalize_dim, overlaps, view_bounds, whole
from calque.functional.blame import NOTHING, answer
from calque.functional.common import is_tensor, prim
from calque.functional.declared import public
from calque.functional.views import Entry, int_tuple, lookup, remember
from calque.ir.symint import SymInt
from calque.tensor import Tensor, make_view, sub_layout


def as_int(value: Any) -> int:
    """What Python takes for an int, as one; symbols of sizes stay what they are."""
    return value if value.__class__ is int else index(value)


class PartRule:
    """The gradient of a strided part: zeros with the gradient of the part where that lies in a row-major copy of the source. `place`: gives strides
    and offset of the part for strides of the source; for those of the copy it is asked when a gradient is, as most parts never have one."""

    __slots__ = ("source", "shape", "place", "found")

    def __init__(self, source: Shape, shape: Shape, place: Callable[[Shape], tuple[Shape, int]]) -> None:
        self.source, self.shape, self.place = source, shape, place
        self.found: tuple[str, Shape, int] | None = None

    def __call__(self, g: Any) -> Any:
        if self.found is None:
            strides, offset = self.place(contiguous_strides(self.source))
            self.found = "update_add" if overlaps(self.shape, strides) else "update", strides, offset
        name, strides, offset = self.found
        return prim(name, prim("full", (0.0, g._layout.dtype), self.source), g, self.shape, strides, offset)


def _part(view: Layout, shape: Shape, place: Callable[[Shape], tuple[Shape, int]]) -> Entry:
    """A strided part of `view`; `place`: see `PartRule`."""
    strides, offset = place(view.strides)
    return layout(shape, strides, view.offset + offset, view.dtype, view.device), PartRule(tuple(view.shape), shape, place)


def place_in(position: int, d: int, shape: Shape, op: str) -> int:
    """One index along dimension `d`, counted from the front."""
    extent = shape[d]
    if -extent <= position < extent:
        return position + extent if position < 0 else position
    valid = f"expected {-extent} to {extent - 1}" if extent else "the dimension is empty"
    raise OutOfRangeError(f"[{op}] index {position} is out of bounds for dimension {d} with size {extent} (shape {shape}); {valid}")


def selected(view: Layout, dim: int, position: int, op: str = "select") -> Entry:
    """Layout and gradient rule of one index along one dimension."""
    if not view.ndim:
        raise OutOfRangeError(f"[{op}] cannot index a 0-d tensor; use .item() to read its number")
    d, shape = normalize_dim(dim, view.ndim, op), tuple(view.shape)
    where = place_in(position, d, shape, op)
    return _part(view, (*shape[:d], *shape[d + 1 :]), lambda strides: ((*strides[:d], *strides[d + 1 :]), where * strides[d]))


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
    if not (isinstance(extent, SymInt) or isinstance(start, SymInt) or isinstance(stop, SymInt) or isinstance(step, SymInt)):
        return slice(start, stop, step).indices(extent)
    first, last = (default if x is None else max(x + extent, 0) if x < 0 else min(x, extent) for x, default in ((start, 0), (stop, extent)))
    return first, last, 1 if step is None else step


def window(start: int | None, stop: int | None, step: int | None, extent: int, op: str) -> tuple[int, int, int]:
    """(first, count, stride) of a slice with a positive step of a dimension of this extent."""
    if step is None:
        first, last, stride = clipped(start, stop, 1, extent)
    elif step <= 0:
        raise ArgumentError(f"[{op}] slice step must be positive, got {step}; use calque.flip(x, dims) to reverse")
    else:  # beyond the extent there is one element: a stride that machines can count with
        first, last, stride = clipped(start, stop, min(step, max(extent, 1 << 30)), extent)
    return min(first, extent), max(-((first - last) // stride), 0), stride


def sliced(view: Layout, dim: int, start: int | None, stop: int | None, step: int | None, op: str = "slice") -> Entry:
    """Layout and gradient rule of a slice with a positive step along one dimension."""
    shape = tuple(view.shape)
    first, count, stride = window(start, stop, step, shape[dim], op)

    def place(strides: Shape) -> tuple[Shape, int]:
        along = strides[dim]
        return (strides if stride == 1 else (*strides[:dim], along * stride, *strides[dim + 1 :])), first * along

    return _part(view, (*shape[:dim], count, *shape[dim + 1 :]), place)


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

    def place(strides: Shape) -> tuple[Shape, int]:
        return (*(strides[d] for d in kept), strides[a] + strides[b]), skip * strides[b] if skip >= 0 else -skip * strides[a]

    return _part(view, shape, place)


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
        return _part(view, (size,), lambda strides: ((1,), 0))
    count = (extent - size) // step + 1
    shape = (*view.shape[:d], count, *view.shape[d + 1 :], size)
    return _part(view, shape, lambda strides: ((*strides[:d], strides[d] * step, *strides[d + 1 :], strides[d]), 0))


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
