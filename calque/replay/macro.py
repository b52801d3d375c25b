"""A stretch of the trace trie in a form that can be recorded again without running what recorded it.

Storages that exist before the stretch are `cells`; a macro refers to them by position, so a replay may use others. A call is one macro, or a
tree of them: a macro that ends with a `Test` goes on with one of several others, depending on what the test gives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from sys import getrefcount
from typing import Any

import numpy as np

from calque.base.dataclass import dataclass
from calque.base.device import Device
from calque.base.layout import Layout
from calque.record.path import SEVERAL, Edge
from calque.record.recorder import Storage, Trace, local, realised, share_value, snapshot
from calque.record.storage import pending
from calque.record.threads import foreign_buffer
from calque.record.versions import silence
from calque.replay.direct import start_plan
from calque.run.buffer import Buffer, strided
from calque.run.dispatch import new_array
from calque.run.interrupt import SHIELD
from calque.run.prepacking import let_go
from calque.run.queues import on, placed

REALISED, SHARED, ELSEWHERE, ABSENT = -1, -2, -3, -4


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


@dataclass(slots=True, frozen=True)
class Number:
    """How a number comes about: `function()` gives `count` numbers, or (`arguments` set) `function(*arguments)` gives one; a pair
    ("live", index) among the arguments is an earlier number. A function of arguments that gives none changes Python state (`effects.told`)."""

    function: Callable[..., Any]
    count: int
    arguments: tuple[Any, ...] | None = None

    def fingerprint(self) -> Any:
        """Equal for numbers that come about in the same way."""
        return self.count if self.arguments is None else (self.function, tuple(key_of(a) for a in self.arguments))


@dataclass(slots=True)
class Test:
    """What Python looked at between two stretches. `read`: a value of cell `cell` through `view`, converted; else a `decision` on numbers.

    `live`: what was read is one more number and whatever it is, the call goes on the same way.
    """

    cell: int
    view: Layout | None
    convert: Callable[[Any], Any]
    live: bool
    decision: Number | None
    line: str
    loss: str = ""  # line of the backward pass that started at what is read
    misses: int = 0

    def fingerprint(self) -> Any:
        """Equal for tests that look at the same."""
        return (self.cell, self.view, self.convert, self.live, None if self.decision is None else self.decision.fingerprint())


@dataclass(slots=True, frozen=True)
class Fresh:
    """A cell that a stretch begins with: another handle on the value of cell `source`, or (-1) the same `values` every time."""

    source: int
    values: Any
    layout: Layout
    floating: bool = False

    def fingerprint(self) -> Any:
        """Equal for those that look the same."""
        return (self.source, None if self.values is None else self.values.tobytes(), self.layout, self.floating)

    def make(self, cells: list[Any]) -> Storage:
        """The storage."""
        if self.source >= 0:
            return share_value(cells[self.source])
        flat = on(self.layout.device, lambda: new_array(self.values.size, self.layout.dtype))
        flat[...] = self.values
        buffer = Buffer(placed(flat, self.layout.device))
        buffer.floating = self.floating
        return realised(buffer, self.layout)


@dataclass(slots=True, frozen=True)
class Direct:
    """How a stretch that is a whole trace is started without the trace."""

    plan: Any
    inputs: list[int]  # cells that the program reads...
    written: list[int]  # ... and overwrites
    replaced: list[int]  # where those are among the inputs
    firsts: list[int]  # new storages whose values the program gives
    twins: list[tuple[int, int]]  # new storages that have the value of another


@dataclass(slots=True)
class Macro:
    """A stretch of the trie. `inputs`: (cell, slot, view) of cells whose value enters the trace here; `expect`: how cells stand at entry."""

    start: Edge
    end: Edge
    slots: int  # number of slots after the stretch
    inputs: list[tuple[int, int, Layout | None]]  # cell, slot, view if the memory is copied because others see it
    expect: list[tuple[int, int]]
    scalars: list[Any]
    numbers: list[tuple[int, int]]  # position among the scalars, which of the call's numbers
    definitions: list[Number]  # numbers that the stretch adds
    checks: list[Any]
    created: list[tuple[int, Layout]]  # slot and layout of new storages that outlive the stretch
    written: list[tuple[int, int, int, Layout, Any]]  # cell, slot, versions, layout, writer
    ending: str  # reason of the flush at its end, if there is one
    peeks: list[tuple[int, Layout, Callable[[Any], Any], Any]] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)  # cells made earlier in the call that nobody has any more at its end
    fresh: list[Fresh] = field(default_factory=list)
    test: Test | None = None
    copies: tuple[list[tuple[int, Layout]], Device] | None = None  # cells whose values go to a device next, as new cells
    children: dict[Any, list["Macro"]] = field(default_factory=dict)
    kept: list[int] | None = None  # of the last one of several: cells made in the call that outlive it
    print: Any = None  # its fingerprint, with the caller's mark
    ready: bool = False  # recorded twice alike
    used: int = 0
    result: Any = None  # what the caller makes of it, if the call ends here
    order: list[int] | None = None  # of what is created and then of what is written, as the trace lists them; None if that is the order
    start_up: Any = None  # its `Direct`, False if it cannot be started directly
    realised: list[int] = field(init=False, repr=False)  # `expect`, the usual...
    unusual: list[tuple[int, int]] = field(init=False, repr=False)  # ... and the others
    overwritten: frozenset[int] = field(init=False, repr=False)  # cells among `written`...
    joins: list[tuple[int, bool]] = field(init=False, repr=False)  # ... and whether their values enter the trace here

    def __post_init__(self) -> None:
        entered = {cell for cell, _, view in self.inputs if view is None}
        self.joins = [(w[0], w[0] in entered) for w in self.written]
        self.overwritten = frozenset([w[0] for w in self.written])
        self.realised = [cell for cell, stood in self.expect if stood == REALISED]
        self.unusual = [(cell, stood) for cell, stood in self.expect if stood != REALISED]

    def fingerprint(self) -> tuple[Any, ...]:
        """Equal for two calls that recorded the same."""
        return (self.stretch(), None if self.test is None else self.test.fingerprint(), self.copies, self.kept)

    def stretch(self) -> tuple[Any, ...]:
        """The same, without what comes after it."""
        asked = {position for position, _ in self.numbers}
        constant = [None if k in asked else key_of(x) for k, x in enumerate(self.scalars)]
        return (
            id(self.start), id(self.end), self.inputs, self.expect, constant, self.numbers, [d.fingerprint() for d in self.definitions],
            [c[0] for c in self.checks], self.created, [w[:4] for w in self.written], self.ending, [(p[0], p[3]) for p in self.peeks],
            self.dropped, [f.fingerprint() for f in self.fresh],
        )  # fmt: skip

    def fits(self, trace: Trace, cells: list[Storage | None]) -> bool:
        """Whether the cells stand as they stood when this was recorded."""
        for cell in self.realised:  # `state_of` without a call each
            storage = cells[cell]
            if storage is None or storage.trace is trace:
                return False
            buffer = storage.buffer
            if buffer is None or ((buffer.owner is not None or buffer.export is not None) and buffer.shared()):
                return False
        for cell, wanted in self.unusual:
            storage = cells[cell]
            if storage is not None and storage.trace is trace:
                if storage.slot != wanted:
                    return False
            elif state_of(trace, storage) != wanted:
                return False
        for cell, view, verdict, result in self.peeks:
            storage = cells[cell]
            values = None if storage is None else known_values(storage, view)
            if values is None or verdict(values) != result:
                return False
        return True

    def define(self, known: list[Any], asked: list[Any]) -> None:
        """Add the numbers of this stretch to those `known`; `asked` gets what sources said."""
        for number in self.definitions:
            if number.arguments is None:
                found = number.function()
                asked.append(found)
                known += found
            else:
                value = number.function(*[known[a[1]] if a.__class__ is tuple else a for a in number.arguments])
                (known if number.count else asked).append(value)

    def replay(self, trace: Trace, cells: list[Any], known: list[Any]) -> list[Storage]:
        """Record the stretch, wholly or not at all; returns the new storages that outlive it. The caller flushes if there is an `ending`."""
        buffers: list[Buffer] = []
        attaching: dict[int, Storage] = {}
        for cell, _, view in self.inputs:
            storage = cells[cell]
            buffer = storage.buffer
            if buffer is None:  # another thread has overwritten it since `fits`
                buffer = foreign_buffer(storage, local.state)
            if view is not None:
                buffer = snapshot(buffer, view)
            elif cell not in self.overwritten:  # also if that thread has flushed meanwhile: what is of this trace and not attached would be no
                attaching[id(storage)] = storage  # new value of it when it is written
            buffers.append(buffer)
        scalars = self.numbered(known) if self.numbers else self.scalars
        created = [pending(trace, slot, layout) for slot, layout in self.created]
        listed = created.copy()
        for cell, entered in self.joins:
            storage = cells[cell]
            if entered or storage.trace is not trace or id(storage) in trace.attached:
                listed.append(storage)
        if self.order is not None and len(listed) == len(self.order):  # more if another thread has overwritten some
            listed = [listed[k] for k in self.order]
        self._record(trace, cells, buffers, attaching, scalars, listed)
        return created

    def _record(
        self, trace: Trace, cells: list[Any], buffers: list[Buffer], attaching: dict[int, Storage], scalars: list[Any], listed: list[Storage]
    ) -> None:
        """The part of `replay` that changes something."""
        held, number = SHIELD.hold(), len(trace.inputs)
        try:
            trace.inputs += buffers
            trace.scalars += scalars
            trace.checks += self.checks
            trace.storages += listed
            trace.attached |= attaching
            trace.cur, trace.n = self.end, self.slots  # before other threads can find values of these slots
            for (cell, slot, view), buffer in zip(self.inputs, buffers, strict=True):
                storage = cells[cell]
                if view is None and storage.buffer is buffer:
                    storage.trace, storage.slot = trace, slot
                buffer.trace, buffer.number = trace, number
                number += 1
            for cell, slot, versions, layout, writer in self.written:
                storage = cells[cell]
                home = storage.home if storage.buffer is None else storage.buffer
                storage.trace, storage.slot, storage.layout, storage.home, storage.buffer = trace, slot, layout, home, None
                storage.writer = writer
                if versions > 0:
                    storage.version += versions
                else:
                    silence(storage, -versions)
            for cell in self.overwritten:
                trace.attached.pop(id(cells[cell]), None)
        finally:
            if held:
                SHIELD.release()

    def start_directly(self, cells: list[Any], known: list[Any]) -> list[Storage] | None:
        """`replay` and the flush in one, without the trace, if the stretch is a whole trace that updates state in place; else None."""
        direct = self.start_up
        if direct is None:
            direct = self.start_up = self._find_direct()
        if not direct:
            return None
        inputs = [cells[cell].buffer for cell in direct.inputs]
        if None in inputs:  # another thread has overwritten them since `fits`
            return None
        written = [inputs[k] for k in direct.replaced]  # not asked of the cells again: another thread may have put something else there
        # Four references: the storage, `inputs`, `written`, the argument. More: somebody else sees what would be overwritten.
        if written and max(map(getrefcount, written)) > 4 and any(getrefcount(b) > 5 + b.pins for b in written):
            if not sum(map(let_go, written)) or any(getrefcount(b) > 5 + b.pins for b in written):
                return None
        created = [realised(Buffer(None), layout) for _, layout in self.created]
        for k, first in direct.twins:
            created[k].buffer = created[first].buffer
        for cell, _, versions, layout, writer in self.written:
            storage = cells[cell]
            storage.layout, storage.writer = layout, writer
            if versions > 0:
                storage.version += versions
            else:
                silence(storage, -versions)
        awaited = self.test is not None  # a value is read next
        outputs = [*[created[k].buffer for k in direct.firsts], *written]
        start_plan(self.end, direct.plan, self.ending, inputs, self.numbered(known), outputs, [c[1] for c in self.checks], awaited)
        return created

    def _find_direct(self) -> Any:
        """How this stretch is started when it may overwrite what it writes; None while that is not known, False if it never can be."""
        if self.end.place is SEVERAL:  # programs of several devices may not all overwrite what they write
            return False
        number = {cell: k for k, (cell, _, _) in enumerate(self.inputs)}
        slots = [*dict.fromkeys(slot for slot, _ in self.created)]
        fresh = len(slots)
        slots += [w[1] for w in self.written]
        whole = self.ending and self.start.parent is None and len(set(slots)) == len(slots) and all(w[0] in number for w in self.written)
        if not whole or any(view is not None for _, _, view in self.inputs) or self.unusual:
            return False
        key = (tuple(slots), ((-1,) * fresh + tuple(number[w[0]] for w in self.written)), tuple(c[0] for c in self.checks))
        plan = (self.end.plans or {}).get(key)
        if plan is None:
            return None
        first: dict[int, int] = {}
        for k, (slot, _) in enumerate(self.created):
            first.setdefault(slot, k)
        twins = [(k, first[slot]) for k, (slot, _) in enumerate(self.created) if first[slot] != k]
        written = [w[0] for w in self.written]
        return Direct(plan, [cell for cell, _, _ in self.inputs], written, [number[cell] for cell in written], [*first.values()], twins)

    def numbered(self, known: list[Any]) -> list[Any]:
        """The scalars of the program, given the numbers of the call."""
        if not self.numbers:
            return self.scalars
        scalars = self.scalars.copy()
        for position, index in self.numbers:
            scalars[position] = known[index]
        return scalars


def known_values(storage: Storage, view: Layout) -> Any:
    """The values if they are known, whatever the time is (see `State.reached`), and in the host's memory, else None."""
    buffer = storage.buffer
    if buffer is None or buffer.made > local.state.reached or buffer.array.__class__ is not np.ndarray:
        return None
    return strided(buffer.readable(), view)


def key_of(value: Any) -> Any:
    """Equal for values that no operation tells apart: 1, 1.0 and True differ, so do the zeros."""
    kind = value.__class__
    if kind is float:
        return (float, value.hex())
    if kind in (list, tuple):
        return (kind, *[key_of(item) for item in value])
    if kind is complex:
        return (kind, repr(value))
    if kind is slice or kind is range:
        return (kind, key_of(value.start), key_of(value.stop), key_of(value.step))
    if kind is frozenset:
        return (kind, frozenset([key_of(item) for item in value]))
    return (kind, value)
