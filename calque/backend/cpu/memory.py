"""Host memory of the CPU backend: aligned blocks that return to a pool when the last array over them dies.

Freed blocks are kept by size and reused, which saves the page faults of fresh memory. A request that cannot be met raises before
anything is touched. Thread-safe.
"""

from __future__ import annotations

import threading
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from calque.backend.base import Array, MemoryStats
from calque.base import config
from calque.base.errors import OutOfMemoryError

ALIGNMENT = 64
_UNCHECKED_GROWTH = 64 << 20  # the system is asked for its free memory once per so many bytes of growth
_SMALL = 1 << 20
_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def human(nbytes: int) -> str:
    """A byte count in readable units.

    >>> human(3 << 20)
    '3.0 MiB'
    """
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if size < 1024 or unit == "PiB":
            return f"{int(size)} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError


def rounded(nbytes: int) -> int:
    """Size of the block that serves a request: at most one eighth larger, so that similar requests share blocks."""
    nbytes = max(nbytes, ALIGNMENT)
    step = max(ALIGNMENT, 1 << max(nbytes.bit_length() - 4, 0))
    return -(-nbytes // step) * step


def _number(path: str) -> int | None:
    try:
        text = Path(path).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def available() -> int:
    """Bytes the system could still give to this process: free memory, within the limit of its control group."""
    free = 1 << 62
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) << 10
                break
    except OSError:
        pass
    for limit_path, usage_path in _CGROUPS:
        limit, usage = _number(limit_path), _number(usage_path)
        if limit is not None and usage is not None:
            free = min(free, max(0, limit - usage))
    return free


class Block:
    """A piece of memory; NumPy arrays made from it keep it alive, and its death gives the memory back."""

    __slots__ = ("__array_interface__", "__weakref__", "memory", "pool", "size")

    def __init__(self, pool: Pool, memory: Any, size: int, interface: dict[str, Any]) -> None:
        self.pool = pool
        self.memory = memory
        self.size = size
        self.__array_interface__ = interface

    def __del__(self) -> None:
        self.pool.returned.append((self.size, self.memory))  # atomic: may run inside any allocation, in any thread


class Pool:
    """A caching allocator."""

    def __init__(self) -> None:
        self.returned: deque[tuple[int, Any]] = deque()
        self._lock = threading.Lock()
        self._free: dict[int, list[Any]] = {}
        self._in_use = 0
        self._peak = 0
        self._cached = 0
        self._unchecked = 0

    def empty(self, count: int, dtype: np.dtype[Any]) -> Array:
        """A 1-D uninitialised array, aligned to 64 bytes, with at least 64 readable bytes behind its address."""
        nbytes = count * dtype.itemsize
        size = rounded(nbytes)
        with self._lock:
            self._collect()
            kept = self._free.get(size)
            if kept:
                memory = kept.pop()
                self._cached -= size
            else:
                self._reserve(size, size)
                memory = np.empty(size + ALIGNMENT, np.uint8)
            self._in_use += size
            if self._in_use > self._peak:
                self._peak = self._in_use
        address = memory.__array_interface__["data"][0]
        interface = {"shape": (nbytes,), "typestr": "|u1", "data": (-(-address // ALIGNMENT) * ALIGNMENT, False), "version": 3}
        return np.asarray(Block(self, memory, size, interface)).view(dtype)

    def check(self, sizes: list[int]) -> None:
        """Raise OutOfMemoryError unless blocks of all these byte counts can be had together."""
        total = sum(sizes)
        with self._lock:
            self._collect()
            if total > self._cached:
                self._reserve(total - self._cached, total, announce=False)

    def stats(self) -> MemoryStats:
        """Bytes in use, their peak, and bytes kept for reuse."""
        with self._lock:
            self._collect()
            return MemoryStats(self._in_use, self._peak, self._cached)

    def reset_peak(self) -> None:
        """Start the peak anew."""
        with self._lock:
            self._collect()
            self._peak = self._in_use

    def release_cached(self) -> int:
        """Give all kept blocks back to the system."""
        with self._lock:
            self._collect()
            return self._drop()

    def _collect(self) -> None:
        """Take in the blocks that died."""
        while self.returned:
            size, memory = self.returned.popleft()
            self._in_use -= size
            self._cached += size
            self._free.setdefault(size, []).append(memory)

    def _drop(self) -> int:
        released, self._cached = self._cached, 0
        self._free.clear()
        return released

    def _reserve(self, growth: int, asked: int, announce: bool = True) -> None:
        """Make sure that `growth` more bytes may be taken from the system."""
        limit = config.settings.memory_limit
        if limit > 0:
            if self._in_use + self._cached + growth > limit:
                self._drop()
                if self._in_use + asked > limit:
                    self._refuse(asked, limit - self._in_use)
            return
        self._unchecked += growth
        if growth < _SMALL and self._unchecked < _UNCHECKED_GROWTH:
            return
        if announce:
            self._unchecked = 0
        free = available()
        if growth > free:
            self._drop()
            free = available()
            if asked > free:
                self._refuse(asked, free)

    def _refuse(self, asked: int, free: int) -> None:
        raise OutOfMemoryError(
            f"[memory] expected {human(asked)} of free memory, got {human(max(free, 0))} free with {human(self._in_use)} in use; "
            "use a smaller batch, free tensors, or raise CALQUE_MEMORY_LIMIT"
        )


POOL = Pool()
