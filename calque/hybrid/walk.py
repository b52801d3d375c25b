"""Replaying a call that looks at values: stretch after stretch, at each test along the branch that was recorded for what the test gives.

Where no branch fits, Python takes over. The call runs from its beginning, but what the walk did is not done again: stretches that are only
recorded are taken back, and those whose programs were started are compared and bound to what came out (see `Script`).
"""

from __future__ import annotations

from typing import Any, Protocol

from calque.base.device import InUse
from calque.record.copies import copy_values
from calque.record.live import leaves
from calque.record.recorder import Storage, Trace, flush, local, record_from_here
from calque.record.state import read_by_python
from calque.record.threads import LOCK, foreign_buffer
from calque.record.trie import root
from calque.replay.capture import Script
from calque.replay.macro import Macro, Test, key_of
from calque.report.losses import watch_value
from calque.run.buffer import Buffer, strided
from calque.run.dispatch import raise_pending
from calque.run.interrupt import of_handler


class Recordings(Protocol):
    """What a walk asks of the recordings that it goes through, see `region.py` `CallMemory`."""

    tick: int
    writes: bool | None


class Walk:
    """One replay. `cells` grows by what the stretches make; `known` are the numbers of the call so far. `alone`: no other thread writes meanwhile."""

    def __init__(self, cells: list[Any], alone: bool) -> None:
        self.alone = alone
        self.entries = len(cells)
        self.cells = list(cells)
        self.known: list[Any] = []
        self.asked: list[list[Any]] = []
        self.steps: list[tuple[Macro, Any]] = []
        self.saved: list[list[tuple[Any, ...]]] = []
        self.trace = trace = local.state.trace
        self.start, self.first = trace.cur, trace.n
        self.marks = (len(trace.inputs), len(trace.scalars), len(trace.checks), len(trace.storages))
        self.floating = [buffer.floating for buffer in trace.inputs] if trace.n and InUse.several else []
        self.pending: list[tuple[Storage, int, bool]] = []  # cells that are in the trace already, and whether they have a value too
        if trace.n:
            self.pending = [(st, st.slot, st.buffer is not None) for st in self.cells if st is not None and st.trace is trace]
        self.dropped: dict[int, Buffer | None] = {}
        self.after: list[tuple[Any, ...]] = []  # what storages that the walk wrote are now

    # ------------------------------------------------------------------------------------------------------------ forward

    def go(self, macro: Macro, memory: Recordings) -> Macro | None:
        """Replay from `macro` on; the last stretch of the call, or None if Python has to take over."""
        cells = self.cells
        while True:
            macro.used = memory.tick
            if macro.definitions and not self._define(macro):
                return None
            self._replay(macro)
            if macro.result is not None:
                return macro
            found: Any = None
            key: Any = ()
            test = macro.test
            self.steps.append((macro, None))
            if test is not None:
                try:
                    found, key = self._look(test)
                except Exception as error:
                    if of_handler(error):
                        raise
                    self.steps[-1] = (macro, error)
                    return None
                self.steps[-1] = (macro, found)
            trace = local.state.trace
            for following in macro.children.get(key, ()):
                if following.ready and following.fits(trace, cells):
                    break
            else:
                if test is not None:
                    test.misses += 1
                return None
            if test is not None:
                test.misses = 0
            if memory.writes and not self.alone:  # found by another thread since the walk began: what follows may be what writes
                return None
            macro = following

    def _define(self, macro: Macro) -> bool:
        """Ask for the numbers of a stretch; False if that fails: Python will raise it where it belongs."""
        try:
            macro.define(self.known, self.asked)
        except Exception as error:
            if of_handler(error):
                raise
            return False
        return True

    def _look(self, test: Test) -> tuple[Any, Any]:
        """What a test gives: (value, key of the branch)."""
        decision = test.decision
        if decision is not None:
            return None, key_of(decision.function(*[self.known[a[1]] if a.__class__ is tuple else a for a in decision.arguments]))  # type: ignore[union-attr]
        buffer = self.cells[test.cell].buffer
        value = test.convert(strided(buffer.readable(), test.view))  # type: ignore[arg-type, union-attr]
        raise_pending()
        read_by_python(local.state, buffer)  # type: ignore[arg-type]
        if test.loss:
            watch_value(value, test.loss)
        if test.live:
            self.known += leaves(value)
            return value, ()
        return value, key_of(value)

    def _replay(self, macro: Macro) -> None:
        """Do one stretch."""
        cells = self.cells
        for fresh in macro.fresh:
            cells.append(fresh.make(cells))
        if macro.start is macro.end and not (macro.created or macro.written or macro.ending or macro.checks):  # only two looks at values
            self._drop(macro)
            self.saved.append([])
            self._copy(macro)
            return
        self.saved.append(
            [(k, st.trace, st.slot, st.layout, st.version, st.writer, st.buffer is not None) for k, *_ in macro.written for st in (cells[k],)]
        )
        created = macro.start_directly(cells, self.known) if macro.ending and macro.copies is None else None
        started = created is not None
        if created is None:
            created = macro.replay(local.state.trace, cells, self.known)
        cells += created
        del created
        self._drop(macro)
        if macro.ending and not started and macro.copies is None:
            flush(macro.ending, awaited=macro.test is not None)
            record_from_here(local.state, macro.ending)
        self._copy(macro)

    def _drop(self, macro: Macro) -> None:
        """Let go of what the call has no more. Values stay until the next program: Python, if it takes over before that, computes from them again."""
        cells, dropped = self.cells, self.dropped
        if macro.ending:
            dropped.clear()
        for k in macro.dropped:
            if not macro.ending and cells[k] is not None:
                dropped[k] = cells[k].buffer
            cells[k] = None

    def _copy(self, macro: Macro) -> None:
        """Send values to another device; starts what is recorded if they have to be computed first."""
        if macro.copies is not None:
            sources, device = macro.copies
            self.cells += copy_values([(self.cells[k], view) for k, view in sources], device)

    # ----------------------------------------------------------------------------------------------------------- backward

    def take_back(self) -> Script:
        """Leave everything as it was before the call, except for the programs that were started: the script tells what they gave."""
        script = Script()
        script.steps, script.asked = self.steps, self.asked
        script.flushed = max((k + 1 for k, (macro, _) in enumerate(self.steps) if macro.ending), default=0)
        with LOCK:  # other threads look for both, value and trace
            self._undo(script.flushed)
            if not script.flushed:
                return script
            found = [*self.dropped.items(), *((k, _value(st)) for k, st in enumerate(self.cells) if st is not None)]
            script.buffers = {k: buffer for k, buffer in found if buffer is not None}
            self._rewind(script.flushed)
            script.ran.update({id(item[0]): item[4] for item in self.after if item[4] is not None})
            local.state.trace.ran = script.ran
        return script

    def _undo(self, flushed: int) -> None:
        """Take stretches back that are in no program yet."""
        trace = local.state.trace
        cells = self.cells
        for k in range(len(self.saved) - 1, flushed - 1, -1):
            macro = self.steps[k][0]
            for cell, home, slot, layout, version, writer, had in self.saved[k]:
                storage = cells[cell]
                if storage is None or storage.trace is not trace:  # the latter: another thread has overwritten it since
                    continue
                storage.trace, storage.slot, storage.layout, storage.version, storage.writer = home, slot, layout, version, writer
                if had:
                    storage.buffer, storage.home = storage.home, None
                    if home is trace:
                        trace.attached[id(storage)] = storage
            for cell, _, view in macro.inputs:
                storage = cells[cell]
                if view is None and storage is not None and trace.attached.pop(id(storage), None) is not None and storage.trace is trace:
                    storage.trace, storage.slot = None, -1
        inputs, scalars, checks, storages = self.marks if not flushed else (0, 0, 0, 0)
        for buffer in trace.inputs[inputs:]:
            if buffer.trace is trace:
                buffer.trace = None
        del trace.inputs[inputs:], trace.scalars[scalars:], trace.checks[checks:], trace.storages[storages:]
        trace.cur, trace.n = (root(self.steps[flushed - 1][0].ending), 0) if flushed else (self.start, self.first)

    def _rewind(self, flushed: int) -> None:
        """Storages that the programs wrote look as before the call until they are bound again. Their values are those of now: what runs again only
        records them, but other threads may read them meanwhile."""
        before: dict[int, tuple[Any, ...]] = {}
        for saved in self.saved[:flushed]:
            for item in saved:
                if item[0] < self.entries:
                    before.setdefault(item[0], item)
        written = {id(self.cells[k]) for k in before}
        for k, home, slot, layout, version, writer, _ in before.values():
            storage = self.cells[k]
            value = _value(storage)
            self.after.append((storage, storage.layout, storage.version, storage.writer, value))
            storage.trace, storage.slot = (home, slot) if home is self.trace and slot < self.first else (None, -1)
            storage.layout, storage.version, storage.writer, storage.buffer, storage.home = layout, version, writer, value, None
        trace = Trace(self.start)
        if self.first:  # handles remember their slots of this very trace
            trace = self.trace
            trace.cur, trace.n = self.start, self.first
            trace.inputs, trace.scalars, trace.checks, trace.storages, trace.attached = self._stand_ins(), [], [], [], {}
        for storage, slot, had in self.pending:
            if id(storage) not in written:
                self.after.append((storage, storage.layout, storage.version, storage.writer, storage.buffer))
            storage.trace, storage.slot = trace, slot
            if had:
                trace.attached[id(storage)] = storage
            else:
                storage.buffer = None
                trace.storages.append(storage)
        local.state.trace = trace

    def _stand_ins(self) -> list[Buffer]:
        """Buffers without values in the places of the inputs of what was pending: their program has run, but copies ask which of them float."""
        made = [Buffer(None) for _ in self.floating]
        for buffer, floating in zip(made, self.floating, strict=True):
            buffer.floating = floating
        return made

    def restore(self) -> None:
        """The call was broken off while it did again what the walk had done: what that gave holds."""
        with LOCK:
            for storage, layout, version, writer, buffer in self.after:
                storage.trace, storage.slot, storage.layout, storage.version, storage.writer = None, -1, layout, version, writer
                storage.buffer, storage.home = buffer, None
            local.state.trace = Trace(root())


def _value(storage: Storage) -> Buffer | None:
    """The value of a storage after the programs of a call; None if it is only recorded, by this thread."""
    buffer: Buffer | None = storage.buffer
    state = local.state
    return foreign_buffer(storage, state) if buffer is None and storage.trace is not state.trace else buffer
