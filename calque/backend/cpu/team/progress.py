"""Results that are there before their program has ended.

A schedule says which launch is the last that writes the memory of a result. When that has run, and a barrier behind it, the value is complete,
whatever is still to come: nothing else is written there in this run. So a thread that wants it waits for the run to get that far, no longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calque.backend import base
from calque.backend.base import Array
from calque.backend.cpu.team.runtime import native

SOON_WORK = 1 << 22
"""Work (see `link.py`) that must follow a result: a millisecond of one thread. Only then is a queue, whose two wake-ups take 0.1 ms, worth what
it hides."""
NAP = 50_000_000  # nanoseconds after which a thread that waits lets Python look for Ctrl-C that another thread has got
_NOT_BEGUN = 1 << 62


class LaunchProgress(base.Progress):
    """Of one run. `limits[k]`: launches that may be left when result k is there."""

    __slots__ = ("results", "soon", "address", "_limits", "_words")

    def __init__(self, soon: Sequence[int], limits: Sequence[int]) -> None:
        self.soon = soon
        self.results: Sequence[Any] | None = None
        self._limits = limits
        self._words = np.array([_NOT_BEGUN, -1, 0], np.int64)
        self.address = int(self._words.ctypes.data)

    def wait(self, number: int) -> Array | None:
        """See `backend.base.Progress.wait`."""
        look, limit = native().wait, self._limits[number]
        while not look(self.address, limit, NAP):
            pass
        results = self.results
        return None if results is None else results[number]

    def over(self) -> None:
        """See `backend.base.Progress.over`."""
        if self._words[0]:  # it did not run, or not in one piece
            self.results = None
            native().tell(self.address, 0)


def limits_of(ready: Sequence[tuple[int, int]], launches: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Numbers of the results that are there long before the end, and for every result the launches that may be left then."""
    return tuple([k for k, (_, work) in enumerate(ready) if work >= SOON_WORK]), tuple([launches - done for done, _ in ready])
