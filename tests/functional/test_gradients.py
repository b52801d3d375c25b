"""Gradients of first and second order of the composite functions, against central differences in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import calque
from calque.autograd import gradcheck, gradgradcheck


def leaf(shape: tuple[int, ...], low: float = -2.0, high: float = 2.0, seed: int = 0) -> Any:
    values = np.random.default_rng(seed + len(shape)).uniform(low, high, shape)
    return calque.tensor(values, dtype=calque.float64, requires_grad=True)


SMOOTH = {
    "abs": (-2, 2), "acosh": (1.2, 3), "acos": (-0.9, 0.9), "asin": (-0.9, 0.9), "asinh": (-2, 2), "atan": (-2, 2),
    "atanh": (-0.9, 0.9), "cos": (-2, 2),
    "cosh": (-2, 2), "deg2rad": (-90, 90), "digamma": (0.5, 4), "erf": (-2, 2), "erfc": (-2, 2), "erfinv": (-0.9, 0.9),
    "exp": (-2, 2), "exp2": (-2, 2),
    "expm1": (-2, 2), "frac": (0.1, 0.9), "lgamma": (0.5, 4), "log": (0.3, 3), "log10": (0.3, 3), "log1p": (-0.5, 2),
    "log2": (0.3, 3), "logit": (0.1, 0.9),
    "neg": (-2, 2), "rad2deg": (-1, 1), "reciprocal": (0.5, 2), "relu": (0.1, 2), "rsqrt": (0.3, 2), "sigmoid": (-2, 2),
    "sin": (-2, 2), "sinc": (0.1, 2),
    "sinh": (-2, 2), "sqrt": (0.3, 2), "square": (-2, 2), "tan": (-1, 1), "tanh": (-2, 2), "nan_to_num": (-2, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", SMOOTH)
def test_unary(name: str) -> None:
    function = getattr(calque, name)
    x = leaf((2, 2), *SMOOTH[name])
    assert gradcheck(function, (x,))
    assert gradgradcheck(function, (x,), rtol=2e-3, atol=1e-4)


BINARY = {
    "add": (-2, 2), "sub": (-2, 2), "mul": (-2, 2), "div": (0.5, 2), "pow": (0.5, 2), "atan2": (0.5, 2), "maximum": (-2, 2),
    "minimum": (-2, 2),
    "fmax": (-2, 2), "fmin": (-2, 2), "fmod": (1.1, 1.9), "remainder": (1.1, 1.9), "hypot": (0.5, 2), "logaddexp": (-2, 2),
    "logaddexp2": (-2, 2),
    "xlogy": (0.5, 2), "copysign": (0.5, 2), "rsub": (-2, 2), "ldexp": (-1, 1), "float_power": (0.5, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", BINARY)
def test_binary_with_broadcasting(name: str) -> None:
    function = getattr(calque, name)
    x, y = leaf((2, 1), *BINARY[name]), leaf((3,), *BINARY[name], seed=5)
    assert gradcheck(function, (x, y))
    assert gradgradcheck(function, (x, y), atol=1e-4)


ONE = {
    "sum": lambda x: x.sum(),
    "sum dim": lambda x: x.sum(0),
    "mean": lambda x: x.mean(-1, keepdim=True),
    "prod": lambda x: x.prod(),
    "prod dim": lambda x: x.prod(1),
    "prod with a zero": lambda x: (x * calque.tensor([[0.0, 1.0, 1.0], [1.0, 1.0, 1.0]], dtype=calque.float64)).prod(1),
    "var": lambda x: x.var(1),
    "var whole": lambda x: x.var(correction=0),
    "std": lambda x: x.std(0, keepdim=True),
    "var_mean": lambda x: calque.var_mean(x, 0),
    "norm": lambda x: x.norm(),
    "norm 3": lambda x: x.norm(3, dim=1),
    "norm 1": lambda x: x.norm(1, dim=0),
    "norm inf": lambda x: x.norm(float("inf"), dim=0),
    "logsumexp": lambda x: x.logsumexp(1),
    "logsumexp dims": lambda x: x.logsumexp((0, 1), keepdim=True),
    "cumsum": lambda x: x.cumsum(1),
    "cumprod": lambda x: x.cumprod(1),
    "logcumsumexp": lambda x: x.logcumsumexp(1),
    "cummax": lambda x: x.cummax(1).values,
    "max": lambda x: x.max(1).values,
    "min keepdim": lambda x: x.min(0, keepdim=True).values,
    "amax": lambda x: x.amax(1),
    "aminmax": lambda x: tuple(x.aminmax(dim=1)),
    "median": lambda x: x.median(1).values,
    "nanmedian": lambda x: x.nanmedian(),
    "quantile": lambda x: x.quantile(0.3, dim=1),
    "sort": lambda x: x.sort(1, descending=True).values,
    "topk": lambda x: x.topk(2, 1).values,
    "kthvalue": lambda x: x.kthvalue(2, 1).values,
    "mode": lambda x: x.mode(1).values,
    "nansum": lambda x: x.nansum(1),
    "nanmean": lambda x: x.nanmean(),
    "clamp": lambda x: x.clamp(-0.7, 0.9),
    "where": lambda x: calque.where(x > 0, x * x, x * 3.0),
    "pow 2": lambda x: x**2,
    "pow 3": lambda x: x**3,
    "pow -2": lambda x: (x + 3.0) ** -2,
    "pow 0": lambda x: x**0 * x,
    "base 2": lambda x: 2.0**x,
    "lerp": lambda x: calque.lerp(x, x * x, 0.3),
    "lerp far": lambda x: calque.lerp(x, x * x, 0.8),
    "addcmul": lambda x: calque.addcmul(x, x, x, value=0.5),
    "addcdiv": lambda x: calque.addcdiv(x, x, x + 3.0, value=2),
    "outer": lambda x: x[0].outer(x[1]),
    "dot": lambda x: x[0].dot(x[1]),
    "einsum": lambda x: calque.einsum("ij,kj,ij->k", x, x, x),
    "einsum diagonal": lambda x: calque.einsum("ii->i", x[:, :2]),
    "tensordot": lambda x: calque.tensordot(x, x, ([1], [1])),
    "kron": lambda x: calque.kron(x, x[:1]),
    "trace": lambda x: x.trace(),
    "matrix_power": lambda x: (x[:, :2]).matrix_power(3),
    "cdist": lambda x: calque.cdist(x, x * 2.0 + 1.0),
    "cross": lambda x: calque.linalg.cross(x, x * x),
    "diff": lambda x: calque.diff(x * x, dim=1),
    "dist": lambda x: calque.dist(x, x * x),
    "sum_to_size": lambda x: (x * x).sum_to_size(2, 1),
}


@pytest.mark.parametrize("name", ONE)
def test_one_operand(name: str) -> None:
    x = leaf((2, 3))
    assert gradcheck(ONE[name], (x,))
    assert gradgradcheck(ONE[name], (x,), atol=1e-4)


PRODUCTS = {
    "mm": ((2, 3), (3, 2)),
    "matmul": ((2, 3), (3,)),
    "bmm": ((2, 2, 3), (2, 3, 1)),
    "mv": ((2, 3), (3,)),
    "inner": ((2, 3), (1, 3)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str) -> None:
    a, b = (leaf(shape, seed=k) for k, shape in enumerate(PRODUCTS[name]))
    assert gradcheck(getattr(calque, name), (a, b))
    assert gradgradcheck(getattr(calque, name), (a, b))


def test_products_that_add() -> None:
    c, a, b = leaf((2,)), leaf((3, 2), seed=1), leaf((2, 2), seed=2)
    assert gradcheck(lambda *t: calque.addmm(*t, beta=0.5, alpha=2.0), (c, a, b))
    assert gradcheck(lambda *t: calque.baddbmm(*t), (leaf((2, 3, 2)), leaf((2, 3, 1)), leaf((2, 1, 2))))


def positive(x: Any) -> Any:
    return x @ x.mT + 3.0 * calque.eye(3, dtype=calque.float64)


DECOMPOSITIONS = {
    "inv": lambda x: calque.linalg.inv(positive(x)),
    "det": lambda x: calque.linalg.det(x),
    "slogdet": lambda x: calque.linalg.slogdet(positive(x)).logabsdet,
    "solve": lambda x: calque.linalg.solve(positive(x), x[:, :2]),
    "cholesky": lambda x: calque.linalg.cholesky(positive(x)),
    "eigvalsh": lambda x: calque.linalg.eigvalsh(positive(x)),
    "eigh": lambda x: calque.linalg.eigh(positive(x)).eigenvectors ** 2,
    "svdvals": lambda x: calque.linalg.svdvals(x[:, :2]),
    "svd": lambda x: (lambda u, s, vh: (u * s) @ vh + u @ vh)(*calque.linalg.svd(x[:, :2], full_matrices=False)),
    "qr": lambda x: tuple(calque.linalg.qr(x)),
    "pinv": lambda x: calque.linalg.pinv(x[:, :2]),
    "nuclear norm": lambda x: calque.linalg.matrix_norm(x, "nuc"),
}


@pytest.mark.parametrize("name", DECOMPOSITIONS)
def test_decompositions(name: str) -> None:
    assert gradcheck(DECOMPOSITIONS[name], (leaf((3, 3), seed=4),))


@pytest.mark.parametrize("name", ["inv", "det", "solve", "cholesky"])
def test_second_order_of_decompositions(name: str) -> None:
    assert gradgradcheck(DECOMPOSITIONS[name], (leaf((3, 3), seed=4),), atol=1e-4)


def test_ties_and_flat_places() -> None:
    """Where a function has no derivative, the conventions of PyTorch."""
    x = calque.tensor([0.0, 0.0, 1.0], requires_grad=True)
    x.abs().sum().backward()
    assert x.grad.tolist() == [0.0, 0.0, 1.0]
    other = calque.tensor([2.0, 1.0])
    for function, expected in (
        (lambda t: t.amax(), [0.5, 0.5, 0.0]),
        (lambda t: t.max(), [0.5, 0.5, 0.0]),
        (lambda t: t.max(0).values, [1.0, 0.0, 0.0]),
        (lambda t: calque.maximum(t[:2], other).sum(), [0.5, 1.0, 0.0]),
        (lambda t: t[:2].clamp(max=2.0).sum(), [1.0, 1.0, 0.0]),
    ):
        y = calque.tensor([2.0, 2.0, 1.0], requires_grad=True)
        function(y).backward()
        assert y.grad.tolist() == expected


def test_zero_norm_and_zero_deviation_have_gradient_zero() -> None:
    for function in (lambda t: t.norm(), lambda t: t.std(), lambda t: t.norm(3)):
        x = calque.zeros(3, requires_grad=True)
        function(x).backward()
        assert x.grad.tolist() == [0.0, 0.0, 0.0]


def test_an_empty_part_of_a_cat_keeps_its_history() -> None:
    empty = calque.zeros(0, requires_grad=True)
    y = calque.cat([empty, calque.ones(2)])
    assert y.requires_grad and y.tolist() == [1.0, 1.0]
    y.sum().backward()
    assert empty.grad is not None and empty.grad.shape == (0,)
