"""The recorder: operations become edges of a trace trie; a flush turns the path since the last flush into a program and dispatches it.

Recording operation number n is one dictionary look-up in the current edge: key = (op, input slots, static attributes). A hit yields the
result's layout and the next edge. A miss (`grow`) runs shape and dtype inference and remembers the user's source line. Programs hang on
the edge where a flush happened, keyed by what was still referenced from Python at that moment.

Slots: every input, view and result of a trace has a number, in recording order. `Storage.trace is trace` means `Storage.slot` is valid.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

from calque.base.collector import pause_collections, without_full_collections
from calque.base.config import settings
from calque.base.device import META, Device, InUse
from calque.base.dtypes import int64
from calque.base.layout import Layout, value_layout
from calque.base.native import acyclic, hot
from calque.observe import events
from calque.observe.causes import cause_of, flushed, seldom_repeats
from calque.observe.source import user_line
from calque.ops import opdef
from calque.record.at_once import fresh
from calque.record.exclusive import judge
from calque.record.fallback import say
from calque.record.inferred import RESULTS, result_by
from calque.record.path import SEVERAL, Counters, Edge, Instead, Key
from calque.record.path import Trace as Trace
from calque.record.places import Split, build_program, device_of, floating_outputs, split
from calque.record.state import State as State
from calque.record.state import local as local
from calque.record.state import record_from_here as record_from_here
from calque.record.storage import Storage as Storage
from calque.record.storage import pending
from calque.record.storage import realised as realised
from calque.record.threads import LOCK, foreign_buffer
from calque.record.trie import BOUND, beat, loosen, make_room, retire, root, varies
from calque.run.backends import require_memory
from calque.run.buffer import Buffer, next_program, strided
from calque.run.dispatch import dispatch, new_array, run_at_once
from calque.run.interrupt import SHIELD
from calque.run.plans import make_plan

INPUT = opdef.get("input")
VIEW = opdef.get("view")
VIEW_AT = opdef.get("view_at")
UPDATE = opdef.get("update")
UPDATE_AT = opdef.get("update_at")
VIEW_AS = opdef.get("view_as")
UPDATE_AS = opdef.get("update_as")
WITH_OFFSET = {VIEW: VIEW_AT, UPDATE: UPDATE_AT}
"""The same with the offset as their last operand."""
_getrefcount = sys.getrefcount
_TICK = 0
_HUGE = 1 << 32  # bytes from which a new tensor is refused where it is written if it cannot fit, not where it is first read


def recording_line() -> str:
    """The user's line that records now. A gradient is recorded where its forward operation was, unless code of the user records it."""
    state = local.state
    applied = state.applied
    if applied is None:
        return user_line()
    if applied.edge is None:  # perhaps a function of the user's
        line = user_line()
        if line != state.started:
            return line
    forward: str = applied.line
    return state.started if not forward else forward if forward.endswith(BACKWARD) else forward + BACKWARD


BACKWARD = " (backward)"


def grow(
    trace: Trace, key: Key, op: opdef.OpDef, inputs: tuple[Any, ...], attrs: tuple[Any, ...], layouts: tuple[Any, ...], device: Device | None = None,
    line: str | None = None,
) -> Edge:  # fmt: skip
    """Cold path: infer the result, check the operands and add an edge. Raises the user's errors; nothing is recorded then. `device`: of the
    result, whatever those of the operands are. `line`: what `recording_line` says, if that is known."""
    forced = device is not None
    if InUse.several and not forced:
        device = device_of(trace, op, inputs, layouts, local.state.device)
    rule = (op, attrs, layouts, device, settings.fallback)
    value = RESULTS.get(rule) or result_by(rule)
    if value.nbytes > _HUGE and op.creates and value.device is not META and value.device.backend is None:
        require_memory(value.nbytes)
    edge = Edge(trace.cur, op, inputs, attrs, value, recording_line() if line is None else line)
    edge.fixed = forced or (local.state.device is not None and not any(isinstance(source, int) for source in inputs))
    edge.input_layouts = layouts
    if value.device.backend is not None and settings.fallback:
        say(edge, layouts)
    if edge.rhythm is not None:
        beat(edge, edge.rhythm)
    trace.cur.next[acyclic(key, *key[1:], rule, attrs, layouts)] = edge
    Counters.edges += 1
    if not Counters.edges & 3:
        make_room(edge)
    return edge


def grow_constant(
    trace: Trace, family: tuple[Any, ...], tag: Any, op: opdef.OpDef, inputs: tuple[Any, ...], attrs: tuple[Any, ...], layouts: tuple[Any, ...],
    line: str | None = None,
) -> tuple[Edge, Any]:  # fmt: skip
    """Cold path of an operation with a Python number: (edge, tag that hit). The first constant at a place may be baked into the edge; a second
    distinct one, or any that is not a baked value, makes the number a run-time argument for all that follow.

    `family` is the key without the number: `(op, slot)` of the binary fast path, whose keys are `(op, slot, tag)`, or `(op, inputs with run-time
    numbers, attrs, perhaps a device)` of the general path, whose tag is the tuple of inputs.
    """
    general = tag.__class__ is tuple
    following = trace.cur.next
    free = family if general else (*family, "s")
    found = following.get(free)
    if found is not None:
        return found, "s"
    mark = acyclic(("constant", family), family)
    runtime = tuple(("s", x[2]) if x.__class__ is tuple and x[0] == "c" else x for x in inputs)
    if tag == "s" or mark in following:
        return grow(trace, free, op, runtime, attrs, layouts, line=line), "s"
    edge = grow(trace, (family[0], tag, *family[2:]) if general else (*family, tag), op, inputs, attrs, layouts, line=line)
    following[mark] = edge
    return edge, tag


def grow_general(
    trace: Trace, op: opdef.OpDef, sources: tuple[Any, ...], attrs: tuple[Any, ...], there: Any, layouts: tuple[Any, ...], baked: bool,
    line: str | None = None,
) -> Edge:  # fmt: skip
    """Cold path of the general path of recording, whose keys are `(op, sources, there)`. `baked`: whether a source is a constant."""
    if baked:
        family = (op, tuple(("s", x[2]) if x.__class__ is tuple and x[0] == "c" else x for x in sources), there)
        return grow_constant(trace, family, sources, op, sources, attrs, layouts, line)[0]
    if op in WITH_OFFSET:
        return grow_shifted(trace, (op, sources, there), op, sources, attrs, layouts, line)
    return grow(trace, (op, sources, there), op, sources, attrs, layouts, line=line)


def grow_shifted(
    trace: Trace, key: Key, op: opdef.OpDef, inputs: tuple[Any, ...], attrs: tuple[Any, ...], layouts: tuple[Any, ...], line: str | None = None
) -> Edge:
    """Cold path of a view or an update that is an operation of its own (the gradient of the other)."""
    following, runtime = trace.cur.next, WITH_OFFSET[op]
    family = (runtime, inputs, *attrs[:-1])
    found = following.get(family)
    if found is not None:
        return found
    mark, line = ("seen", *family), recording_line() if line is None else line
    if not varies(following, mark, line):
        edge = following[mark] = grow(trace, key, op, inputs, attrs, layouts, line=line)
        return edge
    edge = grow(trace, family, runtime, (*inputs, ("s", int64)), attrs[:-1], (*layouts, int64), line=line)
    retire(following, mark, edge)
    return edge


def base_slot(trace: Trace, storage: Storage) -> int:
    """Slot of the storage's whole value in this trace, attaching it as an input if it is realised."""
    if storage.trace is trace:
        return storage.slot
    if trace.__class__ is not Trace:
        return 0
    buffer = storage.buffer
    if buffer is None:
        return _input_slot(trace, value_elsewhere(storage), storage.layout)
    slot, key = _input_slot(trace, buffer, storage.layout), id(storage)
    if storage.buffer is not buffer:  # another thread has overwritten it since
        if local.state.capture is not None:
            local.state.capture.met = True
        return slot
    trace.attached[key] = storage  # from the slot on no call: Ctrl-C comes behind calls, and one half without the other loses the next value
    storage.trace, storage.slot = trace, slot
    capture = local.state.capture
    if capture is not None:
        capture.enter(storage, slot)
    return slot


def value_elsewhere(storage: Storage) -> Buffer:
    """The value of a storage that has none yet and is not of this thread's trace."""
    owner = storage.trace
    if owner is not None and owner.__class__ is not Trace:
        raise owner.left(storage)
    return foreign_buffer(storage, local.state)


def _input_slot(trace: Trace, buffer: Buffer, value: Layout) -> int:
    edge = trace.cur.next.get((INPUT, value))
    slot, number = trace.n, len(trace.inputs)
    if edge is None:
        edge = input_edge(trace.cur, value, number)
    buffer.trace, buffer.number = trace, number
    trace.inputs += (buffer,)  # from here on no call, see `Trace`
    trace.cur = edge
    trace.n = slot + 1
    return slot


def input_edge(cur: Edge, value: Layout, number: int) -> Edge:
    """Cold path of an input, the path's `number`-th."""
    edge = cur.next[INPUT, value] = Edge(cur, INPUT, (), (number, tuple(value.shape), value.dtype), value, "")
    Counters.edges += 1
    return edge


def view_slot(trace: Trace, storage: Storage, view: Layout) -> int:
    """Slot of a handle's value: the storage's value, or a view of it recorded now."""
    buffer = storage.buffer
    if buffer is not None and (buffer.owner is not None or buffer.export is not None) and buffer.shared() and trace.__class__ is Trace:
        return _snapshot_slot(trace, buffer, view)
    base = base_slot(trace, storage)
    return base if view is storage.layout else view_of(trace, storage, base, view)


def view_of(trace: Trace, storage: Storage, base: int, view: Layout) -> int:
    """Slot of a view, recorded now, of a storage whose value has the slot `base`."""
    key = (VIEW, base, view)
    edge = trace.cur.next.get(key)
    if edge is None:
        if trace.__class__ is not Trace:
            return 0
        edge = (None if hot is None else hot.view_grown(trace, key, base, storage.layout, view)) or grow_view(trace, key, base, storage.layout, view)
    if edge.op is VIEW_AT:
        trace.scalars += (view.offset,)  # from here on no call, see `Trace`
    trace.cur = edge
    slot = trace.n
    trace.n = slot + 1
    return slot


def _snapshot_slot(trace: Trace, buffer: Buffer, view: Layout) -> int:
    """NumPy may write to shared memory at any time: copy what this operation reads, now."""
    copy = snapshot(buffer, view)
    capture = local.state.capture
    if capture is not None:
        capture.snapshot(copy, buffer, view)
    return _input_slot(trace, copy, value_layout(view))


def snapshot(buffer: Buffer, view: Layout) -> Buffer:
    """A buffer of its own with what the view shows now."""
    copy = new_array(view.numel, view.dtype)
    source = buffer.wait()
    start = events.clock()
    copy.reshape(tuple(view.shape))[...] = strided(source, view)
    if events.active is not None:
        events.active.span("copy of memory shared with NumPy", events.COPIES, start, bytes=copy.nbytes)
    return Buffer(copy)


def grow_view(trace: Trace, key: Key, base: int, base_layout: Layout, view: Layout, line: str | None = None) -> Edge:
    """A new view edge. Its offset is baked into it until a place meets a second one, see `varies`."""
    shape, strides = tuple(view.shape), view.strides
    if view.dtype is not base_layout.dtype:
        return grow(trace, key, VIEW_AS, (base,), (shape, strides, view.offset, view.dtype), (base_layout,), line=line)
    family = (VIEW_AT, (base,), shape, strides)
    found = trace.cur.next.get(family)
    if found is not None:
        return found
    dense = value_layout(view)
    mark, line = ("seen", *family), recording_line() if line is None else line
    if varies(trace.cur.next, mark, line):
        edge = Edge(trace.cur, VIEW_AT, (base, ("s", int64)), (shape, strides), dense, line)
        trace.cur.next[acyclic(family)] = edge
        retire(trace.cur.next, acyclic(mark), edge)
    else:
        edge = Edge(trace.cur, VIEW, (base,), (shape, strides, view.offset), dense, line)
        trace.cur.next[acyclic(key)] = edge
        trace.cur.next[acyclic(mark)] = edge
    edge.input_layouts = acyclic((base_layout, int64) if edge.op is VIEW_AT else (base_layout,))
    Counters.edges += 1
    return edge


def write(storage: Storage, view: Layout, value: Storage) -> None:
    """In-place write: the storage's value becomes `value` (whole), or its old value with `value` written through `view`.

    `value` is pending in this thread's trace, dense, with the view's shape.
    """
    state = local.state
    trace = state.trace
    if trace.__class__ is not Trace:
        trace.write(storage, view, value)
        return
    buffer = storage.buffer
    shared = buffer is not None and (buffer.owner is not None or buffer.export is not None) and buffer.shared()
    home = storage.home if buffer is None else buffer
    whole = view is storage.layout or (view.dense and view.numel == storage.layout.numel and view.dtype is storage.layout.dtype)
    if whole:
        slot = base_slot(trace, value)
        edge = trace.cur
        storage.layout = value.layout  # an alias of another shape wrote it: handles of the old shape become views
    else:
        slot, edge = _record_update(trace, storage, view, value)
    key, attached = id(storage), trace.attached  # from here on no call, as in `base_slot`
    read = key in attached
    if read:
        del attached[key]
    if read or storage.trace is not trace:
        trace.storages += (storage,)
    storage.trace, storage.slot, storage.buffer, storage.home = trace, slot, None, home
    storage.version += 1
    storage.writer = edge
    if shared:
        assert home is not None
        flush("write to memory shared with NumPy")
        fresh = storage.buffer
        assert fresh is not None
        if fresh is not home:
            storage.buffer = home  # also if the computation failed: the old values stay
            home.wait()[...] = fresh.wait()
        storage.buffer.wait()


def _record_update(trace: Trace, storage: Storage, view: Layout, value: Storage) -> tuple[int, Edge]:
    base = base_slot(trace, storage)
    source = base_slot(trace, value)
    shape, strides = tuple(view.shape), view.strides
    key = (UPDATE, base, source, view)
    edge = trace.cur.next.get(key)
    if edge is None and view.dtype is not storage.layout.dtype:
        edge = grow(trace, key, UPDATE_AS, (base, source), (shape, strides, view.offset), (storage.layout, value.layout))
    if edge is None:
        family = (UPDATE_AT, (base, source), shape, strides)
        edge = trace.cur.next.get(family)
        mark = ("seen", *family)
        if edge is None:
            line = recording_line()
            if varies(trace.cur.next, mark, line):
                inputs = (base, source, ("s", int64))
                edge = Edge(trace.cur, UPDATE_AT, inputs, (shape, strides), storage.layout, line)
                trace.cur.next[acyclic(family)] = edge
                retire(trace.cur.next, acyclic(mark), edge)
            else:
                edge = Edge(trace.cur, UPDATE, (base, source), (shape, strides, view.offset), storage.layout, line)
                trace.cur.next[acyclic(key)] = edge
                trace.cur.next[acyclic(mark)] = edge
            edge.input_layouts = acyclic((storage.layout, value.layout, int64) if edge.op is UPDATE_AT else (storage.layout, value.layout))
            Counters.edges += 1
    if edge.op is UPDATE_AT:
        trace.scalars += (view.offset,)  # from here on no call, see `Trace`
    trace.cur = edge
    slot = trace.n
    trace.n = slot + 1
    return slot, edge


def share_value(storage: Storage) -> Storage:
    """A second storage with the same current value; later writes to either do not show in the other."""
    if local.state.trace.__class__ is not Trace:
        return local.state.trace.twin(storage)  # type: ignore[no-any-return]
    twin = pending(storage.trace, storage.slot, storage.layout)
    twin.buffer = storage.buffer
    if storage.buffer is not None and storage.buffer.shared():
        trace = local.state.trace
        twin.slot = view_slot(trace, storage, storage.layout)
        twin.trace, twin.buffer = trace, trace.inputs[-1]
    if twin.trace is not local.state.trace:
        twin.trace = None
        if twin.buffer is None:
            twin.buffer = value_elsewhere(storage)
    elif twin.buffer is None:
        twin.trace.storages.append(twin)
    else:
        twin.trace.attached[id(twin)] = twin
    if local.state.capture is not None and twin.buffer is storage.buffer is not None:
        local.state.capture.twin(storage, twin)
    return twin


def add_check(slot: int, make_error: Callable[[int], Exception]) -> None:
    """Attach a run-time check on an int64 scalar value of the current trace (-1 = fine)."""
    trace = local.state.trace
    if trace.__class__ is not Trace:
        trace.check(slot, make_error)
    else:
        trace.checks.append((slot, make_error, user_line()))


# ---------------------------------------------------------------------------------------------------------------- flush


def flush(reason: str, awaited: bool = False, wanted: tuple[int, ...] = ()) -> None:
    """Dispatch everything this thread has recorded. Returns at once; only reading waits (`awaited`: the caller is about to). `wanted`: slots
    for which other devices wait."""
    state = local.state
    trace = state.trace
    if not trace.n:
        restart(state, trace, reason)
        return
    state.seen = None
    if state.capture is not None and state.capture.flushing(trace, reason):
        return  # a call that runs again: its program has been started
    session = events.active
    if session is None and not wanted:
        done = _flush_at_once(state, trace, reason, awaited)
        if done and state.capture is not None:
            state.capture.flushed()
        if done or state.trace is not trace:  # code that an interrupt has run flushed
            return
    held = SHIELD.hold()
    count = trace.n
    start = session.begin(count - len(trace.inputs)) if session is not None else 0.0
    flow = session.flow() if session is not None else 0
    try:
        with LOCK:
            state.trace = following(trace, reason)
            _dispatch(trace, reason, awaited, wanted)
    finally:
        trace.inputs, trace.scalars = [], []  # buffers and caches know their trace; it must not keep memory alive
        if held:
            SHIELD.release()
        if session is not None:
            session.end(f"flush: {reason}", start, flow, slots=count, line=user_line())
    if state.capture is not None:
        state.capture.flushed()


def restart(state: State, trace: Trace, reason: str) -> None:
    """A flush where nothing is recorded."""
    if trace.eager:
        flushed(reason, 3)
        state.trace = fresh(state, None, False) or Trace(root(reason))
    elif state.capture is None:
        trace.cur, trace.recorded = root(reason), 0
        state.trace = fresh(state, trace, False)


def following(trace: Trace, reason: str) -> Trace | Instead | None:
    """What records behind a flush, or computes."""
    behind = Trace(root(reason, reason == BOUND and trace.cur.loose))
    if reason == BOUND:
        behind.recorded = trace.recorded  # it is the same program that goes on
    return fresh(local.state, behind, reason == BOUND)


def count_flush(edge: Edge, reason: str, frames: int) -> list[Any] | None:
    """A flush at `edge`, `frames` frames of ours below the one that may be the user's; gives the counters of that line. (Three more stand between
    `flush` and the user if somebody waits for a value: `materialise`, its caller and who reads.)"""
    global _TICK
    _TICK += 1
    edge.used = _TICK
    Counters.flushes += 1
    Counters.reasons[reason] = Counters.reasons.get(reason, 0) + 1
    return flushed(reason, frames + 1)


def _flush_at_once(state: State, trace: Trace, reason: str, awaited: bool) -> bool:
    """Run what is recorded here and now if it comes to a program that is known and short and overwrites nothing; else False, and nothing has
    happened. Whatever interrupts this loses no value: what is recorded goes when the results are there."""
    edge, inputs, scalars = trace.cur, trace.inputs, trace.scalars
    if trace.checks or not edge.plans or (trace.storages and trace.storages[-1].home is not None):  # the last: as behind an optimizer's step
        return False
    live: list[Storage] = []
    made: dict[int, Any] = {}
    with LOCK:
        for storage in trace.storages:
            if _getrefcount(storage) > 3 and storage.trace is trace:  # 3: the list, `storage`, the argument
                if storage.home is not None:
                    return False
                made[storage.slot] = None
                live.append(storage)
        plan = edge.plans.get((tuple(made), (-1,) * len(made), ()))
        if plan is None or plan.__class__ is Split or plan.floating:
            return False
        results, fresh = run_at_once(plan, inputs, scalars, awaited), following(trace, reason)
        if results is None or trace.cur is not edge or state.trace is not trace:  # code that an interrupt has run may have recorded something
            return False
        state.trace = fresh  # until the end of this, values of the old trace can be had as those of another thread can
        count_flush(edge, reason, 3 + 3 * awaited)
        Counters.plan_hits += 1
        number = next_program()
        for slot, array in zip(made, results, strict=True):
            made[slot] = Buffer(array, made=number)
        for storage in live:
            if storage.trace is trace:
                storage.trace, storage.buffer = None, made[storage.slot]
        for storage in trace.attached.values():
            if storage.trace is trace:
                storage.trace = None
        trace.inputs, trace.scalars, trace.attached, trace.storages = [], [], {}, []  # caches still point to the trace
    return True


def _dispatch(trace: Trace, reason: str, awaited: bool, wanted: tuple[int, ...]) -> None:
    edge = trace.cur
    known = edge.used
    site = count_flush(edge, reason, 3 + 3 * awaited)
    for storage in trace.attached.values():
        if storage.trace is trace:
            storage.trace = None
    trace.attached.clear()
    live = [st for st in trace.storages if _getrefcount(st) > 3 and st.trace is trace]  # 3: the list, `st`, the argument
    trace.storages.clear()
    if not live and not trace.checks:
        trace.inputs = []
        return
    numbers: dict[int, int] = {}  # slot -> input that this value replaces in place, or -1
    homes: dict[int, Buffer] = {}
    before: dict[int, Buffer | None] = {}  # slot -> what its storage held, if others see that memory too
    judge(trace, live, numbers, homes, before)
    checks = trace.checks
    key = (tuple(numbers), tuple(numbers.values()), tuple([c[0] for c in checks]) if checks else ())
    plan: Any = None if edge.plans is None else edge.plans.get((key, wanted) if wanted else key)
    if plan is None:
        Counters.plan_misses += 1
        plan = plan_of(trace, reason, key, wanted, site, known > 0)
    else:
        Counters.plan_hits += 1
    errors = [c[1] for c in checks] if checks else []
    if plan.__class__ is Split:
        for k in plan.fresh:
            slot = key[0][k]
            before[slot] = homes.pop(slot)
    # Storages that share a value share the buffer: it is copied on write.
    made = {slot: homes.get(slot) or Buffer(None) for slot in numbers}
    outputs = list(made.values())
    for k in plan.floating:
        outputs[k].floating = True
    inputs = trace.inputs.copy()  # those of the trace serve code that the collector runs meanwhile (see `aside`), until the results are handed out
    previous = [before.get(slot) for slot in numbers] if before else ()
    paused = plan.ready() and pause_collections()  # from here on inputs may be overwritten
    try:
        if plan.__class__ is Split:
            plan.start(inputs, trace.scalars, outputs, errors, previous)
        else:
            dispatch(plan, inputs, trace.scalars, outputs, errors, previous, awaited)
    finally:  # also after an interrupt: the trace cannot be run again
        hand_out(trace, live, made)
        if paused:
            gc.enable()


def plan_of(trace: Trace, reason: str, key: Key, wanted: tuple[int, ...], site: Any, known: bool) -> Any:
    """A plan for what is flushed here for the first time. It is kept unless it is only interpreted, and the first one here (not `known`)."""
    edge, checks = trace.cur, trace.checks
    with without_full_collections():
        program = build_program(edge, key[0], key[1], key[2], [c[2] for c in checks])
        cause = cause_of(program, trace)
        piece = reason == BOUND
        seldom = seldom_repeats(site, cause, 0 if piece else len(program.nodes), known) or (piece and Counters.loose)
        if seldom:
            loosen(edge)
        plan: Any
        if edge.place is SEVERAL or edge.place is META or wanted:
            plan = split(program, cause, edge, key[0], key[2], wanted)
        else:
            plan = make_plan(program, cause, edge.place, seldom)
        plan.floating = floating_outputs(trace, edge, key[0], key[1]) if InUse.several else ()
        if known or not seldom or plan.__class__ is Split or not plan.patience():
            edge.keep((key, wanted) if wanted else key, plan)
    return plan


def hand_out(trace: Trace, live: list[Storage], made: dict[int, Buffer]) -> None:
    for storage in live:
        if storage.trace is trace:  # else another thread has overwritten it since
            storage.trace, storage.buffer, storage.home = None, made[storage.slot], None


def materialise(storage: Storage, reason: str, awaited: bool = True) -> Buffer:
    """The storage's buffer, flushing if it is only recorded. `awaited`: the caller is about to wait for it."""
    if local.state.capture is not None and not local.state.capture.foreseen(storage):
        local.state.capture.abort(f"reads a value: {reason}")
    if storage.buffer is None:
        if local.state.trace.__class__ is not Trace:
            return local.state.trace.materialise(storage, reason, awaited)  # type: ignore[no-any-return]
        if storage.trace is local.state.trace:
            flush(reason, awaited, () if awaited else (storage.slot,))
        if storage.buffer is None:
            return value_elsewhere(storage)
    return storage.buffer
