"""What happens while programs are recorded, compiled and run: spans of time on named rows, and the memory in use.

Nothing is kept unless a `Session` is active, and looking for one costs one attribute per flush and per program. `CALQUE_LOG=fuse,compile`
writes what is fused and compiled to standard error, without a session.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from calque.base.config import settings
from calque.base.errors import ProfileError
from calque.ir.program import Program
from calque.kernel.cost import cost, describe, lines
from calque.kernel.schedule import Schedule

clock = time.perf_counter

RECORDING, RANGES, COMPILE, COPIES, LOADER, KERNELS = "recording", "ranges", "compile", "copies", "loader", "kernels"
EVENTS = 1_000_000  # of one session; a profile that is left running must not take all memory


@dataclass(frozen=True, slots=True)
class Event:
    """Something that took `seconds` from `start` (both of `time.perf_counter`) on a row of a thread. Rows: "ranges" (the user's own), "recording"
    (Python, flushes, waits), "compile", "copies", "loader", one "<device> queue" per device, "kernels". Events with the same `flow` (not 0) belong
    together: a flush, and the run that it started."""

    name: str
    row: str
    start: float
    seconds: float
    thread: str
    facts: dict[str, Any] = field(default_factory=dict)
    flow: int = 0


class ProgramForm(Protocol):
    """A program in one of the forms that can run (`run/backends.py` `Compiled` and `Interpreted`), as it is seen from here. `source`: as it was
    recorded; `program`: as it was lowered; `planned`: whether it has a schedule, whose launches can be timed; `narrow`: as `Backend.narrow`."""

    source: Program
    planned: bool
    launches: int
    narrow: Any

    @property
    def program(self) -> Program: ...

    @property
    def schedule(self) -> Schedule | None: ...

    def run(self, inputs: list[Any], scalars: Sequence[Any]) -> tuple[Sequence[Any], int, int]: ...

    def run_timed(self, inputs: list[Any], scalars: Sequence[Any]) -> tuple[tuple[Sequence[Any], int, int], Sequence[float]]: ...


@dataclass(frozen=True, slots=True)
class Ran:
    """One run of a program in one of its forms. `steps`: seconds of every launch, if measured; `held`: bytes
    in use when it began; `queue`: name of the device queue."""

    form: ProgramForm
    start: float
    seconds: float
    steps: tuple[float, ...]
    held: int = 0
    queue: str = "cpu"


@dataclass(slots=True, eq=False)
class Value:
    """Memory of one array that the session saw: made at `start` (of the session: before it) by node `node` of `form` (None: not by a program of the
    session), given back at `end` (infinity: still alive)."""

    nbytes: int
    dtype: str
    start: float
    end: float
    form: ProgramForm | None
    node: int


class _Where(threading.local):
    """What this thread is doing. `queue`: the device queue whose work it runs; `flow`: the flush whose program it starts or runs; `inside`: depth of
    open spans on its recording row."""

    queue = "cpu"
    flow = 0
    inside = 0


where = _Where()
_flows = count(1)


class Session:
    """Collects events between `start` and `stop`.

    `kernels`: time every launch by itself, which takes longer. `compile_all`: compile also what would be interpreted at first. `values`: note
    which arrays live how long. `in_use` reads the bytes that are held.
    """

    def __init__(self, in_use: Callable[[], int], kernels: bool = False, compile_all: bool = False, values: bool = False) -> None:
        self.in_use = in_use
        self.kernels, self.compile_all, self.track = kernels, compile_all, values
        self.events: list[Event] = []
        self.runs: list[Ran] = []
        self.memory: list[tuple[float, int]] = []
        self.depths: list[tuple[float, str, int]] = []  # (moment, queue, tasks that wait or run)
        self.values: list[Value] = []
        self.dropped = 0
        self.began = self.ended = clock()
        self._alive: dict[int, tuple[_Life, Value]] = {}  # id of an array -> (weak reference, what it is)
        # Weak reference -> the moment it died: its callback looks for that, which makes the entry. No Python runs there, as what a signal handler
        # raised in it would be lost.
        self._deaths: defaultdict[_Life, float] = defaultdict(clock)
        self._last: dict[int, float] = {}  # thread -> end of its last event on the recording row

    def start(self) -> None:
        """Become the active session."""
        global active
        with _LOCK:
            if active is not None:
                raise ProfileError("[profiler] expected no profile to be running, got a second one; leave the first `with` block (or explain) before")
            active = self
        self.began = self.ended = clock()
        self._last[threading.get_ident()] = self.began
        self.sample()

    def stop(self) -> None:
        """Stop collecting."""
        global active
        self.sample()
        if active is self:
            active = None
        self.ended = clock()
        for life, value in list(self._alive.values()):
            value.end = min(self._deaths.get(life, self.ended), self.ended)
        self._alive.clear()

    def sample(self) -> None:
        """Note the memory in use."""
        if len(self.memory) < EVENTS:
            self.memory.append((clock(), self.in_use()))

    def depth(self, queue: str, tasks: int) -> None:
        """Note how much waits in a queue, running tasks included."""
        if len(self.depths) < EVENTS:
            self.depths.append((clock(), queue, tasks))

    def add(self, event: Event) -> None:
        """Keep an event."""
        if len(self.events) < EVENTS:
            self.events.append(event)
        else:
            self.dropped += 1

    def span(self, name: str, row: str, start: float, flow: int = 0, **facts: Any) -> None:
        """Something that began at `start` and ends now."""
        self.add(Event(name, row, start, clock() - start, threading.current_thread().name, facts, flow))

    # ------------------------------------------------------------------------------------------------ threads that record

    def begin(self, operations: int = 0) -> float:
        """A span of this thread's recording row begins now. What was before it since the last one was Python, with so many operations recorded."""
        now = clock()
        if where.inside == 0:
            before = self._last.get(threading.get_ident())
            if before is not None and now - before > GAP:
                name = "Python" if not operations else f"Python, {operations} values recorded"
                self.add(Event(name, RECORDING, before, now - before, threading.current_thread().name, {"recorded": operations}))
        where.inside += 1
        return now

    def end(self, name: str, start: float, flow: int = 0, **facts: Any) -> None:
        """The span that `begin` opened ends now."""
        now = clock()
        where.inside -= 1
        if flow:
            where.flow = 0
        self._last[threading.get_ident()] = now
        self.add(Event(name, RECORDING, start, now - start, threading.current_thread().name, facts, flow))

    def flow(self) -> int:
        """A number for a flush of this thread and the run that it starts."""
        where.flow = number = next(_flows)
        return number

    # ------------------------------------------------------------------------------------------------------- device queues

    def run(self, form: ProgramForm, inputs: list[Any], scalars: Sequence[Any]) -> Any:
        """Run a compiled or interpreted program and note how long it took."""
        if len(self.runs) >= EVENTS:
            self.dropped += 1
            return form.run(inputs, scalars)
        held = self.in_use()
        queue, flow = where.queue, where.flow
        start = clock()
        self.memory.append((start, held))
        needed = getattr(getattr(form, "executable", None), "needed_bytes", 0)
        self.memory.append((start, held + needed))
        if self.track:
            self._know(inputs, self.began, None, ())
        steps: Sequence[float] = ()
        if self.kernels and form.planned:
            result, steps = form.run_timed(inputs, scalars)
        else:
            result = form.run(inputs, scalars)
        seconds = clock() - start
        facts = {"nodes": len(form.source.nodes), "form": "interpreted"}
        if form.planned:
            facts |= {"form": "compiled", "launches": form.launches, "timed": "launches" if steps else "program"}
        self.add(Event(label(form.source), f"{queue} queue", start, seconds, threading.current_thread().name, facts, flow))
        self.runs.append(Ran(form, start, seconds, tuple(steps), held, queue))
        self.memory.append((start + seconds, held + needed))
        if steps:
            self._kernel_events(form, start, steps, queue)
        if self.track:
            self._know(result[0], start, form, form.source.outputs)
        self.sample()
        return result

    def _know(self, arrays: Sequence[Any], start: float, form: ProgramForm | None, nodes: Sequence[int]) -> None:
        """Follow the lives of arrays."""
        alive = self._alive
        for k, array in enumerate(arrays):
            key = id(array)
            known = alive.get(key)
            if array is None or (known is not None and known[0]() is array) or len(self.values) >= EVENTS:
                continue
            value = Value(array.nbytes, str(array.dtype), start, _FOR_EVER, form, nodes[k] if nodes else -1)
            if known is not None:  # another array was there before
                known[1].end = self._deaths.pop(known[0], start)
            alive[key] = (_Life(array, self._deaths.__getitem__), value)
            self.values.append(value)

    def _kernel_events(self, form: ProgramForm, start: float, steps: Sequence[float], queue: str) -> None:
        thread = threading.current_thread().name
        nodes, schedule = form.program.nodes, form.schedule
        assert schedule is not None
        for step, seconds in zip(schedule.steps, steps, strict=True):
            found = cost(step, schedule.buffers)
            facts = {"lines": list(lines(step, nodes)), "flops": found.flops, "bytes": found.nbytes, "device": queue}
            self.add(Event(describe(step, nodes), KERNELS, start, seconds, thread, facts))
            start += seconds


GAP = 2e-6  # seconds: shorter stretches of Python between two events are not shown
_FOR_EVER = float("inf")
active: Session | None = None
_LOCK = threading.Lock()


class _Life(weakref.ref[Any]):
    """A weak reference that is known by its address, as what it refers to has no hash."""

    __slots__ = ()
    __hash__ = object.__hash__
    __eq__ = object.__eq__


def label(program: Program) -> str:
    """A program by its last source line."""
    line = next((n.line for n in reversed(program.nodes) if n.line), "")
    return f"program at {Path(line).name}" if line else "program"


def logs(topic: str) -> bool:
    """Whether `CALQUE_LOG` names a topic ("fuse", "compile")."""
    return bool(settings.log) and topic in settings.log.split(",")


def log(topic: str, text: str) -> None:
    """Write to standard error."""
    for part in text.splitlines():
        sys.stderr.write(f"calque {topic}: {part}\n")
