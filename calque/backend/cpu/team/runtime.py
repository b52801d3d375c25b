"""Worker threads and native launches.

One `Runtime` for the CPU as a whole and one for every logical device in use (`team.py`): N - 1 native threads (no Python in them) that spin
briefly and then sleep until the next job. A job is a list of launches that all threads walk through together. After a fork the child starts
its own threads at the first job; at exit they are joined.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
from collections.abc import Callable
from functools import lru_cache
from time import perf_counter
from typing import Any

import numpy as np

from calque.backend.base import Array
from calque.backend.cpu.code import library
from calque.backend.cpu.compile.target import SCRATCH_BYTES
from calque.backend.cpu.team.memory import ALIGNMENT
from calque.backend.cpu.text import runtime_text
from calque.base import config
from calque.base.errors import ArgumentError

MAX_THREADS = config.MOST_THREADS
FIRST_REST, LONGEST_REST = 0.02, 0.32  # seconds in which short jobs leave the team alone, behind some in which it was kept waiting
SOON = 0.03  # seconds between two of these; one alone may be a process that ends, or threads of a peer that look for work
_ALONE = runtime_text.REQUEST.index("alone")
_WORD = ctypes.c_int64


class Native:
    """Entry points of the compiled runtime module."""

    def __init__(self) -> None:
        found = library.runtime_functions()
        self.barrier = found["calque_barrier"]
        self.run = ctypes.CFUNCTYPE(None, *[_WORD] * 5)(found["calque_run"])
        self.start = ctypes.CFUNCTYPE(_WORD, _WORD)(found["calque_start"])
        self.stop = ctypes.CFUNCTYPE(None, _WORD)(found["calque_stop"])
        self.patch = ctypes.CFUNCTYPE(None, *[_WORD] * 6)(found["calque_patch"])
        self.tell = ctypes.CFUNCTYPE(None, _WORD, _WORD)(found["calque_tell"])
        self.wait = ctypes.CFUNCTYPE(_WORD, _WORD, _WORD, _WORD)(found["calque_await"])  # gives the interpreter's lock away, as they all do
        self.step = found["calque_step"]  # see `callable.py`


def aligned_bytes(nbytes: int) -> Array:
    """A zeroed byte array whose data start at a multiple of 64."""
    raw = np.zeros(nbytes + ALIGNMENT, np.uint8)
    shift = -raw.ctypes.data % ALIGNMENT
    return raw[shift : shift + nbytes]


def _new_scratch() -> Array:
    """Scratch memory of a thread, and what the launcher keeps behind it."""
    return aligned_bytes(SCRATCH_BYTES + runtime_text.BEHIND_SCRATCH)


def _all_threads() -> int:
    return config.settings.threads


@lru_cache(maxsize=1)
def native() -> Native:
    """The compiled runtime (compiled or loaded on first use)."""
    return Native()


class Runtime:
    """A team of threads. Safe to use from several Python threads: its jobs run one at a time. `wanted` tells how many threads it should have."""

    def __init__(self, wanted: Callable[[], int] = _all_threads) -> None:
        self.wanted = wanted
        self._lock = threading.RLock()  # a handler, or what the collector frees, may run a program while this thread has it
        self._control: Any = None
        self._scratch: list[Array] = []
        self._address = 0
        self._stalls: Any = (0,)  # see `runtime_text.STALLS`
        self._until = self._rest = self._last = 0.0  # when short jobs are the team's again, for how long they were not, when it last was kept waiting
        self.running = 0  # threads, the caller included; 0: not started

    @property
    def native(self) -> Native:
        """The entry points, the same for all teams."""
        return native()

    def run(self, launches: int, count: int, words: int, alone: bool = False, progress: int = 0, brief: bool = False) -> None:
        """Run `count` launches (address of their records, address of the argument words) and wait for them.

        `alone`: on the calling thread only, for work that is smaller than waking a worker. `progress`: address of what is told how far they are.
        `brief`: short enough for that, see `_crowded`.
        """
        native = self.native
        with self._lock:
            wanted = self.wanted()
            if self.running != wanted:
                self._restart(wanted)
            alone = alone or (brief and self._crowded())
            before = self._stalls[0]
            if not progress:
                native.run(self._address, launches, count, words, alone)
            else:
                told = self._control.view(np.int64)[runtime_text.PROGRESS // 8 :][:1]
                told[0] = progress
                native.run(self._address, launches, count, words, alone)
                told[0] = 0
            if brief and not alone:
                self._judge(before)

    def threads(self) -> int:
        """Threads that a job runs on, the caller included (starting them if need be)."""
        with self._lock:
            wanted = self.wanted()
            if self.running != wanted:
                self._restart(wanted)
            return self.running

    def step(self, call: Callable[..., Any], request: Any, alone: bool, brief: bool, *arguments: Any) -> Any:
        """What `call` returns for one run of a program: `calque_step`, bound to this request, or what calls that. `alone`, `brief`: as for `run`."""
        with self._lock:
            wanted = self.wanted()
            if self.running != wanted:
                self._restart(wanted)
            request[0] = self._address  # a restart moves it
            request[_ALONE] = alone = alone or (brief and self._crowded())
            if alone or not brief:
                return call(*arguments)
            before = self._stalls[0]
            found = call(*arguments)
            self._judge(before)
            return found

    def _crowded(self) -> bool:
        """Whether a short job is the caller's alone: other processes have the cores, and a thread of the team that the operating system has taken
        away keeps all others waiting for a tick of its clock, at any launch. Values do not depend on who computes."""
        return self._until > 0.0 and perf_counter() < self._until

    def _judge(self, before: int) -> None:
        """A short job has run; there were so many stalls before. Two of them soon behind each other let the team rest, for twice as long where one
        comes as soon as a rest is over."""
        if self._stalls[0] != before:
            now = perf_counter()
            again = now - self._last < SOON
            self._rest = min(2.0 * self._rest or FIRST_REST, LONGEST_REST) if again else 0.0
            self._last = self._until = now + self._rest

    def _restart(self, threads: int) -> None:
        if not 1 <= threads <= MAX_THREADS:
            raise ArgumentError(
                f"[set_num_threads] expected 1 to {MAX_THREADS} threads, got {threads}; cores here: {os.cpu_count()}"
            )
        self._stop()
        self._scratch += [_new_scratch() for _ in range(threads - len(self._scratch))]
        control, address = _control_block(self._scratch[:threads])
        words = control.view(np.int64)
        self._control, self._address = control, address
        started = self.native.start(address)
        words[320 // 8] = started
        self._stalls, self._until = memoryview(words)[runtime_text.STALLS // 8 :], 0.0
        self.running = threads if started == threads else started

    def _stop(self) -> None:
        if self.running > 1:
            self.native.stop(self._address)
        self.running = 0

    def shut_down(self) -> None:
        """Join the workers; the next job starts new ones."""
        if self._lock.acquire(timeout=5.0):  # a job that hangs must not hang the exit
            try:
                self._stop()
            finally:
                self._lock.release()

    def forget(self) -> None:
        """In a forked child: the workers stayed in the parent, and its lock may be held by a thread that is gone."""
        self._lock = threading.RLock()
        self._kept = (self._control, self._scratch)  # the parent's layout, never touched again
        self._control, self._scratch, self._stalls, self.running = None, [], (0,), 0


def _control_block(scratch: list[Array]) -> tuple[Array, int]:
    """A control block (see `runtime_text`) for threads with this scratch memory, and where it stands."""
    control = aligned_bytes(runtime_text.THREAD_BLOCK + len(scratch) * runtime_text.THREAD_BYTES)
    address: int = control.ctypes.data
    words = control.view(np.int64)
    words[320 // 8] = len(scratch)
    for i, memory in enumerate(scratch):
        at = (runtime_text.THREAD_BLOCK + i * runtime_text.THREAD_BYTES) // 8
        words[at : at + 3] = address, i, memory.ctypes.data
    return control, address


@lru_cache(maxsize=1)
def _alone() -> tuple[Array, int, Array]:
    scratch = _new_scratch()
    return *_control_block([scratch]), scratch


def control_alone() -> int:
    """Control block of launches that run on the calling thread, whichever that is, while it holds the interpreter's lock."""
    return _alone()[1]


RUNTIME = Runtime()
os.register_at_fork(after_in_child=RUNTIME.forget)
atexit.register(RUNTIME.shut_down)
