"""Addresses of native functions: from this process, from the disk cache, or newly compiled."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path

from calque.backend.cpu import contract, llvm, runtime_text
from calque.backend.cpu.cache import ObjectCache
from calque.backend.cpu.emit import emit_kernel
from calque.backend.cpu.target import TargetInfo, current
from calque.base import config
from calque.kernel.loops import LoopKernel

_lock = threading.RLock()
_addresses: dict[str, int] = {}
SHORT = -1  # LLVM pass list, see `llvm.compile_text`


class Counters:
    """How native code came about in this process."""

    def __init__(self) -> None:
        self.compiled = 0
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


def _object(key: str, write: Callable[[], str], target: TargetInfo, level: int) -> bytes:
    disk = disk_cache()
    data = disk.get(key)
    if data is not None:
        COUNTERS.from_disk += 1
        return data
    COUNTERS.compiled += 1
    data = llvm.compile_text(write(), target, level)
    disk.put(key, data)
    return data


def _describe(kernel: LoopKernel) -> str:
    return f"{kernel}\nscalars {' '.join(d.name for d in kernel.scalars)}"


def kernel_functions(kernels: Sequence[LoopKernel]) -> list[int]:
    """Addresses of the compiled kernels, in order; each structure is compiled once."""
    target = current()
    keys = [content_key("loop", _describe(k), target) for k in kernels]
    with _lock:
        missing = {key: kernel for key, kernel in zip(keys, kernels, strict=True) if key not in _addresses}
        objects = []
        for key, kernel in missing.items():
            symbol = "k" + key[:40]
            objects.append((_object(key, partial(emit_kernel, kernel, target, symbol), target, SHORT), [symbol]))
        if objects:
            _addresses.update(zip(missing, llvm.LOADER.load(objects), strict=True))
        return [_addresses[key] for key in keys]


def contract_function(kind: str, dtype: str) -> int:
    """Address of a contraction kernel; one module per dtype."""
    target = current()
    with _lock:
        name = f"{contract.symbol(kind, dtype)}|{target.key}"
        if name not in _addresses:
            runtime_functions()  # the module calls the barrier
            symbols = sorted({contract.symbol(k, dtype) for k in contract.KINDS})
            key = content_key("contract", dtype, target)
            data = _object(key, lambda: contract.module_ir(dtype, target), target, 3)
            for symbol, address in zip(symbols, llvm.LOADER.load([(data, symbols)]), strict=True):
                _addresses[f"{symbol}|{target.key}"] = address
        return _addresses[name]


def native_object(key: str, text: str, target: TargetInfo) -> bytes:
    """Object code of a module that is written already, from the disk or the compiler."""
    with _lock:
        return _object(key, lambda: text, target, 1)


def runtime_functions() -> dict[str, int]:
    """Entry points of the launcher."""
    with _lock:
        if "calque_run" not in _addresses:
            text, target = runtime_text.module_text(), current()
            data = _object(content_key("runtime", text, target), lambda: text, target, 1)
            names = list(runtime_text.ENTRY_POINTS)
            _addresses.update(zip(names, llvm.LOADER.load([(data, names)]), strict=True))
            llvm.export("calque_barrier", _addresses["calque_barrier"])
        return _addresses


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
