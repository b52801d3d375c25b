"""Warnings about autograd history that a program keeps alive without need, by variable name and source line.

Two habits make memory grow at every step: accumulating a tensor that still has its history (`total += loss`), and keeping the losses
themselves in a list. Both are found here from what a normal loop does anyway, so a warm step pays a dictionary look-up.
"""

from __future__ import annotations

import gc
import sys
import weakref
from dataclasses import field
from types import FrameType
from typing import Any

from calque.base.cache import Cache
from calque.base.dataclass import dataclass
from calque.base.errors import LeakWarning
from calque.observe.source import inside_package, user_line, warn_user
from calque.record.nodes import GradNode
from calque.record.path import Counters
from calque.record.trie import BOUND

REPEATS = 50  # iterations that one graph may span before it is called a leak
LONG = 1000  # the same without any other evidence: a recurrent network may be unrolled that far, not further
OPERATIONS = 200_000  # the same for operations of any kind, when nothing is ever read


@dataclass(slots=True)
class Returned:
    """How often realised values of one source line came back, and the number of optimizer steps when the first did. `kept`: nodes, by id, that were
    the first to come back after a flush that was no cut of pending work; there were `flushes` of these at the last, and `rounds` of such nodes."""

    count: int
    steps: int
    flushes: int = -1
    rounds: int = 0
    kept: dict[int, weakref.ref[Any]] = field(default_factory=dict)
    told: bool = False


_seen = Cache("lines of histories", 1500, 1 / 256)
_roots = Cache("lines of backward passes", 8000, 1 / 256)


def watch_history(t: Any) -> None:
    """A realised tensor with history enters a new trace. Once is normal; again and again in one graph keeps every iteration alive."""
    node = t._grad_fn
    line = node.line
    if not line:
        return
    steps = Counters.reasons.get("optimizer.step", 0)
    seen: Returned | None = _seen.get(line)
    if seen is None:
        seen = _seen.keep(line, Returned(0, steps))
    seen.count += 1
    flushes = Counters.flushes - Counters.reasons.get(BOUND, 0)
    fresh = flushes != seen.flushes  # else only cuts of pending work may have brought it back: they say nothing of iterations
    if fresh:
        seen.flushes = flushes
        seen.rounds += 1
        if seen.rounds % REPEATS == 1:
            seen.kept = {key: ref for key, ref in seen.kept.items() if ref() is not None}
        seen.kept[id(node)] = weakref.ref(node)  # not a `WeakSet`: what a signal handler raised in its callbacks, which are Python, would be lost
    if seen.told or ((not fresh or seen.rounds % REPEATS) and seen.count & (seen.count - 1)):
        return
    same, size, freed = _survey(node, seen.kept)
    trained = freed or steps - seen.steps >= REPEATS
    if (same >= REPEATS and trained) or same >= LONG or size >= OPERATIONS:
        seen.told = True
        many = f"{same} earlier iterations" if same >= REPEATS else f"{size} earlier operations"
        warn_user(
            f"{_variable(t) or 'a tensor'} ({user_line()}) keeps the autograd history of {many} alive, so memory grows at every step; "
            "accumulate a Python number instead: use .item() or .detach()",
            LeakWarning,
        )


def _survey(node: GradNode, kept: dict[int, weakref.ref[Any]]) -> tuple[int, int, bool]:
    """Of the graph of `node`: nodes of the same recorded operation, all (up to a bound), whether a backward used some part. Behind a cut one
    operation is met again in every path, whatever the iterations are: there only the nodes in `kept` count."""
    same = visits = 0
    cut = getattr(node.edge, "rhythm", None) is not None
    freed = False
    seen: set[int] = set()
    stack = [node]
    while stack and visits < OPERATIONS:
        item = stack.pop()
        if id(item) in seen or not hasattr(item, "next"):
            continue
        seen.add(id(item))
        visits += 1
        same += (id(item) in kept and kept[id(item)]() is item) if cut else item.edge is node.edge and item.name() == node.name()
        freed = freed or bool(item.freed)
        stack.extend(target for target in item.next if target is not None)
    return same, visits, freed


def watch_root(t: Any, line: str) -> None:
    """A backward starts at `t` on this line. Losses of one source line should not outlive their iteration by dozens."""
    if t._grad_fn is None or not line:
        return
    refs: list[weakref.ref[Any]] | None = _roots.get(line)
    if refs is None:
        refs = _roots.keep(line, [])
    refs.append(weakref.ref(t))
    if len(refs) < 2 * REPEATS:
        return
    alive = [r for r in refs if r() is not None]
    if len(alive) >= REPEATS:  # or only not collected yet, after errors
        gc.collect()
        alive = [r for r in alive if r() is not None]
    if len(alive) < REPEATS:
        refs[:] = alive
        return
    if _roots.pop(line, None) is None:
        return  # another thread, which runs the same line, says so
    name = _container(alive[0]())
    warn_user(
        f"{name or 'a list'} holds {len(alive)} results of backward passes ({line}) with their autograd history, so memory grows at every step; "
        "keep Python numbers instead: append loss.item() or loss.detach()",
        LeakWarning,
    )


def _user_frames() -> list[FrameType]:
    found, frame = [], sys._getframe(1)
    while frame is not None:
        if not inside_package(frame.f_code.co_filename):
            found.append(frame)
        frame = frame.f_back  # type: ignore[assignment]
    return found


def _variable(value: Any) -> str:
    """The user's name of an object, or of a tensor with the same history: a variable, or an attribute or entry of one."""
    node = getattr(value, "_grad_fn", None)

    def same(held: Any) -> bool:
        return held is value or (node is not None and type(held) is type(value) and held._grad_fn is node)

    for frame in _user_frames():
        for name, held in frame.f_locals.items():
            if same(held):
                return str(name)
        for name, held in frame.f_locals.items():
            attributes = getattr(held, "__dict__", None)
            if isinstance(attributes, dict):
                found = next((key for key, x in list(attributes.items()) if same(x)), None)
                if found is not None:
                    return f"{name}.{found}"
            if isinstance(held, dict):
                key = next((key for key, x in list(held.items()) if same(x)), None)
                if key is not None:
                    return f"{name}[{key!r}]"
    return ""


def _container(value: Any) -> str:
    """Name of the variable that holds a list or dict in which `value` is."""
    for holder in gc.get_referrers(value):
        if isinstance(holder, (list, dict, tuple)):
            found = _variable(holder)
            if found:
                return found
    return ""
