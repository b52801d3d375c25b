"""Threads that load batches ahead of the loop that uses them.

A job is one batch. Job number k always goes to worker k mod n, and the loop waits for the jobs in the order in which they were
given out, so the batches are exactly those of a loop without workers.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from calque.base.errors import WorkerError
from calque.data.worker_info import WorkerInfo, set_worker_info
from calque.run import trace as tracing


@dataclass(frozen=True, slots=True)
class Job:
    """Work for one worker and where its result goes."""

    work: Callable[[], Any]
    future: "Future[Any]"


class WorkerPool:
    """`len(infos)` daemon threads with a queue of jobs each. `init_fn(worker_id)` runs first in every thread."""

    def __init__(self, infos: list[WorkerInfo], init_fn: Callable[[int], None] | None) -> None:
        self.queues: list[queue.SimpleQueue[Job | None]] = [queue.SimpleQueue() for _ in infos]
        # The threads hold their queue and not the pool, so a forgotten pool is collected and closes itself.
        self.threads = [
            threading.Thread(target=_work, args=(jobs, info, init_fn), name=f"calque-data-{info.id}", daemon=True)
            for jobs, info in zip(self.queues, infos)
        ]
        for thread in self.threads:
            thread.start()

    def submit(self, worker: int, work: Callable[[], Any]) -> "Future[Any]":
        """Have `work` done by a worker; the future gives its result or raises its exception."""
        future: Future[Any] = Future()
        self.queues[worker].put(Job(work, future))
        return future

    def close(self) -> None:
        """Let every thread end after the job it is doing."""
        for jobs in self.queues:
            jobs.put(None)


def _work(jobs: "queue.SimpleQueue[Job | None]", info: WorkerInfo, init_fn: Callable[[int], None] | None) -> None:
    set_worker_info(info)
    failures = _initialise(info, init_fn)
    while (job := jobs.get()) is not None:
        if job.future.set_running_or_notify_cancel():
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
        session, start = tracing.active, tracing.clock()
        batch = job.work()
        if session is not None:
            session.span("load a batch", tracing.LOADER, start)
        job.future.set_result(batch)
    except BaseException as error:
        job.future.set_exception(error)
