"""In-place writes: what every function whose name ends in an underscore shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calque.autograd.assign import assign, check_in_place, write_at_once
from calque.base.errors import DTypeError, OverlapError, ShapeError
from calque.base.shapes import overlaps
from calque.functional.blame import NOTHING, answer, answering, signed
from calque.functional.common import cast, is_tensor
from calque.record.nodes import view_rule
from calque.record.recorder import local, share_value
from calque.tensor import Tensor, function_node, wrap


def old_value(t: Tensor, *others: Any) -> Tensor:
    """`t` as it is before an in-place write, for an operation that may save it: the saved value stays when `t` is overwritten."""
    if not local.state.grad or not (t._requires_grad or any(is_tensor(x) and x._requires_grad for x in others)):
        return t
    check_in_place(t)
    return _twin(t)


def _twin(t: Tensor) -> Tensor:
    twin: Tensor = wrap(share_value(t._storage), t._layout)
    twin._grad_fn, twin._requires_grad = t._grad_fn, t._requires_grad
    return twin


def kept_operand(t: Tensor) -> Tensor:
    """An operand whose value a gradient keeps when the tensor itself is overwritten."""
    if not local.state.grad:
        return t
    twin = _twin(t)
    if t._requires_grad and t._grad_fn is None:  # a leaf, which may be overwritten under no_grad
        twin._grad_fn = function_node("CloneBackward0", (t,), (t._layout,), _as_it_came)
    return twin


_as_it_came = view_rule(lambda g: g)


def own_result(value: Tensor) -> Tensor:
    """A result with a storage of its own: what its gradient has saved of it stays when the result is overwritten."""
    if value._grad_fn is None:
        return value
    twin: Tensor = wrap(share_value(value._storage), value._layout)
    twin._grad_fn, twin._requires_grad = value._grad_fn, True
    return twin


def check_target(name: str, target: Tensor) -> None:
    """Refuse writes to views that show one element several times."""
    view = target._layout
    if not view.contiguous and overlaps(tuple(view.shape), view.strides):
        raise OverlapError(name, tuple(view.shape), view.strides)


def write_back(name: str, target: Tensor, value: Tensor) -> Tensor:
    """Store the result of an operation in its first operand, with PyTorch's rules on dtype, shape and overlapping memory."""
    if write_at_once(target, value):
        return target
    view, new = target._layout, value._layout
    if new.dtype is not view.dtype:
        if new.dtype.category == 2 and view.dtype.is_complex:
            raise DTypeError(f"[{name}] In-place {name.rstrip('_')} is not supported for complex tensors, as its result is {new.dtype!r}")
        if new.dtype.category > view.dtype.category:
            raise DTypeError(
                f"[{name}] result type {new.dtype!r} can't be cast to the desired output type {view.dtype!r} of the in-place "
                "operand; "
                "use the out-of-place form"
            )
        value = cast(value, view.dtype)
    if new.shape != view.shape:
        raise ShapeError(
            f"[{name}] expected a result of the operand's own shape, got {tuple(new.shape)}: output with shape "
            f"{list(view.shape)} doesn't match "
            f"the broadcast shape {list(new.shape)}; use the out-of-place form"
        )
    check_target(name, target)
    return assign(target, value)


def write_over(name: str, target: Tensor, value: Tensor) -> Tensor:
    """`write_back` of a value that does not depend on what it replaces, so that windows may overlap."""
    try:
        return write_back(name, target, value)
    except OverlapError as error:
        return error.again("copy_", write_over, write_over, (target, value), {})  # type: ignore[no-any-return]


def in_place_form(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The in-place form of an elementwise function: `name(x, ...)` stores `function(x, ...)` in x and returns x."""

    def apply(input: Tensor, *arguments: Any, **keywords: Any) -> Any:
        try:
            value = function(old_value(input, *arguments, *keywords.values()), *arguments, **keywords)
            return value if value is NotImplemented else write_back(name, input, value)
        except OverlapError as error:
            return error.again(name, function, apply, (input, *arguments), keywords)
        except Exception as error:
            if (meant := answer(name, function, (input, *arguments), keywords, error)) is not NOTHING:
                return meant
            raise

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"`{function.__name__}` with the result stored in the tensor itself."
    return answering(signed(apply, function, ("_", "out")))
