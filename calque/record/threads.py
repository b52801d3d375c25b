"""Threads that work on the same values: what one of them has recorded and not flushed, another may need.

A trace belongs to the thread that records it. Another thread that needs a value of it evaluates a snapshot of that trace, which stays untouched.
Where threads keep meeting like that, as when several train one model, gradients are given and parameters updated by one thread at a time, and
flushed before the next: else every accident of timing would be another program.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from sys import getrefcount

from calque.base.config import settings
from calque.base.device import META, Device
from calque.observe.causes import cause_of
from calque.record.path import Seen, Trace
from calque.record.places import build_program, no_values, path_of
from calque.record.state import State
from calque.record.storage import Storage
from calque.run.backends import compile_or_interpret
from calque.run.buffer import Buffer, interrupted
from calque.run.dispatch import dispatch
from calque.run.interrupt import SHIELD
from calque.run.plans import make_plan

LOCK = threading.RLock()  # guards flush against evaluation from another thread
SECTION = threading.RLock()  # held while gradients are given to leaves, dropped, or used for an update; nothing of the user's runs meanwhile
INTERPRETED_WORK = 50_000_000  # scalar operations below which a snapshot is interpreted: it is hardly ever the same twice
OFTEN = 3  # traces of others whose overwritten values were needed, from which on threads are said to share their state
BELIEVED = 1000  # times that values are handed over for that
_TRIES = 1000


class Sharing:
    """Whether threads share state that they change: `left` is for how many more times it is believed."""

    left = 0
    _traces = 0
    _last = 0

    @classmethod
    def met(cls, trace: Trace) -> None:
        """A value that another thread has overwritten in that trace was needed."""
        if id(trace) != cls._last:
            cls._last = id(trace)
            cls._traces += 1
            if cls._traces >= OFTEN:
                cls._traces, cls.left = 0, BELIEVED


def foreign_buffer(storage: Storage, state: State) -> Buffer:
    """Value of a storage that another thread has recorded and not flushed. All values that the trace holds are evaluated at once: whoever needs
    one parameter or gradient needs the others too. `state`: of this thread."""
    if state.capture is not None:
        state.capture.met = True
    for _ in range(_TRIES):
        with LOCK:
            buffer: Buffer | None = storage.buffer
            if buffer is not None:
                return buffer
            trace = storage.trace
            if trace is None:  # nobody will ever compute it
                break
            found = _found(storage, trace, state)
        if found is not None:
            return found
        if trace.ran is not None:
            with SECTION:  # until its thread has come to the end of what it does again
                pass
    raise interrupted()


def _found(storage: Storage, trace: Trace, state: State) -> Buffer | None:
    """The value of a storage of the trace of another thread, if it can be had now."""
    if trace.ran is not None:
        return trace.ran.get(id(storage))
    slot = storage.slot
    if storage.trace is not trace:  # then the slot may be one of another trace
        return None
    if storage.layout.device is META:
        raise no_values()
    if storage.version and not state.nested:
        Sharing.met(trace)
    seen = state.seen
    if seen is not None and seen.trace is trace and slot in seen.buffers:
        return seen.buffers[slot]
    held = SHIELD.hold()
    try:
        found = _evaluated(trace, slot, storage.layout.device)
    finally:
        if held:
            SHIELD.release()
    if found is None:
        return None
    state.seen = Seen(trace, found)
    return found[slot]


def _evaluated(trace: Trace, slot: int, device: Device) -> dict[int, Buffer] | None:
    """The values of a trace on a device that somebody still has; None if its thread did something else with it meanwhile."""
    edge, inputs, scalars = trace.cur, trace.inputs, trace.scalars
    path = path_of(edge)
    count = sum(1 for step in path if step.op.role == "input")
    numbers = sum(1 for step in path for source in step.inputs if source.__class__ is tuple and source[0] == "s")
    inputs, scalars = inputs[:count], scalars[:numbers]  # both only grow, and its thread goes on
    if slot >= len(path) or len(inputs) < count or len(scalars) < numbers:
        return None
    slots = {slot: None}
    for storage in list(trace.storages):
        if getrefcount(storage) > 4 and storage.trace is trace and storage.buffer is None:  # 4: two lists, the variable, the argument
            number = storage.slot
            if number < len(path) and path[number].layout.device is device:
                slots[number] = None
    program = build_program(edge, tuple(slots), (-1,) * len(slots), (), [])
    plan = make_plan(program, cause_of(program), device)
    if plan.work < INTERPRETED_WORK and not settings.deterministic and device.backend is None:
        plan.compiled = compile_or_interpret(program, True)
    outputs = [Buffer(None) for _ in slots]
    dispatch(plan, inputs, scalars, list(outputs), [])  # which lets go of its lists when it is done
    return dict(zip(slots, outputs, strict=True))


def handed_over(flush: Callable[[str], None], state: State, reason: str) -> None:
    """Before another thread may go on with values that this one has changed: `flush` them if threads share their state."""
    if Sharing.left and state.capture is None:
        Sharing.left -= 1
        flush(reason)


def _forked() -> None:
    for lock in (LOCK, SECTION):  # threads that hold them are gone
        lock._at_fork_reinit()  # type: ignore[attr-defined]


os.register_at_fork(after_in_child=_forked)
