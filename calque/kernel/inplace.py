"""When a launch may write one value over another that it reads.

Threads and vector lanes share the points of P in any order, so a point may only read what it overwrites itself, and the stages of a point run
one after another: an element must not be read after it was overwritten.
"""

from __future__ import annotations

from calque.kernel.loops import STORES, Access, Instr
from calque.kernel.lower import Launch


def may_overwrite(launch: Launch | None, read: int, write: int) -> bool:
    """Whether the value of node `write` may lie where node `read` does.

    Either every read is of the element that the same iteration stores, or (for row-wise kernels) of the row that the same point of P stores, in a
    stage before the one that stores it: the maximum of a row, or one entry of it chosen at run time.
    """
    if launch is None or write not in launch.operands:
        return False
    if read not in launch.operands:
        return not launch.reads.get(read)
    kernel = launch.kernel
    source, target = launch.operands.index(read), launch.operands.index(write)
    found = _stores(launch, target)
    where = _decode(launch)
    if len({where[instr.imm] for _, instr in found}) != 1 or any(instr.op != "store" for _, instr in found):
        return False
    last, store = found[0]  # an output may hold another value before its own
    place = where[store.imm]
    for number, stage in enumerate(kernel.stages):
        for instr in stage.instrs:
            if instr.op not in ("load", "load_at") or kernel.accesses[instr.imm].operand != source:
                continue
            same = where[instr.imm] == place and not kernel.accesses[instr.imm].indirect
            if not (number <= last if same else number < last and _within_row(launch, where[instr.imm], place, kernel.accesses[instr.imm])):
                return False
    return True


def _stores(launch: Launch, operand: int) -> list[tuple[int, Instr]]:
    """(stage, instruction) of everything that writes an operand."""
    kernel = launch.kernel
    return [
        (number, instr)
        for number, stage in enumerate(kernel.stages)
        for instr in stage.instrs
        if instr.op in STORES and kernel.accesses[instr.imm].operand == operand
    ]


Where = tuple[tuple[int, ...], tuple[int, int], tuple[tuple[int, int], ...]]
"""(offset, *strides), (index stride, limit), run-time terms of the offset as (scalar leaf, factor)"""


def _decode(launch: Launch) -> list[Where]:
    """Where every access of a launch goes."""
    kernel, params = launch.kernel, launch.params
    at = kernel.rank_p + kernel.rank_r
    found: list[Where] = []
    for access in kernel.accesses:
        numbers = [params[at]]
        terms = tuple((leaf, factor) for position, leaf, factor in launch.dynamic if position == at)
        at += 1
        for stride in access.strides:
            numbers.append(params[at] if stride == "s" else int(stride))
            at += stride == "s"
        indirect = (0, 1)
        if access.indirect:
            indirect, at = (params[at], params[at + 1]), at + 2
        found.append((tuple(numbers), indirect, terms))
    return found


def _within_row(launch: Launch, read: Where, place: Where, access: Access) -> bool:
    """Whether a read stays in the dense row that the same point of P stores."""
    kernel = launch.kernel
    extents = launch.params[: kernel.rank_p + kernel.rank_r]
    split = 1 + kernel.rank_p
    if read[0][:split] != place[0][:split] or read[2] != place[2]:
        return False
    row = 1
    for stride, extent in sorted(zip(place[0][split:], extents[kernel.rank_p :], strict=True)):
        if extent > 1 and stride != row:
            return False
        row *= extent
    reach = sum(stride * (extent - 1) for stride, extent in zip(read[0][split:], extents[kernel.rank_p :], strict=True))
    if access.indirect:
        reach += read[1][0] * (read[1][1] - 1)
    return reach < row and min((*read[0][split:], read[1][0])) >= 0
