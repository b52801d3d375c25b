"""Graphs in many ways: with and without optimisation, on 1, 2 and 4 threads, with guard pages; and failures made small. `--digest` prints a hash of
every graph's bits, so that a process that compiles and one that loads stored code can be compared.

    python -m tests.fuzz.check_graphs --count 20000 [--seed 0] [--steps 16] [--skip 3,5] [--full | --guard | --digest]
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import mmap
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

import calque
from calque.backend.cpu.code import library
from calque.backend.cpu.program import executable, linked
from calque.backend.cpu.team import memory
from calque.backend.cpu.team.memory import ALIGNMENT, POOL
from calque.run import pipeline
from tests.fuzz.check import mode
from tests.fuzz.command import main
from tests.fuzz.graphs import Found, Graph, wrong

STEPS = 16
NOTHING: frozenset[int] = frozenset()


def mismatch(seed: int, steps: int = STEPS, skip: frozenset[int] = NOTHING, full: bool = False) -> str:
    """"" if Calque is within the oracle's bounds and agrees with itself, else what differs. `full`: in all ways, not only as users run it."""
    graph = Graph(seed, steps, skip)
    with mode("cpu"):
        found = Found(graph)
    if text := wrong(graph, found):
        return text
    return others(graph, found.bits()) if full else ""


def others(graph: Graph, bits: list[bytes]) -> str:
    """The same graph without fusion and reuse (within the bounds), and where not a bit may change: other memory, other numbers of threads."""
    with mode("cpu", fusion=False, reuse=False):
        if text := wrong(graph, Found(graph)):
            return f"[not optimised] {text}"
    with mode("cpu", reuse=False):
        if Found(graph).bits() != bits:
            return "[memory of its own] other bits than planned memory"
    threads = calque.get_num_threads()
    try:
        for count in (1, 2, 4):
            calque.set_num_threads(count)
            with mode("cpu"), every_thread():
                if Found(graph).bits() != bits:
                    return f"[{count} threads] other bits"
    finally:
        calque.set_num_threads(threads)
    return ""


@contextlib.contextmanager
def every_thread() -> Iterator[None]:
    """Also small work is shared between threads."""
    before, linked.SMALL_WORK = linked.SMALL_WORK, 0
    try:
        yield
    finally:
        linked.SMALL_WORK = before


def shrink(seed: int, steps: int, full: bool) -> tuple[int, frozenset[int]]:
    """A smaller graph of the same seed that still fails: fewer steps, then steps left out, until nothing more can go."""
    while steps > 1 and failure(seed, steps - 1, NOTHING, full):
        steps -= 1
    skip = NOTHING
    changed = True
    while changed:
        changed = False
        for step in range(steps):
            if step not in skip and failure(seed, steps, skip | {step}, full):
                skip, changed = skip | {step}, True
    return steps, skip


def failure(seed: int, steps: int, skip: frozenset[int], full: bool) -> str:
    """As `mismatch`; an exception is a failure too."""
    try:
        return mismatch(seed, steps, skip, full)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:500]}"


def report(seed: int, steps: int = STEPS, full: bool = False) -> str:
    """The failure of a seed, shrunk, with the program in words and the line that repeats it."""
    steps, skip = shrink(seed, steps, full)
    left = f" --skip {','.join(map(str, sorted(skip)))}" if skip else ""
    repeat = f"python -m tests.fuzz.check_graphs --seed {seed} --count 1 --steps {steps}{left}{' --full' if full else ''}"
    return f"seed {seed}: {failure(seed, steps, skip, full)}\n  {Graph(seed, steps, skip).describe()}\n  repeat: {repeat}"


# ---------------------------------------------------------------------------------------------------------- guard pages


class Guarded:
    """Blocks of the pool that end where an inaccessible page begins, and whose unused last bytes are watched. A read or write behind a buffer
    kills the process; a write into the rounding of its size is found by `inspect`."""

    PATTERN = 0xA5

    def __init__(self) -> None:
        self.maps: dict[int, tuple[mmap.mmap, Any]] = {}
        self.tails: dict[int, tuple[int, int]] = {}  # block -> (first unused address, count)

    def obtain(self, size: int) -> tuple[int, Any]:
        """The address of memory for `size` bytes, and what owns it."""
        page = mmap.PAGESIZE
        length = -(-size // page) * page
        area = mmap.mmap(-1, length + page)
        view = (ctypes.c_char * (length + page)).from_buffer(area)
        start = ctypes.addressof(view)
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        if protect(start + length, page, 0):
            raise OSError(ctypes.get_errno(), "mprotect")
        address = start + length - size
        self.maps[address] = (area, view)
        return address, area

    def watch(self, array: np.ndarray) -> None:
        """Fill what is behind the array's last byte in its block. What the block held before must have kept within its bytes."""
        self.inspect(array.ctypes.data)
        end = array.ctypes.data + array.nbytes
        count = memory.rounded(array.nbytes) - array.nbytes
        if count:
            ctypes.memset(end, self.PATTERN, count)
            self.tails[array.ctypes.data] = (end, count)

    def inspect(self, block: int = -1) -> None:
        """Raise if the tail of a block (of any block) was written to."""
        for key in [block] if block in self.tails else list(self.tails) if block < 0 else []:
            address, count = self.tails.pop(key)
            if ctypes.string_at(address, count) != bytes([self.PATTERN]) * count:
                raise AssertionError(f"a kernel wrote behind a buffer ({count} bytes of rounding)")


@contextlib.contextmanager
def guard() -> Iterator[Guarded]:
    """Every buffer of every run in a block of its own with a guard page behind it: temporaries become outputs, so that nothing shares an arena."""
    POOL.release_cached()
    guarded = Guarded()
    saved = memory.rounded, executable.rounded, memory.Pool._obtain, memory.Pool.empty, pipeline.plan

    def exact(nbytes: int) -> int:
        return -(-max(nbytes, ALIGNMENT) // ALIGNMENT) * ALIGNMENT

    def empty(pool: Any, count: int, dtype: Any) -> Any:
        array = saved[3](pool, count, dtype)
        guarded.watch(array)
        return array

    def plan(program: Any, fusion: Any, entries: Any, reuse: bool = True, workspace_bytes: Any = None) -> Any:
        schedule = saved[4](program, fusion, entries, False, workspace_bytes)
        apart = tuple(replace(b, kind="output", index=-1) if b.kind == "arena" else b for b in schedule.buffers)
        return replace(schedule, buffers=apart, arena_bytes=0)

    memory.rounded = executable.rounded = exact  # type: ignore[assignment]
    memory.Pool._obtain = lambda pool, size: guarded.obtain(size)  # type: ignore[method-assign]
    memory.Pool.empty = empty  # type: ignore[method-assign]
    pipeline.plan = plan  # type: ignore[assignment]
    try:
        yield guarded
    finally:
        memory.rounded, executable.rounded, memory.Pool._obtain, memory.Pool.empty, pipeline.plan = saved  # type: ignore[method-assign]


def guarded_mismatch(seed: int, steps: int, skip: frozenset[int]) -> str:
    """"" if the graph is right and touches nothing behind any of its buffers (a touched guard page ends the process)."""
    graph = Graph(seed, steps, skip)
    with guard() as guarded, mode("cpu"):
        text = wrong(graph, Found(graph))
        guarded.inspect()
    return text


def check(seed: int, steps: int, skip: str, full: bool, guard: bool, digest: bool) -> str:
    """"" or the failure of a seed. `skip`: steps to leave out, separated by commas; `full`: in all ways; `guard`: with guard pages, and every seed is
    printed before it runs; `digest`: a hash of the bits of the graph is printed instead."""
    left_out = frozenset(int(s) for s in skip.split(",") if s)
    if digest:
        with mode("cpu"):
            print(seed, hashlib.sha256(b"|".join(Found(Graph(seed, steps, left_out)).bits())).hexdigest(), flush=True)
        return ""
    if guard:
        print(f"seed {seed}", flush=True)
        return guarded_mismatch(seed, steps, left_out)
    text = failure(seed, steps, left_out, full)
    return text if not text or left_out else report(seed, steps, full)


if __name__ == "__main__":
    compiled = lambda: f"compiled {library.COUNTERS.compiled} modules"  # noqa: E731
    raise SystemExit(main("tests.fuzz.check_graphs", __doc__, check, 20_000, compiled, steps=STEPS, skip="", full=False, guard=False, digest=False))
