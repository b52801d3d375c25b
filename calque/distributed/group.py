"""`ProcessGroup`: processes that communicate, seen from one of them. A back-end moves arrays; everything else is the same for all back-ends.

A call of a group is a `Turn` of two parts. First all members say what they are about to do (`ProcessGroup.meet`), which costs microseconds and is
waited for asleep: so a rank that is missing, or does something else, is an error that names it, not a hang, and a waiting rank leaves its core to
others. Data that is small comes along with that (`Payload`), and each member computes the result by itself; whatever is larger moves then, by one
blocking call of the back-end.
"""

from __future__ import annotations

import enum
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from calque.base.cache import Cache
from calque.base.config import available_cores, settings
from calque.base.errors import DistributedError
from calque.distributed.record import DONE, FAILED, MOVING, WAITING, Call, Kind, kind_of
from calque.distributed.watch import WATCH, reported

Array = np.ndarray[Any, Any]
T = TypeVar("T")
_now = time.time
SPIN = 2e-4  # seconds for which a process that waits keeps its core
LONGEST_PAUSE = 1e-3
TEXT_BYTES = 480  # of the description of a call
PIECE = 1 << 20  # bytes that are written, and sent, at a time
PAYLOAD_BYTES = 1 << 16  # that a member may bring, to all others together
PLANS = Cache("plans of collectives", 4_000, 1 / 1024)  # (group, function, what the plan follows from) -> plan, see `collectives.py`


OPEN: weakref.WeakSet["ProcessGroup"] = weakref.WeakSet()  # groups that are in use


class ReduceOp(enum.Enum):
    """What a reduction does with the values of all ranks. `AVG` is for floating-point and complex values, the `B...` are for integers."""

    SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR = "sum", "avg", "product", "min", "max", "band", "bor", "bxor"
    __hash__ = object.__hash__  # there is one of each; that of names is slow


FUNCTIONS: dict[ReduceOp, Any] = {
    ReduceOp.SUM: np.add, ReduceOp.AVG: np.add, ReduceOp.PRODUCT: np.multiply, ReduceOp.MIN: np.minimum, ReduceOp.MAX: np.maximum,
    ReduceOp.BAND: np.bitwise_and, ReduceOp.BOR: np.bitwise_or, ReduceOp.BXOR: np.bitwise_xor,
}  # fmt: skip
ReduceOp.RedOpType = ReduceOp  # type: ignore[attr-defined]  # PyTorch's name of the class, in annotations


class Pending(Protocol):
    """Something that a back-end has begun."""

    def done(self) -> bool:
        """Whether it is over; never blocks."""


class Meeting(Pending, Protocol):
    """Members that come together."""

    def brought(self) -> list[Array] | None:
        """What they have brought, by member, until the next meeting; None if nothing travels so. It is over. Raises `Differ`."""


class Differ(Exception):
    """Members have come with different words."""


class Payload:
    """Data of a call that is small enough to come along with the members. `count`, `dtype`: of what a member brings. `pack`: that, from flat arrays
    of the sources, or None of a member that brings nothing; `unpack`: new flat arrays of the results, from what all have brought. `function`: of
    NumPy's, if the one result is what it makes of one after the other of what they have brought. `rows`: where that lies (`shelf.py`)."""

    __slots__ = ("count", "dtype", "nbytes", "pack", "unpack", "function", "rows")

    def __init__(
        self, count: int, dtype: np.dtype[Any], pack: Callable[[Sequence[Array]], Array | None], unpack: Callable[[list[Array]], Sequence[Array]],
        function: Any = None,
    ) -> None:  # fmt: skip
        self.function, self.rows = function, None
        self.count, self.dtype, self.nbytes, self.pack, self.unpack = count, dtype, count * dtype.itemsize, pack, unpack

    @staticmethod
    def fits(count: int, dtype: np.dtype[Any], size: int) -> bool:
        """Whether members of a group of that size may bring so much."""
        return count * dtype.itemsize * (size - 1) <= PAYLOAD_BYTES


def soon(pending: Pending) -> bool:
    """Whether what was begun is over in a moment, for which this thread keeps its core."""
    done = pending.done
    until = time.perf_counter() + SPIN
    while not done():
        if time.perf_counter() > until:
            return False
    return True


class Near(NamedTuple):
    """Ranks of the job on the `machine` of this process, and those that compute on `cores` of this process; itself included. `processes`: the numbers
    of those processes on the machine that this one can see, without its own."""

    machine: frozenset[int]
    cores: frozenset[int]
    processes: Mapping[int, int] = MappingProxyType({})


class ProcessGroup(ABC):
    """Some of the processes of a job. `ranks`: theirs in the whole job; a process's rank in the group is its place there. `number`: of the group, the
    same on all members. `timeout`: seconds for which a call waits for its last member. `checks`: whether calls are compared before data moves.
    `near`: which ranks of the job are on this machine. `moving`: the call that moves data now."""

    name = ""
    failures: tuple[type[Exception], ...] = ()  # what the back-end raises

    def __init__(self, ranks: tuple[int, ...], own: int, number: int, timeout: float, checks: bool, near: Near) -> None:
        self.near = near
        self.ranks, self.own, self.number, self.timeout, self.checks = ranks, own, number, timeout, checks
        self.place = ranks.index(own)
        self.calls = self.messages = 0
        self.several = len(ranks) > 1
        self.moving: Call | None = None
        self.shelf: Any = None  # where members of one machine meet, see `shelf.py`
        self.turn = threading.Lock()  # held by the call that is on its way
        self.closed = False
        OPEN.add(self)

    def rank(self) -> int:
        """This process's number in the group."""
        return self.place

    def size(self) -> int:
        """Number of members."""
        return len(self.ranks)

    def require_open(self, op: str) -> None:
        """Raise after `close`."""
        if self.closed:
            raise DistributedError(
                f"[{op}] expected a process group that is in use, got number {self.number}, which destroy_process_group() has ended; make another one"
            )

    def close(self) -> None:
        """Take part in its calls no longer, once all that were asked for are over. Every member does this by itself."""
        self.closed = True
        OPEN.discard(self)
        PLANS.clear()  # those of this group hold it
        WATCH.over(self.number)

    def crowded(self) -> bool:
        """Whether moving data takes cores from what the members compute: all are on this machine, and their threads have all of its cores."""
        return self.near.cores.issuperset(self.ranks) and len(self.near.cores) * settings.threads >= available_cores()

    def __repr__(self) -> str:
        return f"<process group {self.number} of ranks {list(self.ranks)}, back-end {self.name}>"

    def perform(self, op: str, detail: str, line: str, work: Callable[[], T]) -> T:
        """Do something here and now, once all members have come to it."""
        turn = Turn(self, kind_of(op, "", None, detail), lambda _: [work()])
        turn.note(line)
        try:
            return turn([])[0]  # type: ignore[no-any-return]
        except DistributedError as error:
            reported(error)
            raise

    def wait(self, pending: Pending, call: Call) -> None:
        """Until what was begun is over, asleep."""
        pause, deadline = 2e-5, time.monotonic() + self.timeout
        while not pending.done():
            WATCH.look(call, self.ranks, deadline, self.timeout)
            time.sleep(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE)

    def disagreement(self, call: Call) -> DistributedError:
        """The error of a call to which members came with different ones."""
        text = str(call).encode()[:TEXT_BYTES]
        own, all_of_them = np.zeros(TEXT_BYTES, np.uint8), np.zeros((self.size(), TEXT_BYTES), np.uint8)
        own[: len(text)] = np.frombuffer(text, np.uint8)
        self.wait(self.tell(own, all_of_them), call)
        said = [bytes(row).rstrip(b"\0").decode(errors="replace") for row in all_of_them]
        rows = "; ".join(f"rank {rank}: {row}" for rank, row in zip(self.ranks, said, strict=True))
        return WATCH.broken(
            f"[{call.op}] expected the same call on every rank, got different ones as {call.place()}: {rows}; call "
            "collectives in the same order, with the same shapes and dtypes, on every rank"
        )

    # ------------------------------------------------------------------------------------------- what a back-end defines

    @abstractmethod
    def meet(self, word: int, payload: Payload | None, own: Array | None) -> Meeting:
        """Begin to tell the other members a word, and what this one brings of the payload. Members may come with different words and payloads."""

    @abstractmethod
    def tell(self, own: Array, everybodys: Array) -> Pending:
        """Begin to gather the bytes of all members, without any check."""

    @abstractmethod
    def all_reduce(self, source: Array, target: Array, op: ReduceOp) -> None:
        """Combine the arrays of all members; every one gets the result."""

    def add_up(self, write: Callable[[Array, int], None], target: Array) -> None:
        """`target` becomes the sum of what each member writes, piece by piece, so that it is in the cache when it is sent: `write(into, at)` writes
        from element `at` on."""
        step = max(PIECE // target.itemsize, 1)
        for at in range(0, target.size, step):
            piece = target[at : at + step]
            write(piece, at)
            self.all_reduce(piece, piece, ReduceOp.SUM)

    @abstractmethod
    def reduce(self, source: Array, target: Array, op: ReduceOp, root: int) -> None:
        """The same for one member alone."""

    @abstractmethod
    def reduce_scatter(self, source: Array, target: Array, op: ReduceOp) -> None:
        """Combine; each gets its part, in the order of members."""

    @abstractmethod
    def broadcast(self, array: Array, root: int) -> None:
        """Bytes of one to all."""

    @abstractmethod
    def all_gather(self, source: Array, target: Array) -> None:
        """Bytes of all to all, in the order of members."""

    @abstractmethod
    def gather(self, source: Array, target: Array | None, root: int) -> None:
        """Bytes of all to one."""

    @abstractmethod
    def scatter(self, source: Array | None, target: Array, root: int) -> None:
        """Parts of one's bytes to all."""

    @abstractmethod
    def all_to_all(self, source: Array, target: Array, sent: list[int], received: list[int]) -> None:
        """Bytes of each to each: counts by member."""

    @abstractmethod
    def send(self, array: Array, peer: int, tag: int) -> Pending:
        """Begin to send bytes to a member."""

    @abstractmethod
    def receive(self, array: Array, peer: int | None, tag: int) -> Any:
        """Begin to receive bytes of a member, or of anyone; what is returned is a `Pending` with a method `source`."""

    @abstractmethod
    def part(self, ranks: tuple[int, ...], number: int, timeout: float) -> "ProcessGroup":
        """A group of these ranks of the job, of which this process is one; all of them call this."""


class Turn:
    """The next call of a group, in the order in which they are made. `work`: flat arrays of the results from those of the sources, by calls of the
    back-end, once all members are there; `payload`: the same for data that comes with them.

    `turn(arrays)` does all of it. In parts, which different threads may do: `begin`, then `soon` or `wait`, then `end`; and `note` before, or, where
    this process is not to lose time, behind `begin`."""

    __slots__ = ("group", "kind", "number", "work", "payload", "_call", "_arrays", "_meeting")

    def __init__(
        self, group: ProcessGroup, kind: Kind, work: Callable[[list[Array]], Sequence[Any]], payload: Payload | None = None
    ) -> None:
        self.group, self.kind, self.work, self.payload = group, kind, work, payload
        group.calls = self.number = group.calls + 1
        self._call: Call | None = None
        self._meeting: Meeting | None = None

    @classmethod
    def begun(cls, call: Call, group: ProcessGroup, work: Callable[[list[Array]], Sequence[Any]], payload: Payload, meeting: Meeting) -> Turn:
        """One that `swift` has begun."""
        turn: Turn = object.__new__(cls)
        turn.group, turn.kind, turn.number, turn.work, turn.payload = group, call.kind, call.number, work, payload
        turn._call, turn._arrays, turn._meeting = call, [], meeting
        return turn

    def __call__(self, arrays: list[Array]) -> Sequence[Any]:
        self.begin(arrays)
        self.wait()
        return self.end()

    def note(self, line: str) -> None:
        """Put it into the flight recorder. `line`: of the user."""
        self._call = call = Call(self.group.number, self.number, self.kind, line)
        WATCH.recorder.calls.append(call)
        if self._meeting is not None:
            call.begun, call.state = call.asked, WAITING

    @property
    def call(self) -> Call:
        """What the flight recorder has of it."""
        if self._call is None:
            self.note("")
        return self._call  # type: ignore[return-value]

    def begin(self, arrays: list[Array]) -> None:
        """Come to the call."""
        group, payload, call = self.group, self.payload, self._call
        group.turn.acquire()
        try:
            if call is not None:
                call.begun, call.state = _now(), WAITING
            if WATCH.failed:
                WATCH.require_health(self.call)
            self._arrays = arrays
            if group.closed:
                group.require_open(self.kind.op)
            if group.several:
                own = None if payload is None else payload.pack(arrays)
                self._meeting = group.meet(self.number << 32 | self.kind.code if group.checks else 0, payload, own)
        except BaseException as error:
            self._fail(error)
            raise

    def hurries(self) -> bool:
        """Whether it should come to the call while programs run that make other values."""
        return not self.group.crowded()

    def soon(self) -> bool:
        """Whether all have come, or do in a moment."""
        return self._meeting is None or soon(self._meeting)

    def wait(self) -> None:
        """Until all have come."""
        if self._meeting is not None and not soon(self._meeting):
            call = self.call
            try:
                self.group.wait(self._meeting, call)
            except BaseException as error:
                WATCH.failed = WATCH.failed or f"[{call.op}] the wait for the others was interrupted in {call.place()}, {call}"
                self._fail(error)
                raise

    def end(self) -> Sequence[Any]:
        """The results."""
        group, call, meeting = self.group, self._call or self.call, self._meeting
        try:
            brought = None
            if meeting is not None:
                try:
                    brought = meeting.brought()
                except Differ:
                    raise group.disagreement(call) from None
            if brought is not None:
                found = self.payload.unpack(brought)  # type: ignore[union-attr]
            else:
                call.state, group.moving = MOVING, call
                entry = WATCH.guard(call, group.ranks, group.timeout)
                try:
                    found = self.work(self._arrays)
                finally:
                    WATCH.unguard(entry)
        except BaseException as error:
            self._fail(error)
            raise
        call.state, call.ended = DONE, _now()
        WATCH.passed[group.number] = self.number
        group.turn.release()
        return found

    def _fail(self, error: BaseException) -> None:
        """Note it, and let the next call go on; raises another error for one of the back-end."""
        group, call = self.group, self.call
        call.state, call.ended = FAILED, _now()
        group.turn.release()
        if isinstance(error, group.failures):
            raise WATCH.broken(f"[{call.op}] expected the back-end {group.name} to move the data, got its error: {error}") from None
