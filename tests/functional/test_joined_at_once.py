"""`cat` and `stack` of many small values that are there: joined at once, so that a batch drawn from a memory is one program whatever was drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import calque
from calque.base.errors import ShapeError
from calque.functional import joining


def there(*tensors: calque.Tensor) -> list[calque.Tensor]:
    """The tensors, computed."""
    for t in tensors:
        t.detach().numpy()
    return list(tensors)


def samples(dtype: Any, rng: np.random.Generator, count: int = 12) -> list[calque.Tensor]:
    """Whole tensors, views and repetitions of shape (3, 4)."""
    base = calque.tensor(rng.integers(0, 2, (6, 4, 3))).to(dtype)
    whole = [calque.tensor(rng.integers(0, 2, (3, 4))).to(dtype) for _ in range(count - 5)]
    return there(*whole, base[0].T, base[3].T, whole[0], base.transpose(1, 2)[5, :, :], base[1].T)


@pytest.mark.parametrize("dtype", [calque.float32, calque.bfloat16, calque.bool, calque.int8, calque.complex64, calque.uint16], ids=str)
@pytest.mark.parametrize("join", [calque.cat, calque.stack])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_it_is_what_a_program_joins(join: Any, dim: int, dtype: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = samples(dtype, rng)
    before = calque.stats()["flushes"]
    found = join(parts, dim)
    assert found._storage.buffer is not None and calque.stats()["flushes"] == before
    monkeypatch.setattr(joining, "MANY", 1000)
    wanted = join(parts, dim)
    assert found.shape == wanted.shape and found.stride() == wanted.stride() and found.dtype is wanted.dtype
    assert found.tolist() == wanted.tolist()


def test_a_batch_of_another_size_is_no_new_program(rng: np.random.Generator) -> None:
    memory = there(*[calque.tensor(rng.normal(size=(1, 4))) for _ in range(40)])
    weight = calque.ones(4, 3, dtype=calque.float64, requires_grad=True)

    def step(count: int) -> float:
        batch = calque.cat([memory[k] for k in rng.integers(0, 40, count)])
        weight.grad = None
        (batch @ weight).square().mean().backward()
        return float(weight.grad.sum())

    for _ in range(2):
        for count in (20, 21, 22):
            step(count)
    before = calque.stats()["programs"]
    for _ in range(5):
        for count in (22, 20, 21):
            step(count)
    assert calque.stats()["programs"] == before


def test_writes_before_and_after_are_in_their_order() -> None:
    parts = there(*[calque.full((2,), float(k)) for k in range(9)])
    parts[3].add_(10)
    late = calque.cat(parts)
    there(*parts)
    early = calque.stack(parts)
    parts[4].zero_()
    assert late.tolist() == [0, 0, 1, 1, 2, 2, 13, 13, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8]
    assert early[4].tolist() == [4, 4] and parts[4].tolist() == [0, 0]


def test_gradients_and_replays_are_as_ever() -> None:
    parts = there(*[calque.full((2,), float(k), requires_grad=True) for k in range(9)])
    joined = calque.cat(parts)
    (joined * calque.arange(18.0)).sum().backward()
    assert joined.requires_grad and parts[2].grad is not None and parts[2].grad.tolist() == [4, 5]
    with calque.no_grad():
        assert not calque.cat(parts).requires_grad
    held = there(*[calque.full((2,), float(k)) for k in range(9)])

    @calque.compile
    def total(x: calque.Tensor) -> calque.Tensor:
        return calque.stack(held).sum() + x

    for k in range(5):
        held[0].fill_(k)
        there(*held)
        assert total(calque.tensor(1.0)).item() == 73 + 2 * k


def test_shapes_that_do_not_fit_are_refused_in_the_same_words() -> None:
    parts = there(*[calque.zeros(2, 3) for _ in range(9)], calque.zeros(2, 4))
    with pytest.raises(ShapeError, match=r"\[cat\]"):
        calque.cat(parts)
    with pytest.raises(ShapeError, match=r"\[stack\]"):
        calque.stack(parts)
    assert calque.cat(parts, 1).shape == (2, 31)
