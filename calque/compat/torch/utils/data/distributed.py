"""`torch.utils.data.distributed`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import calque
from calque.base.errors import ArgumentError
from calque.data import Sampler

__all__ = ["DistributedSampler"]


class DistributedSampler(Sampler):
    """The indices of one of several processes: every `num_replicas`-th of them, from `rank` on, in an order that `seed` and `set_epoch` choose.

    There are no process groups, so both have to be given. drop_last: leave out what does not come out even, else repeat the first ones.
    """

    def __init__(
        self, dataset: Any, num_replicas: int | None = None, rank: int | None = None, shuffle: bool = True, seed: int = 0, drop_last: bool = False
    ) -> None:
        if num_replicas is None or rank is None:
            raise RuntimeError("[DistributedSampler] Requires distributed package: expected num_replicas and rank, got None; give both")
        if not 0 <= rank < num_replicas:
            raise ArgumentError(f"[DistributedSampler] Invalid rank {rank}, rank should be in the interval [0, {num_replicas - 1}]; count from 0")
        self.dataset, self.num_replicas, self.rank, self.epoch = dataset, num_replicas, rank, 0
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        count = len(dataset)
        even = drop_last and count % num_replicas
        self.num_samples = math.ceil((count - num_replicas) / num_replicas) if even else math.ceil(count / num_replicas)
        self.total_size = self.num_samples * num_replicas

    def __iter__(self) -> Iterator[int]:
        if self.shuffle:
            generator = calque.Generator()
            generator.manual_seed(self.seed + self.epoch)
            indices: list[int] = calque.randperm(len(self.dataset), generator=generator).tolist()
        else:
            indices = list(range(len(self.dataset)))
        if self.drop_last:
            indices = indices[: self.total_size]
        else:
            missing = self.total_size - len(indices)
            indices += (indices * math.ceil(missing / max(len(indices), 1)))[:missing]
        return iter(indices[self.rank : self.total_size : self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Choose another order; the same in every process."""
        self.epoch = epoch
