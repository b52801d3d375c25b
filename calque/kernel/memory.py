"""Memory: which values share a buffer, and which inputs are overwritten in place. Where buffers lie is decided later (`kernel/arena.py`).

Sizes may be symbols here (`ir/symint.py`): they are asked for equality alone, so what was decided for some holds for many.

`plan(..., reuse=False)` gives every value memory of its own: the twin that planned programs are compared with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace

from calque.base.dataclass import dataclass
from calque.base.dtypes import DType, int16, int32, int64, uint8
from calque.ir.program import Program
from calque.kernel.assemble import PlannedStep, contract_call
from calque.kernel.facts import Class, Facts
from calque.kernel.inplace import may_overwrite
from calque.kernel.loops import Access, Instr, LoopKernel, Operand, Stage
from calque.kernel.schedule import Buffer, Contract, Host, Loop, Schedule, Step
from calque.ops.routines import AttentionSpec


@dataclass(slots=True, eq=False)
class Block:
    """One block of memory and the nodes whose values live there one after another. `source` >= 0: the input it overwrites."""

    dtype: DType
    numel: int
    nodes: list[int] = field(default_factory=list)
    first: int = -1  # entry that writes it first
    last: int = -1  # last entry that reads or writes it
    source: int = -1
    output: int = -1
    heir: Block | None = None  # the block that overwrites this one in place, in the same memory
    place: int = -1  # number of its memory in the arena
    buffer: int = -1

    @property
    def nbytes(self) -> int:
        return self.numel * int(self.dtype.itemsize)

    @property
    def home(self) -> Block:
        """The last block in the same memory."""
        block = self
        while block.heir is not None:
            block = block.heir
        return block


@dataclass(frozen=True, slots=True)
class Span:
    """Memory of `nbytes` that is needed from entry `first` to entry `last`."""

    first: int
    last: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Lowered:
    """A lowered program whose buffers have no places yet: a `Schedule` in which the `index` of an arena buffer is the number of its span. `times`:
    when each step runs, as spans count."""

    buffers: tuple[Buffer, ...]
    spans: tuple[Span, ...]
    steps: tuple[Step, ...]
    times: tuple[int, ...]
    outputs: tuple[int, ...]
    scalars: tuple[DType, ...]
    check_steps: int
    checks: tuple[int, ...]


class Planner:
    """Assigns blocks to nodes, then memory to blocks."""

    def __init__(self, program: Program, facts: Facts, entries: list[PlannedStep], reuse: bool) -> None:
        self.program = program
        self.facts = facts
        self.nodes = program.nodes
        self.reuse = reuse
        self.given = entries
        self.entries: list[PlannedStep] = []
        self.blocks: list[Block] = []
        self.block_of: dict[int, Block] = {}
        self.inputs = {n.attrs[0]: i for i, n in enumerate(self.nodes) if n.op.role == "input"}
        self.results = [self.facts.output_alias.get(o, o) for o in program.outputs]
        self.kept = set(self.results) | {c.value for c in program.checks}
        self.readers: dict[int, list[int]] = {}
        for k, e in enumerate(entries):
            for node in {*e.reads, *(b for _, b in e.bases)}:
                self.readers.setdefault(node, []).append(k)

    def new_block(self, node: int) -> Block:
        """A block of its own for a node."""
        n = self.nodes[node]
        block = Block(n.dtype, n.numel, [node])
        self.blocks.append(block)
        self.block_of[node] = block
        return block

    # ---------------------------------------------------------------- blocks

    def assign(self) -> None:
        """Blocks for all nodes; an update takes over its base's block when the base dies there."""
        for index, node in self.inputs.items():
            block = self.new_block(node)
            block.source = index
        for k, entry in enumerate(self.given):
            for target, base in entry.bases:
                if self.dies_into(entry, k, target, base):
                    block = self.block_of[base]
                    block.nodes.append(target)
                    self.block_of[target] = block
                else:
                    self.new_block(target)
                    self.entries.append(PlannedStep(reads=(base,), writes=(target,), check=entry.check, copy=(target, base)))
            for node in entry.writes:
                if node not in self.block_of:
                    self.new_block(node)
            self.entries.append(entry)
        self.copy_shared_outputs()
        for t, entry in enumerate(self.entries):
            for node in entry.writes:
                block = self.block_of[node]
                block.first = t if block.first < 0 else block.first
                block.last = t
            for node in entry.reads:
                self.block_of[node].last = t
        checked = max((t for t, entry in enumerate(self.entries) if entry.check), default=-1)
        for c in self.program.checks:  # read together, when all of them are computed
            self.block_of[c.value].last = max(self.block_of[c.value].last, checked)

    def dies_into(self, entry: PlannedStep, k: int, target: int, base: int) -> bool:
        """Whether `target` may overwrite `base` at entry k."""
        if not self.reuse or base in self.kept or not self.nodes[base].numel:
            return False
        if sum(1 for _, b in entry.bases if b == base) > 1 or max(self.readers[base]) > k:
            return False
        if base in entry.reads and not may_overwrite(entry.launch, base, target):
            return False
        block = self.block_of[base]
        if block.source >= 0:  # also when an earlier update already took the input over
            return block.source in self.program.donated and not entry.check and self._input_free(block)
        return True

    def _input_free(self, block: Block) -> bool:
        return not any(self.block_of[n] is block for n in self.results if n in self.block_of)

    def copy_shared_outputs(self) -> None:
        """Every output but an unchanged input has memory of its own."""
        taken: set[int] = set()
        for number, node in enumerate(self.results):
            block = self.block_of[node]
            if self.facts.cls[node] is Class.INPUT:
                continue
            if id(block) in taken:
                copied = len(self.nodes) + number  # a node number of its own
                twin = Block(block.dtype, block.numel, [copied], output=number)
                self.blocks.append(twin)
                self.block_of[copied] = twin
                self.entries.append(PlannedStep(reads=(node,), writes=(copied,), copy=(copied, node)))
                self.results[number] = copied
                continue
            taken.add(id(block))
            block.output = number

    # ---------------------------------------------------------------- memory

    def donate(self) -> None:
        """Outputs that replace a donated input take its memory when every old read comes first."""
        free = {i for i in self.program.donated if i in self.inputs and self.inputs[i] not in self.results}
        free -= {b.source for b in self.blocks if b.source >= 0 and b.output >= 0}
        for number, index in self.program.updates:
            block = self.block_of[self.results[number]]
            if index not in free or block.source >= 0 or block.output != number:
                continue
            old = self.block_of[self.inputs[index]]
            if old.output < 0 and old.nbytes == block.nbytes and block.first >= 0 and self.follows(old, block):
                block.source = index
                free.discard(index)

    def follows(self, old: Block, new: Block) -> bool:
        """Whether `new` may be written into the memory of `old`: no read of `old` afterwards, or one of the same element."""
        entry = self.entries[new.first]
        if entry.check or old.last > new.first:
            return False
        if old.last < new.first:
            return True
        if old.dtype.itemsize != new.dtype.itemsize or any(n in entry.writes for n in old.nodes):
            return False
        if entry.copy is not None:
            return True
        reads = [n for n in old.nodes if n in entry.reads]
        writes = [n for n in new.nodes if n in entry.writes]
        return all(may_overwrite(entry.launch, r, w) for r in reads for w in writes)

    def lifetimes(self) -> tuple[Span, ...]:
        """When memory in the arena is needed, once for all blocks that share it; their `place` is its number."""
        own = [b for b in self.blocks if b.source < 0 and b.output < 0 and b.first >= 0]
        if self.reuse:
            self.inherit(own)
        starts: dict[int, int] = {}  # home -> when its memory is first written
        for block in own:
            key = id(block.home)
            starts[key] = min(starts.get(key, block.first), block.first)
        homes = [b for b in own if b.heir is None]
        for number, block in enumerate(homes):
            block.place = number
        return tuple([Span(starts[id(b)], b.last if self.reuse else len(self.entries), b.nbytes) for b in homes])

    def inherit(self, own: list[Block]) -> None:
        """Let blocks that are overwritten in place pass their memory on: to another temporary, or to an output, in which they then live."""
        dying: dict[int, list[Block]] = {}
        for block in own:
            dying.setdefault(block.last, []).append(block)
        outputs = [b for b in self.blocks if b.output >= 0 and b.source < 0 and b.first >= 0]
        before: dict[int, list[Block]] = {}  # blocks that already pass their memory to this one
        for block in sorted([*own, *outputs], key=lambda b: (b.first, b.output >= 0)):
            for old in dying.get(block.first, ()):
                if old.heir is not None or not self.inherits(old, block):
                    continue
                chain = [*before.get(id(old), []), old]
                if block.output >= 0 and any(b.dtype is not block.dtype for b in chain):
                    continue
                old.heir = block
                before[id(block)] = chain
                break

    def inherits(self, old: Block, new: Block) -> bool:
        """Whether `new`, first written where `old` is last read, may take its place."""
        if old is new or not new.nodes or old.first >= new.first or old.nbytes != new.nbytes:
            return False
        return self.follows(old, new)

    # ---------------------------------------------------------------- result

    def lowered(self) -> Lowered:
        """The finished plan."""
        self.assign()
        if self.reuse:
            self.donate()
        spans = self.lifetimes()
        buffers = self.number()
        kernels: dict[LoopKernel, LoopKernel] = {}
        steps: list[Step] = []
        times: list[int] = []
        check_steps = 0
        for t, entry in enumerate(self.entries):
            step = self.step(entry, kernels)
            if step is not None:
                steps.append(step)
                times.append(t)
                check_steps += entry.check
        scalars = tuple(self.nodes[i].dtype for i in self.program.scalars)
        outputs = tuple(self.buffer(n) for n in self.results)
        checks = tuple(self.buffer(c.value) for c in self.program.checks)
        return Lowered(tuple(buffers), spans, tuple(steps), tuple(times), outputs, scalars, check_steps, checks)

    def number(self) -> list[Buffer]:
        """All buffers; blocks learn the number of theirs."""
        buffers: list[Buffer] = []
        for index in sorted(self.inputs):
            node = self.nodes[self.inputs[index]]
            buffers.append(Buffer("input", index, node.dtype, node.numel))
            self.block_of[self.inputs[index]].buffer = len(buffers) - 1
        for block in self.blocks:
            if block.output >= 0:
                block.buffer = len(buffers)
                buffers.append(Buffer("output", block.output, block.dtype, block.numel, block.source))
            elif block.source < 0 and block.first >= 0 and block.home.output < 0:
                block.buffer = len(buffers)
                buffers.append(Buffer("arena", block.home.place, block.dtype, block.numel))
        for block in self.blocks:
            if block.heir is not None and block.home.output >= 0:
                block.buffer = block.home.buffer
        self.input_buffer = {index: k for k, index in enumerate(sorted(self.inputs))}
        return buffers

    def buffer(self, node: int) -> int:
        """Buffer id that holds a node. An input's old value is addressed as the input even when an output takes its memory
        over."""
        if node < len(self.nodes) and self.facts.cls[node] is Class.INPUT:
            return self.input_buffer[self.nodes[node].attrs[0]]
        return self.block_of[node].buffer

    def step(self, entry: PlannedStep, kernels: dict[LoopKernel, LoopKernel]) -> Step | None:
        """The launch of an entry with its buffers."""
        if entry.copy is not None:
            target, source = entry.copy
            block = self.block_of[target]
            if not block.numel:
                return None
            unit = word_of(block.dtype)
            kernel = copy_kernel(unit)
            kernel = kernels.setdefault(kernel, kernel)
            return Loop(kernel, (self.buffer(source), self.buffer(target)), (block.numel * (block.dtype.itemsize // unit.itemsize), 0, 0))
        if entry.launch is not None:
            launch = entry.launch
            kernel = kernels.setdefault(launch.kernel, launch.kernel)
            operands = tuple([self.buffer(n) for n in launch.operands])
            return Loop(kernel, operands, launch.params, launch.scalars, launch.dynamic, launch.nodes)
        if entry.node < 0 or not any(self.nodes[m].numel for m in entry.writes):
            return None
        return self.library_step(entry)

    def library_step(self, entry: PlannedStep) -> Contract | Host:
        """A contraction or an opaque primitive."""
        node = entry.node
        n = self.nodes[node]
        if self.facts.cls[node] is Class.CONTRACT:
            call = contract_call(self.facts, node)
            outputs = [-1] * max(1, len(n.op.parts))
            starts = [0] * len(outputs)
            members = entry.parts or [(member, 0) for member in entry.writes]
            for member, start in members:
                part = n.op.parts.index(self.nodes[member].attrs[0]) if n.op.parts else 0
                outputs[part], starts[part] = self.buffer(entry.writes[0] if entry.parts else member), start
            spec = call.spec
            if entry.parts and isinstance(spec, AttentionSpec):
                spec = replace(spec, joint=self.nodes[entry.writes[0]].shape[-1])
            operands = (*[self.buffer(s) for s in call.sources], *outputs)
            nodes, dtype = tuple([member for member, _ in members]), self.facts.routine_dtype(n)
            return Contract(call.kind, dtype, operands, (*call.offsets, *starts), spec, -1, call.dynamic, nodes)
        out = self.buffer(node)
        scalars = []
        values: list[int] = []
        for position, operand in enumerate(n.inputs):
            if self.nodes[operand].op.role == "scalar":
                scalars.append((position, self.nodes[operand].attrs[0]))
            else:
                values.append(operand)
        shapes = tuple(self.nodes[v].shape for v in values)
        return Host(n.op, n.attrs, tuple(self.buffer(v) for v in values), shapes, out, n.shape, tuple(scalars), (node,))


def word_of(dtype: DType) -> DType:
    """The type as which elements are copied: their own, or integers for those that kernels do not know."""
    return {1: uint8, 2: int16, 4: int32}.get(dtype.itemsize, int64) if dtype.hosted else dtype


def copy_kernel(dtype: DType) -> LoopKernel:
    """`out[i] = in[i]`."""
    accesses = (Access(0, ("1",)), Access(1, ("1",)))
    body = (Instr("load", dtype, (), 0), Instr("store", dtype, (0,), 1))
    return LoopKernel(1, 0, (Operand(dtype), Operand(dtype, True)), accesses, (Stage("map", 0, body),), "p")


def plan(program: Program, facts: Facts, entries: list[PlannedStep], reuse: bool = True) -> Lowered:
    """Assign memory."""
    return Planner(program, facts, entries, reuse).lowered()


def predicted_peak(schedule: Schedule, rounded: Callable[[int], int] = int) -> int:
    """Bytes held while the schedule runs: inputs, outputs that are not donated inputs, constants and the arena. `rounded`: the size of the block
    that the backend takes for so many bytes; then inputs are the caller's, and the rest is exactly what a run adds to the memory in use."""
    held = sum(rounded(b.nbytes) for b in schedule.buffers if b.kind != "arena" and b.donor < 0)
    return held + (rounded(schedule.arena_bytes) if schedule.arena_bytes else 0)
