"""How members of a group add up large arrays on one machine: each writes a piece where all can read it, and each combines what is there.

MPI, which does not know that everybody may read everything, copies twice as much (`Allreduce` of MPICH 5.0).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from calque.distributed.group import PIECE, Array

MOST = 4  # members; with more, what each of them reads is more than MPI copies


class Board:
    """Memory that all members of a group have. Two pieces take turns: whoever writes to the first again knows by what was said about the second that
    all have read the first. `together(k)` waits until all members have said `k`."""

    def __init__(self, MPI: Any, comm: Any, together: Callable[[int], None]) -> None:
        self._window = MPI.Win.Allocate_shared(2 * PIECE, 1, comm=comm)
        self._window.Lock_all()
        self.together, self._place = together, comm.rank
        found = [np.frombuffer(self._window.Shared_query(rank)[0], np.uint8) for rank in range(comm.size)]
        self._sides = [[memory[side * PIECE : (side + 1) * PIECE] for memory in found] for side in (0, 1)]
        self._count = 0

    def combine(self, write: Callable[[Array, int], None], target: Array, function: Any) -> None:
        """`target` becomes what a function of NumPy's makes of the flat arrays of all members, in their order. `write(into, at)`: writes this one's,
        from element `at` on."""
        step = PIECE // target.itemsize
        with np.errstate(all="ignore"):
            for at in range(0, target.size, step):
                self._piece(write, at, target[at : at + step], function)

    def _piece(self, write: Callable[[Array, int], None], at: int, found: Array, function: Any) -> None:
        side, self._count = self._sides[self._count % 2], self._count + 1
        rows = [memory[: found.nbytes].view(found.dtype) for memory in side]
        write(rows[self._place], at)
        self._window.Sync()
        self.together(self._count)
        self._window.Sync()
        function(rows[0], rows[1], found)
        for row in rows[2:]:
            function(found, row, found)

    def free(self) -> None:
        """Give the memory back. All members call this."""
        self._sides = []
        self._window.Unlock_all()
        self._window.Free()
