"""Weights that a program is given again and again, laid out once as its kernels read them.

Contractions pack their weights at every call (`Executable.prepacked`). A program that has been given the same values AFTER times in a row
keeps what was packed, and its runs leave that out: inference and evaluation, but no training step, which writes to its weights. As long as it does so
it refers to the buffers. Whoever wants to overwrite a value that somebody else refers to writes elsewhere, so what was packed stays right without
being compared with anything. A training step behind an evaluation gets its memory back (`let_go`), and so does whoever comes when a model is gone
(`release_unused`).
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from copy import copy
from sys import getrefcount
from typing import Any

from calque.backend.base import SPARED
from calque.run.buffer import Buffer

AFTER = 4  # runs with the same weights, before these are packed: some of what is run a few times is never run again
WASTED = 8  # runs in which prepacking has earned what it cost; weights that are written to earlier have to stay the same for longer the next time
CHANGES = 64  # times that other weights came before as many runs as that, after which nobody looks any more


class Counters:
    """How often weights were packed and let go in this process."""

    packed = released = 0


class Prepacking:
    """What one program keeps packed. `places`: of the weights among its inputs; `make`: what makes a form of the program from their arrays."""

    __slots__ = ("places", "make", "held", "form", "_seen", "_runs", "_after", "_changes", "_used", "__weakref__")

    def __init__(self, places: Sequence[int], make: Callable[[dict[int, Any]], Any]) -> None:
        self.places, self.make = tuple(places), make
        self.held: list[Buffer] = []
        self.form: Any = None  # with the weights that are held; None if there are none
        self._seen: list[tuple[int, int]] = []
        self._runs = self._changes = self._used = 0
        self._after = AFTER

    def of(self, inputs: Sequence[Buffer], now: bool = False) -> Any:
        """The form that has these weights packed; None if there is none, or somebody outside may write to them. `now`: they will stay as they are."""
        given = [inputs[k] for k in self.places]
        form = self.form
        if form is not None:
            if given == self.held and not _shown(given):
                self._used += 1
                return form
            self.release()
        if self._changes > CHANGES and not now:
            return None
        seen = [(id(b), b.made) for b in given]
        if seen != self._seen:
            self._seen, self._runs, self._changes = seen, 0, self._changes + 1
        self._runs += 1
        return self._packed(given) if now or self._runs > self._after else None

    def _packed(self, given: list[Buffer]) -> Any:
        if _shown(given) or any(b.array is None or (b.task is not None and not b.task.done) for b in given):
            return None
        release_unused()
        try:
            form = self.make({k: b.array for k, b in zip(self.places, given, strict=True)})
        except MemoryError:  # it runs without, as before
            self._changes = CHANGES + 1
            return None
        with _LOCK:
            self.release()  # another thread may have packed the same meanwhile, and nobody would tell who runs that when it no longer holds
            self.held, self.form, self._used, self._changes = given, form, 0, 0
            _HOLDING.add(self)
            _note()
        Counters.packed += 1
        return form

    def release(self) -> None:
        """Refer to no weights any more."""
        with _LOCK:
            form, self.form, self.held = self.form, None, []
            _HOLDING.discard(self)
            _note()
        if form is not None:
            form.executable.outdated = True
            self._runs, self._seen = 0, []
            Counters.released += 1
            if self._used < WASTED:
                self._after *= 2


def _shown(buffers: list[Buffer]) -> bool:
    """Whether NumPy or another library has one of them, who may write there unseen."""
    for b in buffers:  # a generator takes three times as long, and this is asked at every run
        if b.export is not None or b.owner is not None:
            return True
    return False


_HOLDING: weakref.WeakSet[Prepacking] = weakref.WeakSet()
_BUFFERS: set[int] = set()
"""The addresses of all buffers that are held; also those of programs that are gone, until the next change."""
_LOCK = threading.RLock()


def _note() -> None:
    _BUFFERS.clear()
    _BUFFERS.update(id(b) for prepacking in list(_HOLDING) for b in prepacking.held)


def let_go(buffer: Buffer) -> bool:
    """Whether a program kept this buffer for what it has packed, which is over: somebody wants to write there."""
    if id(buffer) not in _BUFFERS:  # asked for every value that a step replaces and somebody else has
        return False
    with _LOCK:
        found = [prepacking for prepacking in _HOLDING if any(b is buffer for b in prepacking.held)]
        for prepacking in found:
            prepacking.release()
    return bool(found)


def release_unused() -> None:
    """Let go what nobody else refers to: its model is gone."""
    if not _HOLDING:
        return
    with _LOCK:
        holding = list(_HOLDING)
        times = Counter(id(b) for prepacking in holding for b in prepacking.held)
        for prepacking in holding:
            for b in prepacking.held:
                if getrefcount(b) - 2 <= times[id(b)] + b.pins:  # 2: the variable and the argument
                    prepacking.release()
                    break


def held_bytes() -> int:
    """Bytes of what is packed."""
    with _LOCK:
        return sum([prepacking.form.executable.packed_bytes for prepacking in _HOLDING if prepacking.form is not None])


def release_all() -> None:
    """Memory has run out, or the user wants it back."""
    with _LOCK:
        for prepacking in list(_HOLDING):
            prepacking.release()


SPARED.append(release_all)


def prepacking_of(compiled: Any) -> Prepacking | None:
    """Of a form of a program (`backends.Compiled`, which has it)."""
    executable = compiled.executable
    places = executable.packs
    if not places:
        return None
    owner = weakref.ref(compiled)

    def make(weights: dict[int, Any]) -> Any:
        there = owner()
        assert there is not None, "it has the prepacking, and runs"
        packed = copy(there)
        packed.executable, packed.prepacking = executable.prepacked(weights), None
        return packed

    return Prepacking(places, make)
