"""Results that are written past the caches.

A store to a line that no cache holds first reads the line. Where a result is larger than the caches, so that nobody will find it there, stores of
whole lines that say so ("non-temporal") spare that third of the traffic of a copy. The same holds for a smaller result of a launch that moves more
than the caches hold: its reader begins with what the rest of the launch has driven out.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from calque.backend.cpu.compile.target import TargetInfo
from calque.backend.cpu.loops.emit_memory import are_twins
from calque.backend.cpu.loops.emit_plan import VectorPlan, make_plan
from calque.backend.cpu.team.memory import ALIGNMENT
from calque.kernel.loops import STORES, LoopKernel
from calque.kernel.schedule import Loop, Schedule

STREAM_BYTES = 24 << 20  # from this size on
MOVED_BYTES = 36 << 20  # of all that a launch reads and writes: a little more than a last cache, from here on ...
PART_BYTES = 8 << 20  # ... results of this size are streamed too
LINE = 64
LONG_ROW = 1024  # elements of a row that may begin anywhere in a line, from which its two ends do not count


def with_streams(schedule: Schedule, step: Loop, target: TargetInfo) -> LoopKernel:
    """The kernel of a launch, told which of its stores are streamed."""
    kernel = step.kernel
    fewest = min(PART_BYTES, STREAM_BYTES)
    if not any(o.out and schedule.buffers[k].nbytes >= fewest for o, k in zip(kernel.operands, step.operands, strict=True)):
        return kernel
    least = PART_BYTES if _moved(schedule, step) >= MOVED_BYTES else STREAM_BYTES
    large = [k for k, o in enumerate(kernel.operands) if o.out and schedule.buffers[step.operands[k]].nbytes >= least]
    large = [k for k in large if _is_fresh(schedule, step, k)]
    if not large or not target.masked or target.vector_bytes != LINE:
        return kernel
    plan, where = make_plan(kernel, target), _words(step)
    stores = [a for k in large for a in [_only_store(kernel, k)] if a >= 0]
    streams = tuple(a for a in stores if _whole_lines(step, plan, a, where[a]))
    rows = tuple(a for a in stores[:1] if not streams and not kernel.fixed and _long_rows(step, plan, a))
    return replace(kernel, streams=streams or rows, peeled=bool(rows)) if streams or rows else kernel


def _moved(schedule: Schedule, step: Loop) -> int:
    """The bytes that a launch reads and writes, each counted once."""
    turns = prod(step.params[: step.kernel.rank_p + step.kernel.rank_r])
    buffers = [schedule.buffers[k] for k in set(step.operands)]
    return sum(min(b.numel, turns) * b.dtype.itemsize for b in buffers)


def _is_fresh(schedule: Schedule, step: Loop, operand: int) -> bool:
    """Whether an output's memory is aligned and holds nothing that the launch reads."""
    b = schedule.buffers[step.operands[operand]]
    if b.kind == "output":
        return b.donor < 0 and ALIGNMENT % LINE == 0
    if b.kind != "arena" or b.index % LINE:
        return False
    others = [schedule.buffers[k] for n, k in enumerate(step.operands) if n != operand]
    return all(o.kind != "arena" or o.index >= b.index + b.nbytes or b.index >= o.index + o.nbytes for o in others)


def _only_store(kernel: LoopKernel, operand: int) -> int:
    """The access through which one plain store, and nothing else, touches an operand, or -1."""
    found = [i for i in kernel.instructions() if i.op in ("load", "load_at", *STORES) and kernel.accesses[i.imm].operand == operand]
    return found[0].imm if len(found) == 1 and found[0].op == "store" else -1


def _words(step: Loop) -> list[int]:
    """Where the parameters of every access begin."""
    at, found = step.kernel.rank_p + step.kernel.rank_r, []
    for access in step.kernel.accesses:
        found.append(at)
        at += 1 + access.strides.count("s") + 2 * access.indirect
    return found


def _long_rows(step: Loop, plan: VectorPlan, access: int) -> bool:
    """Whether an access goes along rows, each in a loop that sums nothing: it may begin with the first whole line of the row."""
    kernel, strides = step.kernel, step.kernel.accesses[access].strides
    size = kernel.operands[kernel.accesses[access].operand].dtype.itemsize
    if plan.along != "r" or plan.axis < 0 or kernel.rank_r != 1 or strides[plan.axis] != "1" or plan.width * size != LINE:
        return False
    stages = [s for s in kernel.stages if any(i.op == "store" and i.imm == access for i in s.instrs)]
    return all(s.kind == "map" for s in stages) and step.params[plan.axis] >= LONG_ROW


def _whole_lines(step: Loop, plan: VectorPlan, access: int, at: int) -> bool:
    """Whether every vector of an access is one line: units of work and turns of the vectorised loop begin at multiples of its width. Or whether
    two of them fill two lines, in rows that end with a whole line."""
    kernel, params = step.kernel, step.params
    strides = kernel.accesses[access].strides
    size = kernel.operands[kernel.accesses[access].operand].dtype.itemsize
    twins = plan.axis >= 0 and are_twins(kernel, access, plan.axis)
    if plan.axis < 0 or not (twins or (strides[plan.axis] == "1" and not kernel.fixed)) or plan.width * size != LINE:
        return False
    if any(position == at for position, _, _ in step.dynamic) or (twins and 2 * params[plan.axis] * size % LINE):
        return False
    if params[at] * size % LINE:
        return False
    at += 1
    for dim, stride in enumerate(strides):
        step_ = params[at] if stride == "s" else int(stride)
        at += stride == "s"
        within = dim == plan.axis or (twins and dim == len(strides) - 1)
        if not within and step_ * size % LINE and params[dim] > 1:
            return False
    return prod(params[: kernel.rank_p + kernel.rank_r]) > 0
