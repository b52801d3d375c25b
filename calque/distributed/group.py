"""`ProcessGroup`: processes that communicate, seen from one of them. A back-end moves arrays; everything else is the same for all back-ends.

A call of a group runs in two parts. First all members say what they are about to do (`agreement`), which costs microseconds and is waited for asleep:
so a rank that is missing, or does something else, is an error that names it, not a hang, and a waiting rank leaves its core to others. Then the data
moves, by one blocking call of the back-end.
"""

from __future__ import annotations

import enum
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np

from calque.base.errors import DistributedError
from calque.distributed.record import DONE, FAILED, MOVING, WAITING, Call
from calque.distributed.watch import WATCH

Array = np.ndarray[Any, Any]
T = TypeVar("T")
SPIN = 2e-4  # seconds for which a process that waits keeps its core
LONGEST_PAUSE = 1e-3
TEXT_BYTES = 480  # of the description of a call


class ReduceOp(enum.Enum):
    """What a reduction does with the values of all ranks. `AVG` is for floating-point and complex values, the `B...` are for integers."""

    SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR = "sum", "avg", "product", "min", "max", "band", "bor", "bxor"
    __hash__ = object.__hash__  # there is one of each; that of names is slow


ReduceOp.RedOpType = ReduceOp  # type: ignore[attr-defined]  # PyTorch's name of the class, in annotations


class Pending(Protocol):
    """Something that a back-end has begun."""

    def done(self) -> bool:
        """Whether it is over; never blocks."""


class ProcessGroup(ABC):
    """Some of the processes of a job. `ranks`: theirs in the whole job; a process's rank in the group is its place there. `number`: of the group, the
    same on all members. `timeout`: seconds for which a call waits for its last member. `checks`: whether calls are compared before data moves."""

    name = ""
    failures: tuple[type[Exception], ...] = ()  # what the back-end raises

    def __init__(self, ranks: tuple[int, ...], own: int, number: int, timeout: float, checks: bool) -> None:
        self.ranks, self.own, self.number, self.timeout, self.checks = ranks, own, number, timeout, checks
        self.place = ranks.index(own)
        self.calls = self.messages = 0

    def rank(self) -> int:
        """This process's number in the group."""
        return self.place

    def size(self) -> int:
        """Number of members."""
        return len(self.ranks)

    def __repr__(self) -> str:
        return f"<process group {self.number} of ranks {list(self.ranks)}, back-end {self.name}>"

    def next_call(self, op: str, dtype: str, shape: tuple[int, ...] | None, detail: str, line: str) -> Call:
        """The record of the group's next call."""
        self.calls += 1
        call = Call(self.number, self.calls, op, dtype, shape, detail, line)
        WATCH.recorder.calls.append(call)
        return call

    def perform(self, call: Call, work: Callable[[], T]) -> T:
        """Do what a call is about, once all members have come to it."""
        call.begun = time.time()
        try:
            WATCH.require_health(call)
            call.state = WAITING
            self._come_together(call)
            call.state = MOVING
            entry = WATCH.guard(call, self.timeout)
            try:
                found = work()
            finally:
                WATCH.unguard(entry)
        except BaseException as error:
            call.state, call.ended = FAILED, time.time()
            if isinstance(error, self.failures):
                raise WATCH.broken(f"[{call.op}] expected the back-end {self.name} to move the data, got its error: {error}") from None
            raise
        call.state, call.ended = DONE, time.time()
        WATCH.passed[self.number] = call.number
        return found

    def _come_together(self, call: Call) -> None:
        if self.size() == 1:
            return
        word = call.word() if self.checks else 0
        words = np.array((word, -word), np.int64)
        most = self.finish(self.agreement(words), words, call)
        if most[0] != -most[1]:
            raise self._disagreement(call)

    def finish(self, pending: Pending, result: T, call: Call) -> T:
        """Wait, asleep after a moment, for what was begun."""
        done = pending.done
        until = time.perf_counter() + SPIN
        while time.perf_counter() < until:
            if done():
                return result
        pause, deadline = 2e-5, time.monotonic() + self.timeout
        while not done():
            WATCH.look(call, self.ranks, deadline, self.timeout)
            time.sleep(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE)
        return result

    def _disagreement(self, call: Call) -> DistributedError:
        """The error of a call to which members came with different ones."""
        text = str(call).encode()[:TEXT_BYTES]
        own, all_of_them = np.zeros(TEXT_BYTES, np.uint8), np.zeros((self.size(), TEXT_BYTES), np.uint8)
        own[: len(text)] = np.frombuffer(text, np.uint8)
        self.finish(self.tell(own, all_of_them), None, call)
        said = [bytes(row).rstrip(b"\0").decode(errors="replace") for row in all_of_them]
        rows = "; ".join(f"rank {rank}: {row}" for rank, row in zip(self.ranks, said, strict=True))
        return WATCH.broken(
            f"[{call.op}] expected the same call on every rank, got different ones as {call.place()}: {rows}; call "
            "collectives in the same order, with the same shapes and dtypes, on every rank"
        )

    # ------------------------------------------------------------------------------------------- what a back-end defines

    @abstractmethod
    def agreement(self, words: Array) -> Pending:
        """Begin to replace int64 numbers by the greatest of all members."""

    @abstractmethod
    def tell(self, own: Array, everybodys: Array) -> Pending:
        """Begin to gather the bytes of all members, without any check."""

    @abstractmethod
    def all_reduce(self, source: Array, target: Array, op: ReduceOp) -> None:
        """Combine the arrays of all members; every one gets the result."""

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
