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
from types import CodeType, FunctionType, MethodType
from typing import Any

from calque.autograd.engine import free
from calque.base.device import Device
from calque.base.dtypes import DType, get_default_dtype
from calque.base.layout import Layout
from calque.ops.opdef import OpDef
from calque.run.nodes import VIEW_RULE, FunctionNode, GradNode, OutputNode
from calque.run.recorder import Storage, Trace, local
from calque.run.source import user_line
from calque.run.stretches import Stretch, StretchCounts, Stretches, possible, watch
from calque.tensor import TENSOR_TYPES, Tensor, wrap

COMPOSITES: set[CodeType] = set()  # rules whose context is (inputs, their versions, values)
_PLAIN = (bool, int, str, type(None), Layout, DType, Device, OpDef)
_DEPTH = 8
_by_number = attrgetter("number")


class _Tables(threading.local):
    def __init__(self) -> None:
        self.passes = Stretches()


_tables = _Tables()


class _Unknown(Exception):
    """Something in the graph is not understood."""


class Graph:
    """What a backward pass depends on: `parts` compared with those of a recording, `cells` the storages, `nodes` in the order of the pass."""

    __slots__ = ("parts", "cells", "places", "views", "nodes", "leaves", "trace")

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.parts: list[Any] = []
        self.cells: list[Any] = []
        self.places: dict[int, int] = {}
        self.views: list[Tensor] = []  # handles that remember their slot in the trace
        self.nodes: list[Any] = []
        self.leaves: list[Any] = []

    def read(self, roots: Sequence[Tensor], given: Sequence[Any], keep: bool) -> bool:
        """Look at everything; False if the pass has to be walked."""
        state = local.state
        self.parts += (keep, state.autocast, state.device, get_default_dtype(), len(roots))
        try:
            self._collect(roots)
            numbers: dict[int, Any] = {id(None): None}
            for k, node in enumerate(self.nodes):
                numbers[id(node)] = k
            for k, leaf in enumerate(self.leaves):
                numbers[id(leaf)] = -1 - k
            for root, gradient in zip(roots, given, strict=True):
                self.parts += (numbers[id(root._grad_fn)], root._layout)
                self._value(gradient)
            for node in self.nodes:
                self._node(node, numbers)
            for leaf in self.leaves:
                self._leaf(leaf)
        except _Unknown:
            return False
        return True

    def _collect(self, roots: Sequence[Tensor]) -> None:
        nodes, leaves = self.nodes, self.leaves
        seen: set[int] = set()
        stack: list[Any] = [root._grad_fn for root in roots]
        while stack:
            item = stack.pop()
            if item is None or id(item) in seen:
                continue
            seen.add(id(item))
            if item.__class__ in TENSOR_TYPES:
                leaves.append(item)
                continue
            if not isinstance(item, GradNode) or item.hooks or item.retain is not None or item.freed:
                raise _Unknown
            nodes.append(item)
            stack += item.next
        nodes.sort(key=_by_number, reverse=True)

    def _node(self, node: Any, numbers: dict[int, Any]) -> None:
        parts = self.parts
        kind = node.__class__
        parts.append(tuple([numbers[id(target)] for target in node.next]))
        if kind is GradNode:
            parts.append(node.edge)
            self._saved(node, True)
        elif kind is FunctionNode:
            parts.append(node.outputs)
            rule = node.backward
            code = getattr(rule, "__code__", None)
            if code is VIEW_RULE:
                parts.append(rule.__closure__[0].cell_contents)
            else:
                self._value(rule)
                self._context(node, code)
        elif kind is OutputNode:
            parts.append(node.index)
        else:
            raise _Unknown

    def _context(self, node: Any, code: Any) -> None:
        context = node.context
        self._saved(node, context is None)
        if context is None:
            return
        if code not in COMPOSITES:
            raise _Unknown
        for group in (context[0], context[2]):
            self.parts.append(len(group))
            for value in group:
                self._value(value)

    def _saved(self, node: Any, described: bool) -> None:
        """Saved values, which must be what they were."""
        if not node.saved:
            return
        for value, version in zip(node.saved.values(), node.versions, strict=True):
            kind = value.__class__
            if (value._storage.version if kind in TENSOR_TYPES else value.version if kind is Storage else version) != version:
                raise _Unknown
            if described:
                self._value(value)

    def _leaf(self, leaf: Any) -> None:
        if leaf._hooks or leaf.__dict__.get("_post_accumulate"):
            raise _Unknown
        self.parts.append(leaf._layout)
        self._value(leaf._grad)

    def _tensor(self, t: Any) -> None:
        storage, view = t._storage, t._layout
        self._storage(storage)
        self.parts.append(view)
        if view is not storage.layout:
            cache = t._cache
            current = cache is not None and cache[0] is self.trace and storage.trace is self.trace and cache[1] == storage.slot
            self.parts += (storage.layout, cache[2] if current else -1)
            self.views.append(t)

    def _storage(self, storage: Storage) -> None:
        number = self.places.get(id(storage))
        if number is None:
            number = self.places[id(storage)] = len(self.cells)
            self.cells.append(storage)
        self.parts.append(number)

    def _value(self, value: Any, depth: int = 0) -> None:
        """Add what tells a value from others."""
        kind = value.__class__
        parts = self.parts
        parts.append(kind)
        if kind in TENSOR_TYPES:
            self._tensor(value)
        elif kind in _PLAIN:
            parts.append(value)
        elif kind is float:
            parts.append(value or str(value))  # the zeros differ
        elif kind is Storage:
            self._storage(value)
        elif depth > _DEPTH:
            raise _Unknown
        elif kind is tuple or kind is list:
            parts.append(len(value))
            for item in value:
                self._value(item, depth + 1)
        elif kind is FunctionType and value.__module__.startswith("calque.") and value.__kwdefaults__ is None:
            parts.append(value.__code__)
            for content in value.__defaults__ or ():
                self._value(content, depth + 1)
            for cell in value.__closure__ or ():
                self._value(cell.cell_contents, depth + 1)
        elif kind is MethodType:
            parts.append(value.__func__)
            self._value(value.__self__, depth + 1)
        else:
            self._object(value, depth)

    def _object(self, value: Any, depth: int) -> None:
        """An object of ours that says what it depends on: `facts` are plain, `held` tensors."""
        facts = getattr(value, "facts", None) if value.__class__.__module__.startswith("calque.") else None
        if facts.__class__ is not tuple:
            raise _Unknown
        self.parts.append(facts)
        for item in value.held:
            self._value(item, depth + 1)

    # ----------------------------------------------------------------------------------------------------------- both ways

    def record(self, stretch: Stretch, walk: Callable[[], Any]) -> None:
        """Walk the graph, and learn from it."""
        had = [leaf._grad for leaf in self.leaves]
        caches = [t._cache for t in self.views]
        _, macro, capture = watch(self.cells, walk, False)
        new = [k for k, (leaf, old) in enumerate(zip(self.leaves, had, strict=True)) if leaf._grad is not old]
        found = {id(st): k for k, st in enumerate(capture.storages)}
        grads = [(k, found.pop(id(self.leaves[k]._grad._storage), -1), self.leaves[k]._grad._layout) for k in new]
        if macro is not None and not macro.definitions and not capture.mixed and not found and all(place >= 0 for _, place, _ in grads):
            spent = [k for k, node in enumerate(self.nodes) if node.freed]
            seen = [(k, *t._cache[1:]) for k, (t, old) in enumerate(zip(self.views, caches, strict=True)) if t._cache is not old]
            stretch.macro, stretch.result = macro, (grads, spent, seen)
        capture.release()

    def replay(self, stretch: Stretch) -> None:
        """Do what the walk would do."""
        macro: Any = stretch.macro
        grads, spent, seen = stretch.result
        trace, leaves, nodes = self.trace, self.leaves, self.nodes
        created = macro.replay(trace, self.cells, [])
        for k, place, layout in grads:
            leaves[k]._grad = wrap(created[place], layout)
        for k, base, slot in seen:
            self.views[k]._cache = (trace, base, slot)
        if spent:
            line = user_line()
            for k in spent:
                free(nodes[k], line)
        StretchCounts.replays += 1


def backward_again(roots: Sequence[Any], given: Sequence[Any], keep: bool, walk: Callable[[], Any]) -> bool:
    """A backward pass by a replay, or under a recording; False if nothing was done: `walk` is still to be called."""
    if not possible() or len(roots) != len(given):
        return False
    for root, gradient in zip(roots, given, strict=True):
        if not isinstance(root, Tensor) or root._grad_fn is None or (gradient is None and root._layout.numel != 1):
            return False
        if gradient is not None and (gradient.__class__ not in TENSOR_TYPES or gradient._layout.shape != root._layout.shape):
            return False
    state = local.state
    graph = Graph(state.trace)
    if not graph.read(roots, given, keep):
        return False
    stretch = _tables.passes.here(graph.parts)
    if stretch.macro is not None and stretch.macro.fits(state.trace, graph.cells):
        graph.replay(stretch)
    elif stretch.due():
        graph.record(stretch, walk)
    else:
        return False
    return True
