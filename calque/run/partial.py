"""Which values of a program are there before it has ended (see `backend.base.Progress`)."""

from __future__ import annotations

from typing import Any

from calque.run.buffer import Buffer


class Partial:
    """The buffers of a task that are filled long before it ends. They are known by their addresses: the task keeps them as long as it runs."""

    __slots__ = ("_progress", "_numbers")

    def __init__(self, progress: Any, outputs: list[Buffer]) -> None:
        self._progress = progress
        self._numbers = {id(outputs[k]): k for k in progress.soon}

    def value(self, buffer: Buffer) -> Any:
        """Block until the value of a buffer is there, and return its array; None if it has to be waited for until the task has run."""
        number = self._numbers.get(id(buffer))
        return None if number is None else self._progress.wait(number)

    def over(self) -> None:
        """The task has run."""
        self._progress.over()
