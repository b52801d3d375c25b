"""The back-end `mpi`: collectives of any MPI that mpi4py was built for or finds (the wheels of MPICH by default)."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from calque.base.config import job_variables
from calque.base.errors import DistributedError
from calque.base.extras import need
from calque.distributed.board import MOST, Board
from calque.distributed.group import FUNCTIONS, PAYLOAD_BYTES, Array, Differ, Meeting, Near, Payload, ProcessGroup, ReduceOp, soon
from calque.distributed.letters import LETTERS, Letters
from calque.distributed.shelf import shelf_of
from calque.distributed.watch import WATCH

CONTROL_TAG = 7
_SHARED = "/dev/shm/mpich_shm_"
CORES = 4096  # of a machine
LONGEST_MESSAGE = 1 << 14  # bytes, beside the collectives
PIECE = 4 << 20  # bytes that are combined at a time: MPI makes a copy of them, which stays in the cache then, and in memory that it has already
DIRECT = 8  # members of a group, up to which each writes to each other when they meet


def require(what: str) -> None:
    """Raise if mpi4py is not installed; MPI is not started."""
    package = need("mpi4py", "mpi4py", "mpi", what)
    package.rc.finalize = False  # MPI_Finalize waits for the others, which may wait for this rank
    package.rc.thread_level = "multiple"


def begun() -> bool:
    """Whether somebody has started MPI in this process."""
    MPI: Any = sys.modules.get("mpi4py.MPI")
    return MPI is not None and bool(MPI.Is_initialized())


def require_own_mpiexec(what: str, place: int, size: int) -> None:
    """Raise if Open MPI has started this process and the environment has MPICH, which would end it with an error of its own as soon as it begins."""
    if "OMPI_COMM_WORLD_RANK" in job_variables() and not begun() and _installed("mpich") and not _installed("openmpi"):
        raise DistributedError(
            f"[{what}] expected rank {place} of {size} processes that the mpiexec of MPICH has started, as this environment has the package mpich, "
            f"got one that Open MPI has started; use calque launch, or the mpiexec in {Path(sys.executable).parent}"
        )


def _installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def load(what: str) -> Any:
    """The module `mpi4py.MPI`, which starts MPI at its first import."""
    MPI = _loaded(what)
    if MPI.Query_thread() != MPI.THREAD_MULTIPLE:
        raise DistributedError(
            f"[{what}] expected an MPI that serves several threads (MPI_THREAD_MULTIPLE), got level {MPI.Query_thread()} from "
            f"{MPI.Get_library_version().splitlines()[0]}; import calque before mpi4py.MPI, or run: pip install mpich"
        )
    return MPI


def _loaded(what: str) -> Any:
    try:
        return need("mpi4py.MPI", "mpich", "mpi", what)
    except RuntimeError as error:  # mpi4py is there, and no library of MPI
        raise DistributedError(f"[{what}] needs a library of MPI beside mpi4py, and found none ({error}); run: pip install mpich") from error


def forget_files(comm: Any) -> None:
    """Once all processes have mapped the memory through which those of one machine speak, it needs no name: so nothing is left of it in
    /dev/shm, however they end. All of them call this."""
    comm.Barrier()
    forget(files_of("self"))


def files_of(process: int | str) -> set[str]:
    """The names of such memory that a process has mapped; without those that are forgotten already."""
    try:
        lines = Path(f"/proc/{process}/maps").read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return set()
    return {line.split()[-1] for line in lines if _SHARED in line and not line.endswith("(deleted)")}


def forget(files: set[str]) -> None:
    """Take the names away."""
    for path in files:
        with contextlib.suppress(OSError):  # another process was quicker
            os.unlink(path)


def neighbours(MPI: Any, comm: Any) -> Near:
    """The ranks near this process. All of them call this."""
    here = comm.Split_type(MPI.COMM_TYPE_SHARED)
    own = np.zeros(CORES + 3, np.int64)
    own[CORES:] = comm.rank, os.getpid(), _room()
    cores = list(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    own[[core for core in cores if core < CORES]] = 1
    if not cores:
        own[:CORES] = 1
    everybodys = np.zeros((here.size, own.size), np.int64)
    here.Allgather(own, everybodys)
    here.Free()
    cores_of_mine = frozenset(int(row[CORES]) for row in everybodys if (row[:CORES] & own[:CORES]).any())
    processes = {int(row[CORES]): int(row[CORES + 1]) for row in everybodys if row[CORES + 2] == own[-1] and row[CORES] != comm.rank}
    return Near(frozenset(int(row[CORES]) for row in everybodys), cores_of_mine, processes)


def _room() -> int:
    """In which numbers of processes mean what they do here: that of a container, for instance."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return -os.getpid()  # of nobody else


_BOARDS: dict[int, Board] = {}  # by numbers of the job and of the group, which are the same everywhere
_IDLE: dict[tuple[int, ...], dict[int, Board]] = {}  # those of groups that are closed, by the ranks of the group
OFFERED = 8  # of these, that a member names when the next group of the same ranks wants one
_OF_FLOATS: dict[tuple[ReduceOp, Any], Any] = {}  # operations of MPI that know of NaN


def finalize(MPI: Any) -> None:
    """End MPI, which wants its requests back."""
    for letters in list(LETTERS):
        letters.free()
    for op in _OF_FLOATS.values():
        op.Free()
    for _, board in sorted(_BOARDS.items()):  # all processes in one order, as each waits for the others
        board.free()
    MPI.Finalize()


class _Request:
    """A `Pending` over a request of MPI."""

    __slots__ = ("_request", "_status", "_kept", "_byte")

    def __init__(self, request: Any, kept: Any, status: Any = None, byte: Any = None) -> None:
        self._request, self._status, self._kept, self._byte = request, status, kept, byte

    def done(self) -> bool:
        """See `Pending`."""
        return bool(self._request.Test(self._status) if self._status is not None else self._request.Test())

    def source(self) -> int:
        """Rank in the group of who has sent what was received."""
        return int(self._status.Get_source())

    def count(self) -> int:
        """Bytes that were received."""
        return int(self._status.Get_count(self._byte))


class _Agreement(_Request):
    """A `Meeting` of many: the greatest of all words and of their negatives."""

    __slots__ = ()

    def brought(self) -> None:
        """See `Meeting`."""
        if self._kept[0] != -self._kept[1]:
            raise Differ


class MpiGroup(ProcessGroup):
    """A communicator of its own."""

    name = "mpi"
    jobs = 0  # that this process has joined, one after the other

    def __init__(
        self, MPI: Any, comm: Any, ranks: tuple[int, ...], own: int, number: int, timeout: float, checks: bool, near: Near
    ) -> None:
        super().__init__(ranks, own, number, timeout, checks, near)
        self.MPI, self.comm = MPI, comm
        self.failures = (MPI.Exception,)
        self._shared: Board | None = None
        self._key = 0  # of it in `_BOARDS`
        if number == 0:
            MpiGroup.jobs += 1
        self._letters = None
        self.shelf = shelf_of(MPI, comm, ranks, near) if 1 < len(ranks) <= DIRECT else None
        if self.shelf is not None:
            self.meet = self.shelf.begin  # type: ignore[method-assign]
        elif 1 < len(ranks) <= DIRECT:
            self._letters = Letters(MPI, comm.Dup())
            self.meet = self._letters.begin  # type: ignore[method-assign]  # one frame less
        self._ops = {
            ReduceOp.SUM: MPI.SUM, ReduceOp.AVG: MPI.SUM, ReduceOp.PRODUCT: MPI.PROD, ReduceOp.MIN: MPI.MIN, ReduceOp.MAX: MPI.MAX,
            ReduceOp.BAND: MPI.BAND, ReduceOp.BOR: MPI.BOR, ReduceOp.BXOR: MPI.BXOR,
        }  # fmt: skip

    def _op(self, op: ReduceOp, dtype: Any) -> Any:
        """What MPI combines with. Its own minimum of a number and NaN is one of the two, whichever comes first, and so another one on each rank."""
        if dtype.kind != "f" or op not in (ReduceOp.MIN, ReduceOp.MAX):
            return self._ops[op]
        found = _OF_FLOATS.get((op, dtype))
        if found is None:
            function = FUNCTIONS[op]

            def combine(given: Any, both: Any, _: Any) -> None:
                into = np.frombuffer(both, dtype)
                function(np.frombuffer(given, dtype), into, into)

            found = _OF_FLOATS[op, dtype] = self.MPI.Op.Create(combine, commute=True)
        return found

    def meet(self, word: int, payload: Payload | None, own: Array | None) -> Meeting:
        """See `ProcessGroup`."""
        words = np.array((word, -word), np.int64)
        return _Agreement(self.comm.Iallreduce(self.MPI.IN_PLACE, words, self.MPI.MAX), words)

    def tell(self, own: Array, everybodys: Array) -> _Request:
        """See `ProcessGroup`."""
        return _Request(self.comm.Iallgather(own, everybodys), (own, everybodys))

    def all_reduce(self, source: Array, target: Array, op: ReduceOp) -> None:
        """See `ProcessGroup`."""
        if self._at_the_board(source):
            self._board().combine(lambda into, at: np.copyto(into, source[at : at + into.size]), target, FUNCTIONS[op])
            self._average(target, op)
            return
        step = max(PIECE // target.itemsize, 1)
        for at in range(0, source.size, step):
            piece = target[at : at + step]
            self.comm.Allreduce(self.MPI.IN_PLACE if source is target else source[at : at + step], piece, self._op(op, piece.dtype))
            self._average(piece, op)

    def add_up(self, write: Callable[[Array, int], None], target: Array) -> None:
        """See `ProcessGroup`."""
        if self._at_the_board(target):
            self._board().combine(write, target, np.add)
        else:
            super().add_up(write, target)

    def _at_the_board(self, array: Array) -> bool:
        """Whether members combine such arrays in memory that all of them have."""
        return self.size() <= MOST and array.nbytes > PAYLOAD_BYTES and self.near.machine.issuperset(self.ranks) and self.several

    def _board(self) -> Board:
        """The memory that all members have. All of them call this."""
        if self._shared is None:
            self._shared = self._taken_over()
        if self._shared is None:
            self._key = MpiGroup.jobs << 32 | self.number
            self._shared = _BOARDS[self._key] = Board(self.MPI, self.comm, self._together)
            forget_files(self.comm)
        return self._shared

    def _taken_over(self) -> Board | None:
        """The memory of a group of the same ranks that all of them have closed: giving it back would take all of them at one time."""
        idle = _IDLE.get(self.ranks, {})
        own, everybodys = np.full(OFFERED, -1, np.int64), np.empty((self.size(), OFFERED), np.int64)
        offered = sorted(idle)[:OFFERED]
        own[: len(offered)] = offered
        self.comm.Allgather(own, everybodys)
        key = min(set[int].intersection(*map(set, everybodys.tolist())) - {-1}, default=None)
        if key is None:
            return None
        self._key = key
        found = idle.pop(key)
        found.together = self._together
        return found

    def close(self) -> None:
        """See `ProcessGroup`."""
        super().close()
        if WATCH.failed:  # something may be on its way still
            return
        if self._letters is not None:
            self._letters.free()
            self._letters.comm.Free()
        if self._shared is not None:
            _IDLE.setdefault(self.ranks, {})[self._key] = self._shared
        if self.number:
            self.comm.Free()

    def _together(self, number: int) -> None:
        """Wait until all members have come to a piece of the call that is on its way."""
        meeting, call = self.meet(number, None, None), self.moving
        assert call is not None
        if not soon(meeting):
            self.wait(meeting, call)
        meeting.brought()

    def reduce(self, source: Array, target: Array, op: ReduceOp, root: int) -> None:
        """See `ProcessGroup`."""
        if source.size:
            self.comm.Reduce(source, target, self._op(op, source.dtype), root)
            if self.place == root:
                self._average(target, op)

    def reduce_scatter(self, source: Array, target: Array, op: ReduceOp) -> None:
        """See `ProcessGroup`."""
        if source.size:
            self.comm.Reduce_scatter_block(source, target, self._op(op, source.dtype))
            self._average(target, op)

    def _average(self, target: Array, op: ReduceOp) -> None:
        if op is ReduceOp.AVG:
            np.divide(target, self.size(), out=target)

    def broadcast(self, array: Array, root: int) -> None:
        """See `ProcessGroup`."""
        if array.size:
            self.comm.Bcast(array, root)

    def all_gather(self, source: Array, target: Array) -> None:
        """See `ProcessGroup`."""
        if source.size:
            self.comm.Allgather(source, target)

    def gather(self, source: Array, target: Array | None, root: int) -> None:
        """See `ProcessGroup`."""
        if source.size:
            self.comm.Gather(source, target, root)

    def scatter(self, source: Array | None, target: Array, root: int) -> None:
        """See `ProcessGroup`."""
        if target.size:
            self.comm.Scatter(source, target, root)

    def all_to_all(self, source: Array, target: Array, sent: list[int], received: list[int]) -> None:
        """See `ProcessGroup`."""
        self.comm.Alltoallv([source, sent], [target, received])

    def send(self, array: Array, peer: int, tag: int) -> _Request:
        """See `ProcessGroup`."""
        return _Request(self.comm.Isend(array, peer, tag), array)

    def receive(self, array: Array, peer: int | None, tag: int) -> _Request:
        """See `ProcessGroup`."""
        MPI = self.MPI
        return _Request(self.comm.Irecv(array, MPI.ANY_SOURCE if peer is None else peer, tag), array, MPI.Status(), MPI.BYTE)

    def part(self, ranks: tuple[int, ...], number: int, timeout: float) -> "MpiGroup":
        """See `ProcessGroup`."""
        members = self.comm.group.Incl([self.ranks.index(rank) for rank in ranks])
        return MpiGroup(self.MPI, self.comm.Create_group(members, number), ranks, self.own, number, timeout, self.checks, self.near)


class MpiWire:
    """Messages beside the collectives, in a communicator of their own."""

    def __init__(self, MPI: Any, comm: Any) -> None:
        self._MPI, self._comm = MPI, comm
        self._sent: list[tuple[Any, bytes]] = []

    def send(self, rank: int, message: bytes) -> None:
        """See `Wire`."""
        self._sent = [entry for entry in self._sent if not entry[0].Test()]
        self._sent.append((self._comm.Isend([message, self._MPI.BYTE], rank, CONTROL_TAG), message))

    def poll(self) -> list[tuple[int, bytes]]:
        """See `Wire`."""
        found, status = [], self._MPI.Status()
        while self._comm.Iprobe(self._MPI.ANY_SOURCE, CONTROL_TAG, status):
            buffer = bytearray(min(status.Get_count(self._MPI.BYTE), LONGEST_MESSAGE))
            self._comm.Recv([buffer, self._MPI.BYTE], status.Get_source(), CONTROL_TAG)
            found.append((status.Get_source(), bytes(buffer)))
        return found
