"""What a function records between its entry and its exit, in a form that can be recorded again without running it.

A `Capture` watches one call; `close` turns what the trace gained into a `Macro`: the stretch of trie edges, where its inputs and numbers come
from, and which values outlive it. `Macro.replay` moves the trace along the stretch in one go. Storages that exist before the call are `cells`;
macros refer to them by position, so a replay may use others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from sys import getrefcount
from typing import Any

from calque.base.layout import Layout
from calque.run.buffer import Buffer, strided
from calque.run.live import LIVE, LiveFloat, LiveInt, live
from calque.run.recorder import INPUT, Edge, Storage, Trace, flush, local, snapshot, start_plan
from calque.run.source import user_line

REALISED, SHARED, ELSEWHERE, ABSENT = -1, -2, -3, -4
ENDINGS = ("optimizer.step",)  # flushes that a replay repeats: nobody reads anything there


class Changes:
    """`epoch` grows when a module changes, `hooks` when a leaf gets a hook: what was checked before holds until then."""

    epoch = 0
    hooks = 0


class Counts:
    """What became of calls of hybridized functions."""

    functions = 0
    replays = 0
    recordings = 0
    imperative = 0
    reasons: dict[str, int] = {}

    @classmethod
    def because(cls, reason: str) -> None:
        """A call ran as it is written."""
        cls.imperative += 1
        if len(cls.reasons) < MAX_REASONS or reason in cls.reasons:
            cls.reasons[reason] = cls.reasons.get(reason, 0) + 1


MAX_REASONS = 256


def hybrid_counts() -> dict[str, Any]:
    """The counters, for `calque.stats()`."""
    return {
        "functions": Counts.functions, "replays": Counts.replays, "recordings": Counts.recordings, "imperative": Counts.imperative,
        "reasons": dict(Counts.reasons),
    }  # fmt: skip


def state_of(trace: Trace, storage: Storage | None) -> int:
    """Slot of a storage in the trace, or how its value could enter it."""
    if storage is None:
        return ABSENT
    if storage.trace is trace:
        return storage.slot
    buffer = storage.buffer
    if buffer is None:
        return ELSEWHERE
    return SHARED if (buffer.owner is not None or buffer.export is not None) and buffer.shared() else REALISED


@dataclass(slots=True)
class Macro:
    """A stretch of the trie. `reads`: (cell, slot) of cells whose value enters the trace here; `expect`: how cells must stand at entry."""

    start: Edge
    end: Edge
    slots: int  # number of slots after the stretch
    inputs: list[tuple[int, int, Layout | None]]  # cell, slot, view if the memory is copied because others see it
    expect: list[tuple[int, int]]
    scalars: list[Any]
    numbers: list[tuple[int, int, int]]  # position among the scalars, source, position in what the source returns
    sources: list[Callable[[], Any]]
    checks: list[Any]
    created: list[tuple[int, Layout]]  # slot and layout of new storages that outlive the call
    written: list[tuple[int, int, int, Layout, Any]]  # cell, slot, versions, layout, writer
    ending: str
    peeks: list[tuple[int, Layout, Callable[[Any], Any], Any]] = field(default_factory=list)
    result: Any = None  # what the caller makes of it
    plan: Any = None  # the program of a stretch that is a whole trace, False if it cannot be started directly

    def fingerprint(self) -> tuple[Any, ...]:
        """Equal for two calls that recorded the same."""
        asked = {position for position, _, _ in self.numbers}
        constant = [None if k in asked else (type(x), x) for k, x in enumerate(self.scalars)]
        return (
            id(self.start), id(self.end), self.inputs, self.expect, constant, self.numbers, len(self.sources),
            [c[0] for c in self.checks], self.created, [w[:4] for w in self.written], self.ending, [(p[0], p[3]) for p in self.peeks],
        )  # fmt: skip

    def fits(self, trace: Trace, cells: list[Storage | None]) -> bool:
        """Whether the cells stand as they stood when this was recorded."""
        for cell, wanted in self.expect:
            storage = cells[cell]
            if wanted == REALISED:
                if storage is None or storage.trace is trace:
                    return False
                buffer = storage.buffer
                if buffer is None or ((buffer.owner is not None or buffer.export is not None) and buffer.shared()):
                    return False
            elif state_of(trace, storage) != wanted:
                return False
        for cell, view, verdict, result in self.peeks:
            storage = cells[cell]
            values = None if storage is None else known_values(storage, view)
            if values is None or verdict(values) != result:
                return False
        return True

    def replay(self, trace: Trace, cells: list[Any]) -> list[Storage]:
        """Record the stretch; returns the new storages that outlive it. The caller flushes if there is an `ending`."""
        inputs, attached = trace.inputs, trace.attached
        number = len(inputs)
        for cell, slot, view in self.inputs:
            storage = cells[cell]
            buffer = storage.buffer
            if view is not None:
                buffer = snapshot(buffer, view)
            else:
                storage.trace, storage.slot = trace, slot
                attached[id(storage)] = storage
            buffer.trace, buffer.number = trace, number
            inputs.append(buffer)
            number += 1
        trace.scalars += self._scalars()
        if self.checks:
            trace.checks += self.checks
        storages = trace.storages
        created = []
        for slot, layout in self.created:
            storage = _new(Storage)
            storage.trace, storage.slot, storage.layout, storage.version = trace, slot, layout, 0
            storage.buffer = storage.home = storage.writer = None
            storages.append(storage)
            created.append(storage)
        for cell, slot, versions, layout, writer in self.written:
            storage = cells[cell]
            if attached.pop(id(storage), None) is not None or storage.trace is not trace:
                storages.append(storage)
            if storage.buffer is not None:
                storage.home, storage.buffer = storage.buffer, None
            storage.trace, storage.slot, storage.layout, storage.writer = trace, slot, layout, writer
            storage.version += versions
        trace.cur, trace.n = self.end, self.slots
        return created


    def start_directly(self, cells: list[Any]) -> list[Storage] | None:
        """`replay` and the flush in one, without the trace, if the stretch is a whole trace that updates state in place; else None."""
        plan = self.plan
        if plan is None:
            plan = self.plan = self._find_plan()
        if not plan:
            return None
        inputs = [cells[cell].buffer for cell, _, _ in self.inputs]
        outputs = [Buffer(None) for _ in self.created]
        for written in self.written:
            buffer = cells[written[0]].buffer
            if getrefcount(buffer) > 4:  # the storage, `inputs`, the variable, the argument: somebody else sees it, it must be copied
                return None
            outputs.append(buffer)
        created = []
        for k, (_, layout) in enumerate(self.created):
            storage = _new(Storage)
            storage.trace, storage.slot, storage.layout, storage.version = None, -1, layout, 0
            storage.buffer, storage.home, storage.writer = outputs[k], None, None
            created.append(storage)
        for cell, _, versions, layout, writer in self.written:
            storage = cells[cell]
            storage.layout, storage.writer = layout, writer
            storage.version += versions
        start_plan(self.end, plan, self.ending, inputs, self._scalars(), outputs, [c[1] for c in self.checks])
        return created

    def _find_plan(self) -> Any:
        """The plan that a flush of this stretch uses when it may overwrite what it writes; None while there is none, False if never."""
        number = {cell: k for k, (cell, _, _) in enumerate(self.inputs)}
        slots = [slot for slot, _ in self.created] + [w[1] for w in self.written]
        whole = self.ending and self.start.parent is None and len(set(slots)) == len(slots) and all(w[0] in number for w in self.written)
        if not whole or any(view is not None for _, _, view in self.inputs) or any(stood != REALISED for _, stood in self.expect):
            return False
        key = (tuple(slots), (*(-1 for _ in self.created), *(number[w[0]] for w in self.written)), tuple(c[0] for c in self.checks))
        return (self.end.plans or {}).get(key)

    def _scalars(self) -> list[Any]:
        if not self.sources:
            return self.scalars
        scalars = self.scalars.copy()
        found = [source() for source in self.sources]
        for position, source_, k in self.numbers:
            scalars[position] = found[source_][k]
        return scalars


_new: Any = object.__new__


def known_values(storage: Storage, view: Layout) -> Any:
    """The values if they exist already, else None."""
    buffer = storage.buffer
    if buffer is None or buffer.array is None or (buffer.task is not None and not buffer.task.done):
        return None
    return strided(buffer.array, view)


class Capture:
    """Watches one call of a function. `failed` says why it cannot be replayed, if so.

    `closed`: the function reaches values only through the cells. Otherwise it may also name older slots of the trace, which the place of entry
    determines.
    """

    def __init__(self, cells: list[Storage | None], closed: bool = True) -> None:
        self.closed = closed
        trace = local.state.trace
        self.failed = ""
        self.trace, self.start, self.first = trace, trace.cur, trace.n
        self.marks = (len(trace.inputs), len(trace.scalars), len(trace.checks), len(trace.storages))
        self.cells = cells
        self.place = {id(st): k for k, st in enumerate(cells) if st is not None}
        self.stood = [state_of(trace, st) for st in cells]
        self.versions = [0 if st is None else st.version for st in cells]
        self.buffers = {id(st.buffer): k for k, st in enumerate(cells) if st is not None and st.buffer is not None}
        self.sources: list[Callable[[], Any]] = []
        self.asked: set[int] = set()
        self.snapshots: dict[int, tuple[Any, Any, Layout]] = {}
        self.peeks: list[tuple[Storage, Layout, Callable[[Any], Any], Any]] = []
        self.ending = ""
        self.macro: Macro | None = None
        self.storages: list[Storage] = []  # new ones, alive when the stretch ended

    def abort(self, reason: str) -> None:
        """This call runs as it is written, and so will the next ones."""
        if not self.failed:
            self.failed = f"{reason} ({user_line()})"

    # --------------------------------------------------------------------------- told by the recorder and by higher layers

    def flushing(self, trace: Trace, reason: str) -> None:
        """A program is about to be started."""
        if reason not in ENDINGS:
            self.abort(f"starts a program: {reason}")
        elif self.macro is not None:
            self.abort("starts more than one program")
        if not self.failed and trace is self.trace:
            self.ending = reason
            self.close()
        plain_numbers(trace)

    def numbers(self, source: Callable[[], list[Any]], values: list[Any]) -> list[Any]:
        """`values` as numbers that a replay asks `source` for."""
        index = len(self.sources)
        self.sources.append(source)
        if values:
            self.asked.add(index)
        return [live(LiveInt if isinstance(v, int) else LiveFloat, v, index, k, self) for k, v in enumerate(values)]

    def snapshot(self, copy: Any, buffer: Any, view: Layout) -> None:
        """Memory that others see was copied."""
        self.snapshots[id(copy)] = (copy, buffer, view)

    def peek(self, storage: Storage, view: Layout, verdict: Callable[[Any], Any], result: Any) -> None:
        """A decision was made on values that existed already."""
        self.peeks.append((storage, view, verdict, result))

    # ------------------------------------------------------------------------------------------------------------ the end

    def close(self) -> None:
        """Make the macro of what was recorded so far."""
        trace = self.trace
        inputs0, scalars0, checks0, storages0 = self.marks
        edges = self._edges()
        inputs = self._inputs(trace, inputs0, edges)
        scalars = trace.scalars[scalars0:]
        numbers = [(k, v.source, v.position) for k, v in enumerate(scalars) if v.__class__ in LIVE]
        if {source for _, source, _ in numbers} != self.asked:
            self.abort("loses a number that changes from call to call")
        self._known_slots(edges)
        created: list[Storage] = []
        for k in range(storages0, len(trace.storages)):
            st = trace.storages[k]
            if id(st) in self.place or st.trace is not trace or getrefcount(st) <= 3:  # the list, `st` and the argument
                continue
            if st.home is not None:
                self.abort("writes to a tensor that the guards do not reach")
            created.append(st)
        del st
        written = [
            (k, c.slot, c.version - v, c.layout, c.writer)
            for k, (c, v) in enumerate(zip(self.cells, self.versions, strict=True))
            if c is not None and c.version != v
        ]
        if any(self.cells[w[0]].trace is not trace for w in written):  # type: ignore[union-attr]
            self.abort("writes to a tensor whose value leaves the call")
        used = {cell for cell, _, _ in inputs} | {w[0] for w in written} | {k for k, s in enumerate(self.stood) if s >= 0}
        peeks = []
        for storage, view, verdict, result in self.peeks:
            cell = self.place.get(id(storage), -1)
            if cell < 0:
                self.abort("checks values of a tensor that the guards do not reach")
            used.add(cell)
            peeks.append((cell, view, verdict, result))
        expect = [(k, self.stood[k]) for k in sorted(used) if k >= 0]
        if any(s in (ELSEWHERE, ABSENT) for _, s in expect):
            self.abort("uses a tensor that another thread has recorded")
        self.storages = created
        self.macro = Macro(
            self.start, trace.cur, trace.n, inputs, expect, [_plain(v) for v in scalars], numbers, self.sources, trace.checks[checks0:],
            [(st.slot, st.layout) for st in created], written, self.ending, peeks,
        )  # fmt: skip

    def _edges(self) -> list[Edge]:
        found: list[Edge] = []
        edge: Edge | None = self.trace.cur
        while edge is not None and edge is not self.start:
            found.append(edge)
            edge = edge.parent
        if edge is None:
            self.abort("recorded in another trace")
        found.reverse()
        return found

    def _inputs(self, trace: Trace, first: int, edges: list[Edge]) -> list[tuple[int, int, Layout | None]]:
        slots = [self.first + k for k, edge in enumerate(edges) if edge.op is INPUT]
        found: list[tuple[int, int, Layout | None]] = []
        if len(slots) != len(trace.inputs) - first:
            self.abort("recorded in another trace")
            return found
        for k, slot in enumerate(slots):
            buffer = trace.inputs[first + k]
            copied = self.snapshots.get(id(buffer))
            source = buffer if copied is None else copied[1]
            cell = self.buffers.get(id(source), -1)
            storage = self.cells[cell] if cell >= 0 else None
            if storage is None or (storage.buffer is not source and storage.home is not source):
                self.abort("uses a tensor made inside from Python or NumPy data, or one that the guards do not reach")
                continue
            found.append((cell, slot, None if copied is None else copied[2]))
        return found

    def _known_slots(self, edges: list[Edge]) -> None:
        """Every older slot that the stretch uses must belong to a cell."""
        if not self.first or not self.closed:
            return
        known = {s for s in self.stood if s >= 0}
        for edge in edges:
            for source in edge.inputs:
                if isinstance(source, int) and source < self.first and source not in known:
                    self.abort("uses a value recorded earlier that the guards do not reach")
                    return

    def finish(self) -> Macro | None:
        """The macro of the whole call, without storages that died with the call's local variables. None if it cannot be replayed."""
        trace = local.state.trace
        if self.macro is None:
            if trace is not self.trace:
                self.abort("recorded in another trace")
            if not self.failed:
                self.close()
            plain_numbers(trace)
        elif trace.n:
            self.abort("records after the end of its program")
        macro = self.macro
        if self.failed or macro is None:
            return None
        extra = 1 if macro.ending == "" else 0  # the trace's own list
        keep = [k for k in range(len(self.storages)) if getrefcount(self.storages[k]) > 2 + extra]
        macro.created = [macro.created[k] for k in keep]
        self.storages = [self.storages[k] for k in keep]
        return macro


def _plain(value: Any) -> Any:
    if value.__class__ is LiveFloat:
        return float.__float__(value)
    return int.__int__(value) if value.__class__ is LiveInt else value


def plain_numbers(trace: Trace) -> None:
    """Live numbers have done their work: programs want plain ones."""
    if any(v.__class__ in LIVE for v in trace.scalars):
        trace.scalars[:] = [_plain(v) for v in trace.scalars]


def abort(reason: str) -> None:
    """Tell a capture, if one is running, that this call cannot be replayed."""
    capture = local.state.capture
    if capture is not None:
        capture.abort(reason)


def numbers(source: Callable[[], list[Any]]) -> list[Any]:
    """`source()`; under a capture as numbers that a replay asks `source` for again."""
    values = source()
    capture = local.state.capture
    return values if capture is None else capture.numbers(source, values)


__all__ = ["Capture", "Changes", "Macro", "abort", "flush", "numbers", "state_of"]
