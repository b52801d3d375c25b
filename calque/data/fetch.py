"""Getting the samples of one batch: the same code for the calling thread and for workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from calque.base.asked import ASKED
from calque.base.dataclass import dataclass
from calque.base.device import META
from calque.base.errors import DataError
from calque.data.collate import collate, default_collate
from calque.data.convert import rows
from calque.data.dataset import Subset, TensorDataset, takes_lists
from calque.data.hugging_face import part_of_worker
from calque.data.streams import begin, mixed
from calque.data.worker_info import get_worker_info

END = object()  # what a stream gives instead of a batch when it has no more samples
COLLATE = "the batch that begins with"


@dataclass(frozen=True, slots=True)
class IndexFetcher:
    """Loads batches of a dataset with an index. `batched` is False when each index is one item of its own. What a sample draws depends on `seed` and
    its index, what `collate_fn` draws on the first index of the batch."""

    dataset: Any
    collate_fn: Callable[[Any], Any]
    batched: bool
    seed: int

    def __call__(self, indices: Any) -> Any:
        if not self.batched:
            return _collate(self.collate_fn, self.sample(indices), [indices])
        gathered = self.quick(indices)
        if gathered is not None:
            return gathered
        if takes_lists(self.dataset):
            samples = self.samples_at_once(indices)
        else:
            samples = [self.sample(index) for index in indices]
        if self.collate_fn is default_collate:
            return collate(samples, indices, "index")
        begin(self.seed, (COLLATE, *indices[:1]))
        return _collate(self.collate_fn, samples, indices)

    def quick(self, indices: Any) -> Any:
        """The batch, where it can be had without running anything of the user's; else None."""
        return _gather(self.dataset, indices) if self.batched and self.collate_fn is default_collate else None

    def sample(self, index: Any) -> Any:
        begin(self.seed, index)
        try:
            return self.dataset[index]
        except StopIteration as error:
            raise DataError(
                f"[DataLoader] expected a sample or an IndexError from {_name(self.dataset)}.__getitem__, got StopIteration for "
                f"sample index {index}; it would end the loop silently"
            ) from error
        except Exception as error:
            error.add_note(_note(self.dataset, index) + _length_note(self.dataset, index, error))
            raise

    def samples_at_once(self, indices: Any) -> Any:
        begin(self.seed, (COLLATE, *indices[:1]))
        try:
            samples = self.dataset.__getitems__(indices)
        except Exception as error:
            error.add_note(
                f"[DataLoader] raised by {_name(self.dataset)}.__getitems__ for sample indices {shorten(indices)}{_where()}"
            )
            raise
        if len(samples) != len(indices):
            raise DataError(
                f"[DataLoader] expected {len(indices)} samples from {_name(self.dataset)}.__getitems__, got {len(samples)} for "
                f"the sample indices {shorten(indices)}"
            )
        return samples


class StreamFetcher:
    """Loads batches of one pass over an iterable dataset; gives `END` when there are no more samples.

    The pass begins with the first batch, in the thread that asks for it: there `get_worker_info` tells the dataset its part.
    """

    def __init__(self, dataset: Any, collate_fn: Callable[[Any], Any], batch_size: int | None, drop_last: bool, seed: int) -> None:
        self.dataset = dataset
        self.seed = seed
        self.batches = 0
        self.collate_fn = collate_fn
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.iterator: Iterator[Any] | None = None
        self.count = 0  # samples taken so far
        self.ended = False

    def __call__(self) -> Any:
        info = get_worker_info()
        begin(mixed(self.seed, self.batches), -1 - (info.id if info is not None else 0))
        self.batches += 1
        return self.load()

    def load(self) -> Any:
        """The next batch."""
        start = self.count
        if self.batch_size is None:
            sample = self.take()
            return END if sample is END else _collate(self.collate_fn, sample, [start])
        samples: list[Any] = []
        while len(samples) < self.batch_size:
            sample = self.take()
            if sample is END:
                break
            samples.append(sample)
        if not samples or (self.drop_last and len(samples) < self.batch_size):
            return END
        numbers = range(start, start + len(samples))
        if self.collate_fn is default_collate:
            return collate(samples, numbers, "index")
        return _collate(self.collate_fn, samples, numbers)

    def take(self) -> Any:
        try:
            if self.iterator is None:
                self.iterator = iter(part_of_worker(self.dataset))
            sample = END if self.ended else next(self.iterator, END)
        except Exception as error:
            error.add_note(f"[DataLoader] raised by {_name(self.dataset)}.__iter__ at sample index {self.count}{_where()}")
            raise
        self.ended = sample is END
        self.count += not self.ended
        return sample


def _gather(dataset: Any, indices: Sequence[int]) -> list[Any] | None:
    """The batch of a TensorDataset, also through Subsets, by one indexing per tensor instead of one per sample and a stack.

    None for any other dataset, and for indices that must fail in the ordinary way so that the sample is named.
    """
    while type(dataset) is Subset:
        try:
            indices = [dataset.indices[index] for index in indices]
        except IndexError:
            return None
        dataset = dataset.dataset
    if type(dataset) is not TensorDataset or not all(type(index) is int and 0 <= index < len(dataset) for index in indices):
        return None
    if any(tensor.requires_grad or tensor.__class__ in ASKED or tensor.device is META for tensor in dataset.tensors):
        return None
    return [rows(tensor, indices) for tensor in dataset.tensors]


def _collate(collate_fn: Callable[[Any], Any], samples: Any, indices: Any) -> Any:
    try:
        return collate_fn(samples)
    except StopIteration as error:
        raise DataError(
            "[DataLoader] expected a batch from collate_fn, got StopIteration, which would end the loop silently"
        ) from error
    except Exception as error:
        error.add_note(f"[DataLoader] raised by collate_fn for the sample indices {shorten(indices)}{_where()}")
        raise


def _name(dataset: Any) -> str:
    return type(dataset).__name__


def shorten(indices: Any) -> str:
    """Some indices as text of bounded length."""
    listed = list(indices) if isinstance(indices, list | tuple | range) else [indices]
    return f"{listed[:8]} and {len(listed) - 8} more" if len(listed) > 8 else str(listed)


def _where() -> str:
    info = get_worker_info()
    return f" in worker {info.id}" if info is not None else ""


def _note(dataset: Any, index: Any) -> str:
    return f"[DataLoader] raised by {_name(dataset)}.__getitem__ for sample index {index}{_where()}"


def _length_note(dataset: Any, index: Any, error: Exception) -> str:
    if not isinstance(error, IndexError) or not isinstance(index, int) or not hasattr(type(dataset), "__len__"):
        return ""
    return f"; len({_name(dataset)}) says {len(dataset)}"
