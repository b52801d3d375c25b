"""What happens while programs are recorded, compiled and run: spans of time on named rows, and the memory in use.

Nothing is kept unless a `Session` is active, and looking for one costs one attribute per flush and per program. `CALQUE_LOG=fuse,compile`
writes what is fused and compiled to standard error, without a session.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calque.base.config import settings
from calque.base.errors import ProfileError
from calque.ir.program import Program
from calque.kernel.cost import cost, describe, lines

clock = time.perf_counter


@dataclass(frozen=True, slots=True)
class Event:
    """Something that took `seconds` from `start` (both of `time.perf_counter`) on a row: "recording", "compile", "cpu queue" or "kernels"."""

    name: str
    row: str
    start: float
    seconds: float
    thread: str
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ran:
    """One run of a program in one of its forms (`backends.Compiled` or `Interpreted`). `steps`: seconds of every launch, if measured."""

    form: Any
    start: float
    seconds: float
    steps: tuple[float, ...]


class Session:
    """Collects events between `start` and `stop`.

    `kernels`: time every launch by itself, which takes longer. `compile_all`: compile also what would be interpreted at first.
    `in_use` reads the bytes that are held.
    """

    def __init__(self, in_use: Callable[[], int], kernels: bool = False, compile_all: bool = False) -> None:
        self.in_use = in_use
        self.kernels, self.compile_all = kernels, compile_all
        self.events: list[Event] = []
        self.runs: list[Ran] = []
        self.memory: list[tuple[float, int]] = []
        self.began = clock()

    def start(self) -> None:
        """Become the active session."""
        global active
        with _LOCK:
            if active is not None:
                raise ProfileError("[profiler] expected no profile to be running, got a second one; leave the first `with` block (or explain) before")
            active = self
        self.began = clock()
        self.sample()

    def stop(self) -> None:
        """Stop collecting."""
        global active
        self.sample()
        active = None

    def sample(self) -> None:
        """Note the memory in use."""
        self.memory.append((clock(), self.in_use()))

    def span(self, name: str, row: str, start: float, **facts: Any) -> None:
        """Something that began at `start` and ends now."""
        self.events.append(Event(name, row, start, clock() - start, threading.current_thread().name, facts))

    def run(self, form: Any, inputs: Sequence[Any], scalars: Sequence[Any]) -> Any:
        """Run a compiled or interpreted program and note how long it took."""
        self.sample()
        start = clock()
        steps: Sequence[float] = ()
        if self.kernels and form.schedule is not None:
            result, steps = form.run_timed(inputs, scalars)
        else:
            result = form.run(inputs, scalars)
        seconds = clock() - start
        self.span(label(form.source), "cpu queue", start, nodes=len(form.source.nodes), form="interpreted" if form.schedule is None else "compiled")
        self.runs.append(Ran(form, start, seconds, tuple(steps)))
        if steps:
            self._kernel_events(form, start, steps)
        self.sample()
        return result

    def _kernel_events(self, form: Any, start: float, steps: Sequence[float]) -> None:
        thread = threading.current_thread().name
        nodes = form.program.nodes
        for step, seconds in zip(form.schedule.steps, steps, strict=True):
            found = cost(step, form.schedule.buffers)
            facts = {"lines": list(lines(step, nodes)), "flops": found.flops, "bytes": found.nbytes}
            self.events.append(Event(describe(step, nodes), "kernels", start, seconds, thread, facts))
            start += seconds


active: Session | None = None
_LOCK = threading.Lock()


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


def chrome_trace(session: Session) -> dict[str, Any]:
    """The session in the Trace Event Format that Perfetto and chrome://tracing open: one row per kind and thread, and a memory counter.
    Times are microseconds since the session began. Source: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU"""
    pid = os.getpid()
    order = ("recording", "compile", "cpu queue", "kernels")
    rows = sorted({(order.index(e.row), e.row, e.thread) for e in session.events})
    rows = rows or [(0, "recording", threading.current_thread().name)]
    numbers = {(row, thread): k for k, (_, row, thread) in enumerate(rows, start=1)}
    found: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": "calque"}}]
    for (row, thread), tid in numbers.items():
        found.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": f"{row} ({thread})"}})
        found.append({"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}})

    def at(moment: float) -> float:
        return round((moment - session.began) * 1e6, 3)

    for e in sorted(session.events, key=lambda e: (e.start, -e.seconds)):
        found.append(
            {"ph": "X", "name": e.name, "cat": e.row, "ts": max(0.0, at(e.start)), "dur": round(e.seconds * 1e6, 3), "pid": pid,
             "tid": numbers[e.row, e.thread], "args": e.facts}
        )  # fmt: skip
    for moment, held in session.memory:
        found.append({"ph": "C", "name": "memory", "ts": max(0.0, at(moment)), "pid": pid, "tid": 0, "args": {"bytes in use": held}})
    return {"traceEvents": found, "displayTimeUnit": "ms"}


def export(session: Session, path: str | Path) -> None:
    """Write the session as JSON."""
    Path(path).write_text(json.dumps(chrome_trace(session)))
