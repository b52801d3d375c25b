"""Datasets and the ways to combine and split them; names and behaviour as in `torch.utils.data`."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from calque.base.errors import ArgumentError, AssertedError, DataError, DTypeError, how_to_pass
from calque.base.text import described, shown, type_name
from calque.data.random_source import permutation, require_generator
from calque.observe.source import warn_user
from calque.tensor import Tensor

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Dataset(Generic[T_co]):
    """A map from an index to a sample: subclasses define `__getitem__`, and `__len__` for everything that has a last sample.

    >>> from calque.data import Dataset
    >>> class Squares(Dataset):
    ...     def __len__(self): return 4
    ...     def __getitem__(self, index): return index ** 2
    >>> [Squares()[i] for i in range(4)]
    [0, 1, 4, 9]
    """

    def __getitem__(self, index: Any) -> T_co:
        raise NotImplementedError(f"[Dataset] expected {type(self).__name__} to define __getitem__(self, index)")

    def __add__(self, other: "Dataset[Any]") -> "ConcatDataset[Any]":
        return ConcatDataset([self, other])


class IterableDataset(Dataset[T_co]):
    """A stream of samples: subclasses define `__iter__`.

    With several workers each of them iterates over all of it; use `get_worker_info()` in `__iter__` to give each its part.
    """

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError(f"[IterableDataset] expected {type(self).__name__} to define __iter__(self)")

    def __getitem__(self, index: Any) -> T_co:
        raise TypeError(f"[IterableDataset] {type(self).__name__} is a stream and has no index {shown(index)}; iterate over it")

    def __add__(self, other: Dataset[Any]) -> "ChainDataset":  # type: ignore[override]
        return ChainDataset([self, other])


class TensorDataset(Dataset[tuple[Tensor, ...]]):
    """Samples that are the rows of tensors: sample `i` is `(t[i] for t in tensors)`; all tensors have the same first extent.

    >>> from calque.data import TensorDataset
    >>> data = TensorDataset(calque.zeros(3, 2), calque.arange(3))
    >>> len(data), data[2]
    (3, (tensor([0., 0.]), tensor(2)))
    """

    tensors: tuple[Tensor, ...]

    def __init__(self, *tensors: Tensor) -> None:
        if not tensors:
            raise ArgumentError("[TensorDataset] expected at least one tensor, got none")
        for position, tensor in enumerate(tensors):
            if not isinstance(tensor, Tensor):
                raise TypeError(
                    f"[TensorDataset] expected tensors, got {type_name(tensor)} as argument {position}; "
                    f"{how_to_pass(tensor)}"
                )
        shapes = [tuple(tensor.shape) for tensor in tensors]
        if any(not shape or shape[0] != shapes[0][0] for shape in shapes):
            raise AssertedError(
                f"[TensorDataset] expected tensors with the same number of rows, got the shapes {', '.join(map(str, shapes))}; "
                "the first extent counts the samples"
            )
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
        return tuple(tensor[index] for tensor in self.tensors)

    def __len__(self) -> int:
        return int(self.tensors[0].shape[0])


class StackDataset(Dataset[Any]):
    """Several datasets of one length side by side: sample `i` is the tuple of their samples `i`, or a dict of them by the names they were given with.

    >>> from calque.data import StackDataset
    >>> StackDataset(["a", "b"], [1, 2])[1], StackDataset(text=["a", "b"], label=[1, 2])[0]
    (('b', 2), {'text': 'a', 'label': 1})
    """

    datasets: tuple[Any, ...] | dict[str, Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if bool(args) == bool(kwargs):
            raise ArgumentError("[StackDataset] expected datasets either one after the other or by name, got both or none (at least one dataset)")
        parts = args or tuple(kwargs.values())
        sizes = [size_of(part) for part in parts]
        if len(set(sizes)) > 1:
            raise ArgumentError(f"[StackDataset] expected datasets of one length, got the lengths {sizes} (Size mismatch between datasets)")
        self._length = sizes[0]
        self.datasets = kwargs or args

    def __getitem__(self, index: Any) -> Any:
        if isinstance(self.datasets, dict):
            return {name: part[index] for name, part in self.datasets.items()}
        return tuple(part[index] for part in self.datasets)

    def __getitems__(self, indices: Any) -> list[Any]:
        """The samples of several indices; datasets that load several at once do so."""
        named = isinstance(self.datasets, dict)
        parts = self.datasets.values() if isinstance(self.datasets, dict) else self.datasets
        columns = [_several(part, indices) for part in parts]
        rows = zip(*columns, strict=True)
        return [dict(zip(self.datasets, row, strict=True)) for row in rows] if named else list(rows)

    def __len__(self) -> int:
        return self._length


def _several(dataset: Any, indices: Any) -> Any:
    if not takes_lists(dataset):
        return [dataset[index] for index in indices]
    found = dataset.__getitems__(indices)
    if len(found) != len(indices):
        raise ArgumentError(
            f"[{type(dataset).__name__}] expected {len(indices)} samples from __getitems__, got {len(found)} (Nested dataset's output size mismatch)"
        )
    return found


def takes_lists(dataset: Any) -> bool:
    """Whether a dataset loads several samples at once, by `__getitems__`. Parts and stacks of datasets do if these do."""
    several, one = (getattr(type(dataset), name, None) for name in ("__getitems__", "__getitem__"))
    if several is not None and several not in (Subset.__getitems__, StackDataset.__getitems__):
        return True
    if one is Subset.__getitem__:
        return takes_lists(dataset.dataset)
    parts = dataset.datasets if one is StackDataset.__getitem__ else ()
    return any(map(takes_lists, parts.values() if isinstance(parts, dict) else parts))


class Subset(Dataset[T_co]):
    """The samples of `dataset` at `indices`, in that order."""

    def __init__(self, dataset: Dataset[T_co], indices: Sequence[int]) -> None:
        if not hasattr(dataset, "__getitem__"):
            raise DTypeError(f"[Subset] expected a dataset with an index, got {type_name(dataset)}; define __getitem__")
        require_indices("Subset", indices)
        self.dataset = dataset
        self.indices = indices

    def __getitem__(self, index: Any) -> T_co:
        if isinstance(index, list):
            return self.dataset[[self.indices[i] for i in index]]
        return self.dataset[self.indices[index]]

    def __getitems__(self, indices: Any) -> Any:
        """The samples of several indices, all at once if the dataset does that."""
        return _several(self.dataset, [self.indices[index] for index in indices])

    def __len__(self) -> int:
        return len(self.indices)


class ConcatDataset(Dataset[T_co]):
    """Several map-style datasets one after the other; a negative index counts from the end.

    >>> from calque.data import ConcatDataset
    >>> joined = ConcatDataset([["a", "b"], ["c"]])
    >>> len(joined), joined[2], joined[-3]
    (3, 'c', 'a')
    """

    datasets: list[Dataset[T_co]]
    cumulative_sizes: list[int]

    def __init__(self, datasets: Iterable[Dataset[T_co]]) -> None:
        try:
            self.datasets = list(datasets)
        except TypeError:
            raise TypeError(f"[ConcatDataset] expected a list of datasets, got {type_name(datasets)}; put a single dataset into a list") from None
        if not self.datasets:
            raise AssertedError("[ConcatDataset] expected at least one dataset, got none")
        for position, dataset in enumerate(self.datasets):
            if isinstance(dataset, IterableDataset):
                raise TypeError(
                    f"[ConcatDataset] expected datasets with an index, got the stream {type_name(dataset)} at position "
                    f"{position}; use ChainDataset"
                )
        self.cumulative_sizes = list(itertools.accumulate(size_of(dataset) for dataset in self.datasets))

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]

    def __getitem__(self, index: Any) -> T_co:
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"[ConcatDataset] expected an index in [{-len(self)}, {len(self) - 1}], got {index}")
        part = bisect.bisect_right(self.cumulative_sizes, position)
        return self.datasets[part][position - (self.cumulative_sizes[part - 1] if part else 0)]


class ChainDataset(IterableDataset[Any]):
    """Several streams one after the other."""

    def __init__(self, datasets: Iterable[Dataset[Any]]) -> None:
        try:
            self.datasets = list(datasets)
        except TypeError:
            raise TypeError(f"[ChainDataset] expected several streams, got {described(datasets)}") from None
        for position, dataset in enumerate(self.datasets):
            if not isinstance(dataset, IterableDataset):
                raise TypeError(
                    f"[ChainDataset] expected streams (IterableDataset), got {type_name(dataset)} at position {position}; "
                    "use ConcatDataset"
                )

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain.from_iterable(self.datasets)  # type: ignore[arg-type]

    def __len__(self) -> int:
        return sum(size_of(dataset) for dataset in self.datasets)


def random_split(dataset: Dataset[T], lengths: Sequence[int | float], generator: Any = None) -> list[Subset[T]]:
    """Split a dataset at random into parts of the given lengths, or of the given fractions, which add up to 1.

    Fractions are rounded down and what is left goes to the first parts, one sample each. The split depends on `generator`, or on
    `calque.manual_seed`, alone.

    >>> from calque.data import random_split
    >>> [len(part) for part in random_split(range(10), [0.7, 0.3])]
    [7, 3]
    """
    require_generator("random_split", generator)
    total = size_of(dataset)
    sizes = _split_sizes(list(lengths), total)
    for position, size in enumerate(sizes):
        if size == 0:
            warn_user(f"[random_split] part {position} has no samples: lengths {list(lengths)} of {total} samples")
    order = permutation(total, generator).tolist()
    ends = list(itertools.accumulate(sizes))
    return [Subset(dataset, order[end - size : end]) for size, end in zip(sizes, ends)]


def _split_sizes(lengths: list[int | float], total: int) -> list[int]:
    if not lengths or not all(isinstance(n, int | float) and math.isfinite(n) and n >= 0 for n in lengths):
        raise ArgumentError(f"[random_split] expected lengths >= 0 or fractions between 0 and 1, got {lengths}")
    if all(isinstance(n, int) for n in lengths) and sum(lengths) == total:
        return [int(n) for n in lengths]
    if math.isclose(sum(lengths), 1.0) and sum(lengths) <= 1.0 + 1e-9:
        sizes = [math.floor(total * fraction) for fraction in lengths]
        for extra in range(total - sum(sizes)):
            sizes[extra % len(sizes)] += 1
        return sizes
    raise ArgumentError(
        f"[random_split] expected lengths that add up to the {total} samples of the dataset, or fractions that add up to 1; "
        f"got {lengths}, which add up to {sum(lengths):g}"
    )


def require_indices(owner: str, indices: Any) -> None:
    """Raise unless it is a sequence of indices."""
    sequence = hasattr(indices, "__getitem__") and hasattr(indices, "__len__") and getattr(indices, "ndim", 1) != 0
    if not sequence or isinstance(indices, (dict, str, type)):
        raise DTypeError(f"[{owner}] expected indices as a sequence of ints, got {type_name(indices)}; pass a list")


def size_of(dataset: Any) -> int:
    """`len(dataset)` with an error that says what is missing."""
    name = type(dataset).__name__
    try:
        return len(dataset)
    except (TypeError, NotImplementedError) as error:
        inside = error.__traceback__ is not None and error.__traceback__.tb_next is not None  # of a `__len__` written in Python, whose error it is
        if inside and hasattr(type(dataset), "__len__") and isinstance(error, TypeError):
            raise
        raise TypeError(f"[{name}] expected a dataset with __len__, got {name} without; define it, or pass sampler=") from error
    except ValueError as error:
        raise DataError(f"[{name}] expected __len__ to return a number >= 0 ({error})") from error
