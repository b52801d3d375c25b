"""DataLoader: batches of a dataset, loaded by the calling thread or ahead of it by worker processes or threads."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Any, Generic, TypeVar

from calque.base.errors import ArgumentError, CheckpointError, DTypeError, WorkerError
from calque.base.text import shown
from calque.data.collate import default_collate, default_convert
from calque.data.dataset import Dataset, Subset, TensorDataset, size_of
from calque.data.fetch import IndexFetcher, StreamFetcher
from calque.data.hugging_face import is_stream
from calque.data.pace import ENOUGH, MEASURED, Pace
from calque.data.passes import Progress, SerialPass, WorkerPass, begun
from calque.data.places import checked, go, standing
from calque.data.random_source import position, require_generator
from calque.data.sampler import BatchSampler, RandomSampler, SequentialSampler, require_positive
from calque.data.worker_info import WorkerInfo
from calque.data.workers import WorkerPool
from calque.observe.source import warn_user

T_co = TypeVar("T_co", covariant=True)
_FIXED = ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers")


class DataLoader(Generic[T_co]):
    """Batches of a dataset, with PyTorch's signature.

    `dataset` has `__getitem__` and `__len__`, or is an IterableDataset, ours or that of the package `datasets`. `batch_size=None` gives single
    samples. `shuffle` and `sampler` exclude each other, and `batch_sampler` excludes both and `batch_size` and `drop_last`. The order of a shuffled
    loader is a function of `generator`, or of `calque.manual_seed`, alone; batches are the same for every `num_workers`.

    `num_workers` load `prefetch_factor` batches each ahead of the loop (default 2). "auto" measures a few batches and takes as many as the loop needs
    and the machine has cores, and says so in one line. `multiprocessing_context`: what workers are. "forkserver" and "spawn": processes, which get
    the dataset by `pickle` (arrays and tensors in it are shared) and hand over batches in shared memory without copies; "thread": threads, which
    share the dataset itself; None: processes, but threads where those lose nothing (a TensorDataset, a Python without a global lock) and, with a
    warning, where the dataset cannot be sent. "fork" is refused: it hangs in a process with threads.

    What a dataset draws from `random`, `numpy.random` and Calque's default stream for a sample is a function of the seed of the pass and the index of
    the sample, whoever loads it (in threads of Calque's stream alone); afterwards those streams are where they were.

    `worker_init_fn(worker_id)` runs first in each worker. `timeout` is in seconds, 0 waits for ever. `persistent_workers` keeps them from pass to
    pass, with the dataset that they got first. `in_order=False` hands out batches as they come. `pin_memory` and `pin_memory_device` are accepted:
    host memory needs no pinning for the CPU.

    A worker that dies is replaced, and its batches are loaded by its successor; WorkerError when three have died at one batch. An exception of the
    dataset keeps its class, carries a note with the sample index and the worker, and the worker's traceback as its cause.

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
        num_workers: int | str = 0,
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
        self._method = _check_method(multiprocessing_context, num_workers)
        self.dataset = dataset
        self.num_workers: Any = num_workers
        self.prefetch_factor = prefetch_factor
        self.pin_memory = pin_memory
        self.pin_memory_device = pin_memory_device
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = multiprocessing_context
        self.generator = generator
        self.persistent_workers = persistent_workers
        self.in_order = in_order
        self.streamed = is_stream(dataset)
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
        if num_workers == "auto" and self.streamed:
            raise ArgumentError("[DataLoader] expected num_workers as a number for an IterableDataset, which shares out its samples, got 'auto'")
        self._pool: Any = None
        self._progress: Progress | None = None  # of the pass that began last
        self._resumed: Progress | None = None  # for the pass that begins next
        self._pace = Pace(0)
        self._ready = True

    @property
    def batched(self) -> bool:
        """Whether the loader makes batches (False: it passes single samples on)."""
        return self.batch_sampler is not None or (self.streamed and self.batch_size is not None)

    @property
    def _auto_collation(self) -> bool:
        """PyTorch's name of `batched`: subclasses of programs hand whole lists of indices to the dataset by another answer."""
        return self.batched

    @property
    def _index_sampler(self) -> Any:
        """PyTorch's name of what `indices` goes through, which such subclasses choose, too."""
        return self.batch_sampler if self.batch_sampler is not None else self.sampler

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIXED and getattr(self, "_ready", False):
            raise ArgumentError(f"[DataLoader] expected {name} to be given to the constructor; it cannot be changed afterwards")
        super().__setattr__(name, value)

    def __iter__(self) -> Iterator[Any]:
        resumed, self._resumed = self._resumed, None
        samplers = self._samplers()
        progress, requests = begun(self, resumed)
        progress.samplers = samplers
        self._progress = progress
        if self.num_workers == "auto":
            self._pace = Pace(0)
            return self._measured(SerialPass(self, progress, requests, self._pace))
        self._pace = Pace(self.num_workers)
        if self.num_workers == 0:
            return SerialPass(self, progress, requests, self._pace)
        return WorkerPass(self, self.num_workers, progress, requests, self._pace)

    def _measured(self, serial: SerialPass) -> Iterator[Any]:
        """A pass that begins in the calling thread and goes on with the workers that it turns out to need."""
        for batch in serial:
            yield batch
            if self._pace.counted >= MEASURED:
                break
        if self._pace.counted < MEASURED:
            return
        self.num_workers, alone = self._pace.choice(), self._pace.text()
        if self.num_workers == 0:
            sys.stderr.write(f"{alone.replace('more workers would not help', 'num_workers=0')}\n")
            yield from serial
            return
        self._pace = Pace(self.num_workers)
        for batch in WorkerPass(self, self.num_workers, serial.progress, serial.requests, self._pace):
            yield batch
            if self._pace.counted == ENOUGH:
                sys.stderr.write(f"{self._pace.text()} (num_workers={self.num_workers} was chosen)\n")

    def limits(self) -> str:
        """One line that says whether loading or computing limits the pass that began last, and by how much other numbers of workers would help.

        >>> loader = calque.data.DataLoader(calque.data.TensorDataset(calque.arange(5)), batch_size=2)
        >>> loader.limits()
        '[DataLoader] nothing can be said before 3 batches of a pass'
        """
        return self._pace.text()

    def state_dict(self) -> dict[str, Any]:
        """Where the pass that began last stands, as numbers: save it with a checkpoint, and a loader that gets it by `load_state_dict` goes on with
        the batches that were not handed out yet, in the same order and with the same random numbers. For an IterableDataset its first samples are
        computed again and dropped. Between two passes it is where the loader's own `generator` and those of its samplers stand. A sampler with
        `state_dict` and `load_state_dict` of its own (such as DistributedSampler) is asked for its state, too.

        >>> loader = calque.data.DataLoader(calque.data.TensorDataset(calque.arange(6)), batch_size=2, shuffle=True)
        >>> rest = iter(loader)
        >>> first = next(rest)
        >>> other = calque.data.DataLoader(calque.data.TensorDataset(calque.arange(6)), batch_size=2, shuffle=True, num_workers=2)
        >>> other.load_state_dict(loader.state_dict())
        >>> [a[0].tolist() for a in rest] == [b[0].tolist() for b in other]
        True
        """
        progress = self._resumed or self._progress
        state: dict[str, Any] = {"version": 1, "streamed": self.streamed, "batches": self._known_length(), "pass": None}
        state["samplers"], state["places"] = self._samplers(), standing(self)
        if self.generator is not None:
            state["generator"] = list(position(self.generator))
        if progress is not None and not progress.over:
            if progress is not self._resumed:
                state["samplers"] = progress.samplers
            state["workers"] = max(int(self.num_workers), 1) if self.streamed else 0
            state["pass"] = {
                "seed": progress.beginning[0], "offset": progress.beginning[1], "delivered": progress.delivered, "ahead": sorted(progress.ahead),
                "streams": [progress.streams.get(worker, 0) for worker in range(state["workers"])], "turn": progress.turn,
                "places": progress.places,
            }  # fmt: skip
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Begin the next pass where `state_dict` says. Any number and kind of workers may go on (of an IterableDataset the same number).

        Raises CheckpointError if the state is of a loader with other batches; nothing has changed then.
        """
        try:
            version, streamed, batches, found = (state_dict[name] for name in ("version", "streamed", "batches", "pass"))
            workers = state_dict["workers"] if found is not None else 0
            progress = None if found is None else _progress_of(found)
            places = _place_of(state_dict.get("generator")), dict(state_dict.get("samplers", {})), checked(state_dict.get("places", {}))
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"[DataLoader] expected what state_dict() of a DataLoader gave, got {shown(state_dict)} ({error!r})") from error
        if version != 1:
            raise CheckpointError(f"[DataLoader] expected a state of version 1, got version {shown(version)}; it was saved by a newer Calque")
        if found is not None and (streamed != self.streamed or batches != self._known_length()):
            raise CheckpointError(
                f"[DataLoader] expected a state of a loader with {self._known_length()} batches, got one with {batches}; use the same dataset, "
                f"batch_size "
                "and drop_last"
            )
        if self.streamed and found is not None and workers != max(int(self.num_workers), 1):
            raise CheckpointError(
                f"[DataLoader] expected num_workers={workers} for the state of an IterableDataset, whose workers share out its samples, got "
                f"{self.num_workers}"
            )
        for name, state in places[1].items():
            sampler: Any = getattr(self, name, None)
            if hasattr(sampler, "load_state_dict"):
                sampler.load_state_dict(state)
        if places[0] is not None and self.generator is not None:
            position(self.generator, places[0])
        go(self, places[2])
        self._resumed, self._progress = progress, None

    def _samplers(self) -> dict[str, Any]:
        """The state of samplers that have one."""
        found = {name: getattr(self, name) for name in ("sampler", "batch_sampler")}
        return {name: sampler.state_dict() for name, sampler in found.items() if hasattr(sampler, "state_dict")}

    def _known_length(self) -> int | None:
        try:
            return len(self)
        except TypeError:
            return None

    def __len__(self) -> int:
        if not self.streamed:
            return size_of(self.batch_sampler if self.batch_sampler is not None else self.sampler)
        size = size_of(self.dataset)
        if self.batch_size is None:
            return size
        return size // self.batch_size if self.drop_last else math.ceil(size / self.batch_size)

    def indices(self) -> Iterator[Any]:
        """One pass over what the workers are asked for: lists of indices, or single indices without batches."""
        return iter(self._index_sampler)

    def index_fetcher(self, seed: int) -> IndexFetcher:
        return IndexFetcher(self.dataset, self.collate_fn, self._auto_collation, seed)

    def stream_fetcher(self, seed: int) -> StreamFetcher:
        return StreamFetcher(self.dataset, self.collate_fn, self.batch_size, self.drop_last, seed)

    def pool(self, workers: int, seed: int) -> Any:
        """A pool of workers: the kept one, if they persist."""
        if self._pool is not None:
            return self._pool
        pool = self._processes(workers, seed)
        if pool is None:
            infos = [WorkerInfo(i, workers, seed + i, self.dataset) for i in range(workers)]
            pool = WorkerPool(infos, self.worker_init_fn)
        if self.persistent_workers:
            self._pool = pool
            pool.close_with(self)
        return pool

    def _processes(self, workers: int, seed: int) -> Any:
        """Worker processes; None where threads are asked for, or better."""
        if self._method == "thread" or (self._method == "" and _threads_suffice(self.dataset, self.collate_fn)):
            return None
        try:
            parts = {"dataset": self.dataset, "collate_fn": self.collate_fn, "worker_init_fn": self.worker_init_fn}
            payload = import_module("calque.data.payload").Payload(parts)
        except (DTypeError, WorkerError) as error:
            if self._method:
                raise
            warn_user(f"{error}. These workers are threads.")
            self._method = "thread"
            return None
        setup = {
            "workers": workers, "seed": seed, "streamed": self.streamed, "batched": self._auto_collation, "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "main": payload.main, "path": list(sys.path), "argv": list(sys.argv), "folder": os.getcwd(), "torch": "calque.compat.run" in sys.modules,
        }  # fmt: skip
        return import_module("calque.data.processes").ProcessPool(payload, setup, self._method or "forkserver")


def _threads_suffice(dataset: Any, collate_fn: Any) -> bool:
    """Whether loading holds no lock that threads would wait for."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return True
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return type(dataset) is TensorDataset and collate_fn is default_collate


def _progress_of(found: dict[str, Any]) -> Progress:
    """A pass, from its numbers, each of which is looked at."""
    numbers = [found[name] for name in ("seed", "offset", "delivered", "turn")]
    if any(type(n) is not int for n in (*numbers, *found["ahead"], *found["streams"])) or min(numbers[2:]) < 0 or any(n < 0 for n in found["ahead"]):
        raise ValueError("numbers are missing")
    places, streams = checked(found.get("places", {})), dict(enumerate(found["streams"]))
    return Progress((numbers[0], numbers[1]), 0, numbers[2], set(found["ahead"]), streams, numbers[3], places=places)


def _place_of(found: Any) -> tuple[int, int] | None:
    """Where a generator stood: seed and offset."""
    if found is None:
        return None
    seed, offset = found
    if type(seed) is not int or type(offset) is not int:
        raise ValueError(f"the place {shown(found)} of a generator")
    return seed, offset


MOST_WORKERS = 4096  # processes that one loader may start


def _check_workers(num_workers: Any, timeout: Any, prefetch_factor: Any, persistent_workers: bool) -> None:
    if num_workers != "auto" and (isinstance(num_workers, bool) or not isinstance(num_workers, int) or num_workers < 0):
        raise ArgumentError(f"[DataLoader] expected num_workers to be an integer >= 0, or 'auto', got num_workers={shown(num_workers)}")
    if num_workers != "auto" and num_workers > MOST_WORKERS:
        raise ArgumentError(f"[DataLoader] expected at most {MOST_WORKERS} workers, got {shown(num_workers)}; one for each core is enough")
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


def _check_method(context: Any, num_workers: Any) -> str:
    """The kind of workers that `multiprocessing_context` names; "" if it says nothing."""
    if context is None:
        return ""
    method = context if isinstance(context, str) else getattr(context, "get_start_method", lambda: None)()
    if method == "fork":
        raise ArgumentError(
            "[DataLoader] expected multiprocessing_context 'forkserver', 'spawn' or 'thread', got 'fork': a copy of a process that has threads (and "
            "this one has) "
            "hangs whenever one of them held a lock; use 'forkserver'"
        )
    if method not in ("forkserver", "spawn", "thread"):
        raise ArgumentError(f"[DataLoader] expected multiprocessing_context 'forkserver', 'spawn', 'thread' or None, got {shown(context)}")
    if num_workers == 0:
        raise ArgumentError(f"[DataLoader] expected num_workers >= 1 with multiprocessing_context={shown(context)}, got num_workers=0")
    return str(method)
