"""One pass over the data: in the calling thread, or with workers that load ahead of it.

`Progress` is what a pass is, wherever it runs: where its random numbers begin and how many batches were handed out. The loader keeps it, so that a
pass can be taken up in another process. A batch counts when the loop gets it, not when it is loaded.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import field
from functools import partial
from typing import Any

from calque.base.dataclass import dataclass
from calque.base.errors import WorkerError
from calque.data.dataset import size_of
from calque.data.fetch import END, StreamFetcher, shorten
from calque.data.pace import Pace
from calque.data.places import Kept, beginning, go
from calque.data.random_source import draw_seed, position
from calque.data.streams import Borrowed
from calque.observe import events
from calque.observe.source import warn_user
from calque.run.interrupt import of_handler

_DEFAULT_PREFETCH = 2


@dataclass
class Progress:
    """Where a pass stands. `beginning`: of the generator, before the pass drew from it. `ahead`: batches that were handed out before some earlier
    one. `streams`: how many batches each worker has given, of a stream; `turn`: whose the next one is."""

    beginning: tuple[int, int]
    seed: int = 0
    delivered: int = 0
    ahead: set[int] = field(default_factory=set)
    streams: dict[int, int] = field(default_factory=dict)
    turn: int = 0
    over: bool = False
    samplers: dict[str, Any] = field(default_factory=dict)  # where they stood before it
    places: dict[str, Any] = field(default_factory=dict)  # what else the order depends on, before it

    def handed_out(self, number: int) -> None:
        """Batch `number` is the loop's."""
        if number != self.delivered:
            self.ahead.add(number)
            return
        self.delivered += 1
        while self.delivered in self.ahead:
            self.ahead.remove(self.delivered)
            self.delivered += 1


class Requests:
    """What a pass asks for, numbered. The first is drawn at once: a pass begins where the loop does, not where it takes its first batch."""

    def __init__(self, indices: Iterator[Any], progress: Progress) -> None:
        done = progress.ahead | set(range(progress.delivered))
        numbered = ((number, request) for number, request in enumerate(indices) if number not in done)
        self.error: BaseException | None = None
        try:
            first = list(itertools.islice(numbered, 1))
        except Exception as error:
            if of_handler(error):
                raise
            self.error, first = error, []
        self.rest = itertools.chain(first, numbered)

    def __iter__(self) -> "Requests":
        return self

    def __next__(self) -> tuple[int, Any]:
        if self.error is not None:
            error, self.error = self.error, None
            try:
                raise error
            finally:
                del error  # the frame would refer to what refers to it
        return next(self.rest)


def begun(loader: Any, resumed: Progress | None) -> tuple[Progress, Requests | None]:
    """The progress of a new pass, or of one that is taken up again, and what it asks for."""
    if resumed is None:
        progress = Progress(position(loader.generator), places=beginning(loader))
        progress.seed = draw_seed(loader.generator)
        return progress, None if loader.streamed else Requests(loader.indices(), progress)
    with Kept():
        position(loader.generator, resumed.beginning)
        go(loader, resumed.places)
        resumed.seed = draw_seed(loader.generator)
        return resumed, None if loader.streamed else Requests(loader.indices(), resumed)


class SerialPass:
    """One pass in the calling thread. An exception ends one batch, not the pass."""

    def __init__(self, loader: Any, progress: Progress, requests: Requests | None, pace: Pace) -> None:
        self.loader, self.progress, self.requests, self.pace = loader, progress, requests, pace
        if loader.streamed:
            self.stream, self.count = loader.stream_fetcher(progress.seed), StreamCount(loader)
            with Borrowed():
                for _ in range(progress.streams.get(0, 0)):
                    self.stream()
        else:
            self.fetch = loader.index_fetcher(progress.seed)

    def __iter__(self) -> "SerialPass":
        return self

    def __len__(self) -> int:
        return len(self.loader)

    def __next__(self) -> Any:
        session, start = events.active, time.perf_counter()
        began = events.clock() if session is not None else 0.0
        batch = self.load()
        if session is not None:
            session.span("load a batch", events.LOADER, began)
        self.pace.loaded(start)
        return batch

    def load(self) -> Any:
        """The next batch."""
        progress = self.progress
        if self.requests is not None:
            try:
                number, indices = next(self.requests)
            except StopIteration:
                progress.over = True
                raise
            progress.handed_out(number)
            return self.fetch.quick(indices) or self._fetched(indices)
        with Borrowed():
            batch = self.stream()
        self.count.check(self.stream.count, ended=batch is END)
        if batch is END:
            progress.over = True
            raise StopIteration
        progress.streams[0] = progress.streams.get(0, 0) + 1
        return batch

    def _fetched(self, indices: Any) -> Any:
        with Borrowed():
            return self.fetch(indices)


@dataclass(slots=True)
class Asked:
    """A batch that a worker loads."""

    future: "Future[Any]"
    number: int
    worker: int
    what: str


class WorkerPass:
    """One pass with workers: what was asked for, in the order of the batches."""

    def __init__(self, loader: Any, workers: int, progress: Progress, requests: Requests | None, pace: Pace) -> None:
        self.loader, self.workers, self.progress, self.requests, self.pace = loader, workers, progress, requests, pace
        self.pool = loader.pool(workers, progress.seed)
        self.asked: deque[Asked] = deque()
        self.turn = progress.turn
        self.alive = weakref.ref(self)
        self.threads = self.pool.threads
        self.number = 0
        if not self.threads:
            self.number = self.pool.begin_pass()
            self.pool.give_up_with(self, self.number)
            self.pool.delivered.update({(self.number, worker): count for worker, count in progress.streams.items()})
        if not loader.persistent_workers:
            self.pool.close_with(self)
        if loader.streamed:
            self.count = StreamCount(loader)
            self.left = set(range(workers))
            self.streams: dict[int, StreamFetcher] = {i: loader.stream_fetcher(progress.seed) for i in range(workers)}
        else:
            self.fetch = loader.index_fetcher(progress.seed)
        for _ in range((loader.prefetch_factor or _DEFAULT_PREFETCH) * workers):
            self.request()

    def __iter__(self) -> "WorkerPass":
        return self

    def __len__(self) -> int:
        return len(self.loader)

    def request(self) -> None:
        """Ask for the next batch, if there is one."""
        if self.requests is None:
            self.request_from_stream()
            return
        try:
            number, indices = next(self.requests)
        except StopIteration:
            return
        except Exception as error:  # of the sampler: it surfaces after the batches before it
            if of_handler(error):
                raise
            failed: Future[Any] = Future()
            failed.set_exception(error)
            self.asked.append(Asked(failed, self.progress.delivered + len(self.asked), 0, ""))
            return
        what = f"the sample indices {shorten(indices)}"
        if not self.threads:
            worker = self.pool.least_busy()
            future = self.pool.submit(worker, self.number, self.progress.seed, indices)
        else:
            worker = self.turn % self.workers
            future = self.pool.submit(worker, partial(self.fetch, indices), self.alive)
        self.turn += 1
        self.asked.append(Asked(future, number, worker, what))

    def request_from_stream(self) -> None:
        if not self.left:
            return
        while self.turn % self.workers not in self.left:
            self.turn += 1
        worker = self.turn % self.workers
        number, self.turn = self.turn, self.turn + 1
        if not self.threads:
            future = self.pool.submit(worker, self.number, self.progress.seed, None)
        else:
            future = self.pool.submit(worker, partial(_from_stream, self.streams[worker], self.progress.streams.get(worker, 0)), self.alive)
        self.asked.append(Asked(future, number, worker, "the next samples of the stream"))

    def __next__(self) -> Any:
        start = time.perf_counter()
        while self.asked:
            asked = self.wait()
            self.asked.remove(asked)
            error = asked.future.exception()
            result = asked.future.result() if error is None else None
            ended = result is END
            if ended and self.loader.streamed:
                self.left.discard(asked.worker)
            elif self.loader.streamed:
                self.progress.streams[asked.worker] = self.progress.streams.get(asked.worker, 0) + 1
                self.progress.turn = (asked.worker + 1) % self.workers
            self.request()
            if not self.loader.streamed:
                self.progress.handed_out(asked.number)  # last: what a signal handler raises in the middle of a request loses no batch
            if error is not None:
                try:
                    raise error
                finally:
                    del error, asked  # the frame would refer to what refers to it
            if self.loader.streamed:
                self.count.check(self.samples(), ended=ended and not self.left and not self.asked)
            if not ended:
                self.pace.waited(start, self.pool)
                return result
        self.progress.over = True
        if not self.loader.persistent_workers:
            self.pool.close()
        raise StopIteration

    def samples(self) -> int:
        """How many a stream has given so far."""
        if not self.threads:
            return sum(self.pool.counts.get((self.number, worker), 0) for worker in range(self.workers))
        return sum(stream.count for stream in self.streams.values())

    def wait(self) -> Asked:
        """The next batch that is there: the first one that was asked for, or with in_order=False any."""
        wanted = list(self.asked) if not self.loader.in_order and not self.loader.streamed else [self.asked[0]]
        session = events.active if not wanted[0].future.done() else None
        start = session.begin() if session is not None else 0.0
        timeout = self.loader.timeout or None
        try:
            while True:
                if self.threads:
                    done = _wait_for_thread([asked.future for asked in wanted], timeout)
                else:
                    done = self.pool.wait([asked.future for asked in wanted], timeout)
                if done is not None:
                    return next(asked for asked in wanted if asked.future is done)
                if not (not self.threads and self.pool.stopped(wanted[0].future)):
                    raise WorkerError(
                        f"[DataLoader] expected a batch within timeout={self.loader.timeout:g} seconds, got none from worker {wanted[0].worker}, "
                        f"which loads {wanted[0].what}; raise timeout= or look for what blocks there"
                    )
        finally:
            if session is not None:
                session.end("wait for a batch", start)


def _from_stream(stream: StreamFetcher, skip: int) -> Any:
    """The next batch of a stream whose first ones another pass has handed out."""
    while stream.batches < skip:
        stream()
    return stream()


def _wait_for_thread(futures: "list[Future[Any]]", timeout: float | None) -> "Future[Any] | None":
    """Not `Future.exception`: a handler may raise anywhere in a wait, which conditions do not bear."""
    for future in futures:
        if future.done():
            return future
    over = threading.Lock()
    over.acquire()

    def tell(_: object) -> None:
        if over.locked():
            over.release()

    for future in futures:
        future.add_done_callback(tell)
    over.acquire(timeout=timeout or -1)
    return next((future for future in futures if future.done()), None)


class StreamCount:
    """Compares what an iterable dataset gives with the length that it says it has. That may be a guess, so what is wrong is told and goes on."""

    def __init__(self, loader: Any) -> None:
        self.name = type(loader.dataset).__name__
        self.several = loader.num_workers not in (0, 1)
        self.promised = _promised(loader.dataset)

    def check(self, found: int, ended: bool) -> None:
        """Warn, once, if there are more samples than there should be, or fewer at the end."""
        if self.promised is None:
            return
        if found > self.promised or (ended and found < self.promised):
            hint = "; each worker iterates over all of it unless __iter__ uses get_worker_info()" if self.several else ""
            promised, self.promised = self.promised, None
            warn_user(
                f"[DataLoader] expected {promised} samples from {self.name}, as its __len__ says, got "
                f"{'at least ' if found > promised else ''}{found}{hint}; correct __len__ or remove it"
            )


def _promised(dataset: Any) -> int | None:
    """The length of a stream, if it knows one: a ChainDataset has a `__len__` whatever its parts have."""
    if not hasattr(type(dataset), "__len__"):
        return None
    try:
        return size_of(dataset)
    except TypeError:
        return None
