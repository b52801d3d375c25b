"""Memory: which values share a buffer, which inputs are overwritten in place, where everything else lies in one arena.

`plan(..., reuse=False)` gives every value memory of its own: the twin that planned programs are compared with.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

from calque.base.dtypes import DType
from calque.ir.program import Program
from calque.kernel.assemble import Entry, contract_call
from calque.kernel.facts import Class
from calque.kernel.loops import Access, Instr, LoopKernel, Operand, Stage
from calque.kernel.lower import Launch
from calque.kernel.reader import Fusion
from calque.kernel.schedule import Buffer, Contract, Host, Loop, Schedule

ALIGNMENT = 64  # bytes: one cache line, one AVX-512 register


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
    offset: int = -1
    buffer: int = -1

    @property
    def nbytes(self) -> int:
        return int(self.numel * self.dtype.itemsize)


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


def _aligned(nbytes: int) -> int:
    return max(ALIGNMENT, -(-nbytes // ALIGNMENT) * ALIGNMENT)


def same_element(launch: Launch | None, read: int, write: int) -> bool:
    """Whether the launch reads node `read` only at the element of `write` that the same iteration stores."""
    if launch is None:
        return False
    stores = launch.stores.get(write, [])
    if len(stores) != 1 or stores[0] is None:
        return False
    return all(a is not None and a.form == stores[0].form for a in launch.reads.get(read, []))


class Planner:
    """Assigns blocks to nodes, then memory to blocks."""

    def __init__(self, program: Program, fusion: Fusion, entries: list[Entry], reuse: bool) -> None:
        self.program = program
        self.facts = fusion.facts
        self.fusion = fusion
        self.nodes = program.nodes
        self.reuse = reuse
        self.given = entries
        self.entries: list[Entry] = []
        self.blocks: list[Block] = []
        self.block_of: dict[int, Block] = {}
        self.inputs = {n.attrs[0]: i for i, n in enumerate(self.nodes) if n.op.name == "input"}
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
        if base in entry.reads and not same_element(entry.launch, base, target):
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
        return all(same_element(entry.launch, r, w) for r in reads for w in writes)

    def lay_out(self) -> int:
        """Arena offsets; returns the arena's size."""
        arena = Arena()
        born: dict[int, list[Block]] = {}
        dying: dict[int, list[Block]] = {}
        for block in self.blocks:
            if block.source < 0 and block.output < 0 and block.first >= 0:
                born.setdefault(block.first, []).append(block)
                dying.setdefault(block.last, []).append(block)
        for t in range(len(self.entries)):
            leaving = dying.get(t, [])
            for block in sorted(born.get(t, ()), key=lambda b: -b.nbytes):
                heir = next((d for d in leaving if self.inherits(d, block)), None) if self.reuse else None
                if heir is not None:
                    leaving.remove(heir)
                    block.offset = heir.offset
                else:
                    block.offset = arena.allocate(block.nbytes)
            if self.reuse:
                for block in leaving:
                    arena.release(block.offset, block.nbytes)
        return arena.size

    def inherits(self, old: Block, new: Block) -> bool:
        """Whether `new`, first written where `old` is last read, may take its place."""
        return old is not new and old.first < new.first and old.nbytes == new.nbytes and self.follows(old, new)

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
            elif block.source < 0 and block.first >= 0:
                block.buffer = len(buffers)
                buffers.append(Buffer("arena", block.offset, block.dtype, block.numel))
        self.input_buffer = {index: k for k, index in enumerate(sorted(self.inputs))}
        kernels: dict[LoopKernel, LoopKernel] = {}
        steps: list[Loop | Contract | Host] = []
        check_steps = 0
        for entry in self.entries:
            step = self.step(entry, kernels)
            if step is not None:
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
            kernel = copy_kernel(block.dtype)
            kernel = kernels.setdefault(kernel, kernel)
            return Loop(kernel, (self.buffer(source), self.buffer(target)), (block.numel, 0, 0))
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
            call = contract_call(self.fusion, node)
            outputs = [-1] * max(1, len(n.op.parts))
            for member in entry.writes:
                part = n.op.parts.index(self.nodes[member].attrs[0]) if n.op.parts else 0
                outputs[part] = self.buffer(member)
            operands = (*[self.buffer(s) for s in call.sources], *outputs)
            offsets = (*call.offsets, *[0] * len(outputs))
            return Contract(call.kind, n.dtype, operands, offsets, call.spec, -1, call.dynamic, entry.writes)
        out = self.buffer(node)
        scalars = []
        values: list[int] = []
        for position, operand in enumerate(n.inputs):
            if self.nodes[operand].op.name == "scalar":
                scalars.append((position, self.nodes[operand].attrs[0]))
            else:
                values.append(operand)
        shapes = tuple(self.nodes[v].shape for v in values)
        return Host(n.op, n.attrs, tuple(self.buffer(v) for v in values), shapes, out, n.shape, tuple(scalars), (node,))


def copy_kernel(dtype: DType) -> LoopKernel:
    """`out[i] = in[i]`."""
    accesses = (Access(0, ("1",)), Access(1, ("1",)))
    body = (Instr("load", dtype, (), 0), Instr("store", dtype, (0,), 1))
    return LoopKernel(1, 0, (Operand(dtype), Operand(dtype, True)), accesses, (Stage("map", 0, body),), "p")


def plan(program: Program, fusion: Fusion, entries: list[Entry], reuse: bool = True) -> Schedule:
    """Assign memory."""
    return Planner(program, fusion, entries, reuse).schedule()


def predicted_peak(schedule: Schedule) -> int:
    """Bytes held while the schedule runs: inputs, outputs that are not donated inputs, constants and the arena."""
    held = sum(b.nbytes for b in schedule.buffers if b.kind != "arena" and b.donor < 0)
    return held + schedule.arena_bytes
