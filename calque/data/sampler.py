"""Orders in which the samples of a dataset are visited; names and behaviour as in `torch.utils.data`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any, Generic, TypeVar

import numpy as np

from calque.base.errors import ArgumentError, DTypeError
from calque.base.text import described, shown
from calque.data.dataset import require_indices, size_of
from calque.data.random_source import host_generator, require_generator

T_co = TypeVar("T_co", covariant=True)
_BLOCK = 4096  # indices made at a time: long epochs need no list of all of them


class Sampler(Generic[T_co]):
    """Base class: subclasses define `__iter__`, which gives indices (or lists of them), and `__len__` where it is known."""

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError(f"[Sampler] expected {type(self).__name__} to define __iter__(self)")


class SequentialSampler(Sampler[int]):
    """0, 1, 2, ... in order."""

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(size_of(self.data_source)))

    def __len__(self) -> int:
        return size_of(self.data_source)


class RandomSampler(Sampler[int]):
    """A new random order at each pass, or `num_samples` draws with replacement.

    The order is a function of the state of `generator` (default: `calque.manual_seed`). Without replacement a `num_samples` above
    the size of the dataset appends further random orders.
    """

    def __init__(
        self, data_source: Sized, replacement: bool = False, num_samples: int | None = None, generator: Any = None
    ) -> None:
        if not isinstance(replacement, bool):
            raise TypeError(f"[RandomSampler] expected replacement to be True or False, got {shown(replacement)}")
        require_generator("RandomSampler", generator)
        self.data_source = data_source
        self.replacement = replacement
        self.generator = generator
        self._num_samples = num_samples
        size = size_of(data_source)
        require_positive("RandomSampler", "num_samples", size if num_samples is None else num_samples)
        require_positive("RandomSampler", f"len({type(data_source).__name__})", size)

    @property
    def num_samples(self) -> int:
        return size_of(self.data_source) if self._num_samples is None else self._num_samples

    def __iter__(self) -> Iterator[int]:
        generator, size, wanted = host_generator(self.generator), size_of(self.data_source), self.num_samples
        if self.replacement:
            draws = (generator.integers(0, size, min(_BLOCK, wanted - at)) for at in range(0, wanted, _BLOCK))
            return _numbers(draws)
        orders = (generator.permutation(size) for _ in range(-(-wanted // size)))
        return itertools.islice(_numbers(orders), wanted)

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(Sampler[int]):
    """The given indices in a new random order at each pass."""

    def __init__(self, indices: Sequence[int], generator: Any = None) -> None:
        require_generator("SubsetRandomSampler", generator)
        require_indices("SubsetRandomSampler", indices)
        self.indices = indices
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        return (self.indices[i] for i in _numbers([host_generator(self.generator).permutation(len(self.indices))]))

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(Sampler[int]):
    """`num_samples` indices drawn with probabilities proportional to `weights`, which need not add up to 1.

    Without replacement the draw is the sequential one, computed by exponential keys (Efraimidis and Spirakis 2006, algorithm A).
    """

    def __init__(self, weights: Sequence[float], num_samples: int, replacement: bool = True, generator: Any = None) -> None:
        require_positive("WeightedRandomSampler", "num_samples", num_samples)
        if not isinstance(replacement, bool):
            raise TypeError(f"[WeightedRandomSampler] expected replacement to be True or False, got {shown(replacement)}")
        require_generator("WeightedRandomSampler", generator)
        self.weights = np.asarray(weights, dtype=np.float64)
        if self.weights.ndim != 1 or not np.isfinite(self.weights).all() or (self.weights < 0).any() or not self.weights.any():
            raise ArgumentError(
                "[WeightedRandomSampler] expected a list of finite weights >= 0 that are not all 0, "
                f"got shape {self.weights.shape}, values {np.array2string(self.weights, threshold=6)}"
            )
        positive = int(np.count_nonzero(self.weights))
        if not replacement and num_samples > positive:
            raise ArgumentError(
                f"[WeightedRandomSampler] expected at most {positive} draws without replacement (weights above 0), got "
                f"num_samples={num_samples}; use replacement=True"
            )
        self.num_samples = num_samples
        self.replacement = replacement
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        generator = host_generator(self.generator)
        if not self.replacement:
            keys = np.full(len(self.weights), np.inf)
            chosen = self.weights > 0
            keys[chosen] = generator.standard_exponential(int(chosen.sum())) / self.weights[chosen]
            return _numbers([np.argsort(keys, kind="stable")[: self.num_samples]])
        ends = np.cumsum(self.weights)
        last = int(np.flatnonzero(self.weights)[-1])  # rounding of the sum must not reach beyond it
        draws = generator.random(self.num_samples) * ends[-1]
        return _numbers([np.minimum(np.searchsorted(ends, draws, side="right"), last)])

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler[list[int]]):
    """Lists of `batch_size` indices of another sampler; the last may be shorter, or is dropped.

    >>> from calque.data import BatchSampler
    >>> list(BatchSampler(range(5), batch_size=2, drop_last=False))
    [[0, 1], [2, 3], [4]]
    """

    def __init__(self, sampler: Iterable[int], batch_size: int, drop_last: bool) -> None:
        require_positive("BatchSampler", "batch_size", batch_size)
        if isinstance(sampler, type) or not hasattr(sampler, "__iter__") or getattr(sampler, "ndim", 1) == 0:
            raise DTypeError(f"[BatchSampler] expected a sampler or other indices to walk through, got {described(sampler)}")
        if not isinstance(drop_last, bool):
            raise ArgumentError(f"[BatchSampler] expected drop_last to be True or False, got {shown(drop_last)}")
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[list[int]]:
        indices = iter(self.sampler)
        while batch := list(itertools.islice(indices, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch

    def __len__(self) -> int:
        size = size_of(self.sampler)
        return size // self.batch_size if self.drop_last else -(-size // self.batch_size)


def require_positive(where: str, name: str, value: object) -> None:
    """Raise ValueError unless `value` is an integer above 0."""
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise ArgumentError(f"[{where}] expected {name} to be an integer >= 1, got {name}={shown(value)}")


def _numbers(blocks: Iterable[np.ndarray[Any, Any]]) -> Iterator[int]:
    """The entries of arrays as Python integers, a block at a time."""
    for block in blocks:
        for start in range(0, len(block), _BLOCK):
            yield from block[start : start + _BLOCK].tolist()
