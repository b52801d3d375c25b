"""Addresses of native functions: from this process, from the disk cache, or newly compiled."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from calque.backend.cpu import contract, llvm, runtime_text
from calque.backend.cpu.cache import ObjectCache
from calque.backend.cpu.emit import emit_kernel
from calque.backend.cpu.partition import Partition, partition
from calque.backend.cpu.target import TargetInfo, current
from calque.base import config
from calque.kernel.loops import LoopKernel

_lock = threading.RLock()
_loaded: dict[str, dict[str, int]] = {}  # addresses of the functions of every module in this process, by key
_runtime: dict[str, int] = {}


class Counters:
    """How native code came about in this process."""

    def __init__(self) -> None:
        self.kernels = 0  # structures of loop kernels that were needed
        self.compiled = 0  # modules; a contraction consists of several
        self.from_disk = 0


COUNTERS = Counters()


def _sources() -> str:
    """Hash of the code generator itself, so that objects of another version never match."""
    digest = hashlib.sha256()
    folder = Path(__file__).parent
    for path in sorted([*folder.glob("*.py"), *folder.glob("contract/*.py")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()


_SOURCES = _sources()  # read while the generator itself is imported: a file edited later must not name what the old code makes


def content_key(kind: str, text: str, target: TargetInfo) -> str:
    """Hash of everything that generated code depends on."""
    parts = (kind, text, target.key, llvm.version(), _SOURCES)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@lru_cache(maxsize=4)
def _cache(directory: Path, limit: int) -> ObjectCache:
    return ObjectCache(directory / "cpu", limit)


def disk_cache() -> ObjectCache:
    """The object cache the settings name."""
    return _cache(config.settings.cache_dir, config.settings.cache_bytes)


@dataclass(frozen=True, slots=True)
class Module:
    """One unit of native code: the key of its object, the functions it defines, how to compile it, how long that takes (in any unit)."""

    key: str
    symbols: tuple[str, ...]
    source: llvm.Source
    weight: int = 0


def _objects(modules: Sequence[Module], target: TargetInfo) -> list[bytes]:
    """Object code of modules, in order: from the disk, or else compiled together on all cores."""
    disk = disk_cache()
    objects = [disk.get(module.key) for module in modules]
    missing = [k for k, data in enumerate(objects) if data is None]
    missing.sort(key=lambda k: -modules[k].weight)  # the longest first, so that the cores finish together
    COUNTERS.from_disk += len(modules) - len(missing)
    COUNTERS.compiled += len(missing)

    def finished(number: int, data: bytes) -> None:
        objects[missing[number]] = data
        disk.put(modules[missing[number]].key, data)

    llvm.compile_all([modules[k].source for k in missing], target, finished)
    return [data for data in objects if data is not None]


def _load(modules: Sequence[Module], target: TargetInfo) -> None:
    """Make sure that modules are in this process."""
    wanted = list({m.key: m for m in modules if m.key not in _loaded}.values())
    if not wanted:
        return
    objects = _objects(wanted, target)
    found = iter(llvm.LOADER.load([(data, list(m.symbols)) for data, m in zip(objects, wanted, strict=True)]))
    for module in wanted:
        _loaded[module.key] = {symbol: next(found) for symbol in module.symbols}


def _loop(kernel: LoopKernel, target: TargetInfo) -> Module:
    description = f"{kernel}\nscalars {' '.join(d.name for d in kernel.scalars)}"
    key = content_key("loop", description, target)
    symbol = "k" + key[:40]
    return Module(key, (symbol,), llvm.Source(partial(emit_kernel, kernel, target, symbol)), len(description))


@lru_cache(maxsize=4)
def _contractions(dtype: str, target: TargetInfo) -> Partition:
    return partition(contract.module_ir(dtype, target))


@lru_cache(maxsize=64)
def _contraction(kind: str, dtype: str, target: TargetInfo) -> tuple[Module, ...]:
    """The units behind a contraction, the one to call last. Which they are is kept on disk: a warm process writes no text."""
    root = contract.symbol(kind, dtype)
    index = content_key("contraction", root, target)
    listed = disk_cache().get(index)
    if listed is None:
        library = _contractions(dtype, target)
        listed = "\n".join(f"{name} {len(library.functions[name])}" for name in library.reach([root])).encode()
        disk_cache().put(index, listed)
    suffix = "_" + content_key("contractions", dtype, target)[:20]

    def module(name: str, length: str) -> Module:
        def write() -> str:
            return _contractions(dtype, target).unit(name, suffix)

        return Module(content_key("unit", f"{dtype} {name}", target), (name + suffix,), llvm.Source(write, 3), int(length))

    units = [module(*line.split(" ")) for line in listed.decode().split("\n")]
    return tuple(sorted(units, key=lambda unit: unit.symbols == (root + suffix,)))


def functions(kernels: Sequence[LoopKernel], contractions: Sequence[tuple[str, str]]) -> tuple[list[int], list[int]]:
    """Addresses of loop kernels and of contractions (kind, dtype), in order. What is missing is compiled together."""
    target = current()
    with _lock:
        modules: list[Module] = []
        for kind, dtype in dict.fromkeys(contractions):
            modules += _contraction(kind, dtype, target)
        if modules:
            runtime_functions()  # they call the barrier
        described: dict[LoopKernel, Module] = {}
        for kernel in kernels:
            if kernel not in described:
                described[kernel] = _loop(kernel, target)
        loops = [described[kernel] for kernel in kernels]
        COUNTERS.kernels += sum(m.key not in _loaded for m in {m.key: m for m in described.values()}.values())
        _load([*modules, *described.values()], target)
        called = [_contraction(kind, dtype, target)[-1] for kind, dtype in contractions]
        return [_loaded[m.key][m.symbols[0]] for m in loops], [_loaded[m.key][m.symbols[0]] for m in called]


def native_object(key: str, text: str, target: TargetInfo) -> bytes:
    """Object code of a module that is written already, from the disk or the compiler."""
    with _lock:
        return _objects([Module(key, (), llvm.Source(lambda: text, 1))], target)[0]


def runtime_functions() -> dict[str, int]:
    """Entry points of the launcher: one for the whole process."""
    with _lock:
        if not _runtime:
            text, target = runtime_text.module_text(), current()
            module = Module(content_key("runtime", text, target), tuple(runtime_text.ENTRY_POINTS), llvm.Source(lambda: text, 1))
            _load([module], target)
            _runtime.update(_loaded[module.key])
        return _runtime


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
