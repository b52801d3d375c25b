"""Random tensors: repeatable streams, distributions, messages."""

from __future__ import annotations

import numpy as np
import pytest

import calque
from calque.base.errors import ArgumentError, DTypeError, OutOfRangeError

DRAWS = [
    lambda g: calque.rand(3, 4, generator=g), lambda g: calque.randn(5, generator=g),
    lambda g: calque.randint(0, 9, (7,), generator=g),
    lambda g: calque.randperm(9, generator=g), lambda g: calque.normal(0.0, 1.0, (4,), generator=g),
    lambda g: calque.bernoulli(calque.full((6,), 0.5), generator=g), lambda g: calque.multinomial(calque.ones(5), 3, generator=g),
    lambda g: calque.empty(4).uniform_(-1, 1, generator=g), lambda g: calque.empty(4).exponential_(generator=g),
]  # fmt: skip


@pytest.mark.parametrize("draw", DRAWS)
def test_a_seed_repeats_the_stream(draw) -> None:
    first, second = (draw(calque.Generator().manual_seed(5)).tolist() for _ in range(2))
    assert first == second
    g = calque.Generator().manual_seed(5)
    assert draw(g).tolist() == first and draw(g).tolist() != first
    assert draw(calque.Generator().manual_seed(6)).tolist() != first


def test_values_do_not_depend_on_how_they_are_asked_for() -> None:
    calque.manual_seed(3)
    together = calque.rand(16).tolist()
    calque.manual_seed(3)
    assert [*calque.rand(8).tolist(), *calque.rand(8).tolist()] == together
    assert calque.initial_seed() == 3


def test_state() -> None:
    state = calque.get_rng_state()
    first = calque.randn(3)
    calque.set_rng_state(state)
    assert calque.randn(3).tolist() == first.tolist()
    with calque.fork_rng():
        inside = calque.rand(1)
    assert calque.rand(1).tolist() == inside.tolist()
    assert calque.seed() == calque.initial_seed()
    calque.set_rng_state(state)
    with pytest.raises(DTypeError, match="ByteTensor of 16 elements"):
        calque.set_rng_state(calque.ones(3))


def test_distributions() -> None:
    g = calque.Generator().manual_seed(0)
    n = 20_000
    u, z = calque.rand(n, generator=g).numpy(), calque.randn(n, generator=g, dtype=calque.float64).numpy()
    assert u.min() >= 0 and u.max() < 1
    error = 5 / np.sqrt(n)  # five standard errors
    assert abs(u.mean() - 0.5) < error and abs(u.var() - 1 / 12) < error
    assert abs(z.mean()) < error and abs(z.var() - 1) < 2 * error and abs((z**3).mean()) < 20 * error
    assert abs(np.corrcoef(z[:-1], z[1:])[0, 1]) < error
    k = calque.randint(-3, 4, (n,), generator=g).numpy()
    assert set(k) == set(range(-3, 4)) and abs(np.bincount(k + 3) / n - 1 / 7).max() < error
    assert abs(calque.full((n,), 0.3).bernoulli(generator=g).mean().item() - 0.3) < error
    assert abs(calque.empty(n).exponential_(2.0, generator=g).mean().item() - 0.5) < error
    drawn = calque.multinomial(calque.tensor([1.0, 0.0, 3.0]), n, replacement=True, generator=g).numpy()
    assert abs(np.bincount(drawn, minlength=3) / n - [0.25, 0, 0.75]).max() < error
    assert sorted(calque.randperm(100, generator=g).tolist()) == list(range(100))
    assert sorted(calque.multinomial(calque.ones(2, 5), 5, generator=g)[1].tolist()) == [0, 1, 2, 3, 4]
    assert set(calque.zeros(200, dtype=calque.int64).random_(3, generator=g).tolist()) == {0, 1, 2}


def test_dtypes_and_forms() -> None:
    x = calque.zeros(2, 3, dtype=calque.float64)
    assert calque.rand_like(x).dtype is calque.randn_like(x).dtype is calque.float64
    assert calque.randint_like(x, 5).dtype is calque.float64
    assert calque.rand(size=(2, 3, 2)).shape == (2, 3, 2)
    assert calque.randint(10, (2,)).shape == calque.randint(3, 10, size=(2,)).shape == (2,)
    assert calque.rand(2, dtype=calque.bfloat16).dtype is calque.bfloat16
    assert calque.rand(2, requires_grad=True).requires_grad
    assert calque.normal(calque.zeros(3), calque.ones(3)).shape == (3,)
    assert calque.randint(0, 1 << 40, (3,)).max().item() < 1 << 40


@pytest.mark.parametrize(("call", "error", "text"), [
    (lambda: calque.rand(2, dtype=calque.int64), DTypeError, "expected a floating dtype, got torch.int64"),
    (lambda: calque.randint(5, 5, (2,)), ArgumentError, "from=5 >= to=5"),
    (lambda: calque.randint(0, 300, (2,), dtype=calque.uint8), OutOfRangeError, "out of bounds for torch.uint8"),
    (lambda: calque.randperm(-1), ArgumentError, "non-negative, got -1"),
    (lambda: calque.normal(0.0, -1.0, (2,)), ArgumentError, "std >= 0.0, but found std -1.0"),
    (lambda: calque.ones(2).bernoulli_(2.0), ArgumentError, "got p=2.0"),
    (lambda: calque.multinomial(calque.ones(2), 3), ArgumentError, "3 > 2"),
    (lambda: calque.multinomial(calque.tensor([-1.0, 1.0]), 1), ArgumentError, "element < 0"),
    (lambda: calque.multinomial(calque.zeros(2), 1), ArgumentError, "sum of probabilities <= 0"),
    (lambda: calque.ones(2).uniform_(2, 1), ArgumentError, "from=2.0 > to=1.0"),
    (lambda: calque.manual_seed(1 << 70), ArgumentError, "64 bits"),
])  # fmt: skip
def test_messages(call, error, text) -> None:
    with pytest.raises(error) as caught:
        call()
    assert text in str(caught.value)


@pytest.mark.parametrize("bound", [(1, 2), 2.5, "a"])
def test_the_ends_of_a_range_are_integers(bound: object) -> None:
    with pytest.raises(DTypeError, match=r"\[random_\] expected the ends of the range as ints, got int 0 and .*; give two integers"):
        calque.zeros(3).random_(to=bound)
    assert calque.zeros(3).random_(to=calque.tensor(1)).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("ends", [(1 << 70,), (0, 1 << 70), (-(1 << 70), 3)])
def test_ends_of_more_than_64_bits_are_refused_for_floating_types(ends: tuple[int, ...]) -> None:
    with pytest.raises(OutOfRangeError, match="is out of bounds for"):
        calque.randint_like(calque.ones(2), *ends, generator=calque.Generator())
    with pytest.raises(OutOfRangeError, match="is out of bounds for"):
        calque.randint(*ends, (2,), dtype=calque.float64)


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("count", [1, 40])
def test_one_row_draws_what_it_draws_among_others(count: int, replacement: bool) -> None:
    """Rows one by one are picked in another way; the last class may have no weight."""
    for weights in ([0.5, 2.0, 0.1] * 20, [0.0, 1.0, 3.0] * 20 + [0.0], [1.0], [2.0, 1.0] * 30):
        if not replacement and count > sum(w > 0 for w in weights):
            continue
        rows = calque.tensor([weights, weights])
        for seed in range(5):
            alone, beside = (calque.multinomial(x, count, replacement, generator=calque.Generator().manual_seed(seed)) for x in (rows[0], rows))
            assert alone.tolist() == beside[0].tolist()


@pytest.mark.parametrize("dtype", [calque.float32, calque.float64, calque.float16])
def test_what_is_scaled_in_place_is_what_is_scaled_behind(dtype: calque.dtype) -> None:
    for k in range(4):
        with calque.random.fork_rng():
            calque.manual_seed(k)
            found = [calque.empty(9, dtype=dtype).normal_(0.5, 2.0), calque.empty(9, dtype=dtype).uniform_(-1, 3)]
            calque.manual_seed(k)
            wanted = [calque.randn(9, dtype=dtype) * 2.0 + 0.5, calque.rand(9, dtype=dtype) * 4.0 - 1.0]
        for one, two in zip(found, wanted, strict=True):
            assert one.tolist() == two.tolist()
