"""Operations as data, relative to the values that they begin with: what a function has recorded once is appended to a trace at any other place.

A `Tape` is made from a path that the function itself has recorded (`Tape.read`). Its steps name operations and registers: the first registers are
the operands' storages, every further one is what a step gives. Appending takes the edges that the function would take there: the same keys in the
same order, operands that enter the trace where they are first used, offsets and numbers that became run-time arguments. Where edges are missing, the
recorder's own cold paths make them (`grow`). Nothing of the trace changes until the end is reached, so whoever finds that it cannot be done here
(`append` gives None) runs the function instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from calque.base.layout import Layout, layout
from calque.ops.opdef import OpDef
from calque.record.live import LIVE
from calque.record.numbers import scalar_tag
from calque.record.path import Edge
from calque.record.recorder import (
    INPUT,
    UPDATE,
    UPDATE_AT,
    VIEW,
    VIEW_AT,
    WITH_OFFSET,
    Storage,
    Trace,
    grow,
    grow_constant,
    grow_general,
    grow_view,
    input_edge,
    local,
)
from calque.record.watching import Watcher

BINARY, UNARY, NUMBER, SHOW, OWN, GENERAL, ENTER = range(7)
"""Kinds of steps: two operands; one; one and a number; a view of a register; the view that an operand's handle is, which the handle remembers;
any other operation; an operand is used for the first time. Views of an operand that is a view itself are told relative to it (SHOW names its
handle)."""
_BASES = {VIEW_AT: VIEW, UPDATE_AT: UPDATE}


class Unread(Exception):
    """The path has something that no tape holds."""


class Passed(Watcher):
    """Watches numbers that a function may hand to operations, and nothing else: what it computes of them, or decides by them, is in no tape."""

    active = True

    def computed(self, function: Callable[..., Any], arguments: tuple[Any, ...], result: Any) -> Any:
        """Python did something with one."""
        raise Unread


class Beginning:
    """Where a trace stands before a function runs. `handles`: its operands as tensors, None for those that are storages alone."""

    def __init__(self, trace: Trace, storages: Sequence[Storage], handles: Sequence[Any]) -> None:
        self.trace, self.cur, self.n = trace, trace.cur, trace.n
        self.storages, self.handles = list(storages), list(handles)
        self.versions = [st.version for st in storages]
        self.counts = len(trace.storages), len(trace.scalars), len(trace.checks)

    def shown(self, operand: int) -> int | None:
        """The handle that views of an operand are told relative to, if that is a view itself."""
        storage = self.storages[operand] if operand < len(self.storages) else None
        found = [k for k, t in enumerate(self.handles) if t is not None and t._storage is storage]
        return found[0] if found and self.handles[found[0]]._layout is not storage.layout else None  # type: ignore[union-attr]

    def path(self) -> list[Edge]:
        """What was recorded since then."""
        trace = self.trace
        if local.state.trace is not trace or len(trace.checks) != self.counts[2]:
            raise Unread
        if any(st.version != version for st, version in zip(self.storages, self.versions, strict=True)):
            raise Unread
        edges: list[Edge] = []
        edge: Edge | None = trace.cur
        while edge is not self.cur and edge is not None and len(edges) <= trace.n - self.n:
            edges.append(edge)
            edge = edge.parent
        if len(edges) != trace.n - self.n:
            raise Unread
        return edges[::-1]


class Elsewhere(Exception):
    """The steps mean something else where the trace stands."""


class Tape:
    """`steps`: (kind, operation, first register, second, what the kind needs besides). `operands`: how many registers are operands. `registers`: by
    slot of the path that the tape was read from."""

    __slots__ = ("steps", "operands", "registers")

    def __init__(self, steps: list[tuple[Any, ...]], operands: int, registers: dict[int, int]) -> None:
        self.steps, self.operands, self.registers = tuple(steps), operands, registers

    @classmethod
    def read(cls, mark: Beginning) -> "Tape":
        """What was recorded since `mark` from its operands. Raises `Unread` if a tape cannot say it."""
        return _Reader(mark).read()

    def append(self, trace: Trace, storages: Sequence[Storage], handles: Sequence[Any], line: str) -> list[int] | None:
        """Record the steps for these operands and give the slots of the registers; None if that cannot be done here, and then nothing has happened.
        `line`: of the user's, for edges that are new."""
        walk = self.expected(trace, storages, handles, line)
        if walk is None:
            return None
        walk.commit()
        return walk.slots

    def expected(self, trace: Trace, storages: Sequence[Storage], handles: Sequence[Any], line: str) -> "_Walk | None":
        """What `append` would do, without doing it."""
        walk = _Walk(self, trace, storages, handles, line)
        try:
            walk.run()
        except Elsewhere:
            return None
        return walk


class _Walk:
    """Takes the steps from where a trace stands, and changes nothing of the trace. For the recorder's cold paths it is as much of a trace as they
    look at (`cur`). `numbers`: what the trace gets of them; `entering`: (storage, its buffer, slot); `owned`: (handle, slot of its storage, its
    own)."""

    __slots__ = ("tape", "trace", "storages", "handles", "line", "cur", "n", "slots", "numbers", "entering", "owned")

    def __init__(self, tape: Tape, trace: Trace, storages: Sequence[Storage], handles: Sequence[Any], line: str) -> None:
        self.tape, self.trace, self.storages, self.handles, self.line = tape, trace, storages, handles, line
        self.cur, self.n = trace.cur, trace.n
        self.slots = [st.slot if st.trace is trace else -1 for st in storages]
        self.numbers: list[Any] = []
        self.entering: list[tuple[Storage, Any, int]] = []
        self.owned: list[tuple[Any, int, int]] = []

    def run(self) -> None:
        """Go to the end. Raises `Elsewhere` if only the function knows what to do here."""
        slots = self.slots
        for kind, *step in self.tape.steps:
            edge = _TAKE[kind](self, *step)
            if edge is None:
                continue
            if kind != ENTER:
                slots.append(self.n)
                if edge.boundary and kind not in (SHOW, OWN):
                    raise Elsewhere  # a cut in the middle of the function: which of its values it still has is known there alone
            self.cur = edge
            self.n += 1

    def commit(self) -> None:
        """Have the trace stand where the steps end."""
        trace, numbers, cur, n = self.trace, self.numbers, self.cur, self.n
        buffers = [item[1] for item in self.entering]
        if numbers:
            trace.scalars += numbers  # from here on no call, see `Trace`
        trace.inputs += buffers
        trace.cur = cur
        trace.n = n
        if buffers:
            attach(trace, self.entering)
        for handle, base, slot in self.owned:
            handle._cache = (trace, base, slot)

    # ------------------------------------------------------------------------------------------------ one step of each kind

    def _binary(self, op: OpDef, a: int, b: int, layouts: tuple[Any, ...]) -> Edge:
        key = (op, self.slots[a], self.slots[b])
        return self.cur.next.get(key) or grow(self, key, op, key[1:], (), layouts, None, self.line)  # type: ignore[arg-type]

    def _unary(self, op: OpDef, a: int, _: None, layouts: tuple[Any, ...]) -> Edge:
        key = (op, self.slots[a])
        return self.cur.next.get(key) or grow(self, key, op, key[1:], (), layouts, None, self.line)  # type: ignore[arg-type]

    def _number(self, op: OpDef, a: int, tag: Any, more: tuple[Any, ...]) -> Edge:
        (value, layouts), slot = more, self.slots[a]
        edge = self.cur.next.get((op, slot, tag))
        if edge is None:
            inputs = slot, ("c", value, layouts[1])
            edge, tag = grow_constant(self, (op, slot), tag, op, inputs, (), layouts, self.line)  # type: ignore[arg-type]
        if tag == "s":
            self.numbers.append(value)
        return edge

    def _general(self, op: OpDef, pattern: tuple[Any, ...], attrs: tuple[Any, ...], more: tuple[Any, ...]) -> Edge:
        """As `record` does it. `pattern`: registers, and numbers as the general path names them."""
        values, layouts, baked = more
        slots = self.slots
        sources = tuple([slots[x] if x.__class__ is int else x for x in pattern])
        edge = self.cur.next.get((op, sources, attrs))
        if edge is None:
            edge = grow_general(self, op, sources, attrs, attrs, layouts, baked, self.line)  # type: ignore[arg-type]
        if values:
            given = values if edge.op is op else (*values, attrs[-1])  # its offset is a run-time argument
            self.numbers += [v for v, source in zip(given, edge.inputs, strict=True) if source.__class__ is tuple and source[0] == "s"]
        return edge

    def _enter(self, _: None, operand: int, *rest: Any) -> Edge | None:
        """As `base_slot` does it. What others may write to is copied when it is read."""
        if self.slots[operand] >= 0:
            return None
        storage = self.storages[operand]
        buffer = storage.buffer
        if buffer is None or buffer.owner is not None or buffer.export is not None:
            raise Elsewhere
        self.slots[operand] = self.n
        number = len(self.trace.inputs) + len(self.entering)
        self.entering.append((storage, buffer, self.n))
        return self.cur.next.get((INPUT, storage.layout)) or input_edge(self.cur, storage.layout, number)

    def _show(self, _: None, base: int, handle: int | None, more: tuple[Any, ...]) -> Edge:
        """As `view_slot` does it."""
        if base < self.tape.operands:
            buffer = self.storages[base].buffer
            if buffer is not None and (buffer.owner is not None or buffer.export is not None):
                raise Elsewhere
        if handle is not None:
            more = moved(more, self.handles[handle]._layout.offset)
        view, whole = more
        key = (VIEW, self.slots[base], view)
        edge = self.cur.next.get(key)
        if edge is None:
            edge = grow_view(self, key, key[1], whole, view, self.line)  # type: ignore[arg-type]
        if edge.op is VIEW_AT:
            self.numbers.append(view.offset)
        return edge

    def _own(self, _: None, base: int, number: int, whole: Layout) -> Edge | None:
        """As `slot_of` does it."""
        handle = self.handles[number]
        found = remembered(self.trace, handle, self.storages[base])
        if found is not None:
            self.slots.append(found)
            return None
        self.owned.append((handle, self.slots[base], self.n))
        return self._show(None, base, None, (handle._layout, whole))


_TAKE = (_Walk._binary, _Walk._unary, _Walk._number, _Walk._show, _Walk._own, _Walk._general, _Walk._enter)  # by kind


def attach(trace: Trace, entering: Sequence[tuple[Storage, Any, int]]) -> None:
    """As `base_slot` does it behind inputs, which are the trace's last: (storage, buffer, slot). An interrupt in between leaves a value that is read
    once more if it is needed again."""
    capture = local.state.capture
    number = len(trace.inputs) - len(entering)
    for storage, buffer, slot in entering:
        key = id(storage)
        buffer.trace, buffer.number = trace, number
        number += 1
        if storage.buffer is not buffer:  # another thread has overwritten it since
            if capture is not None:
                capture.met = True
            continue
        trace.attached[key] = storage  # from here on no call, as there
        storage.trace, storage.slot = trace, slot
        if capture is not None:
            capture.enter(storage, slot)


def moved(more: tuple[Any, ...], offset: int) -> tuple[Any, ...]:
    """A view that is told relative to an operand's handle, which begins at an offset of its own."""
    view, whole = more
    return layout(tuple(view.shape), view.strides, view.offset + offset, view.dtype, view.device), whole


def remembered(trace: Trace, handle: Any, storage: Storage) -> int | None:
    """The slot at which a handle's view stands in the trace, if it does (see `slot_of`)."""
    cache = handle._cache
    return cache[2] if cache is not None and cache[0] is trace and storage.trace is trace and cache[1] == storage.slot else None


class _Reader:
    """Makes a tape of a path. `placed`: the edges of the path that the steps account for, in their order, which must be that of the path."""

    def __init__(self, mark: Beginning) -> None:
        self.mark, self.path, self.first = mark, mark.path(), mark.n
        self.steps: list[tuple[Any, ...]] = []
        self.placed: list[int] = []
        self.entered: set[int] = set()
        trace = mark.trace
        self.bases: dict[int, int] = {}
        for k, storage in enumerate(mark.storages):
            if storage.trace is trace and self.bases.setdefault(storage.slot, k) != k:
                raise Unread  # two operands with one value: which is meant does not show
        self.own: dict[int, int] = {}
        for k, handle in enumerate(mark.handles):
            if handle is not None and handle._layout is not handle._storage.layout:
                slot = remembered(trace, handle, handle._storage)
                if slot is not None and (slot in self.bases or self.own.setdefault(slot, k) != k):
                    raise Unread
        made = [st.slot for st in trace.storages[mark.counts[0] :]]
        self.results = set(made)
        if len(self.results) != len(made) or any(slot < self.first for slot in made):
            raise Unread
        self.registers: dict[int, int] = {}
        self.last = len(mark.storages)
        self.scalars: Any = iter(trace.scalars[mark.counts[1] :])

    def read(self) -> Tape:
        """Go through the operations; views and inputs come with the first of them that uses them."""
        numbers: dict[int, list[Any]] = {
            k: [next(self.scalars, None) for s in edge.inputs if s.__class__ is tuple and s[0] == "s"] for k, edge in enumerate(self.path)
        }  # fmt: skip
        given = [v for values in numbers.values() for v in values]
        if any(v is None or (v.__class__ in LIVE and v.capture.__class__ is not Passed) for v in given):
            raise Unread
        self.numbers = numbers
        for k, edge in enumerate(self.path):
            if self.first + k in self.results:
                self._operation(k, edge)
        if self.placed != list(range(len(self.path))):
            raise Unread
        return Tape(self.steps, len(self.mark.storages), {**self.registers, **self.bases})

    def _given(self, slot: int, k: int) -> None:
        self.registers[slot] = self.last
        self.last += 1
        if slot >= self.first:
            self.placed.append(k)

    def _register(self, slot: int) -> int:
        """The register that holds a slot's value, with the steps that bring it there."""
        found = self.registers.get(slot)
        if found is not None:
            return found
        operand = self.bases.get(slot)
        if operand is not None:
            return self._enter(operand, slot)
        k = slot - self.first
        handle = self.own.get(slot)
        if handle is not None:
            storage = self.mark.handles[handle]._storage
            base = self._enter(self.bases[storage.slot], storage.slot)
            self.steps.append((OWN, None, base, handle, storage.layout))
        else:
            edge = self.path[k] if k >= 0 else None
            if edge is None or slot in self.results or (edge.op is not VIEW and edge.op is not VIEW_AT):
                raise Unread
            base = self._register(edge.inputs[0])
            offset = edge.attrs[2] if edge.op is VIEW else self.numbers[k][0]
            handle = self.mark.shown(base)
            if handle is not None:
                beginning = self.mark.handles[handle]._layout
                if beginning.dtype is not edge.layout.dtype:
                    raise Unread  # it counts other elements
                offset -= beginning.offset
            view = layout(edge.attrs[0], edge.attrs[1], offset, edge.layout.dtype, edge.layout.device)
            self.steps.append((SHOW, None, base, handle, (view, edge.input_layouts[0])))
        self._given(slot, k)
        return self.registers[slot]

    def _enter(self, operand: int, slot: int) -> int:
        if operand not in self.entered:
            self.entered.add(operand)
            self.steps.append((ENTER, None, operand, None, None))
            if slot >= self.first:
                self.placed.append(slot - self.first)
        return operand

    def _operation(self, k: int, edge: Edge) -> None:
        """One step, as it was asked for: a place that has met another offset or number answers with a run-time argument."""
        key = next((key for key, found in edge.parent.next.items() if found is edge and key[0].__class__ is OpDef), None)  # type: ignore[union-attr]
        op, inputs, layouts = edge.op, edge.inputs, edge.input_layouts
        if key is None or edge.fixed or op.kind == "random" or edge.boundary:
            raise Unread
        if any(lay.device is not edge.layout.device for lay in layouts if lay.__class__ is Layout):
            raise Unread  # where the result goes depends on more than the layouts
        numbers = iter(self.numbers[k])
        if key[1].__class__ is not tuple and all(source.__class__ is int for source in inputs) and key[1:] == inputs and len(inputs) <= 2:
            at = [self._register(slot) for slot in inputs]
            self.steps.append((UNARY, op, at[0], None, layouts) if len(at) == 1 else (BINARY, op, at[0], at[1], layouts))
        elif key[1].__class__ is int and len(key) == 3 and key[2].__class__ is str:
            value = inputs[1][1] if inputs[1][0] == "c" else next(numbers)
            self.steps.append((NUMBER, op, self._register(inputs[0]), scalar_tag(value), (value, layouts)))
        elif key[1].__class__ is tuple:
            attrs = edge.attrs
            if len(key) == 4 and op in _BASES:  # found by another offset
                op, inputs, layouts = _BASES[op], inputs[:-1], layouts[:-1]
                attrs = (*attrs, self.numbers[k][-1])
            elif len(key) != 3 or key[2] != attrs or op in _BASES:
                raise Unread
            self._general(op, inputs, layouts, attrs, numbers)
        else:
            raise Unread
        self._given(self.first + k, k)

    def _general(self, op: OpDef, inputs: tuple[Any, ...], layouts: tuple[Any, ...], attrs: tuple[Any, ...], numbers: Any) -> None:
        pattern: list[Any] = []
        values: list[Any] = []
        for source in inputs:
            if source.__class__ is int:
                pattern.append(self._register(source))
                values.append(None)
            else:
                value, dtype = source[1] if source[0] == "c" else next(numbers), source[-1]
                pattern.append(("s", dtype) if scalar_tag(value) == "s" else ("c", value, dtype))
                values.append(value)
        plain = not any(source.__class__ is tuple for source in inputs)
        baked = any(source.__class__ is tuple and source[0] == "c" for source in pattern)
        self.steps.append((GENERAL, op, tuple(pattern), attrs, (() if plain and op not in WITH_OFFSET else tuple(values), layouts, baked)))

