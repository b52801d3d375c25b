"""The graph of one hybridized call, node by node: what its gradient is recorded from, and what gradients of gradients need.

The template of the call's recording is copied with the storages, numbers and inputs of the call at hand in place of the recorded ones.
"""

from __future__ import annotations

import copy
import functools
import types
import weakref
from collections.abc import Sequence
from typing import Any

from calque.base.layout import Layout
from calque.record.live import LIVE, plain
from calque.record.recorder import Storage
from calque.tensor import FunctionNode, GradNode, OutputNode, Tensor, function_node, next_number, wrap

_PLAIN = (type, types.ModuleType, types.CodeType, types.BuiltinFunctionType, str, bytes, int, float, complex, bool, slice, range, type(None))


class GraphCopy:
    """Copies of a template's nodes. `targets`: where the gradients of its leaves go in the caller's graph; `again`: they can be differentiated again;
    `caches`: by id of a handle, what its copy remembers."""

    def __init__(
        self, leaves: Sequence[Any], targets: Sequence[Any], storages: dict[int, Storage], handles: dict[int, tuple[Storage, Any]], kept: set[int],
        again: bool,
    ) -> None:  # fmt: skip
        self.storages, self.handles, self.kept = storages, handles, kept
        self.caches: dict[int, Any] = {}
        self.inputs: list[Any] = []  # one node per leaf; gradients stop there
        self.ends: dict[int, Any] = {}
        self.memo: dict[int, Any] = {}
        self.held: list[Any] = []  # ids are theirs as long as they live
        for leaf, target in zip(leaves, targets, strict=True):
            node = function_node("HybridInput", (), (_layout_of(leaf),), lambda node, grads: (grads[0],))
            node.next = (target,)
            self.inputs.append(node)
            self.ends[id(leaf)] = node
            if again and isinstance(leaf, Tensor) and isinstance(target, Tensor):
                self.memo[id(leaf)] = target

    def nodes(self, nodes: Sequence[Any], values: dict[int, dict[int, Any]]) -> None:
        """Copy the nodes; `values`: numbers that they keep for their gradients, by id of the node."""
        ordered = sorted(nodes, key=lambda node: node.number)
        for node in ordered:
            made: Any = object.__new__(type(node))
            made.edge, made.hooks, made.retain, made.freed, made.number = node.edge, None, None, "", next_number()
            made.saved, made.versions = None, ()
            self.memo[id(node)] = made
        for node in ordered:
            made = self.memo[id(node)]
            made.next = tuple(self._target(t) for t in node.next)
            if isinstance(node, OutputNode):
                made.index = node.index
            if node.saved is not None:
                made.saved = {place: self.value(v) for place, v in node.saved.items()} | values.get(id(node), {})
                made.versions = tuple(_version(v) for v in made.saved.values())
            if isinstance(node, FunctionNode):
                made.label, made.outputs, made.where = node.label, node.outputs, node.where
                made.backward, made.context = self.value(node.backward), self.value(node.context)

    def _target(self, target: GradNode | Tensor | None) -> GradNode | Tensor | None:
        if target is None:
            return None
        found = self.ends.get(id(target))
        return self.memo[id(target)] if found is None else found

    def value(self, item: Any) -> Any:
        """Something that a node keeps, with the tensors of this call."""
        found = self.memo.get(id(item))
        if found is not None:
            return found
        made = self._made(item)
        self.memo[id(item)] = made
        self.held.append(item)
        return made

    def _made(self, item: Any) -> Any:
        kind = item.__class__
        if kind in LIVE:
            return plain(item)
        if isinstance(item, _PLAIN) or id(item) in self.kept:
            return item
        return self._kept(item, kind)

    def _kept(self, item: Any, kind: type) -> Any:
        if isinstance(item, Storage):
            return self.storages.get(id(item), item)
        if isinstance(item, Tensor):
            return self._tensor(item)
        if isinstance(item, GradNode):
            return self._target(item)
        if kind in (types.FunctionType, types.MethodType, functools.partial, weakref.ref):
            return self._callable(item, kind)
        if kind in (list, tuple):
            return kind([self.value(x) for x in item])
        if isinstance(item, tuple) and hasattr(item, "_fields"):
            return kind(*[self.value(x) for x in item])
        if kind is dict:
            return {k: self.value(v) for k, v in item.items()}
        return self._object(item)

    def _callable(self, item: Any, kind: type) -> Any:
        if kind is weakref.ref:
            held = item()
            return item if held is None else weakref.ref(self.value(held))
        if kind is types.FunctionType:
            return self._function(item)
        if kind is types.MethodType:
            return types.MethodType(item.__func__, self.value(item.__self__))
        named = {k: self.value(v) for k, v in item.keywords.items()}
        return functools.partial(self.value(item.func), *[self.value(a) for a in item.args], **named)

    def _tensor(self, t: Tensor) -> Tensor:
        storage, view = self.handles.get(id(t)) or (self.storages.get(id(t._storage)), t._layout)
        if storage is None:
            return t
        made: Tensor = wrap(storage, view, type(t))
        made._requires_grad, made._cache = t._requires_grad, self.caches.get(id(t))
        if t._grad_fn is not None:
            made._grad_fn = self.value(t._grad_fn)
        return made

    def _function(self, function: Any) -> Any:
        if not function.__closure__ and not function.__defaults__:
            return function
        cells = tuple(types.CellType(self.value(cell.cell_contents)) for cell in function.__closure__ or ())
        defaults = tuple(self.value(d) for d in function.__defaults__ or ())
        made = types.FunctionType(function.__code__, function.__globals__, function.__name__, defaults or None, cells or None)
        made.__kwdefaults__ = self.value(function.__kwdefaults__) if function.__kwdefaults__ else None
        return made

    def _object(self, item: Any) -> Any:
        """A copy of a context or kernel: its attributes, wherever they are kept."""
        slots = [name for kind in type(item).__mro__ for name in getattr(kind, "__slots__", ()) if name not in ("__weakref__", "__dict__")]
        attributes = {name: getattr(item, name) for name in slots if hasattr(item, name)} | dict(getattr(item, "__dict__", {}))
        if not attributes:
            return item
        made = copy.copy(item)
        self.memo[id(item)] = made
        for name, value in attributes.items():
            object.__setattr__(made, name, self.value(value))
        return made


def _layout_of(leaf: Tensor | FunctionNode) -> Layout:
    return leaf._layout if isinstance(leaf, Tensor) else leaf.outputs[0]


def _version(value: Any) -> int:
    return value._storage.version if isinstance(value, Tensor) else value.version if isinstance(value, Storage) else 0
