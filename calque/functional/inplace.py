"""`copy_`, `fill_`, `zero_` and the generated in-place forms (`add_`, `relu_`, ...) of elementwise functions."""

from __future__ import annotations

from math import prod
from types import NoneType
from typing import Any

from calque.autograd.assign import assign, write_at_once
from calque.autograd.moving import move
from calque.base import dtypes as dt
from calque.base.errors import AutogradError, OverlapError, ShapeError
from calque.base.shapes import contiguous_strides
from calque.base.text import type_name
from calque.functional.common import Operand, cast, is_scalar, is_tensor, method, number, prim, require_operands
from calque.functional.creation import as_tensor
from calque.functional.declared import public
from calque.functional.formats import format_of, reordered
from calque.functional.options import filled, held, size_of
from calque.functional.views import expand
from calque.functional.writing import check_target
from calque.record.nodes import GradNode
from calque.record.recorder import Trace, local
from calque.tensor import Tensor, constant, function_node, wrap

_WIDEST = (dt.bool_, dt.int64, dt.float64, dt.complex128)  # what a number is written by, of each category


@method("copy_")
def copy_(input: Tensor, other: Operand, non_blocking: bool = False) -> Tensor:
    """Write the values of `other` (converted and broadcast) into the tensor; gradients flow to `other`.

    >>> import calque
    >>> calque.zeros(2, 2).copy_(calque.tensor([1, 2]))
    tensor([[1., 2.],
            [1., 2.]])
    """
    if write_at_once(input, other):
        return input
    if not is_tensor(other):
        require_operands("copy_", other)
        other = filled((), other, _WIDEST[dt.of_scalar(number(other)).category], "copy_") if is_scalar(other) else as_tensor(other)
    value = cast(move(other, input._layout.device), input._layout.dtype)
    shape = input._layout.shape
    if value._layout.shape != shape:
        try:
            value = expand(value, tuple(shape))
        except ShapeError:
            raise ShapeError(
                f"[copy_] expected values that broadcast to the tensor's shape {tuple(shape)}, got shape "
                f"{tuple(other._layout.shape)}; "
                "the sizes must match or be 1, aligned from the right"
            ) from None
    try:
        check_target("copy_", input)
    except OverlapError as error:
        return error.again("copy_", copy_, copy_, (input, value), {})  # type: ignore[no-any-return]
    return assign(input, _over(input, value, value is other and other._grad_fn is not None))


def _over(target: Tensor, value: Tensor, own: bool = False) -> Tensor:
    """A value that is written over `target` whole: as in PyTorch what was there before gets a gradient too, of zeros. `own`: the value needs a node
    of its own in any case, as hooks of the copy are not those of what was copied."""
    gone = target if target._base is None and target._grad_fn is not None else None
    if not (local.state.grad and value._requires_grad and (own or gone is not None)):
        return value
    fresh = wrap(value._storage, value._layout)
    fresh._grad_fn, fresh._requires_grad = function_node("CopyBackwards", (value, gone), (value._layout,), _same), True
    return fresh


def _same(node: GradNode, grads: Any) -> tuple[Any, ...]:
    return grads[0], None if node.next[1] is None else constant(0.0, grads[0]._layout)


def filling(input: Tensor, value: Any, op: str) -> Tensor:
    """A tensor of the shape of `input` that holds one value: a number or a 0-d tensor."""
    view = input._layout
    if is_tensor(value):
        if value._layout.ndim:
            raise ShapeError(
                f"[{op}] only supports 0-dimension value tensor but got tensor with {value._layout.ndim} dimensions: shape "
                f"{tuple(value._layout.shape)}; use copy_() for several values"
            )
        return prim("full", cast(value, view.dtype), tuple(view.shape))
    if not is_scalar(value):
        raise TypeError(f"[{op}] expected a number or a 0-d Tensor, got {type_name(value)}")
    return filled(tuple(view.shape), value, view.dtype, op)


def _shown_once(input: Tensor) -> Tensor:
    """The view that shows once what an expanded one shows several times: one value may be written to all of its places."""
    for d, (extent, stride) in enumerate(zip(input._layout.shape, input._layout.strides, strict=True)):
        if extent > 1 and not stride:
            input = input.narrow(d, 0, 1)  # type: ignore[attr-defined]
    return input


@public()
def fill_(input: Tensor, value: Any) -> Tensor:
    """Every element set to one value.

    >>> import calque
    >>> calque.zeros(3).fill_(2)
    tensor([2., 2., 2.])
    """
    if not is_tensor(value) and write_at_once(input, value):
        return input
    target = input if is_tensor(value) else _shown_once(input)
    filled_with = filling(target, value, "fill_")
    try:
        check_target("fill_", target)
    except OverlapError as error:
        error.again("copy_", fill_, fill_, (target, filled_with), {})
        return input
    assign(target, _over(target, filled_with))
    return input


@public()
def zero_(input: Tensor) -> Tensor:
    """Every element set to zero."""
    if write_at_once(input, 0):
        return input
    target = _shown_once(input)
    zeros = prim("full", (0.0 if input._layout.dtype is not dt.bool_ else False, input._layout.dtype), tuple(target._layout.shape))
    try:
        check_target("zero_", target)
    except OverlapError as error:
        error.again("copy_", zero_, zero_, (target, zeros), {})
        return input
    assign(target, zeros)
    return input


@method("fill_diagonal_")
def fill_diagonal_(input: Tensor, fill_value: Any, wrap: bool = False) -> Tensor:
    """The main diagonal set to one value."""
    if input._layout.ndim < 2:
        raise ShapeError(f"[fill_diagonal_] dimensions must larger than 1, got shape {tuple(input._layout.shape)}")
    if input._layout.ndim > 2 and len(set(input._layout.shape)) > 1:
        raise ShapeError(
            f"[fill_diagonal_] all dimensions of input must be of equal length, got shape {tuple(input._layout.shape)}"
        )
    strides, offset = input.stride(), input.storage_offset()  # type: ignore[attr-defined]
    length, step, value = min(input._layout.shape), sum(strides), held("fill_diagonal_", fill_value, input._layout.dtype)
    fill_(input.as_strided((length,), (step,), offset), value)  # type: ignore[attr-defined]
    rows, columns = input._layout.shape[:2]
    if wrap and input._layout.ndim == 2 and rows > columns + 1:  # it begins again below the row that it leaves out
        more = -(-input._layout.numel // (columns + 1)) - length
        fill_(input.as_strided((more,), (step,), offset + strides[0] * (columns + 1)), value)  # type: ignore[attr-defined]
    return input


@public()
def resize_(input: Tensor, *sizes: Any, size: Any = None, memory_format: Any = None) -> Tensor:
    """The tensor with another shape, row-major: its memory from its first element on, if that is enough, else a copy and zeros."""
    shape = size_of("resize_", sizes, size)
    if input._storage.trace.__class__ not in (Trace, NoneType):
        raise AutogradError(
            "[resize_] expected a tensor that no transform follows (jvp, vmap): cannot resize variables that has a forward grad; reshape() it instead"
        )
    if input._requires_grad and not local.state.inference:
        raise AutogradError("[resize_] cannot resize variables that require grad: expected a tensor without one; detach() it or reshape() it instead")
    wanted, count, view = format_of("resize_", memory_format, len(shape)), prod(shape), input._layout
    if tuple(view.shape) == tuple(shape) and wanted is None:
        return input
    there = max(input._storage.layout.numel - view.offset, 0)  # from the first element on, whatever the strides
    if count <= there and wanted is None:
        return input.as_strided_(shape, contiguous_strides(shape), view.offset)  # type: ignore[attr-defined, no-any-return]
    flat = input.detach().as_strided((there,), (1,), view.offset)  # type: ignore[attr-defined]
    if count > there:
        flat = prim("cat", flat, prim("full", (0, flat._layout.dtype), (count - there,)), 0)
    made = prim("copy", flat.narrow(0, 0, count)).reshape(shape)
    return input.set_(made if wanted is None else reordered(made, wanted.strides(shape)))  # type: ignore[attr-defined, no-any-return]
