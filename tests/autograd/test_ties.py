"""Gradients at ties, of nothing, and through what is not smooth, with the numbers that PyTorch gives. `tests/fuzz/gradients.py` compares the rest."""

from __future__ import annotations

import math
from typing import Any

import pytest

import calque
from calque.base.errors import ArgumentError


def gradient(function: Any, *values: Any) -> list[Any]:
    """The gradients of the sum of a function of float64 tensors."""
    leaves = [calque.tensor(v, dtype=calque.float64, requires_grad=True) for v in values]
    return [None if g is None else g.tolist() for g in calque.autograd.grad(function(*leaves).sum(), leaves, allow_unused=True)]


def test_what_is_filled_twice_counts_once() -> None:
    index = calque.tensor([0, 0, 2])
    assert gradient(lambda x, v: x.index_fill(0, index, v), [1.0, 2.0, 3.0], 5.0) == [[0.0, 1.0, 0.0], 2.0]
    assert gradient(lambda x, v: (x * 1).index_fill_(0, index, v), [1.0, 2.0, 3.0], 5.0) == [[0.0, 1.0, 0.0], 2.0]


@pytest.mark.parametrize("name", ["fmax", "fmin"])
def test_the_first_of_equal_operands_has_the_gradient(name: str) -> None:
    nan = float("nan")
    first, second = gradient(getattr(calque, name), [1.0, 2.0, nan, 4.0], [1.0, 3.0, 3.0, nan])
    assert first == [1.0, float(name == "fmin"), 0.0, 1.0]
    assert second == [0.0, float(name == "fmax"), 1.0, 0.0]


@pytest.mark.parametrize("name", ["median", "nanmedian"])
def test_equal_medians_share_the_gradient(name: str) -> None:
    assert gradient(getattr(calque, name), [1.0, 2.0, 2.0, 5.0]) == [[0.0, 0.5, 0.5, 0.0]]
    assert gradient(lambda x: getattr(calque, name)(x, 0).values, [1.0, 2.0, 2.0, 5.0]) == [[0.0, 1.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.gather(0, calque.zeros(0, 2, dtype=calque.int64)),
        lambda x: calque.take_along_dim(x, calque.zeros(0, 2, dtype=calque.int64), 0),
        lambda x: x[:0].median(),
        lambda x: x[:0].nanmedian(),
        lambda x: calque.cdist(x[:0], x, p=0.0),
        lambda x: calque.pdist(x[:1]),
        lambda x: x.matrix_power(0),
        lambda x: x.norm(p=0),
        lambda x: x.unique_consecutive(),
        lambda x: calque.quantile(x, calque.zeros(0, dtype=calque.float64)),
        lambda x: x.slogdet().sign,
    ],
    ids=["gather", "take_along_dim", "median", "nanmedian", "cdist", "pdist", "matrix_power", "norm", "unique_consecutive", "quantile", "sign"],
)
def test_results_of_nothing_stay_in_the_graph(function: Any) -> None:
    x = calque.tensor([[1.0, 2.0], [2.0, 3.0]], dtype=calque.float64, requires_grad=True)
    y = function(x)
    assert y.requires_grad
    y.sum().backward()
    assert x.grad is not None


def test_chosen_and_counted_elements_have_the_gradient() -> None:
    weight = calque.tensor([1.0, 2.0, 3.0], dtype=calque.float64)
    assert gradient(lambda x: x.unique_consecutive() * weight, [4.0, 4.0, 1.0, 4.0]) == [[1.0, 0.0, 2.0, 3.0]]
    assert gradient(lambda x: x.unique() * weight, [4.0, 4.0, 1.0, 2.0]) == [[3.0, 0.0, 1.0, 2.0]]
    assert gradient(lambda w: calque.bincount(calque.tensor([2, 0, 2]), w) * weight, [1.0, 1.0, 1.0]) == [[3.0, 1.0, 3.0]]


@pytest.mark.parametrize("name", ["t_", "swapdims_", "swapaxes_", "transpose_"])
def test_a_view_that_looks_otherwise_without_history(name: str) -> None:
    x = calque.arange(6.0).reshape(3, 2).clone().requires_grad_()
    view = x[0:2]
    with calque.no_grad():
        getattr(view, name)(*(() if name == "t_" else (0, 1)))
    (view * calque.tensor([[1.0, 2.0], [3.0, 4.0]])).sum().backward()
    assert x.grad.tolist() == [[1.0, 3.0], [2.0, 4.0], [0.0, 0.0]]


def test_products_and_slopes_of_nothing() -> None:
    vector, matrices = calque.zeros(0, requires_grad=True), calque.zeros(2, 1, 0, 1, requires_grad=True)
    gradients = calque.autograd.grad(calque.matmul(vector, matrices).sum(), (vector, matrices))
    assert [tuple(g.shape) for g in gradients] == [(0,), (2, 1, 0, 1)]
    assert calque.nn.functional.prelu(calque.zeros(2, 0, 3), calque.zeros(0)).shape == (2, 0, 3)


def test_every_coordinate_that_is_farthest_has_the_gradient() -> None:
    inf = float("inf")
    assert gradient(lambda a, b: calque.cdist(a, b, p=inf), [[1.0, 1.0]], [[2.0, 2.0]]) == [[[-1.0, -1.0]], [[1.0, 1.0]]]
    assert gradient(lambda a: calque.pdist(a, p=inf), [[1.0, 1.0], [2.0, 2.0]]) == [[[-1.0, -1.0], [1.0, 1.0]]]
    assert gradient(lambda a: calque.norm(a, p=inf), [2.0, -2.0]) == [[0.5, -0.5]]


def test_the_level_of_a_quantile_has_a_gradient() -> None:
    for name in ("quantile", "nanquantile"):
        x, q = gradient(getattr(calque, name), [1.0, 2.0, 4.0, 8.0], [0.25, 0.5, 1.0])
        assert x == [0.25, 1.25, 0.5, 1.0]
        assert q == [3.0, 6.0, 0.0]


@pytest.mark.parametrize(
    "reduce, include_self, first, base, source",
    [
        ("amax", True, 2.0, [1 / 3, 1.0, 1.0], [1 / 3, 1 / 3, 0.0]),
        ("amax", False, 2.0, [0.0, 1.0, 0.0], [1 / 3, 1 / 3, 1.0]),  # PyTorch counts the base among the equal ones
        ("amin", True, 1.0, [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]),
        ("amin", False, 1.0, [0.0, 1.0, 0.0], [0.5, 0.5, 1.0]),
        ("prod", True, 1.0, [4.0, 1.0, 2.0], [2.0, 2.0, 3.0]),
        ("prod", False, 1.0, [0.0, 1.0, 0.0], [2.0, 2.0, 1.0]),
    ],
)
def test_scatter_reduce(reduce: str, include_self: bool, first: float, base: list[float], source: list[float]) -> None:
    index = calque.tensor([0, 0, 2])
    found = gradient(lambda x, s: x.scatter_reduce(0, index, s, reduce, include_self=include_self), [first, 5.0, 3.0], [2.0, 2.0, 2.0])
    assert found[0] == pytest.approx(base)
    assert found[1] == pytest.approx(source)


def test_losses_are_smooth_where_their_parts_are_not() -> None:
    """log(1 + exp(-x)) as max(-x, 0) + log(1 + exp(-|x|)) has no derivative at 0, part by part."""
    F = calque.nn.functional
    assert gradient(lambda x: F.soft_margin_loss(x, calque.ones(1, dtype=calque.float64)), [0.0]) == [[-0.5]]
    x = calque.zeros(2, dtype=calque.float64, requires_grad=True)
    for loss in (F.smooth_l1_loss, F.huber_loss):
        (g,) = calque.autograd.grad(loss(x, calque.zeros(2, dtype=calque.float64), reduction="sum"), x, create_graph=True)
        assert calque.autograd.grad(g.sum(), x)[0].tolist() == [1.0, 1.0]
    (g,) = calque.autograd.grad(calque.logaddexp(x, x.detach()).sum(), x, create_graph=True)
    assert calque.autograd.grad(g.sum(), x)[0].tolist() == [0.25, 0.25]


def test_nothing_but_ignored_labels_has_gradient_zero() -> None:
    loss = calque.nn.functional.cross_entropy
    assert gradient(lambda x: loss(x, calque.tensor([-100, -100])), [[1.0, 2.0], [3.0, 4.0]]) == [[[0.0, 0.0], [0.0, 0.0]]]


def test_qr_without_a_gradient_says_which_mode_has_one() -> None:
    x = calque.randn(3, 2, dtype=calque.float64, requires_grad=True)
    for mode in ("r", "complete"):
        with pytest.raises(ArgumentError, match=r"not differentiable when mode=.*use mode='reduced'"):
            calque.linalg.qr(x, mode).R.sum().backward()


def test_several_zeros_at_one_place_have_no_second_gradient() -> None:
    x, s = calque.ones(1, dtype=calque.float64, requires_grad=True), calque.zeros(2, dtype=calque.float64, requires_grad=True)
    out = x.scatter_reduce(0, calque.tensor([0, 0]), s, "prod")
    (g,) = calque.autograd.grad(out.sum(), s, create_graph=True)
    with pytest.raises(ArgumentError, match="Double backward is unsupported"):
        calque.autograd.grad(g.sum(), s)


def test_nothing_passes_a_piecewise_function_at_nan() -> None:
    """What is linear in pieces has no piece at NaN; the exponential's side of the ELUs is NaN there."""
    nan, inf, F = float("nan"), float("inf"), calque.nn.functional
    values = [nan, inf, -inf, 0.0, 0.5, -0.5, 1.0, -1.0, 0.75]
    functions = {F.hardtanh: [3, 4, 5, 8], F.relu6: [4, 6, 8], F.hardshrink: [1, 2, 6, 7, 8], F.softshrink: [1, 2, 6, 7, 8]}
    for function, passing in functions.items():
        assert gradient(function, values) == [[float(k in passing) for k in range(len(values))]], function
        x = calque.tensor(values, dtype=calque.float64, requires_grad=True)
        (first,) = calque.autograd.grad(function(x).sum(), x, create_graph=True)
        assert calque.autograd.grad(first.sum(), x)[0].tolist() == [0.0] * len(values)  # zeros, not None
        assert math.isnan(function(calque.tensor([nan, 1.0]))[0].item()) or function in (F.hardshrink, F.softshrink)
    for function in (F.elu, F.celu, F.selu):
        assert math.isnan(gradient(function, values)[0][0])
    assert gradient(lambda x: calque.logit(x, 0.25), [nan, 0.0, 0.5]) == [[0.0, 0.0, 4.0]]
