"""Lowering remembered: groups of equal structure are lowered once, whatever program they stand in.

An unrolled recurrent network repeats its cell at every time step, and the next sequence length repeats the program. The steps differ in
node numbers, in run-time scalars, and in where their slices begin; so a group is described with nodes and scalars numbered afresh and offsets
named by their order of appearance, and what was lowered for an equal description is numbered back. Twin: `lower.lower_group`; with
`settings.verify` every answer is compared with it.
"""

from __future__ import annotations

import threading
from typing import Any

from calque.base.cache import Cache
from calque.base.config import settings
from calque.base.dataclass import dataclass
from calque.ir.index import Coords
from calque.ir.program import Node
from calque.kernel.emit import Address
from calque.kernel.facts import VIEWS, Class
from calque.kernel.group import Group
from calque.kernel.lower import Launch, lower_group
from calque.kernel.reader import Fusion, static_offset


@dataclass(slots=True)
class LaunchTemplate:
    """A launch whose nodes, scalars and offsets are numbers of a `Renumbered`."""

    launch: Launch | None
    offsets: tuple[tuple[int, tuple[int, int]], ...] = ()  # (position in params, (node, number of the offset))


class Renumbered:
    """A group with its own numbering. Equal keys: equal kernels, and launches that differ by the numbering only."""

    def __init__(self, fusion: Fusion, g: Group, needed: set[int]) -> None:
        self.fusion = fusion
        self.nodes = fusion.facts.nodes
        self.cls = fusion.facts.cls
        self.g = g
        self.stores = [m for m in sorted(g.members) if m in needed and self.nodes[m].numel]
        self.writes = [w for w in g.writes if w.target in needed and self.nodes[w.value].numel]
        self.leaves: set[int] = set()
        self.scalars: dict[int, int] = {}  # scalar leaf -> number
        self.offsets: dict[tuple[int, int], int] = {}  # (node, offset) -> number; 0 is always 0
        self.order = self._reach()
        self.number = {node: k for k, node in enumerate(self.order)}
        self.named = self._unshifted()  # offsets count as run-time parameters
        self.key = self._key()

    def _reach(self) -> list[int]:
        """All nodes that the kernel evaluates, looks through or loads, in program order."""
        fusion, g, nodes, cls = self.fusion, self.g, self.nodes, self.cls
        place, stored, leaves = g.place, fusion.stored, self.leaves
        seen = {w.target for w in self.writes}
        leaves |= seen
        stack = [*self.stores, *(w.value for w in self.writes), *(w.index for w in self.writes if w.index >= 0)]
        while stack:
            node = stack.pop()
            if node in seen and node not in leaves:
                continue
            seen.add(node)
            c = cls[node]
            if c is Class.NUMBER:  # also one that is a result itself
                leaves.add(node)
                continue
            if node not in place:
                if c <= Class.NUMBER or (c is not Class.VIEW and (node in stored or c is not Class.MAP) and fusion.available(node) < g.order):
                    leaves.add(node)
                    continue
            leaves.discard(node)
            stack.extend(nodes[node].inputs)
        return sorted(seen)

    def _unshifted(self) -> bool:
        """Whether every address begins where its view begins: then distinct offsets stay distinct addresses."""
        g = self.g

        def plain(coords: Coords) -> bool:
            return not any(shift for shift, _ in coords)

        if not all(map(plain, g.place.values())) or not all(map(plain, g.inner.values())):
            return False
        if not all(plain(w.coords) and plain(w.index_coords) for w in self.writes):
            return False
        for node in self.order:
            if self.cls[node] is Class.VIEW and self.nodes[node].inputs[0] not in self.leaves:
                n = self.nodes[node]
                if n.op.role != "view" or n.attrs[2]:
                    return False
            elif self.cls[node] is Class.MAP and node not in self.leaves and self.nodes[node].op.role in VIEWS:
                return False
        return True

    def _offset(self, node: int, offset: int) -> int:
        """Number of an offset into a node's buffer."""
        if not offset or not self.named:
            return offset
        found = self.offsets.get((node, offset))
        if found is None:
            found = self.offsets[node, offset] = 1 + len(self.offsets)
        return found

    def _scalar(self, leaf: int) -> int:
        return self.scalars.setdefault(leaf, len(self.scalars))

    def _key(self) -> Any:
        g = self.g
        rows = [self._row(node, self.nodes[node]) for node in self.order]
        writes = [
            (
                self.number[w.target], self.number[w.value], w.coords, self._offset(w.target, w.form[0]), w.form[1],
                tuple([(self._scalar(leaf), factor) for leaf, factor in w.dynamic]), self.number.get(w.index, -1), w.index_coords,
                w.index_stride, w.limit, w.combine,
            )
            for w in self.writes
        ]  # fmt: skip
        stores = tuple([self.number[m] for m in self.stores])
        return tuple(rows), tuple(writes), stores, tuple(g.extents), g.reduced, self.named

    def _row(self, node: int, n: Node) -> Any:
        if n.op.role == "scalar":  # also where the group itself stands for the number
            return "scalar", self._scalar(n.attrs[0]), n.dtype
        if node in self.leaves:
            if self.cls[node] is not Class.NUMBER:
                return n.shape, n.dtype
            return "constant", repr(n.attrs[0]), n.dtype
        number = self.number
        inputs = tuple([number[i] for i in n.inputs])
        g = self.g
        attrs = n.attrs
        if self.named and self.cls[node] is Class.VIEW and n.inputs[0] in self.leaves:
            offset, _ = static_offset(self.nodes, n)
            attrs = (attrs[0], attrs[1], self._offset(n.inputs[0], offset))
        elif float in map(type, attrs):
            attrs = (attrs, repr(attrs))  # 0.0 == -0.0
        return n.op, attrs, n.shape, n.dtype, inputs, g.place.get(node), g.inner.get(node)

    # ---------------------------------------------------------------- launches by number, and back

    def template(self, launch: Launch | None) -> LaunchTemplate:
        """The launch of this group in numbers."""
        if launch is None:
            return LaunchTemplate(None)
        number = self.number
        positions = []
        position = launch.kernel.rank_p + launch.kernel.rank_r
        for access in launch.kernel.accesses:
            node = launch.operands[access.operand]
            if self.named and launch.params[position]:
                positions.append((position, (number[node], self.offsets[node, launch.params[position]])))
            position += 1 + access.strides.count("s") + (2 if access.indirect else 0)
        general = Launch(
            launch.kernel, tuple([number[n] for n in launch.operands]), launch.params, tuple([self.scalars[s] for s in launch.scalars]),
            tuple([(p, self.scalars[s], factor) for p, s, factor in launch.dynamic]), (),
            {number[n]: self._numbered(n, found) for n, found in launch.reads.items()},
            {number[n]: self._numbered(n, found) for n, found in launch.stores.items()},
        )  # fmt: skip
        return LaunchTemplate(general, tuple(positions))

    def _numbered(self, node: int, addresses: list[Address | None]) -> list[Address | None]:
        found: list[Address | None] = []
        for a in addresses:
            if a is not None:
                offset = self.offsets[node, a.form[0]] if self.named and a.form[0] else a.form[0]
                a = Address(self.number[node], (offset, a.form[1]), a.dynamic, a.out, a.index_stride, a.limit)
            found.append(a)
        return found

    def launch(self, template: LaunchTemplate) -> Launch | None:
        """The launch of this group that the template describes."""
        t = template.launch
        if t is None:
            return None
        order = self.order
        values = {(self.number[node], number): offset for (node, offset), number in self.offsets.items()}
        params = list(t.params)
        for position, place in template.offsets:
            params[position] = values[place]
        leaves = list(self.scalars)

        def actual(table: dict[int, list[Address | None]]) -> dict[int, list[Address | None]]:
            found: dict[int, list[Address | None]] = {}
            for k, addresses in table.items():
                node = order[k]
                back: list[Address | None] = []
                for a in addresses:
                    if a is not None:
                        offset = values[k, a.form[0]] if self.named and a.form[0] else a.form[0]
                        a = Address(node, (offset, a.form[1]), a.dynamic, a.out, a.index_stride, a.limit)
                    back.append(a)
                found[node] = back
            return found

        return Launch(
            t.kernel, tuple([order[k] for k in t.operands]), tuple(params), tuple([leaves[k] for k in t.scalars]),
            tuple([(p, leaves[k], factor) for p, k, factor in t.dynamic]), members(self.g), actual(t.reads), actual(t.stores),
        )  # fmt: skip


def members(g: Group) -> tuple[int, ...]:
    """Program positions that a group computes or writes."""
    return tuple(sorted({*g.members, *(w.target for w in g.writes)}))


class Templates:
    """Templates by key."""

    def __init__(self, templates: Cache) -> None:
        self.templates = templates
        self.hits = 0
        self.misses = 0
        self._lock = threading.Lock()

    def lower(self, fusion: Fusion, g: Group, needed: set[int]) -> Launch | None:
        """`lower_group`, or what it answered for an equal group."""
        described = Renumbered(fusion, g, needed)
        template = self.templates.get(described.key)
        if template is None:
            self.misses += 1
            launch = lower_group(fusion, g, needed)
            with self._lock:
                self.templates.keep(described.key, described.template(launch))
            return launch
        self.hits += 1
        launch = described.launch(template)
        if settings.verify:
            fresh = lower_group(fusion, g, needed)
            assert launch == fresh, f"a remembered group was lowered differently:\n{launch}\n{fresh}"
        return launch


MEMORY = Templates(Cache("lowered groups", 10_000, 1 / 64))
