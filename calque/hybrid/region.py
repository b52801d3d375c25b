"""A region: a function of storages that is recorded the first times it runs and replayed afterwards.

A recording is used once a second call from the same place of the trace recorded exactly the same. Recordings hang on (key, edge of the trace at
entry); there are several only if values were looked at (`Capture.peek`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from calque.base.layout import Layout
from calque.run.capture import Capture, Counts, Macro, plain_numbers
from calque.run.recorder import Counters, Storage, flush, local, root
from calque.tensor import Tensor, wrap

PLACES = 8  # places of a trace that were met once; with more of them a call starts a new trace, whose beginning is always the same place
MACROS = 64
VARIANTS = 4
STRIKES = 6  # recordings that may differ from the one before


Place = tuple[str, int, Layout]  # "created" or "cell", its number, layout of the handle


def place_of(t: Tensor, storages: list[Storage], cells: Sequence[Any]) -> Place | None:
    """Where a result is found after a replay."""
    for k, st in enumerate(storages):
        if st is t._storage:
            return "created", k, t._layout
    for k, cell in enumerate(cells):
        if cell is t._storage:
            return "cell", k, t._layout
    return None


def handle(place: Place, created: list[Storage], cells: Sequence[Any], kind: type = Tensor) -> Tensor:
    """A new handle on a result."""
    made: Tensor = wrap(created[place[1]] if place[0] == "created" else cells[place[1]], place[2], kind)
    return made


class Memory:
    """Recordings of one region."""

    def __init__(self) -> None:
        self.macros: dict[Any, list[Macro]] = {}
        self.waiting: dict[Any, tuple[Any, ...]] = {}  # fingerprint of the last recording from a place
        self.strikes = 0
        self.refused = ""
        self.generation = Counters.evictions

    def find(self, key: Any, cells: Sequence[Any]) -> Macro | None:
        """The recording that fits here."""
        trace = local.state.trace
        if self.generation != Counters.evictions:  # what follows the stretches could not be evicted any more
            self.generation = Counters.evictions
            self.macros.clear()
            self.waiting.clear()
        for macro in self.macros.get((key, trace.cur), ()):
            if macro.fits(trace, cells):  # type: ignore[arg-type]
                return macro
        if trace.n and ((key, root()) in self.macros or self.crowded()):
            flush("hybridize")
            return self.find(key, cells)
        return None

    def learn(self, key: Any, macro: Macro, mark: tuple[Any, ...]) -> bool:
        """Take in a recording; True if it is used from now on."""
        where = (key, macro.start)
        known = self.waiting.get(where)
        fingerprint = (*macro.fingerprint(), mark)
        if known != fingerprint:
            if known is not None:
                self.strikes += 1
                if self.strikes >= STRIKES:
                    self.refused = "records something else at every call"
            if len(self.waiting) >= MACROS:
                self.waiting.clear()
            self.waiting[where] = fingerprint
            return False
        if len(self.macros) >= MACROS and where not in self.macros:
            self.macros.pop(next(iter(self.macros)))
        variants = self.macros.setdefault(where, [])
        del variants[: max(0, len(variants) - VARIANTS + 1)]
        variants.append(macro)
        self.strikes = 0
        return True

    def crowded(self) -> bool:
        """Whether the region was met at so many places, once each, that the trace should start anew before it."""
        return len(self.waiting) - len(self.macros) >= PLACES


def watched(cells: list[Any], function: Callable[[], Any], closed: bool = True) -> tuple[Any, Capture]:
    """Run `function` under a capture."""
    state = local.state
    capture = Capture(cells, closed)
    state.capture = capture
    try:
        return function(), capture
    except BaseException:
        plain_numbers(state.trace)
        raise
    finally:
        state.capture = None


class Region:
    """A function from storages to tensors without any other effect: the gradient of a hybridized call."""

    def __init__(self) -> None:
        self.memory = Memory()

    def run(self, key: Any, cells: list[Any], function: Callable[[], list[Any]]) -> list[Any]:
        """Tensors (or None) that `function` returns, from a recording if there is one."""
        state = local.state
        memory = self.memory
        macro = memory.find(key, cells)
        if macro is not None:
            trace = state.trace
            created = macro.replay(trace, cells)
            Counts.replays += 1
            if macro.end.boundary:
                flush("bound on pending work")
            return [None if place is None else handle(place, created, cells) for place in macro.result]
        if memory.refused or state.capture is not None:
            return function()
        result, capture = watched(cells, function, closed=False)
        macro = capture.finish()
        Counts.recordings += 1
        if macro is None:
            memory.refused = capture.failed
            Counts.because(f"gradient: {capture.failed}")
            return result
        places = [None if t is None else place_of(t, capture.storages, cells) for t in result]
        if any(p is None and t is not None for p, t in zip(places, result, strict=True)):
            memory.refused = "returns a tensor that is not its own"
            return result
        macro.result = places
        memory.learn(key, macro, tuple(places))
        return result
