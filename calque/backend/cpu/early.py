"""Programs whose first launches begin before all of the program is known.

A launch that reads inputs which are there and writes to the arena alone changes nothing that anybody sees. So the workers may compute it while
the thread that records still runs Python: if the program comes to run with these inputs, it goes on from there, and if it does not, nothing has
happened. What is computed is the same, bit for bit: kernels give the same results however they are divided.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any

import numpy as np

from calque.backend.base import Array
from calque.backend.cpu import callable as native_calls
from calque.backend.cpu import contract
from calque.backend.cpu.early_text import EARLY_REQUEST
from calque.backend.cpu.link import Linked, work_of
from calque.backend.cpu.runtime import Runtime, native
from calque.kernel.schedule import Contract, Loop, Schedule

LEAST_WORK = 1 << 20  # of all launches that begin early (see `link.work_of`): some 0.3 ms of one thread, of which Python hides a part
ENOUGH_WORK = 1 << 21  # no further launches from here on
MOST_WORK = 6 << 20  # of one of them: two threads wait for each other for a unit at most, which must be short beside what Python takes
PARTS = 4  # units of each launch for every thread


@dataclass(frozen=True, slots=True)
class Lead:
    """The launches at the beginning of a program that may be begun early: how many, the inputs they read, and where addresses of those (then of
    the arena) go among the argument words."""

    count: int
    inputs: tuple[int, ...]
    positions: Array
    sources: Array
    offsets: Array


def leading(schedule: Schedule, linked: Linked) -> int:
    """How many launches at the beginning of a program that is one native call may begin early; 0 if they are not worth it."""
    count = work = 0
    for step, (_, _, flags) in zip(schedule.steps, linked.records.tolist(), strict=False):
        if flags & ~1 or not _plain(step, schedule):
            break
        more = work_of(step)
        if more > MOST_WORK:
            break
        count, work = count + 1, work + more
        if work >= ENOUGH_WORK:
            break
    return count if work >= LEAST_WORK else 0


def lead_of(count: int, linked: Linked, arena: int) -> Lead | None:
    """So many launches as a lead; None if there are none. `arena`: its number among the memory objects."""
    if not count:
        return None
    records = linked.records
    end = records[count, 1] // 8 if count < len(records) else len(linked.words)
    chosen = linked.positions < end
    sources = linked.sources[chosen]
    objects = sorted({*sources.tolist()} - {arena})
    numbers = {held: k for k, held in enumerate([*objects, arena])}
    table = np.array([numbers[held] for held in sources.tolist()], np.int64)
    return Lead(count, tuple(objects), linked.positions[chosen].copy(), table, linked.offsets[chosen].copy())


def _plain(step: Any, schedule: Schedule) -> bool:
    """Whether a launch reads inputs and the arena, writes to the arena, takes no numbers, and may be divided in any way: loops and products."""
    if isinstance(step, Loop):
        written = [o.out for o in step.kernel.operands]
        if step.scalars:
            return False
    elif isinstance(step, Contract) and step.kind == "matmul" and contract.is_native(step.kind, step.dtype.name):
        written = [k >= step.inputs for k in range(len(step.operands))]
    else:
        return False
    if step.dynamic:
        return False
    for number, out in zip(step.operands, written, strict=True):
        kind = schedule.buffers[number].kind if number >= 0 else ""
        if number >= 0 and kind != "arena" and (out or kind not in ("input", "constant")):
            return False
    return True


class Early:
    """What has been begun: it keeps all memory that the workers touch. `arena`: of the run that is expected."""

    __slots__ = ("lead", "words", "arena", "arrays", "request", "runtime", "call", "taken", "_drop")

    def __init__(
        self, lead: Lead, words: Any, arena: Array, inputs: Sequence[Array], runtime: Runtime, drop: Callable[[Early], bool]
    ) -> None:
        """`drop` forgets it, and tells whether it was still there."""
        self.lead, self.words, self.arena, self.runtime = lead, words, arena, runtime
        self._drop = drop
        self.taken = False  # a run has taken it over, to go on with it or to forget it
        self.arrays = [*map(inputs.__getitem__, lead.inputs), arena]  # no comprehension, a function that is cold at every step
        self.request = words.request
        if words.early is None or words.early[2] != runtime.running:
            words.early = _bound(words, lead, runtime.running)
        self.call = words.early

    def give_up(self) -> bool:
        """Forget it, unless a run has taken it over. Whether it was forgotten."""
        return not self.taken and self._drop(self)

    def suits(self, inputs: Sequence[Array]) -> bool:
        """Whether a run with these inputs may go on with it."""
        return self.runtime.early is self and all(map(is_, map(inputs.__getitem__, self.lead.inputs), self.arrays))


def _bound(words: Any, lead: Lead, threads: int) -> Any:
    """The native function that begins with these argument words, its request, and for how many threads it is."""
    launches, parts = int(words.request[1]), PARTS * max(threads, 1)
    values = {
        "control": 0, "launches": launches, "units": parts * lead.count, "words": words.address, "parts": parts, "patches": len(lead.positions),
        "positions": lead.positions.ctypes.data, "sources": lead.sources.ctypes.data, "offsets": lead.offsets.ctypes.data,
    }  # fmt: skip
    request = np.array([values[name] for name in EARLY_REQUEST], np.int64)
    return native_calls.bound(native().early, request), request, threads
