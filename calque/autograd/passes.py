"""Backward passes, recorded again without running their rules.

What a pass records is a function of the graph it walks: the edges of the trie behind its nodes, how they hang together and in which order they were
made, the values they saved and the gradients that leaves have. The second pass over the same graph at the same place of the trace is watched,
later ones are replays: the same operations, gradients and spent nodes. Graphs with hooks, retained gradients, functions of the user's or saved
values that were overwritten are walked as ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from operator import attrgetter
from types import CodeType
from typing import Any

from calque.autograd.dependencies import Dependencies, Unknown
from calque.autograd.engine import free
from calque.base.config import settings
from calque.observe.source import user_line
from calque.record.nodes import VIEW_RULE, CallNode, FunctionNode, GradNode, OutputNode
from calque.record.path import Counters
from calque.record.recorder import Storage
from calque.replay.capture import Changes, Counts
from calque.replay.stretches import Stretch, StretchCounts, Stretches, possible, verify, watch
from calque.tensor import TENSOR_TYPES, Tensor, wrap

COMPOSITES: dict[CodeType, int] = {}  # rules whose context is (inputs, their versions, values), and which cell holds the gradient's formula
_NODES = (GradNode, FunctionNode, OutputNode, CallNode)
_by_number = attrgetter("number")


class _Tables(threading.local):
    def __init__(self) -> None:
        self.passes = Stretches()
        self.gradients = Stretches()  # of passes that return gradients


_tables = _Tables()


class PassDependencies(Dependencies):
    """What a backward pass depends on; `nodes` in the order of the pass, `calls` of them are hybridized calls."""

    __slots__ = ("nodes", "leaves", "calls")

    def __init__(self) -> None:
        super().__init__()
        self.nodes: list[Any] = []
        self.leaves: list[Any] = []
        self.calls = 0

    def read(self, roots: Sequence[Tensor], given: Sequence[Any], keep: bool, wanted: Sequence[Tensor] | None = None) -> bool:
        """Look at everything; False if the pass has to be walked. `wanted`: leaves whose gradients it returns; None if it sets those of all."""
        self.parts += (keep, len(roots))
        try:
            numbers = self._collect(roots)
            for root, gradient in zip(roots, given, strict=True):
                self.parts += (numbers[id(root._grad_fn)], root._layout)
                self.value(gradient)
            if wanted is not None:
                self.parts.append([numbers.get(id(t)) for t in wanted])
            self._nodes(numbers)
            self._leaves(wanted is None)
        except Unknown:
            return False
        return True

    def _collect(self, roots: Sequence[Tensor]) -> dict[int, int | None]:
        """Find nodes and leaves; by id the position of a node, and of a leaf counted down from -1."""
        nodes, leaves = self.nodes, self.leaves
        numbers: dict[int, int | None] = {id(None): None}
        for root in roots:
            node: Any = root._grad_fn
            if node.__class__ not in _NODES:
                raise Unknown
            if id(node) not in numbers:
                numbers[id(node)] = 0  # until all are known
                nodes.append(node)
        for node in nodes:  # it grows
            for target in node.next:
                key = id(target)
                if key in numbers:
                    continue
                kind = target.__class__
                if kind in TENSOR_TYPES:
                    leaves.append(target)
                    numbers[key] = -len(leaves)
                elif kind in _NODES:
                    nodes.append(target)
                    numbers[key] = 0
                else:
                    raise Unknown
        nodes.sort(key=_by_number, reverse=True)
        for k, node in enumerate(nodes):
            numbers[id(node)] = k
        return numbers

    def _nodes(self, numbers: dict[int, int | None]) -> None:
        parts = self.parts
        for node in self.nodes:
            if node.retain is not None or node.freed or node.hooks:
                raise Unknown
            kind = node.__class__
            parts.append(len(node.next))
            for target in node.next:
                parts.append(numbers[id(target)])
            if kind is GradNode:
                parts.append(node.edge)
                if node.saved is not None:
                    self._check(node)
                    self.values(node.saved.values())
            elif kind is FunctionNode:
                self._rule(node)
            elif kind is CallNode:
                parts.append(node.outputs)
                node.context.told(self)
                self.calls += 1
            else:
                parts.append(node.index)

    def _rule(self, node: FunctionNode) -> None:
        parts = self.parts
        parts.append(node.outputs)
        rule, context = node.backward, node.context
        code = getattr(rule, "__code__", None)
        if code is VIEW_RULE:
            parts.append(rule.__closure__[0].cell_contents)  # type: ignore[index]
            return
        if node.saved:
            self._check(node)
        if context is None:
            self.value(rule)
            if node.saved:
                self.values(node.saved.values())
            return
        if code not in COMPOSITES:
            raise Unknown
        self.value(rule.__closure__[COMPOSITES[code]].cell_contents)  # type: ignore[index]
        self.values(context[0])
        self.values(context[2])

    @staticmethod
    def _check(node: GradNode) -> None:
        """Saved values must be what they were."""
        for value, version in zip(node.saved.values(), node.versions, strict=True):
            kind = value.__class__
            if (value._storage.version if kind in TENSOR_TYPES else value.version if kind is Storage else version) != version:
                raise Unknown

    def _leaves(self, held: bool) -> None:
        hooked = Changes.hooks  # whether a leaf ever had a hook
        for leaf in self.leaves:
            if not leaf._requires_grad or (hooked and (leaf._hooks or leaf.__dict__.get("_post_accumulate"))):
                raise Unknown
            self.parts.append(leaf._layout)
        if held:
            gradients: list[Any] = []
            for leaf in self.leaves:
                gradients.append(leaf._grad)
            self.values(gradients)

    # ----------------------------------------------------------------------------------------------------------- both ways

    def record(self, stretch: Stretch, walk: Callable[[], Any]) -> None:
        """Walk the graph, and learn from it."""
        had, place = [leaf._grad for leaf in self.leaves], self.trace.cur
        caches = self.caches()
        _, macro, capture = watch(self.cells, walk, False)
        if capture.segments and (capture.failed or len(capture.segments) > 1):  # cut, as it is long: it will be again
            _tables.passes.leave(place)
        if macro is None:  # among other reasons, as a gradient is sparse
            capture.release()
            return
        new = [k for k, (leaf, old) in enumerate(zip(self.leaves, had, strict=True)) if leaf._grad is not old]
        found = {id(st): k for k, st in enumerate(capture.storages)}
        grads = [(k, found.pop(id(self.leaves[k]._grad._storage), -1), self.leaves[k]._grad._layout) for k in new]
        if not macro.definitions and not found and all(place >= 0 for _, place, _ in grads):
            stretch.macro, stretch.result = macro, (grads, self._spent(), self.remembered(caches))
        capture.release()

    def record_gradients(self, stretch: Stretch, walk: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
        """Walk the graph, and learn from it; the gradients that are wanted."""
        caches, place = self.caches(), self.trace.cur
        values, macro, capture = watch(self.cells, walk, False)
        if len(capture.segments) > 1:
            _tables.gradients.leave(place)
        if macro is not None and all(v is not None for v in values) and not macro.definitions:
            results = self.results(values, capture.storages)
            if results is not None:
                stretch.macro, stretch.result = macro, (results, self._spent(), self.remembered(caches))
        capture.release()
        return values  # type: ignore[no-any-return]

    def _spent(self) -> list[int]:
        return [k for k, node in enumerate(self.nodes) if node.freed]

    def replay(self, stretch: Stretch) -> None:
        """Do what the walk would do."""
        leaves, created = self.leaves, stretch.macro.replay(self.trace, self.cells, [])  # type: ignore[union-attr]
        for k, place, layout in stretch.result[0]:
            leaves[k]._grad = wrap(created[place], layout)
        self._end(stretch)

    def replay_gradients(self, stretch: Stretch) -> tuple[Any, ...]:
        """Do what the walk would do; the gradients that are wanted."""
        values = self.results_of(stretch.result[0], stretch.macro.replay(self.trace, self.cells, []))  # type: ignore[union-attr]
        self._end(stretch)
        return values

    def _end(self, stretch: Stretch) -> None:
        """What handles remember and what is spent after a replay."""
        _, spent, seen = stretch.result
        if seen:
            self.remember(seen)
        if spent:
            line = user_line()
            for k in spent:
                free(self.nodes[k], line)
        StretchCounts.replays += 1
        Counts.replays += self.calls


def _plain(roots: Sequence[Any], given: Sequence[Any]) -> bool:
    """Whether a pass may begin with these tensors and gradients as they are."""
    if not possible() or len(roots) != len(given):
        return False
    for root, gradient in zip(roots, given, strict=True):
        if not isinstance(root, Tensor) or root._grad_fn is None or (gradient is None and root._layout.numel != 1):
            return False
        if gradient is not None and (gradient.__class__ not in TENSOR_TYPES or gradient._layout.shape != root._layout.shape):
            return False
    return True


def backward_again(roots: Sequence[Any], given: Sequence[Any], keep: bool, walk: Callable[[], Any]) -> bool:
    """A backward pass by a replay, or under a recording; False if nothing was done: `walk` is still to be called."""
    passes = _tables.passes
    if not _plain(roots, given) or passes.left():
        return False
    if Counters.loose and not passes.met():  # where programs do not repeat, a place that was never met does not pay for looking at the graph
        return False
    graph = PassDependencies()
    if not graph.read(roots, given, keep):
        return False
    stretch = _tables.passes.here(graph.parts)
    if stretch.macro is not None and stretch.macro.fits(graph.trace, graph.cells):
        if settings.verify:
            verify(stretch.macro, graph.cells, walk, False, "a backward pass")
        else:
            graph.replay(stretch)
    elif stretch.due():
        graph.record(stretch, walk)
    else:
        return False
    return True


def gradients_again(
    roots: Sequence[Any], given: Sequence[Any], wanted: Sequence[Tensor], keep: bool, walk: Callable[[], tuple[Any, ...]]
) -> tuple[Any, ...] | None:
    """The gradients of leaves by a replay, or under a recording; None if nothing was done: `walk` is still to be called."""
    if not _plain(roots, given) or any(t._grad_fn is not None for t in wanted) or _tables.gradients.left():
        return None
    graph = PassDependencies()
    if not graph.read(roots, given, keep, wanted):
        return None
    stretch = _tables.gradients.here(graph.parts)
    if stretch.macro is not None and stretch.macro.fits(graph.trace, graph.cells):
        if settings.verify:
            return verify(stretch.macro, graph.cells, walk, False, "a pass for gradients")  # type: ignore[no-any-return]
        return graph.replay_gradients(stretch)
    return graph.record_gradients(stretch, walk) if stretch.due() else None
