"""A training run on the ranks of a job, as one process would do it: every rank computes its samples of each batch, and all of them know the same
figures, streams and checkpoints.

Batches stay what the loader says: rank r of n takes the samples r, r + n, r + 2 n, .. of each. So losses and updates do not depend on the number of
ranks, and a run goes on with another one.
"""

from __future__ import annotations

import contextlib
import random
import signal
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

import calque
from calque import distributed as dist
from calque import nn
from calque.base.config import job_variables
from calque.base.errors import ArgumentError, DTypeError
from calque.base.text import type_name
from calque.data import DataLoader
from calque.train.streams import set_streams, streams


class ShareOfBatches:
    """Of every batch of indices those of one rank. `sizes`: how many of each batch of this pass it has; of one that is smaller than the number of
    ranks it may have none, and takes the first sample for company, which counts nothing."""

    def __init__(self, batches: Any, rank: int, ranks: int) -> None:
        self.batches, self.rank, self.ranks = batches, rank, ranks
        self.sizes: list[int] = []

    def __iter__(self) -> Iterator[list[Any]]:
        self.sizes = sizes = []
        for batch in self.batches:
            mine = list(batch)[self.rank :: self.ranks]
            sizes.append(len(mine))
            yield mine or list(batch)[:1]

    def __len__(self) -> int:
        return len(self.batches)

    def state_dict(self) -> dict[str, Any]:
        """Of the sampler inside, if it has a state."""
        inside: Any = getattr(self.batches, "sampler", None)
        return inside.state_dict() if hasattr(inside, "state_dict") else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Give it back to the sampler inside."""
        inside: Any = getattr(self.batches, "sampler", None)
        if hasattr(inside, "load_state_dict"):
            inside.load_state_dict(state)


def ranks_of_job() -> int:
    """How many processes were started for the job that this one belongs to."""
    return dist.get_world_size() if dist.is_initialized() else int(job_variables().get("WORLD_SIZE", "1"))


def require_one_process() -> None:
    """Raise in a job: a run with a recipe writes all its files itself."""
    if (ranks := ranks_of_job()) > 1:
        raise ArgumentError(f"[train] expected one process for `calque train`, got a job of {ranks}; write a script with a Trainer for that")


class Ranks:
    """The ranks of the job that this process belongs to; it joins a job that has started it. One rank where there is none."""

    def __init__(self) -> None:
        if not dist.is_initialized() and ranks_of_job() > 1:
            dist.init_process_group("mpi")
        there = dist.is_initialized()
        self.rank, self.size = (dist.get_rank(), dist.get_world_size()) if there else (0, 1)
        self._shared: list[tuple[Any, Any]] = []  # loaders, and what loads this rank's share of them

    @property
    def first(self) -> bool:
        """Whether this rank writes the files."""
        return self.rank == 0

    def wrapped(self, model: Any) -> Any:
        """A model whose gradients are those of the samples of all ranks."""
        if self.size == 1:
            return model
        if any(isinstance(part, dist.FSDPModule) for part in model.modules()):
            raise DTypeError(
                "[Trainer] expected a model whose parameters are whole on every rank, got one that fully_shard has shared out; write the loop, "
                "as docs/distributed.md does"
            )
        if not isinstance(model, dist.DistributedDataParallel):
            return dist.DistributedDataParallel(model, weight="samples")
        if model.weight != "samples":
            raise ArgumentError("[Trainer] expected DistributedDataParallel(model, weight='samples'), got weight='ranks'; or pass the model itself")
        return model

    @staticmethod
    def inside(model: Any) -> Any:
        """The model itself."""
        return model.module if isinstance(model, dist.DistributedDataParallel | nn.DataParallel) else model

    def apart(self, model: Any, last: bool) -> Any:
        """Around the backward pass of one batch of an update: gradients travel with the last one."""
        return contextlib.nullcontext() if last or self.size == 1 or not isinstance(model, dist.DistributedDataParallel) else model.no_sync()

    def share(self, loader: Any) -> Any:
        """What loads this rank's samples of the batches of a loader."""
        sampler, batches = getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)
        if self.size == 1 or isinstance(sampler, dist.DistributedSampler) or isinstance(batches, ShareOfBatches):
            return loader
        for known, found in self._shared:
            if known is loader:
                return found
        if not isinstance(loader, DataLoader) or loader.streamed or loader.batch_sampler is None or not loader.in_order:
            raise DTypeError(
                f"[Trainer] expected a DataLoader that makes batches of a dataset with a length, in order, to share among {self.size} ranks, "
                f"got {type_name(loader)}; or one with a DistributedSampler, which is taken as it is"
            )
        part = DataLoader(
            loader.dataset, batch_sampler=ShareOfBatches(loader.batch_sampler, self.rank, self.size), num_workers=loader.num_workers,
            collate_fn=loader.collate_fn, timeout=loader.timeout, worker_init_fn=loader.worker_init_fn, generator=loader.generator,
            multiprocessing_context=loader.multiprocessing_context, prefetch_factor=loader.prefetch_factor,
            persistent_workers=loader.persistent_workers,
        )  # fmt: skip
        self._shared.append((loader, part))
        return part

    @staticmethod
    def sampler(loader: Any) -> Any:
        """What orders the samples of a loader, if it is known."""
        shares = getattr(loader, "batch_sampler", None)
        return getattr(shares.batches if isinstance(shares, ShareOfBatches) else loader, "sampler", None)

    def sizes(self, loader: Any, first: int, group: Sequence[Any]) -> list[int]:
        """How many samples of each batch of a group count, the first of which has this number in its pass."""
        shares = getattr(loader, "batch_sampler", None)
        if isinstance(shares, ShareOfBatches):
            return shares.sizes[first : first + len(group)]
        return [len(batch[-1]) if isinstance(batch, list | tuple) else 1 for batch in group]

    def begin(self, loader: Iterable[Any]) -> Iterator[Any]:
        """A new pass: the same order and the same augmentation on all ranks, and then random numbers of its own on each."""
        if self.size == 1:
            return iter(loader)
        set_streams(self.agreed(streams()))
        found = iter(loader)
        self.leave()
        return found

    def leave(self) -> None:
        """From the streams of the first rank, which are one process's, go on with those of this one."""
        if self.rank:
            place = calque.get_rng_state().numpy().view(np.int64).copy()
            place[0] ^= self.rank * 0x1E3779B97F4A7C15  # the seed; the offset says how much of the stream is used up
            calque.set_rng_state(calque.from_numpy(place.view(np.uint8)))
            random.seed(random.getrandbits(64) ^ self.rank)
            np.random.seed((int(np.random.randint(1 << 31)) ^ self.rank) % (1 << 31))

    def take_up(self, found: Any) -> None:
        """The streams of a checkpoint: those of this rank, if it was made by as many."""
        each = found if isinstance(found, list) else [found]
        set_streams(each[self.rank if len(each) == self.size else 0])
        if len(each) != self.size:
            self.leave()

    def agreed(self, value: Any) -> Any:
        """An object of the first rank, on all ranks."""
        if self.size == 1:
            return value
        held = [value]
        dist.broadcast_object_list(held)
        return held[0]

    def all(self, value: Any) -> list[Any]:
        """The objects of all ranks, in order."""
        found = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(found, value)
        return found

    def total(self, numbers: Sequence[float]) -> list[float]:
        """Sums over the ranks."""
        if self.size == 1:
            return list(numbers)
        held = calque.tensor(list(numbers), dtype=calque.float64)
        dist.all_reduce(held)
        return held.tolist()  # type: ignore[no-any-return]

    def told(self, mean: Any, count: int, asked: int) -> Any:
        """What the ranks tell each other of an update, for `read`: the mean loss of its samples, and the signal that asks this one to end."""
        if self.size == 1:
            return mean
        parts = [mean.to(calque.float64) * count if count else calque.zeros((), dtype=calque.float64)]
        parts += [calque.tensor(float(n), dtype=calque.float64) for n in (count, asked == signal.SIGTERM, asked == signal.SIGINT)]
        held = calque.stack(parts)
        dist.all_reduce(held)
        return held

    def read(self, told: Any) -> tuple[float, int]:
        """The mean loss over the samples of all ranks, and the signal that asks any of several."""
        if self.size == 1:
            return float(told.item()), 0
        total, count, ends, stops = told.tolist()
        return (total / count if count else 0.0), int(signal.SIGTERM if ends else signal.SIGINT if stops else 0)
