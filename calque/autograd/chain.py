"""The graph of library code that was recorded again: one node, in the place of its last, until somebody looks at the nodes.

`ChainGraph` remembers how the graph hangs together. A `Chain` stands for all nodes of one replay; whoever asks it for more than its name finds it
changed into the last node of the real graph. Backward passes that are replays themselves (`autograd/passes.py`) never ask.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

from calque.record.nodes import VIEW_RULE, FunctionNode, GradNode, view_rule
from calque.record.recorder import Storage, Trace, local
from calque.tensor import TENSOR_TYPES, Tensor, _sequence, alias, wrap

_new: Any = object.__new__
_PLAIN = (bool, int, float)


class Unfit(Exception):
    """The graph has something that a template cannot make again."""


class ChainGraph:
    """A graph from an input and parameters to one result. A source of a value is a pair: ("given", 0 for the input or k for parameter k), ("created",
    number of a new storage), ("handle", number among `handles`) or ("plain", value).

    `steps`: of each node, in order, (edge, targets, saved, label, outputs, what maps the gradient of a view); a target is something given or
    ("node", number). `handles`: (source or storage that is shown, layout, whether it requires a gradient, node, (base slot, slot) it remembers).
    `targets`: numbers of what is given that gradients go to; `needed`: of what is given that is saved; `kept`: new storages that are saved.
    """

    def __init__(self, out: Tensor, given: list[Any], created: list[Storage], first: int) -> None:
        self.given = {id(t): k for k, t in enumerate(given)}
        self.ends = {id(t._grad_fn or t): k for k, t in enumerate(given)}
        self.created = {id(st): k for k, st in enumerate(created)}
        self.trace = local.state.trace
        self.nodes = self._collect(out._grad_fn, first)
        self.places = {id(node): k for k, node in enumerate(self.nodes)}
        self.handles: list[Any] = []
        self._handle_of: dict[int, int] = {}
        self.steps = [self._step(node) for node in self.nodes]
        if self.nodes[-1] is not out._grad_fn or self.nodes[-1].__class__ is not GradNode or any(st.version for st in created):
            raise Unfit
        self.edge = self.nodes[-1].edge
        self.count = len(self.nodes)
        sources = [ref for step in self.steps for ref in (step[2] or {}).values()] + [handle[0] for handle in self.handles]
        targets = [ref for step in self.steps for ref in step[1] if ref is not None]
        self.targets = sorted({ref[1] for ref in targets if ref[0] == "given"})
        self.needed = sorted({ref[1] for ref in sources if ref[0] == "given"})
        self.kept = sorted({ref[1] for ref in sources if ref[0] == "created"})
        del self.given, self.ends, self.created, self.trace, self.nodes, self.places, self._handle_of

    def _collect(self, root: GradNode | None, first: int) -> list[Any]:
        found: dict[int, Any] = {}
        stack = [root]
        while stack:
            node = stack.pop()
            if node is None or id(node) in self.ends or id(node) in found:
                continue
            if node.__class__ not in (GradNode, FunctionNode) or node.number < first or node.hooks or node.retain is not None or node.freed:
                raise Unfit
            found[id(node)] = node
            stack += node.next
        nodes = sorted(found.values(), key=lambda node: node.number)
        if [node.number - nodes[0].number for node in nodes] != list(range(len(nodes))):
            raise Unfit  # others were made in between, and are kept somewhere
        return nodes

    def _step(self, node: GradNode) -> tuple[Any, ...]:
        ends, places = self.ends, self.places
        targets = tuple([None if t is None else ("given", ends[id(t)]) if id(t) in ends else ("node", places[id(t)]) for t in node.next])
        if node.__class__ is GradNode:
            saved = None if node.saved is None else {place: self._source(value) for place, value in node.saved.items()}
            return node.edge, targets, saved, "", (), None
        assert isinstance(node, FunctionNode)
        if getattr(node.backward, "__code__", None) is not VIEW_RULE or node.saved is not None or node.context is not None:
            raise Unfit
        return node.edge, targets, None, node.label, node.outputs, node.backward.__closure__[0].cell_contents  # type: ignore[index]

    def _source(self, value: Any) -> tuple[str, Any]:
        kind = value.__class__
        if kind in _PLAIN:
            return "plain", value
        if kind is Storage:
            if id(value) not in self.created:
                raise Unfit
            return "created", self.created[id(value)]
        if kind not in TENSOR_TYPES:
            raise Unfit
        if id(value) in self.given:
            return "given", self.given[id(value)]
        if id(value) not in self._handle_of:
            handle = self._handle(value)
            self._handle_of[id(value)] = len(self.handles)
            self.handles.append(handle)
        return "handle", self._handle_of[id(value)]

    def _handle(self, t: Tensor) -> tuple[Any, ...]:
        if t.__class__ is not Tensor or t.__dict__ or t._hooks or t._grad is not None:
            raise Unfit
        cache = t._cache
        if cache is not None and cache[0] is not self.trace:
            raise Unfit
        source = self._source(t._storage if t._base is None else t._base)
        node = self.places.get(id(t._grad_fn), -1)
        if (t._grad_fn is not None and node < 0) or (t._base is None and source[0] != "created"):
            raise Unfit
        return source, t._layout, t._requires_grad, node, None if cache is None else cache[1:]

    # -------------------------------------------------------------------------------------------------------------- using

    def node(self, given: list[Any], created: list[Storage], trace: Trace) -> Chain:
        """The chain of a replay, which has made the storages `created`."""
        made, held = _new(Chain), _new(Held)
        held.template, held.trace, held.freed = self, trace, ""
        held.ends = ends = {}
        for k in self.targets:  # loops: each comprehension is a function of its own, cold at every step
            t = given[k]
            ends[k] = t._grad_fn or t
        held.needed = needed = {}
        for k in self.needed:
            t = given[k]
            storage = t._storage
            needed[k] = (t, storage, storage.version)
        held.kept = kept = {}
        for k in self.kept:
            kept[k] = created[k]
        _NUMBER(made, next(islice(_sequence, self.count - 1, None)))
        _EDGE(made, self.edge)
        _SAVED(made, held)
        return made


class Held:
    """What a chain keeps. By number of what was given: `ends`, where gradients go, and `needed`, (handle, its storage, the version of that);
    `kept`: new storages; `freed`: the line of the pass that used it."""

    __slots__ = ("template", "ends", "needed", "kept", "trace", "freed")
    template: ChainGraph
    ends: dict[int, Any]
    needed: dict[int, Any]
    kept: dict[int, Storage]
    trace: Trace
    freed: str

    def intact(self) -> bool:
        """Whether everything saved is what it was."""
        for t, storage, version in self.needed.values():
            if t._storage is not storage or storage.version != version:
                return False
        for storage in self.kept.values():
            if storage.version:
                return False
        return True

    def free(self, line: str) -> None:
        """Forget what is saved, for the pass started on `line`."""
        self.needed, self.kept, self.freed = {}, {}, line or "an earlier call"

    # ------------------------------------------------------------------------------------------------------ the real nodes

    def nodes(self, last: Chain) -> list[Any]:
        """The nodes that the code would have made; `last`, which is the last of them, becomes what it stands for."""
        template, first = self.template, last.number - self.template.count + 1
        nodes = [_new(GradNode if step[5] is None else FunctionNode) for step in template.steps[:-1]]
        last.__class__ = GradNode  # type: ignore[assignment]
        nodes.append(last)
        handles = [] if self.freed else self._handles(nodes)
        for k, (node, step) in enumerate(zip(nodes, template.steps, strict=True)):
            node.edge, targets, saved, label, outputs, rule = step
            node.number, node.hooks, node.retain, node.saved, node.versions, node.freed = first + k, None, None, None, (), ""
            node.next = tuple([None if ref is None else nodes[ref[1]] if ref[0] == "node" else self.ends[ref[1]] for ref in targets])
            if rule is not None:
                node.backward, node.label, node.outputs, node.where, node.context = view_rule(rule), label, outputs, "", None
            elif saved is not None and self.freed:
                node.freed = self.freed
            elif saved is not None:
                node.saved = {place: self._value(ref, handles) for place, ref in saved.items()}
                node.versions = [self._version(ref) for ref in saved.values()]
        return nodes

    def _handles(self, nodes: list[Any]) -> list[Any]:
        handles: list[Any] = []
        for source, view, needs, node, cache in self.template.handles:
            shown = self._value(source, handles)
            t = wrap(shown, view) if shown.__class__ is Storage else alias(shown, view)
            if source[0] == "given":  # which may show other memory by now
                t._storage = self.needed[source[1]][1]
            t._requires_grad, t._grad_fn = needs, nodes[node] if node >= 0 else None
            t._cache = None if cache is None else (self.trace, *cache)
            handles.append(t)
        return handles

    def _value(self, ref: tuple[str, Any], handles: list[Any]) -> Any:
        kind, which = ref
        if kind == "plain":
            return which
        return handles[which] if kind == "handle" else self.needed[which][0] if kind == "given" else self.kept[which]

    def _version(self, ref: tuple[str, Any]) -> int:
        """The version that a value had when it was saved; new storages began at 0."""
        while ref[0] == "handle":
            ref = self.template.handles[ref[1]][0]
        version: int = self.needed[ref[1]][2] if ref[0] == "given" else 0
        return version


class Chain(GradNode):
    """All nodes of a replay, as its last one."""

    __slots__ = ()


_slots: dict[str, Any] = dict(vars(GradNode))  # a chain hides the fields that are not set in it
_NUMBER, _EDGE, _SAVED = _slots["number"].__set__, _slots["edge"].__set__, _slots["saved"].__set__
held_by: Callable[[Chain], Held] = _slots["saved"].__get__
"""What a chain keeps."""


def expand(chain: Chain) -> list[Any]:
    """Turn a chain into the nodes that it stands for, in the order in which they were made."""
    return held_by(chain).nodes(chain)


def _shown(name: str) -> property:
    """A field of the real node, which takes the place of the chain as soon as somebody looks."""

    def get(self: Chain) -> Any:
        expand(self)
        return getattr(self, name)

    def put(self: Chain, value: Any) -> None:
        expand(self)
        setattr(self, name, value)

    return property(get, put)


for _name in ("next", "saved", "versions", "hooks", "retain", "freed"):
    setattr(Chain, _name, _shown(_name))
