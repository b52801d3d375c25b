"""Bytes of the values of one device, for devices that do not count themselves: XLA's CPU client."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any

from calque.backend.base import MemoryStats


class _Entry(weakref.ref[Any]):
    """A value that is alive."""

    __slots__ = ("key", "nbytes")
    key: int
    nbytes: int


class Ledger:
    """Every value is entered when it is made, and struck out when nobody has it any more or its memory is given to another one."""

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}
        self._gone: deque[_Entry] = deque()  # not struck out yet: the collector may free values at any place, also inside of `enter`
        self._lock = threading.Lock()
        self._in_use = self._peak = 0
        self.limit = 0
        """Bytes that values and programs may take; 0: what there is."""

    def excess(self, nbytes: int) -> int:
        """How far `nbytes` more would go beyond the limit."""
        if not self.limit:
            return 0
        with self._lock:
            self._settle()
            return max(0, self._in_use + nbytes - self.limit)

    def enter(self, values: Iterable[Any], beside: int = 0, given: Iterable[Any] = (), sizes: Iterable[int] | None = None) -> None:
        """Count new values. `beside`: bytes that the program which makes them needs while it runs; `given`: values whose memory it takes over;
        `sizes`: bytes of each that lie here, if that is not all of it."""
        gone = self._gone.append
        with self._lock:
            for value in given:
                self._strike(self._entries.get(id(value)))
            made = list(values)
            for value, nbytes in zip(made, [v.nbytes for v in made] if sizes is None else sizes, strict=True):
                entry = _Entry(value, gone)
                entry.key, entry.nbytes = id(value), nbytes
                self._settle()
                self._entries[entry.key] = entry
                self._in_use += entry.nbytes
            self._peak = max(self._peak, self._in_use + beside)

    def _strike(self, entry: _Entry | None) -> None:
        if entry is not None and self._entries.get(entry.key) is entry:
            del self._entries[entry.key]
            self._in_use -= entry.nbytes

    def _settle(self) -> None:
        while self._gone:
            self._strike(self._gone.popleft())

    def stats(self, anew: bool = False) -> MemoryStats:
        """What is in use and the most that was; `anew`: the peak starts again from what is in use."""
        with self._lock:
            self._settle()
            if anew:
                self._peak = self._in_use
            return MemoryStats(self._in_use, self._peak, 0)
