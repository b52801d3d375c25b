"""From fused groups to launches: orders and merges loop dims, classifies strides, numbers everything canonically.

Two groups with the same structure give equal `LoopKernel`s whatever their extents and strides are.
"""

from __future__ import annotations

from dataclasses import field
from math import prod
from typing import Any

from calque.base.dataclass import dataclass
from calque.base.dtypes import DType, int64
from calque.ir.index import Form, NeedsSplit
from calque.kernel.emit import Address, Draft, Emitter
from calque.kernel.group import Group
from calque.kernel.loops import INDEXED, STORES, Access, Instr, LoopKernel, Operand, Stage
from calque.kernel.reader import Fusion

SHORT_R = 4  # an innermost R of at most this many elements is not worth a vector
MAX_FIXED = 16  # iterations over R that a kernel may write out one by one
PANEL_COLUMNS = 128  # sums down so many columns of
PANEL_BYTES = 24 << 20  # operands that no cache holds go row by row
TILE_STRIDE = 64  # elements: a column read with this stride or more touches a cache line per element
TILES = (16, 32, 28, 24, 20, 12, 8)  # block edges to try; more than 16 rows of a power-of-two stride collide in the L1 cache


@dataclass(slots=True)
class Launch:
    """A lowered loop group before memory is assigned. `operands` are program nodes. `reads` and `stores` list the addresses of
    every operand (None: indirect) for the memory planner."""

    kernel: LoopKernel
    operands: tuple[int, ...]
    params: tuple[int, ...]
    scalars: tuple[int, ...]
    dynamic: tuple[tuple[int, int, int], ...]
    nodes: tuple[int, ...]
    reads: dict[int, list[Address | None]] = field(default_factory=dict)
    stores: dict[int, list[Address | None]] = field(default_factory=dict)


class Lowering:
    """Lowers one draft."""

    def __init__(self, fusion: Fusion, g: Group, draft: Draft) -> None:
        self.nodes = fusion.facts.nodes
        self.g = g
        self.draft = draft
        self.addresses: list[Address] = []
        forms: list[Form] = []
        self._alive()
        for _, ids in self.stages:
            for k in ids:
                imm = draft.instrs[k][3]
                if type(imm) is Address:
                    self.addresses.append(imm)
                    forms.append(imm.form)
                elif draft.instrs[k][0] == "affine":
                    forms.append(imm)
        self.forms = forms
        self.coefs = [dict(f[1]) for f in forms]
        self.loads = [not a.out for a in self.addresses]
        self._order_dims()
        self._merge_dims()

    def _alive(self) -> None:
        """Drop instructions without effect."""
        draft = self.draft
        alive = [False] * len(draft.instrs)
        for op, ids in reversed(draft.stages):
            del op
            for k in reversed(ids):
                name, _, args, _ = draft.instrs[k]
                if alive[k] or name in STORES:
                    alive[k] = True
                    for a in args:
                        alive[a] = True
        kept = [(kind, [k for k in ids if alive[k]]) for kind, ids in draft.stages]
        self.stages = [(kind, ids) for kind, ids in kept if ids]

    # ---------------------------------------------------------------- loop dims

    def _order_dims(self) -> None:
        """P and R from outermost to innermost: by decreasing stores' (loads') strides, with the most contiguous dim innermost."""
        extents = self.g.extents
        used = [d for d, e in enumerate(extents) if e != 1]
        stores = [dict(a.form[1]) for a in self.addresses if a.out]
        loads = [dict(a.form[1]) for a in self.addresses if not a.out]
        weight = dict.fromkeys(used, 0)
        for share, forms in ((2, stores), (1, loads)):
            for c in forms:  # by size: many parameters per channel do not outweigh the pixels
                for d, step in c.items():
                    if step == 1:
                        weight[d] += share * prod([extents[k] for k in c])
        everything = sorted(stores, key=len, reverse=True) + sorted(loads, key=len, reverse=True)

        def rank(d: int) -> tuple[int, int]:
            for coefs in everything:
                if d in coefs:
                    return -abs(coefs[d]), d
            return -(1 << 62), d

        def arrange(dims: list[int]) -> list[int]:
            dims = sorted(dims, key=rank)
            if len(dims) > 1:
                best = max(dims, key=lambda d: (weight[d], dims.index(d)))
                dims.remove(best)
                dims.append(best)
            return dims

        self.p = arrange([d for d in used if d not in self.g.reduced])
        inner = [d for d in used if d in self.g.reduced]
        if self.draft.ordered is not None:
            order = dict(self.draft.ordered[1])
            self.r = sorted(inner, key=lambda d: -order.get(d, 0))
        else:
            self.r = arrange(inner)
        if not inner and self.draft.ordered is None and len(self.p) > 1:
            self._short_dims(stores, loads)

    def _short_dims(self, stores: list[dict[int, int]], loads: list[dict[int, int]]) -> None:
        """A contiguous dim of a few elements (the columns of a pooling window) becomes an inner loop below the next dim, which gets the
        vector when some load walks along that one alone; other short dims that such a load does not see go with it."""
        extents = self.g.extents
        last = next((d for d in self.p if extents[d] <= SHORT_R and any(c.get(d) == 1 for c in stores)), -1)
        wide = [d for d in self.p if extents[d] > SHORT_R and any(c.get(last) == 1 and c.get(d) == extents[last] for c in stores)]
        if not wide:
            return
        shared = [c for c in loads if wide[0] in c and last not in c]
        if not shared:
            return
        short = [d for d in self.p if d != last and extents[d] <= SHORT_R and any(d not in c for c in shared)]
        if prod(extents[d] for d in short) * extents[last] > MAX_FIXED:
            short = []
        self.r = [*short, last]
        self.p = [d for d in self.p if d != wide[0] and d not in self.r] + [wide[0]]

    def _merge_dims(self) -> None:
        """Neighbours that every form walks through as one dim become one dim."""
        extents = self.g.extents
        coefs = self.coefs

        def merge(dims: list[int]) -> list[tuple[int, int]]:
            merged: list[tuple[int, int]] = []  # (innermost dim, extent), built from the inside out
            for d in reversed(dims):
                if merged:
                    inner, extent = merged[-1]
                    for c in coefs:
                        if c.get(d, 0) != c.get(inner, 0) * extent:
                            break
                    else:
                        merged[-1] = (inner, extent * extents[d])
                        continue
                merged.append((d, extents[d]))
            return merged[::-1]

        self.p_dims = merge(self.p)
        self.r_dims = merge(self.r)
        self.dims = [(d, 1) for d, _ in self.p_dims + self.r_dims]
        self._tile()

    def _tile(self) -> None:
        """A transposing copy walks in blocks that stay in the cache: (.., d, .., v) -> (.., d', .., v', d'', v'')."""
        if self.r_dims or len(self.p_dims) < 2:
            return
        inner, columns = self.p_dims[-1]
        for k, (d, rows) in enumerate(self.p_dims[:-1]):
            loads = [dict(a.form[1]) for a in self.addresses if not a.out]
            if not any(c.get(d) == 1 and c.get(inner, 0) >= TILE_STRIDE for c in loads):
                continue
            high, wide = _divisor(rows), _divisor(columns)
            if high and wide:
                steps = [(e, 1) for e, _ in self.p_dims]
                steps[k], steps[-1] = (d, high), (inner, wide)
                self.dims = [*steps, (d, 1), (inner, 1)]
                self.p_dims[k], self.p_dims[-1] = (d, rows // high), (inner, columns // wide)
                self.p_dims += [(d, high), (inner, wide)]
            return

    def _classes(self, form: Form) -> tuple[tuple[str, ...], list[int]]:
        """Stride class per dim and the run-time strides. Only innermost dims have classes "1" and "2"."""
        coefs = dict(form[1])
        classes: list[str] = []
        strides: list[int] = []
        unit = (len(self.p_dims) - 1, len(self.dims) - 1)
        for k, (d, step) in enumerate(self.dims):
            c = coefs.get(d, 0) * step
            if c == 0:
                classes.append("0")
            elif c in (1, 2) and k in unit:
                classes.append(str(c))
            else:
                classes.append("s")
                strides.append(c)
        return tuple(classes), strides

    def _vector(self) -> str:
        """The axis with the most unit-stride accesses, among those of the innermost loop if any of them has one: what does not vary along a long R
        is read once for all of it. Indexed writes keep R in order, so only P may be vectorised; a short R (a pooling window) would leave most
        lanes empty."""
        draft = self.draft
        rows = {d for d, _ in self.r_dims} if prod(e for _, e in self.r_dims) > SHORT_R else set()
        inner = [a for a in self.addresses if not rows or any(d in rows for d, _ in a.form[1])]
        ordered = any(draft.instrs[k][0] in INDEXED for _, ids in self.stages for k in ids)

        def score(dims: list[tuple[int, int]], addresses: list[Address]) -> int:
            if not dims:
                return -1
            d = dims[-1][0]
            points = 0
            for a in addresses:
                c = dict(a.form[1]).get(d, 0)
                weight = len(a.form[1])
                if c == 1:
                    points += 2 * weight
                elif c:
                    points -= weight
            return points

        for among in (inner, list(self.addresses)):
            p, r = score(self.p_dims, among), -1 if ordered else score(self.r_dims, among)
            if max(p, r) > 0:
                break
        if self.r_dims and self.p_dims and self.r_dims[-1][1] <= SHORT_R < self.p_dims[-1][1]:
            return "p"
        if max(p, r) < 0 and not (self.p_dims and not self.r_dims):
            return ""
        return "r" if r > p else "p" if self.p_dims else ""

    def _many_columns(self) -> bool:
        """Whether the vectorised dim is long and dense in the rows that R counts, and memory is what the kernel waits for: from a cache the
        walk down a few columns is as fast, with the sums in registers."""
        if len(self.r_dims) != 1 or not self.p_dims or self.p_dims[-1][1] < PANEL_COLUMNS:
            return False
        (c, columns), (r, _) = self.p_dims[-1], self.r_dims[0]
        forms = [(a.node, dict(a.form[1])) for a in self.addresses]
        walked = {node for node, f in forms if f.get(c) == 1 and f.get(r, 0) >= columns}
        dense = all(f.get(c, 0) in (0, 1) for _, f in forms)
        return dense and sum(self.nodes[node].numel * self.nodes[node].dtype.itemsize for node in walked) >= PANEL_BYTES

    # ---------------------------------------------------------------- numbering

    def run(self) -> Launch:
        """The canonical kernel and its launch parameters."""
        draft = self.draft
        extents = [e for _, e in self.p_dims + self.r_dims]
        self.operands: dict[tuple[int, bool], int] = {}
        self.accesses: dict[Address, int] = {}
        self.access_list: list[Access] = []
        self.params = list(extents)
        self.dynamic: list[tuple[int, int, int]] = []
        self.scalars: dict[int, int] = {}
        self.scalar_types: list[DType] = []
        self.number: dict[int, int] = {}
        self.count = 0
        stages: list[Stage] = []
        for kind, ids in self.stages:
            first = self.count
            out: list[Instr] = []
            for k in ids:
                self._instruction(draft.instrs[k], k, out)
            stages.append(Stage(kind, first, tuple(out)))
        operands = tuple(Operand(self.nodes[n].dtype, out_) for n, out_ in self.operands)
        vector, fixed = self._vector(), self._fixed()
        panels = vector == "p" and not fixed and self._many_columns()
        kernel = LoopKernel(
            len(self.p_dims), len(self.r_dims), operands, tuple(self.access_list), tuple(stages), vector, tuple(self.scalar_types), fixed, panels
        )
        launch = Launch(
            kernel, tuple(n for n, _ in self.operands), tuple(self.params), tuple(self.scalars), tuple(self.dynamic),
            tuple(sorted({*self.g.members, *(w.target for w in self.g.writes)})),
        )  # fmt: skip
        for address in self.accesses:
            table = launch.stores if address.out else launch.reads
            plain = address.limit < 0 and not address.dynamic
            table.setdefault(address.node, []).append(address if plain else None)
        return launch

    def _fixed(self) -> tuple[int, ...]:
        """Extents of R that are part of the kernel."""
        inner = tuple([e for _, e in self.r_dims])
        return inner if self._vector() == "p" and max(inner, default=9) <= SHORT_R and prod(inner) <= MAX_FIXED else ()

    def _push(self, out: list[Instr], instr: Instr) -> int:
        out.append(instr)
        self.count += 1
        return self.count - 1

    def _instruction(self, instr: tuple[str, DType, tuple[int, ...], Any], k: int, out: list[Instr]) -> None:
        op, dtype, args, imm = instr
        if op == "affine":
            self.number[k] = self._affine(imm, out)
            return
        if type(imm) is Address:
            imm = self._access(imm)
        elif op == "scalar":
            if imm not in self.scalars:
                self.scalars[imm] = len(self.scalars)
                self.scalar_types.append(dtype)
            imm = self.scalars[imm]
        self.number[k] = self._push(out, Instr(op, dtype, tuple([self.number[a] for a in args]), imm))

    def _access(self, address: Address) -> int:
        found = self.accesses.get(address)
        if found is not None:
            return found
        operand = self.operands.setdefault((address.node, address.out), len(self.operands))
        classes, strides = self._classes(address.form)
        for leaf, factor in address.dynamic:
            self.dynamic.append((len(self.params), leaf, factor))
        self.params.append(address.form[0])
        self.params += strides
        if address.limit >= 0:
            self.params += [address.index_stride, address.limit]
        self.access_list.append(Access(operand, classes, address.limit >= 0))
        self.accesses[address] = len(self.accesses)
        return len(self.accesses) - 1

    def _affine(self, form: Form, out: list[Instr]) -> int:
        """offset + sum(coef * index) in int64 instructions."""
        total = -1
        coefs = dict(form[1])
        for k, (d, step) in enumerate(self.dims):
            c = coefs.get(d, 0) * step
            if c == 0:
                continue
            term = self._push(out, Instr("index", int64, (), k))
            if c != 1:
                term = self._push(out, Instr("mul", int64, (term, self._factor(c, k, out))))
            total = term if total < 0 else self._push(out, Instr("add", int64, (total, term)))
        if form[0] or total < 0:
            shift = self._push(out, Instr("const", int64, (), form[0]))
            total = shift if total < 0 else self._push(out, Instr("add", int64, (total, shift)))
        return total

    def _factor(self, c: int, k: int, out: list[Instr]) -> int:
        """The factor of dim k in a position: the product of the extents of the dims behind it, where it is that, so that other sizes need no other
        kernel; else a constant."""
        extents = [e for _, e in self.p_dims + self.r_dims]
        if self._fixed() or prod(extents[k + 1 :]) != c:
            return self._push(out, Instr("const", int64, (), c))
        found = self._push(out, Instr("extent", int64, (), k + 1))
        for d in range(k + 2, len(extents)):
            found = self._push(out, Instr("mul", int64, (found, self._push(out, Instr("extent", int64, (), d)))))
        return found


def lower_group(fusion: Fusion, g: Group, needed: set[int]) -> Launch | None:
    """The launch of a loop group, or None when nobody needs anything of it."""
    while True:
        try:
            draft = Emitter(fusion, g, needed).run()
            break
        except NeedsSplit as request:
            g.split(request)
    if not draft.stages:
        return None
    return Lowering(fusion, g, draft).run()


def _divisor(extent: int) -> int:
    """Edge of a block that divides the extent; 0 for none."""
    return next((t for t in TILES if extent % t == 0 and extent > t), 0)
