"""Passes that are taken up again ask every sampler for the order that it gave, whatever that was drawn from."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import calque
from calque.base.errors import CheckpointError
from calque.data import BatchSampler, DataLoader, RandomSampler, Sampler, SubsetRandomSampler, WeightedRandomSampler
from tests.data.test_dataset import Numbers

COUNT = 23


class Own(Sampler[int]):
    """A sampler of the program's, which draws where it likes."""

    def __init__(self, drawn: str) -> None:
        self.drawn = drawn

    def __iter__(self) -> Iterator[int]:
        if self.drawn == "default":
            return iter(calque.randperm(COUNT).tolist())
        if self.drawn == "numpy":
            return iter(np.random.permutation(COUNT).tolist())
        return iter(random.sample(range(COUNT), COUNT))

    def __len__(self) -> int:
        return COUNT


def seeded(seed: int) -> Any:
    return calque.Generator().manual_seed(seed)


ORDERS: dict[str, Any] = {
    "weighted": lambda: {"sampler": WeightedRandomSampler(range(1, COUNT + 1), COUNT)},
    "a generator of its own": lambda: {"sampler": RandomSampler(range(COUNT), generator=seeded(3))},
    "inside of batches": lambda: {"batch_sampler": BatchSampler(SubsetRandomSampler(range(COUNT), seeded(4)), 4, False)},
    "random": lambda: {"sampler": Own("python")},
    "numpy.random": lambda: {"sampler": Own("numpy")},
    "the default stream": lambda: {"sampler": Own("default")},
}


def loader(kind: str, with_generator: bool) -> Any:
    return DataLoader(Numbers(COUNT), generator=seeded(5) if with_generator else None, **ORDERS[kind]())


def streams() -> Any:
    return calque.get_rng_state(), random.getstate(), np.random.get_state()


def go_on(kept: Any) -> None:
    calque.set_rng_state(kept[0])
    random.setstate(kept[1])
    np.random.set_state(kept[2])


def values(batches: Any) -> list[Any]:
    return [batch.tolist() for batch in batches]


@pytest.mark.parametrize("with_generator", [False, True])
@pytest.mark.parametrize("kind", ORDERS)
def test_no_sample_comes_twice(kind: str, with_generator: bool, seed: int) -> None:
    calque.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    first = loader(kind, with_generator)
    values(first)
    between, kept_between = json.loads(json.dumps(first.state_dict())), streams()
    batches = iter(first)
    begun = [next(batches).tolist() for _ in range(3)]
    inside, kept_inside = json.loads(json.dumps(first.state_dict())), streams()
    rest, behind = values(batches), values(first)
    for state, kept, wanted in ((inside, kept_inside, [rest, behind]), (between, kept_between, [begun + rest, behind])):
        again = loader(kind, with_generator)
        again.load_state_dict(state)
        go_on(kept)
        assert [values(again), values(again)] == wanted


def test_places_that_are_none_change_nothing() -> None:
    plain = loader("a generator of its own", False)
    next(iter(plain))
    state = plain.state_dict()
    for wrong in ({"sampler": [1]}, {"sampler": ["a", "b"]}, {"python": [3, "00", None]}, {"python": [3, "none", None]}, 7):
        for broken in (state | {"places": wrong}, state | {"pass": state["pass"] | {"places": wrong}}):
            with pytest.raises(CheckpointError, match="expected what state_dict"):
                plain.load_state_dict(broken)
    assert plain.state_dict() == state
    plain.load_state_dict({name: value for name, value in state.items() if name != "places"})  # of an earlier version
