"""What a thread records into: its trace, and its modes."""

from __future__ import annotations

import gc
import threading
from typing import Any

from calque.base.collector import pause_collections
from calque.base.device import Device
from calque.base.dtypes import DType
from calque.record.nodes import GradNode
from calque.record.path import ALWAYS, Seen, Trace
from calque.record.trie import root
from calque.record.watching import Watcher
from calque.run.buffer import UNKNOWN, Buffer


class State:
    """Per-thread recording state; `grad`, `inference` and `autocast` (the lower dtype, or None) are modes, kept here for one look-up on the hot
    path."""

    __slots__ = (
        "trace", "grad", "inference", "capture", "autocast", "applied", "started", "waiting", "device", "seen", "nested", "plain", "reached",
    )  # fmt: skip

    def __init__(self, nested: bool = False) -> None:
        self.nested = nested  # whether it is the one of code that the collector runs
        self.trace: Any = Trace(root())  # or a frame, see there
        self.grad = True
        self.inference = False
        self.autocast: DType | None = None
        self.device: Device | None = None  # where values that are made from nothing go, if somebody asked
        self.capture: Watcher | None = None  # while a call is being recorded for replay
        self.applied: GradNode | None = None  # the graph node whose gradient is being recorded...
        self.started = ""  # ... by the backward pass that the user started on this line
        self.waiting: Any = None  # that pass
        self.seen: Seen | None = None
        self.plain = True  # whether no function is being transformed
        # What programs up to this number make is known: this thread has read what a later one made, so they have ended. Whether others have is no
        # fact that anything recorded may depend on: the same program would record something else when it is slower.
        self.reached = 0


class _Local(threading.local):
    def __init__(self) -> None:
        paused = pause_collections()  # what is collected in a thread may record
        self.state, self.aside = State(), State(True)  # see `aside`
        if paused:
            gc.enable()


local = _Local()


def read_by_python(state: State, buffer: Buffer) -> None:
    """Python has got values of a buffer: they are known from now on, and so is what earlier programs make."""
    if buffer.made:
        if buffer.made != UNKNOWN:
            state.reached = max(state.reached, buffer.made - 1)
        buffer.made = 0


def record_from_here(state: State, reason: str) -> None:
    """What is computed at once ends, and what follows is recorded whatever it is."""
    if state.trace.eager:
        state.trace = Trace(root(reason))
    if state.trace.__class__ is Trace:
        state.trace.recorded = ALWAYS
