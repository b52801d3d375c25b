"""What the emitter decides about a loop kernel before writing code: vector axis, width, unrolling, and where each instruction
stands.

Everything follows from the structure of the kernel and the target, never from extents or the number of threads.
"""

from __future__ import annotations

from math import prod

from calque.backend.cpu.compile.target import TargetInfo
from calque.backend.cpu.text.emit_text import register_kind
from calque.base.dataclass import dataclass
from calque.base.errors import CompileError
from calque.kernel.loops import INDEXED, STORES, Instr, LoopKernel, Stage

COST = {
    "exp": 20,
    "exp_shifted": 20,
    "log": 25,
    "sin": 35,
    "cos": 35,
    "tanh": 40,
    "erf": 50,
    "atan": 25,
    "pow": 80,
    "mod": 20,
    "floordiv": 20,
    "div": 4,
}
MAP_BLOCK = 2048  # elements of the vector axis that one unit of work covers in kernels without R dims
AHEAD_COST = 20  # of a loop's instructions (see `instruction_cost`), from which memory has time to fetch another row
AHEAD_ELEMENTS = 16384  # of a channel of all images together, up to which the next channel is asked for: both are to fit the second-level cache
LOOKUPS_AHEAD = 3  # rows between one that an index chooses and that which is asked for: the memory works on several at a time
TRANSPOSED_BLOCK = 64  # the same when a strided access profits from walking the other dims first


@dataclass(frozen=True, slots=True)
class VectorPlan:
    """`axis`: the vectorised dim of P + R or -1. `along`: "p" or "r". `unroll`: vectors per turn along P, `unrolls` per stage.
    `depends[id]`: dims a value varies with. `ahead`: accesses of which the next row is asked for while this one is computed; `lookups`: accesses
    whose rows are looked up by an index that is loaded, with the id of that load."""

    axis: int
    along: str
    width: int
    unroll: int
    unrolls: tuple[int, ...]
    depends: tuple[frozenset[int], ...]
    written: frozenset[int]
    block: int
    block_outermost: bool
    ahead: tuple[int, ...] = ()
    lookups: tuple[tuple[int, int], ...] = ()

    def varying(self, value: int) -> bool:
        """Whether lanes differ in this value."""
        return self.axis in self.depends[value]


def _dependencies(kernel: LoopKernel) -> tuple[frozenset[int], ...]:
    found: list[frozenset[int]] = []
    inner = frozenset(range(kernel.rank_p, kernel.rank_p + kernel.rank_r))
    for instr in kernel.instructions():
        dims = frozenset[int]().union(*(found[a] for a in instr.args))
        if instr.op == "index":
            dims |= {instr.imm}
        elif instr.op in ("load", "load_at"):
            dims |= {d for d, stride in enumerate(kernel.accesses[instr.imm].strides) if stride != "0"}
        elif instr.op == "reduce":
            dims -= inner
        found.append(dims)
    return tuple(found)


def scalar_stage(kernel: LoopKernel, stage: Stage, axis: int) -> bool:
    """Whether the iterations along an R axis must run one by one."""
    for instr in stage.instrs:
        if instr.op in INDEXED or (instr.op == "store" and kernel.accesses[instr.imm].strides[axis] == "0"):
            return True
    return False


def _collides(kernel: LoopKernel, axis: int) -> bool:
    """Whether some plain store along P would write one address from several lanes."""
    return any(i.op == "store" and kernel.accesses[i.imm].strides[axis] == "0" for i in kernel.instructions())


def _width(kernel: LoopKernel, depends: tuple[frozenset[int], ...], axis: int, target: TargetInfo) -> int:
    """Lanes: as many as fit a register of the commonest large type that varies along the axis."""
    sizes = []
    for instr, dims in zip(kernel.instructions(), depends, strict=True):
        if instr.op == "reduce" and instr.imm.startswith("arg"):
            sizes.append(instr.dtype.itemsize)
        elif axis in dims and instr.op != "const":
            kind = register_kind(instr.dtype)
            sizes.append({"i1": 1, "float": 4, "double": 8}.get(kind) or int(kind[1:]) // 8)
        if instr.op in STORES:
            sizes.append(instr.dtype.itemsize)
    if not sizes:
        return target.lanes(4)
    largest = max(sizes)
    if largest == 8 and 3 * sizes.count(8) < len(sizes):
        largest = 4
    return min(64, target.lanes(largest))


def instruction_cost(instrs: tuple[Instr, ...]) -> int:
    """Rough number of vector instructions."""
    total = 0
    for i in instrs:
        if i.op in ("const", "scalar", "index", "extent"):
            continue
        rounding = 8 if i.dtype.category == 2 and i.dtype.bits == 16 else 0
        total += COST.get(i.op, 1) + rounding
    return total


def _unroll(instrs: tuple[Instr, ...], turns: int, target: TargetInfo, columns: bool = False) -> int:
    """Vectors per turn of a loop over `instrs`, written out `turns` times. Loops down `columns` go to another row, often another page,
    at every step: they take several vectors of a row along."""
    cost = instruction_cost(instrs) * turns
    if any(i.op in ("load_at", *INDEXED) for i in instrs):
        cost *= 2
    reductions = sum(i.op == "reduce" for i in instrs)
    unroll = 4 if cost <= 8 else 2 if cost <= 16 else 1
    if columns:
        unroll = 4 if cost <= 40 else 2
    while unroll > 1 and reductions * unroll * 2 > target.registers // 2:
        unroll //= 2
    return unroll


def _profits_from_tiles(kernel: LoopKernel, axis: int) -> bool:
    """Whether an access is strided along the axis and dense along another P dim (a transposition)."""
    return any(
        a.strides[axis] == "s" and any(a.strides[d] == "1" for d in range(kernel.rank_p) if d != axis) for a in kernel.accesses
    )


def _check(kernel: LoopKernel) -> None:
    rank = kernel.rank_p + kernel.rank_r
    for access in kernel.accesses:
        if len(access.strides) != rank:
            raise CompileError(f"[kernel] expected {rank} stride classes per access, got {access.strides}; one per dim")
    if not kernel.stages:
        raise CompileError("[kernel] expected at least one stage, got none; an empty kernel needs no launch")


def _ahead(kernel: LoopKernel, axis: int) -> tuple[int, ...]:
    """Rows that a kernel of several loops over them, one with an expensive function, reads first: the processor fetches ahead within a row, but
    not so far. In panels it is one loop that goes down the rows, whatever it costs: of every row it reads a part, too short for the processor to
    come to speed. The channels of images are pieces of rows, one
    here, one there: the processor begins anew with each (`AHEAD_ELEMENTS`)."""
    loops = [s for s in kernel.stages if s.kind != "point"]
    panels = axis < kernel.rank_p
    down = kernel.rank_p if panels else kernel.rank_p - 1  # the dim that counts rows
    if not loops or (len(loops) == 1) != panels or not kernel.rank_p or kernel.fixed or (kernel.rank_r != 1 if panels else not kernel.rank_r):
        return ()
    if not panels and kernel.rank_r == 1 and max(instruction_cost(s.instrs) for s in loops) < AHEAD_COST:
        return ()
    found = dict.fromkeys(i.imm for i in loops[0].instrs if i.op == "load")
    if kernel.rank_r > 1:  # many short pieces: whatever the loops cost; what the last one walks through too
        last = {i.imm for i in loops[-1].instrs if i.op == "load"}
        found = dict.fromkeys(a for a in found if a in last)
    return tuple(a for a in found if kernel.accesses[a].strides[axis] == "1" and kernel.accesses[a].strides[down] != "0")


def _lookups(kernel: LoopKernel, axis: int, written: frozenset[int]) -> tuple[tuple[int, int], ...]:
    """Rows that an index chooses, one per point of the dim before the vectorised one: the processor cannot know where the next one lies."""
    found: dict[int, int] = {}
    instrs, row = kernel.instructions(), axis - 1
    for instr in instrs if kernel.rank_r == 0 and row >= 0 else ():
        if instr.op != "load_at" or kernel.accesses[instr.imm].strides[axis] != "1":
            continue
        index = instr.args[0]
        source = kernel.accesses[instrs[index].imm] if instrs[index].op == "load" else None
        if source is not None and source.strides[axis] == "0" and source.strides[row] != "0" and source.operand not in written:
            found[instr.imm] = index
    return tuple(found.items())


def make_plan(kernel: LoopKernel, target: TargetInfo) -> VectorPlan:
    """All decisions for one kernel."""
    _check(kernel)
    depends = _dependencies(kernel)
    written = frozenset(kernel.accesses[i.imm].operand for i in kernel.instructions() if i.op in STORES)
    along = "r" if kernel.rank_p == 0 or (kernel.vector == "r" and kernel.rank_r > 0) else "p"
    axis, width, unroll = -1, 1, 1
    unrolls: tuple[int, ...] = ()
    if along == "p":
        axis = kernel.rank_p - 1
        if kernel.vector == "p" and not _collides(kernel, axis):
            width = _width(kernel, depends, axis, target)
            unroll = _unroll(tuple(kernel.instructions()), prod(kernel.fixed), target, bool(kernel.rank_r and not kernel.fixed))
    elif kernel.rank_r > 0:
        axis = kernel.rank_p + kernel.rank_r - 1
        if kernel.vector == "r":
            width = _width(kernel, depends, axis, target)
            unrolls = tuple([_unroll(s.instrs, 1, target) for s in kernel.stages])
    tiles = along == "p" and kernel.rank_p > 1 and kernel.rank_r == 0 and _profits_from_tiles(kernel, axis)
    block = width * unroll if kernel.rank_r and not kernel.fixed else TRANSPOSED_BLOCK if tiles else MAP_BLOCK
    if along == "p" and kernel.panels and width > 1:
        unrolls = tuple([min(2, _unroll(s.instrs, 1, target)) for s in kernel.stages])
    unrolls = unrolls or (unroll,) * len(kernel.stages)
    ahead = _ahead(kernel, axis) if (along == "r" or kernel.panels) and width > 1 else ()
    lookups = _lookups(kernel, axis, written) if along == "p" and width > 1 and not tiles else ()
    return VectorPlan(axis, along, width, unroll, unrolls, depends, written, block, tiles, ahead, lookups)


def deepest(kernel: LoopKernel, stage: Stage) -> int:
    """Level (see `level_of`) at which a stage's effects happen."""
    return 1 if stage.kind == "point" else 1 + kernel.rank_r


def levels(kernel: LoopKernel, plan: VectorPlan) -> list[int]:
    """Loop level of every instruction: 0 once per unit of work, 1 once per position along P, 1 + j inside j loops over R.

    Loads of a buffer that the kernel writes stay where their stage puts them, and so does everything computed from them.
    """
    found: list[int] = []
    for stage in kernel.stages:
        last = deepest(kernel, stage)
        for value, instr in enumerate(stage.instrs, stage.first):
            late = instr.op in STORES or instr.op == "reduce"
            late = late or (instr.op in ("load", "load_at") and kernel.accesses[instr.imm].operand in plan.written)
            if late:
                found.append(last)
                continue
            level = 1 if plan.along == "p" and plan.axis in plan.depends[value] else 0
            for d in plan.depends[value]:
                level = max(level, d - kernel.rank_p + 2 if d >= kernel.rank_p else 0)
            for a in instr.args:
                level = max(level, found[a] if a >= stage.first else min(found[a], 1))
            found.append(level)
    return found
