"""Gradients of leaves: their hooks, sums of several, and what is added to `.grad`."""

from __future__ import annotations

from typing import Any

from calque.autograd.eager import Eager
from calque.autograd.grad_fn import STOPPED
from calque.autograd.moving import move
from calque.base.errors import DTypeError, ShapeError
from calque.base.native import hot
from calque.base.shapes import fills
from calque.base.text import described, function_name
from calque.ops.opdef import get
from calque.record import recorder
from calque.record.recorder import local
from calque.replay.capture import abort
from calque.tensor import TENSOR_TYPES, Tensor, in_order, layout_of, record, wrap


class RuleNamespace:
    """Holds the functional namespace the rules are written in; `calque.functional` sets it once at import."""

    functional: Any = None
    check_nan = False  # anomaly mode: read every gradient and name the first operation that makes a NaN


def total(a: Any, b: Any) -> Any:
    """The sum of two gradients of one target."""
    if a.__class__ not in TENSOR_TYPES or b.__class__ not in TENSOR_TYPES:  # sparse ones; a dense and a sparse one make a dense one
        return b + a if b.__class__ in TENSOR_TYPES else a + b
    trace = local.state.trace
    return trace.total(a, b) if trace.__class__ is Eager and not local.state.grad else a + b


def leaf_hooks(leaf: Tensor, gradient: Any) -> Any:
    """The gradient behind the hooks of a leaf, which has some."""
    abort("runs a hook of a tensor")
    for hook in list(leaf._hooks.values()):  # type: ignore[union-attr]
        gradient = after_hook(hook, gradient)
    return gradient


def after_hook(hook: Any, gradient: Tensor) -> Any:
    """The gradient that goes on after a hook of a tensor: what it returned, or the same; None if it stops."""
    replaced = hook(gradient)
    if replaced is STOPPED:
        return None
    if replaced is None or gradient.__class__ is list and replaced.__class__ is list:  # those of a node with several outputs, as `GradFn` has them
        return gradient if replaced is None else replaced
    if not isinstance(replaced, Tensor):
        raise DTypeError(
            f"[register_hook] expected None or a Tensor from the hook {function_name(hook)}, got {described(replaced)}; return the new gradient alone"
        )
    got, wanted = replaced._layout, gradient._layout
    if got.shape != wanted.shape:
        raise ShapeError(
            f"[register_hook] expected a gradient of shape {tuple(wanted.shape)} from the hook {function_name(hook)}, got {tuple(got.shape)}; "
            "a hook may not change the size of its value"
        )
    if got.dtype is not wanted.dtype:
        raise DTypeError(
            f"[register_hook] expected a gradient of dtype {wanted.dtype!r} from the hook {function_name(hook)}, got {got.dtype!r}; "
            f"convert it with .to({wanted.dtype!r})"
        )
    return replaced


def accumulate_grad(leaf: Tensor, gradient: Tensor) -> None:
    """Add to `leaf.grad`, or set it to a value of its own; then run the post-accumulate hooks."""
    if hot is not None and hot.accumulate(leaf, gradient):
        _after_accumulation(leaf)
        return
    held, view = leaf._grad, layout_of(leaf)
    if gradient.__class__ not in TENSOR_TYPES and held.__class__ in TENSOR_TYPES:  # a sparse one
        gradient = gradient.to_dense()  # type: ignore[attr-defined]
    if gradient.__class__ not in TENSOR_TYPES or (held is not None and held.__class__ not in TENSOR_TYPES):
        leaf._grad = gradient if held is None else total(held, gradient)
        _after_accumulation(leaf)
        return
    if gradient._layout.device is not view.device:
        gradient = move(gradient, view.device)
    if held is not None:
        _add(leaf, held, gradient)
    elif local.state.grad and gradient._requires_grad:
        upright = view.upright and not gradient._layout.upright  # else a copy: the same value may be another leaf's
        leaf._grad = RuleNamespace.functional.contiguous(gradient) if upright else RuleNamespace.functional.clone(gradient)
    elif not view.upright and fills(tuple(view.shape), view.strides):
        leaf._grad = in_order(gradient, view)
    elif not gradient._layout.dense or gradient._layout is not gradient._storage.layout:
        gradient = record(get("copy"), (gradient,))
        leaf._grad = wrap(gradient._storage, gradient._layout)
    else:
        leaf._grad = wrap(recorder.share_value(gradient._storage), gradient._layout)
    _after_accumulation(leaf)


def _add(leaf: Tensor, held: Tensor, gradient: Tensor) -> None:
    """Add to the gradient that a leaf has already: in place, so that every alias sees it, unless the sum has a history."""
    both = held + gradient
    if local.state.grad:
        leaf._grad = both
        return
    if both._layout is not held._layout and both._layout.shape != held._layout.shape:
        raise ShapeError(
            f"[backward] expected a gradient of the shape {tuple(held._layout.shape)} that .grad of a leaf has already, got one of shape "
            f"{tuple(gradient._layout.shape)}: the leaf has changed its shape since; set its .grad to None first"
        )
    if hot is not None and hot.write_at_once(held, both):
        return
    if both._layout is not both._storage.layout:
        both = record(get("copy"), (both,))
    recorder.write(held._storage, held._layout, both._storage)


def _after_accumulation(leaf: Tensor) -> None:
    after = leaf.__dict__.get("_post_accumulate")
    if after:
        abort("runs a hook of a tensor")
        for hook in list(after.values()):
            if hook(leaf) is not None:
                raise DTypeError(
                    f"[register_post_accumulate_grad_hook] expected None from the hook {function_name(hook)}, got a value; "
                    "change the tensor's .grad in place instead"
                )
