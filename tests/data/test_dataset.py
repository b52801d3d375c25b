"""Datasets and their combinations."""

from __future__ import annotations

from typing import Any

import pytest

import calque
from calque.base.errors import DataError
from calque.data import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    random_split,
)


class Numbers(Dataset[int]):
    def __init__(self, count: int, start: int = 0) -> None:
        self.count, self.start = count, start

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: Any) -> int:
        if not 0 <= index < self.count:
            raise IndexError(index)
        return self.start + index


class Stream(IterableDataset[int]):
    def __init__(self, count: int, start: int = 0) -> None:
        self.count, self.start = count, start

    def __iter__(self) -> Any:
        return iter(range(self.start, self.start + self.count))


class Sized(Stream):
    def __len__(self) -> int:
        return self.count


def test_tensor_dataset() -> None:
    data = TensorDataset(calque.arange(6).reshape(3, 2), calque.tensor([7.0, 8.0, 9.0]))
    assert len(data) == 3
    x, y = data[1]
    assert x.tolist() == [2, 3] and y.item() == 8.0
    assert data[1:][0].tolist() == [[2, 3], [4, 5]]


def test_tensor_dataset_errors() -> None:
    with pytest.raises(AssertionError, match=r"same number of rows, got the shapes \(3, 2\), \(4,\); the first extent counts"):
        TensorDataset(calque.zeros(3, 2), calque.zeros(4))
    with pytest.raises(AssertionError, match=r"the shapes \(\)"):
        TensorDataset(calque.tensor(1.0))
    with pytest.raises(TypeError, match=r"expected tensors, got list as argument 1; convert it with calque.as_tensor"):
        TensorDataset(calque.zeros(3), [1, 2, 3])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one tensor, got none"):
        TensorDataset()


def test_subset() -> None:
    part = Subset(Numbers(10), [3, 5, 7])
    assert len(part) == 3 and [part[i] for i in range(3)] == [3, 5, 7] and part[-1] == 7
    assert Subset(part, [2, 0])[0] == 7
    with pytest.raises(IndexError):
        part[3]


def test_concat() -> None:
    joined = Numbers(2) + Numbers(3, 10) + Numbers(1, 20)
    assert isinstance(joined, ConcatDataset) and len(joined) == 6 and joined.cumulative_sizes == [5, 6]
    assert [joined[i] for i in range(6)] == [0, 1, 10, 11, 12, 20] and [joined[-i] for i in (1, 6)] == [20, 0]
    for index in (6, -7):
        with pytest.raises(IndexError, match=rf"expected an index in \[-6, 5\], got {index}"):
            joined[index]
    with pytest.raises(TypeError, match=r"got the stream tests.*\.Stream at position 1; use ChainDataset"):
        ConcatDataset([Numbers(2), Stream(2)])
    with pytest.raises(ValueError, match="at least one dataset"):
        ConcatDataset([])
    assert [ConcatDataset([Numbers(0), Numbers(1, 5)])[0]] == [5]


def test_chain() -> None:
    chain = Stream(2) + Stream(2, 10)
    assert isinstance(chain, ChainDataset) and list(chain) == [0, 1, 10, 11] and list(chain) == [0, 1, 10, 11]
    assert len(ChainDataset([Sized(2), Sized(3)])) == 5
    with pytest.raises(TypeError, match=r"expected streams \(IterableDataset\), got tests.*\.Numbers at position 0; use ConcatDataset"):
        ChainDataset([Numbers(1)])


def test_base_classes_say_what_is_missing() -> None:
    class Bare(Dataset[int]):
        pass

    class BareStream(IterableDataset[int]):
        pass

    with pytest.raises(NotImplementedError, match=r"expected Bare to define __getitem__"):
        Bare()[0]
    with pytest.raises(NotImplementedError, match=r"expected BareStream to define __iter__"):
        iter(BareStream())
    with pytest.raises(TypeError, match="Stream is a stream and has no index 3"):
        Stream(5)[3]


def test_random_split() -> None:
    parts = random_split(Numbers(10), [7, 3], generator=calque.Generator().manual_seed(1))
    assert [len(p) for p in parts] == [7, 3]
    assert sorted(x for part in parts for x in (part[i] for i in range(len(part)))) == list(range(10))
    again = random_split(Numbers(10), [7, 3], generator=calque.Generator().manual_seed(1))
    other = random_split(Numbers(10), [7, 3], generator=calque.Generator().manual_seed(2))
    assert parts[0].indices == again[0].indices != other[0].indices
    calque.manual_seed(5)
    first = random_split(Numbers(100), [0.5, 0.5])[0].indices
    assert first != random_split(Numbers(100), [0.5, 0.5])[0].indices
    calque.manual_seed(5)
    assert first == random_split(Numbers(100), [0.5, 0.5])[0].indices


@pytest.mark.parametrize(
    ("lengths", "sizes"),
    [([0.7, 0.3], [7, 3]), ([1 / 3, 1 / 3, 1 / 3], [4, 3, 3]), ([0.55, 0.45], [6, 4]), ([1.0], [10]), ([0.25] * 4, [3, 3, 2, 2])],
)
def test_fractions_are_rounded_as_in_pytorch(lengths: list[float], sizes: list[int]) -> None:
    assert [len(p) for p in random_split(Numbers(10), lengths)] == sizes


@pytest.mark.parametrize("lengths", [[5, 4], [0.5, 0.4], [0.9, 0.2], [11], [], [-1, 11], [float("nan"), 1.0], [5.0, 5.0]])
def test_wrong_lengths(lengths: list[float]) -> None:
    with pytest.raises(ValueError, match=r"\[random_split\] expected lengths"):
        random_split(Numbers(10), lengths)


def test_wrong_lengths_name_the_sums() -> None:
    with pytest.raises(ValueError, match=r"add up to the 10 samples of the dataset, .* got \[5, 4\], which add up to 9"):
        random_split(Numbers(10), [5, 4])


def test_an_empty_part_warns() -> None:
    with pytest.warns(UserWarning, match="part 1 has no samples"):
        assert [len(p) for p in random_split(Numbers(2), [2, 0])] == [2, 0]


def test_length_errors() -> None:
    class NoLength(Dataset[int]):
        def __getitem__(self, index: Any) -> int:
            return 0

    class Negative(NoLength):
        def __len__(self) -> int:
            return -1

    with pytest.raises(TypeError, match="expected a dataset with __len__, got NoLength without; define it, or pass sampler="):
        random_split(NoLength(), [1])
    with pytest.raises(DataError, match=r"\[Negative\] expected __len__ to return a number >= 0"):
        random_split(Negative(), [1])
