"""What code of the library records between its entry and its exit, recorded again without running it.

A training loop that is not hybridized still calls the same library functions at the same places of its trace: `optimizer.step()`, `backward()`.
What such a function records is determined by a few facts that its caller knows (`parts`), by its place in the trace and by how the storages that it
reaches (`cells`) stand there. `Stretches` keeps a macro for each; the caller decides what a replay has to do besides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calque.base.config import settings
from calque.record.numbers import BAKED
from calque.record.path import Counters, Edge
from calque.record.recorder import Storage, Trace, local
from calque.replay.capture import Capture
from calque.replay.macro import Macro

PLACES = 256  # places of the trace; with more of them the one that was met first is forgotten
VARIANTS = 4  # of one place
STRANGE = 5  # calls in a row at places that were never met


class _StretchCounts:
    """What became of calls, for `calque.stats()`. One object, for the reason that `Counters` of `record/path.py` is one."""

    __slots__ = ("replays", "recordings")

    def __init__(self) -> None:
        self.replays = self.recordings = 0


StretchCounts = _StretchCounts()


def stretch_counts() -> dict[str, int]:
    """The counters, for `calque.stats()`."""
    return {"replays": StretchCounts.replays, "recordings": StretchCounts.recordings}


class Stretch:
    """What a function records at one place under the conditions `parts`."""

    __slots__ = ("parts", "calls", "macro", "result")

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts
        self.calls = 0
        self.macro: Macro | None = None
        self.result: Any = None  # what the caller makes of it

    def due(self) -> bool:
        """Count a call that cannot be a replay; True if it should be recorded: the second one, and ever more rarely if nothing comes of it."""
        self.calls += 1
        return self.calls > 1 and not self.calls & (self.calls - 1)


class Stretches:
    """The stretches of one function."""

    __slots__ = ("places", "generation", "strange")

    def __init__(self) -> None:
        self.places: dict[Edge, list[Stretch] | None] = {}  # None: calls at this place are left alone
        self.generation = Counters.evictions
        self.strange = 0

    def alone(self) -> bool:
        """Whether the function had better begin a program of its own: what comes before it was never met, as it was before the last calls, so what
        it records would always stand somewhere else. The place is known from now on; where it is met again the two are one program."""
        place = local.state.trace.cur
        if place.parent is None:
            return False
        known = self.generation == Counters.evictions and place in self.places
        self.strange = 0 if known else self.strange + 1
        if self.strange <= STRANGE:
            return False
        self._level(place)
        return True

    def met(self) -> bool:
        """Whether the function was called at the trace's place before, or had better behave as if it was: the last calls were at known places. Where
        none were (a loop whose sizes or operations never come again), the first call at a place is only counted."""
        place = local.state.trace.cur
        if place in self.places and self.generation == Counters.evictions:
            self.strange = 0
            return True
        self.strange += 1
        if self.strange <= STRANGE and not Counters.loose:
            return True
        self._level(place)
        return False

    def left(self) -> bool:
        """Whether calls at the trace's place are left alone."""
        return self.generation == Counters.evictions and self.places.get(local.state.trace.cur, self) is None

    def leave(self, place: Edge) -> None:
        """Calls at this place are not worth a replay."""
        self.places[place] = None

    def here(self, parts: list[Any]) -> Stretch:
        """The stretch that begins at the trace's place under these conditions."""
        place = local.state.trace.cur
        level = self.places.get(place) if self.generation == Counters.evictions else None
        for stretch in level or ():
            if stretch.parts == parts:
                if stretch.macro is not None and stretch.macro.end.retired:  # the calls that follow record another path
                    stretch.macro, stretch.calls = None, 1
                return stretch
        counted = level == []  # without the conditions, which are taken to be those of now
        level = self._level(place)
        if len(level) >= VARIANTS:
            del level[0]
        made = Stretch(parts)
        made.calls = int(counted)
        level.append(made)
        return made

    def _level(self, place: Edge) -> list[Stretch]:
        if self.generation != Counters.evictions:  # what was evicted must not be kept alive
            self.generation = Counters.evictions
            self.places.clear()
        level = self.places.get(place)
        if level is None:
            if len(self.places) >= PLACES:
                del self.places[next(iter(self.places))]
            level = self.places[place] = []
        return level


def may_replay() -> bool:
    """Whether calls may be recorded or replayed now."""
    state = local.state
    return settings.macros and state.capture is None and not settings.checked and state.trace.__class__ is Trace


def record_call(cells: list[Storage | None], function: Callable[[], Any], closed: bool) -> tuple[Any, Macro | None, Capture]:
    """Run `function`: its result, and its macro if it is one stretch that only records."""
    capture = Capture(cells, closed, constants=True)
    result = capture.watch(function)
    macro = capture.finish()
    StretchCounts.recordings += 1
    if macro is None or len(capture.segments) > 1 or macro.ending or macro.checks or macro.peeks or macro.dropped:
        return result, None, capture
    return result, macro, capture


def verify(macro: Macro, cells: list[Storage | None], function: Callable[[], Any], closed: bool, name: str) -> Any:
    """Instead of a replay (`settings.verify`): run `function`, which must record again what the macro holds. If it does not, it depends on something
    that its caller does not compare, or changes something, and replays of it were wrong."""
    result, again, capture = record_call(cells, function, closed)
    capture.release()
    if again is None or again.stretch() != macro.stretch():
        raise AssertionError(
            f"{name} recorded something else than a call with the same operands: it must depend on its operands and on what it closes over alone"
        )
    return result


def generalised(macro: Macro) -> bool:
    """Whether some operation on a run-time number exists beside one that has a constant in its place: which is taken depends on the number."""
    edge: Edge | None = macro.end
    while edge is not None and edge is not macro.start:
        parent = edge.parent
        if parent is not None and any(source.__class__ is tuple and source[0] == "s" for source in edge.inputs):
            op = edge.op
            if any(key.__class__ is tuple and key[0] == "constant" and key[1][0] is op for key in parent.next):
                return True
        edge = parent
    return False


def takes_constants(macro: Macro, known: list[Any]) -> bool:
    """Whether a number of a replay could be a constant of the program."""
    return any(known[index] in BAKED for _, index in macro.numbers)
