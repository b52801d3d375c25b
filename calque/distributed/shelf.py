"""Where the members of a small group on one machine meet: memory that all of them see, in which each writes what it brings (`native/shelf.c`).

The twin of what is compiled, and the way of everybody else, are the messages of `letters.py`.
"""

from __future__ import annotations

import mmap
import os
import secrets
from typing import Any

import numpy as np

from calque.base.native import hot
from calque.distributed.exchange import QUEUES
from calque.distributed.group import PAYLOAD_BYTES, SPIN, Array, Differ, Near, Payload
from calque.distributed.record import DONE, WAITING, Call
from calque.distributed.watch import WATCH

HEAD = 64  # bytes of a place before its data
TOKEN = 16  # bytes by which members see that they have the same memory

if hot is not None:
    hot.set_shelf(Call, WATCH, QUEUES, WAITING, DONE, SPIN)


def shelf_of(MPI: Any, comm: Any, ranks: tuple[int, ...], near: Near) -> Any:
    """The shelf of a group, or None where members do not see each other's memory. All members call this, and get the same answer."""
    size = comm.size
    stride = -(-(HEAD + PAYLOAD_BYTES // (size - 1)) // 64) * 64
    memory = _shared(comm, 2 * size * stride, near.processes.get(ranks[0], 0))
    well = np.array([memory is not None and hot is not None], np.int64)
    comm.Allreduce(MPI.IN_PLACE, well, MPI.MIN)
    if not well[0] or memory is None:
        return None
    whole = np.frombuffer(memory, np.uint8)
    if comm.rank == 0:
        whole[:TOKEN] = 0  # numbers of meetings begin with 0
    comm.Barrier()

    def rows(payload: Payload) -> tuple[list[Array], list[Array]]:
        found = [
            [whole[at + HEAD : at + HEAD + payload.nbytes].view(payload.dtype) for at in range(side * stride, whole.size, 2 * stride)]
            for side in (0, 1)
        ]
        return found[0], found[1]

    return hot.Shelf(memory, size, comm.rank, stride, Differ, rows)


def _shared(comm: Any, nbytes: int, first: int) -> mmap.mmap | None:
    """Memory that has no name, so that nothing is left of it however processes end; None where this process cannot see it. `first`: the process of
    the member that makes it."""
    said = np.zeros(8 + TOKEN, np.uint8)
    handle, memory = -1, None
    try:
        if comm.rank == 0:
            handle = os.memfd_create("calque-shelf", os.MFD_CLOEXEC)
            os.ftruncate(handle, nbytes)
            memory = mmap.mmap(handle, nbytes)
            memory[:TOKEN] = secrets.token_bytes(TOKEN)
            said[8:] = np.frombuffer(memory[:TOKEN], np.uint8)
    except (OSError, AttributeError):  # no such memory on this system
        memory = None
    said[:8].view(np.int64)[0] = handle
    comm.Bcast(said, 0)
    try:
        if comm.rank:
            theirs = os.open(f"/proc/{first}/fd/{said[:8].view(np.int64)[0]}", os.O_RDWR | os.O_CLOEXEC)
            try:
                memory = mmap.mmap(theirs, nbytes)
            finally:
                os.close(theirs)
            memory = memory if memory[:TOKEN] == said[8:].tobytes() else None
    except (OSError, ValueError):  # another container, or another user
        memory = None
    comm.Barrier()
    if handle >= 0:
        os.close(handle)
    return memory
