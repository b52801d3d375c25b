"""Logical devices: each has memory accounting of its own, and a share of the cores (`team.py`).

What is made on a thread lies in the pool of `HERE`, by default that of the CPU as a whole. Values may be read from any device (all are host memory);
they are made in the memory of the device that computes them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import numpy as np

from calque.backend.base import Array, Memory, MemoryStats
from calque.backend.cpu.team.memory import POOL, POOLS, Pool, available, rounded


class Here(threading.local):
    """The place of the calling thread."""

    pool = POOL
    index: int | None = None


HERE = Here()
FOLLOWERS: list[Callable[[int | None], None]] = []  # called with the new place of a thread
_POOLS: dict[int, Pool] = {}
_LOCK = threading.Lock()


def pool(index: int) -> Pool:
    """The memory of the logical device of that number."""
    found = _POOLS.get(index)
    if found is None:
        with _LOCK:
            found = _POOLS.get(index) or _POOLS.setdefault(index, Pool(POOLS))
    return found


def enter(index: int | None) -> int | None:
    """Let the calling thread work on a logical device, or (None) on the CPU as a whole; returns where it was."""
    before = HERE.index
    HERE.pool, HERE.index = POOL if index is None else pool(index), index
    for follow in FOLLOWERS:
        follow(index)
    return before


class CpuMemory(Memory):
    """The memory of this machine, as one device or of logical ones."""

    def empty(self, nbytes: int) -> Array:
        """Uninitialised bytes, aligned to 64."""
        return HERE.pool.empty(nbytes, np.dtype(np.uint8))

    def free(self) -> int:
        """See `backend.base.Backend.free`."""
        return available()

    def held(self, nbytes: int) -> int:
        """See `backend.base.Backend.held`."""
        return rounded(nbytes)

    def enter(self, index: int | None) -> int | None:
        """Let the calling thread work on a logical device."""
        return enter(index)

    def memory(self, index: int | None = None) -> MemoryStats:
        """Accounting of a logical device (-1: of the CPU as a whole), or of all together (with the sum of their peaks, which need not have been
        at one time)."""
        if index is not None:
            return (POOL if index < 0 else pool(index)).stats()
        found = [each.stats() for each in POOLS]
        return MemoryStats(sum(s.in_use for s in found), sum(s.peak for s in found), sum(s.cached for s in found))

    def blocks(self) -> list[tuple[int, int, bool]]:
        """(address, bytes, whether somebody has it) of every block of memory."""
        return [block for each in POOLS for block in each.blocks()]

    def reset_peak(self) -> None:
        """Start the peaks anew."""
        for each in POOLS:
            each.reset_peak()

    def release_cached(self) -> int:
        """Give freed blocks back to the system."""
        return sum(each.release_cached() for each in POOLS)


def _forget() -> None:
    for found in _POOLS.values():
        found.forget()


os.register_at_fork(after_in_child=_forget)
