"""Draws of rarer distributions follow them, equal seeds give equal draws; window functions; convolutions of whole numbers."""

from __future__ import annotations

import numpy as np
import pytest

import calque

N = 20_000


def test_draws_follow_their_distributions(seed: int) -> None:
    calque.manual_seed(seed)
    x = calque.empty(N)
    assert abs(np.median(x.cauchy_(3.0, 0.5).numpy()) - 3.0) < 0.05
    assert abs(np.log(x.log_normal_(1.0, 0.5).numpy()).mean() - 1.0) < 0.05
    trials = x.geometric_(0.25).numpy()
    assert trials.min() == 1 and abs(trials.mean() - 4.0) < 0.3
    rates = calque.full((N,), 3.0, requires_grad=True)
    drawn = calque.poisson(rates)
    assert abs(drawn.detach().numpy().mean() - 3.0) < 0.15 and abs(drawn.detach().numpy().var() - 3.0) < 0.4
    drawn.sum().backward()
    assert not rates.grad.numpy().any()
    found = calque.binomial(calque.full((N,), 10.0), calque.tensor(0.3)).numpy()
    assert abs(found.mean() - 3.0) < 0.15 and found.max() <= 10


def test_draws_are_functions_of_their_parameters() -> None:
    """With derivative zero, so that a program may differentiate by what was drawn around a tensor that requires a gradient."""
    x, w = calque.rand(5).requires_grad_(), calque.ones(5, requires_grad=True)
    draws = [calque.normal(x, 0.1), calque.normal(0.5, x), calque.normal(x, x), calque.bernoulli(x), x.bernoulli()]
    for drawn in draws:
        (gradient,) = calque.autograd.grad((drawn**2 * w).sum(), drawn)
        assert gradient.tolist() == (2 * drawn).tolist()
        into_x, into_w = calque.autograd.grad((drawn * w).sum(), (x, w))
        assert not into_x.any() and into_w.tolist() == drawn.tolist()
    assert not calque.normal(x.detach(), 0.1).requires_grad and not calque.bernoulli(x.detach()).requires_grad
    with calque.no_grad():
        assert not calque.normal(x, 0.1, out=calque.empty(5)).requires_grad
    for call in (lambda: calque.normal(x, 0.1, out=calque.empty(5)), lambda: calque.bernoulli(x, out=calque.empty(5))):
        with pytest.raises(RuntimeError, match="functions with out=... arguments don't support automatic differentiation"):
            call()


def test_equal_seeds() -> None:
    def draws() -> list[list[float]]:
        calque.manual_seed(7)
        x = calque.empty(5)
        return [x.cauchy_().tolist(), x.geometric_(0.3).tolist(), x.log_normal_().tolist(), calque.poisson(calque.ones(5)).tolist()]

    assert draws() == draws()


def test_wrong_parameters() -> None:
    x = calque.empty(2)
    for call in (
        lambda: x.cauchy_(0, -1), lambda: x.geometric_(0.0), lambda: x.log_normal_(0, 0), lambda: calque.poisson(-calque.ones(1)),
        lambda: calque.binomial(calque.ones(1), 2 * calque.ones(1)),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="expect"):
            call()


@pytest.mark.parametrize("name", ["bartlett", "blackman", "hamming", "hann", "kaiser"])
@pytest.mark.parametrize("size", [0, 1, 2, 7])
def test_windows(name: str, size: int) -> None:
    window = getattr(calque.signal.windows, name)
    older = getattr(calque, f"{name}_window")
    np.testing.assert_allclose(older(size).numpy(), window(size, sym=False).numpy(), atol=1e-7)
    np.testing.assert_allclose(older(size, False, dtype=calque.float64).numpy(), window(size, dtype=calque.float64).numpy(), atol=1e-12)
    if size > 1 and name != "bartlett":
        theirs = {"hann": np.hanning, "hamming": np.hamming, "blackman": np.blackman}.get(name, lambda m: np.kaiser(m, 12.0))(size)
        np.testing.assert_allclose(window(size, dtype=calque.float64).numpy(), theirs, atol=1e-12)


@pytest.mark.parametrize("groups", [1, 2])
def test_convolutions_of_whole_numbers(rng: np.random.Generator, groups: int) -> None:
    functional = calque.nn.functional
    x, w = rng.integers(-9, 9, (2, 4, 7, 6)), rng.integers(-9, 9, (6, 4 // groups, 3, 2))
    settings = {"stride": (2, 1), "padding": (1, 2), "dilation": (2, 1), "groups": groups}
    exact = functional.conv2d(calque.tensor(x), calque.tensor(w), **settings)
    near = functional.conv2d(calque.tensor(x).double(), calque.tensor(w).double(), **settings)
    assert exact.dtype is calque.int64 and np.array_equal(exact.numpy(), near.numpy())
    w = rng.integers(-9, 9, (4, 6 // groups, 3, 2))
    exact = functional.conv_transpose2d(calque.tensor(x), calque.tensor(w), output_padding=(1, 0), **settings)
    near = functional.conv_transpose2d(calque.tensor(x).double(), calque.tensor(w).double(), output_padding=(1, 0), **settings)
    assert np.array_equal(exact.numpy(), near.numpy())
    big = calque.full((1, 1, 1), 1 << 40)
    assert functional.conv1d(big, big.new_full((1, 1, 1), (1 << 20) + 1)).item() == (1 << 60) + (1 << 40), "beyond what float64 holds"


def test_in_place_functions_of_the_namespace() -> None:
    x = calque.tensor([0.25, 1.0])
    assert calque.zero_(calque.fill_(x, 3.0)) is x and x.tolist() == [0.0, 0.0]
    assert calque.exp2_(x) is x and x.tolist() == [1.0, 1.0]
    y = calque.arange(6.0)
    assert y.as_strided_((2, 2), (3, 1)).tolist() == [[0, 1], [3, 4]]
