"""Nodes of the autograd graph that superinstructions make, each with the steps of its rule.

A library function that is computed at once with a gradient makes one or a few nodes, the same whenever its operands have the same layouts. When it is
watched (`superinstruction.py`), so is the rule of each of its nodes: which values it is given follows from that, and nodes like it are made by the
compiled module, which runs the steps of their rules, too. The graph is the one that the function itself makes. Where the steps are not for a node, in
a pass that is recorded or differentiated again, the function is run once more, and the rule of the node that it makes is asked: of the operands if
it is differentiated again (`again`), else of what the node has saved (`by_saved`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from calque.autograd.eager import Eager
from calque.autograd.engine import apply_node, apply_primitive, with_history
from calque.autograd.passes import COMPOSITES
from calque.autograd.routines import same
from calque.autograd.watched import NodePlan, NodePlans, Watched, shadow_storage, watch
from calque.base.config import settings
from calque.base.dtypes import get_default_dtype
from calque.base.errors import AutogradError
from calque.base.layout import Layout, dense_layout
from calque.base.native import hot
from calque.base.shapes import Size
from calque.record.nodes import FunctionNode, GradNode
from calque.record.recorder import Storage, local, realised
from calque.record.versions import modified
from calque.run.buffer import Buffer
from calque.tensor import Tensor, function_node, wrap

MOST_NODES = 16  # of one function; as in `native/superinstruction.c`
KINDS = 8  # layouts of gradients that a rule is watched for


class WatchedCall:
    """A call that was watched: what runs its function again, and has its rules watched, in one thread at a time (`lock`). `shadows`: its operands,
    where they stand among the arguments; `dismiss()`: its function makes nodes of its own from now on; `nodes`: the graph that it made, of these and
    of `values`: operands, storages of the results of steps, None for what makes nothing; `needed`: numbers of the operands and steps that make
    what the rules are given. No memory of the user's is kept."""

    __slots__ = ("function", "args", "keywords", "shadows", "dismiss", "nodes", "values", "needed", "lock")

    def __init__(self, function: Any, args: tuple[Any, ...], keywords: dict[str, Any], shadows: list[Any], dismiss: Callable[[], Any]) -> None:
        self.function, self.args, self.keywords, self.shadows, self.dismiss = function, args, keywords, shadows, dismiss
        self.nodes: list[Any] = []
        self.values: list[Any] = []
        self.needed: set[int] = set()
        self.lock = threading.Lock()

    def again(self, number: int, node: FunctionNode, grad: Any) -> Sequence[Any]:
        """What node `number` of the graph gives, of which `node` is one, by the rule of the function itself, as a function of the operands."""
        operands, versions, targets = node.context or self._any()
        state = local.state
        create = state.grad
        for k, (x, version) in enumerate(zip(operands, versions, strict=True)):
            if isinstance(x, Tensor) and modified(x._storage, version) and k in self.needed:
                raise AutogradError(
                    f"[backward] {node.name()} (recorded at {node.line}) needs its operand {k} once more, for create_graph=True, but it has been "
                    "modified by an inplace operation; use the out-of-place form there, or clone() the value first"
                )
        nodes: list[Any] = []
        for handles in (with_history, _as_it_was) if create else (_as_it_was,):  # who wants a gradient may be others now
            given = [handles(x, target) if isinstance(x, Tensor) else x for x, target in zip(operands, targets, strict=True)]
            nodes = nodes_of(self._with_graph(given), given)
            if _operations(nodes) == _operations(self.nodes):
                return apply_node(nodes[number], grad, True)
        raise AssertionError(f"{self.function.__name__} makes another graph than before")

    def by_saved(self, number: int, node: FunctionNode, grad: Any) -> Sequence[Any] | None:
        """The same of the values that `node` has saved, whatever has become of the operands since. None if the function does something else now."""
        state = local.state
        operands, versions, targets = node.context or self._any()
        create = state.grad
        shadows = [self._shadow(k, x, versions[k], targets[k], create) for k, x in enumerate(operands)]
        before = state.trace, state.capture, state.device, state.plain  # modes are for what the rule does, not for what leads to it
        state.grad, state.capture, state.device, state.plain = True, None, None, True
        try:
            watched, found = watch(Eager(), tuple(shadows), lambda: self._run(shadows), known=True)
        finally:
            (state.trace, state.capture, state.device, state.plain), state.grad = before, create
        if watched is None:
            return None
        values, nodes = self.made(watched, shadows), nodes_of(found, shadows)
        watched.forget()
        if [_layout_of(x) for x in values[len(shadows) :]] != [_layout_of(x) for x in self.values[len(shadows) :]] or len(nodes) != len(self.nodes):
            return None
        now: dict[int, tuple[Any, int]] = {k: (x, versions[k]) for k, x in enumerate(operands)}
        for own, twin in reversed(_alike(node, nodes[number], nodes) if create else [(node, nodes[number])]):
            twin.freed, twin.next = own.freed, own.next
            if not own.freed:
                now.update(zip(own.backward.uses, zip((own.saved or {}).values(), own.versions, strict=True), strict=True))
        for k, (x, version) in now.items():
            _become(values[k], x, version)
            if create and k < len(operands) and x._grad_fn is None and isinstance(targets[k], GradNode):
                values[k]._grad_fn = None  # `detach_` has taken it
        twin = nodes[number]
        if create and twin.__class__ is GradNode:
            return apply_primitive(twin, grad, node)
        if create and getattr(twin.backward, "__code__", None) in COMPOSITES:
            return twin.backward(twin, [grad], node)  # type: ignore[no-any-return]
        return apply_node(twin, grad, True)

    def _shadow(self, k: int, x: Tensor, version: int, target: Tensor | GradNode | None, create: bool) -> Tensor:
        """Another handle for operand `k`, as it was when the node was made but perhaps for its values; with its history if `create`."""
        view = x._layout if (x._layout.origin or x._layout) is _guard(self.shadows[k]) else self.shadows[k]._layout
        storage = shadow_storage(x._storage)
        if storage.buffer is None or view is not x._layout or modified(x._storage, version):
            storage = _zeros(view)
        storage.version = version
        shadow: Tensor = wrap(storage, view)
        shadow._requires_grad = target is not None
        if create and target is not None:
            shadow._grad_fn = target if isinstance(target, GradNode) else _before(target)
        return shadow

    def _any(self) -> tuple[list[Tensor], list[int], list[Tensor | None]]:
        """What a node whose rule is given nothing does not keep of its operands: any that are laid out like them."""
        operands = [wrap(_zeros(x._layout), x._layout) for x in self.shadows]
        return operands, [0] * len(operands), [x if shadow._requires_grad else None for x, shadow in zip(operands, self.shadows, strict=True)]

    @staticmethod
    def made(watched: Watched, shadows: Sequence[Any]) -> list[Any]:
        """What `values` are of a call."""
        made = zip(watched.members, watched.handles[len(shadows) :], strict=True)
        return [*shadows, *[None if member.how.__class__ is tuple else t._storage for member, t in made]]

    def _with_graph(self, given: Sequence[Any]) -> Any:
        """What the function gives, with the nodes that it makes, also inside of transforms that were entered where no gradient was wanted."""
        state = local.state
        before, frames, trace = state.grad, [], state.trace
        while trace.transforms:
            frames.append((trace, trace.grad))
            trace.grad, trace = True, trace.outer
        state.grad = True
        try:
            return self._run(given)
        finally:
            state.grad = before
            for frame, grad in frames:
                frame.grad = grad

    def _run(self, given: Sequence[Any]) -> Any:
        return self.function(*self._with(self.args, given), **{name: self._with(x, given) for name, x in self.keywords.items()})

    def _with(self, x: Any, given: Sequence[Any]) -> Any:
        """An argument with other operands."""
        for k, shadow in enumerate(self.shadows):
            if x is shadow:
                return given[k]
        return x.__class__([self._with(y, given) for y in x]) if x.__class__ in (tuple, list, Size) else x

    def filled(self) -> None:
        """Let all values be there, whatever they are."""
        for storage in self._storages():
            storage.buffer = Buffer(np.zeros(storage.layout.numel, storage.layout.dtype.np))

    def emptied(self) -> None:
        """Let no value be there."""
        for storage in self._storages():
            storage.buffer = None

    def _storages(self) -> list[Storage]:
        return [x if x.__class__ is Storage else x._storage for x in self.values if x is not None]


class NodeSteps:
    """The rule of node `number` of a call. `uses`: which of the call's `values` it is given; `formulas`: superinstructions for the layouts of
    gradients that came last, which the compiled module runs; `known`: all of them."""

    __slots__ = ("call", "number", "uses", "formulas", "known")

    def __init__(self, call: WatchedCall, number: int) -> None:
        self.call, self.number = call, number
        self.uses: list[int] | None = None
        self.formulas: tuple[Any, ...] = ()
        self.known: dict[Any, Any] = {}

    def __call__(self, node: FunctionNode, grads: Sequence[Any]) -> Sequence[Any]:
        grad, trace = grads[0], local.state.trace
        found = None
        if trace.__class__ is Eager and not local.state.grad and grad.__class__ is Tensor and grad._storage.buffer is not None:
            found = self._by_steps(trace, node, grad)
        if found is None or settings.verify:
            if local.state.grad:  # who differentiates twice does so at every step, and running the function twice costs more than its steps save
                self.call.dismiss()
            saved = self.call.by_saved(self.number, node, grad)
            expected = self.call.again(self.number, node, grad) if saved is None else saved
            for ours, theirs in zip(found or (), expected, strict=False):
                assert (ours is None) is (theirs is None)
                if ours is not None and local.state.trace is trace:
                    same(f"the gradient of {node.name()}", trace.array(ours), trace.array(theirs), [trace.array(grad)])
            return expected
        return found

    def _by_steps(self, trace: Eager, node: FunctionNode, grad: Tensor) -> Any:
        key = get_default_dtype(), grad._layout.origin or grad._layout
        known = self.known.get(key)
        if known is None and len(self.known) < KINDS and self.call.lock.acquire(blocking=False):
            try:
                self.call.filled()
                self.watched(trace, grad._layout)
            finally:
                self.call.emptied()
                self.call.lock.release()
            known = self.known.get(key)
        if not known:
            return None
        if not settings.verify:
            self.formulas = (known, *[other for other in self.formulas if other is not known][:3])
        return hot.gradients((known,), trace, node, grad)

    def watched(self, trace: Eager, view: Layout) -> bool:
        """Have the rule watched for gradients of a layout; whether there are steps."""
        node, values = self.call.nodes[self.number], self.call.values
        last = view.offset + sum((n - 1) * stride for n, stride in zip(view.shape, view.strides, strict=True))
        grad = wrap(realised(Buffer(np.ones(last + 1, view.dtype.np)), view), view)
        operands = (grad, *[wrap(x, x.layout) if x.__class__ is Storage else x for x in values])
        first = view.origin or view
        mask = sum((t is not None) << k for k, t in enumerate(node.next))

        def guards(given: list[int]) -> tuple[Any, ...] | None:
            uses = [k - 1 for k in given if k]
            if self.uses is None:
                self.uses = uses
            return (get_default_dtype(), mask, first, *[_guard(values[k]) for k in uses]) if uses == self.uses else None

        def apply() -> tuple[Any, ...]:
            return tuple(node.backward(node, [grad]) if node.__class__ is FunctionNode else apply_primitive(node, grad))

        before, local.state.grad = local.state.grad, False
        try:
            found, gradients = watch(trace, operands, apply, True)
        finally:
            local.state.grad = before
        made: Any = False
        if found is not None:
            try:
                made = found.superinstruction(gradients, guards)
            finally:
                found.forget()
        self.known[get_default_dtype(), first] = made and made[0]
        return bool(made)


def _zeros(view: Layout) -> Storage:
    """Memory for a tensor that is laid out so."""
    last = view.offset + sum((n - 1) * stride for n, stride in zip(view.shape, view.strides, strict=True))
    return realised(Buffer(np.zeros(last + 1 if view.numel else 0, view.dtype.np)), view)


def _before(target: Tensor) -> FunctionNode:
    """A node in the place of a leaf, whose gradients go there: another handle for the leaf has it."""
    node = function_node("AccumulateGrad", (), (target._layout,), lambda node, grads: (grads[0],))
    node.next = (target,)
    return node


def _become(value: Any, other: Any, version: int) -> None:
    """Give a value of a call the memory that another one has, which was saved at a version; other views of the value show it, too."""
    here, there = (x if x.__class__ is Storage else x._storage for x in (value, other))
    here.trace, here.slot, here.layout, here.buffer = there.trace, there.slot, there.layout, there.buffer
    here.home, here.writer = there.home, there.writer
    here.version += modified(there, version)
    if value.__class__ is not Storage and other.__class__ is not Storage:
        value._storage, value._layout = there, other._layout


def _alike(own: GradNode, twin: GradNode, nodes: list[Any]) -> list[tuple[Any, Any]]:
    """Nodes of a call, from one on, and those that its function has made in their places."""
    made = {id(n) for n in nodes}
    found, stack = {id(twin): (own, twin)}, [(own, twin)]
    while stack:
        a, b = stack.pop()
        for below in zip(a.next, b.next, strict=True):
            if id(below[1]) in made and id(below[1]) not in found:
                found[id(below[1])] = below
                stack.append(below)
    return list(found.values())


def _apart(call: WatchedCall, node: GradNode, use: int) -> bool:
    """Whether the rule of a node has only views of an operand, which go on to show what it was when `.data` is set."""
    if use >= len(call.shadows):
        return False
    inputs = node.context[0] if node.__class__ is FunctionNode and node.context is not None else ()  # of `nn.gradient.with_gradient`
    held = [*(node.saved or {}).values(), *inputs]
    same = [x for x in held if isinstance(x, Tensor) and x._storage is call.shadows[use]._storage]
    return bool(same) and not any(x is call.shadows[use] for x in same)


def _as_it_was(x: Tensor, target: Tensor | GradNode | None) -> Tensor:
    """An operand without its history, which wants a gradient if it did when the node was made."""
    other: Tensor = wrap(x._storage, x._layout)
    other._requires_grad = target is not None
    return other


def _operations(nodes: Sequence[Any]) -> list[str]:
    """What nodes are of. Whether a cat is called a stack depends on whether the nodes before it have the numbers before its own."""
    return [node.name().replace("StackBackward0", "CatBackward0") for node in nodes]


def _layout_of(x: Any) -> Any:
    return None if x is None else x.layout


def _guard(x: Any) -> Any:
    return x.layout if x.__class__ is Storage else x._layout.origin or x._layout


def nodes_of(found: Any, operands: Sequence[Any]) -> list[Any]:
    """The nodes of results, and those before them, but not of what the operands are computed from; in their order."""
    stack = [t._grad_fn for t in (found if isinstance(found, (tuple, list)) else (found,)) if isinstance(t, Tensor)]
    before = {id(x._grad_fn) for x in operands if isinstance(x, Tensor)}
    seen: dict[int, Any] = {}
    while stack:
        node = stack.pop()
        if isinstance(node, GradNode) and id(node) not in seen and id(node) not in before:
            seen[id(node)] = node
            stack.extend(node.next)
    return sorted(seen.values(), key=lambda node: node.number)


def graph_of(trace: Eager, watched: Watched, found: Any, call: WatchedCall) -> NodePlans | None:
    """The nodes that a call has made, with their rules watched; None if they are none that the compiled module makes."""
    nodes = nodes_of(found, call.shadows)
    places = {id(node): k for k, node in enumerate(nodes)}
    if not nodes:
        return NodePlans([], {})
    if len(nodes) > MOST_NODES or any(not isinstance(x, Tensor) for x in call.shadows):
        return None
    targets = {id(x): k for k, x in enumerate(call.shadows)} | {key: len(call.shadows) + k for key, k in places.items()}
    call.nodes = nodes
    call.values = call.made(watched, call.shadows)
    rules = [NodeSteps(call, k) for k in range(len(nodes))]
    plans = []
    for node, rule in zip(nodes, rules, strict=True):
        usual = node.__class__ is GradNode or (node.__class__ is FunctionNode and len(node.outputs) == 1)
        if not usual or node.hooks or node.retain is not None or not all(t is None or id(t) in targets for t in node.next):
            return None
        view = node.outputs[0] if node.__class__ is FunctionNode else node.edge.layout
        if not rule.watched(trace, dense_layout(tuple(view.shape), view.dtype, view.device)):
            return None
        assert rule.uses is not None
        if any(k >= len(watched.operands) + len(watched.members) for k in rule.uses):
            return None
        keeps = bool(rule.uses) or node.saved is not None or (node.__class__ is FunctionNode and node.context is not None)
        after, apart = tuple([-1 if t is None else targets[id(t)] for t in node.next]), tuple([_apart(call, node, k) for k in rule.uses])
        plans.append(NodePlan(node.name(), (view,), rule, after, tuple(rule.uses), apart, keeps))
    call.needed = watched.needed({use for plan in plans for use in plan.uses})
    call.emptied()
    return NodePlans(plans, places)


if hot is not None:
    hot.set_rules(NodeSteps)
