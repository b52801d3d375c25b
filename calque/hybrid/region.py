"""A region: a function of storages that is recorded the first times it runs and replayed afterwards.

A recording is used once a second call from the same place of the trace recorded exactly the same. Recordings hang on (key, edge of the trace at
entry); there are several only if values were looked at (`Capture.peek`). A recording that looks at values is a tree, see `walk.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from calque.base.layout import Layout
from calque.base.unbroken import unbroken
from calque.hybrid.walk import Walk
from calque.record.path import Counters
from calque.record.recorder import Storage, flush, local, record_from_here
from calque.record.trie import BOUND, root
from calque.replay.capture import Capture
from calque.replay.counts import Counts
from calque.replay.macro import Macro
from calque.replay.moved import recorded_elsewhere
from calque.tensor import Tensor, wrap

PLACES = 128  # places of a trace that were met once; with more of them a call starts a new trace, whose beginning is always the same place
TREES = 8  # the same for calls that look at values, which starts a program in any case
MACROS = 256  # places
VARIANTS = 4
NODES = 4096  # stretches; with more of them the least recently used half is forgotten
STRIKES = 6  # recordings that may differ from the one before
MISSES = 64  # calls in a row that may go another way at one place than all before


CallKey = tuple[Any, ...]  # what tells calls apart that share no recording: a signature, which gradients exist
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


class CallMemory:
    """Recordings of one region."""

    def __init__(self) -> None:
        self.roots: dict[Any, list[Macro]] = {}
        self.nodes = 0
        self.tick = 0
        self.strikes = 0
        self.refused = ""
        self.writes: bool | None = None  # whether calls give gradients to leaves or write to what others may have; None: not known yet
        self.generation = Counters.evictions

    @unbroken  # a handler's exception would be lost here
    def __del__(self) -> None:
        Counts.nodes -= self.nodes

    def find(self, key: CallKey, cells: Sequence[Any]) -> Macro | None:
        """The recording that fits here."""
        trace = local.state.trace
        if self.generation != Counters.evictions:  # what follows the stretches could not be evicted any more
            self.generation = Counters.evictions
            self.roots.clear()
            self._grown(-self.nodes)
        for macro in self.roots.get((key, trace.cur), ()):
            if macro.ready and macro.fits(trace, cells):  # type: ignore[arg-type]
                self.tick = macro.used = self.tick + 1
                return macro
        if trace.cur is root():
            return None
        elsewhere = [m for (known, _), level in self.roots.items() if known == key for m in level if m.ready]
        for macro in sorted(elsewhere, key=lambda m: -m.used)[:VARIANTS]:
            here = recorded_elsewhere(macro, trace, cells)  # type: ignore[arg-type]
            if here is not None and here.fits(trace, cells):  # type: ignore[arg-type]
                self._level((key, here.start)).append(here)
                self._grown(1)
                self.tick = here.used = self.tick + 1
                return here
        if any(m.ready for m in self.roots.get((key, root()), ())) or self.crowded():
            flush("hybridize")
            record_from_here(local.state, "hybridize")
            return self.find(key, cells)
        return None

    def _level(self, where: tuple[Any, Any]) -> list[Macro]:
        """The recordings of one place; the oldest place is forgotten for a new one if there are too many."""
        level = self.roots.get(where)
        if level is None:
            if len(self.roots) >= MACROS:
                self._grown(-sum(_count(m) for m in self.roots.pop(next(iter(self.roots)))))
            level = self.roots[where] = []
        return level

    def learn(self, key: CallKey, capture: Capture, mark: tuple[Any, ...]) -> bool:
        """Take in a recording; True if its last stretch is used from now on."""
        where = (key, capture.segments[0].start)
        if self.nodes > NODES:
            self._prune()
        level = self._level(where)
        *inner, last = capture.segments
        self.tick += 1
        for macro, branch in zip(inner, capture.keys, strict=True):
            macro.print = macro.fingerprint() if macro.print is None else macro.print
            level = self._merge(level, macro).children.setdefault(branch, [])
        last.print = (last.fingerprint(), mark)
        known = next((m for m in level if m.print == last.print), None)
        if known is None:
            self._merge(level, last)
            return False
        if known.ready:
            return False
        level[level.index(known)] = last
        last.ready, last.used = True, self.tick
        self.strikes = 0
        return True

    def _merge(self, level: list[Macro], macro: Macro) -> Macro:
        """The node of a stretch; a second one like it makes it ready."""
        for known in level:
            if known is macro or known.print == macro.print:
                known.ready, known.used = True, self.tick
                return known
        waiting = [m for m in level if not m.ready]
        if waiting:
            self.strikes += 1
            if self.strikes >= STRIKES:
                self.refused = "records something else at every call"
        ready = [m for m in level if m.ready][1 - VARIANTS :]
        before = sum(_count(m) for m in level)
        level[:] = [*ready, macro]
        macro.used = self.tick
        self._grown(sum(_count(m) for m in level) - before)
        return macro

    def _grown(self, nodes: int) -> None:
        self.nodes += nodes
        Counts.nodes += nodes

    def _prune(self) -> None:
        """Forget the half that was not used for the longest time. What leads to a stretch was used as lately as the stretch itself."""
        ticks: list[int] = []
        stack = [m for level in self.roots.values() for m in level]
        while stack:
            macro = stack.pop()
            ticks.append(macro.used)
            stack += [m for level in macro.children.values() for m in level]
        oldest = sorted(ticks)[len(ticks) // 2]

        def kept(levels: dict[Any, list[Macro]]) -> dict[Any, list[Macro]]:
            found = {key: [m for m in level if m.used > oldest] for key, level in levels.items()}
            return {key: level for key, level in found.items() if level}

        self.roots = kept(self.roots)
        stack = [m for level in self.roots.values() for m in level]
        nodes = 0
        while stack:
            macro = stack.pop()
            nodes += 1
            macro.children = kept(macro.children)
            stack += [m for level in macro.children.values() for m in level]
        self._grown(nodes - self.nodes)

    def crowded(self) -> bool:
        """Whether the region was met at so many places, once each, that the trace should start anew before it."""
        if len(self.roots) < TREES:
            return False
        waiting = [level for level in self.roots.values() if not any(m.ready for m in level)]
        return len(waiting) >= PLACES or sum(any(m.test is not None for m in level) for level in waiting) >= TREES


def _count(macro: Macro) -> int:
    found, stack = 0, [macro]
    while stack:
        found += 1
        stack += [m for level in stack.pop().children.values() for m in level]
    return found


class Region:
    """A function from storages to tensors without any other effect: the gradient of a hybridized call."""

    def __init__(self) -> None:
        self.memory = CallMemory()

    def run(self, key: CallKey, cells: list[Any], function: Callable[[], list[Any]]) -> list[Any]:
        """Tensors (or None) that `function` returns, from a recording if there is one."""
        state = local.state
        if state.capture is not None:  # whoever watches wants to see it done
            return function()
        record_from_here(state, "hybridize")
        memory = self.memory
        macro = memory.find(key, cells)
        if macro is not None:
            replayed = self._replayed(macro, cells)
            if replayed is not None:
                return replayed
        if memory.refused:
            return function()
        capture = Capture(cells, closed=False, tree=True, looks=False)
        result = capture.watch(function)
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
        memory.learn(key, capture, tuple(places))
        capture.release()
        return result

    def _replayed(self, macro: Macro, cells: list[Any]) -> list[Any] | None:
        """The results of a replay. None if it came to a place where no recording fits; the values it has made are forgotten then."""
        if macro.result is None or macro.fresh:  # values move between devices
            walk = Walk(cells, True)
            last = walk.go(macro, self.memory)
            if last is None:
                return None
            created = [walk.cells[k] for k in last.kept or ()]
        else:
            known: list[Any] = []
            macro.define(known, [])
            created, last = macro.replay(local.state.trace, cells, known), macro
        Counts.replays += 1
        if last.end.boundary:
            flush(BOUND)
        return [None if place is None else handle(place, created, cells) for place in last.result]
