"""Gradients of `Embedding(sparse=True)` name rows; optimizers that know such gradients move these rows alone, as the dense update would."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn, optim
from tests.fuzz.check import mode


@pytest.fixture(params=["recorded", "computed"], autouse=True)
def either_way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Small operations recorded, so that backward passes are replayed; and computed where they are written."""
    with mode(computed="all" if request.param == "computed" else ""):
        yield


MAKERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda p: optim.SGD(p, lr=0.1),
    "SGD uphill": lambda p: optim.SGD(p, lr=0.1, maximize=True),
    "Adagrad": lambda p: optim.Adagrad(p, lr=0.1, lr_decay=0.1),
}


def table(seed: int = 0, **options: Any) -> nn.Embedding:
    made = nn.Embedding(8, 3, **options)
    made.weight.data.copy_(calque.tensor(np.random.default_rng(seed).normal(size=(8, 3))))
    return made


def steps(module: Any, optimizer: Any, count: int = 6) -> list[float]:
    found = []
    for k in range(count):
        index = calque.tensor(np.random.default_rng(k).integers(0, 8, (3, 2)))
        loss = (module(index) * calque.arange(6.0).view(2, 3)).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("padding", [None, 2])
def test_updates_without_a_memory_of_other_rows_are_those_of_dense_gradients(name: str, padding: int | None) -> None:
    both = [table(sparse=sparse, padding_idx=padding) for sparse in (True, False)]
    losses = [steps(t, MAKERS[name](t.parameters())) for t in both]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    np.testing.assert_allclose(*(t.weight.tolist() for t in both), rtol=1e-5, atol=1e-6)


def test_sparse_adam_is_adam_of_the_rows_that_are_named() -> None:
    t = table(sparse=True)
    optimizer = optim.SparseAdam(t.parameters(), lr=0.1)
    p, m, v = np.array(t.weight.tolist()), np.zeros((8, 3)), np.zeros((8, 3))
    for step, rows in enumerate(([1, 1, 4], [4], [0, 1]), 1):
        optimizer.zero_grad()
        (t(calque.tensor(rows)) * 2.0).square().sum().backward()
        g, named = np.zeros((8, 3)), sorted(set(rows))
        for row in rows:
            g[row] += 8 * p[row]
        optimizer.step()
        m[named] = 0.9 * m[named] + 0.1 * g[named]
        v[named] = 0.999 * v[named] + 0.001 * g[named] ** 2
        size = 0.1 * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        p[named] -= size * m[named] / (np.sqrt(v[named]) + 1e-8)
        np.testing.assert_allclose(t.weight.tolist(), p, rtol=2e-5, atol=1e-6)
    again = optim.SparseAdam(table(sparse=True).parameters())
    again.load_state_dict(optimizer.state_dict())
    assert again.state_dict()["state"][0]["step"] == 3


def test_gradients_accumulate_and_meet_dense_ones() -> None:
    t = table(sparse=True)
    t(calque.tensor([1, 1])).sum().backward()
    first = t.weight.grad
    assert first.is_sparse and not first.is_coalesced() and first.to_dense()[1].tolist() == [2.0] * 3
    t(calque.tensor([3])).sum().backward()
    assert t.weight.grad.is_sparse and t.weight.grad.coalesce().indices().tolist() == [[1, 3]]
    t.weight.sum().backward()
    assert not t.weight.grad.is_sparse and t.weight.grad[:, 0].tolist() == [1, 3, 1, 2, 1, 1, 1, 1]
    held = t.weight.grad
    t(calque.tensor([0])).sum().backward()
    assert t.weight.grad is held and held[0].tolist() == [2.0] * 3
    (found,) = calque.autograd.grad(t(calque.tensor([5])).sum(), t.weight)
    assert found.is_sparse and found.to_dense()[5].tolist() == [1.0] * 3
    scaled = t.weight * 2.0  # no leaf
    nn.functional.embedding(calque.tensor([7]), scaled, sparse=True).sum().backward()
    assert held[7].tolist() == [3.0] * 3


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags(mode: str) -> None:
    found = []
    for sparse in (True, False):
        bag = nn.EmbeddingBag(8, 3, mode=mode, sparse=sparse)
        bag.weight.data.copy_(table().weight.data)
        bag(calque.tensor([1, 2, 4, 2]), calque.tensor([0, 3])).square().sum().backward()
        assert bag.weight.grad.is_sparse == sparse
        found.append(bag.weight.grad.to_dense().tolist())
    np.testing.assert_allclose(*found, rtol=1e-6)


def test_what_cannot_be_is_refused() -> None:
    t = table(sparse=True)
    t(calque.tensor([1])).sum().backward()
    before = t.weight.tolist()
    for kind in (optim.Adam, optim.RMSprop, optim.LAMB):
        with pytest.raises(RuntimeError, match=f"{kind.__name__} does not support sparse gradients, please consider SparseAdam instead"):
            kind(t.parameters()).step()
    with pytest.raises(ValueError, match="no momentum and no weight_decay with sparse gradients"):
        optim.SGD(t.parameters(), momentum=0.9).step()
    with pytest.raises(ValueError, match="weight_decay option is not compatible with sparse gradients"):
        optim.Adagrad(t.parameters(), weight_decay=0.1).step()
    assert t.weight.tolist() == before
    index = calque.tensor([1, 2])
    loss = t(index).sum()
    index.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_hybridized_step_runs_as_it_is_written() -> None:
    results = []
    for hybrid in (False, True):
        t = table(sparse=True)
        optimizer = optim.SparseAdam(t.parameters(), lr=0.1)

        def step(index: Any, t: Any = t, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            loss = t(index).square().sum()
            loss.backward()
            optimizer.step()
            return loss

        run = calque.compile(step) if hybrid else step
        results.append([run(calque.tensor([k % 8, 1])).item() for k in range(6)])
    np.testing.assert_allclose(*results, rtol=1e-5)
