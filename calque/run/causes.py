"""Why programs are flushed and compiled: the counters that `calque.stats()` prints with their source lines.

Counting a flush costs a walk to the user's frame (0.2 us, no text is made) and a dictionary entry; nothing is counted per operation. What a
compilation is compared with costs one pass over the nodes of a program that is new anyway.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from threading import Lock
from typing import Any

from calque.ir.program import Program
from calque.run.source import line_of, user_site

SITES = 4096  # distinct (reason, line) pairs; what comes later is counted by its reason alone
STRUCTURES = 4096  # structures of programs that are remembered to compare new ones with...
VARIANTS = 1024  # ... and how many shapes, dtypes, ... of each
RECORDS = 512  # last compilations that are kept one by one


@dataclass(frozen=True, slots=True)
class Compilation:
    """One program that was compiled. `line`: of its last operation; `cause`: "new program", "new shape", "new dtype", "new constant" (a number or
    another attribute is part of the program), "other results" (the same operations, but other values were still referenced), "guard miss" (a
    hybridized function found what it depends on changed) or "seen before" (forgotten since, or recorded on another thread); `seconds`: of lowering
    and machine code, the first of them in `lowering`."""

    line: str
    cause: str
    nodes: int
    launches: int
    seconds: float
    lowering: float


class Causes:
    """The counters."""

    sites: dict[tuple[str, int, int], list[Any]] = {}  # reason, code by its id (its hash goes over all of it), instruction: times, code
    compiled: dict[str, int] = {}
    records: deque[Compilation] = deque(maxlen=RECORDS)
    guard_misses = 0
    missed_in: Any = None  # trace in which a guard missed last


_known: OrderedDict[int, tuple[set[int], ...]] = OrderedDict()  # structure -> dtypes, shapes, attributes and results met with it
_LOCK = Lock()


def flushed(reason: str, frames: int = 1) -> None:
    """Count a flush by its reason and the user's line, which is at least so many frames up."""
    code, position = user_site(frames + 1)
    key = (reason, id(code), position)
    sites = Causes.sites
    found = sites.get(key)
    if found is not None:
        found[0] += 1
    elif len(sites) < SITES:
        sites[key] = [1, code]


def flush_lines() -> dict[tuple[str, str], int]:
    """How often each (reason, line) flushed."""
    found: dict[tuple[str, str], int] = {}
    for (reason, _, position), (times, code) in list(Causes.sites.items()):
        key = (reason, line_of(code, position))
        found[key] = found.get(key, 0) + times
    return found


def guard_missed(trace: Any) -> None:
    """A hybridized function found that what it depends on has changed; what it records now is `trace`."""
    Causes.guard_misses += 1
    Causes.missed_in = trace


def cause_of(program: Program, trace: Any = None) -> str:
    """Why there is no program for this yet (see `Compilation`); remembers it for the next ones."""
    nodes = program.nodes
    structure = hash(tuple([(n.op.name, n.inputs) for n in nodes]))
    facts = (
        ("new dtype", hash(tuple([n.dtype.name for n in nodes]))),
        ("new shape", hash(tuple([n.shape for n in nodes]))),
        ("new constant", hash(tuple([str(n.attrs) for n in nodes]))),
        ("other results", hash((program.outputs, program.updates))),
    )
    with _LOCK:
        met = _known.get(structure)
        if met is None:
            _known[structure] = tuple({value} for _, value in facts)
            if len(_known) > STRUCTURES:
                _known.popitem(last=False)
            cause = "new program"
        else:
            cause = next((name for (name, value), seen in zip(facts, met, strict=True) if value not in seen), "seen before")
            for (_, value), seen in zip(facts, met, strict=True):
                if len(seen) < VARIANTS:
                    seen.add(value)
    if cause == "new program" and trace is not None and Causes.missed_in is trace:
        Causes.missed_in = None
        return "guard miss"
    return cause


def compiled(program: Program, cause: str, launches: int, seconds: float, lowering: float) -> None:
    """Count a compilation."""
    Causes.compiled[cause] = Causes.compiled.get(cause, 0) + 1
    line = next((n.line for n in reversed(program.nodes) if n.line), "")
    Causes.records.append(Compilation(line, cause, len(program.nodes), launches, seconds, lowering))
