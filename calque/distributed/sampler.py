"""The share of one rank of a dataset."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from calque.base.errors import ArgumentError, CheckpointError
from calque.base.text import shown
from calque.data.dataset import size_of
from calque.data.sampler import Sampler
from calque.distributed.world import WORLD, world
from calque.functional.generators import Generator
from calque.functional.random import randperm


class DistributedSampler(Sampler[int]):
    """The indices of one of several processes: every `num_replicas`-th of them, from `rank` on, in an order that `seed` and the epoch choose, the
    same on all ranks.

    num_replicas, rank: default, those of the job. After a pass to its end comes the next epoch, in another order, unless `set_epoch` has said which
    (PyTorch repeats the first order then); a pass that breaks off, to look at a batch on one rank for instance, changes nothing. drop_last: leave out
    what does not come out even; pad: else repeat the first ones (default), or, with
    `pad=False`, give some ranks one less, so that every sample comes exactly once.

    >>> from calque.distributed import DistributedSampler
    >>> [list(DistributedSampler(range(5), 2, rank, shuffle=False)) for rank in range(2)]
    [[0, 2, 4], [1, 3, 0]]
    >>> [list(DistributedSampler(range(5), 2, rank, shuffle=False, pad=False)) for rank in range(2)]
    [[0, 2, 4], [1, 3]]
    """

    def __init__(
        self, dataset: Any, num_replicas: int | None = None, rank: int | None = None, shuffle: bool = True, seed: int = 0, drop_last: bool = False,
        *, pad: bool = True,
    ) -> None:  # fmt: skip
        if (num_replicas is None or rank is None) and WORLD.group is None:
            raise RuntimeError(
                "[DistributedSampler] Requires distributed package: expected num_replicas and rank, got None and no job; give both, or call "
                "init_process_group() first"
            )
        num_replicas = world("DistributedSampler").size() if num_replicas is None else num_replicas
        rank = world("DistributedSampler").rank() if rank is None else rank
        if isinstance(num_replicas, bool) or not isinstance(num_replicas, int) or num_replicas < 1:
            raise ArgumentError(f"[DistributedSampler] expected num_replicas to be a positive whole number, got {shown(num_replicas)}")
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < num_replicas:
            raise ArgumentError(f"[DistributedSampler] Invalid rank {rank}, rank should be in the interval [0, {num_replicas - 1}]; count from 0")
        self.dataset, self.num_replicas, self.rank, self.epoch = dataset, num_replicas, rank, 0
        self.shuffle, self.seed, self.drop_last, self.pad = shuffle, seed, drop_last, pad
        self._over = False  # whether the pass of `epoch` has been
        self._begin_at(0)

    def _begin_at(self, start: int) -> None:
        """Let the pass be of the samples from place `start` of the epoch's order on: those before it other ranks have had."""
        self._start = start
        count = max(size_of(self.dataset) - start, 0)
        if self.drop_last:
            self.num_samples = count // self.num_replicas
        elif self.pad:
            self.num_samples = math.ceil(count / self.num_replicas)
        else:
            self.num_samples = len(range(self.rank, count, self.num_replicas))
        self.total_size = count if not (self.pad or self.drop_last) else self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        if self._over:
            self.set_epoch(self.epoch + 1)
        count = size_of(self.dataset)
        if self.shuffle:
            generator = Generator()
            generator.manual_seed(self.seed + self.epoch)
            indices: list[int] = randperm(count, generator=generator).tolist()
        else:
            indices = list(range(count))
        rest = indices[self._start :]
        missing = self.total_size - len(rest)
        if missing > 0:
            rest += (indices * math.ceil(missing / max(count, 1)))[:missing]
        return self._to_the_end(rest[self.rank : self.total_size : self.num_replicas], self.epoch)

    def _to_the_end(self, indices: list[int], epoch: int) -> Iterator[int]:
        yield from indices
        self._over = self._over or self.epoch == epoch

    def __len__(self) -> int:
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next pass is, as after a resumption; the same on every rank."""
        self.epoch, self._over = epoch, False
        self._begin_at(0)

    def state_dict(self) -> dict[str, Any]:
        """Which epoch the pass is of that began last, whether it has come to its end, and where in the epoch's order it began. A DataLoader keeps it
        in its own state."""
        return {"epoch": self.epoch, "over": self._over, "start": self._start}

    def go_on(self, state_dict: dict[str, Any], taken: int) -> None:
        """Let the next pass be of what is left of the pass that came next after `state_dict` was asked of the sampler of any rank, of any number of
        ranks, when these have taken `taken` samples of it together."""
        self.load_state_dict(state_dict)
        if self._over:
            self.set_epoch(self.epoch + 1)
        self._begin_at(min(self._start + taken, size_of(self.dataset)))
        self._over = self._start == size_of(self.dataset)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Let the next pass be the one that would have come next. Raises CheckpointError for anything but what `state_dict` gave."""
        epoch, over, start = state_dict.get("epoch"), state_dict.get("over"), state_dict.get("start")
        if type(epoch) is not int or type(over) is not bool or type(start) is not int or not 0 <= start <= size_of(self.dataset):
            raise CheckpointError(f"[DistributedSampler] expected what state_dict() of one gave, got {shown(state_dict)}; save it again")
        self.epoch, self._over = epoch, over
        self._begin_at(start)
