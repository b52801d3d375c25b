"""The engine: one queue per device. A task is a closure; tasks of one device run in submission order, so results never depend on timing.

`settings.sync` makes `submit` run the closure at once: the naive engine that tests compare with. An exception of a task is kept and
raised at the first read of a buffer the task was to fill.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable

from calque.base.config import settings
from calque.run import trace as tracing


def _nothing() -> None:
    pass


class Task:
    """One unit of work. `error` is set if it failed; `done` tells whether it has run."""

    __slots__ = ("work", "done", "error", "_event")

    def __init__(self, work: Callable[[], None]) -> None:
        self.work: Callable[[], None] | None = work
        self.done = False
        self.error: BaseException | None = None
        self._event: threading.Event | None = None

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
        except Exception as error:  # kept, and raised at the read
            self.error = error
        except BaseException as error:  # Ctrl-C inside inline work: the user wants it now
            self.error = error
            raise
        finally:
            self.work = None
            self.done = True
            if self._event is not None:
                self._event.set()

    def wait(self) -> None:
        """Block until done (interruptible by Ctrl-C in the main thread)."""
        if self.done:
            return
        with _LOCK:
            if self._event is None:
                self._event = threading.Event()
        if not self.done:
            self._event.wait()


_LOCK = threading.Lock()


class Queue:
    """First in, first out, with one worker thread that starts at the first task and ends with the process."""

    def __init__(self, name: str, bound: int = 64) -> None:
        self.name = name
        self.bound = bound
        self._tasks: deque[Task] = deque()
        self._wake = threading.Condition(threading.Lock())
        self._busy = 0
        self._worker: threading.Thread | None = None
        self._pid = 0
        self._stop = False

    def idle(self) -> bool:
        """Whether nothing is queued or running."""
        return self._busy == 0 or self._pid != os.getpid()

    def depth(self) -> int:
        """Tasks that wait or run."""
        return self._busy if self._pid == os.getpid() else 0

    def submit(self, task: Task) -> None:
        """Queue the task; blocks while `bound` tasks are waiting (pending work is bounded)."""
        if settings.sync or threading.current_thread() is self._worker:
            task.run()
            return
        if self._pid != os.getpid():  # first use, or the first use after a fork: threads do not survive one
            self._start()
        with self._wake:
            while self._busy >= self.bound:
                self._wake.wait()
            self._tasks.append(task)
            self._busy += 1
            self._wake.notify_all()

    def _start(self) -> None:
        self._tasks.clear()
        self._wake = threading.Condition(threading.Lock())
        self._busy, self._stop, self._pid = 0, False, os.getpid()
        self._worker = threading.Thread(target=self._loop, name=f"calque-{self.name}", daemon=True)
        self._worker.start()

    def _loop(self) -> None:
        tracing.where.queue = self.name
        while True:
            with self._wake:
                while not self._tasks:
                    if self._stop:
                        return
                    self._wake.wait()
                task = self._tasks.popleft()
            task.run()
            del task
            with self._wake:
                self._busy -= 1
                self._wake.notify_all()

    def drain(self) -> None:
        """Wait until everything submitted so far has run."""
        if self._pid != os.getpid() or threading.current_thread() is self._worker:
            return
        with self._wake:
            while self._busy:
                self._wake.wait()

    def close(self) -> None:
        """Finish the queued work and end the worker."""
        if self._pid != os.getpid() or self._worker is None:
            return
        self.drain()
        with self._wake:
            self._stop = True
            self._wake.notify_all()
        self._worker.join(timeout=5)
        self._pid = 0


CPU_QUEUE = Queue("cpu")
atexit.register(CPU_QUEUE.close)
