"""The watch of a process: it hears what the others say beside the collectives, knows who is gone, and ends waits that nobody will end.

A thread looks for messages ten times a second. A rank that leaves says so, with the number of its last call in each group; of one that died without a
word the others on its machine hear from the kernel (`lives.py`), and those elsewhere from them. A rank whose wait is too long asks the others where
they are, and its error says it. What cannot be interrupted (a call of the back-end that moves data) ends the process.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol

from calque.base.config import RENDEZVOUS, job_variables
from calque.base.errors import DistributedError
from calque.distributed.lives import Lives
from calque.distributed.record import Call, Recorder
from calque.observe.source import inside_package

PERIOD = 0.1  # seconds between two looks
PATIENCE = 2.0  # seconds for which a rank that asks waits for answers
GRACE = 5.0  # seconds beyond the deadline after which a process ends that cannot be interrupted
ON_THE_WAY = 1.0  # seconds for which a message may still come of a rank that has gone
DYING = 0.3  # the same, of one that died on this machine: what it has sent is there
UNEVEN = "Every rank must make the same calls: with uneven data, drop_last=True, DistributedSampler or model.join()"
SILENT = "Look at what it printed, at its exit code, and whether memory ran out; calque launch --restarts goes on from the last commit"
DEAD = "no word: it was killed, crashed, or left by os._exit()"
STUCK = 70  # exit code of such a process
LATER = 16  # errors
OVER = 64  # groups that are closed, of which it is known how far they came
ROWS = 100  # groups that a message tells of
LONGEST_TEXT = 1500  # bytes of a message: what is longer than MPI sends at once does not arrive from a process that ends meanwhile


class Wire(Protocol):
    """How messages travel beside the collectives."""

    def send(self, rank: int, message: bytes) -> None:
        """Never blocks."""

    def poll(self) -> list[tuple[int, bytes]]:
        """What has come since, and from whom."""


class Watch:
    """The one watch of this process."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """As at the start."""
        self.recorder = Recorder()
        self.rank, self.size = 0, 1
        self.folder = ""
        self.wire: Wire | None = None
        self._lives = Lives({})
        self.left: dict[int, dict[str, Any]] = {}  # what ranks said when they went
        self.passed: dict[int, int] = {}  # calls that are over, by group
        self._over: deque[int] = deque()  # groups that are closed
        self._told: dict[int, dict[str, int]] = {}  # what ranks that go have said of the calls of groups so far
        self.error: DistributedError | None = None  # the last of those that broke the job
        self._later: deque[DistributedError] = deque(maxlen=LATER)  # of calls after that, which tell of it
        self.failed = ""  # why nothing more can be done together
        self.said = False  # that this process goes
        self._places: dict[int, str] = {}  # where the others are, as they say
        self._guarded: list[tuple[float, Call, tuple[int, ...]]] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, rank: int, size: int, wire: Wire, folder: str, processes: Mapping[int, int]) -> None:
        """Begin to watch. `processes`: see `Near`."""
        self.reset()
        self._lives = Lives(processes)
        self.rank, self.size, self.wire, self.folder = rank, size, wire, folder
        self._thread = threading.Thread(target=self._loop, name="calque-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Watch no longer."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=2)
        self._thread = self.wire = None
        self._lives.close()

    # ------------------------------------------------------------------------------------------------------- messages

    def _loop(self) -> None:
        while not self._stop.wait(PERIOD):
            self.hear()
            self._end_if_stuck()

    def hear(self) -> None:
        """Take what has come."""
        wire = self.wire
        if wire is None:
            return
        with self._lock:
            ended = self._lives.ended()  # before the messages, of which the last ones may be theirs
            for rank, message in wire.poll():
                self._take(rank, json.loads(message))
            for rank in ended:
                if rank not in self.left:
                    self._died(rank, DYING)
                    for other in range(self.size):
                        if other not in self.left and other != self.rank:
                            self._say(other, {"kind": "dead", "rank": rank})

    def _take(self, rank: int, got: dict[str, Any]) -> None:
        """One message."""
        kind = got["kind"]
        if kind == "passed":
            self._told.setdefault(rank, {}).update(got["passed"])
        elif kind == "gone":
            self.left[rank] = {**got, "passed": self._told.pop(rank, {}), "at": time.monotonic()}
        elif kind == "where":
            if got.get("late"):
                self.recorder.write(self.rank, got["late"], self.folder)
            self._say(rank, {"kind": "here", "text": _cut(self._place())})
        elif kind == "here":
            self._places[rank] = got["text"]
        elif kind == "dead" and got["rank"] not in self.left:
            self._died(got["rank"], ON_THE_WAY)

    def _died(self, rank: int, grace: float) -> None:
        """A rank has ended without a word. `grace`: seconds for which what it has sent may still be on its way."""
        self.left[rank] = {"why": DEAD, "passed": self._told.pop(rank, {}), "at": time.monotonic(), "grace": grace}

    def _say(self, rank: int, message: dict[str, Any]) -> None:
        if self.wire is not None:
            self.wire.send(rank, json.dumps(message, ensure_ascii=False).encode(errors="replace"))

    def _place(self) -> str:
        """Where this process is, in words."""
        last = self.recorder.last()
        what = "it has come to no call yet" if last is None else f"its last call is {last.place()}, {last} ({last.state})"
        return f"{what}; its main thread is at {_main_line()}"

    def leave(self, why: str) -> None:
        """Tell the others that this process takes part no longer. `why`: "" at its regular end."""
        if self.said:
            return
        self.said = True
        with self._lock:
            passed = [(str(group), number) for group, number in self.passed.items()]
            for rank in range(self.size):
                if rank != self.rank:
                    for at in range(0, len(passed), ROWS):
                        self._say(rank, {"kind": "passed", "passed": dict(passed[at : at + ROWS])})
                    self._say(rank, {"kind": "gone", "why": _cut(why)})

    def over(self, group: int) -> None:
        """A group is closed: what others may still want to know of it is kept for a while."""
        self._over.append(group)
        if len(self._over) > OVER:
            self.passed.pop(self._over.popleft(), None)

    def all_gone(self) -> bool:
        """Whether all others have said that they go."""
        return len(self.left) >= self.size - 1

    def well(self) -> bool:
        """Whether everybody has gone, or will go, regularly."""
        return not self.failed and not any(got["why"] for got in self.left.values())

    # ------------------------------------------------------------------------------------------------------- failures

    def broken(self, text: str) -> DistributedError:
        """The error; from here on nothing is done together."""
        where = self.recorder.write(self.rank, text, self.folder)
        self.failed = self.failed or text
        self.error = DistributedError(f"{text}; the last calls of this rank are in {where}")
        return self.error

    def require_health(self, call: Call) -> None:
        """Raise if calls can no longer succeed."""
        if self.failed:
            later = DistributedError(f"[{call.op}] expected a job in order, but an earlier call failed: {self.failed}")
            self._later.append(later)
            raise later

    def unread(self) -> DistributedError | None:
        """The error that broke the job, if nobody has met it or one that tells of it."""
        met = any(getattr(error, "calque_reported", False) for error in (self.error, *self._later))
        return None if met else self.error

    def look(self, call: Call, ranks: tuple[int, ...], deadline: float, timeout: float) -> None:
        """Raise if a wait for these ranks is in vain, or too long."""
        self.require_health(call)
        for rank in ranks:
            got = self.left.get(rank)
            if got is None or rank == self.rank:
                continue
            silent = "grace" in got  # nobody knows how far it came
            missing = time.monotonic() > got["at"] + got.get("grace", ON_THE_WAY) if silent or call.number < 0 else self._misses(rank, call)
            if missing:
                raise self.broken(
                    f"[{call.op}] expected rank {rank} to take part, but it has ended{self._why(rank)}; this rank {self.rank} waits in "
                    f"{call.place()}, {call}. {SILENT if silent else UNEVEN}"
                )
        if time.monotonic() > deadline:
            raise self.broken(self._too_long(call, ranks, timeout))

    def _misses(self, rank: int, call: Call) -> bool:
        """Whether a rank that has gone has not finished a collective."""
        return bool(call.number > self.left[rank]["passed"].get(str(call.group), 0))

    def _why(self, rank: int) -> str:
        why = self.left[rank]["why"]
        return f" with {why}" if why else ""

    def _too_long(self, call: Call, ranks: tuple[int, ...], timeout: float) -> str:
        others = [rank for rank in ranks if rank != self.rank]
        late = f"rank {self.rank} has waited {timeout:g} s in {call}"
        if RENDEZVOUS not in job_variables():  # MPI crashes where it writes to a machine that is gone (MPICH 5.0): what is known is said before
            where = self.recorder.write(self.rank, late, self.folder)
            sys.stderr.write(f"calque: [{call.op}] {late}, and asks ranks {others} where they are; its last calls are in {where}\n")
            sys.stderr.flush()
        with self._lock:
            self._places.clear()
            for rank in others:
                self._say(rank, {"kind": "where", "late": _cut(late)})
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and len(self._places) < len(others):
            self.hear()
            time.sleep(0.02)
        rows = [f"rank {r}: {self._places.get(r, 'does not answer: it was stopped or killed, or is deep in other work')}" for r in others]
        return (
            f"[{call.op}] expected all of ranks {list(ranks)} within {timeout:g} s, but rank {self.rank} still waits in "
            f"{call.place()}, {call}; {'; '.join(rows)}. Look why they differ, or raise timeout= in init_process_group"
        )

    def guard(self, call: Call, ranks: tuple[int, ...], timeout: float) -> tuple[float, Call, tuple[int, ...]]:
        """A call of the back-end begins that nothing can interrupt."""
        entry = (time.monotonic() + timeout + GRACE, call, ranks)
        self._guarded.append(entry)
        return entry

    def unguard(self, entry: tuple[float, Call, tuple[int, ...]]) -> None:
        """It is over."""
        self._guarded.remove(entry)

    def _end_if_stuck(self) -> None:
        now = time.monotonic()
        for until, call, ranks in list(self._guarded):
            ended = (rank for rank in ranks if rank in self.left and now > self.left[rank]["at"] + ON_THE_WAY and self._misses(rank, call))
            lost = next(ended, None)
            if now > until or lost is not None:
                who = "another rank stopped inside it" if lost is None else f"rank {lost} stopped inside it, and has ended{self._why(lost)}"
                text = f"rank {self.rank} cannot finish {call.place()}, {call}: {who}"
                where = self.recorder.write(self.rank, text, self.folder)
                sys.stderr.write(f"calque: [{call.op}] {text}; this process ends; its last calls are in {where}\n")
                sys.stderr.flush()
                self.leave(text)
                os._exit(STUCK)


def reported(error: BaseException) -> None:
    """Somebody has met the error."""
    error.calque_reported = True  # type: ignore[attr-defined]


def _cut(text: str) -> str:
    return text.encode(errors="replace")[:LONGEST_TEXT].decode(errors="ignore")


def _main_line() -> str:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and inside_package(frame.f_code.co_filename):
        frame = frame.f_back
    return "an unknown line" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


WATCH = Watch()
