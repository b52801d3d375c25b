"""Shapes, strides and views: pure integer arithmetic, no tensors.

>>> from calque.base.shapes import broadcast_shapes, view_strides
>>> broadcast_shapes((4, 1), (3,))
(4, 3)
>>> view_strides((2, 3), (1, 2), (6,)) is None      # a transposed matrix cannot be viewed flat
True
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from numbers import Integral
from operator import index
from typing import Any, SupportsIndex

import numpy as np

from calque.base.cache import memoised
from calque.base.errors import ArgumentError, DTypeError, OutOfRangeError, ShapeError
from calque.base.text import described

Shape = tuple[int, ...]
_FAR = 1 << 62


class Size(tuple[int, ...]):
    """A shape: a tuple of ints that prints as PyTorch's."""

    __slots__ = ()

    def __new__(cls, iterable: Iterable[SupportsIndex] = ()) -> "Size":
        """Sizes as ints; what stands for one (a flag, a 0-d tensor) becomes one. Raises a `DTypeError` for what does not."""
        found = tuple.__new__(cls, iterable)
        for v in found:
            if v.__class__ is not int:
                return tuple.__new__(cls, _sizes(found))
        return found

    def __repr__(self) -> str:
        return f"torch.Size([{', '.join(map(str, self))}])"

    __str__ = __repr__

    def numel(self) -> int:
        """Number of elements."""
        return prod(self)

    def __getitem__(self, key: Any) -> Any:
        result = tuple.__getitem__(self, key)
        return Size(result) if isinstance(key, slice) else result

    def __add__(self, other: Any) -> Any:
        """Tuples are joined. What is no tuple is asked first: an array adds its numbers to the extents."""
        return Size(tuple.__add__(self, other)) if isinstance(other, tuple) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return Size(other + tuple(self)) if isinstance(other, tuple) else NotImplemented

    def __mul__(self, count: Any) -> Any:
        """As often as a whole number says; an array multiplies the extents."""
        return Size(tuple.__mul__(self, count)) if isinstance(count, SupportsIndex) and not isinstance(count, np.ndarray) else NotImplemented

    __rmul__ = __mul__

    def __reduce__(self) -> tuple[Any, ...]:
        return (Size, (tuple(self),))


def _sizes(values: Iterable[Any]) -> Iterable[int]:
    """What a `Size` holds of these: integers of NumPy stay as they are, as in PyTorch."""
    for place, v in enumerate(values):
        try:
            yield index(v) if isinstance(v, bool) or not isinstance(v, Integral) else v  # type: ignore[misc]
        except TypeError:
            raise DTypeError(f"[Size] expected ints, got {described(v)} as item {place}; torch.Size() takes an iterable of 'int'") from None


@memoised("row-major strides", 300, 1 / 256)
def contiguous_strides(shape: Shape) -> Shape:
    """Row-major strides, in elements. A dimension of size 0 counts as 1, as in PyTorch."""
    strides = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def is_contiguous(shape: Shape, strides: Shape) -> bool:
    """Whether elements lie densely in row-major order (strides of size-1 dimensions do not matter)."""
    if 0 in shape:
        return True
    step = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1:
            if stride != step:
                return False
            step *= extent
    return True


@memoised("broadcast shapes", 400, 1 / 256)
def broadcast_shapes(*shapes: Shape, op: str = "broadcast") -> Shape:
    """The common shape under NumPy's broadcasting rule; raises `ShapeError` naming both shapes and the axis."""
    result: list[int] = []
    for shape in shapes:
        if len(shape) > len(result):
            result = [1] * (len(shape) - len(result)) + result
        offset = len(result) - len(shape)
        for i, extent in enumerate(shape):
            current = result[offset + i]
            if extent != current:
                if current == 1:
                    result[offset + i] = extent
                elif extent != 1:
                    axis = offset + i - len(result)
                    listed = " and ".join(str(tuple(s)) for s in shapes)
                    raise ShapeError(
                        f"[{op}] expected shapes that broadcast, got {listed}: sizes {current} and {extent} differ at axis {axis}; "
                        "aligned from the right, sizes must be equal or 1: these cannot be broadcast to a single shape"
                    )
    return tuple(result)


def broadcast_strides(shape: Shape, strides: Shape, target: Shape) -> Shape:
    """Strides that make a tensor of `shape` look like `target`: 0 along every repeated dimension."""
    lead = len(target) - len(shape)
    return (0,) * lead + tuple(0 if s == 1 and t != 1 else st for s, st, t in zip(shape, strides, target[lead:], strict=True))


def whole(op: str, name: str, value: Any) -> int:
    """`value` as an int that machines can count with; raises naming the argument."""
    try:
        found = value if value.__class__ is int else index(value)
    except TypeError:
        raise DTypeError(f"[{op}] expected {name} as an int, got {described(value)}; convert it with int()") from None
    if not -_FAR < found < _FAR:
        raise ArgumentError(f"[{op}] expected {name} between -2**62 and 2**62, got {found}; is it a size?")
    return found


def listed(op: str, name: str, value: Any) -> list[Any]:
    """The ints of an argument that is one int (or what Python takes for one: a 0-d array or tensor) or a tuple or list of them."""
    if isinstance(value, (tuple, list)):
        return [whole(op, name, v) for v in value]
    try:
        return [whole(op, name, value if value.__class__ is int else index(value))]
    except TypeError:
        raise DTypeError(f"[{op}] expected {name} as an int or a tuple of ints, got {described(value)}; {_hint_of_sizes(value)}") from None


def _hint_of_sizes(value: Any) -> str:
    return "pass tuple(x.tolist())" if hasattr(value, "tolist") and hasattr(value, "shape") else "convert sizes and dims with int()"


def ints(op: str, values: Any) -> Shape:
    """A tuple of ints from what was given for sizes or dims; raises naming the first that is none."""
    if not isinstance(values, (tuple, list)):
        return tuple(listed(op, "integers", values))
    try:
        return tuple([v if v.__class__ is int else index(v) for v in values])
    except TypeError:
        bad = next((v for v in values if not _is_index(v)), values)
        raise DTypeError(f"[{op}] expected integers, got {described(bad)}; {_hint_of_sizes(bad)}") from None


def _is_index(value: Any) -> bool:
    try:
        index(value)
    except TypeError:
        return False
    return True


def _int_dim(dim: Any, op: str) -> int:
    try:
        if dim.__class__ is bool:  # a flag in the place of a dim; an index, for Python
            raise TypeError
        return index(dim)
    except TypeError:
        raise DTypeError(f"[{op}] expected dim as an int, got {described(dim)}; dims count from 0, or from the end from -1") from None


def normalize_dim(dim: int, ndim: int, op: str = "dim") -> int:
    """`dim` in 0..ndim-1; a 0-d tensor accepts 0 and -1."""
    if dim.__class__ is not int:
        dim = _int_dim(dim, op)
    bound = max(ndim, 1)
    if not -bound <= dim < bound:
        raise OutOfRangeError(f"[{op}] Dimension out of range: expected {-bound} to {bound - 1}, got {dim}")
    return dim % bound


def normalize_dims(dim: int | Iterable[int] | None, ndim: int, op: str = "dim") -> Shape:
    """Sorted distinct dims; None means all."""
    if dim is None:
        return tuple(range(ndim))
    dims = [dim] if dim.__class__ in (int, bool) else listed(op, "dim", dim)
    if not dims:
        return tuple(range(ndim))
    out = [normalize_dim(d, ndim, op) for d in dims]
    if len(set(out)) != len(out):
        raise ShapeError(f"[{op}] expected distinct dims, got {tuple(dims)}; name each dim once (dim appears multiple times)")
    return tuple(sorted(out)) if ndim else ()


def reduced_shape(shape: Shape, dims: Shape, keepdim: bool) -> Shape:
    """Shape after reducing over `dims`."""
    if keepdim:
        return tuple(1 if i in dims else s for i, s in enumerate(shape))
    return tuple(s for i, s in enumerate(shape) if i not in dims)


def infer_size(shape: Sequence[int], numel: int, op: str = "reshape") -> Shape:
    """Replace a single -1 so that the product equals `numel`; raises with both counts otherwise."""
    known, unknown = 1, -1
    for i, extent in enumerate(shape):
        if extent == -1:
            if unknown >= 0:
                raise ShapeError(f"[{op}] expected at most one -1, got shape {tuple(shape)}; only one dimension can be inferred")
            unknown = i
        elif extent < 0:
            raise ShapeError(f"[{op}] expected sizes >= 0 or one -1, got shape {tuple(shape)}")
        else:
            known *= extent
    if unknown >= 0 and known > 0 and numel % known == 0:
        return tuple(numel // known if i == unknown else s for i, s in enumerate(shape))
    if unknown >= 0 and known == 0 and numel == 0:
        raise ShapeError(f"[{op}] cannot infer -1 in {tuple(shape)} for a tensor of 0 elements: every size fits; write it out")
    if unknown >= 0 or known != numel:
        raise ShapeError(
            f"[{op}] expected a shape with {numel} elements, got shape {tuple(shape)} which has {known}"
            f"{' times an unknown size' if unknown >= 0 else ' elements'} (shape is invalid for input of size {numel})"
        )
    return tuple(shape)


def view_strides(shape: Shape, strides: Shape, new_shape: Shape) -> Shape | None:
    """Strides of `new_shape` over the same memory, or None when only a copy can do it (PyTorch's `computeStride`)."""
    if 0 in shape:
        return strides if shape == new_shape else contiguous_strides(new_shape)
    result = [0] * len(new_shape)
    view = len(new_shape) - 1
    chunk_base = strides[-1] if strides else 1
    tensor_numel = view_numel = 1
    for i in range(len(shape) - 1, -1, -1):
        tensor_numel *= shape[i]
        if i == 0 or (shape[i - 1] != 1 and strides[i - 1] != tensor_numel * chunk_base):
            while view >= 0 and (view_numel < tensor_numel or new_shape[view] == 1):
                result[view] = view_numel * chunk_base
                view_numel *= new_shape[view]
                view -= 1
            if view_numel != tensor_numel:
                return None
            if i > 0:
                chunk_base = strides[i - 1]
                tensor_numel = view_numel = 1
    if not shape:
        return contiguous_strides(new_shape)
    return tuple(result) if view == -1 else None


def overlaps(shape: Shape, strides: Shape) -> bool:
    """Whether two indices may name the same element (broadcast or sliding-window views)."""
    pairs = sorted((abs(st), s) for s, st in zip(shape, strides, strict=True) if s > 1)
    reach = 0
    for stride, extent in pairs:
        if stride <= reach:
            return True
        reach += stride * (extent - 1)
    return False


def view_bounds(shape: Shape, strides: Shape, offset: int) -> tuple[int, int]:
    """Smallest and largest flat element touched by a non-empty view."""
    low = offset + sum(st * (s - 1) for s, st in zip(shape, strides, strict=True) if st < 0)
    high = offset + sum(st * (s - 1) for s, st in zip(shape, strides, strict=True) if st > 0)
    return low, high


def within_dense(shape: Shape, strides: Shape, extents: Shape, steps: Sequence[int]) -> Shape | None:
    """Where a part of a view with `shape` and `strides` is in its dense copy: its storage distances `steps`, and that of its first element
    behind them, as distances there. `extents`: of the part. None where it has no strides there: some step is no combination of the view's, or
    the part begins in front of the view, or goes on from the end of one dim of it into the next.

    >>> within_dense((2, 3), (1, 2), (2, 2), (1, 2, 2))      # one row, one column; from the second column on
    (3, 1, 1)
    >>> within_dense((2, 3), (1, 2), (3,), (1, 0)) is None   # down the first column and into the second
    True
    """
    if steps[-1] < 0:
        return None
    dense = contiguous_strides(shape)
    order = sorted((d for d in range(len(shape)) if shape[d] > 1 and strides[d] > 0), key=lambda d: -strides[d])
    result, reach = [], dict.fromkeys(order, 0)
    for step, times in zip(steps, (*[n - 1 for n in extents], 1), strict=True):
        total = 0
        for d in order:
            count, step = divmod(step, strides[d])
            total += count * dense[d]
            reach[d] += count * times
        if step:
            return None
        result.append(total)
    return None if any(reach[d] >= shape[d] for d in order) else tuple(result)


def fills(shape: Shape, strides: Shape) -> bool:
    """Whether every element of a block of memory is shown once, in any order of the dimensions."""
    step = 1
    for stride, extent in sorted((s, n) for n, s in zip(shape, strides, strict=True) if n > 1):
        if stride != step:
            return False
        step *= extent
    return True


def loop_dims(shape: Shape, operands: Sequence[Shape]) -> list[int]:
    """The dimensions in the order in which PyTorch's loops run through them, the innermost first. `operands`: strides of each over the whole shape, 0
    where it is broadcast; the first decides first.

    Source: PyTorch, `TensorIteratorBase::reorder_dimensions`: an insertion sort, as strides of 0 tell nothing.
    """

    def order(outer: int, inner: int) -> int:
        for strides in operands:
            a, b = strides[outer], strides[inner]
            if a and b:
                if a != b:
                    return 1 if a > b else -1
                if shape[outer] > shape[inner]:
                    return 1
        return 0

    dims = list(range(len(shape)))[::-1]
    for k in range(1, len(dims)):
        at = k
        for before in range(k - 1, -1, -1):
            found = order(dims[before], dims[at])
            if found > 0:
                dims[before], dims[at] = dims[at], dims[before]
                at = before
            elif found < 0:
                break
    return dims


def ordered_strides(shape: Shape, *operands: Shape) -> Shape:
    """Strides of a new block of memory that runs through the dimensions as the operands do, see `loop_dims`."""
    result, step = [0] * len(shape), 1
    for d in loop_dims(shape, operands):
        result[d] = step
        step *= max(shape[d], 1)
    return tuple(result)


def common_order(operands: Sequence[tuple[Shape, Shape]]) -> tuple[int, ...]:
    """Dimensions of the broadcast result of operands, (shape, strides) of each, from the outermost to the innermost in which it lies in memory. Those
    of size 1 stay where they are."""
    shape = broadcast_shapes(*[one for one, _ in operands])
    found = ordered_strides(shape, *[broadcast_strides(one, strides, shape) for one, strides in operands])
    long = [d for d, extent in enumerate(shape) if extent > 1]
    places = iter(sorted(long, key=lambda d: -found[d]))
    return tuple([next(places) if extent > 1 else d for d, extent in enumerate(shape)])


def keeps_order(shape: Shape, strides: Shape) -> bool:
    """Whether `common_order` of one operand leaves all dimensions where they are."""
    if 0 in strides or len(set(strides)) < len(strides):
        return common_order([(shape, strides)]) == tuple(range(len(shape)))
    long = [stride for extent, stride in zip(shape, strides, strict=True) if extent > 1]  # strides that all differ decide alone
    return long == sorted(long, reverse=True)


def inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    """The permutation that undoes another one."""
    found = [0] * len(order)
    for place, d in enumerate(order):
        found[d] = place
    return tuple(found)
