"""Kernels that reduce down columns, walked row by row.

A unit of work is a panel: some hundred columns at one point of the outer P dims. Its rows are read from left to right, as they lie in memory, and
what a column knows so far waits in the thread's scratch memory. With the sums in registers instead, a unit is a few vectors wide, and every row
costs the processor a new page and its prefetchers a new start: fine only for few columns. The order of every sum is the same in both forms.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import field
from typing import Protocol

from calque.backend.cpu.loops.emit_memory import LoadedWords
from calque.backend.cpu.loops.emit_ops import Val
from calque.backend.cpu.loops.emit_plan import VectorPlan, instruction_cost, levels, scalar_stage
from calque.backend.cpu.loops.emit_reduce import BLOCK, Accumulator, Reduction
from calque.backend.cpu.text.emit_text import Code, Lanes, Value, register_kind
from calque.base.dataclass import dataclass
from calque.kernel.loops import STORES, Instr, LoopKernel, Stage

WIDE, NARROW = 2048, 256  # columns of a panel: of a kernel with one loop over the rows; with several, so that its rows stay in the cache
LEAST = 64  # columns of a panel that is cut so that every thread gets one
MOST_SLOTS = 12
MOST_COST = 12  # of a loop's instructions (see `instruction_cost`), up to which a block of rows is written out
AHEAD = 2  # rows between one and that which it asks for


def columns(kernel: LoopKernel) -> int:
    """Columns of a panel at most."""
    return WIDE if sum(stage.kind != "point" for stage in kernel.stages) == 1 else NARROW


def suits(kernel: LoopKernel, plan: VectorPlan) -> bool:
    """Whether a kernel is written this way: lowering asks for it, and everything that waits is a number that differs from column to column."""
    if not kernel.panels or plan.along != "p" or plan.width == 1 or kernel.rank_r != 1 or kernel.fixed:
        return False
    reductions = [v for v, i in enumerate(kernel.instructions()) if i.op == "reduce"]
    if not all(plan.varying(v) for v in reductions) or any(scalar_stage(kernel, stage, plan.axis) for stage in kernel.stages):
        return False
    waiting = _waiting(kernel, plan)
    instrs, level = kernel.instructions(), levels(kernel, plan)
    if any(level[v] == 1 and not plan.varying(v) and i.op not in STORES for v, i in enumerate(instrs)):
        return False
    return len(waiting) + 2 * len(reductions) <= MOST_SLOTS and not any(register_kind(instrs[v].dtype) == "i1" for v in (*waiting, *reductions))


def _waiting(kernel: LoopKernel, plan: VectorPlan) -> list[int]:
    """Values of a column that another loop over the columns uses: of an earlier stage, or of the part of a stage before its rows."""
    found: set[int] = set()
    level = levels(kernel, plan)
    for stage in kernel.stages:
        for value, instr in enumerate(stage.instrs, stage.first):
            for a in instr.args:
                if plan.varying(a) and (a < stage.first or level[a] != level[value]):
                    found.add(a)
    return sorted(found)


@dataclass(slots=True)
class VectorGroup:
    """One vector of positions: its loop indices, the element offset of every access there, and the values computed so far."""

    index: dict[int, Value]
    offset: dict[int, Value]
    values: dict[int, Val] = field(default_factory=dict)


@dataclass(slots=True)
class LoopForm:
    """One form of the vectorised loop: `s` gives the width, `mask` the active lanes ("" for all), `count` the vectors per
    turn."""

    s: Lanes
    mask: str
    count: int


class PanelEmitter(Protocol):
    """What a panel needs of the emitter of its kernel (`emit.KernelEmitter`)."""

    kernel: LoopKernel
    plan: VectorPlan
    levels: list[int]
    code: Code
    frame: LoadedWords
    shared: dict[int, Val]
    scalar_variant: LoopForm

    def inside(self, stage: Stage, groups: list[VectorGroup], dim: int, r: Value) -> list[VectorGroup]:
        """The groups at index r of one R dim."""

    def split(self, variant: LoopForm, group: VectorGroup, n: Value, stages: tuple[Stage, ...]) -> list[VectorGroup]:
        """One group per vector of a turn of the vectorised loop at position n."""

    def variants(
        self, start: Value, stop: Value, body: Callable[[LoopForm, Value], None], unroll: int, width: int = 0, after: Callable[[], None] | None = None
    ) -> None:
        """The vectorised loop from start to stop in all its forms."""

    def blocks(self, start: Value, stop: Value, step: int, after: Callable[[], None]) -> AbstractContextManager[str]:
        """A counted loop with something to do after every block of turns."""

    def level(self, stage: Stage, level: int, variant: LoopForm, groups: list[VectorGroup], varying: bool | None = None) -> None:
        """The instructions of a stage that stand at one loop level."""

    def accumulate(self, stage: Stage, variant: LoopForm, groups: list[VectorGroup], accumulators: list[dict[int, Accumulator]]) -> None:
        """Take the values of a turn into its sums."""

    def ask_ahead(self, variant: LoopForm, group: VectorGroup, n: Value, dim: int, rows: Value = "") -> None:
        """Fetch a later row in `dim`, if the plan says so."""

    def kernel_dtype(self, value: int) -> Instr:
        """The instruction with an id."""


class Panel:
    """Writes one unit of work of a kernel that `suits`."""

    def __init__(self, emitter: PanelEmitter, start: Value, stop: Value) -> None:
        self.e, self.start, self.stop = emitter, start, stop
        kernel, plan = emitter.kernel, emitter.plan
        self.waiting = _waiting(kernel, plan)
        reductions = [v for v, i in enumerate(kernel.instructions()) if i.op == "reduce"]
        self.slots = {("value", v): k for k, v in enumerate(self.waiting)}
        for v in reductions:
            self.slots["sum", v] = len(self.slots)
            self.slots["second", v] = len(self.slots)

    def write(self, group: VectorGroup) -> None:
        """All stages. A stage is a loop over the columns for what does not vary with the rows, then the rows, then the ends of its sums."""
        for stage in self.e.kernel.stages:
            self._columns(stage, group, 1, before=True)
            if stage.kind == "point":
                continue
            self._rows(stage, group)
            if any(i.op == "reduce" for i in stage.instrs):
                self._columns(stage, group, 1, before=False)

    def _rows(self, stage: Stage, group: VectorGroup) -> None:
        e, dim = self.e, self.e.kernel.rank_p
        kept, last = e.shared, [s for s in e.kernel.stages if s.kind != "point"][-1]

        def flush() -> None:
            def body(variant: LoopForm, n: Value) -> None:
                for u in range(variant.count):
                    for a in self._accumulators(stage, variant.s, self._at(n, u, variant)).values():
                        a.flush()

            e.variants(self.start, self.stop, body, 1)

        blocked = any(self._reduction(stage, v).widens for v, i in enumerate(stage.instrs, stage.first) if i.op == "reduce")
        start = self._whole_blocks(stage, group) if self._cheap(stage) else "0"
        rows = e.blocks(start, e.frame.extents[dim], 1, flush) if blocked else e.code.loop("0", e.frame.extents[dim])
        with rows as r:
            e.shared = dict(kept)
            inner = e.inside(stage, [group], dim, r)[0]
            e.level(stage, 2, e.scalar_variant, [inner], varying=False)

            def body(variant: LoopForm, n: Value) -> None:
                outer = e.shared
                e.shared = dict(outer)
                groups = e.split(variant, inner, n, (stage,))
                self._fetch(stage, 2, variant, groups, n)
                e.level(stage, 2, variant, groups, varying=True)
                e.accumulate(stage, variant, groups, [self._accumulators(stage, variant.s, self._at(n, u, variant)) for u in range(len(groups))])
                if stage is last:
                    e.ask_ahead(variant, inner, n, dim)
                e.shared = outer

            e.variants(self.start, self.stop, body, e.plan.unrolls[e.kernel.stages.index(stage)])
        e.shared = kept

    def _cheap(self, stage: Stage) -> bool:
        """Whether a block of rows is written out: its few instructions take less time than reading and writing sums in scratch memory for each."""
        reductions = [self._reduction(stage, v) for v, i in enumerate(stage.instrs, stage.first) if i.op == "reduce"]
        alone = bool(reductions) and all(r.widens for r in reductions) and not any(i.op in STORES for i in stage.instrs)
        return alone and instruction_cost(stage.instrs) <= MOST_COST

    def _whole_blocks(self, stage: Stage, group: VectorGroup) -> str:
        """The rows of whole blocks, of which each column keeps its sums in registers; where the others begin. Rows of the next block are asked for
        unless there are two operands or more, where that gains nothing (decision 0032)."""
        e, dim, code = self.e, self.e.kernel.rank_p, self.e.code
        whole = code.let(f"and i64 {e.frame.extents[dim]}, {-BLOCK}")
        kept = e.shared
        with code.loop("0", whole, BLOCK) as first:
            rows: list[tuple[VectorGroup, dict[int, Val]]] = []
            for k in range(BLOCK):
                e.shared = dict(kept)
                inner = e.inside(stage, [group], dim, code.add(first, k))[0]
                e.level(stage, 2, e.scalar_variant, [inner], varying=False)
                rows.append((inner, e.shared))

            def body(variant: LoopForm, n: Value) -> None:
                sums = [self._accumulators(stage, variant.s, self._at(n, u, variant), True) for u in range(variant.count)]
                for inner, shared in rows:
                    e.shared = dict(shared)
                    groups = e.split(variant, inner, n, (stage,))
                    self._fetch(stage, 2, variant, groups, n)
                    e.level(stage, 2, variant, groups, varying=True)
                    e.accumulate(stage, variant, groups, sums)
                    if len(e.plan.ahead) == 1:
                        e.ask_ahead(variant, inner, n, dim, str(BLOCK))
                for found in sums:
                    for a in found.values():
                        a.flush()

            e.variants(self.start, self.stop, body, e.plan.unrolls[e.kernel.stages.index(stage)])
        e.shared = kept
        return whole

    def _columns(self, stage: Stage, group: VectorGroup, level: int, before: bool) -> None:
        """The loop over the columns in front of the rows of a stage, or behind them."""
        e = self.e
        sums = [v for v, i in enumerate(stage.instrs, stage.first) if i.op == "reduce"]
        if before:
            work = [v for v, i in enumerate(stage.instrs, stage.first) if e.levels[v] == level and i.op != "reduce" and self._concerns(i.op, v)]
            if not work and not sums:
                return

        def body(variant: LoopForm, n: Value) -> None:
            outer = e.shared
            e.shared = dict(outer)
            groups = e.split(variant, group, n, (stage,))
            if before:
                self._fetch(stage, level, variant, groups, n)
                e.level(stage, level, variant, groups, varying=True)
            for u, g in enumerate(groups):
                at = self._at(n, u, variant)
                for value, accumulator in self._accumulators(stage, variant.s, at).items():
                    if before:
                        accumulator.reset()
                    else:
                        g.values[value] = accumulator.reduction.finish(variant.s, *accumulator.read())
                for value in self.waiting:
                    if value in g.values and (value in sums) is not before and stage.first <= value < stage.first + len(stage.instrs):
                        self._keep(variant.s, value, g.values[value], at)
            e.shared = outer

        e.variants(self.start, self.stop, body, 1)

    def _concerns(self, op: str, value: int) -> bool:
        return op in STORES or self.e.plan.varying(value)

    # scratch memory: one slot of eight bytes per column for every value

    def _at(self, n: Value, u: int, variant: LoopForm) -> Value:
        """Number of a vector's first column within the panel."""
        code = self.e.code
        return code.add(code.sub(n, self.start), u * variant.s.width)

    def _place(self, what: str, value: int, kind: str, at: Value) -> str:
        code = self.e.code
        base = code.let(f"getelementptr i8, ptr %scratch, i64 {self.slots[what, value] * columns(self.e.kernel) * 8}")
        return code.let(f"getelementptr {kind}, ptr {base}, i64 {at}")

    def _reduction(self, stage: Stage, value: int) -> Reduction:
        instr = stage.instrs[value - stage.first]
        return Reduction(instr.imm, self.e.kernel_dtype(instr.args[0]).dtype, instr.dtype)

    def _accumulators(self, stage: Stage, s: Lanes, at: Value, variables: bool = False) -> dict[int, Accumulator]:
        """The sums of a vector of columns; `variables`: those of a block of rows are held in such, which begin with 0."""
        found = {}
        for value, instr in enumerate(stage.instrs, stage.first):
            if instr.op == "reduce":
                reduction = self._reduction(stage, value)
                second = self._place("second", value, reduction.second_kind, at) if reduction.second_kind else ""
                part = ""
                if reduction.widens and s.width > 1:
                    part = self._place("second", value, "float", at) if not variables else self.e.code.variable(type_=s.type("float"))
                if part and variables:
                    self.e.code.assign(part, s.const("float", 0.0), s.type("float"))
                found[value] = Accumulator(reduction, s, (self._place("sum", value, reduction.kind, at), second, part), blocked=True)
        return found

    def _keep(self, s: Lanes, value: int, found: Val, at: Value) -> None:
        self.e.code.emit(f"store {s.type(found.kind)} {found.text}, ptr {self._place('value', value, found.kind, at)}, align 8")

    def _fetch(self, stage: Stage, level: int, variant: LoopForm, groups: list[VectorGroup], n: Value) -> None:
        """Load what the instructions of a level want and other loops left."""
        e = self.e
        wanted = [a for v, i in enumerate(stage.instrs, stage.first) if e.levels[v] == level for a in i.args if a in self.waiting]
        for value in sorted(set(wanted)):
            if value >= stage.first and e.levels[value] == level and e.kernel_dtype(value).op != "reduce":
                continue
            dtype = e.kernel_dtype(value).dtype
            kind = register_kind(dtype)
            for u, group in enumerate(groups):
                place = self._place("value", value, kind, self._at(n, u, variant))
                text = e.code.let(f"load {variant.s.type(kind)}, ptr {place}, align 8")
                group.values[value] = Val(text, dtype, variant.s.width)
