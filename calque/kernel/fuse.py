"""The only place that decides fusion: which nodes are computed together, which values are stored, which are recomputed.

Nodes are visited in program order. Each computing node joins an existing group when its operands can be read there and no cycle
can arise (every operand from outside is available at an order below the group's), else it opens a group. Nothing is stored until
a reader outside the group asks for it, so a group whose values are all recomputed elsewhere disappears. Views are never computed:
readers index the source.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from calque.base.shapes import Shape, broadcast_strides, contiguous_strides
from calque.ir.index import ZERO, Coords, NeedsSplit, canonical, dense, flatten, is_hierarchical, unflatten
from calque.ir.program import Node, Program
from calque.kernel.facts import VIEWS, Class, Facts
from calque.kernel.group import Group, Write
from calque.kernel.reader import Dynamic, Fusion, Reader, static_offset

MAX_MEMBERS = 96  # per group: bounds compile time
MAX_MOVED = 32  # members that may move from one group to another
MAX_SOURCES = 40  # values loaded by one group
SERIAL_POINTS = 16  # a group that works in parallel does not become a reduction over fewer points than this ...
SERIAL_SIZE = 32768  # ... unless it is smaller than this


class Fuser:
    """Builds a `Fusion` node by node. `enabled=False` gives every node a group of its own (the twin in tests)."""

    def __init__(self, program: Program, enabled: bool = True) -> None:
        self.facts = Facts(program)
        self.nodes = program.nodes
        self.cls = self.facts.cls
        self.enabled = enabled
        self.fusion = Fusion(self.facts)
        self.reader = Reader(self.fusion)
        self.next_order = 1.0
        self.fence = 0.0  # groups below this order are closed: they compute checks
        self.readers: dict[int, list[Group]] = {}
        self.late = dict(program.late)
        self.launches: dict[tuple[Any, ...], Group] = {}  # contractions with several parts, by all but the part

    # ---------------------------------------------------------------- bookkeeping

    def open_group(self, order: float | None = None) -> Group:
        """A new, empty group, after all others unless `order` is given."""
        if order is None:
            order = self.next_order
            self.next_order += 1.0
        g = Group(order)
        self.fusion.groups.append(g)
        return g

    def demand(self, src: int, order: float) -> None:
        """A group at `order` loads `src`: give it a buffer."""
        fusion = self.fusion
        home = fusion.home.get(src)
        if home is None:
            if self.cls[src] is Class.INPUT:
                return
            home = self.open_group(order - 0.5)
            home.closed = True
            shape = self.nodes[src].shape
            loads = self.found(home, shape, (), src)
            home.place[src] = home.by_shape[shape]
            home.members.append(src)
            fusion.home[src] = home
            self.load(home, loads)
        elif self.facts.free[src] and home.closed and home.order >= order:
            home.order = order - 0.5
            for below in home.sources:
                self.demand(below, home.order)
        fusion.stored.add(src)
        home.first_reader = min(home.first_reader, order)

    def load(self, g: Group, loads: list[int]) -> None:
        """g reads these values from memory."""
        for src in loads:
            self.demand(src, g.order)
            if src not in g.sources:
                g.sources.add(src)
                recent = self.readers.setdefault(src, [])
                recent.append(g)
                if len(recent) > 3:
                    del recent[0]

    # ---------------------------------------------------------------- joining

    def candidates(self, g: Group, shape: Shape, operands: tuple[int, ...], view: Node | None = None) -> Iterator[Coords]:
        """Coordinates at which a value of `shape` that reads `operands` could be evaluated in g. Raises `NeedsSplit`."""
        for operand in operands:
            if operand in g.place and self.nodes[operand].shape == shape and view is None:
                yield g.place[operand]
        if shape in g.by_shape:
            yield g.by_shape[shape]
        size = 1
        for e in shape:
            size *= e
        for operand in operands:
            through = view
            src = operand
            if view is None and self.cls[operand] is Class.VIEW:
                through, src = self.nodes[operand], self.nodes[operand].inputs[0]
            if src not in g.place or self.nodes[src].numel != size:
                continue
            inner = contiguous_strides(shape) if through is None else self.bijection(through, shape, size)
            if inner is not None:
                form = dense(g.place[src], self.nodes[src].shape)
                found = unflatten(form, tuple(g.extents), shape, inner)
                if found is not None:
                    yield found

    def bijection(self, view: Node, shape: Shape, size: int) -> Shape | None:
        """Strides, in the source of a permuting or reshaping view, for a value of `shape` that reads the view."""
        if view.op.role != "view" or view.attr("offset") or view.numel != size or len(view.shape) > len(shape):
            return None
        strides: Shape = view.attr("strides")
        return broadcast_strides(view.shape, strides, shape) if is_hierarchical(view.shape, strides) else None

    def joinable(self, operands: tuple[int, ...]) -> list[Group]:
        """Groups worth trying: those that compute an operand (largest first), then those that load one."""
        found: dict[int, Group] = {}
        for operand in operands:
            src = self.reader.source(operand)
            home = self.fusion.home.get(src)
            if home is not None and home.kind == "loop" and src in home.place:
                found[id(home)] = home
        groups = sorted(found.values(), key=lambda g: -len(g.members))
        for operand in operands:
            for g in reversed(self.readers.get(self.reader.source(operand), [])):
                if id(g) not in found:
                    found[id(g)] = g
                    groups.append(g)
        return [g for g in groups if self.is_open(g)]

    def not_before(self, node: int) -> list[Group]:
        """The group of a node, which values that are computed late join, if it is open."""
        g = self.fusion.home.get(node)
        return [g] if g is not None and g.kind == "loop" and self.is_open(g) else []

    def is_open(self, g: Group) -> bool:
        """Whether g may take another member."""
        if g.closed or g.order <= self.fence or 0 in g.extents:
            return False
        return len(g.members) < MAX_MEMBERS and len(g.sources) < MAX_SOURCES

    def fit(
        self, g: Group, shape: Shape, operands: tuple[int, ...], node: int = -1, view: Node | None = None
    ) -> tuple[Coords, list[int]] | None:
        """Coordinates and loads with which a value of `shape` is evaluated in g: node `node`, or `operands[0]` itself."""
        size = 1
        for e in shape:
            size *= e
        for _ in range(6):
            try:
                for coords in self.candidates(g, shape, operands, view):
                    cover = g.coverage(coords)
                    if not cover or size != (g.size() if cover == "full" else g.points()):
                        continue
                    loads: list[int] = []
                    if node >= 0:
                        fits = self.reader.can_compute(g, node, coords, loads)
                    else:
                        fits = self.reader.can_read(g, operands[0], coords, loads)
                    if fits:
                        return coords, loads
                return None
            except NeedsSplit as request:
                g.split(request)
        return None

    def add(self, g: Group, node: int, coords: Coords, loads: list[int]) -> None:
        """Make `node` a member of g."""
        g.members.append(node)
        g.place[node] = coords
        self.fusion.home[node] = g
        shape = self.nodes[node].shape
        if shape not in g.by_shape:
            g.by_shape[shape] = coords
        self.load(g, loads)

    def map(self, node: int) -> None:
        """Place an elementwise, random or indexing node, or a view that must be copied."""
        if self.facts.free[node]:
            return
        n = self.nodes[node]
        view = n if n.op.role in VIEWS else None
        operands = n.inputs[:1] if view is not None else n.inputs
        if n.op.role == "lookup":
            operands = n.inputs[1:]
        if self.enabled and n.numel:
            tried = self.joinable(operands) if node not in self.late else self.not_before(self.late[node])
            self.fusion.refused[node] = tried
            for g in tried:
                found = self.fit(g, n.shape, operands, node, view)
                if found is not None:
                    del self.fusion.refused[node]
                    self.add(g, node, *found)
                    if node not in self.late:
                        self.absorb(g, operands)
                    return
        g = self.open_group()
        loads = self.found(g, n.shape, operands, node)
        self.add(g, node, g.by_shape[n.shape], loads)

    def found(self, g: Group, shape: Shape, operands: tuple[int, ...], node: int = -1) -> list[int]:
        """Start a new group over `shape`; returns the loads of `node` (or of `operands[0]` itself), which always succeed
        there."""
        g.extents, g.by_shape[shape] = canonical(shape)
        while True:
            loads: list[int] = []
            try:
                if node >= 0:
                    fits = self.reader.can_compute(g, node, g.by_shape[shape], loads)
                else:
                    fits = all(self.reader.can_read(g, o, g.by_shape[shape], loads) for o in operands)
                assert fits, "a new group can read everything before it"
                return loads
            except NeedsSplit as request:
                g.split(request)

    def absorb(self, g: Group, operands: tuple[int, ...]) -> None:
        """Unite g with the groups of the operands where that breaks no order, so that their values need no buffer.

        A group moves later when nobody reads it before g, earlier when all it reads is there before the other group.
        """
        for operand in operands:
            src = self.reader.source(operand)
            other = self.fusion.home.get(src)
            if other is None or other is g or other.kind != "loop" or src not in other.place or not self.is_open(other):
                continue
            if len(g.members) + len(other.members) > MAX_MEMBERS:
                continue
            late = other.order > g.order or other.first_reader >= g.order
            if late and not (other.writes or self._bases(g) & other.place.keys()) and len(other.members) <= MAX_MOVED and self._move(other, g):
                continue
            if other.order < g.order and not g.writes and len(g.members) <= MAX_MOVED and self._move(g, other):
                return

    def _bases(self, g: Group) -> set[int]:
        """Values that g writes parts of: they have to be there as a whole before it runs."""
        return {self.nodes[w.target].inputs[0] for w in g.writes if not self.facts.covers(w.target)}

    def _move(self, other: Group, g: Group) -> bool:
        """Move all members of `other` to g, or none."""
        before, shapes, reduced = list(g.members), list(g.by_shape), g.reduced
        everything: list[int] = []
        moved: list[int] = []
        for node in sorted(other.members):
            loads = self._member(g, node)
            if loads is None:
                break
            moved.append(node)
            everything += loads
        if len(moved) < len(other.members) or not (g.sources.isdisjoint(moved) or self._still_readable(g, before, everything)):
            for node in moved:
                del g.place[node]
                g.inner.pop(node, None)
            g.by_shape = {s: g.by_shape[s] for s in shapes}
            if g.reduced is not reduced and not reduced:
                g.reduced = reduced
            return False
        for node in moved:
            self.fusion.home[node] = g
        g.members += moved
        g.first_reader = min(g.first_reader, other.first_reader)
        other.members, other.place, other.closed = [], {}, True
        self.load(g, everything)
        return True

    def _member(self, g: Group, node: int) -> list[int] | None:
        """Give a node that moves to g its place there; returns its loads, None when it does not fit."""
        n = self.nodes[node]
        if self.cls[node] is Class.REDUCE:
            found = self.fit(g, self.nodes[n.inputs[0]].shape, n.inputs)
            dims = n.attr("dims")
            if found is None or not self._accepts(g, found[0], dims):
                return None
            self._place_reduction(g, node, found[0], dims)
            return found[1]
        view = n if n.op.role in VIEWS else None
        operands = n.inputs[:1] if view else n.inputs[1:] if n.op.role == "lookup" else n.inputs
        found = self.fit(g, n.shape, operands, node, view)
        if found is None:
            return None
        g.place[node] = found[0]
        g.by_shape.setdefault(n.shape, found[0])
        return found[1]

    def _still_readable(self, g: Group, members: list[int], loads: list[int]) -> bool:
        """Whether `members` of g can read values that became members instead of loading them."""
        reader = self.reader
        try:
            for m in members:
                if self.cls[m] is Class.REDUCE:
                    fits = reader.can_read(g, self.nodes[m].inputs[0], g.inner[m], loads)
                else:
                    fits = reader.can_compute(g, m, g.place[m], loads)
                if not fits:
                    return False
            return all(reader.can_read(g, w.value, w.coords, loads) for w in g.writes)
        except NeedsSplit:
            return False

    # ---------------------------------------------------------------- reductions

    def reduce(self, node: int) -> None:
        """Place a reduction: in the group of its operand when the reduced dims agree, else in a new one."""
        n = self.nodes[node]
        operand = n.inputs[0]
        shape = self.nodes[operand].shape
        dims = tuple(d % max(len(shape), 1) for d in n.attr("dims")) if shape else ()
        if self.enabled and self.nodes[operand].numel:
            tried = self.joinable((operand,))
            self.fusion.refused[node] = tried
            for g in tried:
                found = self.fit(g, shape, (operand,))
                if found is not None and self._accepts(g, found[0], dims):
                    del self.fusion.refused[node]
                    self._add_reduction(g, node, found[0], dims, found[1])
                    return
        g = self.open_group()
        loads = self.found(g, shape, (operand,))
        self._add_reduction(g, node, g.by_shape[shape], dims, loads)

    def _accepts(self, g: Group, coords: Coords, dims: tuple[int, ...]) -> bool:
        if g.coverage(coords) != "full":
            return False
        inner = frozenset(d for k in dims for d, _ in coords[k][1])
        if g.reduced:
            return inner == g.reduced
        if not inner or g.writes and any(w.combine for w in g.writes):
            return False
        size = g.size()
        points = size
        for d in inner:
            points //= g.extents[d]
        return points >= SERIAL_POINTS or size <= SERIAL_SIZE

    def _add_reduction(self, g: Group, node: int, coords: Coords, dims: tuple[int, ...], loads: list[int]) -> None:
        self._place_reduction(g, node, coords, dims)
        self.add(g, node, g.place[node], loads)

    def _place_reduction(self, g: Group, node: int, coords: Coords, dims: tuple[int, ...]) -> None:
        n = self.nodes[node]
        g.reduced = g.reduced | frozenset(d for k in dims for d, _ in coords[k][1])
        g.by_shape.setdefault(self.nodes[n.inputs[0]].shape, coords)
        g.inner[node] = coords
        if n.attr("keepdim"):
            g.place[node] = tuple(ZERO if k in dims else f for k, f in enumerate(coords))
        else:
            g.place[node] = tuple(f for k, f in enumerate(coords) if k not in dims)

    # ---------------------------------------------------------------- library calls

    def library(self, node: int) -> None:
        """A contraction or an opaque primitive: operands in memory, one launch."""
        n = self.nodes[node]
        twin = (n.op.name, n.inputs, n.attrs[1:]) if n.op.parts and self.cls[node] is Class.CONTRACT else None
        if twin is not None and twin in self.launches:  # another part of the same computation: one launch gives both
            g = self.launches[twin]
            g.members.append(node)
            self.fusion.home[node] = g
            self.fusion.stored.add(node)
            return
        g = self.open_group()
        if twin is not None:
            self.launches[twin] = g
        g.kind = "contract" if self.cls[node] is Class.CONTRACT else "host"
        g.closed = True
        g.members.append(node)
        self.fusion.home[node] = g
        self.fusion.stored.add(node)
        operands = n.inputs
        if g.kind == "host":  # leaves go to the step as numbers
            operands = tuple(o for o in operands if self.nodes[o].op.role != "scalar")
        self.load(g, [self.reader.source(o) for o in operands])

    # ---------------------------------------------------------------- writes into part of a value

    def base_ready(self, g: Group, base: int) -> bool:
        """Whether the whole old value can be in its buffer before g runs, with no reader after g."""
        if any(r.order > g.order for r in self.readers.get(base, [])):
            return False  # the write would have to copy the base
        if self.cls[base] is Class.INPUT or self.facts.free[base]:
            return True
        return self.fusion.available(base) < g.order

    def write(self, node: int) -> None:
        """Place `update`, `update_at` or `cat`: each part is stored by the group that computes it."""
        n = self.nodes[node]
        after = 0.0
        if n.op.role == "join":
            strides = contiguous_strides(n.shape)
            dim = n.attr("dim") % len(n.shape)
            offset = 0
            for piece in n.inputs:
                after = max(after, self._store(node, piece, strides, offset, (), -1))
                offset += self.nodes[piece].shape[dim] * strides[dim]
        else:
            offset, dynamic = static_offset(self.nodes, n)
            base = -1 if self.facts.covers(node) else n.inputs[0]
            after = self._store(node, n.inputs[1], n.attr("strides"), offset, dynamic, base)
        self.fusion.available_after[node] = after + 0.25
        self.fusion.stored.add(node)

    def _store(self, node: int, value: int, strides: Shape, offset: int, dynamic: Dynamic, base: int) -> float:
        """Attach one strided store to the group of its value or to a new one; returns that group's order."""
        shape = self.nodes[value].shape
        chosen: Group | None = None
        if self.enabled and self.nodes[value].numel:
            home = self.fusion.home.get(self.reader.source(value))
            for g in self.joinable((value,)):
                if g is not home or (base >= 0 and not self.base_ready(g, base)):
                    continue
                found = self.fit(g, shape, (value,))
                if found is not None:
                    chosen, (coords, loads) = g, found
                    break
        if chosen is None:
            chosen = self.open_group()
            loads = self.found(chosen, shape, (value,))
            coords = chosen.by_shape[shape]
        self.load(chosen, loads)
        if base >= 0:
            self.demand(base, chosen.order)
        chosen.writes.append(Write(node, value, coords, flatten(coords, strides, offset), dynamic))
        self.fusion.home.setdefault(node, chosen)
        return chosen.order

    # ---------------------------------------------------------------- indexed writes

    def accumulate(self, node: int) -> None:
        """Place an indexed write: a launch of its own with the indexed dims as R, in order, so that collisions are sequential."""
        n = self.nodes[node]
        base = n.inputs[0]
        g = self.open_group()
        g.closed = True
        write = self._overlapping(g, node) if n.op.kind == "movement" else self._indexed(g, node)
        self.demand(base, g.order)
        g.writes.append(write)
        self.fusion.home[node] = g
        self.fusion.available_after[node] = g.order + 0.25
        self.fusion.stored.add(node)

    def _indexed(self, g: Group, node: int) -> Write:
        n = self.nodes[node]
        base, index, value = n.inputs
        shape = self.nodes[base].shape
        dim = n.attr("dim") % max(len(shape), 1)
        strides = contiguous_strides(shape)
        scattered = n.op.aligned
        space = self.nodes[index].shape if scattered else self.nodes[value].shape
        rank = 1 if scattered else len(self.nodes[index].shape)
        if not shape:
            space, rank = (), 0
        g.extents, g.by_shape[space] = canonical(space)
        while True:
            coords = g.by_shape[space]
            inner = coords if scattered else coords[dim : dim + rank]
            loads: list[int] = []
            try:
                reader = self.reader
                fits = reader.can_read(g, value, coords, loads) and reader.can_read(g, index, inner, loads)
                assert fits, "a new group can read everything before it"
                break
            except NeedsSplit as request:
                g.split(request)
        self.load(g, loads)
        g.reduced = frozenset(d for f in coords[dim : dim + rank] for d, _ in f[1])
        outer = coords[:dim] + (ZERO,) + coords[dim + rank :] if shape else ()
        return Write(
            node, value, coords, flatten(outer, strides), (), index, inner, strides[dim] if shape else 0,
            shape[dim] if shape else 1, n.op.combine,
        )  # fmt: skip

    def _overlapping(self, g: Group, node: int) -> Write:
        """update_add: dims whose stride exceeds the reach of all smaller ones never collide and run in parallel."""
        n = self.nodes[node]
        value = n.inputs[1]
        loads = self.found(g, self.nodes[value].shape, (value,))
        self.load(g, loads)
        coords = g.by_shape[self.nodes[value].shape]
        offset, _ = static_offset(self.nodes, n)
        form = flatten(coords, n.attr("strides"), offset)
        steps = dict(form[1])
        reach = 0
        inner = set()
        for stride, d in sorted((abs(steps.get(d, 0)), d) for d in range(len(g.extents))):
            if stride <= reach:
                inner.add(d)
            reach += stride * (g.extents[d] - 1)
        # A dim below an overlapping one takes part in its collisions.
        if inner:
            top = max(abs(steps.get(d, 0)) for d in inner)
            inner |= {d for d in range(len(g.extents)) if abs(steps.get(d, 0)) <= top}
        g.reduced = frozenset(inner)
        return Write(node, value, coords, form, (), combine=n.op.combine)

    # ---------------------------------------------------------------- driver

    def run(self, order: list[int], fence_after: int) -> Fusion:
        """Visit all nodes; the first `fence_after` of `order` compute checks and share no group with the rest."""
        for k, node in enumerate(order):
            if k == fence_after and k:
                self.fence = self.fusion.fence = self.next_order - 0.25  # what is copied for a check comes half an order after what it reads
                self.next_order += 1.0
            c = self.cls[node]
            if c is Class.MAP:
                self.map(node)
            elif c is Class.REDUCE:
                self.reduce(node)
            elif c is Class.WRITE:
                self.write(node)
            elif c is Class.ACCUMULATE:
                self.accumulate(node)
            elif c in (Class.CONTRACT, Class.HOST):
                self.library(node)
        if fence_after == len(order):
            self.fusion.fence = self.next_order
            self.next_order += 1.0
        for output in self.facts.program.outputs:
            self.demand(self.facts.output_alias.get(output, output), self.next_order)
        for check in self.facts.program.checks:
            self.demand(check.value, self.fusion.fence + 0.25)
        self.fusion.groups = sorted((g for g in self.fusion.groups if g.members or g.writes), key=lambda g: g.order)
        return self.fusion


def check_order(program: Program) -> tuple[list[int], int]:
    """All nodes, ancestors of the checks first, and how many of those there are."""
    wanted: set[int] = set()
    stack = [c.value for c in program.checks]
    while stack:
        node = stack.pop()
        if node not in wanted:
            wanted.add(node)
            stack.extend(program.nodes[node].inputs)
    order = sorted(range(len(program.nodes)), key=lambda i: i not in wanted) if wanted else list(range(len(program.nodes)))
    return order, len(wanted)


def fuse(program: Program, enabled: bool = True) -> Fusion:
    """Decide the groups of a program."""
    order, checks = check_order(program)
    return Fuser(program, enabled).run(order, checks)
