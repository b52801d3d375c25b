"""Threads that load batches ahead of the loop that uses them.

A job is one batch. Job number k always goes to worker k mod n, and the loop waits for the jobs in the order in which they were
given out, so the batches are exactly those of a loop without workers.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any
from weakref import ref

from calque.base.dataclass import dataclass
from calque.base.errors import WorkerError
from calque.data.worker_info import WorkerInfo, set_worker_info
from calque.observe import events
from calque.run.interrupt import shielded


@dataclass(frozen=True, slots=True)
class Job:
    """Work for one worker and where its result goes. A pass that is given up (`owner`) must not keep the workers busy for a loop that nobody runs
    any more."""

    work: Callable[[], Any]
    future: "Future[Any]"
    owner: ref[Any]


class WorkerPool:
    """`len(infos)` daemon threads with a queue of jobs each. `init_fn(worker_id)` runs first in every thread."""

    threads = True

    def __init__(self, infos: list[WorkerInfo], init_fn: Callable[[int], None] | None) -> None:
        self.queues: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in infos]
        self._ends: list[ref[Any]] = []
        # The threads hold their queue and not the pool, so a forgotten pool is collected and closes itself.
        self.all = [
            threading.Thread(target=_work, args=(jobs, info, init_fn, self._ends), name=f"calque-data-{info.id}", daemon=True)
            for jobs, info in zip(self.queues, infos)
        ]
        self.start()

    @shielded  # a thread that is interrupted while it starts leaves the tables of `threading` wrong
    def start(self) -> None:
        """Start the threads."""
        for thread in self.all:
            thread.start()

    def submit(self, worker: int, work: Callable[[], Any], owner: "ref[Any]") -> "Future[Any]":
        """Have `work` done by a worker; the future gives its result or raises its exception. Nothing is done for an `owner` that is gone."""
        future: Future[Any] = Future()
        self.queues[worker].put(Job(work, future, owner))
        return future

    def close_with(self, owner: Any) -> None:
        """Let every thread end after the job it is doing when the owner is gone. That takes C code alone: what a signal handler raises in a callback
        would be lost."""
        self._ends += [ref(owner, jobs.put) for jobs in self.queues]  # the threads keep them

    def close(self) -> None:
        """Let every thread end after the job it is doing."""
        for jobs in self.queues:
            jobs.put(None)


def _work(jobs: "queue.SimpleQueue[Any]", info: WorkerInfo, init_fn: Callable[[int], None] | None, ends: "list[ref[Any]]") -> None:
    """Do jobs until something else comes. `ends`: kept as long as the thread."""
    set_worker_info(info)
    failures = _initialise(info, init_fn)
    while (job := jobs.get()).__class__ is Job:
        if job.owner() is not None and job.future.set_running_or_notify_cancel():
            _do(job, failures)
        del job  # or the batch would live until the next one arrives


def _initialise(info: WorkerInfo, init_fn: Callable[[int], None] | None) -> list[BaseException]:
    """Run the user's function. Its exception is for the first job; the loop that gets it refers to it from then on, and a thread
    that kept it too would keep the loop alive, and with it itself."""
    try:
        if init_fn is not None:
            init_fn(info.id)
    except BaseException as error:
        error.add_note(f"[DataLoader] raised by worker_init_fn in worker {info.id}")
        return [WorkerError(f"[DataLoader] expected worker {info.id} to start, but its worker_init_fn failed: {error!r}"), error]
    return []


def _do(job: Job, failures: list[BaseException]) -> None:
    try:
        if failures:
            raise failures.pop() if len(failures) > 1 else WorkerError(*failures[0].args)
        session, start = events.active, events.clock()
        batch = job.work()
        if session is not None:
            session.span("load a batch", events.LOADER, start)
        job.future.set_result(batch)
    except BaseException as error:
        job.future.set_exception(error)
