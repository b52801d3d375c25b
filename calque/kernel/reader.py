"""Reading values inside a group: from a register, from memory, or by evaluating them again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from math import inf

from calque.base.dataclass import dataclass
from calque.base.shapes import Shape, contiguous_strides
from calque.ir.index import ZERO, Coords, broadcast, flatten, unflatten
from calque.ir.program import Node
from calque.kernel.facts import VIEWS, Class, Facts
from calque.kernel.group import Group

MAX_RECOMPUTE = 6  # weighted instructions that may be repeated instead of storing a value
Dynamic = tuple[tuple[int, int], ...]  # (scalar leaf index, factor) terms of an address
SLACK_BYTES = 1024  # recomputing may read this much more than loading would


@dataclass(slots=True)
class Fusion:
    """The decision: groups in schedule order, which nodes have a buffer and where each is computed."""

    facts: Facts
    groups: list[Group] = field(default_factory=list)
    home: dict[int, Group] = field(default_factory=dict)
    stored: set[int] = field(default_factory=set)
    refused: dict[int, list[Group]] = field(default_factory=dict)  # groups that could not take a node
    available_after: dict[int, float] = field(default_factory=dict)  # for values made by partial stores
    fence: float = 0.0  # groups up to this order compute checks

    def available(self, node: int) -> float:
        """Groups of a higher order than this may load the stored node."""
        home = self.home.get(node)
        if home is None:
            return -1.0 if self.facts.cls[node] is Class.INPUT else inf
        if self.facts.cls[node] in (Class.WRITE, Class.ACCUMULATE):
            return self.available_after.get(node, inf)
        return home.order

    def why_not(self, node: int, g: Group) -> str:
        """The reason, as far as it can be told afterwards."""
        n = self.facts.nodes[node]
        if self.facts.cls[node] is Class.REDUCE:
            dims = [self.facts.nodes[n.inputs[0]].shape[d] for d in n.attr("dims")]
            if g.reduced:
                return f"it reduces over {dims}, the group over {[g.extents[d] for d in sorted(g.reduced)]}"
            return f"reducing over {dims} would leave the group too few points to share between threads, or another order"
        if n.numel not in (g.size(), g.points()):
            return f"{n.numel} elements over {g.size()} iterations"
        late = [s for s in n.inputs if self.available(s) >= g.order and s not in g.place]
        if late:
            return f"it needs {', '.join(f'%{s}' for s in late)}, computed later"
        return "it reads a value of the group at other positions than it is computed at, or the group is full"

    def explain(self) -> str:
        """One line per group: its space, its members and what it stores; then the fusions that were refused."""
        nodes = self.facts.nodes
        lines = []
        for k, g in enumerate(self.groups):
            space = [e for d, e in enumerate(g.extents) if d not in g.reduced]
            inner = [e for d, e in enumerate(g.extents) if d in g.reduced]
            stores = [m for m in g.members if m in self.stored] + [w.target for w in g.writes]
            names = " ".join(f"%{m}:{nodes[m].op.name}" for m in g.members)
            over = f"{space} reducing {inner}" if inner else f"{space}"
            lines.append(f"group {k} ({g.kind}) over {over}: {names} -> stores {stores}")
        lines += [f"{name} is {why}" for name, _, why in self.refusals()]
        return "\n".join(lines)

    def refusals(self) -> tuple[tuple[str, str, str], ...]:
        """(node, its source line, "not in group k: reason") for every group that computes or loads an operand and could not take the node."""
        found = []
        place = {id(g): k for k, g in enumerate(self.groups)}
        for n, tried in sorted(self.refused.items()):
            node = self.facts.nodes[n]
            for g in tried:
                if id(g) in place and n not in g.place:
                    why = f"not in group {place[id(g)]}: {self.why_not(n, g)}"
                    found.append((f"%{n} {node.op.name}{list(node.shape)}", node.line, why))
        return tuple(found)


class Reader:
    """Answers whether a value can be read at given coordinates inside a group, and through which loads."""

    def __init__(self, fusion: Fusion) -> None:
        self.fusion = fusion
        self.facts = fusion.facts
        self.nodes = fusion.facts.nodes
        self.cls = fusion.facts.cls

    def source(self, operand: int) -> int:
        """The value behind a transparent view."""
        return self.nodes[operand].inputs[0] if self.cls[operand] is Class.VIEW else operand

    def reads(self, node: int, coords: Coords) -> Iterator[tuple[int, Coords, bool]]:
        """(operand, coordinates, must be stored) for every operand of a MAP node."""
        n = self.nodes[node]
        if n.op.role == "lookup" and n.op.aligned:
            yield n.inputs[1], coords, False
            yield n.inputs[0], coords, True
        elif n.op.role == "lookup":
            dim = n.attr("dim") % max(len(self.nodes[n.inputs[0]].shape), 1)
            rank = len(self.nodes[n.inputs[1]].shape)
            yield n.inputs[1], coords[dim : dim + rank], False
            yield n.inputs[0], coords[:dim] + (ZERO,) + coords[dim + rank :], True
        elif n.op.kind == "reduce":  # over dims of extent 1: see Facts
            yield n.inputs[0], reduced_coords(n, self.nodes[n.inputs[0]].shape, coords), False
        else:
            for operand in n.inputs:
                yield operand, broadcast(coords, self.nodes[operand].shape), False

    def can_read(self, g: Group, operand: int, coords: Coords, loads: list[int], force: bool = False, depth: int = 0) -> bool:
        """Whether `operand` at `coords` is readable in g; appends the values to load. Raises `Split`."""
        if self.cls[operand] is Class.VIEW:
            n = self.nodes[operand]
            return self._source(g, n.inputs[0], n, coords, loads, force, depth)
        return self._source(g, operand, None, coords, loads, force, depth)

    def can_compute(self, g: Group, node: int, coords: Coords, loads: list[int], depth: int = 0) -> bool:
        """Whether all operands of a MAP node are readable in g when the node is evaluated at `coords`."""
        n = self.nodes[node]
        if n.op.kind != "elementwise":
            if n.op.role in VIEWS:
                return self._source(g, n.inputs[0], n, coords, loads, False, depth)
            return all(self.can_read(g, o, c, loads, force, depth) for o, c, force in self.reads(node, coords))
        nodes, cls = self.nodes, self.cls
        for operand in n.inputs:
            o = nodes[operand]
            at = coords if o.shape == n.shape else broadcast(coords, o.shape)
            c = cls[operand]
            if c is Class.VIEW:
                if not self._source(g, o.inputs[0], o, at, loads, False, depth):
                    return False
            elif c is not Class.NUMBER and not self._source(g, operand, None, at, loads, False, depth):
                return False
        return True

    def at(self, g: Group, source: int, view: Node | None, coords: Coords) -> Coords | None:
        """Coordinates of `source` when it is read through `view` at `coords`."""
        if view is None:
            return coords
        if view.op.role != "view":
            return None
        form = flatten(coords, view.attr("strides"), view.attr("offset"))
        shape = self.nodes[source].shape
        return unflatten(form, tuple(g.extents), shape, contiguous_strides(shape))

    def _source(
        self, g: Group, src: int, view: Node | None, coords: Coords, loads: list[int], force: bool, depth: int
    ) -> bool:
        c = self.cls[src]
        if c is Class.NUMBER and not force:
            return True
        if c is Class.INPUT:
            loads.append(src)
            return True
        fusion = self.fusion
        outside = src not in g.place
        early = outside and fusion.available(src) < g.order
        if early and (src in fusion.stored or force or c is not Class.MAP):
            loads.append(src)
            return True
        if force:
            if self.facts.free[src] and outside:
                loads.append(src)
                return True
            return False
        if not outside:
            at = self.at(g, src, view, coords)
            if at is not None and at == g.place[src]:
                return True
        if c is Class.MAP and depth < 12 and self.worth_recomputing(src):
            at = self.at(g, src, view, coords)
            mark = len(loads)
            if at is not None and self.can_compute(g, src, at, loads, depth + 1):
                return True
            del loads[mark:]
        if outside and (early or self.facts.free[src]):
            loads.append(src)
            return True
        return False

    def worth_recomputing(self, node: int) -> bool:
        """Whether evaluating again where the value is needed costs few instructions and reads no more bytes than the value has.

        A value with a single reader is not evaluated again but later, which costs nothing and saves the store, unless the reader spreads it over
        many rows; below a value with several it is evaluated as often as that, which counts if it is expensive (the random bits behind a mask of
        dropout). One expensive value below may become the thing that is stored instead (tanh(x) instead of 1 + tanh(x) and 1 - tanh(x)^2), but not
        below one that is spread: nothing is left to do for each row.
        """
        facts = self.facts
        if facts.free[node]:
            return True
        stored, cls, nbytes, costs, once, spread = self.fusion.stored, self.cls, facts.nbytes, facts.cost, facts.once, facts.spread[node]
        if node in stored and nbytes[node] > 8:
            return False
        if costs[node] > MAX_RECOMPUTE and (spread or not once[node]):
            return False
        room, single = nbytes[node], once[node]
        cost, moved = 0, int(spread)
        frontier: dict[int, int] = {}
        stack = [node]
        seen = {node}
        while stack:
            n = stack.pop()
            own = 0 if once[n] and not spread and (single or costs[n] <= MAX_RECOMPUTE) else costs[n]
            if own > MAX_RECOMPUTE and n != node and not moved and nbytes[n] <= room:
                moved = 1
                frontier[n] = 0  # stored instead of `node`
                continue
            cost += own
            if cost > MAX_RECOMPUTE or len(seen) > 24:
                return False
            for operand in facts.sources[n]:
                if cls[operand] is Class.MAP and operand not in stored:
                    if operand not in seen:
                        seen.add(operand)
                        stack.append(operand)
                else:  # no more bytes than elements of n
                    most = facts.numel[n] * facts.itemsize[operand]
                    frontier[operand] = most if most < nbytes[operand] else nbytes[operand]
        if single:  # nothing is repeated, and the value is neither written nor read
            room *= 2
        return sum(frontier.values()) <= room + room // 8 + SLACK_BYTES


def reduced_coords(n: Node, shape: Shape, coords: Coords) -> Coords:
    """Coordinates of the operand of a reduction over dims of extent 1."""
    if n.attr("keepdim"):
        return coords
    rest = iter(coords)
    return tuple(ZERO if d in n.attr("dims") else next(rest) for d in range(len(shape)))


def static_offset(nodes: tuple[Node, ...], n: Node) -> tuple[int, Dynamic]:
    """Static offset and dynamic terms of a view or update with a run-time offset."""
    if "offset" in n.op.attrs:
        return n.attr("offset"), ()
    leaf = nodes[n.inputs[-1]]
    if leaf.op.role == "constant":
        return int(leaf.attrs[0]), ()
    return 0, ((leaf.attrs[0], 1),)
