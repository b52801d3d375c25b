"""`backward`, `grad` and what autograd adds to `Tensor`: requires_grad, grad, grad_fn, hooks."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any, NamedTuple

from calque.autograd.engine import run_backward
from calque.autograd.grad_fn import grad_fn_of
from calque.autograd.leaves import RuleNamespace, accumulate_grad
from calque.autograd.passes import NOT_DONE, pass_again
from calque.base.asked import ordinary
from calque.base.errors import ArgumentError, AutogradError, DTypeError, ShapeError, how_to_pass
from calque.base.layout import Layout
from calque.base.shapes import fills
from calque.base.text import type_name
from calque.observe.source import user_line, warn_user
from calque.ops.opdef import get
from calque.record.nodes import FunctionNode, StandIn
from calque.record.path import Edge
from calque.record.recorder import flush, local
from calque.record.threads import SECTION, handed_over
from calque.record.versions import Silent, version_of
from calque.replay.capture import abort
from calque.replay.counts import Changes
from calque.replay.effects import gradients_matter
from calque.report.history import watch_root
from calque.report.losses import watch_loss
from calque.tensor import TENSOR_TYPES, GradNode, OutputNode, Tensor, constant, function_node, layout_of, record, wrap

_hook_ids = count()


def require_float(op: str, t: Tensor) -> None:
    """Raise unless the dtype can carry gradients."""
    if t._layout.dtype.category < 2:
        text = "only Tensors of floating point and complex dtype can require gradients"
        raise DTypeError(f"[{op}] expected a floating or complex dtype, got {t._layout.dtype}; {text}")


class RemovableHandle:
    """Returned by the `register_*hook` methods; `remove()` takes the hook away, also at the end of a `with` block."""

    def __init__(self, hooks: dict[int, Any], hook: Any) -> None:
        if not callable(hook):
            raise DTypeError(f"[register_hook] expected a function as hook, got {type_name(hook)}; pass the function itself, not its result")
        self.id = next(_hook_ids)
        self._hooks = hooks
        hooks[self.id] = hook

    def remove(self) -> None:
        """Take the hook away; a second call does nothing."""
        self._hooks.pop(self.id, None)

    def __enter__(self) -> "RemovableHandle":
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


# -------------------------------------------------------------------------------------------------------- backward and grad


class GradientEdge(NamedTuple):
    """Where a gradient goes: a node and which of its outputs (`autograd.graph.get_gradient_edge`). The last field keeps what this output is."""

    node: Any
    output_nr: int
    ownership_token: Any = None


def as_edge(t: Tensor) -> GradientEdge:
    """Where the gradient of `t` goes, as programs see it."""
    target = target_of(t)
    if isinstance(target, OutputNode):
        return GradientEdge(grad_fn_of(target), target.index, target)
    return GradientEdge(grad_fn_of(target), 0)


def target_of(t: Tensor | GradientEdge) -> Tensor | GradNode:
    """Where the gradient of `t`, a tensor or an edge, goes: its node, or itself if it is a leaf."""
    if not isinstance(t, GradientEdge):
        return t._grad_fn or t
    target: Tensor | GradNode = t.node._target
    if isinstance(t.ownership_token, OutputNode):
        return t.ownership_token
    if isinstance(target, FunctionNode) and len(target.outputs) > 1:
        raise AutogradError(
            f"[GradientEdge] expected an edge that get_gradient_edge(tensor) gave for one of {len(target.outputs)} outputs of {target.name()}, got a "
            "node and a number; ask for it while the tensor is there"
        )
    return target


def _layout_at(t: Tensor | GradientEdge) -> Layout:
    """The layout of a tensor, or of that whose gradient goes along an edge."""
    target, index = target_of(t) if isinstance(t, GradientEdge) else t, 0
    if isinstance(target, OutputNode):
        target, index = target.next[0], target.index
    if isinstance(target, Tensor):
        return layout_of(target)  # type: ignore[no-any-return]
    found: Layout = target.outputs[index] if isinstance(target, FunctionNode) else target.edge.layout
    return found


def passing_on(t: Tensor) -> StandIn:
    """A node for a handle in the place of `t`."""
    node: Any = function_node("HybridInput", (t,), (t._layout,), lambda node, grads: (grads[0],))
    node.__class__ = StandIn
    return node  # type: ignore[no-any-return]


def _edge_of(t: Tensor) -> Edge | None:
    """The recorded operation that computes `t`, while it is pending in this thread's trace."""
    storage = t._storage
    trace = local.state.trace
    if storage.trace is not trace or storage.buffer is not None:
        return None
    edge: Edge | None = trace.cur
    while edge is not None and edge.depth > storage.slot + 1:
        edge = edge.parent
    return edge


def _history_hint(t: Tensor) -> str:
    """Where `t` was computed and from which leaves, for the error about a missing gradient."""
    edge = _edge_of(t)
    if edge is None or not edge.line:
        return "no tensor it was computed from has requires_grad=True"
    wanted = {s for s in edge.inputs if isinstance(s, int)}
    leaves: list[tuple[int, ...]] = []
    walk = edge.parent
    while walk is not None and walk.parent is not None and len(leaves) < 3:
        if walk.depth - 1 in wanted:
            sources = {s for s in walk.inputs if isinstance(s, int)}
            if not sources:
                leaves.append(tuple(walk.layout.shape))
            wanted |= sources
        walk = walk.parent
    named = ", ".join(f"a leaf of shape {shape} lacks requires_grad" for shape in leaves) or "nothing it uses has requires_grad"
    return f"it is the result of {edge.op.name!r} recorded at {edge.line}: {named}"


def _require_history(op: str, t: Any, index: int) -> None:
    if t.__class__ is GradientEdge:
        return
    if not isinstance(t, Tensor):
        raise DTypeError(f"[{op}] expected Tensors, got {type_name(t)}; {how_to_pass(t)}")
    if not t._requires_grad:
        raise AutogradError(
            f"[{op}] element {index} of tensors does not require grad and does not have a grad_fn: {_history_hint(t)}; "
            "set requires_grad=True on a leaf before the forward pass; was it computed inside no_grad() or after detach()?"
        )


def _initial_gradient(op: str, t: Tensor, given: Any, index: int) -> Tensor:
    """The gradient to start from: ones for a scalar, else the one given."""
    view = _layout_at(t)
    if given is None:
        if view.numel != 1:
            raise AutogradError(
                f"[{op}] grad can be implicitly created only for scalar outputs, got shape {tuple(view.shape)}; pass gradient= "
                "(a tensor of that "
                "shape), or reduce first with .sum() or .mean()"
            )
        if view.dtype.is_complex:
            raise AutogradError(
                f"[{op}] grad can be implicitly created only for real scalar outputs but got {view.dtype!r}; take .abs() or .real, or pass gradient="
            )
        return constant(1.0, view)
    if not isinstance(given, Tensor):
        raise DTypeError(f"[{op}] gradients can be either Tensors or None, but got {type_name(given)}; {how_to_pass(given)}")
    if tuple(given._layout.shape) != tuple(view.shape):
        raise ShapeError(
            f"[{op}] Mismatch in shape: grad_output[{index}] has a shape of {tuple(given._layout.shape)} and output[{index}] "
            "has a shape of "
            f"{tuple(view.shape)}; expected equal shapes"
        )
    if given._layout.dtype.is_complex is not view.dtype.is_complex:
        raise AutogradError(
            f"[{op}] For complex Tensors, both grad_output and output are required to have the same dtype. Mismatch in dtype: "
            f"grad_output[{index}] has a dtype of {given._layout.dtype!r} and output[{index}] has a dtype of {view.dtype!r}; convert one"
        )
    return given if given._layout.dtype is view.dtype else record(get("cast"), (given,), (view.dtype,))


def _as_list(x: Any) -> list[Any]:
    """What one tensor, or any iterable of them such as `model.parameters()`, stands for."""
    # Another library's tensor is one as well, and is refused.
    one = isinstance(x, (Tensor, GradientEdge)) or hasattr(x, "shape") or not isinstance(x, Iterable)
    return [x] if one else list(x)


def _roots(op: str, tensors: Any, gradients: Any) -> list[tuple[Any, Tensor]]:
    outputs = _as_list(tensors)
    given = [None] * len(outputs) if gradients is None else _as_list(gradients)
    if len(given) != len(outputs):
        raise AutogradError(
            f"[{op}] got {len(outputs)} tensors and {len(given)} gradients; expected one gradient (or None) per tensor"
        )
    roots = []
    for index, (t, g) in enumerate(zip(outputs, given, strict=True)):
        _require_history(op, t, index)
        roots.append((target_of(t), _initial_gradient(op, t, g, index)))
    return roots


def _again(outputs: Sequence[Any], given: Sequence[Any], keep: bool, walk: Callable[[], Any]) -> bool:
    """`pass_again`, which runs nothing of the user's, and then it is another thread's turn."""
    with SECTION:
        done = pass_again(outputs, given, keep, walk) is not NOT_DONE
        if done:
            handed_over(flush, local.state, "backward")
    return done


def backward(
    tensors: Tensor | Sequence[Tensor],
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    grad_variables: Any = None,
    inputs: Any = None,
) -> None:
    """Add d(tensors)/d(leaf) to `.grad` of every leaf, or only of `inputs`.

    grad_tensors: gradients of the tensors, same shapes; may be left out for scalars. retain_graph: keep the graph for a second
    call
    (default: create_graph). create_graph: record the gradients too, for higher orders.

    >>> import calque
    >>> w = calque.tensor(2.0, requires_grad=True)
    >>> calque.autograd.backward(w ** 2)
    >>> w.grad
    tensor(4.)
    """
    gradients = grad_tensors if grad_variables is None else grad_variables
    keep = bool(create_graph if retain_graph is None else retain_graph)
    gradients_matter()
    if inputs is None:
        outputs = _as_list(tensors)

        def walk() -> None:
            run_backward(_roots("backward", outputs, gradients), keep, create_graph, True)

        given = [None] * len(outputs) if gradients is None else _as_list(gradients)
        if create_graph or RuleNamespace.check_nan or local.state.trace.eager or not _again(outputs, given, keep, walk):
            walk()
        return
    roots = _roots("backward", tensors, gradients)
    wanted = _as_list(inputs)
    if not wanted:
        raise AutogradError("[backward] `inputs` argument to `backward()` cannot be empty; leave it out to reach all leaves")
    for t in wanted:
        if t.__class__ is GradientEdge:  # of a node: hooks up to there run, and its gradient is kept nowhere
            continue
        if not t._requires_grad:
            raise AutogradError(
                "[backward] One of the differentiated Tensors does not require grad; set requires_grad=True on it"
            )
    found = run_backward(roots, keep, create_graph, True, [target_of(t) for t in wanted])
    for t in wanted:
        if t.__class__ is not GradientEdge and t._grad_fn is not None and id(t._grad_fn) in found:
            accumulate_grad(t, found[id(t._grad_fn)])


def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Any, ...]:
    """d(outputs)/d(inputs) as a tuple, one per input; `.grad` stays untouched.

    allow_unused: None instead of an error for an input the outputs do not depend on; materialize_grads: zeros instead of None.
    is_grads_batched: grad_outputs have a leading batch dim, and so have the results.

    >>> import calque
    >>> x = calque.tensor(3.0, requires_grad=True)
    >>> calque.autograd.grad(x ** 3, x)
    (tensor(27.),)
    """
    if materialize_grads and allow_unused is False:
        raise ArgumentError("[grad] Expected allow_unused to be True or not passed when materialize_grads=True, got False; leave it out")
    if is_grads_batched:
        return _batched_grad(outputs, inputs, grad_outputs, retain_graph, create_graph, allow_unused, materialize_grads)
    wanted = _as_list(inputs)
    if not wanted:
        raise AutogradError("[grad] grad requires non-empty inputs: expected at least one Tensor, got none; leave the call out")
    edges = any(t.__class__ is GradientEdge for t in wanted)
    for t in wanted:
        if t.__class__ is GradientEdge:
            continue
        if not isinstance(t, Tensor):
            raise DTypeError(f"[grad] expected inputs to be Tensors, got {type_name(t)}; {how_to_pass(t)}")
        if not t._requires_grad:
            raise AutogradError(
                f"[grad] One of the differentiated Tensors does not require grad: input of shape {tuple(t._layout.shape)}; set "
                "requires_grad=True"
            )
    roots = _as_list(outputs)
    keep = bool(create_graph if retain_graph is None else retain_graph)

    def walk() -> tuple[Any, ...]:
        return _gradients(_roots("grad", roots, grad_outputs), wanted, keep, create_graph, allow_unused, materialize_grads)

    given = [None] * len(roots) if grad_outputs is None else _as_list(grad_outputs)
    if not (create_graph or materialize_grads or RuleNamespace.check_nan or edges):
        found = pass_again(roots, given, keep, walk, wanted)
        if found is not NOT_DONE:
            return found  # type: ignore[no-any-return]
    return walk()


def _gradients(
    roots: list[tuple[Any, Tensor]], wanted: list[Tensor], keep: bool, create_graph: bool, allow_unused: bool | None, materialize: bool
) -> tuple[Any, ...]:
    """What a pass from `roots` brings to each of `wanted`."""
    found = run_backward(roots, keep, create_graph, False, [target_of(t) for t in wanted])
    results: list[Any] = []
    for t in wanted:
        g = found.get(id(target_of(t)))
        if g is None and materialize:
            g = constant(0.0, _layout_at(t))
            g._requires_grad = create_graph  # it can be differentiated again, as derivatives of any order are asked for in loops
        elif g is None and not allow_unused:
            raise AutogradError(
                "[grad] One of the differentiated Tensors appears to not have been used in the graph: input of shape "
                f"{tuple(_layout_at(t).shape)}. "
                "Set allow_unused=True if this is the desired behavior"
            )
        results.append(g if t.__class__ is GradientEdge else _as_input(g, t))
    return tuple(results)


def _as_input(g: Any, t: Tensor) -> Any:
    """A gradient in its input's order of dims, as in PyTorch: that of `w` behind `x @ w.T` would be transposed, and have no `view(-1)`."""
    if g.__class__ not in TENSOR_TYPES or not layout_of(t).upright or g._layout.upright:  # a sparse gradient has no order
        return g
    return RuleNamespace.functional.contiguous(g) if fills(tuple(g._layout.shape), g._layout.strides) else g


def zeros_like(t: Tensor) -> Tensor:
    """Zeros of t's shape and dtype."""
    return constant(0.0, t._layout)


def _batched_grad(
    outputs: Any, inputs: Any, gradients: Any, retain: Any, create: bool, unused: Any, materialize: bool
) -> tuple[Any, ...]:
    batches = _as_list(gradients)
    size = batches[0]._layout.shape[0]
    rows = []
    for i in range(size):
        keep = True if i < size - 1 else retain
        rows.append(grad(outputs, inputs, [b[i] for b in batches], keep, create, True, unused, False, materialize))
    stack = RuleNamespace.functional.stack
    return tuple(None if column[0] is None else stack(list(column)) for column in zip(*rows, strict=True))


# ------------------------------------------------------------------------------------------------------------ Tensor's part


def _backward_method(
    self: Tensor, gradient: Any = None, retain_graph: bool | None = None, create_graph: bool = False, inputs: Any = None
) -> None:
    """Add d(self)/d(leaf) to `.grad` of every leaf; see `autograd.backward`.

    >>> import calque
    >>> w = calque.tensor(2.0, requires_grad=True)
    >>> z = 10 * w ** 2 + 25
    >>> z.backward()
    >>> w.grad
    tensor(40.)
    """
    backward(self, gradient, retain_graph, create_graph, inputs=inputs)
    line = user_line()
    watch_root(self, line)
    watch_loss(self, line)


def _get_grad(self: Tensor) -> Tensor | None:
    gradients_matter(self)
    g = self._grad
    if g is None and self._grad_fn is not None and self._requires_grad and getattr(self._grad_fn, "retain", None) is None:
        warn_user("[grad] The .grad attribute of a Tensor that is not a leaf Tensor is being accessed. Its .grad attribute won't be "
            "populated during "
            "autograd.backward(). Call .retain_grad() on it before the backward pass, or use the leaf", UserWarning)
    return g


def _set_grad(self: Tensor, value: Any) -> None:
    if value is not None:
        if not isinstance(value, Tensor):
            raise DTypeError(f"[grad] assigned grad expected to be a Tensor or None but got grad of type {type_name(value)}; {how_to_pass(value)}")
        if value is self:
            raise AutogradError("[grad] can't assign Variable as its own grad")
        if value.shape != self.shape:  # type: ignore[attr-defined]
            raise ShapeError(
                f"[grad] assigned grad has data of a different size: expected {tuple(self._layout.shape)}, got "
                f"{tuple(value.shape)}"
            )
        if value.dtype is not self.dtype:  # type: ignore[attr-defined]
            raise DTypeError(
                f"[grad] assigned grad has data of a different type: expected {self._layout.dtype!r}, got {value.dtype!r}"
            )
    gradients_matter(self)
    self._grad = value


def _delete_grad(self: Tensor) -> None:
    gradients_matter(self)
    self._grad = None


def set_requires_grad(self: Tensor, value: bool = True) -> Tensor:
    """Set whether autograd records operations on this leaf; returns it. Floating tensors only."""
    value = bool(value)
    capture = local.state.capture
    own = None if capture is None else capture.stand_ins.get(id(self))
    if own is not None and (self._grad_fn is None or self._grad_fn.__class__ is StandIn):
        set_requires_grad(own, value)
        if self._requires_grad is not value:
            self._grad_fn, self._requires_grad = passing_on(own) if value else None, value
        return self
    if self._grad_fn is not None:
        if not value:
            raise AutogradError(
                "[requires_grad] you can only change requires_grad flags of leaf variables, and this is the result of "
                f"{self._grad_fn.name()} (recorded at {self._grad_fn.line}). If you want to use a computed variable in a "
                "subgraph that doesn't "
                "require differentiation use var_no_grad = var.detach()"
            )
        return self
    if value:
        require_float("requires_grad", self)
    self._requires_grad = value
    return self


def _assign_requires_grad(self: Tensor, value: bool) -> None:
    set_requires_grad(self, value)


def _get_data(self: Tensor) -> Tensor:
    alias: Tensor = wrap(self._storage, self._layout)
    alias._views = Silent()
    return alias


def _set_data(self: Tensor, value: Tensor) -> None:
    if not isinstance(value, Tensor):
        raise DTypeError(f"[data] expected a Tensor, got {type_name(value)}; {how_to_pass(value)}")
    value = ordinary(value)
    if self._requires_grad and value._layout.dtype.category < 2:
        raise DTypeError(
            f"[data] data set to a tensor that requires gradients must be floating point dtype, got {value._layout.dtype!r}"
        )
    self._storage, self._layout, self._cache = value._storage, value._layout, None


def retain_grad(self: Tensor) -> None:
    """Keep the gradient of this non-leaf tensor in `.grad` at the next backward; does nothing for a leaf."""
    if not self._requires_grad:
        raise AutogradError("[retain_grad] can't retain_grad on Tensor that has requires_grad=False")
    if self._grad_fn is not None:
        self._grad_fn.retain = weakref.ref(self)


def register_hook(self: Tensor, hook: Callable[[Tensor], Any]) -> RemovableHandle:
    """Call `hook(grad)` when the gradient of this tensor is known; a returned tensor replaces it.

    >>> import calque
    >>> w = calque.tensor(1.0, requires_grad=True)
    >>> handle = w.register_hook(lambda g: g * 2)
    >>> (w * 3).backward()
    >>> w.grad
    tensor(6.)
    """
    if not self._requires_grad:
        raise AutogradError("[register_hook] cannot register a hook on a tensor that doesn't require gradient")
    holder: Any = self._grad_fn
    if holder is not None:
        if holder.hooks is None:
            holder.hooks = {}
        return RemovableHandle(holder.hooks, hook)
    if self._hooks is None:
        self._hooks = {}
    Changes.hooks += 1
    return RemovableHandle(self._hooks, hook)


def register_post_accumulate_grad_hook(self: Tensor, hook: Callable[[Tensor], None]) -> RemovableHandle:
    """Call `hook(tensor)` after a backward has added to `.grad` of this leaf."""
    if not self._requires_grad or self._grad_fn is not None:
        raise AutogradError(
            "[register_post_accumulate_grad_hook] post accumulate grad hooks cannot be registered on non-leaf tensors"
        )
    Changes.hooks += 1
    return RemovableHandle(self.__dict__.setdefault("_post_accumulate", {}), hook)


def _output_number(self: Tensor) -> int:
    node = self._grad_fn
    return node.index if isinstance(node, OutputNode) else 0


def _version(self: Tensor) -> int:
    abort("asks how often a tensor was written to")  # a replay would give the number of the call that was recorded
    return version_of(self._storage)


def _attach() -> None:
    attributes: dict[str, Any] = {
        "backward": _backward_method,
        "grad": property(_get_grad, _set_grad, _delete_grad, "Gradient accumulated by `backward`, or None."),
        "grad_fn": property(lambda self: grad_fn_of(self._grad_fn), doc="Node of the autograd graph that made this tensor; None for a leaf."),
        "requires_grad": property(
            lambda self: self._requires_grad, _assign_requires_grad, doc="Whether gradients are computed for it."
        ),
        "requires_grad_": set_requires_grad,
        "_is_view": lambda self: self._base is not None,
        "is_leaf": property(
            lambda self: self._grad_fn is None, doc="Whether it was made by the user, not by a recorded operation."
        ),
        "retains_grad": property(
            lambda self: self._grad_fn is not None and self._grad_fn.retain is not None, doc="See `retain_grad`."
        ),
        "retain_grad": retain_grad,
        "register_hook": register_hook,
        "register_post_accumulate_grad_hook": register_post_accumulate_grad_hook,
        "data": property(_get_data, _set_data, doc="The same values without autograd history; writes to it are not tracked."),
        "output_nr": property(_output_number, doc="Position among the outputs of its grad_fn."),
        "_version": property(_version, doc="Number of in-place writes to its memory, other than through `.data`."),
    }
    for name, value in attributes.items():
        setattr(Tensor, name, value)
    setattr(GradNode, "register_hook", _node_hook)  # noqa: B010 - declared slots hide it from type checkers


def _node_hook(self: GradNode, hook: Callable[..., Any]) -> RemovableHandle:
    """Call `hook(grad)` with the gradient that reaches this node."""
    if self.hooks is None:
        self.hooks = {}
    return RemovableHandle(self.hooks, hook)


_attach()
