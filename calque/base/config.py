"""Every flag of Calque, and the only reader of the process environment.

>>> from calque.base import config
>>> config.settings.sync
False
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, field
from pathlib import Path

MOST_DEVICES = 256  # logical devices; each that is used has threads of its own


def _flag(name: str, default: bool = False) -> bool:
    return os.environ.get(name, "1" if default else "0").strip().lower() not in ("", "0", "false", "no", "off")


def _number(name: str, default: int, least: int = 0, most: int = 1 << 62) -> int:
    """The whole number in a variable. What cannot be used is reported and not used: an import must not fail because of a variable."""
    text = os.environ.get(name, "").partition(",")[0].strip()  # OMP_NUM_THREADS may be a list, one number for each level of nesting
    if not text:
        return default
    number = int(text) if text.removeprefix("-").isdecimal() else None
    if number is None or not least <= number <= most:
        upper = f" to {most}" if most < 1 << 62 else " or more"
        warnings.warn(f"[{name}] expected a whole number, {least}{upper}, got {text!r}; it is taken as {default}", RuntimeWarning, stacklevel=2)
        return default
    return number


def _default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("CALQUE_CACHE") or Path(base) / "calque")


def _default_threads() -> int:
    asked = _number("CALQUE_NUM_THREADS", _number("OMP_NUM_THREADS", 0))
    return asked if asked > 0 else available_cores()


def available_cores() -> int:
    """Number of cores this process may use (respects CPU affinity)."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return max(1, os.cpu_count() or 1)


@dataclass(slots=True)
class Settings:
    """Process-wide settings, read once from the environment; tests may assign."""

    sync: bool = field(default_factory=lambda: _flag("CALQUE_SYNC"))  # run every flush synchronously (the oracle engine)
    verify: bool = field(default_factory=lambda: _flag("CALQUE_VERIFY"))  # infer programs again after every pass; run library code instead of replays
    backend: str = field(default_factory=lambda: os.environ.get("CALQUE_BACKEND", "cpu"))  # "cpu" or "ref" (interpreter)
    threads: int = field(default_factory=_default_threads)
    logical_devices: int = field(default_factory=lambda: _number("CALQUE_LOGICAL_DEVICES", 1, 1, MOST_DEVICES))  # cpu:0..n-1 share the threads
    cache_dir: Path = field(default_factory=_default_cache)  # object code
    cache_bytes: int = field(default_factory=lambda: _number("CALQUE_CACHE_BYTES", 512 << 20))
    compile_in_process: bool = field(default_factory=lambda: _flag("CALQUE_COMPILE_IN_PROCESS"))  # else LLVM runs in processes of its own
    tune: bool = field(default_factory=lambda: _flag("CALQUE_TUNE"))  # time candidate schedules of contractions on first use
    cpu_target: str = field(default_factory=lambda: os.environ.get("CALQUE_CPU_TARGET", ""))  # "", "sse2", "avx2", "avx512"
    max_pending_ops: int = field(default_factory=lambda: _number("CALQUE_MAX_PENDING_OPS", 8192))
    max_pending_bytes: int = field(default_factory=lambda: _number("CALQUE_MAX_PENDING_BYTES", 4 << 30))
    max_trie_edges: int = field(default_factory=lambda: _number("CALQUE_MAX_TRIE_EDGES", 400_000))
    early_reads: bool = field(default_factory=lambda: _flag("CALQUE_EARLY_READS", True))  # reads wait for their value, not for its whole program
    macros: bool = field(default_factory=lambda: _flag("CALQUE_MACROS", True))  # record steps of optimizers and backward passes again without Python
    log: str = field(default_factory=lambda: os.environ.get("CALQUE_LOG", ""))
    deterministic: bool = field(default_factory=lambda: _flag("CALQUE_DETERMINISTIC"))  # a program gives the same bits however often it was seen
    checked: bool = field(default_factory=lambda: _flag("CALQUE_CHECKED"))  # NaN, overflow and domain errors raise
    memory_limit: int = field(default_factory=lambda: _number("CALQUE_MEMORY_LIMIT", 0))  # bytes; 0 = what the machine has


settings = Settings()


def whole_environment() -> dict[str, str]:
    """The environment for a process that this one starts."""
    return dict(os.environ)
