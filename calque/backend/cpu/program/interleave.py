"""Launches that walk through the same memory side by side take turns, so that the second finds in the cache what the first has read.

The gradients of a layer norm read their two large operands twice: row by row for the gradient of the input, in blocks of rows for those of the
parameters. Nothing orders the two launches, and a kernel may do any part (thread, threads) of its work at any time; so every thread does a
small part of the first, the same part of the second, and so on. Results do not depend on it.
"""

from __future__ import annotations

from collections.abc import Sequence

from calque.backend.cpu.compile.target import current
from calque.backend.cpu.loops.emit_plan import make_plan
from calque.kernel.schedule import Contract, Loop, Schedule

PART_BYTES = 768 << 10  # of all operands: a part stays in the second-level cache
SHARED_BYTES = 1 << 20  # less than this is in some cache anyway
MOST = 8  # launches that take turns


def flags(schedule: Schedule, steps: Sequence[Loop | Contract], barriers: Sequence[int], starts: frozenset[int]) -> list[int]:
    """The third word of every launch record: 1 for a barrier behind it, and for the first of a group twice the number of its followers plus
    256 times the number of parts. `starts`: launches that begin a native call."""
    words = list(barriers)
    first = 0
    while first < len(steps):
        last = first
        shared: dict[int, int] | None = None
        while last + 1 < len(steps) and last + 1 - first < MOST and not barriers[last] and last + 1 not in starts:
            if set(steps[first].operands).isdisjoint(steps[last + 1].operands):
                break
            walked = _walked(schedule, steps[first]) if shared is None else shared
            both = {k: min(n, walked[k]) for k, n in _walked(schedule, steps[last + 1]).items() if k in walked} if walked else {}
            if not both:
                break
            shared, last = both, last + 1
        if shared:
            words[first] |= (last - first) << 1 | _parts(schedule, steps[first : last + 1], min(shared.values())) << 8
        first = last + 1
    return words


def walk_together(schedule: Schedule, before: Loop | Contract, after: Loop | Contract) -> bool:
    """Whether two launches walk through common memory, so that they should take turns if nothing orders them."""
    first = _walked(schedule, before)
    return bool(first) and not first.keys().isdisjoint(_walked(schedule, after))


def _walked(schedule: Schedule, step: Loop | Contract) -> dict[int, int]:
    """Large buffers that a loop reads from one end to the other while it goes through its units of work, and the extent of its outermost dim."""
    if not isinstance(step, Loop) or not step.kernel.rank_p:
        return {}
    kernel, found = step.kernel, {}
    extent, at = step.params[0], kernel.rank_p + kernel.rank_r
    for access in kernel.accesses:
        stride = step.params[at + 1] if access.strides[0] == "s" else int(access.strides[0])
        at += 1 + access.strides.count("s") + 2 * access.indirect
        buffer = step.operands[access.operand]
        b = schedule.buffers[buffer]
        if not kernel.operands[access.operand].out and stride * extent == b.numel and b.nbytes >= SHARED_BYTES:
            found[buffer] = extent
    return {} if found and make_plan(kernel, current()).block_outermost else found  # the plan last: it takes longest


def _parts(schedule: Schedule, steps: Sequence[Loop | Contract], extent: int) -> int:
    """How many: a divisor of the shorter outermost extent, so that parts of all launches begin at the same place."""
    nbytes = sum(schedule.buffers[k].nbytes for k in {k for step in steps for k in step.operands})
    wanted = min(extent, max(1, nbytes // PART_BYTES))
    return next(n for n in range(wanted, extent + 1) if extent % n == 0)
