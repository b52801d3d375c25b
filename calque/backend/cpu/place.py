"""Logical devices: teams of threads that share out the cores, each with memory accounting of its own.

What runs on a thread uses the team and the pool of `HERE`, by default those of the CPU as a whole. Values may be read from any device (all
are host memory); they are made in the memory of the device that computes them.
"""

from __future__ import annotations

import atexit
import os
import threading

from calque.backend.cpu.memory import POOL, POOLS, Pool
from calque.backend.cpu.runtime import RUNTIME, Runtime
from calque.base import config


class Here(threading.local):
    """The place of the calling thread."""

    runtime = RUNTIME
    pool = POOL
    index: int | None = None


HERE = Here()


def share(index: int) -> int:
    """Threads of a logical device: the threads divided among the devices, the first ones get what is left over, each has at least one."""
    devices = max(1, config.settings.logical_devices)
    whole, rest = divmod(config.settings.threads, devices)
    return max(1, whole + (index < rest))


class Place:
    """A logical device."""

    def __init__(self, index: int) -> None:
        self.runtime = Runtime(lambda: share(index))
        self.pool = Pool(POOLS)


_PLACES: dict[int, Place] = {}
_LOCK = threading.Lock()


def place(index: int) -> Place:
    """The logical device of that number; its threads start with its first large job."""
    found = _PLACES.get(index)
    if found is None:
        with _LOCK:
            found = _PLACES.setdefault(index, Place(index))
    return found


def enter(index: int | None) -> int | None:
    """Let the calling thread work on a logical device, or (None) on the CPU as a whole; returns where it was."""
    before = HERE.index
    if index is None:
        HERE.runtime, HERE.pool = RUNTIME, POOL
    else:
        found = place(index)
        HERE.runtime, HERE.pool = found.runtime, found.pool
    HERE.index = index
    return before


def _forget() -> None:
    for found in _PLACES.values():
        found.runtime.forget()
        found.pool.forget()


def _shut_down() -> None:
    for found in _PLACES.values():
        found.runtime.shut_down()


os.register_at_fork(after_in_child=_forget)
atexit.register(_shut_down)
