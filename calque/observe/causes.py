"""Why programs are flushed and compiled: the counters that `calque.stats()` prints with their source lines.

Counting a flush costs a walk to the user's frame (0.2 us, no text is made) and a dictionary entry; nothing is counted per operation. What a
compilation is compared with costs one pass over the nodes of a program that is new anyway.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from threading import Lock
from typing import Any

from calque.base.cache import Cache, Table, register
from calque.base.dataclass import dataclass
from calque.base.errors import RepetitionWarning
from calque.ir.program import Node, Program
from calque.observe.source import line_of, user_site, warn_user

SITE = 600  # bytes of a line that flushed, with its code; what comes when there are too many is counted by its reason alone
SELDOM = 6  # new programs of one line behind which its next ones are first interpreted, if that takes less than planning them...
SHARE = 4  # ... and at least one of so many programs there was new
TOLD = 5  # new programs of one line with which a loop is said not to repeat (the first turns of one that does may be four)...
COSTLY = 2_000  # ... if they have so many nodes together: planning them has taken some tenths of a second
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

    # reason, code by its id (its hash goes over all of it), instruction: times, code, how often its program was new since how many times, nodes of
    # the new ones, how many of them by cause
    sites: dict[tuple[str, int, int], list[Any]] = {}
    compiled: dict[str, int] = {}
    records: deque[Compilation] = deque(maxlen=RECORDS)
    guard_misses = 0
    missed_in: Any = None  # trace in which a guard missed last


_known = Cache("structures of programs", 250, 1 / 128)  # structures, and (structure, kind, dtypes or shapes or attributes or results) met with them
_met = Cache("meetings of structures", 250, 1 / 512)  # key of a description -> [how often]
_LOCK = Lock()
_SITES = register("lines of flushes", Table(1 / 256, lambda: (len(Causes.sites), len(Causes.sites) * SITE)))


def flushed(reason: str, frames: int = 1) -> list[Any] | None:
    """Count a flush by its reason and the user's line, which is at least so many frames up; gives the counters of the two, if they are kept."""
    code, position = user_site(frames + 1)
    key = (reason, id(code), position)
    sites = Causes.sites
    found = sites.get(key)
    if found is not None:
        found[0] += 1
    elif (len(sites) + 1) * SITE <= _SITES.limit():
        found = sites[key] = [1, code, 0, 0, 0, {}]
    return found


def seldom_repeats(site: list[Any] | None, cause: str = "", nodes: int = 0, again: bool = False) -> bool:
    """Count a program that is new at a line that flushes, and why; whether so many were that it will hardly come again. `nodes`: 0 for pieces of what
    was cut, of which one turn may have many. `again`: it was recorded before and not kept, so it is not new, whatever else met its structure."""
    if site is None:
        return False
    times, _, new, since, planned, causes = site
    if not again:
        causes[cause] = causes.get(cause, 0) + 1
        new, planned = new + 1, planned + nodes
        site[2], site[4] = new, planned
    if SHARE * new <= times - since:
        return False
    if new >= TOLD and planned >= COSTLY:
        site[4] = -(1 << 60)  # once is enough
        told = ", ".join(f"{count} {cause}" for cause, count in causes.items())
        warn_user(
            f"[flush] expected a loop that repeats, got {new} new programs ({told}) of {times - since} that ended at one line; such "
            "programs are planned, or computed operation by operation, which takes time. calque.stats() counts them by line; docs/when-things-run.md "
            "says what makes them differ",
            RepetitionWarning,
        )
    return bool(new > SELDOM)


def unrepeated() -> dict[tuple[str, str], dict[str, int]]:
    """Of each (reason, line) whose programs do not repeat: how many were new, by cause."""
    found: dict[tuple[str, str], dict[str, int]] = {}
    for (reason, _, position), (times, code, new, since, planned, causes) in list(Causes.sites.items()):
        if planned and new >= TOLD and SHARE * new > times - since:
            found[reason, line_of(code, position)] = dict(causes)
    return found


def flush_lines() -> dict[tuple[str, str], int]:
    """How often each (reason, line) flushed."""
    found: dict[tuple[str, str], int] = {}
    for (reason, _, position), (times, code, *_) in list(Causes.sites.items()):
        key = (reason, line_of(code, position))
        found[key] = found.get(key, 0) + times
    return found


def guard_missed(trace: object) -> None:
    """A hybridized function found that what it depends on has changed; what it records now is `trace`."""
    Causes.guard_misses += 1
    Causes.missed_in = trace


def often(structure: bytes, times: int) -> bool:
    """Count a program of this structure; whether there were more than so many."""
    with _LOCK:
        count = _met.get(structure) or _met.keep(structure, [0])
        count[0] += 1
        return count[0] > times  # type: ignore[no-any-return]


def _constants(nodes: Sequence[Node]) -> int:
    """Equal for nodes of the same attributes. (Numbers among them stand beside their type.)"""
    try:
        return hash(tuple([n.attrs for n in nodes]))
    except TypeError:  # an array, or a list
        return hash(tuple([str(n.attrs) for n in nodes]))


def cause_of(program: Program, trace: object = None) -> str:
    """Why there is no program for this yet (see `Compilation`); remembers it for the next ones."""
    nodes = program.nodes
    structure = hash(tuple([(n.op.name, n.inputs) for n in nodes]))
    facts = (
        ("new dtype", hash(tuple([n.dtype.name for n in nodes]))),
        ("new shape", hash(tuple([n.shape for n in nodes]))),
        ("new constant", _constants(nodes)),
        ("other results", hash((program.outputs, program.updates))),
    )
    with _LOCK:
        fresh = [name for name, value in facts if not _known.get((structure, name, value))]
        cause = (fresh[0] if fresh else "seen before") if _known.get(structure) else "new program"
        for key in (structure, *[(structure, *fact) for fact in facts]):
            if key not in _known:
                _known.keep(key, True)
    if cause == "new program" and trace is not None and Causes.missed_in is trace:
        Causes.missed_in = None
        return "guard miss"
    return cause


def compiled(program: Program, cause: str, launches: int, seconds: float, lowering: float) -> None:
    """Count a compilation."""
    Causes.compiled[cause] = Causes.compiled.get(cause, 0) + 1
    line = next((n.line for n in reversed(program.nodes) if n.line), "")
    Causes.records.append(Compilation(line, cause, len(program.nodes), launches, seconds, lowering))
