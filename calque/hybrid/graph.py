"""The autograd graph of a hybridized call: recorded once as a template, used again by every replay.

A replayed call is one node of the caller's graph. Its saved values are the storages that the replay made; the node's backward is a region of
its own: the first time it walks a copy of the template for this call (`graph_copy.py`), later it replays what that recorded.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from calque.autograd.dependencies import Dependencies, Unknown
from calque.autograd.engine import Total, run_backward, second_time
from calque.base.dtypes import float32
from calque.base.errors import AutogradError
from calque.base.layout import Layout, dense_layout
from calque.hybrid.graph_copy import GraphCopy
from calque.hybrid.region import Region
from calque.observe.source import user_site
from calque.ops.opdef import OpDef
from calque.record.live import LiveFloat
from calque.record.nodes import VIEW_RULE, CallNode, OutputNode
from calque.record.path import Edge
from calque.record.places import path_of
from calque.record.recorder import VIEW, Storage, local, realised
from calque.record.threads import SECTION
from calque.record.versions import modified
from calque.replay.counts import Counts
from calque.replay.effects import numbers
from calque.run.buffer import Buffer
from calque.tensor import FunctionNode, GradNode, Tensor, _sequence, function_node, output_nodes

_VERSION, _STORAGE, _LAYOUT = attrgetter("version"), attrgetter("_storage"), attrgetter("layout")
_FIELDS = ("trace", "slot", "layout", "buffer", "home", "version", "writer")
_new: Any = object.__new__
FRAMES = 5  # of ours below the user's, at least: attach, given, what replays, what finds it, the call
_NOTHING = realised(Buffer(np.zeros(0, np.float32)), dense_layout((0,), float32))
_NO_NODES: frozenset[int] = frozenset()
_NO_VIEWS: dict[int, tuple[Layout, Layout]] = {}
_OPAQUE = (type, types.ModuleType, types.CodeType, GradNode, Edge, OpDef, Layout, str, int, float)


def _saved(node: GradNode) -> list[Tensor | Storage]:
    """What a node has saved whose version it checks."""
    return [v for v in (node.saved or {}).values() if isinstance(v, (Tensor, Storage))]


def _memory(value: Tensor | Storage) -> Storage:
    return value._storage if isinstance(value, Tensor) else value


def _versions(node: GradNode) -> list[int]:
    """The versions that those had."""
    values = (node.saved or {}).values()
    return [version for v, version in zip(values, node.versions, strict=True) if isinstance(v, (Tensor, Storage))]


def _is_view(node: GradNode) -> bool:
    return isinstance(node, FunctionNode) and node.context is None and getattr(node.backward, "__code__", None) is VIEW_RULE


class Unsupported(Exception):
    """The graph cannot be used again; the text says why."""


class Call:
    """What one call keeps for its gradient. `values`: cells and new storages that the graph of its `template` needs; `versions`: of those that have
    to stay as they are; `trace`: where it was recorded; `numbers`: of the call; `asked`: nodes that the last pass has used; `freed`: those whose
    passes did not keep the graph, the last of them started on the line `where`; `saved`: the caller's handles that a graph as written has,
    `views`: by number of the value the layouts of those whose `data` was exchanged, and of its memory."""

    __slots__ = ("template", "values", "versions", "trace", "numbers", "asked", "freed", "where", "saved", "views")

    def __init__(self, template: CallGraph, cells: list[Any], created: list[Storage], known: list[Any], tensors: list[Tensor]) -> None:
        self.template, self.trace = template, local.state.trace
        self.values = values = list(map(cells.__getitem__, template.used))
        values += map(created.__getitem__, template.own)
        self.versions = list(map(_VERSION, values))
        self.numbers = [known[index] for _, _, index in template.numbers] if template.numbers else []
        self.saved = [tensors[k] for k, _, _ in template.saved] if template.saved else ()
        self.views: dict[int, tuple[Layout, Layout]] = _NO_VIEWS
        if template.apart:
            self.asked, self.freed, self.where = _NO_NODES, _NO_NODES, ""

    def released(self, line: str) -> bool:
        """A pass is over that does not keep the graph. Whether that ends it: a result is as good as before if its gradient uses nothing of what the
        pass has freed."""
        if not self.template.apart:
            return True
        self.freed, self.where = self.freed | self.asked, line
        left = [k for k, holding in enumerate(self.template.holding) if not holding & self.freed]
        if left and all(self.template.bare[k] for k in left):  # as written, these keep no values alive
            self.values, self.versions = [_NOTHING] * len(self.values), [_NOTHING.version] * len(self.values)
        return not left

    def told(self, facts: Dependencies) -> None:
        """Add what the gradient depends on: the same facts at the same place of a trace mean the same operations."""
        template, values = self.template, self.values
        if template.numbers or template.several or (template.apart and len(template.roots) > 1):
            raise Unknown
        if (self.saved and self.exchanged()) or self.overwritten():
            raise Unknown
        if template.steady and list(map(_STORAGE, template.steady)) != list(map(values.__getitem__, template.steady_at)):
            raise Unknown
        parts, places, cells = facts.parts, facts.places, facts.cells
        parts += (template.mark, self.trace is facts.trace)
        parts += map(_LAYOUT, values)
        for storage in values:
            key = id(storage)
            number = places.get(key)
            if number is None:
                number = places[key] = len(cells)
                cells.append(storage)
            parts.append(number)

    def exchanged(self) -> bool:
        """Look at the handles as a graph as written does; whether `data` of one is another by now."""
        values = self.values
        for t, (_, place, view) in zip(self.saved, self.template.saved, strict=True):
            storage, now = t._storage, t._layout
            if storage is not values[place] and now.shape == view.shape and now.dtype is view.dtype and now.device is view.device:
                self.views = {**self.views, place: (now, storage.layout)}
                values[place] = storage
        return bool(self.views)

    def overwritten(self) -> list[int]:
        """The numbers of values that are not as the gradient needs them."""
        if list(map(_VERSION, self.values)) == self.versions:
            return []
        return [k for k in self.template.unchanged if modified(self.values[k], self.versions[k])]


class CallGraph:
    """The graph behind the outputs of one recorded call.

    `roots`: nodes of the outputs that require gradients. `leaves`: where gradients go, as (argument number or -1, node or parameter).
    `storages`: new storages of the call in the macro's order. A call keeps the cells `used` and the new storages `own` (numbers); `unchanged`: which
    of all these have to stay as they are, `reads`: which of those the gradient of each root needs; `steady`: handles that have to show the same
    storage as at the call, number `steady_at`; `saved`: (argument, number of its value, layout) of handles that a graph as written has; `holding`: by
    root the nodes that a pass frees, `bare`: whether the gradient needs no values at all, `apart`: whether a pass may leave a root as it is;
    `ways`: by node the numbers of the leaves that its gradient goes to, `leads`: the same by root.
    `mark` stands for the template where nothing may keep that alive.
    `reached`: ids of handles that the function reaches by itself; they stay as they are.
    """

    def __init__(
        self, roots: list[Any], first: int, cells: list[Any], stand_ins: dict[int, tuple[int, Any]], storages: list[Storage],
        needed: set[int], reached: frozenset[int], tensors: list[Tensor], used: list[Tensor],
    ) -> None:  # fmt: skip
        leaves = [(k, t) for k, t in enumerate(tensors) if t._requires_grad and t._grad_fn is None]
        self.arguments = {id(t): (k, t, t._layout) for k, t in leaves}  # by identity, they live on
        self.roots, self.storages, self.reached = roots, storages, set(reached)
        self.nodes: list[Any] = []
        self.leaves: list[tuple[int, Any]] = []
        self.layouts: tuple[Layout, ...] = ()
        self.present: list[Any] = []
        self.mark = object()
        self.region = Region()
        known = {id(st): k for k, st in enumerate(cells) if st is not None}
        self._walk(first, known, stand_ins)
        handles, raw = self._values()
        values = raw | {id(t._storage) for t in handles}
        self._require_replayable(raw, values, known, needed)
        self._choose_kept(handles, values, known, cells, {id(t) for t in used})
        self.saved = [(k, place, t._layout) for t, place in self.handles for k, u in enumerate(used) if t is u]
        self._note_forms(handles)

    def _require_replayable(self, raw: set[int], values: set[int], known: dict[int, int], needed: set[int]) -> None:
        """Raise unless all `values` of the graph (ids of storages) are cells or new storages of the call that a replay has too."""
        if values - {id(st) for st in self.storages} - known.keys():
            raise Unsupported("saves a copy of a value for its gradient")
        if any(i in known for i in raw):
            raise Unsupported("differentiates a value that it writes")
        if any(id(st) not in values and k not in needed for k, st in enumerate(self.storages)):
            raise Unsupported("keeps a value in a place that the guards do not reach")
        if any(modified(_memory(v), version) for node in self.nodes for v, version in zip(_saved(node), _versions(node), strict=True)):
            raise Unsupported("changes a value that its gradient needs")

    def _choose_kept(self, handles: list[Tensor], values: set[int], known: dict[int, int], cells: list[Any], used: set[int]) -> None:
        """Which cells and new storages a call keeps for its gradient, and what of them must stay as it is. `used`: ids of the arguments' handles."""
        self.own = [k for k, st in enumerate(self.storages) if id(st) in values]  # results that only the caller wants live no longer than as written
        self.used = sorted({known[id(t._storage)] for t in handles if id(t._storage) in known})
        # The memory of an argument may be exchanged, while other handles keep the one that both had: a place of its own, behind that of the memory.
        apart = [t for t in handles if id(t) in used and id(t._storage) in known and sum(h._storage is t._storage for h in handles) > 1]
        own_place = {id(t): len(self.used) + k for k, t in enumerate(apart)}
        self.used += [known[id(t._storage)] for t in apart]
        places: dict[int, int] = {}
        for k, st in enumerate([*[cells[k] for k in self.used], *[self.storages[k] for k in self.own]]):
            places.setdefault(id(st), k)

        def read(nodes: list[Any]) -> set[int]:
            return {own_place.get(id(v), places[id(_memory(v))]) for node in nodes for v in _saved(node)}

        self.unchanged = sorted(read(self.nodes))
        self.reads = [read(self._behind(root)) for root in self.roots]
        behind = [self._behind(root) for root in self.roots]
        self.holding = [frozenset([id(n) for n in nodes if n.saved is not None or getattr(n, "context", None) is not None]) for nodes in behind]
        self.bare = [all(n.saved is None and (n.__class__ is GradNode or _is_view(n)) for n in nodes) for nodes in behind]
        self.ways = self._ways()
        self.leads = tuple([self.ways[id(root)] for root in self.roots])
        self.apart = any(a.isdisjoint(b) for a in self.holding for b in self.holding)
        self.handles = [(t, own_place.get(id(t), places[id(t._storage)])) for t in handles if id(t._storage) in known and id(t) not in self.reached]
        self.steady = [t for t in handles if id(t._storage) in known and id(t) in self.reached]
        self.own_handles = [t for t in handles if id(t) not in self.reached and id(t) not in self.arguments]
        self.steady_at = [places[id(t._storage)] for t in self.steady]

    def _note_forms(self, handles: list[Tensor]) -> None:
        """What every replay sets anew: numbers and views of the trace; and what is the same at all of them."""
        devices = {layout.device for layout in (*(st.layout for st in self.storages), *(t._layout for t in handles))}
        self.several = len(devices) > 1  # it copies between them
        self.targets = () if any(k >= 0 for k, _ in self.leaves) else tuple([leaf for _, leaf in self.leaves])  # the same at all calls
        self.numbers = [(node, place, v.index) for node in self.nodes for place, v in (node.saved or {}).items() if v.__class__ is LiveFloat]
        trace = local.state.trace
        cached = [t for t in handles if t._cache is not None and t._cache[0] is trace and id(t) not in self.reached]
        path = path_of(trace.cur) if cached else []
        self.views = [(t, path[t._cache[2]], *t._cache[1:]) for t in cached]

    def _walk(self, first: int, known: dict[int, int], stand_ins: dict[int, tuple[int, Any]]) -> None:
        seen: set[int] = set()
        stack = list(self.roots)
        while stack:
            item = stack.pop()
            if item is None or id(item) in seen:
                continue
            seen.add(id(item))
            if id(item) in stand_ins:
                self.leaves.append(stand_ins[id(item)])
                continue
            if isinstance(item, Tensor):
                if id(item._storage) not in known or item.__dict__.get("_post_accumulate"):
                    raise Unsupported("differentiates a tensor that the guards do not reach")
                self.leaves.append((self.arguments.get(id(item), (-1, item))[0], item))
                continue
            if item.number < first:
                raise Unsupported("uses a tensor with autograd history from outside; pass it as an argument")
            if item.hooks or item.retain is not None:
                raise Unsupported("registers hooks on tensors")
            if item.freed:
                raise Unsupported("differentiates a part of its graph")
            self.nodes.append(item)
            stack.extend(item.next)

    def _behind(self, root: GradNode) -> list[Any]:
        """The call's nodes that a gradient of this output reaches."""
        own = {id(node) for node in self.nodes}
        found, seen = [root], {id(root)}
        for node in found:  # it grows
            for item in node.next:
                if id(item) in own and id(item) not in seen:
                    seen.add(id(item))
                    found.append(item)
        return found

    def _ways(self) -> dict[int, frozenset[int]]:
        """By node the numbers of the leaves that its gradient goes to."""
        found = {id(leaf): frozenset([k]) for k, (_, leaf) in enumerate(self.leaves)}
        for node in sorted(self.nodes, key=attrgetter("number")):
            found[id(node)] = frozenset[int]().union(*[found[id(t)] for t in node.next if t is not None])
        return found

    def _values(self) -> tuple[list[Tensor], set[int]]:
        """Every tensor, and the ids of all bare storages, that the nodes refer to, however they keep it."""
        handles: list[Tensor] = []
        raw: set[int] = set()
        seen: set[int] = set()
        stack: list[Any] = []
        saved = {id(v) for node in self.nodes for v in (node.saved or {}).values()}
        for node in self.nodes:
            stack.append(node.saved)
            if isinstance(node, FunctionNode):
                stack += [node.context, node.backward]
        while stack:
            item = stack.pop()
            if item.__class__ is LiveFloat and id(item) not in saved:
                raise Unsupported("keeps a number that changes from call to call for its gradient")
            if item is None or id(item) in seen or isinstance(item, _OPAQUE):
                continue
            seen.add(id(item))
            if isinstance(item, Storage):
                raw.add(id(item))
            elif isinstance(item, Tensor):
                handles.append(item)
            elif not (isinstance(item, dict) and "__builtins__" in item):  # the globals of a function
                stack += gc.get_referents(item)
        return handles, raw

    # -------------------------------------------------------------------------------------------------------------- using

    def take_over(self) -> list[Storage]:
        """The recorded call becomes a call like the replays: it gets new storages and, from its caller, new handles. The template keeps graph,
        handles and storages: what the caller does to its own is nothing to the graph, and the graph's show no value."""
        trace = local.state.trace
        created: list[Storage] = []
        for storage in self.storages:
            copy = Storage()
            for name in _FIELDS:
                setattr(copy, name, getattr(storage, name))
            if copy.trace is trace:
                trace.storages.append(copy)
            created.append(copy)
        for _, leaf in self.leaves:
            if not isinstance(leaf, Tensor):
                leaf.next = (None,)
        for t in self.own_handles:
            if t._base is not None and t._base._views:
                t._base._views[:] = [held for held in t._base._views if held() is not t]
            t._base = t._views = None
        for storage in self.storages:
            storage.trace, storage.buffer, storage.home = None, None, None
        for t, _ in self.handles:
            if id(t) not in self.arguments:
                t._storage, t._cache = _NOTHING, None
        return created

    def attach(self, outputs: list[Tensor], cells: list[Any], created: list[Storage], tensors: list[Tensor], known: list[Any]) -> None:
        """Give the outputs of a call their node."""
        node = _new(CallNode)
        node.edge = node.saved = node.hooks = node.retain = None
        node.versions, node.freed, node.label, node.where = (), "", "HybridBackward", ""
        node.next = self.targets or tuple([leaf if k < 0 else tensors[k]._grad_fn or tensors[k] for k, leaf in self.leaves])
        node.number, node.backward, node.outputs = next(_sequence), self._backward, self.layouts or self._set_layouts(outputs)
        node.site, node.leads = user_site(FRAMES), self.leads
        node.context = Call(self, cells, created, known, tensors)
        if len(outputs) == 1:
            outputs[0]._grad_fn, outputs[0]._requires_grad = node, True
            return
        for out, target in zip(outputs, output_nodes(node, len(outputs)), strict=True):
            out._grad_fn, out._requires_grad = target, True

    def _set_layouts(self, outputs: list[Tensor]) -> tuple[Layout, ...]:
        """Results of all calls look alike."""
        self.layouts = tuple([t._layout for t in outputs])
        return self.layouts

    def _backward(self, node: FunctionNode, grads: Sequence[Any]) -> Sequence[Any]:
        call: Call = node.context
        if self.apart:
            call.asked = self._asked(node, grads)
            if call.asked & call.freed:
                raise second_time(node, call.where)
        if call.saved:
            call.exchanged()
        for k in call.overwritten():
            if any(g is not None and k in reads for g, reads in zip(grads, self.reads, strict=True)):
                raise _overwritten(node, call.values[k], call.versions[k])
        if local.state.grad:
            Counts.because("is differentiated more than once")
            return self._walked(call, grads, node.next)
        waiting = local.state.waiting
        held = [waiting.held(t) for t in node.next]  # sums of floats depend on their order: the call adds to what is there, as it would as written
        given = [g._storage if g is not None else None for g in (*grads, *held)]
        layouts = [None if g is None else (g._layout, g._storage.layout) for g in (*grads, *held)]
        key: tuple[Any, ...] = (tuple(t is not None for t in node.next), tuple(layouts), *call.views.items())
        everything = [*call.values, *given]
        ids = [id(st) for st in everything if st is not None]
        if len(set(ids)) < len(ids):  # a recording does not tell which of two cells it meant: a residual gives one gradient to both
            key += (tuple([ids.index(i) for i in ids[-len(given) :]]),)

        def record() -> list[Any]:
            return self._walked(call, grads, node.next, held)

        with SECTION:  # no lock of its own: the pass that is recorded takes this one, and so does whoever records this one
            self.present = call.numbers
            found = self.region.run(key, everything, record)
        return [g if g is None or before is None else Total(g) for g, before in zip(found, held, strict=True)]

    def _asked(self, node: FunctionNode, grads: Sequence[Any]) -> frozenset[int]:
        """The nodes that a pass uses: a pass for the gradients of some tensors goes nowhere else."""
        asked = _NO_NODES.union(*[holding for g, holding in zip(grads, self.holding, strict=True) if g is not None])
        needed = local.state.waiting.needed
        if needed is None:
            return asked
        wanted = {k for k, t in enumerate(node.next) if id(t) in needed}
        return frozenset([item for item in asked if self.ways[item] & wanted])

    def _walked(self, call: Call, grads: Sequence[Any], targets: Sequence[Any], earlier: Sequence[Any] | None = None) -> list[Any]:
        """Gradients through a copy of the graph, as if this call had recorded it. `earlier`: gradients that the targets have already; None: what is
        given can be differentiated again."""
        again = earlier is None
        graph = self._copy(call, targets, again)
        roots = [(graph.memo.get(id(root)) or graph.ends[id(root)], g) for root, g in zip(self.roots, grads, strict=True) if g is not None]
        wanted = [end for end, target in zip(graph.inputs, targets, strict=True) if target is not None]
        held = [(end, g) for end, g in zip(graph.inputs, earlier or (), strict=False) if g is not None]
        found = run_backward(roots, True, again, False, wanted, True, held)
        return [None if target is None else found.get(id(end)) for end, target in zip(graph.inputs, targets, strict=True)]

    def _copy(self, call: Call, targets: Sequence[Any], again: bool) -> GraphCopy:
        """The graph of one call."""
        storages = {id(self.storages[k]): actual for k, actual in zip(self.own, call.values[len(self.used) :], strict=True)}
        handles = {id(t): (call.values[k], call.views[k][0] if k in call.views else self._layout_of(t)) for t, k in self.handles}
        graph = GraphCopy([leaf for _, leaf in self.leaves], targets, storages, handles, self.reached, again)
        graph.caches = self._caches(call, storages, handles)
        values = call.numbers if again or not self.numbers else numbers(lambda: self.present, False)
        kept: dict[int, dict[int, Any]] = {}
        for (item, place, _), value in zip(self.numbers, values, strict=True):
            kept.setdefault(id(item), {})[place] = value
        graph.nodes(self.nodes, kept)
        return graph

    def _caches(self, call: Call, storages: dict[int, Storage], handles: dict[int, tuple[Storage, Layout]]) -> dict[int, tuple[Any, int, int]]:
        """What handles know of the trace, if it is still that of the call: the views of them that it has recorded."""
        trace, found = local.state.trace, {}
        path = path_of(trace.cur) if self.views and trace is call.trace else []
        for t, edge, base, slot in self.views:
            held = handles[id(t)][0] if id(t) in handles else storages.get(id(t._storage), t._storage)
            if held.trace is not trace:
                continue
            if slot < len(path) and path[slot] is edge:
                if held.slot == base:
                    found[id(t)] = trace, base, slot
            else:  # the call stands elsewhere
                place = next((k for k, e in enumerate(path) if e.op is VIEW and e.inputs == (held.slot,) and e.attrs == edge.attrs), -1)
                if place >= 0:
                    found[id(t)] = trace, held.slot, place
        return found

    def _layout_of(self, t: Tensor) -> Layout:
        """What a handle was like when it was recorded; a leaf is the caller's, who may have changed it since."""
        found = self.arguments.get(id(t))
        return t._layout if found is None else found[2]


def _overwritten(node: FunctionNode, storage: Storage, version: int) -> AutogradError:
    writer = storage.writer
    return AutogradError(
        f"[backward] a hybridized call ({node.line}) needs a value of shape {list(storage.layout.shape)} for its gradient, but it has "
        f"been modified by an inplace operation: {writer.op.name if writer is not None else 'a write'} at "
        f"{writer.line if writer is not None else 'an unknown line'}; it is at version {storage.version}, expected version {version} "
        "instead. Use the out-of-place form there, or clone() the value first"
    )


class Spent:
    """What is left of the graph behind a result whose gradient a backward pass inside the call has used: where it would go, to whom it is said."""

    def __init__(self, root: GradNode, stand_ins: dict[int, tuple[int, Any]], tensors: list[Tensor]) -> None:
        self.name, self.freed, self.line = root.name(), root.freed or "the hybridized call", root.line
        outputs = (root.next[0].outputs[root.index],) if isinstance(root, OutputNode) else getattr(root, "outputs", ())
        self.layouts = outputs if root.edge is None else (root.edge.layout,)
        arguments = {id(t): k for k, t in enumerate(tensors)}
        self.leaves: list[tuple[int, Any]] = []
        seen: set[int] = set()
        stack = [root]
        while stack:
            item = stack.pop()
            if item is None or id(item) in seen:
                continue
            seen.add(id(item))
            if id(item) in stand_ins:
                self.leaves.append((stand_ins[id(item)][0], None))
            elif isinstance(item, Tensor):
                number = arguments.get(id(item), -1)
                self.leaves.append((number, item if number < 0 else None))
            else:
                stack += item.next

    def node(self, tensors: list[Tensor]) -> FunctionNode:
        """The node of the result of a call with these arguments."""
        made = function_node(self.name, tuple([leaf if k < 0 else tensors[k] for k, leaf in self.leaves]), self.layouts, _no_more)
        made.freed, made.where = self.freed, self.line
        return made


def _no_more(*_: Any) -> Any:
    raise AssertionError("a freed node was applied")
