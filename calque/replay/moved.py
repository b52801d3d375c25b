"""A recorded stretch at a place of the trace where it was never recorded.

What follows there is recorded, fused and planned as if the call had run: the edges are those that its Python would take, because the same rules
choose them (which numbers are constants, which offsets vary, where an input enters). Nothing but the trie grows until the macro is replayed.
"""

from __future__ import annotations

from typing import Any

from calque.base.layout import Layout, layout
from calque.record.numbers import scalar_tag
from calque.record.path import Counters, Edge
from calque.record.recorder import (
    INPUT,
    UPDATE,
    UPDATE_AS,
    UPDATE_AT,
    VIEW,
    VIEW_AS,
    VIEW_AT,
    Storage,
    Trace,
    _input_slot,
    _record_update,
    grow,
    grow_constant,
    grow_general,
    local,
    view_slot,
)
from calque.record.storage import pending
from calque.record.trie import BOUND
from calque.replay.macro import REALISED, Macro, state_of
from calque.run.buffer import Buffer


class Bound(Exception):
    """The stretch means something else here, or cannot be told apart from what does."""


def recorded_elsewhere(macro: Macro, trace: Trace, cells: list[Storage | None]) -> Macro | None:
    """`macro`, as its call would be recorded where the trace stands; None if only running it tells."""
    if macro.result is None:  # what follows in the call is known there alone
        return None
    if macro.test is not None or macro.copies is not None or macro.fresh or macro.checks or local.state.device is not None:
        return None
    if macro.ending == BOUND:  # pending work is cut there, not here
        return None
    scratch = Trace(trace.cur)
    scratch.n, scratch.inputs = trace.n, list(trace.inputs)
    try:
        return _Move(macro, trace, scratch, cells).run()
    except Bound:
        return None
    finally:
        scratch.inputs = []  # what stands for a buffer knows its trace: a cycle would keep the real ones alive


class _Move:
    """Walks the stretch once, on a trace of its own that begins where the real one stands."""

    def __init__(self, macro: Macro, real: Trace, scratch: Trace, cells: list[Storage | None]) -> None:
        self.macro, self.real, self.trace, self.cells = macro, real, scratch, cells
        self.slots: dict[int, int] = {}  # of the stretch -> here
        self.edges: dict[Edge, Edge] = {}
        self.entering: dict[int, int] = {}  # slot of the stretch -> cell whose value it is
        self.entered: dict[int, int] = {}  # cell -> slot, of those that enter the trace in this stretch
        self.inputs: list[tuple[int, int, Layout | None]] = []
        self.live = dict(macro.numbers)
        self.numbers: list[tuple[int, int]] = []
        self.taken = 0  # scalars of the stretch that its operations have used
        found = [(slot, cell) for cell, slot in macro.expect if slot >= 0] + [(slot, cell) for cell, slot, _ in macro.inputs]
        self.entering = dict(found)
        if len(self.entering) < len(found) or any(view is not None for _, _, view in macro.inputs):
            raise Bound

    def run(self) -> Macro:
        macro, start = self.macro, self.trace.cur
        edges: list[Edge] = []
        edge: Edge | None = macro.end
        while edge is not None and edge is not macro.start:
            edges.append(edge)
            edge = edge.parent
        first = macro.start.depth
        used = {cell for cell, _ in macro.expect} | {k for k, st in enumerate(self.cells) if st is not None and st.trace is self.real}
        expect = [(k, state_of(self.real, self.cells[k])) for k in sorted(used)]
        if any(stood < REALISED for _, stood in expect):
            raise Bound
        for k, edge in enumerate(reversed(edges)):
            if edge.op is INPUT:  # what is in the trace there, and not here, enters where it is first used
                self._slot(first + k)
            else:
                self._step(edge, first + k)
                if self.trace.cur.boundary and edge is not macro.end:
                    raise Bound
        created = [(self._slot(slot), view) for slot, view in macro.created]
        written = [(k, self._slot(slot), versions, view, self.edges.get(writer, writer)) for k, slot, versions, view, writer in macro.written]
        made = Macro(
            start, self.trace.cur, self.trace.n, self.inputs, expect, self.trace.scalars, self.numbers, macro.definitions, [], created, written,
            macro.ending, macro.peeks, macro.dropped,
        )  # fmt: skip
        made.kept, made.result, made.ready = macro.kept, macro.result, True
        made.print = (made.fingerprint(), macro.print[1])
        return made

    def _slot(self, old: int) -> int:
        """Where the value of a slot of the stretch stands; cells enter the trace if they are not in it."""
        found = self.slots.get(old)
        if found is not None:
            return found
        cell = self.entering.get(old, -1)
        storage = self.cells[cell] if cell >= 0 else None
        if storage is None:
            raise Bound  # an older value, which belongs to the place
        if storage.trace is self.real:
            found = storage.slot
        elif cell in self.entered:
            found = self.entered[cell]
        else:
            buffer = Buffer(None)
            buffer.floating = storage.buffer is not None and storage.buffer.floating
            found = self.entered[cell] = _input_slot(self.trace, buffer, storage.layout)
            self.inputs.append((cell, found, None))
        self.slots[old] = found
        return found

    def _standing(self, old: int, value: Layout) -> Storage:
        """What stands for the storage of a slot: the recorder's functions ask for its slot and layout."""
        return pending(self.trace, self._slot(old), value)

    def _step(self, edge: Edge, old: int) -> None:
        """Take the edge that the operation of `edge` takes here."""
        trace, op = self.trace, edge.op
        if edge.fixed:
            raise Bound
        count = Counters.edges
        if op is VIEW or op is VIEW_AT or op is VIEW_AS:
            offset = edge.attrs[2] if op is not VIEW_AT else self._number(int)
            view = layout(edge.attrs[0], edge.attrs[1], offset, edge.layout.dtype, edge.layout.device)
            view_slot(trace, self._standing(edge.inputs[0], edge.input_layouts[0]), view)
        elif op is UPDATE or op is UPDATE_AT or op is UPDATE_AS:
            offset = edge.attrs[2] if op is not UPDATE_AT else self._number(int)
            base, value = (self._standing(k, lay) for k, lay in zip(edge.inputs[:2], edge.input_layouts, strict=False))
            _record_update(trace, base, layout(edge.attrs[0], edge.attrs[1], offset, value.layout.dtype, value.layout.device), value)
        else:
            self._operation(edge)
        if Counters.edges != count:
            trace.cur.line = edge.line
        if trace.cur.layout is not edge.layout:
            raise Bound
        self.slots[old], self.edges[edge] = trace.n - 1, trace.cur

    def _number(self, kind: type) -> Any:
        """The next number that the stretch uses; it is the same at every call."""
        position = self.taken
        self.taken += 1
        if position in self.live:
            raise Bound
        return kind(self.macro.scalars[position])

    def _operand(self, source: tuple[Any, ...]) -> tuple[Any, Any, int]:
        """A number among the operands: (value, tag, which of the call's numbers it is or -1)."""
        if source[0] == "c":
            return source[1], scalar_tag(source[1]), -1
        position = self.taken
        self.taken += 1
        value = self.macro.scalars[position]
        return (value, "s", self.live[position]) if position in self.live else (value, scalar_tag(value), -1)

    def _operation(self, edge: Edge) -> None:
        """As `tensor.unary`, `binary` and `record` do it."""
        trace, op, layouts = self.trace, edge.op, edge.input_layouts
        assert edge.parent is not None
        key = next((k for k, found in edge.parent.next.items() if found is edge), None)
        if key is None:
            raise Bound  # evicted
        given: list[tuple[Any, int]] = []
        if key[1].__class__ is tuple:
            sources: list[Any] = []
            operands: list[Any] = []
            baked = False
            for source in edge.inputs:
                if source.__class__ is tuple:
                    value, tag, number = self._operand(source)
                    operands.append((value, number))
                    dtype = source[-1]
                    baked = baked or tag != "s"
                    sources.append(("s", dtype) if tag == "s" else ("c", value, dtype))
                else:
                    operands.append(None)
                    sources.append(self._slot(source))
            there = key[2]
            found = trace.cur.next.get((op, tuple(sources), there))
            if found is None:
                found = grow_general(trace, op, tuple(sources), edge.attrs, there, layouts, baked)
            given = [o for o, source in zip(operands, found.inputs, strict=True) if source.__class__ is tuple and source[0] == "s"]
        elif len(key) == 3 and edge.inputs[1].__class__ is tuple:
            i = self._slot(edge.inputs[0])
            value, tag, number = self._operand(edge.inputs[1])
            found = trace.cur.next.get((op, i, tag))
            if found is None:
                found, tag = grow_constant(trace, (op, i), tag, op, (i, ("c", value, edge.inputs[1][-1])), (), layouts)
            given = [(value, number)] if tag == "s" else []
        else:
            at = tuple([self._slot(source) for source in edge.inputs])
            found = trace.cur.next.get((op, *at))
            if found is None:
                found = grow(trace, (op, *at), op, at, (), layouts)
        for value, number in given:
            if number >= 0:
                self.numbers.append((len(trace.scalars), number))
            trace.scalars.append(value)
        trace.cur = found
        trace.n += 1
