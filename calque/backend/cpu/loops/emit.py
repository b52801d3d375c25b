"""Loop kernels as LLVM IR text.

One kernel becomes one function of the ABI in `docs/architecture.md`. Its work is a row of *units*: one point of P (vector
along R) or a block of
the innermost P dim at one point of the outer ones (vector along P). A thread takes a contiguous part of the row. Inside a
unit every stage
opens its loops over R; the vectorised loop comes in up to three variants: several vectors per turn, one vector (masked where
the processor
can), and single elements for the tail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from calque.backend.cpu.compile.target import TargetInfo
from calque.backend.cpu.loops import emit_memory as memory
from calque.backend.cpu.loops import emit_panel
from calque.backend.cpu.loops.emit_ops import Val, bitcast, cast, constant, instruction, widen
from calque.backend.cpu.loops.emit_panel import LoopForm, VectorGroup
from calque.backend.cpu.loops.emit_plan import AHEAD_ELEMENTS, LOOKUPS_AHEAD, VectorPlan, levels, make_plan, scalar_stage
from calque.backend.cpu.loops.emit_reduce import BLOCK, Accumulator, Reduction
from calque.backend.cpu.text.emit_text import FLOAT_KINDS, Code, Lanes, TextModule, Value, is_literal
from calque.base.errors import CompileError
from calque.kernel.loops import JOINING, STORES, Instr, LoopKernel, Stage, in_order

SIGNATURE = "void @{}(i64 %thread, i64 %threads, ptr %barrier, ptr %scratch, ptr %args)"


class KernelEmitter:
    """Writes one kernel."""

    def __init__(self, kernel: LoopKernel, target: TargetInfo, symbol: str) -> None:
        self.kernel = kernel
        self.target = target
        self.symbol = symbol
        self.plan: VectorPlan = make_plan(kernel, target)
        self.levels = levels(kernel, self.plan)
        self.panels = emit_panel.suits(kernel, self.plan)
        self.code = Code()
        self.module = TextModule()
        self.one = Lanes(self.code, self.module, 1, target)
        self.vector = Lanes(self.code, self.module, self.plan.width, target) if self.plan.width > 1 else self.one
        self.scalar_variant = LoopForm(self.one, "", 1)
        self.frame = memory.LoadedWords(kernel, self.code, self.vector, self.plan.axis)
        self.shared: dict[int, Val] = {}
        self.ahead = str(emit_panel.AHEAD if self.panels else 1)  # rows between one and that which it asks for
        self.waiting: dict[tuple[int, int], tuple[Value, Val]] = {}  # stores that the next turn completes, by access and number of the group

    def text(self) -> str:
        """The module."""
        self._units()
        if self.kernel.streams:  # what follows a barrier sees streamed stores only behind a fence
            self.code.emit(f"call void {self.module.declare('llvm.x86.sse.sfence', 'void', [])}()")
        bits = 8 * self.target.vector_bytes
        body = self.code.kernel(SIGNATURE.format(self.symbol), "#0")
        attributes = f'attributes #0 = {{ nounwind "prefer-vector-width"="{bits}" "min-legal-vector-width"="{bits}" }}\n'
        return body + self.module.text() + attributes

    # units of work

    def _units(self) -> None:
        code, plan, extents = self.code, self.plan, self.frame.extents
        outer = [d for d in range(self.kernel.rank_p) if not (plan.along == "p" and d == plan.axis)]
        digits = [(d, extents[d]) for d in outer]
        block: Value = plan.block
        if plan.along == "p":
            inner = extents[plan.axis]
            if self.panels:
                block = self._panel_columns(inner, outer)
            elif self.kernel.rank_r and not self.kernel.fixed and plan.unroll > 1:  # few columns: smaller blocks, so that every thread gets some
                enough = code.let(f"icmp sge i64 {inner}, {code.mul('%threads', block)}")
                block = code.let(f"select i1 {enough}, i64 {block}, i64 {plan.width}")
            count = code.let(f"sdiv i64 {code.add(inner, code.sub(block, '1'))}, {block}")
            digits.insert(0 if plan.block_outermost else len(digits), (-1, count))
        total: Value = 1
        for _, count in digits:
            total = code.mul(total, count)
        low = code.let(f"sdiv i64 {code.mul(total, '%thread')}, %threads")
        high = code.let(f"sdiv i64 {code.mul(total, code.add('%thread', '1'))}, %threads")
        with code.when(code.let(f"icmp slt i64 {low}, {high}")):
            if plan.ahead and self.kernel.rank_r > 1:
                self.ahead = self._channels_ahead()
            counters = memory.Odometer(code, digits, low)
            with code.loop(low, high) as unit:
                index = counters.read(unit)
                self._unit(index, block)
                counters.advance()

    def _channels_ahead(self) -> str:
        """How far ahead a kernel over channels asks: one, or none if a channel is long."""
        code = self.code
        size: Value = 1
        for extent in self.frame.extents[self.kernel.rank_p :]:
            size = code.mul(size, extent)
        return code.let(f"zext i1 {code.let(f'icmp sle i64 {size}, {AHEAD_ELEMENTS}')} to i64")

    def _panel_columns(self, inner: str, outer: list[int]) -> Value:
        """Columns of a panel: so many that every thread gets one, within bounds."""
        code = self.code
        total: Value = inner
        for d in outer:
            total = code.mul(total, self.frame.extents[d])
        share = code.let(f"sdiv i64 {code.add(total, code.sub('%threads', '1'))}, %threads")
        whole = code.let(f"and i64 {code.add(share, emit_panel.LEAST - 1)}, {-emit_panel.LEAST}")
        return code.min(code.max(whole, emit_panel.LEAST), emit_panel.columns(self.kernel))

    def _unit(self, index: dict[int, Value], block: Value) -> None:
        code, plan = self.code, self.plan
        self.shared = {}
        position = index.pop(-1, "")
        group = VectorGroup(index, self.frame.start())
        for d in index:
            group.offset = self.frame.moved(group.offset, d, index[d], self._accesses(self.kernel.stages))
        for stage in self.kernel.stages:
            self.level(stage, 0, LoopForm(self.one, "", 1), [group])
        if plan.along == "r":
            for stage in self.kernel.stages:
                self._rows(stage, group)
            return
        start = code.mul(position, block)
        stop = code.min(code.add(start, block), self.frame.extents[plan.axis])
        if self.panels:
            emit_panel.Panel(self, start, stop).write(group)
            return
        following = self._next_rows(group)
        spread = self._spread(*self.kernel.stages)

        def body(variant: LoopForm, n: Value) -> None:
            groups = self.split(variant, group, n, self.kernel.stages)
            for g in groups if variant.s.width > 1 else ():
                g.values.update(spread)
            self._panel(variant, groups)
            for access, row in following.items() if not variant.mask else ():
                for u in range(variant.count):
                    self.frame.prefetch(variant.s, access, code.add(row, code.add(n, u * variant.s.width)))

        self.variants(start, stop, body, plan.unroll)

    def _next_rows(self, group: VectorGroup) -> dict[int, Value]:
        """Where the rows begin that a later point of the dim before the vectorised one looks up; the last one at the end of that dim."""
        code, frame, dim, found = self.code, self.frame, self.plan.axis - 1, {}
        for access, index in self.plan.lookups:
            step = code.min(code.sub(code.sub(frame.extents[dim], 1), group.index[dim]), LOOKUPS_AHEAD)
            source = self.kernel_dtype(index).imm
            here = code.add(group.offset[source], code.mul(step, frame.strides[source][dim]))
            chosen = frame.load(self.one, self.one, source, here, None, "")
            base = code.add(group.offset[access], code.mul(step, frame.strides[access][dim]))
            found[access] = code.add(base, frame.indexed(self.one, access, chosen).text)
        return found

    def variants(
        self, start: Value, stop: Value, body: Callable[[LoopForm, Value], None], unroll: int, width: int = 0, after: Callable[[], None] | None = None
    ) -> None:
        """The vectorised loop from start to stop in all its forms. Masked accesses cost several times as much as plain ones (Zen 5: half
        the speed of batch normalisation), so a mask is for the last vector only. `after` is for blocks of turns; what
        follows the last one is at most half a block, the vectors of less than a turn and a mask: not more than a block in all."""
        code = self.code
        width = width or self.plan.width
        if width == 1:
            with code.loop(start, stop) as n:
                body(LoopForm(self.one, "", 1), n)
            return
        lanes = self.vector
        for count in dict.fromkeys((unroll, 1)):
            whole = code.let(f"and i64 {code.sub(stop, start)}, {-width * count}")
            middle = code.add(start, whole)
            if after is not None and count == unroll:
                with self.blocks(start, middle, width * count, after, BLOCK // 2 + 1) as n:
                    body(LoopForm(lanes, "", count), n)
            else:
                with code.loop(start, middle, width * count) as n:
                    body(LoopForm(lanes, "", count), n)
            start = middle
        if self.target.masked:
            with code.loop(start, stop, width) as n:
                body(LoopForm(lanes, self.frame.tail_mask(lanes, n, stop), 1), n)
            return
        with code.loop(start, stop) as n:
            body(LoopForm(self.one, "", 1), n)

    @contextmanager
    def blocks(self, start: Value, stop: Value, step: int, after: Callable[[], None], least: int = 1) -> Iterator[str]:
        """`Code.loop` with something to do after every `BLOCK` turns, and behind the last ones if they are `least` or more."""
        code = self.code
        with code.loop(start, stop, step * BLOCK) as first:
            end = code.min(code.add(first, step * BLOCK), stop)
            with code.loop(first, end, step) as n:
                yield n
            if least > 1:
                with code.when(code.let(f"icmp sge i64 {code.sub(end, first)}, {step * least}")):
                    after()
            else:
                after()

    def split(self, variant: LoopForm, group: VectorGroup, n: Value, stages: tuple[Stage, ...]) -> list[VectorGroup]:
        """One group per vector of a turn of the vectorised loop at position n."""
        axis, used = self.plan.axis, self._accesses(stages)
        groups = []
        for u in range(variant.count):
            here = self.code.add(n, u * variant.s.width)
            moved = self.frame.moved(group.offset, axis, here, used)
            groups.append(VectorGroup({**group.index, axis: here}, moved))
        return groups

    def _accesses(self, stages: tuple[Stage, ...]) -> list[int]:
        """Accesses used in some stages."""
        return sorted({i.imm for s in stages for i in s.instrs if i.op in ("load", "load_at", *STORES)})

    # stages

    def _panel(self, variant: LoopForm, groups: list[VectorGroup]) -> None:
        """All stages at one or more vectors of positions along P."""
        outer = self.shared
        self.shared = dict(outer)
        for stage in self.kernel.stages:
            self.level(stage, 1, variant, groups)
            if stage.kind == "point":
                continue
            accumulators = [self._accumulators(stage, variant.s) for _ in groups]
            known = self._found_with_places(stage)
            for found in accumulators:
                for value in known:
                    del found[value]
            self._nest(stage, variant, groups, accumulators, 0)
            for g, found in zip(groups, accumulators, strict=True):
                for value, a in found.items():
                    g.values[value] = a.reduction.finish(a.s, *a.read())
                for value, place in known.items():
                    g.values[value] = Val(found[place].read()[0], self.kernel_dtype(value).dtype, found[place].s.width)
        self.shared = outer

    def _found_with_places(self, stage: Stage) -> dict[int, int]:
        """Extremes whose place is wanted too, with the id of what finds it: that holds the extreme."""
        found = {}
        for value, instr in enumerate(stage.instrs, stage.first):
            if instr.op == "reduce" and instr.imm in ("max", "min") and self.kernel_dtype(instr.args[0]).dtype is instr.dtype:
                for place, other in enumerate(stage.instrs, stage.first):
                    if other.op == "reduce" and other.imm == "arg" + instr.imm and other.args[0] == instr.args[0]:
                        found[value] = place
        return found

    def _nest(
        self, stage: Stage, variant: LoopForm, groups: list[VectorGroup], accumulators: list[dict[int, Accumulator]], depth: int
    ) -> None:
        """The loops of a stage over R from dim number `depth` on; dims of a fixed extent are written out."""
        if depth == self.kernel.rank_r:
            self.accumulate(stage, variant, groups, accumulators)
            return
        dim, kept = self.kernel.rank_p + depth, self.shared

        def flush() -> None:
            for found in accumulators:
                for a in found.values():
                    a.flush()

        with ExitStack() as loops:
            if self.kernel.fixed:
                turns = [str(r) for r in range(self.kernel.fixed[depth])]
            elif depth == self.kernel.rank_r - 1 and any(a.part_type for a in accumulators[0].values()):
                turns = [loops.enter_context(self.blocks("0", self.frame.extents[dim], 1, flush))]
            else:
                turns = [loops.enter_context(self.code.loop("0", self.frame.extents[dim]))]
            for r in turns:
                self.shared = dict(kept)
                inner = self.inside(stage, groups, dim, r)
                self.level(stage, 2 + depth, variant, inner)
                self._nest(stage, variant, inner, accumulators, depth + 1)
        self.shared = kept

    def inside(self, stage: Stage, groups: list[VectorGroup], dim: int, r: Value) -> list[VectorGroup]:
        """The groups at index r of one R dim."""
        used = self._accesses((stage,))
        return [VectorGroup({**g.index, dim: r}, self.frame.moved(g.offset, dim, r, used), dict(g.values)) for g in groups]

    def _rows(self, stage: Stage, group: VectorGroup) -> None:
        """One stage at one point of P, with the innermost R dim vectorised."""
        kernel, plan = self.kernel, self.plan
        self.level(stage, 1, LoopForm(self.one, "", 1), [group])
        if stage.kind == "point":
            return
        alone = plan.axis >= 0 and scalar_stage(kernel, stage, plan.axis)
        partial: dict[tuple[int, int], dict[int, Accumulator]] = {}
        unroll = plan.unrolls[kernel.stages.index(stage)]
        for width, count in self._forms(alone, unroll):
            for u in range(count):
                partial[width, u] = self._accumulators(stage, self.vector if width > 1 else self.one)
        kept, last = self.shared, [s for s in kernel.stages if s.kind != "point"][-1]
        with ExitStack() as loops:
            self.shared = dict(kept)
            inner = [VectorGroup(group.index, group.offset)]
            for j in range(kernel.rank_r - 1):
                r = loops.enter_context(self.code.loop("0", self.frame.extents[kernel.rank_p + j]))
                inner = self.inside(stage, inner, kernel.rank_p + j, r)
                self.level(stage, 2 + j, LoopForm(self.one, "", 1), inner)

            spread = self._spread(stage)

            def body(variant: LoopForm, n: Value) -> None:
                outer = self.shared
                self.shared = dict(outer)
                groups = self.split(variant, inner[0], n, (stage,))
                for g in groups if variant.s.width > 1 else ():
                    g.values.update(spread)
                self.level(stage, 1 + kernel.rank_r, variant, groups)
                self.accumulate(stage, variant, groups, [partial[variant.s.width, u] for u in range(variant.count)])
                if stage is last:
                    self.ask_ahead(variant, inner[0], n, kernel.rank_p - 1)
                self.shared = outer

            wide = [found for (width, _), found in partial.items() if width > 1]

            def flush() -> None:
                for value, a in wide[0].items():
                    a.flush([found[value] for found in wide[1:]])

            blocked = wide and any(a.part_type for a in wide[0].values())
            if plan.axis < 0:
                self.accumulate(stage, LoopForm(self.one, "", 1), inner, [partial[1, 0]])
            else:
                start = "0" if alone else self._first_line(stage, inner[0], body)
                self.variants(start, self.frame.extents[plan.axis], body, unroll, width=1 if alone else 0, after=flush if blocked else None)
                if blocked:
                    flush()
        self.shared = kept
        self._merge(partial)

    def _spread(self, *stages: Stage) -> dict[int, Val]:
        """What is the same in all lanes, in every lane of a register: LLVM would do this anew in every turn of the loop over a row."""
        s, found = self.vector, {}
        instrs = [(v, i) for stage in stages for v, i in enumerate(stage.instrs, stage.first)]
        used = {a for v, i in instrs if i.op not in STORES and self.plan.varying(v) for a in i.args}
        for a in sorted(used & self.shared.keys()) if s.width > 1 else ():
            value = self.shared[a]
            if value.kind in FLOAT_KINDS and not is_literal(value.text):
                found[a] = Val(s.intrinsic("arithmetic.fence", value.kind, s.splat(value.kind, value.text)), value.dtype, s.width)
        return found

    def _first_line(self, stage: Stage, row: VectorGroup, body: Callable[[LoopForm, Value], None]) -> Value:
        """Where the loop over a row begins: with the first whole line of what it stores, after writing what lies before that, if rows may begin
        anywhere in a line: those that are streamed, and those of images. A store across two lines costs as much as four within one."""
        kernel, code = self.kernel, self.code
        stores = [i.imm for i in stage.instrs if i.op == "store" and kernel.accesses[i.imm].strides[self.plan.axis] == "1"]
        streamed = [a for a in stores if a in kernel.streams] if kernel.peeled else []
        found = streamed or (stores if stage.kind == "map" and kernel.rank_r > 1 and self.target.masked and self.vector.width > 1 else [])
        if not found:
            return "0"
        before = code.min(self.frame.before_line(found[0], row.offset[found[0]], self.vector.width), self.frame.extents[self.plan.axis])
        with code.when(code.let(f"icmp sgt i64 {before}, 0")):
            body(LoopForm(self.vector, self.frame.tail_mask(self.vector, "0", before), 1), "0")
        return before

    def ask_ahead(self, variant: LoopForm, group: VectorGroup, n: Value, dim: int, rows: Value = "") -> None:
        """Fetch the next row (or that so many `rows` further) in `dim`, while the last loop over this one runs, where so much is computed between two
        rows, or rows are in so many pieces, that the first loop over a row would wait for memory. Of pieces every other line will do: the processor
        adds its neighbour."""
        for a in () if variant.mask else self.plan.ahead:
            start = self.code.add(group.offset[a], self.code.mul(rows or self.ahead, self.frame.strides[a][dim]))
            for u in range(0, variant.count, 2 if self.kernel.rank_r > 1 else 1):
                self.frame.prefetch(variant.s, a, self.code.add(start, self.code.add(n, u * variant.s.width)))

    def _forms(self, alone: bool, unroll: int) -> list[tuple[int, int]]:
        """(width, number of accumulators) of the variants along R."""
        plan = self.plan
        if plan.width == 1 or alone:
            return [(1, 1)]
        forms = [(plan.width, unroll)]
        return forms if self.target.masked else [*forms, (1, 1)]

    def _accumulators(self, stage: Stage, s: Lanes) -> dict[int, Accumulator]:
        """Fresh accumulators of the reductions of a stage."""
        found = {}
        for value, instr in enumerate(stage.instrs, stage.first):
            if instr.op == "reduce":
                operand = self.kernel_dtype(instr.args[0])
                varies = self.plan.along == "r" or self.plan.varying(value)
                reduction = Reduction(instr.imm, operand.dtype, instr.dtype)
                found[value] = Accumulator(reduction, s if varies else self.one, blocked=self.kernel.rank_r > 0 and not self.kernel.fixed)
        return found

    def kernel_dtype(self, value: int) -> Instr:
        """The instruction with an id."""
        for stage in self.kernel.stages:
            if stage.first <= value < stage.first + len(stage.instrs):
                return stage.instrs[value - stage.first]
        raise CompileError(f"[kernel] expected an earlier value, got v{value}; ids number the instructions of all stages")

    def _merge(self, partial: dict[tuple[int, int], dict[int, Accumulator]]) -> None:
        """Merge the partial results of a row in a fixed order and make them visible."""
        wide = [found for (width, _), found in partial.items() if width > 1]
        single = [found for (width, _), found in partial.items() if width == 1]
        for value in (wide or single)[0]:
            parts = [found[value] for found in wide]
            if parts and parts[0].part_type:  # the first has taken in all
                parts = parts[:1]
            while len(parts) > 1:
                half = len(parts) // 2
                for a, b in zip(parts[:half], parts[half:], strict=True):
                    a.absorb(b.read())
                parts = parts[:half]
            if parts and single:
                single[0][value].absorb(parts[0].fold_lanes())
            result = single[0][value].read() if single else parts[0].fold_lanes()
            reduction = (single or wide)[0][value].reduction
            self.shared[value] = reduction.finish(self.one, *result)

    # instructions

    def level(self, stage: Stage, level: int, variant: LoopForm, groups: list[VectorGroup], varying: bool | None = None) -> None:
        """Emit the instructions of a stage that stand at one loop level (reductions excepted): all, or only those that differ (stores count
        among them) or do not differ from lane to lane."""
        for number, group in enumerate(groups):
            for value, instr in enumerate(stage.instrs, stage.first):
                if self.levels[value] != level or instr.op == "reduce":
                    continue
                if varying is not None and varying != (instr.op in STORES or self.plan.varying(value)):
                    continue
                if instr.op in STORES:
                    if number == 0 or self._store_varies(instr):
                        self._store(instr, variant, group, number)
                elif self.plan.varying(value):
                    group.values[value] = self._value(instr, variant, group, variant.s)
                elif number == 0:
                    self.shared[value] = self._value(instr, variant, group, self.one)

    def _store_varies(self, instr: Instr) -> bool:
        strides = self.kernel.accesses[instr.imm].strides
        return strides[self.plan.axis] != "0" or any(self.plan.varying(a) for a in instr.args)

    def accumulate(
        self, stage: Stage, variant: LoopForm, groups: list[VectorGroup], accumulators: list[dict[int, Accumulator]]
    ) -> None:
        for group, found in zip(groups, accumulators, strict=True):
            for value, accumulator in found.items():
                args = [self._operand(a, group, accumulator.s) for a in stage.instrs[value - stage.first].args]
                accumulator.add(args, variant.mask if self.plan.along == "r" else "")

    def _operand(self, value: int, group: VectorGroup, s: Lanes) -> Val:
        """A value for vectors of the width of `s`; what is the same in all lanes may be at hand in both forms."""
        found = group.values.get(value)
        return self.shared[value] if found is None or (s.width == 1 and value in self.shared) else found

    def _value(self, instr: Instr, variant: LoopForm, group: VectorGroup, s: Lanes) -> Val:
        """One instruction that has a result, at width 1 or the width of the variant."""
        op, dtype = instr.op, instr.dtype
        if op == "const":
            return constant(instr.imm, dtype)
        if op == "extent":
            return Val(self.frame.extents[instr.imm], dtype)
        if op == "scalar":
            return self.frame.scalar(self.one, instr)
        if op == "index":
            return memory.position(s, dtype, group.index[instr.imm], instr.imm == self.plan.axis)
        args = [self._operand(a, group, s) for a in instr.args]
        if op in ("load", "load_at"):
            index = args[0] if args else None
            return self.frame.load(s, self.one, instr.imm, group.offset[instr.imm], index, variant.mask)
        if op == "cast":
            return Val(cast(s, args[0], dtype), dtype, s.width)
        if op == "bitcast":
            return Val(bitcast(s, args[0], dtype), dtype, s.width)
        return Val(instruction(s, op, dtype, args), dtype, s.width)

    def _store(self, instr: Instr, variant: LoopForm, group: VectorGroup, number: int) -> None:
        s = variant.s if self.plan.axis >= 0 and self._store_varies(instr) else self.one
        args = [self._operand(a, group, s) for a in instr.args]
        index = args[1] if len(args) > 1 else None
        offset = group.offset[instr.imm]
        value = Val(cast(s, args[0], self.frame.dtype(instr.imm)), self.frame.dtype(instr.imm), s.width)
        if instr.op in JOINING:
            old = self.frame.load(s, s, instr.imm, offset, index, variant.mask)
            both = in_order(instr.op, Val(widen(s, old), old.dtype, s.width), value)
            value = Val(instruction(s, JOINING[instr.op], value.dtype, both), value.dtype, s.width)
        if instr.op == "store" and s.width > 1 and self.frame.twins(instr.imm):
            if group.index[self.kernel.rank_p + self.kernel.rank_r - 1] == "0":
                self.waiting[instr.imm, number] = offset, value
            else:
                first, other = self.waiting.pop((instr.imm, number))
                self.frame.store_twins(s, instr.imm, first, other, value, variant.mask)
            return
        self.frame.store(s, instr.imm, offset, index, value, variant.mask)


def emit_kernel(kernel: LoopKernel, target: TargetInfo, symbol: str) -> str:
    """LLVM IR text of a module that defines `symbol`."""
    return KernelEmitter(kernel, target, symbol).text()
