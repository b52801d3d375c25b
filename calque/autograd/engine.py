"""Reverse-mode differentiation over the graph of `GradNode`s: gradients are recorded like any other operation.

Source: the usual accumulate-in-reverse-creation-order scheme (Griewank & Walther, "Evaluating Derivatives", ch. 3).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from itertools import accumulate
from types import FunctionType
from typing import Any

import numpy as np

from calque.autograd import formula, template
from calque.autograd.eager import Eager, leave, shown_back
from calque.autograd.grad_fn import PostHook, run_post_hooks
from calque.autograd.leaves import RuleNamespace, accumulate_grad, after_hook, leaf_hooks, total
from calque.base.config import settings
from calque.base.dtypes import DType
from calque.base.errors import AutogradError, NonFiniteError
from calque.base.layout import Layout
from calque.base.native import hot, new_memo
from calque.base.shapes import Shape
from calque.observe.source import user_line
from calque.ops.opdef import get
from calque.record import recorder
from calque.record.nodes import VIEW_RULE, CallNode, StandIn
from calque.record.recorder import Storage, local
from calque.record.state import State
from calque.record.threads import SECTION, handed_over
from calque.record.versions import modified
from calque.replay.capture import abort
from calque.run.estimate import LARGE
from calque.tensor import FunctionNode, GradNode, OutputNode, Tensor, constant, function_node, read, wrap


class SavedContext:
    """What a gradient rule may ask: see `ops.opdef.Vjp`."""

    __slots__ = ("_node", "attrs", "_starts")

    def __init__(self, node: GradNode) -> None:
        self._node = node
        self.attrs = node.edge.attrs
        self._starts: list[int] | None = None

    def x(self, position: int) -> Tensor | bool | int | float:
        """Operand `position` (a Tensor, or the Python number it was)."""
        value = self._node.saved[position]
        return with_history(value, self._node.next[position]) if local.state.grad else value

    @property
    def out(self) -> Tensor:
        """The operation's result."""
        return self._node.saved[-1]

    def shape(self, position: int) -> Shape:
        """Shape of operand `position`."""
        lay = self._node.edge.input_layouts[position]
        return tuple(lay.shape) if hasattr(lay, "shape") else ()

    def start(self, position: int, dim: int) -> int:
        """Where operand `position` begins if all operands are joined along `dim`; they are added up once for all positions."""
        if self._starts is None:
            self._starts = [0, *accumulate([lay.shape[dim] for lay in self._node.edge.input_layouts])]
        return self._starts[position]

    def dtype(self, position: int) -> DType:
        """dtype of operand `position`."""
        lay = self._node.edge.input_layouts[position]
        return lay.dtype if hasattr(lay, "dtype") else lay

    def link(self, gradient: Tensor, position: int) -> Tensor:
        """A gradient as a function of operand `position` with derivative zero, see `link`."""
        target = self._node.next[position]
        return gradient if target is None else link(gradient, (target,), (self._node.edge.input_layouts[position],))

    @property
    def out_shape(self) -> Shape:
        """Shape of the result."""
        return tuple(self._node.edge.layout.shape)


def with_history(value: Any, target: Tensor | GradNode | None) -> Any:
    """A saved operand as the function that it was of what is before `target`: `detach_` may have taken that from its handle, and a second derivative
    would miss all that the gradient owes to it."""
    if not isinstance(target, GradNode) or not isinstance(value, Tensor) or value._grad_fn is not None:
        return value
    again: Tensor = wrap(value._storage, value._layout)
    again._grad_fn, again._requires_grad = target, True
    return again


def require_history(node: FunctionNode) -> None:
    """Raise if an operand that a formula has at hand has lost its history since (see `with_history`), where a second derivative needs it."""
    if local.state.grad:
        for k, value in node.saved.items():
            if k >= 0 and with_history(value, node.next[k]) is not value:
                raise AutogradError(
                    f"[backward] {node.name()} (recorded at {node.line}) needs its operand {k} for create_graph=True: a saved tensor that has been "
                    "detached in-place, with detach_(); use the out-of-place detach() instead"
                )


def link(value: Tensor, targets: tuple[Any, ...], layouts: tuple[Layout, ...]) -> Tensor:
    """`value` as a function of tensors of these layouts, to whose nodes it sends gradients of zero. PyTorch's formulas depend on what they save, also
    where nothing of it shows in the derivative: a gradient is zeros then, where without a link it would be missing."""
    if not local.state.grad:
        return value

    def rule(node: GradNode, grads: Sequence[Any]) -> tuple[Any, ...]:
        g = grads[0]
        sources, shapes = (node.next[1:], layouts) if not g._requires_grad else ((*node.next[1:], g._grad_fn or g), (*layouts, g._layout))
        return (g, *[link(constant(0.0, view), sources, shapes) for view in layouts])

    node = function_node("LinkBackward0", (value,), (value._layout,), rule)
    node.next = (*node.next, *targets)
    result: Tensor = wrap(value._storage, value._layout)
    result._grad_fn, result._requires_grad = node, True
    return local.state.trace.depending(result) if local.state.trace.transforms else result  # type: ignore[union-attr, no-any-return]


def check_saved(node: GradNode) -> None:
    """Raise if a saved value was modified in place since it was saved, naming both lines."""
    saved = node.saved
    if not saved:
        return
    for (position, value), version in zip(saved.items(), node.versions, strict=True):
        storage = value._storage if isinstance(value, Tensor) else value
        if isinstance(storage, Storage) and modified(storage, version):
            shape = list(value._layout.shape if isinstance(value, Tensor) else storage.layout.shape)
            writer = storage.writer
            where = writer.line if writer is not None else "an unknown line"
            name = writer.op.name if writer is not None else "an in-place operation"
            role = "result" if position < 0 else f"operand {position}"
            raise AutogradError(
                f"[backward] {node.name()} (recorded at {node.line}) needs its {role} of shape {shape}, but it has been "
                f"modified by an inplace operation: {name} at {where}; it is at version {storage.version}, expected version "
                f"{version} instead. "
                "Use the out-of-place form there, or clone() the value first"
            )


def apply_node(node: GradNode, grad: Any, keep: bool) -> Sequence[Any]:
    """Gradients of a node's operands (None where not needed)."""
    if node.freed:
        raise second_time(node, node.freed)
    known = template.possible(local.state)  # whether rules need not run
    result: Sequence[Any]
    if isinstance(node, FunctionNode):
        rule: Any = node.backward
        if known and rule.__class__ is FunctionType and rule.__code__ is VIEW_RULE:
            result = template.view(node, grad, _apply_function)
        else:
            result = _apply_function(node, grad)
    else:
        result = template.primitive(node, grad, apply_primitive) if known else apply_primitive(node, grad)
    if not keep and (node.saved is not None or (isinstance(node, FunctionNode) and node.context is not None)):
        free(node, local.state.started)
    return result


def _shows(node: GradNode) -> bool:
    """Whether it is the node of a view that keeps nothing."""
    rule = node.backward if node.__class__ is FunctionNode and node.saved is None and node.context is None else None  # type: ignore[attr-defined]
    return rule.__class__ is FunctionType and rule.__code__ is VIEW_RULE  # type: ignore[union-attr]


def second_time(node: GradNode, line: str) -> AutogradError:
    """The error of a pass through what the pass started on `line` has freed."""
    return AutogradError(
        f"[backward] Trying to backward through the graph a second time: {node.name()} (recorded at {node.line}) was freed by the backward "
        f"at {line}; pass retain_graph=True there if you need the graph again"
    )


def free(node: GradNode, line: str) -> None:
    """Forget what a node saved, for the pass started on `line`."""
    if node.__class__ is CallNode and not node.context.released(line or "an earlier call"):  # type: ignore[attr-defined]
        return
    node.freed = line or "an earlier call"
    node.saved, node.versions = None, ()
    if isinstance(node, FunctionNode):
        node.context = None
        node.backward = _freed


def _freed(*_: Any) -> Any:
    raise AssertionError("a freed node was applied")


def _apply_function(node: FunctionNode, grad: Any) -> Sequence[Any]:
    check_saved(node)
    result: Sequence[Any] = node.backward(node, grad if isinstance(grad, list) else [grad])
    return result


def apply_primitive(node: GradNode, grad: Any, history: GradNode | None = None) -> list[Any]:
    """Gradients of a primitive's operands by its rules. `history`: the node of its result, if that is another one."""
    check_saved(node)
    edge = node.edge
    op = edge.op
    saved = node.saved
    if saved is not None and -1 in saved:
        out = wrap(saved[-1], edge.layout)
        out._grad_fn, out._requires_grad = history or node, True
        node.saved = {**saved, -1: out}
    context = SavedContext(node)
    functional = RuleNamespace.functional
    result: list[Any] = []
    analytic = edge.layout.dtype.category == 3 and op.complex == "holomorphic"
    if analytic:
        grad = functional.conj(grad)
    for position, target in enumerate(node.next):
        if target is None:
            result.append(None)
            continue
        g = op.vjp[position].rule(functional, grad, context)
        if analytic and g is not None:
            g = functional.conj(g)
        if g is not None and op.kind == "elementwise":
            shape = context.shape(position)
            if tuple(g._layout.shape) != shape:
                g = functional.sum_to_size(g, shape)
        result.append(g)
    if saved is not None:
        node.saved = saved
    return result


def run_backward(
    roots: Sequence[tuple[Any, Any]], keep: bool, create: bool, accumulate: bool,
    wanted: Sequence[Any] | None = None, stop: bool = False, held: Sequence[tuple[Any, Any]] = (),
) -> dict[int, Any]:  # fmt: skip
    """Propagate. `roots`: (node or leaf, gradient). With `accumulate` leaves receive `.grad`; otherwise gradients of `wanted`
    (leaf tensors or nodes) are collected and returned by id. With `stop` nothing is propagated beyond a wanted node and no hook of a wanted
    one runs: the pass around this one goes on from there. `held`: (wanted one, gradient it has already)."""
    state, line = recorder.local.state, user_line()
    before = state.grad, state.autocast, state.applied, state.started, state.waiting
    # No call between this and `try`, for Ctrl-C there would leave the modes as they are now. Gradients have the types of the forward pass.
    state.grad, state.autocast, state.applied, state.started = create, None, None, line
    try:
        return _propagate(roots, keep, accumulate, wanted, stop, held)
    finally:
        state.grad, state.autocast, state.applied, state.started, state.waiting = before


if hot is not None:
    hot.set_backward(get("add"), new_memo(None), total, shown_back)


class Total:
    """What a node gives for a target that had a gradient before: the sum of both."""

    __slots__ = ("gradient",)

    def __init__(self, gradient: Any) -> None:
        self.gradient = gradient


class _Pass:
    """One backward pass: gradients that wait for their node, nodes by creation (latest first), gradients of leaves."""

    def __init__(self, keep: bool, wanted: Sequence[Any] | None, stop: bool, roots: Sequence[tuple[Any, Any]]) -> None:
        self.keep, self.stop, self.roots = keep, stop, [root for root, _ in roots]
        self.pending: dict[int, Any] = {}  # node id -> gradient (a list for FunctionNodes with several outputs)
        self.heap: list[tuple[int, int, Any]] = []
        self.leaves: dict[int, tuple[Any, Any]] = {}
        self.collected: dict[int, Any] = {}
        self.wanted = {id(w) for w in wanted} if wanted is not None else set()
        self.needed = reaches(self.roots, self.wanted) if wanted is not None else None
        self.appends = template.may_append(local.state)
        self.after: list[Callable[[], None]] = []  # called when the leaves have their gradients
        self.outer: _Pass | None = local.state.waiting  # in a rule of which this one runs

    def send(self, target: Tensor | GradNode | None, gradient: Any, index: int = 0) -> None:
        """Add a gradient to what waits for `target`."""
        if target is None or gradient is None:
            return
        key = id(target)
        if self.needed is not None and key not in self.needed:
            return
        if gradient.__class__ is Total:
            if isinstance(target, Tensor):
                self.leaves[key] = (target, gradient.gradient)
            else:
                self.pending[key] = gradient.gradient
            return
        if isinstance(target, Tensor):
            held = self.leaves.get(key)
            self.leaves[key] = (target, gradient if held is None else total(held[1], gradient))
            return
        pending = self.pending
        waiting = pending.get(key)
        if waiting is None:
            if target.__class__ is StandIn and not (key in self.wanted or target.hooks or target.retain):
                self.send(target.next[0], gradient)
                return
            heapq.heappush(self.heap, (-target.number, key, target))
            if isinstance(target, FunctionNode) and len(target.outputs) > 1:
                pending[key] = [None] * len(target.outputs)
                pending[key][index] = gradient
            else:
                pending[key] = gradient
        elif waiting.__class__ is list:
            waiting[index] = gradient if waiting[index] is None else waiting[index] + gradient
        else:
            pending[key] = total(waiting, gradient)

    def held(self, target: Tensor | GradNode) -> Any:
        """The gradient that a target has already, if any."""
        found = self.leaves.get(id(target))
        return self.pending.get(id(target)) if found is None else found[1]

    def run(self) -> None:
        """Work through the heap."""
        state, heap, pending, needed = local.state, self.heap, self.pending, self.needed
        oldest = 0 if state.capture is None else state.capture.oldest
        plain = hot is not None and not (self.stop or RuleNamespace.check_nan) and state.capture is None
        while heap:
            if plain and self.appends:
                hot.run_pass(self, state, heap, pending, self.leaves, self.keep, needed, self.wanted)
                if not heap:
                    break
            _, key, node = heapq.heappop(heap)
            gradient = pending.pop(key)
            if self.stop and key in self.wanted:
                self.collected[key] = gradient
                continue
            hooked = node.hooks or node.retain is not None
            if hooked:
                gradient = _run_hooks(node, gradient)
                self.appends = template.may_append(state)
            if key in self.wanted:
                self.collected[key] = gradient
            if node.__class__ is OutputNode:
                self.send(node.next[0], gradient, node.index)
            elif gradient is not None and (needed is None or any(t is not None and id(t) in needed for t in node.next)):
                if node.number < oldest:  # the next call may come with another history
                    abort("differentiates through the history of an argument or of a tensor that it reaches")
                gradients = self._gradients(state, node, gradient)
                if hooked:
                    gradients = run_post_hooks(node, gradients, gradient)
                if RuleNamespace.check_nan:
                    _check_nan(node, gradients)
                self._send_all(node.next, gradients)

    def _gradients(self, state: State, node: GradNode, gradient: Any) -> Sequence[Any]:
        """What a node gives for its targets."""
        found: Sequence[Any] | None = None
        if state.trace.__class__ is Eager and _recorded(node, gradient):
            leave(True)  # the operation was recorded, as it was large or stood behind a large one: so is its gradient, and what comes then
            self.appends = template.may_append(state)
        if self.appends and node.__class__ is GradNode:
            trace = state.trace
            if trace.__class__ is Eager:
                found = (formula.verified if settings.verify else formula.gradients)(trace, node, gradient, apply_primitive)
            else:
                found = node.edge.gradients(trace, node, gradient)
        elif self.appends and state.trace.__class__ is Eager and _shows(node) and gradient.__class__ is Tensor:
            found = state.trace.seen(node, gradient, _apply_function)  # type: ignore[arg-type]
        if found is None:
            state.applied = node
            found = apply_node(node, gradient, self.keep)
            state.applied = None
            self.appends = template.may_append(state)  # Python of the user's may have run
        elif node.saved is not None and not self.keep:
            free(node, state.started)
        return found

    def _send_all(self, targets: Sequence[Any], gradients: Sequence[Any]) -> None:
        """`send` for all targets of a node."""
        pending = self.pending
        for target, g in zip(targets, gradients, strict=True):
            if g is None or target is None:
                continue
            if target.__class__ is GradNode and g.__class__ is Tensor and self.needed is None:  # nothing of what `send` looks for
                key = id(target)
                waiting = pending.get(key)
                if waiting is None:
                    heapq.heappush(self.heap, (-target.number, key, target))
                    pending[key] = g
                else:
                    pending[key] = total(waiting, g)
            else:
                self.send(target, g)


def _recorded(node: GradNode, gradient: Any) -> bool:
    """Whether the operation of a node was recorded. The node of a function does not say so, but one that has large values was."""
    if node.__class__ is GradNode:
        return node.edge.parent is not None
    if node.__class__ is not FunctionNode or _shows(node):
        return False
    values = (gradient, *(node.saved or {}).values())
    return any(isinstance(x, (Tensor, Storage)) and (x._layout if isinstance(x, Tensor) else x.layout).numel >= LARGE for x in values)


def _propagate(
    roots: Sequence[tuple[Any, Any]], keep: bool, accumulate: bool, wanted: Sequence[Any] | None, stop: bool, held: Sequence[tuple[Any, Any]]
) -> dict[int, Any]:
    work = _Pass(keep, wanted, stop, roots)
    local.state.waiting = work
    for root, gradient in (*held, *roots):
        work.send(root, gradient)
    work.run()
    if any(leaf._hooks or leaf.__dict__.get("_post_accumulate") for leaf, _ in work.leaves.values()):
        _arrive(work, accumulate)  # hooks may wait for other threads
    else:
        with SECTION:
            _arrive(work, accumulate)
    return work.collected


def _arrive(work: _Pass, accumulate: bool) -> None:
    """Give the leaves of a pass their gradients."""
    for key, (leaf, gradient) in work.leaves.items():
        gradient = gradient if work.stop or not leaf._hooks else leaf_hooks(leaf, gradient)
        if key in work.wanted:
            work.collected[key] = gradient
        if accumulate and leaf._requires_grad:  # not of one that has been frozen since
            accumulate_grad(leaf, gradient)
    if work.after:
        work.leaves, gradient = {}, None  # what nobody else has is not computed for its own sake when a callback starts the program
        for function in work.after:
            function()
    if accumulate:
        handed_over(recorder.flush, local.state, "backward")


def queue_callback(function: Callable[[], None]) -> None:
    """Call the function when the backward pass that runs now, a hook of which calls this, has given all leaves their gradients; of several passes one
    inside the other, the outermost."""
    work = running_pass()
    if work is None:
        raise AutogradError("[queue_callback] expected a backward pass that runs, got none; call it from a hook")
    work.after.append(function)


def running_pass() -> _Pass | None:
    """What stands for the outermost backward pass that this thread runs now; None outside of one."""
    work = local.state.waiting
    while work is not None and work.outer is not None:
        work = work.outer
    return work


def reaches(roots: Sequence[Any], wanted: set[int]) -> set[int]:
    """Ids of targets from which some wanted target can be reached (iterative depth-first search). What a call finds in the history of its arguments,
    or does not find there, is no part of a recording: the next call may come with another history."""
    capture = local.state.capture
    oldest = 0 if capture is None else capture.oldest
    reaches: set[int] | None = hot.reaches(list(roots), wanted) if hot is not None and capture is None else None
    if reaches is not None:
        return reaches
    reaches = set()
    state: dict[int, int] = {}
    stack: list[Any] = list(roots)
    while stack:
        item = stack[-1]
        key = id(item)
        if state.get(key) == 2:
            stack.pop()
            continue
        # Nothing behind the only wanted one leads to it.
        children = [] if isinstance(item, Tensor) or (key in wanted and len(wanted) == 1) else _targets(item)
        if children and item.number < oldest:
            abort("looks for gradients in the history of an argument or of a tensor that it reaches")
        if key not in state:
            state[key] = 1
            stack.extend(c for c in children if id(c) not in state)
            continue
        stack.pop()
        state[key] = 2
        if key in wanted or any(id(c) in reaches for c in children):
            reaches.add(key)
            if item.__class__ is OutputNode:
                reaches.add(id(item.next[0]))
    return reaches


def _targets(node: GradNode) -> list[Any]:
    """Where gradients of a node go; for an output of a hybridized call, where they go from there."""
    if node.__class__ is OutputNode and node.next[0].__class__ is CallNode:
        call = node.next[0]
        return [t for k, t in enumerate(call.next) if t is not None and k in call.leads[node.index]]
    return [t for t in node.next if t is not None]


def _check_nan(node: GradNode, gradients: Sequence[Any]) -> None:
    for position, g in enumerate(gradients):
        if g is not None and np.isnan(read(g, "detect_anomaly")).any():
            raise NonFiniteError(
                f"[detect_anomaly] Function {node.name()!r} returned nan values in its {position}th output; its forward was recorded at "
                f"{node.line or 'an unknown line'}"
            )


def _run_hooks(node: GradNode, gradient: Any) -> Any:
    if node.hooks:
        abort("runs a hook of a tensor")
        for hook in list(node.hooks.values()):
            if hook.__class__ is not PostHook and gradient is not None:
                gradient = after_hook(hook, gradient)
    if node.retain is not None and gradient is not None:
        t = node.retain()
        if t is not None and t._grad is not None:
            t._grad = total(t._grad, gradient)  # what somebody holds of an earlier pass stays as it is
        elif t is not None:
            accumulate_grad(t, gradient)
    return gradient
