"""Host memory of the CPU backend: aligned blocks that return to a pool when the last array over them dies.

Freed blocks are kept and reused, which saves the page faults of fresh memory: by size for values; the arenas of programs, which live for one
run only, in any block that is large enough. What is held (in use and kept) never grows beyond what was in use at one time: before the pool
grows, it gives blocks back that would exceed that. A request that cannot be met raises before anything is touched. Thread-safe.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from bisect import bisect_left
from collections import deque
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from calque.backend.base import SPARED, Array, MemoryStats
from calque.base import config
from calque.base.cache import Cache
from calque.base.errors import OutOfMemoryError
from calque.base.text import human

try:
    import resource
except ImportError:  # not a POSIX system
    resource = None  # type: ignore[assignment]

ALIGNMENT = 64
_UNCHECKED_GROWTH = 64 << 20  # the system is asked for its free memory once per so many bytes of growth...
_UNCHECKED_SHARE = 16  # ... and of that part of what was free; asking takes 0.2 to 0.5 ms
_SMALL = 1 << 20
_TYPES = Cache("types of blocks", 2500, 1 / 128)  # size -> ctypes type
_POISON = np.frombuffer(b"\xfd\x7f" * 4, np.uint8)  # a NaN of every floating type and numbers such as 9222668338675417085 of integers
_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def rounded(nbytes: int) -> int:
    """Size of the block that serves a request: at most one eighth larger (large ones 1/64), so that similar requests share blocks."""
    if nbytes < 1024:
        return -(-nbytes // ALIGNMENT) * ALIGNMENT or ALIGNMENT
    step = max(ALIGNMENT, 1 << max(nbytes.bit_length() - (4 if nbytes < _SMALL else 7), 0))
    return -(-nbytes // step) * step


def _number(path: str) -> int | None:
    try:
        text = Path(path).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def available() -> int:
    """Bytes the system could still give to this process: free memory, within the limits of the process and of its control group."""
    free = _allowed()
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = min(free, int(line.split()[1]) << 10)
                break
    except OSError:
        pass
    for limit_path, usage_path in _CGROUPS:
        limit, usage = _number(limit_path), _number(usage_path)
        if limit is not None and usage is not None:
            free = min(free, max(0, limit - usage))
    return free


def whole() -> int:
    """Bytes of the machine's memory, within the limit of the process's control group."""
    limits = [number for number in (_number(path) for path, _ in _CGROUPS) if number is not None]
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *limits])


def poison(memory: Any) -> None:
    """Fill memory with what nobody takes for a value (`settings.poison`): who reads it before writing to it is found out."""
    found = np.frombuffer(memory, np.uint8)
    found[...] = np.resize(_POISON, found.size)


def _allowed() -> int:
    """What the limit of the process on its address space (`ulimit -v`) leaves."""
    if resource is None or (limit := resource.getrlimit(resource.RLIMIT_AS)[0]) == resource.RLIM_INFINITY:
        return 1 << 62
    try:
        return int(max(0, limit - int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()))
    except OSError:
        return int(limit)


class _Block(weakref.ref[Any]):
    """What is known of a block that somebody has; it ends up on `Pool.returned` when the block dies."""

    __slots__ = ("size", "address")
    size: int
    address: int


class Pool:
    """A caching allocator.

    An array is a NumPy view of a small ctypes object that stands for its block. NumPy keeps that object alive as long as any
    view of the
    array lives, and its death puts a `_Block` on `returned`: the append is C code alone, so it may happen inside any allocation of any thread, and
    a Ctrl-C meanwhile does not lose it. `family`: the pools with which it shares the limit on memory; it joins them.
    """

    def __init__(self, family: list[Pool] | None = None) -> None:
        self.returned: deque[_Block] = deque()
        self._back = self.returned.append
        self._out: dict[int, _Block] = {}  # address -> block that somebody has
        self._lock = threading.RLock()  # see `_apart`
        self._free: dict[int, list[int]] = {}  # size -> addresses, least recently used size first
        self._arenas: list[tuple[int, int]] = []  # (size, address) of kept arenas, sorted
        self._capacity: dict[int, int] = {}  # address -> size of an arena, which may serve a smaller request
        self._memory: dict[int, Any] = {}  # address -> the array that owns the memory
        self._in_use = 0
        self._peak = 0
        self._most = 0  # the same since the process began
        self._cached = 0
        self._unchecked = 0  # growth since the system was asked
        self._granted = 0  # bytes of growth for which it need not be asked
        self._family: list[Pool] = [self] if family is None else family
        if family is not None:
            family.append(self)

    def empty(self, count: int, dtype: np.dtype[Any]) -> Array:
        """A 1-D uninitialised array, aligned to 64 bytes, with at least 64 readable bytes behind its address."""
        if self._lock._is_owned():  # type: ignore[attr-defined]
            return _apart(count, dtype)
        return np.frombuffer(self._block(count * dtype.itemsize), dtype, count)

    def together(self, wanted: list[tuple[int, np.dtype[Any]]]) -> list[Array]:
        """`empty` for several small ones in one block, which is given back when none is left."""
        if self._lock._is_owned():  # type: ignore[attr-defined]
            return [_apart(count, dtype) for count, dtype in wanted]
        places = [*accumulate([rounded(count * dtype.itemsize) for count, dtype in wanted], initial=0)]
        memory = self._block(places[-1])
        return [np.frombuffer(memory, dtype, count, place) for (count, dtype), place in zip(wanted, places, strict=False)]

    def _block(self, nbytes: int) -> Any:
        """What stands for a block of memory."""
        size = rounded(nbytes)
        kind = _TYPES.get(size) or _TYPES.keep(size, ctypes.c_char * size)
        with self._lock:
            if self.returned:
                self._collect()
            kept = self._free.get(size) or self._grow(size)
            address = kept[-1]
            memory = kind.from_address(address)
            block = _Block(memory, self._back)
            block.size, block.address = size, address
            del kept[-1]  # from here on no call: where none is made no Ctrl-C comes, which would lose the block
            self._out[address] = block
            self._cached -= size
            self._in_use += size
            if self._in_use > self._peak:
                self._peak = self._in_use
                if self._peak > self._most:
                    self._most = self._peak
        if config.settings.poison:
            poison(memory)
        return memory

    def arena(self, nbytes: int) -> Array:
        """Bytes for the temporaries of one run: the smallest kept arena that is large enough, else new memory."""
        if self._lock._is_owned():  # type: ignore[attr-defined]
            return _apart(nbytes, np.dtype(np.uint8))
        size = rounded(nbytes)
        kind = _TYPES.get(size) or _TYPES.keep(size, ctypes.c_char * size)
        with self._lock:
            if self.returned:
                self._collect()
            k = bisect_left(self._arenas, (size, 0))
            if k == len(self._arenas):
                self._grow(size, arena=True)
                k = len(self._arenas) - 1
            address = self._arenas[k][1]
            memory = kind.from_address(address)
            block = _Block(memory, self._back)
            block.size, block.address = size, address
            del self._arenas[k]  # from here on no call
            self._out[address] = block
            self._cached -= size  # what is left over stays kept
            self._in_use += size
            if self._in_use > self._peak:
                self._peak = self._in_use
                if self._peak > self._most:
                    self._most = self._peak
        if config.settings.poison:
            poison(memory)
        return np.frombuffer(memory, np.uint8, nbytes)

    def _grow(self, size: int, arena: bool = False) -> list[int]:
        """Add new memory from the system to what is kept; the kept blocks of the size."""
        address, memory = self._obtain(size)
        kept = self._free.get(size) or []
        self._memory[address] = memory  # from here on no call
        self._cached += size
        if arena:  # all others are smaller
            self._capacity[address] = size
            self._arenas += [(size, address)]
        else:
            kept += [address]
            self._free[size] = kept
        return kept

    def _obtain(self, size: int) -> tuple[int, Any]:
        """New memory from the system: its first aligned address, and what owns it."""
        self._shrink(max(self._most, self._in_use + size) - self._in_use - size)
        self._reserve(size, size)
        memory = self._fresh(size + ALIGNMENT)
        address: int = memory.ctypes.data
        return -(-address // ALIGNMENT) * ALIGNMENT, memory

    def _fresh(self, size: int) -> Any:
        """Memory from the system; kept blocks are given back before it is said that there is none."""
        try:
            return np.empty(size, np.uint8)
        except MemoryError:
            self._drop()
        try:
            return np.empty(size, np.uint8)
        except MemoryError:
            pass
        self._refuse(size, available())
        raise AssertionError

    def check(self, sizes: list[int]) -> None:
        """Raise OutOfMemoryError unless blocks of all these byte counts can be had together."""
        total = sum(sizes)
        if self._lock._is_owned():  # type: ignore[attr-defined]
            return
        with self._lock:
            self._collect()
            if total > self._cached:
                self._reserve(total - self._cached, total, announce=False)

    def stats(self) -> MemoryStats:
        """Bytes in use, their peak, and bytes kept for reuse."""
        inside = self._lock._is_owned()  # type: ignore[attr-defined]
        with self._lock:
            if not inside:
                self._collect()
            return MemoryStats(self._in_use, self._peak, self._cached)

    def blocks(self) -> list[tuple[int, int, bool]]:
        """(address, bytes, whether somebody has it) of every block; an arena that serves a smaller request has two entries."""
        inside = self._lock._is_owned()  # type: ignore[attr-defined]
        with self._lock:
            if not inside:
                self._collect()
            out = self._out.copy()
            found = [(address, block.size, True) for address, block in out.items()]
            arenas = [(address, out[address].size, size) for address, size in self._capacity.items() if address in out]
            found += [(address + used, size - used, False) for address, used, size in arenas if size > used]
            found += [(address, size, False) for size, addresses in self._free.items() for address in addresses]
            return found + [(address, size, False) for size, address in self._arenas]

    def reset_peak(self) -> None:
        """Start the peak anew."""
        inside = self._lock._is_owned()  # type: ignore[attr-defined]
        with self._lock:
            if not inside:
                self._collect()
            self._peak = self._in_use

    def release_cached(self) -> int:
        """Give all kept blocks back to the system."""
        if self._lock._is_owned():  # type: ignore[attr-defined]
            return 0
        with self._lock:
            self._collect()
            return self._drop()

    def forget(self) -> None:
        """In a forked child: the lock may be held by a thread that is gone."""
        self._lock = threading.RLock()

    def _collect(self) -> None:
        """Take in the blocks that died."""
        while self.returned:
            block = self.returned[0]
            size, address = block.size, block.address
            if self._out.get(address) is not block:  # a Ctrl-C came before anybody had it
                del self.returned[0]
                continue
            if config.settings.poison:  # words of a program may still name the address
                poison((ctypes.c_char * size).from_address(address))
            capacity, kept = self._capacity.get(address), self._free.get(size)
            k = 0 if capacity is None else bisect_left(self._arenas, (capacity, address))
            del self.returned[0], self._out[address]  # from here on no call
            self._in_use -= size
            self._cached += size
            if capacity is not None:
                self._arenas[k:k] = [(capacity, address)]
            elif kept is None:
                self._free[size] = [address]
            else:  # the size used last comes last
                del self._free[size]
                kept += [address]
                self._free[size] = kept

    def _shrink(self, allowed: int) -> None:
        """Give kept blocks back until at most `allowed` bytes are kept: arenas that were too small first, then the sizes not used for longest."""
        while self._cached > allowed and self._arenas:
            size, address = self._arenas[0]
            del self._arenas[0], self._memory[address], self._capacity[address]
            self._cached -= size
        for size in list(self._free):
            addresses = self._free[size]
            while addresses and self._cached > allowed:
                address = addresses[-1]
                del addresses[-1], self._memory[address]
                self._cached -= size
            if not addresses:
                del self._free[size]

    def _drop(self) -> int:
        """Give all kept blocks back, and what only saves time."""
        for let_go in SPARED:
            let_go()
        self._collect()
        before = self._cached
        self._shrink(0)
        return before - self._cached

    def _held(self) -> int:
        """Bytes in use and kept, of all devices."""
        return sum(pool._in_use + pool._cached for pool in self._family)

    def _reserve(self, growth: int, asked: int, announce: bool = True) -> None:
        """Make sure that `growth` more bytes may be taken from the system."""
        limit = config.settings.memory_limit
        if limit > 0:
            if self._held() + growth > limit:
                self._drop()
                if self._held() + asked > limit:
                    self._refuse(asked, limit - self._held())
            return
        if self._unchecked + growth <= (max(self._granted, _UNCHECKED_GROWTH) if growth < _SMALL else self._granted):
            if announce:
                self._unchecked += growth
            return
        free = available()
        if growth > free:
            self._drop()
            free = available()
            if asked > free:
                self._refuse(asked, free)
        self._granted = min(_UNCHECKED_GROWTH, free // _UNCHECKED_SHARE)
        self._unchecked = growth if announce else 0

    def _refuse(self, asked: int, free: int) -> None:
        sizes = f"{human(asked)} of free memory", f"{human(max(free, 0))} free with {human(self._in_use)} in use"
        error = OutOfMemoryError(f"[memory] expected {sizes[0]}, got {sizes[1]}; use a smaller batch, free tensors, or raise CALQUE_MEMORY_LIMIT")
        error.sizes, error.nbytes = sizes, (asked, max(free, 0))
        try:
            raise error
        finally:
            del error  # the frame would refer to what refers to it, and keep what could be free now


def _apart(count: int, dtype: np.dtype[Any]) -> Array:
    """Memory for code that runs in the middle of a pool's own (a signal handler, or what the collector frees): of no pool, and not counted."""
    raw = np.empty(count * dtype.itemsize + 2 * ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + count * dtype.itemsize].view(dtype)


POOLS: list[Pool] = []
POOL = Pool(POOLS)
os.register_at_fork(after_in_child=POOL.forget)
