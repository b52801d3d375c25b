"""Samplers: exact orders, seeding, statistics of the random ones, errors."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import scipy.stats

import calque
from calque.data import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)


def seeded(seed: int) -> calque.Generator:
    return calque.Generator().manual_seed(seed)


def test_sequential() -> None:
    sampler = SequentialSampler(range(4))
    assert list(sampler) == list(sampler) == [0, 1, 2, 3] and len(sampler) == 4


@pytest.mark.parametrize("count", [1, 7, 5000])
def test_random_orders_are_permutations(count: int) -> None:
    sampler = RandomSampler(range(count), generator=seeded(0))
    orders = [list(sampler) for _ in range(3)]
    assert all(sorted(order) == list(range(count)) for order in orders) and len(sampler) == count
    assert all(type(i) is int for i in orders[0])
    if count > 1000:
        assert orders[0] != orders[1] != orders[2]


def test_the_order_is_a_function_of_the_generator() -> None:
    a, b = (RandomSampler(range(50), generator=seeded(3)) for _ in range(2))
    assert [list(a), list(a)] == [list(b), list(b)]
    assert list(RandomSampler(range(50), generator=seeded(4))) != list(RandomSampler(range(50), generator=seeded(3)))


def test_the_order_is_a_function_of_manual_seed() -> None:
    sampler = RandomSampler(range(50))
    calque.manual_seed(3)
    first, second = list(sampler), list(sampler)
    calque.manual_seed(3)
    assert [list(sampler), list(sampler)] == [first, second] and first != second


def test_every_permutation_is_equally_likely() -> None:
    sampler = RandomSampler(range(4), generator=seeded(0))
    counts = Counter(tuple(sampler) for _ in range(4800))
    assert len(counts) == 24 and scipy.stats.chisquare(list(counts.values())).pvalue > 1e-4


def test_replacement_and_num_samples() -> None:
    drawn = list(RandomSampler(range(5), replacement=True, num_samples=20_000, generator=seeded(0)))
    assert len(drawn) == 20_000 and set(drawn) == set(range(5))
    assert scipy.stats.chisquare(list(Counter(drawn).values())).pvalue > 1e-4
    part = list(RandomSampler(range(10), num_samples=4, generator=seeded(0)))
    assert len(part) == len(set(part)) == 4
    more = list(RandomSampler(range(3), num_samples=8, generator=seeded(0)))
    assert sorted(more[:3]) == sorted(more[3:6]) == [0, 1, 2] and len(more) == 8


def test_subset_random() -> None:
    sampler = SubsetRandomSampler([3, 8, 9], generator=seeded(0))
    assert sorted(sampler) == [3, 8, 9] and len(sampler) == 3
    assert len({tuple(sampler) for _ in range(100)}) == 6


def test_weighted_with_replacement() -> None:
    weights = [1.0, 0.0, 3.0, 6.0]
    drawn = Counter(WeightedRandomSampler(weights, 50_000, generator=seeded(0)))
    assert set(drawn) == {0, 2, 3}
    assert scipy.stats.chisquare([drawn[i] for i in (0, 2, 3)], np.array([1, 3, 6]) * 5000).pvalue > 1e-4


def test_weighted_without_replacement_draws_one_after_the_other() -> None:
    """P(a, b) = w_a / W * w_b / (W - w_a), exactly."""
    weights = np.array([1.0, 2.0, 0.0, 3.0])
    sampler = WeightedRandomSampler(list(weights), 2, replacement=False, generator=seeded(0))
    drawn = Counter(tuple(sampler) for _ in range(6000))
    pairs = [(a, b) for a in (0, 1, 3) for b in (0, 1, 3) if a != b]
    expected = [6000 * weights[a] / 6 * weights[b] / (6 - weights[a]) for a, b in pairs]
    assert set(drawn) == set(pairs) and scipy.stats.chisquare([drawn[p] for p in pairs], expected).pvalue > 1e-4


def test_weights_may_be_a_tensor() -> None:
    assert set(WeightedRandomSampler(calque.tensor([0.0, 1.0]), 5)) == {1}  # type: ignore[arg-type]


def test_batches() -> None:
    assert list(BatchSampler(range(5), 2, False)) == [[0, 1], [2, 3], [4]]
    assert list(BatchSampler(SequentialSampler(range(5)), 2, True)) == [[0, 1], [2, 3]]
    assert [len(BatchSampler(range(5), n, drop)) for n in (1, 2, 5, 6) for drop in (False, True)] == [5, 5, 3, 2, 1, 1, 1, 0]


class Odd:
    def __len__(self) -> int:
        return 0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: RandomSampler(range(3), num_samples=0), "num_samples to be an integer >= 1, got num_samples=0"),
        (lambda: RandomSampler(range(3), num_samples=2.5), "num_samples=2.5"),  # type: ignore[arg-type]
        (lambda: RandomSampler(Odd()), "num_samples to be an integer >= 1, got num_samples=0"),
        (lambda: WeightedRandomSampler([1.0], 0), "num_samples=0"),
        (lambda: WeightedRandomSampler([1.0, -1.0], 2), "finite weights >= 0 that are not all 0"),
        (lambda: WeightedRandomSampler([0.0, 0.0], 2), "not all 0"),
        (lambda: WeightedRandomSampler([float("nan")], 2), "finite weights"),
        (lambda: WeightedRandomSampler([[1.0]], 2), "got shape"),  # type: ignore[list-item]
        (lambda: WeightedRandomSampler([1.0, 0.0, 1.0], 3, replacement=False), "at most 2 draws without replacement"),
        (lambda: BatchSampler(range(3), 0, False), "batch_size to be an integer >= 1, got batch_size=0"),
        (lambda: BatchSampler(range(3), True, False), "batch_size=True"),
        (lambda: BatchSampler(range(3), 1, None), "drop_last to be True or False, got None"),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments(make: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()  # type: ignore[operator]


def test_wrong_types() -> None:
    for make in (
        lambda: RandomSampler(range(3), replacement=1),  # type: ignore[arg-type]
        lambda: WeightedRandomSampler([1.0], 1, replacement="no"),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError, match="expected replacement to be True or False"):
            make()
    with pytest.raises(NotImplementedError, match="expected Mine to define __iter__"):

        class Mine(Sampler[int]):
            pass

        iter(Mine())
