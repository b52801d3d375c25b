"""Plans of programs, by the kind of device: those of devices that have a backend of their own (`backend.base.DeviceBackend`) are here.

Such a device computes by itself and returns at once what it will have computed, so a program is started on the thread that flushes, through the queue
of its device only if something that it reads is still being made. What its run-time checks found is read later (`Verdict`): at a read of a value
that they guard, at `synchronize`, or when many of them are open. A program whose check failed has changed no state, and nothing
that depends on its values starts before that is known: so errors are those of the CPU, only later, and nobody waits in a loop without any.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from calque.backend.base import DeviceProgram
from calque.base.config import settings
from calque.base.device import CPU, Device
from calque.ir.program import Program
from calque.observe import events
from calque.observe.source import user_line
from calque.ops.structure import describe
from calque.run.buffer import Buffer
from calque.run.dispatch import (
    ELSEWHERE,
    DispatchCounters,
    Plan,
    failed_here,
    gather,
    hand_over,
    note_failure,
    read_elsewhere,
    refused,
    settled,
    writes_state,
)  # fmt: skip
from calque.run.engine import ENGINE, Task
from calque.run.memory import out_of_program
from calque.run.queues import queue_of

OPEN = 32  # programs whose checks nobody has read yet, before the oldest is waited for

Errors = list[Callable[[int], Exception]]


def make_plan(program: Program, cause: str = "new program", device: Device = CPU, seldom: bool = False) -> Plan:
    """A plan for a new program and why there was none; compiling waits until it first runs. `seldom`: it will hardly come again."""
    return Plan(program, cause, device, seldom) if device.backend is None else DevicePlan(program, cause, device)


class DevicePlan(Plan):
    """A program of a device with a backend of its own. It is always compiled; equal programs share what the backend made of them."""

    __slots__ = ("precise",)

    def __init__(self, program: Program, cause: str, device: Device) -> None:
        super().__init__(program, cause, device)
        self.precise = True

    def patience(self) -> int:
        """Nothing is interpreted."""
        return 0

    def form(self) -> DeviceProgram:
        """What runs it, compiled when it is first asked for."""
        form: DeviceProgram | None = self.compiled
        if form is None or self.precise is settings.tf32:
            with self.lock:
                start = events.clock()
                self.compiled = form = _compiled(self.program, self.device)
                self.precise = not settings.tf32
                DispatchCounters.compiled += 1
                self._report(start)
        return form

    def start(
        self, inputs: list[Buffer], scalars: Sequence[Any], outputs: list[Buffer], errors: Errors, previous: Sequence[Buffer | None], awaited: bool
    ) -> bool:
        """Start it here if its inputs are there, or known to the device; else behind the tasks that make them."""
        settle(inputs)
        queue = queue_of(self.device)
        values = settled(inputs) if queue.idle() and not (ENGINE.tracking and read_elsewhere(outputs)) else None
        if values is None:
            hand_over(self, queue, False, inputs, scalars, outputs, errors, previous)
            return False
        try:
            self._launch(values, scalars, outputs, errors, previous, user_line())
        except BaseException as error:
            if not failed_here(error, self, outputs, previous):
                raise
        return True

    def packed(self, inputs: list[Buffer]) -> None:
        """Nothing: the backend lays weights out as it likes."""

    def execute(
        self, inputs: list[Buffer], before: list[Task | None], scalars: Sequence[Any], outputs: list[Buffer], errors: Errors, *_: object
    ) -> None:
        """What its task does."""
        values, poison = gather(inputs, before)
        if poison is not None:
            raise poison
        self._launch(values, scalars, outputs, errors, (), "")

    def _launch(
        self, values: list[Any], scalars: Sequence[Any], outputs: list[Buffer], errors: Errors, previous: Sequence[Buffer | None], line: str
    ) -> None:
        form, session, start = self.form(), events.active, events.clock()
        overwrites = writes_state(outputs, previous)
        try:
            results, report = form.run(values, scalars)
        except MemoryError as error:
            raise out_of_program(error, self.program) from None
        fresh = [b for b in outputs if b.array is None]
        with ENGINE.pins:
            for buffer, value in zip(outputs, results, strict=True):
                buffer.array = value
        if report is not None:
            _expect(Verdict(self, form, report, fresh, errors, previous, overwrites, line))
        if session is not None:
            facts = {"nodes": len(self.program.nodes), "form": "started", "launches": form.launches}
            session.span(events.label(self.program), f"{self.device} queue", start, events.where.flow, **facts)


_forms: weakref.WeakValueDictionary[Any, DeviceProgram] = weakref.WeakValueDictionary()  # (program without lines, device, precision) -> its form
_FORMS_LOCK = threading.RLock()


def _compiled(program: Program, device: Device) -> DeviceProgram:
    """What the backend makes of a program; the same object for equal ones."""
    described, backend = describe(program), device.backend
    if described is None:
        return backend.compile(program, device.index)  # type: ignore[no-any-return]
    key = (described.whole(), device, settings.tf32)
    with _FORMS_LOCK:
        found = _forms.get(key)
    if found is None:
        found = backend.compile(program, device.index)
        with _FORMS_LOCK:
            found = _forms.setdefault(key, found)
    return found


class Verdict(Task):
    """What the checks of a program that was started have found. It stands where a task would at the values that the program made, and nobody may
    queue behind it: see `settle`."""

    __slots__ = ("plan", "form", "report", "fresh", "errors", "previous", "overwrites", "line", "__weakref__")

    def __init__(
        self, plan: Plan, form: DeviceProgram, report: Any, fresh: list[Buffer], errors: Errors, previous: Sequence[Buffer | None], overwrites: bool,
        line: str,
    ) -> None:  # fmt: skip
        super().__init__(_nothing)
        self.plan, self.form, self.report, self.errors, self.previous = plan, form, report, list(errors), list(previous)
        self.fresh = [weakref.ref(b) for b in fresh]
        self.overwrites, self.line = overwrites, line
        for buffer in fresh:
            buffer.task = self

    def wait(self) -> None:
        """Read what the checks found. Values of a program that failed are lost."""
        with _OPEN_LOCK:
            if self.done:
                return
            check, position = self.form.checked(self.report)
            if check >= 0:
                error = refused(self.plan.program, check, position, self.errors)
                lost = [b for b in (ref() for ref in self.fresh) if b is not None]
                for buffer in lost:
                    buffer.array = None
                self.error = error
                note_failure(error, self.line, lost, self.previous if len(lost) == len(self.fresh) else (), self.overwrites)
            self.settled()

    def settled(self) -> None:
        """It is known what the checks found."""
        self.done, self.work, self.report = True, None, None


def _nothing() -> None:
    pass


_open: deque[Verdict] = deque()
_groups: deque[tuple[list[Verdict], Device, Any]] = deque()
"""Those of `_open`, OPEN // 2 at a time, and what joins them."""
_OPEN_LOCK = threading.RLock()


def _expect(verdict: Verdict) -> None:
    """Keep a verdict until it is read. Many are joined on the device, which is asked for what came of it when as many more have come: nobody waits
    for what was started last."""
    with _OPEN_LOCK:
        _open.append(verdict)
        if len(_open) % (OPEN // 2):
            return
        here = verdict.plan.device
        group = [v for v in list(_open)[-(OPEN // 2) :] if not v.done and v.plan.device is here]
        same = [*group, *group[:1] * (OPEN // 2 - len(group))]  # always as many, so that what joins them is compiled once
        _groups.append((group, here, here.backend.join([v.report for v in same]) if group else None))
        while len(_open) >= OPEN:
            _look_at_oldest()


def _look_at_oldest() -> None:
    """Read what came of the oldest verdicts: one by one only if some check failed. The caller holds the lock."""
    group, device, joined = _groups.popleft()
    if joined is not None and device.backend.fine(joined):
        for verdict in group:
            verdict.settled()
    for _ in range(OPEN // 2):
        _open.popleft().wait()


def settle(buffers: Iterable[Buffer]) -> None:
    """Before something is started that reads these buffers: read what checks have found about them."""
    for buffer in buffers:
        if buffer.task.__class__ is Verdict:
            buffer.task.wait()


def _settle_all() -> None:
    """All verdicts, and everything that devices compute."""
    with _OPEN_LOCK:
        _groups.clear()
        while _open:
            _open.popleft().wait()
    for device in Device.served():
        device.backend.synchronize(device.index)


ELSEWHERE.append(_settle_all)
