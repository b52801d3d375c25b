"""Orders of dimensions in memory: `memory_format=`, and copies that keep the order of what they copy.

A value is dense and row-major (docs/decisions/0002); a tensor in another order is a permuted handle on a value of permuted shape.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from calque.base.dtypes import DType
from calque.base.errors import ArgumentError, ShapeError
from calque.base.layout import Layout, MemoryFormat, channels_last, channels_last_3d, contiguous_format, kept_strides, layout, preserve_format
from calque.base.shapes import Shape, contiguous_strides, fills
from calque.base.text import described, shown
from calque.functional.common import CAST, cast, prim
from calque.functional.declared import public
from calque.functional.views import permute
from calque.record.nodes import GradNode
from calque.record.recorder import local
from calque.tensor import Tensor, function_node, record, upload, wrap


def format_of(op: str, memory_format: Any, ndim: int) -> MemoryFormat | None:
    """The format that an argument asks for; None for none. Raises for what is no format, and for one of another number of dimensions."""
    if memory_format is None:
        return None
    if not isinstance(memory_format, MemoryFormat):
        raise TypeError(f"[{op}] expected a memory format such as calque.channels_last, got {described(memory_format)}")
    if memory_format.order is not None and len(memory_format.order) != ndim:
        rank = len(memory_format.order)
        raise ShapeError(
            f"[{op}] expected a tensor with {rank} dimensions for {shown(memory_format)}, got {ndim}: required rank {rank} tensor to use "
            f"{memory_format.name} format"
        )
    return memory_format


def wanted_strides(view: Layout, wanted: MemoryFormat | None) -> Shape:
    """Strides of a copy of a tensor in a format, by default in the tensor's own order."""
    return kept_strides(view) if wanted is None or wanted is preserve_format else wanted.strides(tuple(view.shape))


@functools.cache
def _cast_back(dtype: DType) -> Callable[[Any, Any], tuple[Any, ...]]:
    def backward(node: GradNode, grads: Any) -> tuple[Any, ...]:
        return (cast(grads[0], dtype),)

    return backward


def laid_out(input: Tensor, dtype: DType, strides: Shape, label: str = "CloneBackward0") -> Tensor:
    """A copy of another dtype whose memory is in the order that the strides say."""
    view = input._layout
    shape = tuple(view.shape)
    order = sorted(range(view.ndim), key=lambda d: (-strides[d], d))
    plain = wrap(input._storage, view)
    value = permute(plain, tuple(order))
    value = prim("copy", value) if dtype is view.dtype else record(CAST, (value,), (dtype,), row_major=True)
    result: Tensor = wrap(value._storage, layout(shape, strides, 0, dtype, value._layout.device))
    if local.state.grad and input._requires_grad and dtype.category >= 2:
        result._grad_fn, result._requires_grad = function_node(label, (input,), (result._layout,), _cast_back(view.dtype)), True
    return result


def column_strides(shape: Shape) -> Shape:
    """Strides of matrices whose columns lie in memory one after the other, as those that LAPACK has written."""
    *batch, row, column = contiguous_strides((*shape[:-2], shape[-1], shape[-2]))
    return (*batch, column, row)


def columns(values: Any, kind: DType, ndim: float = 2) -> Tensor:
    """What LAPACK has computed, as a tensor in the order of memory that it writes in: the columns of matrices (of at least `ndim` dims) one after the
    other."""
    if values.ndim < ndim or getattr(values, "frame", None) is not None:  # a transform has its values for each slice
        return upload(values, kind)
    made = upload(values.swapaxes(-1, -2), kind)
    whole = made._layout
    return wrap(made._storage, layout(tuple(values.shape), column_strides(tuple(values.shape)), 0, whole.dtype, whole.device))


def in_columns(x: Tensor, label: str = "CloneBackward0") -> Tensor:
    """Matrices as PyTorch gives them that LAPACK has computed: with their columns one after the other."""
    strides = column_strides(tuple(x._layout.shape))
    return x if x._layout.strides == strides else laid_out(x, x._layout.dtype, strides, label)


def reordered(fresh: Tensor, strides: Shape) -> Tensor:
    """A new leaf, whose values are the same in any order, with these strides."""
    view = fresh._layout
    if strides == view.strides:
        return fresh
    result: Tensor = wrap(fresh._storage, layout(tuple(view.shape), strides, 0, view.dtype, view.device))
    result._requires_grad = fresh._requires_grad
    return result


def like(op: str, fresh: Tensor, input: Tensor, memory_format: Any) -> Tensor:
    """`fresh`, which was made for the shape of `input`, in the order of `input` or in a format."""
    if memory_format is None and input._layout.contiguous:
        return fresh
    return reordered(fresh, wanted_strides(input._layout, format_of(op, memory_format, input._layout.ndim)))


def converted(op: str, input: Tensor, dtype: DType, memory_format: Any, copy: bool = False) -> Tensor:
    """`input` in another dtype and format, or itself."""
    view = input._layout
    wanted = format_of(op, memory_format, view.ndim)
    strides = view.strides if wanted is None and view.contiguous else wanted_strides(view, wanted)
    other_order = wanted is not None and wanted is not preserve_format and _suggested(view) is not wanted
    if dtype is view.dtype and not copy and not other_order:
        return input
    if view.contiguous and (wanted is None or wanted.order is None):
        return prim("copy", input) if dtype is view.dtype else cast(input, dtype)
    return laid_out(input, dtype, strides, "CloneBackward0" if dtype is view.dtype else "ToCopyBackward0")


def _suggested(view: Layout) -> MemoryFormat:
    """The format that a tensor looks like: row-major, if it looks like no other."""
    for found in (channels_last, channels_last_3d):
        assert found.order is not None
        if len(found.order) == view.ndim and view.strides == found.strides(tuple(view.shape)):
            return found
    return contiguous_format


def _in_order(view: Layout, wanted: MemoryFormat) -> bool:
    if wanted.order is None:
        return view.contiguous
    return fills(tuple(view.shape), view.strides) and all(
        extent == 1 or mine == theirs for extent, mine, theirs in zip(view.shape, view.strides, wanted.strides(tuple(view.shape)), strict=True)
    )


@public()
def clone(input: Tensor, memory_format: Any = None) -> Tensor:
    """A differentiable copy with memory of its own, in the order of the tensor or in a format.

    >>> import calque
    >>> calque.ones(2, 3).t().clone().stride()
    (1, 3)
    """
    if memory_format is None and input._layout.contiguous:
        return prim("copy", input)
    return converted("clone", input, input._layout.dtype, memory_format, copy=True)


def owned(result: Tensor, input: Tensor) -> Tensor:
    """`result`, in memory of its own where it is `input` or a view of it: of a function that computes something else for other arguments, a write to
    what it gives must not reach what it was given."""
    return clone(result, contiguous_format) if result._storage is input._storage else result


@public()
def contiguous(input: Tensor, memory_format: Any = None) -> Tensor:
    """The tensor itself if its elements lie in row-major order (or in a format), else a copy in that order.

    Elementwise operations keep the order. Convolutions, poolings, `interpolate` and `cat` take operands in any order and give row-major results:
    `channels_last` changes no number there, and makes nothing faster.

    >>> import calque
    >>> calque.ones(1, 2, 3, 4).contiguous(memory_format=calque.channels_last).stride()
    (24, 1, 8, 2)
    """
    if memory_format is None:
        return input if input._layout.contiguous else prim("copy", input)
    if memory_format is preserve_format and not input._layout.contiguous:
        raise ArgumentError(f"[contiguous] unsupported memory format {shown(memory_format)}: expected an order; clone() keeps that of the tensor")
    wanted = format_of("contiguous", memory_format, input._layout.ndim)
    if is_contiguous(input, wanted):
        return input
    return converted("contiguous", input, input._layout.dtype, wanted, copy=True)


@public()
def is_contiguous(input: Tensor, memory_format: Any = contiguous_format) -> bool:
    """Whether the elements lie densely in row-major order, or in the order of a format."""
    view = input._layout
    if memory_format is contiguous_format or memory_format is preserve_format or memory_format is None:
        return view.contiguous
    if isinstance(memory_format, MemoryFormat) and memory_format.order is not None and len(memory_format.order) != view.ndim:
        return False
    wanted = format_of("is_contiguous", memory_format, view.ndim)
    return wanted is None or _in_order(view, wanted)
