"""Public counters: what was recorded, flushed, compiled and evicted, and why.

>>> import calque
>>> calque.stats()["trie_edges"] >= 0
True
"""

from __future__ import annotations

from typing import Any

from calque.base.config import settings
from calque.run.backends import backend
from calque.run.capture import hybrid_counts
from calque.run.dispatch import DispatchCounters, synchronize
from calque.run.recorder import Counters


def stats() -> dict[str, Any]:
    """Counters since the process started.

    trie_edges: size of the trace trie (bounded by trie_limit); flushes and their reasons; programs: distinct programs seen;
    program_hits: flushes that reused one; compiled / interpreted: program forms made; fallbacks: programs
    whose compiled form failed and that the reference computed; evictions: times the trie was pruned;
    hybridize: functions, their replayed and recorded calls, and calls that ran as written with the reasons;
    memory: bytes in use, peak and cached for reuse.
    """
    memory = backend().memory()
    return {
        "trie_edges": Counters.edges,
        "trie_limit": settings.max_trie_edges,
        "flushes": Counters.flushes,
        "flush_reasons": dict(Counters.reasons),
        "programs": Counters.plan_misses,
        "program_hits": Counters.plan_hits,
        "compiled": DispatchCounters.compiled,
        "interpreted": DispatchCounters.interpreted,
        "fallbacks": DispatchCounters.fallbacks,
        "evictions": Counters.evictions,
        "hybridize": hybrid_counts(),
        "memory": {"in_use": memory.in_use, "peak": memory.peak, "cached": memory.cached},
    }


def set_num_threads(threads: int) -> None:
    """Number of CPU threads for later work, at least 1. Results do not depend on it."""
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise ValueError(f"[set_num_threads] expected a positive integer, got {threads!r}")
    synchronize()
    settings.threads = threads


def get_num_threads() -> int:
    """Number of CPU threads."""
    return settings.threads
