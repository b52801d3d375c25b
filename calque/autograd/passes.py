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
from calque.record.nodes import VIEW_RULE, CallNode, FunctionNode, GradNode, Handle, OutputNode
from calque.record.recorder import Storage
from calque.replay.counts import Changes, Counts
from calque.replay.stretches import Stretch, StretchCounts, Stretches, may_replay, record_call, verify
from calque.tensor import TENSOR_TYPES, Tensor

COMPOSITES: dict[CodeType, int] = {}  # rules whose context is (inputs, their versions, values), and which cell holds the gradient's formula
_NODES = (GradNode, FunctionNode, Handle, OutputNode, CallNode)
_by_number = attrgetter("number")


class _Tables(threading.local):
    def __init__(self) -> None:
        self.passes = Stretches()


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
            elif kind is FunctionNode or kind is Handle:
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

    def record(self, stretch: Stretch, walk: Callable[[], Any], held: bool) -> Any:
        """Walk the graph, and learn from it. `held`: it gives leaves their gradients; else it returns them."""
        had, place = [leaf._grad for leaf in self.leaves] if held else [], self.trace.cur
        caches = self.caches()
        returned, macro, capture = record_call(self.cells, walk, False)
        if capture.segments and (capture.failed or len(capture.segments) > 1):  # cut, as it is long: it will be again
            _tables.passes.leave(place)
        if macro is not None and not macro.definitions:  # there is none if, among other reasons, a gradient is sparse
            new = [k for k, old in enumerate(had) if self.leaves[k]._grad is not old]
            values = [self.leaves[k]._grad for k in new] if held else returned
            results = None if any(v is None for v in values) else self.results(values, capture.storages)
            if results is not None:
                spent = [k for k, node in enumerate(self.nodes) if node.freed]
                stretch.macro, stretch.result = macro, (results, new, spent, self.remembered(caches))
        capture.release()
        return returned

    def replay(self, stretch: Stretch, held: bool) -> tuple[Any, ...] | None:
        """Do what the walk would do."""
        results, new, spent, seen = stretch.result
        values = self.results_of(results, stretch.macro.replay(self.trace, self.cells, []))  # type: ignore[union-attr]
        if held:
            for k, gradient in zip(new, values, strict=True):
                self.leaves[k]._grad = gradient
        if seen:
            self.remember(seen)
        if spent:
            line = user_line()
            for k in spent:
                free(self.nodes[k], line)
        StretchCounts.replays += 1
        Counts.replays += self.calls
        return None if held else values


def _plain(roots: Sequence[Any], given: Sequence[Any]) -> bool:
    """Whether a pass may begin with these tensors and gradients as they are."""
    if not may_replay() or len(roots) != len(given):
        return False
    for root, gradient in zip(roots, given, strict=True):
        if not isinstance(root, Tensor) or root._grad_fn is None or (gradient is None and root._layout.numel != 1):
            return False
        if gradient is not None and (gradient.__class__ not in TENSOR_TYPES or gradient._layout.shape != root._layout.shape):
            return False
    return True


NOT_DONE: Any = object()


def pass_again(roots: Sequence[Any], given: Sequence[Any], keep: bool, walk: Callable[[], Any], wanted: Sequence[Tensor] | None = None) -> Any:
    """What `walk` returns, by a replay, or under a recording; `NOT_DONE` if it is still to be called. `wanted`: leaves whose gradients it returns; if
    None it gives all leaves theirs."""
    passes, held = _tables.passes, wanted is None
    if not _plain(roots, given) or any(t._grad_fn is not None for t in wanted or ()) or passes.left():
        return NOT_DONE
    if not passes.met():  # where programs do not repeat, a place that was never met does not pay for looking at the graph
        return NOT_DONE
    graph = PassDependencies()
    if not graph.read(roots, given, keep, wanted):
        return NOT_DONE
    stretch = passes.here(graph.parts)
    if stretch.macro is not None and stretch.macro.fits(graph.trace, graph.cells):
        return verify(stretch.macro, graph.cells, walk, False, "a backward pass") if settings.verify else graph.replay(stretch, held)
    return graph.record(stretch, walk, held) if stretch.due() else NOT_DONE
