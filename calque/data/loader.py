"""DataLoader: batches of a dataset, in order, loaded by the calling thread or ahead of it by worker threads."""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, TypeVar

from calque.base.errors import ArgumentError, DataError, WorkerError
from calque.base.text import shown
from calque.data.collate import default_collate, default_convert
from calque.data.dataset import Dataset, IterableDataset, size_of
from calque.data.fetch import END, IndexFetcher, StreamFetcher, shorten
from calque.data.random_source import draw_seed, require_generator
from calque.data.sampler import BatchSampler, RandomSampler, SequentialSampler, require_positive
from calque.data.worker_info import WorkerInfo
from calque.data.workers import WorkerPool
from calque.run import trace as tracing
from calque.run.interrupt import of_handler
from calque.run.source import warn_user

T_co = TypeVar("T_co", covariant=True)
_DEFAULT_PREFETCH = 2
_FIXED = ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers")


class DataLoader(Generic[T_co]):
    """Batches of a dataset, with PyTorch's signature.

    `dataset` has `__getitem__` and `__len__`, or is an IterableDataset. `batch_size=None` gives single samples. `shuffle` and
    `sampler` exclude each other, and `batch_sampler` excludes both and `batch_size` and `drop_last`. The order of a shuffled
    loader is a function of `generator`, or of `calque.manual_seed`, alone; batches are the same for every `num_workers`.

    `num_workers` threads load `prefetch_factor` batches each ahead of the loop (default 2; without workers it has no meaning and
    is ignored). They share the dataset object and the process's random state; `worker_init_fn(worker_id)` runs first in each.
    `timeout` is in seconds, 0 waits for ever. `pin_memory`, `pin_memory_device` and `in_order` are accepted: host memory needs no
    pinning for the CPU, and batches always come in order.

    Errors name argument, value and range; an exception of the dataset keeps its class and traceback and carries a note with the
    sample index and the worker.

    >>> from calque.data import DataLoader, TensorDataset
    >>> loader = DataLoader(TensorDataset(calque.arange(5)), batch_size=2)
    >>> [batch[0].tolist() for batch in loader], len(loader)
    ([[0, 1], [2, 3], [4]], 3)
    """

    def __init__(
        self,
        dataset: Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
    ) -> None:
        _check_workers(num_workers, timeout, prefetch_factor, persistent_workers)
        require_generator("DataLoader", generator)
        if multiprocessing_context is not None:
            warn_user("[DataLoader] multiprocessing_context has no effect: workers are threads")
        self.dataset = dataset
        self.num_workers = num_workers
        self.prefetch_factor = prefetch_factor
        self.pin_memory = pin_memory
        self.pin_memory_device = pin_memory_device
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = multiprocessing_context
        self.generator = generator
        self.persistent_workers = persistent_workers
        self.in_order = in_order
        self.streamed = isinstance(dataset, IterableDataset)
        _check_order(self.streamed, batch_size, shuffle, sampler, batch_sampler, drop_last)
        if not self.streamed:
            _check_dataset(dataset, needs_length=sampler is None and batch_sampler is None)
        if batch_sampler is not None:
            batch_size, drop_last = None, False
        elif sampler is None and not self.streamed:
            sampler = RandomSampler(dataset, generator=generator) if shuffle else SequentialSampler(dataset)  # type: ignore[arg-type]
        if batch_size is not None and not self.streamed:
            assert sampler is not None
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        self.collate_fn = collate_fn or (default_collate if self.batched else default_convert)
        self._pool: WorkerPool | None = None
        self._ready = True

    @property
    def batched(self) -> bool:
        """Whether the loader makes batches (False: it passes single samples on)."""
        return self.batch_sampler is not None or (self.streamed and self.batch_size is not None)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIXED and getattr(self, "_ready", False):
            raise ArgumentError(f"[DataLoader] expected {name} to be given to the constructor; it cannot be changed afterwards")
        super().__setattr__(name, value)

    def __iter__(self) -> Iterator[Any]:
        return _SerialIterator(self) if self.num_workers == 0 else _ThreadedIterator(self)

    def __len__(self) -> int:
        if not self.streamed:
            return size_of(self.batch_sampler if self.batch_sampler is not None else self.sampler)
        size = size_of(self.dataset)
        if self.batch_size is None:
            return size
        return size // self.batch_size if self.drop_last else math.ceil(size / self.batch_size)

    def indices(self) -> Iterator[Any]:
        """One pass over what the workers are asked for: lists of indices, or single indices without batches."""
        return iter(self.batch_sampler if self.batch_sampler is not None else self.sampler)  # type: ignore[arg-type]

    def index_fetcher(self) -> IndexFetcher:
        return IndexFetcher(self.dataset, self.collate_fn, self.batched)

    def stream_fetcher(self) -> StreamFetcher:
        return StreamFetcher(self.dataset, self.collate_fn, self.batch_size, self.drop_last)

    def workers(self, seed: int) -> WorkerPool:
        """A pool of workers: the kept one, if they persist."""
        if self._pool is not None:
            return self._pool
        infos = [WorkerInfo(i, self.num_workers, seed + i, self.dataset) for i in range(self.num_workers)]
        pool = WorkerPool(infos, self.worker_init_fn)
        if self.persistent_workers:
            self._pool = pool
            pool.close_with(self)
        return pool


class _SerialIterator:
    """One pass in the calling thread. An exception ends one batch, not the pass."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader
        draw_seed(loader.generator)  # as with workers, so that the order does not depend on their number
        if loader.streamed:
            self.stream, self.count = loader.stream_fetcher(), _StreamCount(loader)
        else:
            self.fetch, self.requests = loader.index_fetcher(), loader.indices()

    def __iter__(self) -> "_SerialIterator":
        return self

    def __next__(self) -> Any:
        session = tracing.active
        if session is None:
            return self.load()
        start = tracing.clock()
        batch = self.load()
        session.span("load a batch", tracing.LOADER, start)
        return batch

    def load(self) -> Any:
        """The next batch."""
        if not self.loader.streamed:
            return self.fetch(next(self.requests))
        batch = self.stream()
        self.count.check([self.stream], ended=batch is END)
        if batch is END:
            raise StopIteration
        return batch

    def __len__(self) -> int:
        return len(self.loader)


class _ThreadedIterator:
    """One pass with worker threads: a queue of jobs in the order of the batches."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader
        self.pool = loader.workers(draw_seed(loader.generator))
        self.jobs: deque[tuple[Future[Any], int, str]] = deque()  # future, worker, what it was asked for
        self.turn = 0
        self.alive = weakref.ref(self)
        if not loader.persistent_workers:
            self.pool.close_with(self)
        if loader.streamed:
            self.streams: dict[int, StreamFetcher] = {i: loader.stream_fetcher() for i in range(loader.num_workers)}
            self.all_streams, self.count = list(self.streams.values()), _StreamCount(loader)
        else:
            self.fetch, self.requests = loader.index_fetcher(), loader.indices()
        for _ in range((loader.prefetch_factor or _DEFAULT_PREFETCH) * loader.num_workers):
            self.request()

    def __iter__(self) -> "_ThreadedIterator":
        return self

    def __len__(self) -> int:
        return len(self.loader)

    def request(self) -> None:
        """Give out the next job, if there is one."""
        if self.loader.streamed:
            self.request_from_stream()
            return
        try:
            indices = next(self.requests)
        except StopIteration:
            return
        except Exception as error:  # of the sampler: it surfaces after the batches before it
            if of_handler(error):
                raise
            failed: Future[Any] = Future()
            failed.set_exception(error)
            self.jobs.append((failed, 0, ""))
            return
        worker = self.turn % self.loader.num_workers
        self.turn += 1
        asked = f"the sample indices {shorten(indices)}"
        self.jobs.append((self.pool.submit(worker, partial(self.fetch, indices), self.alive), worker, asked))

    def request_from_stream(self) -> None:
        if not self.streams:
            return
        while self.turn % self.loader.num_workers not in self.streams:
            self.turn += 1
        worker = self.turn % self.loader.num_workers
        self.turn += 1
        self.jobs.append((self.pool.submit(worker, self.streams[worker], self.alive), worker, "the next samples of the stream"))

    def __next__(self) -> Any:
        while self.jobs:
            future, worker, asked = self.jobs[0]
            error = self.wait(future, worker, asked)
            self.jobs.popleft()
            ended = error is None and self.loader.streamed and future.result() is END
            if ended:
                self.streams.pop(worker, None)
            self.request()
            if error is not None:
                raise error
            if self.loader.streamed:
                self.count.check(self.all_streams, ended=ended and not self.streams and not self.jobs)
            if not ended:
                return future.result()
        if not self.loader.persistent_workers:
            self.pool.close()
        raise StopIteration

    def wait(self, future: "Future[Any]", worker: int, asked: str) -> BaseException | None:
        """The exception of a job or None, once it is done."""
        session = tracing.active if not future.done() else None
        start = session.begin() if session is not None else 0.0
        try:
            if not future.done():
                over = threading.Lock()  # not `Future.exception`: a handler may raise anywhere in a wait, which conditions do not bear
                over.acquire()
                future.add_done_callback(lambda _: over.release())
                if not over.acquire(timeout=self.loader.timeout or -1):
                    raise WorkerError(
                        f"[DataLoader] expected a batch within timeout={self.loader.timeout:g} seconds, got none from worker {worker}, "
                        f"which loads {asked}; raise timeout= or look for what blocks there"
                    )
            return future.exception()
        finally:
            if session is not None:
                session.end("wait for a batch", start)


class _StreamCount:
    """Holds an iterable dataset that has a length to it."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.name = type(loader.dataset).__name__
        self.workers = loader.num_workers
        self.promised = size_of(loader.dataset) if hasattr(type(loader.dataset), "__len__") else None

    def check(self, streams: list[StreamFetcher], ended: bool) -> None:
        if self.promised is None:
            return
        found = sum(stream.count for stream in streams)
        if found > self.promised or (ended and found < self.promised):
            hint = "; each worker iterates over all of it unless __iter__ uses get_worker_info()" if self.workers > 1 else ""
            raise DataError(
                f"[DataLoader] expected {self.promised} samples from {self.name}, as its __len__ says, got "
                f"{'at least ' if found > self.promised else ''}{found}{hint}; correct __len__ or remove it"
            )


def _check_workers(num_workers: Any, timeout: Any, prefetch_factor: Any, persistent_workers: bool) -> None:
    if isinstance(num_workers, bool) or not isinstance(num_workers, int) or num_workers < 0:
        raise ArgumentError(f"[DataLoader] expected num_workers to be an integer >= 0, got num_workers={shown(num_workers)}")
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 <= timeout < math.inf:
        raise ArgumentError(f"[DataLoader] expected timeout to be a number of seconds >= 0, got timeout={shown(timeout)}")
    if timeout and num_workers == 0:
        raise ArgumentError(f"[DataLoader] expected timeout=0 without workers, got timeout={shown(timeout)}; set num_workers >= 1")
    if prefetch_factor is not None:
        require_positive("DataLoader", "prefetch_factor", prefetch_factor)
    if persistent_workers and num_workers == 0:
        raise ArgumentError("[DataLoader] expected num_workers >= 1 for persistent_workers=True, got num_workers=0")


def _check_order(streamed: bool, batch_size: Any, shuffle: Any, sampler: Any, batch_sampler: Any, drop_last: Any) -> None:
    if shuffle not in (None, True, False):
        raise ArgumentError(f"[DataLoader] expected shuffle to be True, False or None, got {shown(shuffle)}")
    if sampler is not None and shuffle:
        raise ArgumentError(
            "[DataLoader] expected either sampler= or shuffle=True, got both: a sampler already decides the order; "
            "leave shuffle out, or use RandomSampler"
        )
    if streamed:
        for name, value in (("shuffle", shuffle), ("sampler", sampler), ("batch_sampler", batch_sampler)):
            if value is not None and value is not False:
                raise ArgumentError(f"[DataLoader] expected no {name}= for an IterableDataset, which decides its own order")
    if batch_sampler is not None:
        given = {"batch_size": batch_size != 1, "shuffle": bool(shuffle), "sampler": sampler is not None, "drop_last": drop_last}
        if any(given.values()):
            names = ", ".join(name for name, used in given.items() if used)
            raise ArgumentError(f"[DataLoader] expected batch_sampler= alone, got also {names}: it already makes the batches")
        return
    if batch_size is None:
        if drop_last:
            raise ArgumentError("[DataLoader] expected drop_last=False with batch_size=None, which makes no batches")
        return
    require_positive("DataLoader", "batch_size", batch_size)


def _check_dataset(dataset: Any, needs_length: bool) -> None:
    name = type(dataset).__name__
    if not hasattr(type(dataset), "__getitem__"):
        raise TypeError(
            f"[DataLoader] expected a dataset with __getitem__ and __len__ or an IterableDataset, got {name}; "
            "wrap a generator in an IterableDataset with __iter__"
        )
    if needs_length and size_of(dataset) == 0:
        raise ArgumentError(f"[DataLoader] expected a dataset with at least one sample, got {name} with len 0")
