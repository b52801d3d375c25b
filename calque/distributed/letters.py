"""How members of a small group meet over MPI: each writes one message to each other, a word and the data that comes along.

Places for messages are as long as the longest one may be, so members that come with different words and data are told apart by reading: nothing is
cut off, and nobody waits in vain. Requests are persistent: MPI looks at buffers once, not in every call.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from calque.base.cache import LEAST, Table, register
from calque.distributed.group import PAYLOAD_BYTES, Array, Differ, Payload

TAG = 8
HEAD = 64  # bytes before the data: a word, and how much each brings
ROUTE_BYTES = 1500  # of the way of a payload that is remembered, by estimate


class _Route:
    """How a payload travels. `rows`: where the data of each member lies; requests of this member with its data (`long`) and without (`short`)."""

    __slots__ = ("nbytes", "rows", "short", "long")

    def __init__(self, nbytes: int, rows: list[Array] | None, short: list[Any], long: list[Any]) -> None:
        self.nbytes, self.rows, self.short, self.long = nbytes, rows, short, long


class Letters:
    """A `Meeting` that is held again and again. `comm`: of nobody else, as users choose tags of their own."""

    def __init__(self, MPI: Any, comm: Any) -> None:
        self._MPI, self.comm, self._place = MPI, comm, comm.rank
        self._others = [k for k in range(comm.size) if k != comm.rank]
        self._places = np.zeros((comm.size, HEAD + PAYLOAD_BYTES // len(self._others)), np.uint8)  # messages of the others, and what is sent
        heads = [row[:16].data.cast("q") for row in self._places]
        self._head, self._heads = heads[self._place], [heads[k] for k in self._others]
        self._receives = [comm.Recv_init([self._places[k], MPI.BYTE], k, TAG) for k in self._others]
        self._routes: dict[Payload | None, _Route] = {}
        self._route: _Route
        self._pending: list[Any] = []
        LETTERS.append(self)

    def kept(self) -> int:
        """Number of payloads whose way is remembered."""
        return len(self._routes)

    def begin(self, word: int, payload: Payload | None, own: Array | None) -> "Letters":
        """Write to the others."""
        route = self._routes.get(payload)
        if route is None:
            route = self._found(payload)
        self._route, head = route, self._head
        head[0], head[1] = word, route.nbytes
        if own is None:
            self._pending = pending = route.short.copy()
        else:
            route.rows[self._place][:] = own  # type: ignore[index]
            self._pending = pending = route.long.copy()
        for request in pending:
            request.Start()
        return self

    def _found(self, payload: Payload | None) -> "_Route":
        """The way of a payload."""
        if (len(self._routes) + 1) * ROUTE_BYTES * len(LETTERS) > _TABLE.limit() and len(self._routes) >= LEAST:  # each group has its part
            self._forget()
        short = [*self._sends(HEAD), *self._receives]
        if payload is None:
            found = _Route(0, None, short, short)
        else:
            rows = [row[HEAD : HEAD + payload.nbytes].view(payload.dtype) for row in self._places]
            found = _Route(payload.nbytes, rows, short, [*self._sends(HEAD + payload.nbytes), *self._receives])
        self._routes[payload] = found
        return found

    def _sends(self, length: int) -> list[Any]:
        """Requests that send so many bytes."""
        message = [self._places[self._place][:length], self._MPI.BYTE]
        return [self.comm.Send_init(message, k, TAG) for k in self._others]

    def _forget(self) -> None:
        """Let go of all ways."""
        for route in self._routes.values():
            for request in {id(r): r for r in (*route.short, *route.long) if r not in self._receives}.values():
                request.Free()
        self._routes.clear()

    def free(self) -> None:
        """Give the requests back."""
        LETTERS.remove(self)
        self._forget()
        for request in self._receives:
            request.Free()

    def done(self) -> bool:
        """See `Meeting`."""
        pending = self._pending
        while pending:
            if not pending[-1].Test():
                return False
            del pending[-1]
        return True

    def brought(self) -> list[Array] | None:
        """See `Meeting`."""
        word, nbytes = self._head
        for head in self._heads:
            if head[0] != word or head[1] != nbytes:
                raise Differ
        return self._route.rows


LETTERS: list[Letters] = []  # of all groups that are in use


def _measured() -> tuple[int, int]:
    count = sum(letters.kept() for letters in LETTERS)
    return count, count * ROUTE_BYTES


_TABLE = register("ways of small messages", Table(1 / 1024, _measured))
