"""The only module that talks to LLVM: IR text to object code, object code to addresses. llvmlite is imported at the first
compile."""

from __future__ import annotations

import atexit
import ctypes
import importlib.metadata
import importlib.util
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from calque.backend.cpu.objects import Memory, UnsupportedObject, library_function, parse
from calque.backend.cpu.target import TargetInfo, current
from calque.base import config
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
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    for name in LIBRARY_FUNCTIONS:
        llvm.add_symbol(name, library_function(name))
    return llvm


@lru_cache(maxsize=1)
def version() -> str:
    """Which LLVM compiles: part of every cache key. Read from the files of llvmlite, which is imported only to compile."""
    found = importlib.util.find_spec("llvmlite")
    if found is None or not found.submodule_search_locations:
        raise CompileError("[cpu] expected llvmlite, got no such package; install it with: pip install llvmlite")
    folder = Path(next(iter(found.submodule_search_locations)))
    files = sorted((folder / "binding").glob("*llvmlite.*"))  # the compiled library; its size and age tell builds of one version apart
    stamps = [f"{f.name} {f.stat().st_size} {f.stat().st_mtime_ns}" for f in files]
    return f"llvmlite {importlib.metadata.version('llvmlite')} {' '.join(stamps)}"


SHORT = -1
"""Pass list of a `Source`: the short one for explicit vector code; 0..3 are LLVM's own pipelines."""


@dataclass(frozen=True, slots=True)
class Source:
    """A module to compile: `write` makes the IR text (called by the thread that compiles), `level` is the pass list."""

    write: Callable[[], str]
    level: int = SHORT


class _Unlocked:
    """LLVM's long calls without the global lock that llvmlite's Python layer takes around every call.

    The functions are thread-safe as long as threads share neither contexts nor target machines; Python's own lock is released while they run.
    Their prototypes are the same in all supported versions of llvmlite (0.45 to 0.47).
    """

    def __init__(self, path: str) -> None:
        library = ctypes.CDLL(path)  # already loaded: the same code with prototypes of our own
        pointer, message = ctypes.c_void_p, ctypes.POINTER(ctypes.c_char_p)
        self.parse = library.LLVMPY_ParseAssembly
        self.parse.argtypes, self.parse.restype = [pointer, ctypes.c_char_p, message], pointer
        self.run_passes = library.LLVMPY_RunNewModulePassManager
        self.run_passes.argtypes, self.run_passes.restype = [pointer, pointer, pointer], None
        self.emit = library.LLVMPY_TargetMachineEmitToMemory
        self.emit.argtypes, self.emit.restype = [pointer, pointer, ctypes.c_int, message], pointer
        self.buffer_start = library.LLVMPY_GetBufferStart
        self.buffer_start.argtypes, self.buffer_start.restype = [pointer], pointer
        self.buffer_size = library.LLVMPY_GetBufferSize
        self.buffer_size.argtypes, self.buffer_size.restype = [pointer], ctypes.c_size_t
        self.dispose_buffer = library.LLVMPY_DisposeMemoryBuffer
        self.dispose_buffer.argtypes, self.dispose_buffer.restype = [pointer], None
        self.dispose_module = library.LLVMPY_DisposeModule
        self.dispose_module.argtypes, self.dispose_module.restype = [pointer], None
        self.dispose_text = library.LLVMPY_DisposeString
        self.dispose_text.argtypes, self.dispose_text.restype = [ctypes.c_char_p], None

    def checked(self, function: Any, *arguments: Any) -> int:
        """The pointer a function returns; raises RuntimeError with its message if it returns none."""
        message = ctypes.c_char_p()
        result = function(*arguments, ctypes.byref(message))
        text = message.value
        if text:
            self.dispose_text(message)
        if not result or text:
            raise RuntimeError((text or b"").decode(errors="replace"))
        return int(result)


@lru_cache(maxsize=1)
def _unlocked() -> _Unlocked:
    return _Unlocked(_binding().ffi.lib._name)


def _machine(target: TargetInfo) -> Any:
    llvm = _binding()
    # The loader places code and constants wherever the system has room, in a long-lived process more than 2 GiB apart: the small code
    # model's 32-bit distances would then overflow, which LLVM answers by aborting. The large model addresses constants by 64 bits.
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.processor, features=target.features, opt=2, reloc="static", codemodel="large"
    )


def _compile(source: Source, machine: Any) -> bytes:
    """Object code of one module. `machine` belongs to this thread."""
    llvm, native = _binding(), _unlocked()
    text = source.write().encode()
    context = llvm.create_context()
    try:
        module = native.checked(native.parse, context, text)
    except RuntimeError as error:
        raise CompileError(f"[cpu] expected valid IR, got {error}; this is a bug in the emitter") from error
    try:
        tuning = llvm.create_pipeline_tuning_options(speed_level=max(source.level, 1))
        tuning.loop_vectorization = tuning.slp_vectorization = False
        builder = llvm.create_pass_builder(machine, tuning)
        if source.level == SHORT:
            passes = llvm.create_new_module_pass_manager()
            passes.add_sroa_pass()
            passes.add_simplify_cfg_pass()
            passes.add_instruction_combine_pass()
        else:
            passes = builder.getModulePassManager()
        native.run_passes(passes, module, builder)
        buffer = native.checked(native.emit, machine, module, 1)
        try:
            return ctypes.string_at(native.buffer_start(buffer), native.buffer_size(buffer))
        finally:
            native.dispose_buffer(buffer)
    finally:
        native.dispose_module(module)


class _Crew:
    """Threads that take modules from one list until it is empty; the first error ends the work."""

    def __init__(self, sources: Sequence[Source], target: TargetInfo) -> None:
        self.sources = sources
        self.target = target
        self.waiting = deque(range(len(sources)))
        self.objects: list[bytes] = [b""] * len(sources)
        self.error: Exception | None = None

    def work(self) -> None:
        """Compile until nothing is left."""
        try:
            machine = _machine(self.target)
            while self.waiting:
                try:
                    number = self.waiting.popleft()
                except IndexError:
                    return
                self.objects[number] = _compile(self.sources[number], machine)
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


def compile_all(sources: Sequence[Source], target: TargetInfo) -> list[bytes]:
    """Object code of some modules, compiled on all cores. What a module becomes does not depend on the others or on the threads."""
    objects: list[bytes] = [b""] * len(sources)
    with _lock:
        # Loop strength reduction takes a third of the time of explicit vector code and gains nothing on its addresses. The switch is one
        # variable of the process, so modules with and without it are compiled one group after the other.
        for short in (False, True):
            chosen = [k for k, source in enumerate(sources) if (source.level == SHORT) is short]
            if not chosen:
                continue
            _binding().set_option("calque", "-disable-lsr" if short else "-disable-lsr=false")
            try:
                for k, data in zip(chosen, _Crew([sources[k] for k in chosen], target).run(), strict=True):
                    objects[k] = data
            finally:
                _binding().set_option("calque", "-disable-lsr=false")
    return objects


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


class Loader:
    """Holds machine code in executable memory until the process ends. Objects may call functions of objects loaded before."""

    def __init__(self) -> None:
        self._engine: Any = None
        self._memory = Memory()
        self._known: dict[str, int] = {}

    def load(self, objects: list[tuple[bytes, list[str]]]) -> list[int]:
        """Addresses of the named functions of some objects, in order."""
        with _lock:
            try:
                found = self._memory.load([parse(data) for data, _ in objects], self._known)
            except UnsupportedObject:
                found = self._by_llvm(objects)
            self._known.update(found)
            return [found[name] for _, names in objects for name in names]

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
