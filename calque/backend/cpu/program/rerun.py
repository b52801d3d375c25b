"""Running a program again and again in memory that stays, see `Executable.again`: nothing is allocated but what is temporary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from sys import getrefcount
from typing import Any

import numpy as np

from calque.backend.cpu.team.memory import poison
from calque.backend.cpu.team.place import HERE
from calque.backend.cpu.team.team import TEAM
from calque.base.config import settings


class Rerun:
    """What runs it. `words`: what its runs use of the executable, theirs alone. `alone`: they keep the interpreter's lock. `brief`: see
    `Runtime.run`. Results alternate between two arrays of their own as long as nobody has the one that is due. `arena`: bytes that every run
    borrows from the pool.
    """

    def __init__(self, words: Any, results: Sequence[tuple[int, Any]], alone: bool, brief: bool, arena: int) -> None:
        self.words, self._alone, self._brief, self._arena = words, alone, brief, arena
        self.step = words.call
        self._kinds = results
        self._spare = [[_fresh(*kind), _fresh(*kind)] for kind in results]

    def results(self) -> list[Any]:
        """The arrays that the next run fills: nobody else has them."""
        found = []
        for kind, spare in zip(self._kinds, self._spare, strict=True):
            array = spare[0]
            if getrefcount(array) > 3:  # the list, the variable, the argument
                other = spare[1]
                if getrefcount(other) > 3:
                    other = _fresh(*kind)
                spare[:] = (other, array)
                array = other
            found.append(array)
            if settings.poison:
                poison(array)
        return found

    def run(self, call: Callable[..., Any], arguments: tuple[Any, ...], scalars: list[Any], results: list[Any]) -> bool:
        """What `call(arguments, scalars, arrays)` says: whether `step` has run, on the arguments' arrays and these."""
        given, arena = results, self.words.arena
        if self._arena:
            given = [*results, HERE.pool.arena(self._arena)]
        elif arena is not None:
            given = [*results, arena]
            if settings.poison:
                poison(arena)
        if self._alone:
            return call(arguments, scalars, given) is True
        return TEAM.runtime.step(call, self.words.request, False, self._brief, arguments, scalars, given) is True


def _fresh(count: int, dtype: np.dtype[Any]) -> Any:
    return HERE.pool.empty(count, dtype)
