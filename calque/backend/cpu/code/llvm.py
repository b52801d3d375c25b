"""IR text to object code, object code to addresses: in other processes and by our own loader, or else by LLVM in this process, which is imported
at the first such need."""

from __future__ import annotations

import atexit
import json
import os
import threading
from collections import ChainMap, deque
from collections.abc import Callable, Mapping, Sequence, Set
from functools import lru_cache
from typing import Any

from calque.backend.cpu.compile import compiler
from calque.backend.cpu.compile.compiler import SHORT
from calque.backend.cpu.compile.objects import CodeMemory, Pages, UnsupportedObject, library_function, parse, settle
from calque.backend.cpu.compile.processes import COUNTERS, POOL, Job, llvmlite_folder
from calque.backend.cpu.compile.target import TargetInfo, current
from calque.base import config
from calque.base.dataclass import dataclass
from calque.base.errors import CompileError

LIBRARY_FUNCTIONS = (
    "sin",
    "cos",
    "pow",
    "fmod",
    "fmodf",
    "fma",
    "fmaf",
    "floor",
    "floorf",
    "ceil",
    "ceilf",
    "trunc",
    "truncf",
    "rint",
    "rintf",
)
"""What generated code may call in the C library's mathematical part."""

_lock = threading.RLock()


@lru_cache(maxsize=1)
def _binding() -> Any:
    """llvmlite in this process."""
    llvm = compiler.binding()
    for name in LIBRARY_FUNCTIONS:
        llvm.add_symbol(name, library_function(name))
    return llvm


@lru_cache(maxsize=1)
def version() -> str:
    """Which LLVM compiles: part of every cache key. Read from the files of llvmlite, which is imported only to compile."""
    folder = llvmlite_folder()
    with os.scandir(folder / "binding") as found:  # the compiled library; its size and age tell builds of one version apart
        stamps = sorted(f"{f.name} {f.stat().st_size} {f.stat().st_mtime_ns}" for f in found if "llvmlite." in f.name)
    beside = os.listdir(folder.parent)  # has what importlib.metadata would read, which takes 10 ms to import
    return " ".join([*sorted(name for name in beside if name.startswith("llvmlite-") and name.endswith("-info")), *stamps])


@dataclass(frozen=True, slots=True)
class Source:
    """A module to compile: `write` makes the IR text (called shortly before it is compiled), `level` is the pass list (see `compiler.py`)."""

    write: Callable[[], str]
    level: int = SHORT


class _Crew:
    """Threads that take modules from one list until it is empty; the first error ends the work."""

    def __init__(self, sources: Sequence[Source], target: compiler.Target) -> None:
        self.sources = sources
        self.target = target
        self.waiting = deque(range(len(sources)))
        self.objects: list[bytes] = [b""] * len(sources)
        self.error: Exception | None = None

    def work(self) -> None:
        """Compile until nothing is left."""
        try:
            machines: dict[int, Any] = {}
            while self.waiting:
                try:
                    number = self.waiting.popleft()
                except IndexError:
                    return
                source = self.sources[number]
                if source.level not in machines:
                    machines[source.level] = compiler.machine_for(self.target, source.level)
                self.objects[number] = compiler.object_code(source.write().encode(), source.level, machines[source.level])
        except compiler.InvalidText as error:
            self.error = CompileError(f"[cpu] expected valid IR, got {error}; this is a bug in the emitter")
            self.waiting.clear()
        except Exception as error:
            self.error = error
            self.waiting.clear()

    def run(self) -> list[bytes]:
        """All objects, in order; the calling thread works too."""
        helpers = []
        try:
            for _ in range(min(len(self.sources), config.settings.threads) - 1):
                helper = threading.Thread(target=self.work, name="calque-compile", daemon=True)
                try:
                    helper.start()
                except RuntimeError:  # no new threads while the interpreter goes down: the caller does it all
                    break
                helpers.append(helper)
            self.work()
        finally:
            self.waiting.clear()
            for helper in helpers:
                helper.join()
        if self.error is not None:
            raise self.error
        return self.objects


def _compile_here(sources: Sequence[Source], target: compiler.Target) -> list[bytes]:
    """Object code of some modules, compiled in this process on all cores."""
    objects: list[bytes] = [b""] * len(sources)
    for reduced in (True, False):  # the switch is one variable of the process: modules with and without it go one group after the other
        chosen = [k for k, source in enumerate(sources) if compiler.reduces(source.level) is reduced]
        if not chosen:
            continue
        compiler.reduce_strength(reduced)
        try:
            for k, data in zip(chosen, _Crew([sources[k] for k in chosen], target).run(), strict=True):
                objects[k] = data
        finally:
            compiler.reduce_strength(True)
    return objects


def _count(modules: int) -> None:
    """Remember why this process compiled."""
    why = POOL.refusal() or POOL.failure
    COUNTERS.alone += modules
    COUNTERS.reasons[why] = COUNTERS.reasons.get(why, 0) + modules


def _nothing(number: int, data: bytes) -> None:
    """Whoever asks for no object before all are there."""


def compile_all(sources: Sequence[Source], target: TargetInfo, finished: Callable[[int, bytes], None] = _nothing) -> list[bytes]:
    """Object code of some modules, compiled on all cores: in other processes (`processes.py`), else in this one. `finished(number, object)` is
    called for each as soon as it is there. What a module becomes does not depend on the others, on the cores or on who compiles."""
    objects: list[bytes] = [b""] * len(sources)
    described = (target.triple, target.processor, target.features)

    def job(source: Source) -> Job:
        return lambda: (source.level, source.write().encode())

    def arrived(number: int, data: bytes) -> None:
        objects[number] = data
        finished(number, data)

    with _lock:
        left = list(range(len(sources)))
        if left and not POOL.refusal():
            left = POOL.compile([job(source) for source in sources], described, arrived)
        if left:
            _count(len(left))
            for number, data in zip(left, _compile_here([sources[k] for k in left], described), strict=True):
                arrived(number, data)
    return objects


def one_object(texts: Sequence[tuple[str, int]], target: compiler.Target, exported: frozenset[str], outside: frozenset[str], abi: str) -> bytes:
    """See `compiler.one_object`. A process of its own does it, if there may be one: once LLVM has made code for WebAssembly, it chooses other
    addresses in loops for the rest of the process, and what is compiled for this machine should depend on nothing that was compiled before."""
    asked = {"texts": list(texts), "exported": sorted(exported), "outside": sorted(outside), "abi": abi}
    found = POOL.alone(compiler.WHOLE, target, json.dumps(asked).encode())
    if found is not None:
        return found
    with _lock:
        compiler.reduce_strength(True)
        try:
            return compiler.one_object(list(texts), target, exported, outside, abi)
        except compiler.InvalidText as error:
            raise CompileError(f"[cpu] expected valid IR, got {error}; this is a bug in the emitter") from error


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


NO_GATES: Mapping[str, int] = {}


class Loader:
    """Brings machine code into executable memory. Objects may call functions of objects that were loaded (by `load`) before."""

    def __init__(self) -> None:
        self._engine: Any = None
        self._memory = CodeMemory()
        self._known: dict[str, int] = {}

    def load(self, objects: list[tuple[bytes, list[str]]], absent: Set[str] = frozenset(), gates: Mapping[str, int] = NO_GATES) -> list[int]:
        """Addresses of the named functions of some objects, in order, which are there until the process ends. `absent`: functions that will not be
        called (see `CodeMemory.load`); `gates`: where functions may be called that are not there."""
        with _lock:
            try:
                found = self._memory.load([parse(data) for data, _ in objects], ChainMap(self._known, dict(gates)), absent)
            except UnsupportedObject as error:
                if absent or gates:  # LLVM's loader takes a name once for all
                    raise CompileError(f"[cpu] expected to load machine code, got: {error}; allow executable memory") from error
                found = self._by_llvm(objects)
            self._known.update(found)
            return [found[name] for _, names in objects for name in names]

    def load_apart(self, objects: list[tuple[bytes, list[str]]], gates: Mapping[str, int] = NO_GATES) -> tuple[list[int], Pages | None]:
        """For functions that no other object calls: they are there as long as somebody has the pages (what only LLVM's loader takes stays)."""
        with _lock:
            settle()
            try:
                found, pages = self._memory.load_apart([parse(data) for data, _ in objects], ChainMap(self._known, dict(gates)))
            except UnsupportedObject:
                return self.load(objects), None
            return [found[name] for _, names in objects for name in names], pages

    def _by_llvm(self, objects: list[tuple[bytes, list[str]]]) -> dict[str, int]:
        """The same by LLVM's loader, for objects that ours does not take."""
        llvm = _binding()
        with _lock:
            for name, address in self._known.items():
                llvm.add_symbol(name, address)
            if self._engine is None:
                empty = llvm.parse_assembly(f'target triple = "{current().triple}"', llvm.create_context())
                machine = llvm.Target.from_triple(current().triple).create_target_machine(
                    cpu=current().processor, features=current().features, opt=2, reloc="pic", jit=True
                )
                self._engine = llvm.create_mcjit_compiler(empty, machine)
                atexit.register(self._engine.detach)  # a thread may still run its code while the interpreter goes down
            for data, _ in objects:
                self._engine.add_object_file(llvm.ObjectFileRef.from_data(data))
            self._engine.finalize_object()
            return {name: int(self._engine.get_function_address(name)) for _, names in objects for name in names}


LOADER = Loader()
