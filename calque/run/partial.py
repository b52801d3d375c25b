"""Which values of a program are there before it has ended (see `backend.base.Progress`), and whether it is worth leaving then.

While kernels use all cores, a thread that leaves takes one of them: the kernel thread that loses it is away for a tick of the operating system, and
the others wait for it. That costs as much as some milliseconds of Python hide. So with threads on all cores a reader leaves only if it has stayed
away for longer than that after its last reads of such values; before that it waits for the whole program. Results do not depend on it.
"""

from __future__ import annotations

from threading import get_ident
from typing import Any

import numpy as np

from calque.backend.base import Progress, Waits
from calque.base.config import available_cores, settings
from calque.observe import events
from calque.run.buffer import Buffer
from calque.run.engine import Fillable

AWAY = 4e-3  # seconds between a read and the next start of a program
TIMES = 3  # times in a row that make a habit


class Absence:
    """How often in a row somebody has stayed away for long after a read of values of one program."""

    __slots__ = ("times",)

    def __init__(self) -> None:
        self.times = 0

    def long(self) -> bool:
        """Whether what somebody does after a read is worth letting him go: there are cores for him, or it takes long."""
        return self.times >= TIMES or settings.threads < available_cores()


class _Left:
    """Who has read last, and when; None once the next program has started."""

    absence: Absence | None = None
    since = 0.0


LEFT = _Left()


def back() -> None:
    """A program starts for the first time since a read."""
    absence, LEFT.absence = LEFT.absence, None
    if absence is not None:
        absence.times = absence.times + 1 if events.clock() - LEFT.since >= AWAY else 0


class Partial:
    """The buffers of a task that are filled long before it ends. They are known by their addresses: the task keeps them as long as it runs."""

    __slots__ = ("_progress", "_numbers", "_absence")

    def __init__(self, progress: Progress, outputs: list[Buffer], absence: Absence) -> None:
        self._progress, self._absence = progress, absence
        self._numbers = {id(outputs[k]): k for k in progress.soon}

    def read(self, buffer: Fillable) -> np.ndarray[Any, Any]:
        """The array of a buffer, once its value is there."""
        number = self._numbers.get(id(buffer))
        if number is None:
            return buffer.wait()
        found = self._awaited(number) if self._absence.long() else None
        if found is None:
            found = buffer.wait()
        LEFT.since, LEFT.absence = events.clock(), self._absence
        return found

    def early(self, buffer: Fillable) -> np.ndarray[Any, Any] | None:
        """The same for a thread whose absence nobody feels; None if the value is there at the end of the task alone."""
        number = self._numbers.get(id(buffer))
        return None if number is None else self._awaited(number)

    def _awaited(self, number: int) -> Any:
        with Waits(get_ident()):
            return self._progress.wait(number)

    def over(self) -> None:
        """The task has run."""
        self._progress.over()
