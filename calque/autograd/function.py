"""User-defined differentiable functions: `Function` with static `forward(ctx, ...)` and `backward(ctx, ...)`."""

from __future__ import annotations

import copy
import functools
import inspect
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from calque.autograd.assign import check_in_place, without_base, written_by
from calque.autograd.engine import with_history
from calque.autograd.leaves import RuleNamespace
from calque.base.asked import ordinary, plainly
from calque.base.dtypes import DType
from calque.base.errors import AutogradError, ForwardModeError, NotDense, ShapeError, how_to_pass
from calque.base.layout import Layout
from calque.base.text import type_name
from calque.observe.source import user_line
from calque.ops.opdef import get
from calque.record.nodes import GradNode, OutputNode
from calque.record.recorder import Trace, local
from calque.record.versions import Silent, silence
from calque.tensor import FunctionNode, Tensor, alias, constant, function_node, output_nodes, record, shadow, wrap

__all__ = ["Function", "FunctionCtx", "once_differentiable"]


class FunctionCtx:
    """What `forward` leaves for `backward`. Any attribute may be set on it; tensors belong into `save_for_backward`."""

    needs_input_grad: tuple[bool, ...] = ()
    of_a_function = True  # what is on it can be asked of `grad_fn`

    def __init__(self) -> None:
        self._to_save: tuple[Any, ...] = ()
        self._sparse: dict[int, Any] = {}  # saved tensors by position, of which the graph keeps the values
        self._to_move: tuple[Any, ...] | None = None
        self._moving = False  # whether it is `jvp` that runs
        self._places: list[int | None] = []  # which argument each saved tensor is
        self._dirty: tuple[Tensor, ...] = ()
        self._fixed: tuple[Tensor, ...] = ()
        self._materialize = True
        self._node: Any = None  # weak reference to the graph node

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep inputs or outputs (Tensors or None) for `backward`; in-place changes of them are detected there."""
        self._to_save = _variables("save_for_backward", tensors)

    def save_for_forward(self, *tensors: Any) -> None:
        """Keep inputs or outputs (Tensors or None) for `jvp`, where that wants others than `backward`."""
        self._to_move = _variables("save_for_forward", tensors)

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """The tensors given to `save_for_backward`; in `jvp` those given to `save_for_forward`, if there are some."""
        if self._to_move is not None and self._moving:
            return self._to_move
        node = self._node() if self._node is not None else None
        if node is None:
            return self._to_save
        if node.saved is None:
            raise AutogradError(
                f"[saved_tensors] Trying to backward through the graph a second time: saved values of {node.name()} (recorded "
                f"at {node.line}) "
                "have been freed; pass retain_graph=True to the first backward"
            )
        restored = [self._sparse[k] if k in self._sparse else _restored(t) for k, t in node.saved.items()]
        if not local.state.grad:
            return tuple(restored)
        return tuple([t if k is None else with_history(t, node.next[k]) for t, k in zip(restored, self._places, strict=True)])

    def moved(self, meant: Sequence[tuple[Any, Any]]) -> FunctionCtx:
        """What `forward` has left for a pass on a level above, where `backward` sees what moves. `meant`: (tensor of this level, the one above that
        stands for it)."""
        again = copy.copy(self)

        def above(t: Tensor | None) -> Any:
            if t is None or hasattr(t, "_elements"):
                return t
            return next((x for p, x in meant if isinstance(p, Tensor) and p._storage is t._storage and p._layout == t._layout), t)

        again._to_save, again._fixed, again._dirty = tuple(map(above, self.saved_tensors)), tuple(map(above, self._fixed)), ()
        again._node, again._sparse, again._to_move = None, {}, None
        return again

    def tangents(self, function: type[Function], given: Sequence[Any]) -> Any:
        """What `jvp` of the function says."""
        self._moving = True
        try:
            return function.jvp(self, *given)
        finally:
            self._moving, self._to_move = False, None

    def mark_dirty(self, *tensors: Tensor) -> None:
        """Declare inputs that `forward` changed in place and returns."""
        self._dirty = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Declare outputs that have no gradient, such as indices."""
        self._fixed = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Whether `backward` gets zeros (True, the default) or None for outputs that nobody used."""
        self._materialize = bool(value)


def _variables(op: str, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
    for t in tensors:
        if t is not None and not isinstance(t, Tensor):
            raise TypeError(f"[{op}] {op} can only save variables, but argument is of type {type_name(t)}")
    return tensors


def _restored(t: Tensor) -> Any:
    """A saved output gets its history back: it was saved without, to avoid a reference cycle."""
    if t is None or not isinstance(t._grad_fn, weakref.ref):
        return t
    out: Tensor = wrap(t._storage, t._layout)
    out._grad_fn, out._requires_grad = t._grad_fn(), True
    return out


class Function:
    """Base of differentiable functions written by hand. Call them with `apply`.

    `forward(ctx, *args)` computes the outputs (autograd does not look inside); `backward(ctx, *grads)` gets one gradient per
    output and
    returns one per argument, None for what is not differentiable. Written in recorded operations, `backward` can be
    differentiated again.

    >>> import calque
    >>> class Sigmoid(calque.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         y = 1.0 / (1.0 + (-x).exp())
    ...         ctx.save_for_backward(y)
    ...         return y
    ...     @staticmethod
    ...     def backward(ctx, grad_y):
    ...         y, = ctx.saved_tensors
    ...         return grad_y * y * (1.0 - y)
    >>> x = calque.zeros(1, requires_grad=True)
    >>> Sigmoid.apply(x).backward()
    >>> x.grad
    tensor([0.2500])
    """

    setup_context: Any = None

    def __init__(self, *args: Any, **keywords: Any) -> None:
        raise AutogradError(
            f"[{type(self).__name__}] Legacy autograd function with non-static forward method is deprecated: write forward and "
            "backward as "
            f"static methods and call {type(self).__name__}.apply(...)"
        )

    @staticmethod
    def forward(*args: Any, **keywords: Any) -> Any:
        """Compute the outputs; to be overridden."""
        raise NotImplementedError("[Function] You must implement the forward function for custom autograd.Function.")

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Gradients of the arguments; to be overridden."""
        raise NotImplementedError(
            "You must implement either the backward or vjp method for your custom autograd.Function to use it."
        )

    vjp = backward

    generate_vmap_rule = False  # `vmap` looks into `forward` and `backward` unless there is a static `vmap`: True changes nothing

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Tangents of the outputs, for forward mode; to be overridden."""
        raise ForwardModeError("You must implement the jvp function for custom autograd.Function to use it with forward mode AD.")

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        """(outputs, their dims) for all slices at once, where `forward` cannot say it (it reads values); to be overridden."""
        raise NotImplementedError("You must implement the vmap function for custom autograd.Function to call it.")

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Run `forward` on the arguments and record the function in the autograd graph."""
        if cls.setup_context is not None:
            args = _with_defaults(cls.forward, args)
        state = local.state
        if not state.plain and state.trace.__class__ is not Trace:
            found = state.trace.custom(cls, args)
            if found is not None:
                return found
        return cls._applied(args, cls.forward)[0]

    @classmethod
    def _applied(cls, args: tuple[Any, ...], forward: Callable[..., Any]) -> tuple[Any, FunctionCtx]:
        """(outputs, what `forward` left)."""
        state = local.state
        ctx = FunctionCtx()
        ctx.needs_input_grad = tuple(isinstance(a, Tensor) and a._requires_grad for a in args)
        differentiable = state.grad and any(ctx.needs_input_grad)
        before, state.grad = state.grad, False
        try:
            if cls.setup_context is not None:
                result = forward(*args)
                cls.setup_context(ctx, args, result)
            else:
                result = forward(ctx, *args)
        finally:
            state.grad = before
        outputs = list(result) if isinstance(result, (tuple, list)) else [result]
        if any(all(t is not out for out in outputs) for t in ctx._dirty):
            raise AutogradError(
                f"[{cls.__name__}] expected every input that forward marks as dirty among its outputs, got some elements marked as dirty during the "
                "forward method that were not returned as output; return what was modified in place"
            )
        with plainly():
            if ctx._dirty:
                _count_writes(ctx._dirty)
            outputs = [_own_handle(out, args, ctx, differentiable) for out in outputs]
            if differentiable:
                _attach_history(cls, ctx, args, outputs)
                if state.trace.transforms:
                    outputs = [state.trace.depending(out) if isinstance(out, Tensor) else out for out in outputs]
        return tuple(outputs) if isinstance(result, (tuple, list)) else outputs[0], ctx

    @classmethod
    def _attach(cls, ctx: FunctionCtx, args: tuple[Any, ...], outputs: list[Any]) -> None:
        """Give outputs, which `forward` has made on another level, a history of this one."""
        ctx.needs_input_grad = tuple(isinstance(a, Tensor) and a._requires_grad for a in args)
        with plainly():
            _attach_history(cls, ctx, args, outputs)


def _with_defaults(forward: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a call with the defaults of those that were left out: `setup_context` gets all of them."""
    try:
        bound = inspect.signature(forward).bind(*args)
    except (TypeError, ValueError):  # forward itself says what is wrong with its arguments
        return args
    bound.apply_defaults()
    return bound.args


def _count_writes(tensors: Sequence[Any]) -> None:
    """What a function marks as dirty has changed, however it has written there: through `.data`, by NumPy, or not at all."""
    for t in tensors:
        if isinstance(t, Tensor) and not hasattr(t, "_elements"):
            if (t if t._base is None else t._base)._views.__class__ is Silent:
                silence(t._storage, 1)
            else:
                t._storage.version += 1


def _own_handle(out: Any, args: tuple[Any, ...], ctx: FunctionCtx, differentiable: bool) -> Any:
    """An input returned unchanged becomes a view of it; one changed in place stays itself. Without history both are the bare value, if the input
    requires a gradient."""
    if not isinstance(out, Tensor) or not any(out is a for a in args):
        return out
    if not differentiable and out._requires_grad:
        return out.detach()  # type: ignore[attr-defined]
    changed = any(out is d for d in ctx._dirty) and not any(out is f for f in ctx._fixed)
    return out if changed else alias(out, out._layout)


def _check_history(cls: type[Function], ctx: FunctionCtx, args: tuple[Any, ...], tensors: list[Any]) -> None:
    """Refuse a function that can have no gradient as it is."""
    if cls.backward is not Function.backward and cls.vjp is not Function.vjp:
        raise AutogradError(f"[{cls.__name__}] Implementing both 'backward' and 'vjp' for a custom Function is not allowed; leave one of them out")
    for t in ctx._dirty:
        check_in_place(t)
        if t._base is not None and len(tensors) > 1:
            raise AutogradError(
                f"[{cls.__name__}] expected one output of a function that writes into a view (mark_dirty), got {len(tensors)}: it cannot "
                "return more than one Tensor; clone() the view first, or write in a function of its own"
            )
    for x in args:
        if isinstance(x, Tensor) and hasattr(x, "_elements") and x._requires_grad:
            raise NotDense(x, cls.__name__)


def _attach_history(cls: type[Function], ctx: FunctionCtx, args: tuple[Any, ...], outputs: list[Any]) -> None:
    tensors = [out for out in outputs if isinstance(out, Tensor)]
    places = [isinstance(out, Tensor) for out in outputs]
    _check_history(cls, ctx, args, tensors)
    node = function_node(
        f"{cls.__name__}Backward",
        args,
        tuple(out._layout for out in tensors),
        lambda node, grads: _run(cls, node.context, node, args_count, places, grads),
    )
    args_count = len(args)
    node.where = user_line()
    node.context = ctx
    for out, out_node in zip(tensors, output_nodes(node, len(tensors)), strict=True):
        if out._layout.dtype.category >= 2 and not any(out is f for f in ctx._fixed):
            if any(out is t for t in ctx._dirty):
                written_by(out, out_node)
            else:
                without_base(out, args)._grad_fn, out._requires_grad = out_node, True
    saved = {}
    for position, t in enumerate(ctx._to_save):
        if t is not None and any(t is out for out in tensors):
            kept = shadow(t)
            if t._grad_fn is not None:
                kept._grad_fn = weakref.ref(t._grad_fn)  # type: ignore[assignment]
            t = kept
        if hasattr(t, "_elements"):  # of a sparse tensor
            ctx._sparse[position] = t
            t = t._elements
        saved[position] = t
    ctx._places = [next((k for k, arg in enumerate(args) if t is arg), None) if t is not None else None for t in ctx._to_save]
    node.saved = saved
    node.versions = [0 if t is None else t._storage.version for t in saved.values()]
    ctx._to_save = ()
    ctx._node = weakref.ref(node)
    if local.state.trace.transforms:
        local.state.trace.saving(node)


def _run(cls: type[Function], ctx: FunctionCtx, node: FunctionNode, count: int, places: list[bool], grads: list[Any]) -> tuple[Any, ...]:
    """Call the user's backward and check what it returns. It gets a gradient for each output, None for those that are no tensors (`places`)."""
    if ctx._materialize:
        grads = [
            constant(0.0, view) if g is None else g
            for g, view in zip(grads, node.outputs, strict=True)
        ]
    rule = cls.backward if cls.backward is not Function.backward else cls.vjp
    given = iter(grads)
    result = rule(ctx, *[next(given) if is_tensor else None for is_tensor in places])
    found = list(result) if isinstance(result, (tuple, list)) else [result]
    if len(found) > count and all(g is None for g in found[count:]):
        found = found[:count]
    if len(found) != count:
        raise AutogradError(
            f"[{cls.__name__}] function {node.name()} returned an incorrect number of gradients (expected {count}, got "
            f"{len(found)}); "
            "return one per argument of forward, None for those without gradient"
        )
    return tuple(_checked(g, target, node, k) for k, (g, target) in enumerate(zip(found, node.next, strict=True)))


def _checked(g: Any, target: Tensor | GradNode, node: FunctionNode, index: int) -> Any:
    """A gradient of the argument's shape and dtype; broadcast gradients are summed."""
    if g is None or target is None:
        return None
    if not isinstance(g, Tensor):
        raise AutogradError(f"[{node.name()}] expected a Tensor or None as gradient {index}, got {type_name(g)}; {how_to_pass(g)}")
    g, expected = ordinary(g), _target_layout(target)
    if expected is None:
        return g
    try:
        if g._layout.shape != expected.shape:
            g = RuleNamespace.functional.sum_to_size(g, tuple(expected.shape))
    except ShapeError:
        raise AutogradError(
            f"[{node.name()}] Function {node.name()} returned an invalid gradient at index {index} - got "
            f"{list(g._layout.shape)} but expected "
            f"shape compatible with {list(expected.shape)}"
        ) from None
    return g if g._layout.dtype is expected.dtype else _of_dtype(g, expected.dtype, node, index)


def _of_dtype(g: Tensor, dtype: DType, node: FunctionNode, index: int) -> Tensor:
    """A gradient in the dtype of its argument, as engines of gradients hand them on. A complex one of a real argument has lost its meaning before."""
    given = g._layout.dtype
    if (given.category == 3) != (dtype.category == 3) and given.category != 2:
        raise AutogradError(
            f"[{node.name()}] expected a gradient {index} of dtype {dtype!r}, got {given!r}; return {'.real' if given.category == 3 else 'floats'}"
        )
    result: Tensor = record(get("cast"), (g,), (dtype,))
    return result


def _target_layout(target: Tensor | GradNode) -> Layout | None:
    if isinstance(target, Tensor):
        return target._layout
    if isinstance(target, FunctionNode):
        return target.outputs[0] if len(target.outputs) == 1 else None
    if isinstance(target, OutputNode):
        outputs = target.next[0].outputs
        return outputs[target.index] if target.index < len(outputs) else None
    return target.edge.layout if target.edge is not None else None


def once_differentiable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate `backward` to say that it cannot be differentiated: a second order raises."""

    @functools.wraps(function)
    def wrapped(ctx: Any, *grads: Any) -> Any:
        state = local.state
        before, state.grad = state.grad, False
        try:
            result = function(ctx, *grads)
        finally:
            state.grad = before
        if not before or not any(isinstance(g, Tensor) and g._requires_grad for g in grads):
            return result

        def refuse(node: GradNode, grads: Sequence[Any]) -> Any:
            raise AutogradError(
                "[once_differentiable] trying to differentiate twice a function that was marked with @once_differentiable"
            )

        outputs = list(result) if isinstance(result, (tuple, list)) else [result]
        for k, out in enumerate(outputs):
            if isinstance(out, Tensor):
                fresh: Tensor = wrap(out._storage, out._layout)
                fresh._grad_fn = function_node("DelayedErrorBackward", grads, (out._layout,), refuse)
                fresh._requires_grad = True
                outputs[k] = fresh
        return tuple(outputs) if isinstance(result, (tuple, list)) else outputs[0]

    return wrapped
