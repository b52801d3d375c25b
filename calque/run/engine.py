"""The engine: one queue and one worker thread per device; a task is a closure plus the buffers it reads and writes.

Order follows from the buffers alone: a task waits for the tasks that write what it reads, and for those that read or write what it
overwrites, whatever queue they are in. Among the tasks of a queue that wait for nothing, the highest priority runs first, then the oldest.
So work of different devices overlaps, and results never depend on timing. Which thread runs a task does not matter to it: one that has nothing
to do in its own queue, and one that waits for values, takes what is ready in the queue of a device that nobody serves. `settings.sync` makes
`submit` run the closure at once: the naive engine that tests compare with. An exception of a task is kept and raised at the first read of a
buffer the task was to fill.
"""

from __future__ import annotations

import atexit
import heapq
import os
import sys
import threading
from collections.abc import Callable, Iterable
from traceback import format_tb
from typing import Any, Protocol

import numpy as np

from calque.backend.base import SERVING, WAITING, Waits
from calque.base.config import available_cores, settings
from calque.base.device import Device
from calque.base.errors import CalqueError
from calque.observe import events
from calque.run.interrupt import SHIELD

SWITCH_SECONDS = 2e-4
"""How long a thread that computes in Python may keep the interpreter's lock when another wants it (see `_hand_over_sooner`)."""
USUAL_SWITCH_SECONDS = 5e-3  # Python's own
BOUND = 64  # tasks that may wait in one queue: pending work, and with it the memory it holds, is bounded
AHEAD = 2_000_000_000 * available_cores()  # cost of tasks that may wait: some half a second, which Ctrl-C and the end of a program take


def _nothing() -> None:
    pass


def forget_frames(error: BaseException) -> None:
    """Drop the traceback of an error that is kept: its frames, and those that called them, would keep all their values alive. Where an error is
    not one of ours, what it said becomes text."""
    if not isinstance(error, CalqueError) and error.__traceback__ is not None:
        error.add_note("".join(format_tb(error.__traceback__)).rstrip())
    error.__traceback__ = None


class Fillable(Protocol):
    """What tasks read and write, a `run/buffer.py` `Buffer`, as the engine knows it."""

    task: Task | None
    readers: list[Task] | None
    pins: int

    def wait(self) -> np.ndarray[Any, Any]:
        """The array, once it is filled."""


class PartialValues(Protocol):
    """What is there of a task's values while it runs."""

    def read(self, buffer: Fillable) -> np.ndarray[Any, Any]:
        """The array of a buffer, once its value is there."""

    def early(self, buffer: Fillable) -> np.ndarray[Any, Any] | None:
        """The same for a thread whose absence nobody feels; None if the value is there at the end of the task alone."""

    def over(self) -> None:
        """The task has run."""


class Task:
    """One unit of work. `error` is set if it failed; `done` tells whether it has run. `cost`: how much it computes (see `estimate_cost`). `held`:
    lists of buffers that it keeps alive. `light`: it will have run before a thread that waits for it would have woken another. `brief`: over in some
    ten milliseconds, so that a thread which waits may run it, and Ctrl-C wait for that. `aside`: it may run beside another task of its queue.
    `partial`: tells which of its values are there before it has run, or None."""

    __slots__ = (
        "work", "done", "error", "queue", "priority", "number", "blockers", "cost", "followers", "held", "waited", "light", "brief", "aside",
        "partial", "_sleepers",
    )  # fmt: skip

    def __init__(self, work: Callable[[], None], priority: float = 0) -> None:
        self.work: Callable[[], None] | None = work
        self.done = False
        self.error: BaseException | None = None
        self.queue: Queue | None = None
        self.priority = priority
        self.number = self.blockers = self.cost = 0
        self.followers: list[Task] | None = None
        self.held: tuple[list[Any], ...] = ()
        self.waited: Callable[[], None] | None = None  # told that somebody waits, as long as the task has not run
        self.light = self.brief = self.aside = False
        self.partial: PartialValues | None = None
        self._sleepers: list[threading.Lock] = []  # for each thread that waits a lock, which opens when the task has run

    @classmethod
    def failed(cls, error: BaseException) -> Task:
        """A task that has run, in vain."""
        task = cls(_nothing)
        task.work, task.done, task.error = None, True, error
        return task

    def run(self) -> None:
        """Execute and remember the outcome. Never raises."""
        assert self.work is not None
        try:
            self.work()
        except Exception as error:  # kept, and raised at the read; what its frames hold is not
            self.error = error
            forget_frames(error)
        except BaseException as error:  # Ctrl-C inside inline work: the user wants it now
            self.error = error
            raise
        finally:
            self.work = None
            if self.held:
                self._let_go()
            self.done = True
            _wake_all(self._sleepers)
            if self.partial is not None:
                self.partial.over()
                self.partial = None

    def hold(self, *buffers: list[Any]) -> None:
        """Count references of this task to buffers, so that others can tell them from those of tensors (`Buffer.pins`)."""
        with ENGINE.pins:
            _pin(buffers, 1)
            self.held = buffers

    def _let_go(self) -> None:
        with ENGINE.pins:
            _pin(self.held, -1)
            for group in self.held:
                group.clear()
            self.held = ()

    def wait(self) -> None:
        """Block until done (interruptible by signal handlers in the main thread)."""
        if self.done:
            return
        if self.waited is not None:
            self.waited()
        if ENGINE.tracking:
            _assist(self)
        sleeper = _sleeper()
        self._sleepers.append(sleeper)
        if not self.done:
            with Waits(sleeper):
                sleeper.acquire()


def _sleeper() -> threading.Lock:
    """A closed lock. Whoever waits has one of his own: a handler may raise anywhere in a wait, which the conditions of `threading` do not bear."""
    lock = threading.Lock()
    lock.acquire()
    return lock


def _wake_all(sleepers: list[Any]) -> None:
    """Open the locks; who adds one afterwards looks whether there is anything to wait for left."""
    while sleepers:
        sleeper = sleepers.pop()
        WAITING.discard(sleeper)
        sleeper.release()


def _pin(groups: tuple[list[Any], ...], by: int) -> None:
    """A function of its own: its variables, references too, are gone when it returns."""
    for group in groups:
        for buffer in group:
            buffer.pins += by


def _hand_over_sooner() -> None:
    """Between two tasks a queue needs the interpreter's lock for a moment, while its cores have nothing to do: with Python's 5 ms, a loop that
    computes in Python beside the queue would keep them waiting that long at every program. An interval that somebody has chosen is kept."""
    if sys.getswitchinterval() == USUAL_SWITCH_SECONDS:
        sys.setswitchinterval(SWITCH_SECONDS)


class Engine:
    """All queues of the process, and the locks that guard them. `pins` is held while tasks take or drop references to buffers, and while
    somebody judges them."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # both: what the collector frees may start a program while this thread has them
        self.pins = threading.RLock()
        self.queues: list[Queue] = []
        self.tracking = False  # whether buffers remember who reads them; one queue alone is in order anyway
        self.numbers = 0
        self.finished = 0

    def track(self) -> None:
        """From now on tasks may overtake each other: what was submitted before has run."""
        if not self.tracking:
            drain()
            self.tracking = True

    def reset(self) -> None:
        """In a forked child: threads do not survive, and locks may be held by threads that are gone."""
        self.lock, self.pins = threading.RLock(), threading.RLock()
        SERVING.clear()
        WAITING.clear()
        for queue in self.queues:
            queue.reset()


ENGINE = Engine()


class Queue:
    """The tasks of one device, with a worker thread that starts at the first task and ends with the process. One of them runs at a time, and
    beside it what somebody else takes of those that may (`Task.aside`).

    `move` takes a thread to a place, here `device`, and returns where it was; without it nobody but the worker runs what is queued.
    """

    def __init__(self, name: str, bound: int = BOUND, device: Device | None = None, move: Callable[[Any], Device] | None = None) -> None:
        self.name = name
        self.bound = bound
        self.device = device
        self.move = move
        if ENGINE.queues:
            ENGINE.track()
        ENGINE.queues.append(self)
        self.reset()

    def reset(self) -> None:
        """Forget everything that was queued."""
        self._ready: list[tuple[float, int, Task]] = []
        self._wake = threading.Condition(ENGINE.lock)
        self._room = threading.Condition(ENGINE.lock)
        self._sleepers: list[threading.Lock] = []  # one for each thread that waits until nothing is queued or running
        self._busy = self._cost = 0  # tasks that are queued or running, and their cost
        self._heavy = 0  # those of them that are not light
        self._full = False  # whether nothing more is taken until half of it has run
        self.last: Task | None = None  # that was queued
        self.runner = 0  # the thread that serves it
        self._worker: threading.Thread | None = None
        self._parked = False  # whether the worker sleeps, and nobody has woken it
        self._stop = False

    @property
    def depth(self) -> int:
        """Tasks that are queued or running."""
        return self._busy

    def idle(self) -> bool:
        """Whether nothing is queued or running."""
        return self._busy == 0

    def light(self) -> bool:
        """Whether everything that is queued or running is over soon."""
        return self._heavy == 0

    def submit(self, task: Task, reads: Iterable[Fillable] = (), writes: Iterable[Fillable] = (), awaits: Iterable[Fillable] = ()) -> None:
        """Queue the task; where `bound` tasks are waiting, or more than one and together above `AHEAD`, blocks until half of that has run, with all
        cores, as nobody records then. `reads` and `writes` are buffers; those written get `task` as their writer. `awaits`: buffers for which the
        task itself waits when it runs: it keeps its place in the queue, and goes on before their program ends."""
        task.queue = self
        if settings.sync or threading.get_ident() == self.runner:
            self._run_now(task, (*reads, *awaits), writes)
            return
        if task.priority and not ENGINE.tracking:
            ENGINE.track()
        if self._worker is None:
            self._start()
        with ENGINE.lock:
            while self._fills():
                with Waits(threading.get_ident()):
                    self._room.wait()
            ENGINE.numbers = task.number = ENGINE.numbers + 1
            if ENGINE.tracking:
                _link(task, reads, writes)
                for buffer in awaits:
                    _read_by(buffer, task)
            for buffer in writes:
                buffer.task = task
            self._busy += 1
            self._cost += task.cost
            self._heavy += not task.light
            self.last = task
            if not task.blockers:
                self._push(task)
                self.rouse()

    def _fills(self) -> bool:
        """Whether it is full, or was and is not half empty yet: for all senders, so that none who comes later keeps others out. Needs the lock."""
        self._full = self._full or self._busy >= self.bound or (self._cost > AHEAD and self._busy > 1)
        return self._full

    def _run_now(self, task: Task, reads: Iterable[Fillable], writes: Iterable[Fillable]) -> None:
        for buffer in (*reads, *writes):
            writer = buffer.task
            if writer is not None and writer is not task:
                writer.wait()
        for buffer in writes:
            for reader in buffer.readers or ():
                reader.wait()
            buffer.task = task
        task.run()
        with ENGINE.lock:
            for queue in _release(task):
                queue.rouse()

    def _push(self, task: Task) -> None:
        """A task that waits for nothing. The caller holds the lock, and sees to it that somebody runs the task."""
        heapq.heappush(self._ready, (-task.priority, task.number, task))

    def first(self) -> Task | None:
        """The task that another thread may run next; None if there is none, or somebody serves the queue. The caller holds the lock."""
        task = self._ready[0][2] if self._ready else None
        return task if task is None or not self.runner or (task.aside and self.move is not None) else None

    def rouse(self) -> None:
        """Wake a thread if a task waits for one. The caller holds the lock. Threads that are awake look for work before they sleep, and there are at
        least as many workers as queues that nobody serves, so no task is forgotten if none sleeps."""
        if self.first() is None:
            return
        sleeper = self
        if not self._parked and self.move is not None:
            sleeper = next((queue for queue in ENGINE.queues if queue._parked and queue.move is not None), self)
        if sleeper._parked:
            sleeper._parked = False
            sleeper._wake.notify()

    def _start(self) -> None:
        _hand_over_sooner()
        with ENGINE.lock:
            if self._worker is None:
                self._stop = False
                self._worker = threading.Thread(target=self._loop, name=f"calque-{self.name}", daemon=True)
                self._worker.start()

    def take(self) -> Task:
        """The first task, which this thread will run. The caller holds the lock."""
        if not self.runner:
            self.runner = threading.get_ident()
        return heapq.heappop(self._ready)[2]

    def finish(self, task: Task) -> list[Queue]:
        """The task that was taken has run; returns the queues that may need a thread now. The caller holds the lock."""
        if self.runner == threading.get_ident():
            self.runner = 0
        self._busy -= 1
        self._cost -= task.cost
        self._heavy -= not task.light
        if self.last is task:
            self.last = None
        if self._full and self._busy <= self.bound // 2 and (self._cost <= AHEAD // 2 or self._busy < 2):
            self._full = False
            self._room.notify_all()
        if not self._busy:
            _wake_all(self._sleepers)
        return [self, *_release(task)]

    def _found(self, served: Queue) -> Queue | None:
        """Where the worker, who has served that queue, goes on. The caller holds the lock."""
        for queue in (served, self):
            if queue.first() is not None:
                return queue
        if self.move is None:
            return None
        return next((queue for queue in ENGINE.queues if queue.move is not None and queue.first() is not None), None)

    def _sleep(self) -> None:
        """Wait until there may be work. The caller holds the lock."""
        self._parked = True
        self._wake.wait()
        self._parked = False

    def _loop(self) -> None:
        served, task = self, None
        self._enter()
        SERVING.add(threading.get_ident())
        while True:
            with ENGINE.lock:
                left = served.finish(task) if task is not None else list[Queue]()
                found = self._found(served)
                task = found.take() if found is not None else None
                for queue in left:
                    queue.rouse()
                while found is None:
                    if self._stop:
                        SERVING.discard(threading.get_ident())
                        return
                    self._sleep()
                    found = self._found(served)
                    task = found.take() if found is not None else None
            assert task is not None
            if found is not served:
                served = found
                served._enter()
            task.run()

    def _enter(self) -> None:
        events.where.queue = self.name
        if self.move is not None:
            self.move(self.device)

    def drain(self) -> None:
        """Wait until everything submitted so far has run."""
        if self._worker is None or threading.get_ident() == self.runner:
            return
        sleeper = _sleeper()
        with ENGINE.lock:
            if not self._busy:
                return
            self._sleepers.append(sleeper)
        with Waits(sleeper):
            sleeper.acquire()

    def close(self) -> None:
        """Finish the queued work and end the worker."""
        worker = self._worker
        if worker is None:
            return
        self.drain()
        with ENGINE.lock:
            self._stop = True
            self._wake.notify_all()
        worker.join(timeout=5)
        self._worker = None


def _release(task: Task) -> list[Queue]:
    """Queues with tasks that waited for one that has run, and need not any more. The caller holds the lock."""
    found: list[Queue] = []
    for follower in task.followers or ():
        follower.blockers -= 1
        if not follower.blockers:
            assert follower.queue is not None
            follower.queue._push(follower)
            found.append(follower.queue)
    task.followers = None
    ENGINE.finished += 1
    return found


def _assist(wanted: Task | None = None) -> None:
    """This thread is about to wait: until nothing is left that it may take, it runs what is ready in queues that nobody serves; if it waits for one
    task, only what that needs. The newest first: for older ones somebody has been woken. Ctrl-C waits for the task that runs."""
    here = threading.get_ident()
    if settings.sync or any(queue.runner == here for queue in ENGINE.queues):
        return
    left: list[Queue] = []
    away, shielded = _Away(), SHIELD.hold()
    try:
        while not (shielded and SHIELD.asked):
            with ENGINE.lock:
                found = _offered(wanted)
                task = found.take() if found is not None else None
                for queue in left:
                    queue.rouse()
                left = []
            if found is None or task is None:
                break
            try:
                away.go(found)
                task.run()
            finally:
                with ENGINE.lock:
                    left = found.finish(task)
    finally:
        away.back()
        with ENGINE.lock:
            for queue in left:
                queue.rouse()
        if shielded:
            SHIELD.release()


def _offered(wanted: Task | None) -> Queue | None:
    """The queue whose first task a thread may take that waits. The caller holds the lock."""
    best, number = None, 0
    for queue in ENGINE.queues:
        task = queue.first() if queue.move is not None else None
        if task is not None and task.brief and task.number > number and (wanted is None or _leads(task, wanted)):
            best, number = queue, task.number
    return best


def _leads(task: Task, wanted: Task) -> bool:
    """Whether a task waits for another, directly or not, or is it. The caller holds the lock."""
    seen, pending = {task}, [task]
    while pending:
        one = pending.pop()
        if one is wanted:
            return True
        for follower in one.followers or ():
            if follower not in seen:
                seen.add(follower)
                pending.append(follower)
    return False


class _Away:
    """Where a thread that assists was before."""

    def __init__(self) -> None:
        self._flow = events.where.flow
        self._move: Callable[[Any], Any] | None = None
        self._home: Any = None

    def go(self, queue: Queue) -> None:
        """To the place of the queue."""
        move = queue.move
        assert move is not None
        before = move(queue.device)
        if self._move is None:
            self._move, self._home = move, before

    def back(self) -> None:
        """To where it was."""
        if self._move is not None:
            self._move(self._home)
            events.where.flow = self._flow


def _read_by(buffer: Fillable, task: Task) -> None:
    """Who overwrites the buffer waits for the task. The caller holds the lock."""
    readers = buffer.readers
    if readers is None:
        buffer.readers = [task]
    else:
        if len(readers) > 8:
            readers[:] = [r for r in readers if not r.done]
        readers.append(task)


def _link(task: Task, reads: Iterable[Fillable], writes: Iterable[Fillable]) -> None:
    """Make the task wait for those it depends on. The caller holds the lock."""
    before: set[Task] = set()
    for buffer in reads:
        writer = buffer.task
        if writer is not None and not writer.done:
            before.add(writer)
        _read_by(buffer, task)
    for buffer in writes:
        writer = buffer.task
        if writer is not None and not writer.done:
            before.add(writer)
        if buffer.readers is not None:
            before.update(r for r in buffer.readers if not r.done)
            buffer.readers = None
    before.discard(task)
    for other in before:
        if other.queue is None:
            continue  # run by the thread that made it
        if other.followers is None:
            other.followers = [task]
        else:
            other.followers.append(task)
        task.blockers += 1


def drain() -> None:
    """Wait until all queues are empty. A worker that calls this waits for the others."""
    if ENGINE.tracking:
        _assist()
    for queue in list(ENGINE.queues):
        queue.drain()


def somebody_waits() -> None:
    """Tell the last task of every queue, if it has not run, that somebody waits for it."""
    for queue in list(ENGINE.queues):
        task = queue.last
        if task is not None and not task.done and task.waited is not None:
            task.waited()


def alone(queue: Queue | None) -> bool:
    """Whether no other queue has anything to do."""
    return all(other is queue or other.idle() for other in ENGINE.queues)


def depths() -> dict[str, int]:
    """Tasks queued or running, by queue."""
    return {queue.name: queue.depth for queue in ENGINE.queues}


def _before_fork() -> None:
    """A value that is still being computed would never be there in the child."""
    if all(queue.runner != threading.get_ident() for queue in ENGINE.queues):
        drain()


def _close() -> None:
    drain()
    for queue in ENGINE.queues:
        queue.close()


CPU_QUEUE = Queue("cpu")
atexit.register(_close)
os.register_at_fork(before=_before_fork, after_in_child=ENGINE.reset)
