"""Memory: which values share a buffer, which inputs are overwritten in place, where everything else lies in one arena.

`plan(..., reuse=False)` gives every value memory of its own: the twin that planned programs are compared with.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from calque.base.dtypes import DType, int16, int32, int64, uint8
from calque.ir.program import Program
from calque.kernel.assemble import Entry, contract_call
from calque.kernel.facts import Class, Facts
from calque.kernel.inplace import may_overwrite
from calque.kernel.loops import Access, Instr, LoopKernel, Operand, Stage
from calque.kernel.schedule import Buffer, Contract, Host, Loop, Schedule
from calque.ops.routines import AttentionSpec

ALIGNMENT = 64  # bytes: one cache line, one AVX-512 register
SMALL_ARENA = 1 << 20  # bytes: below this, holes do not matter
WorkspaceBytes = Callable[[str, Any, DType], int]


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
    offset: int = -1
    buffer: int = -1

    @property
    def nbytes(self) -> int:
        return int(self.numel * self.dtype.itemsize)

    @property
    def home(self) -> Block:
        """The last block in the same memory."""
        block = self
        while block.heir is not None:
            block = block.heir
        return block


class Arena:
    """Best-fit allocation of byte ranges in time order."""

    def __init__(self) -> None:
        self.free: list[tuple[int, int]] = []  # (offset, size), sorted, never adjacent
        self.top = 0
        self.size = 0

    def allocate(self, nbytes: int) -> int:
        """Offset of a free range: the smallest that fits, else the end."""
        size = _aligned(nbytes)
        best = -1
        for k, (_, room) in enumerate(self.free):
            if room >= size and (best < 0 or room < self.free[best][1]):
                best = k
        if best >= 0:
            offset, room = self.free.pop(best)
            if room > size:
                insort(self.free, (offset + size, room - size))
            return offset
        offset = self.top
        if self.free and sum(self.free[-1]) == self.top:
            offset = self.free.pop()[0]
        self.top = offset + size
        self.size = max(self.size, self.top)
        return offset

    def release(self, offset: int, nbytes: int) -> None:
        """Return a range; neighbours merge."""
        size = _aligned(nbytes)
        insort(self.free, (offset, size))
        k = self.free.index((offset, size))
        if k + 1 < len(self.free) and offset + size == self.free[k + 1][0]:
            size += self.free.pop(k + 1)[1]
            self.free[k] = (offset, size)
        if k and sum(self.free[k - 1]) == offset:
            before = self.free[k - 1]
            self.free[k - 1 : k + 1] = [(before[0], before[1] + size)]


@dataclass(frozen=True, slots=True)
class Span:
    """Memory of `nbytes` that is needed from entry `first` to entry `last`."""

    first: int
    last: int
    nbytes: int


def pack(spans: list[Span]) -> tuple[list[int], int]:
    """Offsets such that spans that are needed at the same time do not overlap, and the size of the whole: the smaller of two layouts.

    Allocation in time order is near the most that is ever needed at once when lifetimes nest, as in a training step. Where it leaves holes, the
    largest spans are placed first, each at the lowest offset that is free for its whole life.
    """
    offsets, size = _in_time_order(spans)
    if size > SMALL_ARENA and size > 1.01 * most_at_once(spans):
        others, other = _largest_first(spans)
        if other < size:
            return others, other
    return offsets, size


def most_at_once(spans: list[Span]) -> int:
    """The most bytes that are needed at one entry: no layout is smaller."""
    change: dict[int, int] = {}
    for s in spans:
        change[s.first] = change.get(s.first, 0) + _aligned(s.nbytes)
        change[s.last + 1] = change.get(s.last + 1, 0) - _aligned(s.nbytes)
    return max(accumulate((change[t] for t in sorted(change)), initial=0))


def _in_time_order(spans: list[Span]) -> tuple[list[int], int]:
    arena = Arena()
    offsets = [0] * len(spans)
    ends: dict[int, list[int]] = {}
    for k, s in enumerate(spans):
        ends.setdefault(s.last, []).append(k)
    pending = sorted(ends)
    for k in sorted(range(len(spans)), key=lambda k: (spans[k].first, -spans[k].nbytes)):
        while pending and pending[0] < spans[k].first:
            for done in ends[pending.pop(0)]:
                arena.release(offsets[done], spans[done].nbytes)
        offsets[k] = arena.allocate(spans[k].nbytes)
    return offsets, arena.size


def _largest_first(spans: list[Span]) -> tuple[list[int], int]:
    offsets = [0] * len(spans)
    placed: list[int] = []  # by offset
    size = 0
    for k in sorted(range(len(spans)), key=lambda k: (-spans[k].nbytes, spans[k].first)):
        s, wanted, at = spans[k], _aligned(spans[k].nbytes), 0
        for other in placed:
            o = spans[other]
            if o.first <= s.last and s.first <= o.last:
                if offsets[other] - at >= wanted:
                    break
                at = max(at, offsets[other] + _aligned(o.nbytes))
        offsets[k] = at
        insort(placed, k, key=offsets.__getitem__)
        size = max(size, at + wanted)
    return offsets, size


def _aligned(nbytes: int) -> int:
    return max(ALIGNMENT, -(-nbytes // ALIGNMENT) * ALIGNMENT)


class Planner:
    """Assigns blocks to nodes, then memory to blocks."""

    def __init__(self, program: Program, facts: Facts, entries: list[Entry], reuse: bool, workspace_bytes: WorkspaceBytes | None = None) -> None:
        self.workspace_bytes = workspace_bytes
        self.workspaces: dict[int, Block] = {}  # entry -> the workspace of its library call
        self.program = program
        self.facts = facts
        self.nodes = program.nodes
        self.reuse = reuse
        self.given = entries
        self.entries: list[Entry] = []
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
                    self.entries.append(Entry(reads=(base,), writes=(target,), check=entry.check, copy=(target, base)))
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

    def dies_into(self, entry: Entry, k: int, target: int, base: int) -> bool:
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
                self.entries.append(Entry(reads=(node,), writes=(copied,), copy=(copied, node)))
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

    def lay_out(self) -> int:
        """Arena offsets; returns the arena's size."""
        for t, entry in enumerate(self.entries):
            nbytes = self.workspace(entry)
            if nbytes:
                block = Block(uint8, nbytes, first=t, last=t)
                self.blocks.append(block)
                self.workspaces[t] = block
        own = [b for b in self.blocks if b.source < 0 and b.output < 0 and b.first >= 0]
        if not self.reuse:
            for block in own:
                block.last = len(self.entries)
        else:
            self.inherit(own)
        starts: dict[int, int] = {}  # home -> when its memory is first written
        for block in own:
            key = id(block.home)
            starts[key] = min(starts.get(key, block.first), block.first)
        homes = [b for b in own if b.heir is None]
        spans = [Span(starts[id(b)], b.last, b.nbytes) for b in homes]
        offsets, size = pack(spans)
        for block, offset in zip(homes, offsets, strict=True):
            block.offset = offset
        return size

    def inherit(self, own: list[Block]) -> None:
        """Let blocks that are overwritten in place pass their memory on: to another temporary, or to an output, in which they then live."""
        dying: dict[int, list[Block]] = {}
        for block in own:
            dying.setdefault(block.last, []).append(block)
        outputs = [b for b in self.blocks if b.output >= 0 and b.source < 0 and b.first >= 0]
        before: dict[int, list[Block]] = {}  # blocks that already pass their memory to this one
        for block in sorted([*own, *outputs], key=lambda b: (b.first, b.output >= 0, -b.nbytes)):
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

    def workspace(self, entry: Entry) -> int:
        """Bytes that the backend wants for a library call beside its operands."""
        if self.workspace_bytes is None or entry.node < 0 or self.facts.cls[entry.node] is not Class.CONTRACT or not self.nodes[entry.node].numel:
            return 0
        return self.workspace_bytes(self.nodes[entry.node].op.name, contract_call(self.facts, entry.node).spec, self.nodes[entry.node].dtype)

    # ---------------------------------------------------------------- result

    def schedule(self) -> Schedule:
        """The finished schedule."""
        self.assign()
        if self.reuse:
            self.donate()
        arena = self.lay_out()
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
                buffers.append(Buffer("arena", block.home.offset, block.dtype, block.numel))
        for block in self.blocks:
            if block.heir is not None and block.home.output >= 0:
                block.buffer = block.home.buffer
        self.input_buffer = {index: k for k, index in enumerate(sorted(self.inputs))}
        kernels: dict[LoopKernel, LoopKernel] = {}
        steps: list[Loop | Contract | Host] = []
        check_steps = 0
        for t, entry in enumerate(self.entries):
            step = self.step(entry, kernels)
            if step is not None:
                if isinstance(step, Contract) and t in self.workspaces:
                    step = replace(step, workspace=self.workspaces[t].buffer)
                steps.append(step)
                check_steps += entry.check
        scalars = tuple(self.nodes[i].dtype for i in self.program.scalars)
        outputs = tuple(self.buffer(n) for n in self.results)
        checks = tuple(self.buffer(c.value) for c in self.program.checks)
        return Schedule(tuple(buffers), tuple(steps), outputs, arena, scalars, check_steps, checks)

    def buffer(self, node: int) -> int:
        """Buffer id that holds a node. An input's old value is addressed as the input even when an output takes its memory
        over."""
        if node < len(self.nodes) and self.facts.cls[node] is Class.INPUT:
            return self.input_buffer[self.nodes[node].attrs[0]]
        return self.block_of[node].buffer

    def step(self, entry: Entry, kernels: dict[LoopKernel, LoopKernel]) -> Loop | Contract | Host | None:
        """The launch of an entry with its buffers."""
        if entry.copy is not None:
            target, source = entry.copy
            block = self.block_of[target]
            if not block.numel:
                return None
            unit = word_of(block.dtype)
            kernel = copy_kernel(unit)
            kernel = kernels.setdefault(kernel, kernel)
            return Loop(kernel, (self.buffer(source), self.buffer(target)), (block.nbytes // unit.itemsize, 0, 0))
        if entry.launch is not None:
            launch = entry.launch
            kernel = kernels.setdefault(launch.kernel, launch.kernel)
            operands = tuple([self.buffer(n) for n in launch.operands])
            return Loop(kernel, operands, launch.params, launch.scalars, launch.dynamic, launch.nodes)
        if entry.node < 0 or not any(self.nodes[m].numel for m in entry.writes):
            return None
        return self.library_step(entry)

    def library_step(self, entry: Entry) -> Contract | Host:
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


def plan(
    program: Program, facts: Facts, entries: list[Entry], reuse: bool = True, workspace_bytes: WorkspaceBytes | None = None
) -> Schedule:
    """Assign memory. `workspace_bytes(kind, spec, dtype)`: what the backend wants for a contraction beside its operands; its place is in the
    arena, for the time of the call."""
    return Planner(program, facts, entries, reuse, workspace_bytes).schedule()


def predicted_peak(schedule: Schedule, rounded: Callable[[int], int] = int) -> int:
    """Bytes held while the schedule runs: inputs, outputs that are not donated inputs, constants and the arena. `rounded`: the size of the block
    that the backend takes for so many bytes; then inputs are the caller's, and the rest is exactly what a run adds to the memory in use."""
    held = sum(rounded(b.nbytes) for b in schedule.buffers if b.kind != "arena" and b.donor < 0)
    return held + (rounded(schedule.arena_bytes) if schedule.arena_bytes else 0)
