"""Where everything lies in the arena: numbers only, once it is known which values share memory (`kernel/memory.py`)."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import reduce
from itertools import accumulate
from typing import Any

from calque.base.dtypes import DType, uint8
from calque.ir.symint import largest
from calque.kernel.memory import Lowered, Span
from calque.kernel.schedule import Buffer, Contract, Schedule, Step

ALIGNMENT = 64  # bytes: one cache line, one AVX-512 register
SMALL_ARENA = 1 << 20  # bytes: below this, holes do not matter
WorkspaceBytes = Callable[[str, Any, DType], int]


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


def most_at_once(spans: Sequence[Span]) -> int:
    """The most bytes that are needed at one entry: no layout is smaller."""
    change: dict[int, Any] = {}
    for s in spans:
        change[s.first] = change.get(s.first, 0) + _aligned(s.nbytes)
        change[s.last + 1] = change.get(s.last + 1, 0) - _aligned(s.nbytes)
    return reduce(largest, accumulate((change[t] for t in sorted(change)), initial=0))  # type: ignore[no-any-return]


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


def stacked(spans: Sequence[Span], order: Sequence[int]) -> tuple[list[int], int]:
    """Each above all before it in this order that are needed at the same time: right for any sizes, whatever they were when the order was chosen."""
    offsets, ends = [0] * len(spans), [0] * len(spans)
    tops = [-1] * max([s.last + 1 for s in spans], default=0)  # at every time the place in `order` of what nothing is above so far

    def height(places: Iterable[int]) -> Any:
        """The highest end among these tops. Below a later one at any time means below its end."""
        highest: list[int] = []
        for place in sorted({*places} - {-1}, reverse=True):
            if not any(_together(spans[order[place]], spans[k]) for k in highest):
                highest.append(order[place])
        return reduce(largest, [ends[k] for k in highest], 0)

    for place, k in enumerate(order):
        life = slice(spans[k].first, spans[k].last + 1)
        offsets[k] = height(tops[life])
        ends[k] = offsets[k] + _aligned(spans[k].nbytes)
        tops[life] = [place] * len(tops[life])
    return offsets, height(tops)


def _together(a: Span, b: Span) -> bool:
    """Whether two spans are needed at the same time."""
    return a.first <= b.last and b.first <= a.last


def stacking(spans: list[Span]) -> tuple[int, ...]:
    """An order for these sizes: from the bottom to the top of the layout that `pack` chooses."""
    offsets, _ = pack(spans)
    return tuple(sorted(range(len(spans)), key=offsets.__getitem__))


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
    return ALIGNMENT if nbytes <= ALIGNMENT else -(-nbytes // ALIGNMENT) * ALIGNMENT


def placed(lowered: Lowered, workspace_bytes: WorkspaceBytes | None = None, sized: bool = False) -> Schedule:
    """The schedule of a lowered program. `workspace_bytes(kind, spec, dtype)`: what the backend wants for a contraction beside its operands; its
    place is in the arena, for the time of the call. `sized`: see `Schedule`."""
    spacious = with_workspaces(lowered, workspace_bytes) if workspace_bytes is not None else lowered
    return at_offsets(spacious, *pack(list(spacious.spans)), sized)


def placed_in_order(spacious: Lowered, order: Sequence[int]) -> Schedule:
    """The schedule of launches with their workspaces, the spans of which are stacked in this order."""
    return at_offsets(spacious, *stacked(spacious.spans, order), sized=True)


def with_workspaces(lowered: Lowered, workspace_bytes: WorkspaceBytes) -> Lowered:
    """The launches with what contractions want beside their operands."""
    spans, buffers, steps = list(lowered.spans), list(lowered.buffers), list[Step](lowered.steps)
    for k, step in enumerate(steps):
        if isinstance(step, Contract) and (nbytes := workspace_bytes(step.kind, step.spec, step.dtype)):
            steps[k] = replace(step, workspace=len(buffers))
            buffers.append(Buffer("arena", len(spans), uint8, nbytes))
            spans.append(Span(lowered.times[k], lowered.times[k], nbytes))
    return replace(lowered, spans=tuple(spans), buffers=tuple(buffers), steps=tuple(steps))


def at_offsets(lowered: Lowered, offsets: Sequence[int], size: int, sized: bool) -> Schedule:
    """The schedule of launches whose spans have these places in an arena of this size."""
    found = [Buffer("arena", offsets[b.index], b.dtype, b.numel) if b.kind == "arena" else b for b in lowered.buffers]
    return Schedule(tuple(found), lowered.steps, lowered.outputs, size, lowered.scalars, lowered.check_steps, lowered.checks, sized)
