"""Layout: how a tensor handle looks at its storage. Interned, so two equal layouts are the same object and compare by identity."""

from __future__ import annotations

from math import prod
from sys import getrefcount

from calque.base.cache import Table, register
from calque.base.device import CPU, META, Device, InUse
from calque.base.dtypes import DType, with_values
from calque.base.errors import OutOfMemoryError, ShapeError
from calque.base.native import acyclic
from calque.base.shapes import Shape, Size, contiguous_strides, fills, is_contiguous, keeps_order, ordered_strides

MOST_DIMS = 64  # NumPy's limit, which the reference interpreter has, and with it everything else


class Layout:
    """Shape, strides and offset (in elements), dtype and device. `dense`: contiguous from offset 0, so the handle may be the whole value."""

    __slots__ = (
        "shape", "strides", "offset", "dtype", "device", "ndim", "numel", "nbytes", "contiguous", "dense", "plain", "upright", "origin", "value",
        "__weakref__",
    )  # fmt: skip
    shape: Size
    strides: Shape
    offset: int
    dtype: DType
    device: Device
    ndim: int
    numel: int
    nbytes: int
    contiguous: bool
    dense: bool
    plain: bool  # dense, and with row-major strides: of what has one element, others are dense as well
    upright: bool  # whether what is computed elementwise from it is row-major
    origin: "Layout | None"  # the same without its offset; None if it has none
    value: "Layout | None"  # see `value_layout`, which asks once

    def __repr__(self) -> str:
        return f"Layout({tuple(self.shape)}, strides={self.strides}, offset={self.offset}, {self.dtype.name}, {self.device})"

    def __reduce__(self) -> tuple[object, ...]:
        return (layout, (tuple(self.shape), self.strides, self.offset, self.dtype, self.device))

    def __deepcopy__(self, memo: dict[int, object]) -> "Layout":
        return self


class _Interned(dict[tuple[Shape, Shape, int, DType, Device], Layout]):
    """The layouts by their fields. When their bytes are too many, and twice what was left the last time, those that nobody has are forgotten."""

    ENTRY = 700  # bytes of a layout with its key

    def sweep(self) -> None:
        """Keep what somebody has: equal layouts in use must stay one."""
        for key, found in list(self.items()):
            if getrefcount(found) <= 4 and self.pop(key, None) is not None and getrefcount(found) > 3:  # the pair, `found`, the argument
                self.setdefault(key, found)  # another thread has got it in between
        _TABLE.least = 2 * len(self) * self.ENTRY

    def measured(self) -> tuple[int, int]:
        """(entries, bytes)."""
        return len(self), len(self) * self.ENTRY


_INTERNED = _Interned()
_TABLE = register("layouts", Table(1 / 32, _INTERNED.measured))


def layout(shape: Shape, strides: Shape, offset: int, dtype: DType, device: Device = CPU) -> Layout:
    """The one Layout object with these fields."""
    key = (shape, strides, offset, dtype, device)
    found = _INTERNED.get(key)
    if found is None:
        found = _shifted(layout(shape, strides, 0, dtype, device), offset) if offset else _at_zero(shape, strides, dtype, device)
        if len(_INTERNED) * _INTERNED.ENTRY >= _TABLE.limit():
            _INTERNED.sweep()
        _INTERNED[key] = found
    return found


def kept_strides(view: Layout) -> Shape:
    """Strides of a copy that keeps the order of its dimensions."""
    shape = tuple(view.shape)
    return view.strides if fills(shape, view.strides) else ordered_strides(shape, view.strides)


def _at_zero(shape: Shape, strides: Shape, dtype: DType, device: Device) -> Layout:
    with_values(dtype)
    found = Layout()
    found.shape, found.strides, found.offset, found.dtype, found.device = Size(shape), strides, 0, dtype, device
    found.ndim = len(shape)
    if found.ndim > MOST_DIMS:
        raise ShapeError(f"[shape] expected at most {MOST_DIMS} dims, got {found.ndim}; merge some with flatten() or reshape()")
    found.numel = prod(shape)
    if device is not CPU:
        InUse.several = True
        InUse.elsewhere |= device is not META
    found.nbytes = found.numel * dtype.itemsize
    if (found.nbytes or prod([n or 1 for n in shape]) * dtype.itemsize) >= 1 << 63:  # of no elements, too: NumPy has no such array
        raise OutOfMemoryError(f"[memory] expected a tensor of less than 2**63 bytes, got shape {shape} of {dtype}; is a size wrong?")
    found.plain = strides == contiguous_strides(shape)
    found.contiguous = found.dense = found.plain or is_contiguous(shape, strides)
    found.upright = found.contiguous or keeps_order(shape, strides)
    found.origin = found.value = None
    acyclic(found.shape)
    return acyclic(found)


def _shifted(origin: Layout, offset: int) -> Layout:
    found = Layout()
    found.shape, found.strides, found.offset, found.dtype, found.device = origin.shape, origin.strides, offset, origin.dtype, origin.device
    found.ndim, found.numel, found.nbytes = origin.ndim, origin.numel, origin.nbytes
    found.contiguous, found.dense, found.plain, found.upright = origin.contiguous, False, False, origin.upright
    found.origin, found.value = origin, None
    return acyclic(found)


def dense_layout(shape: Shape, dtype: DType, device: Device = CPU) -> Layout:
    """The row-major layout of a whole value."""
    return layout(tuple(shape), contiguous_strides(tuple(shape)), 0, dtype, device)


def value_layout(view: Layout) -> Layout:
    """The row-major layout of the value that a view shows."""
    if view.plain:
        return view
    found = view.value
    if found is None:
        found = view.value = dense_layout(tuple(view.shape), view.dtype, view.device)
    return found


class MemoryFormat:
    """An order of dimensions in memory, outermost first; None: row-major, or as it is."""

    __slots__ = ("name", "order")

    def __init__(self, name: str, order: Shape | None) -> None:
        self.name, self.order = name, order

    def __repr__(self) -> str:
        return f"torch.{self.name}"

    def __reduce__(self) -> tuple[object, ...]:
        return (format_by_name, (self.name,))

    def strides(self, shape: Shape) -> Shape:
        """Strides of a tensor of this shape in this format."""
        if self.order is None:
            return contiguous_strides(shape)
        result, step = [0] * len(shape), 1
        for d in reversed(self.order):
            result[d] = step
            step *= max(shape[d], 1)
        return tuple(result)


contiguous_format, preserve_format = MemoryFormat("contiguous_format", None), MemoryFormat("preserve_format", None)
channels_last, channels_last_3d = MemoryFormat("channels_last", (0, 2, 3, 1)), MemoryFormat("channels_last_3d", (0, 2, 3, 4, 1))


def format_by_name(name: str) -> MemoryFormat:
    """The format called `name`."""
    return next(f for f in (contiguous_format, preserve_format, channels_last, channels_last_3d) if f.name == name)


class MemoryLayout(str):
    """How a tensor's elements are kept: `strided`, or one of the sparse layouts."""

    __slots__ = ()

    def __new__(cls, name: str) -> "MemoryLayout":
        return super().__new__(cls, name)

    def __repr__(self) -> str:
        return str(self)


strided = MemoryLayout("torch.strided")
sparse_coo, sparse_csr, sparse_csc = MemoryLayout("torch.sparse_coo"), MemoryLayout("torch.sparse_csr"), MemoryLayout("torch.sparse_csc")
