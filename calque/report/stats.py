"""Public counters: what was recorded, flushed, compiled, guarded and evicted, and why.

>>> import calque
>>> calque.stats()["trie_edges"] >= 0
True
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from calque.base.blas import set_threads
from calque.base.cache import measured
from calque.base.config import MOST_THREADS, settings
from calque.base.errors import ArgumentError
from calque.base.text import shown
from calque.observe.causes import Causes, Compilation, flush_lines, unrepeated
from calque.record.copies import CopyCounters
from calque.record.path import Counters
from calque.replay.counts import hybrid_counts
from calque.replay.stretches import stretch_counts
from calque.run.backends import backend, host_memory
from calque.run.dispatch import DispatchCounters, wait_for_queues
from calque.run.engine import depths
from calque.run.prepacking import held_bytes

ROWS = 8  # of each list in the printed form


class Stats(dict[str, Any]):
    """The counters as a dictionary whose entries are attributes too; printing it gives a page of text.

    traces: {"new": traces that gave a program not met before, "reused": traces that found theirs}; flushes: programs started,
    flush_reasons: by reason, flush_lines: by (reason, line), most frequent first; unrepeated: of each (reason, line) whose programs do not come again
    the number of new ones by cause (see below); compiles: by cause (see below),
    compilations: the last ones, each with its line, cause, sizes and seconds; interpreted: small programs that were not compiled (yet);
    guard_misses: calls of hybridized functions that found what they depend on changed; hybridize: functions, their replayed and recorded calls,
    replays that Python took over ("continued"), the recorded "stretches" held, and calls that ran as written with the reasons;
    macros: steps of optimizers and backward passes that were recorded again without their Python ("replays") and those that were watched for it
    ("recordings"); fallbacks: programs whose compiled form failed and that the reference computed; queues: tasks that
    wait or run now, per device; copies: values and bytes moved between devices; memory: bytes in use, their peak, bytes cached for reuse, and
    "packed": bytes in use that are weights laid out for the kernels (`docs/when-things-run.md`);
    compiler (since the process began): processes started to compile, how many at once, modules that they compiled, modules compiled in this
    process instead and the reasons, the most memory (MiB) that one of the processes held, functions that a run had to wait for ("late"), plans for
    all sizes that could not be made ("refused": such programs are planned one by one); trie_edges, trie_limit: size of the trace trie
    now and its bound; evictions: times the trie was pruned; caches: {"entries", "bytes" by estimate, "limit"} of everything that is kept by shape,
    number or line; together they hold no more than `CALQUE_MEMO_BYTES`. `programs`, `program_hits` and `compiled` are the sums of `traces` and
    `compiles`.

    Causes of a compilation: "new program", "new shape" (the same operations), "new dtype", "new constant" (a number or attribute that is part of the
    program), "other results" (other values were still referenced), "guard miss" (of a hybridized function), "seen before" (forgotten since).

    >>> import calque
    >>> before = calque.stats().flushes
    >>> calque.ones(3).sum().item()
    3.0
    >>> calque.stats().flushes - before
    1
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"[stats] expected one of {', '.join(self)}, got {shown(name)}") from None

    def __repr__(self) -> str:
        memory, hybrid = self["memory"], self["hybridize"]
        out = [
            f"traces      {self['traces']['new']} new, {self['traces']['reused']} reused; trie {self['trie_edges']} of {self['trie_limit']} edges, "
            f"{self['evictions']} evictions",
            f"flushes     {self['flushes']}",
            *(f"  {times:8d}  {reason:<28} {_short(line)}" for (reason, line), times in _most(self["flush_lines"])),
            *(f"  {sum(causes.values()):8d}  new programs at {_short(line)}, which does not repeat ({_counts(causes)})"
              for (_, line), causes in _most(self["unrepeated"])),
            f"compiles    {self['compiled']} ({_counts(self['compiles'])}); {self['interpreted']} interpreted, {self['fallbacks']} fallbacks",
            *(_compilation(c) for c in self["compilations"][-ROWS:]),
            *(f"  {modules:8d}  modules compiled in this process: {reason}" for reason, modules in _most(self["compiler"].get("reasons", {}))),
            f"hybridize   {hybrid['functions']} functions: {hybrid['replays']} replays, {hybrid['recordings']} recordings, "
            f"{hybrid['imperative']} calls as written; {self['guard_misses']} guard misses",
            *(f"  {times:8d}  {reason}" for reason, times in _most(hybrid["reasons"])),
            f"macros      {_counts(self['macros'])}",
            f"queues      {_counts(self['queues'])}",
            f"copies      {self['copies']['count']} between devices, {_mib(self['copies']['bytes'])}",
            f"caches      {_mib(sum(c['bytes'] for c in self['caches'].values()))} of {_mib(settings.memo_bytes)}, by estimate",
            f"memory      {_mib(memory['in_use'])} in use, {_mib(memory['peak'])} at most, {_mib(memory['cached'])} cached, "
            f"{_mib(memory['packed'])} of packed weights",
        ]
        return "\n".join(out)


def _compilation(c: Compilation) -> str:
    return f"  {c.seconds * 1e3:6.1f} ms  {c.cause:<28} {_short(c.line)}  ({c.nodes} nodes, {c.launches} launches)"


def _most(counted: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """The entries that count most: numbers, or numbers by cause."""
    return sorted(counted.items(), key=lambda item: -(sum(item[1].values()) if isinstance(item[1], dict) else item[1]))[:ROWS]


def _counts(counted: dict[str, int]) -> str:
    return ", ".join(f"{name}: {times}" for name, times in counted.items()) or "none"


def _mib(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):.1f} MiB"


def _short(line: str) -> str:
    return Path(line).name


def _totals() -> dict[str, Any]:
    """Counters since the process began."""
    return {
        "new": Counters.plan_misses, "reused": Counters.plan_hits, "flushes": Counters.flushes, "flush_reasons": dict(Counters.reasons),
        "flush_lines": flush_lines(), "compiled": DispatchCounters.compiled, "compiles": dict(Causes.compiled),
        "interpreted": DispatchCounters.interpreted, "fallbacks": DispatchCounters.fallbacks, "evictions": Counters.evictions,
        "guard_misses": Causes.guard_misses, "hybridize": hybrid_counts(), "macros": stretch_counts(),
        "copies": {"count": CopyCounters.copies, "bytes": CopyCounters.nbytes},
    }  # fmt: skip


def _minus(value: Any, before: Any, name: str = "") -> Any:
    """What was counted since `before`; lists of reasons drop those that did not occur."""
    if not isinstance(value, dict):
        return value if name in _HELD else value - before
    listed = name in _LISTS
    found = {key: _minus(x, before.get(key, {} if isinstance(x, dict) else 0), "" if listed else key) for key, x in value.items()}
    return {key: x for key, x in found.items() if x or not listed}


_LISTS = ("flush_reasons", "flush_lines", "compiles", "reasons")  # entries come and go
_HELD = ("stretches",)  # what there is now, not a count of events
_base: dict[str, Any] = {}


def stats(*, reset: bool = False) -> Stats:
    """Counters since the process began or the last reset; `reset=True` returns them and starts anew (the peak of the memory too). See `Stats`.

    Nothing is counted per operation: keeping the counters costs about 0.4 us per flush.

    >>> import calque
    >>> _ = calque.stats(reset=True)
    >>> calque.stats().flushes, calque.stats().compiles
    (0, {})
    """
    totals = _totals()
    found = _minus(totals, _base)
    memory = host_memory().memory()
    records = list(Causes.records)
    result = Stats(
        traces={"new": found["new"], "reused": found["reused"]},
        trie_edges=Counters.edges,
        trie_limit=settings.max_trie_edges,
        caches=measured(),
        evictions=found["evictions"],
        flushes=found["flushes"],
        flush_reasons=found["flush_reasons"],
        flush_lines=dict(sorted(found["flush_lines"].items(), key=lambda item: -item[1])),
        unrepeated=unrepeated(),
        programs=found["new"],
        program_hits=found["reused"],
        compiled=found["compiled"],
        compiles=found["compiles"],
        compilations=records,
        interpreted=found["interpreted"],
        fallbacks=found["fallbacks"],
        guard_misses=found["guard_misses"],
        hybridize=found["hybridize"],
        macros=found["macros"],
        queues=depths(),
        copies=found["copies"],
        memory={"in_use": memory.in_use, "peak": memory.peak, "cached": memory.cached, "packed": held_bytes()},
        compiler=backend().compile_counts(),
    )
    if reset:
        _base.clear()
        _base.update(totals)
        Causes.records.clear()
        host_memory().reset_peak()
    return result


def set_num_threads(threads: int) -> None:
    """Number of CPU threads for later work, 1 to 256. The BLAS and LAPACK of NumPy have as many at most, for the whole process, and round by it;
    nothing else that is computed depends on it."""
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= MOST_THREADS:
        raise ArgumentError(f"[set_num_threads] expected a positive integer, 1 to {MOST_THREADS} threads, got {shown(threads)}")
    wait_for_queues()
    set_threads(threads)


def get_num_threads() -> int:
    """Number of CPU threads."""
    return settings.threads
