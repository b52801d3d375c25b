"""Gradients at NaN, and at infinities: what PyTorch's kernels and formulas give there.

Some functions of PyTorch (the ELUs, hardswish, logit) treat NaN one way in a vector and another way in the elements behind the last whole one:
`IN_VECTORS` are compared on whole vectors alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

import calque

torch = pytest.importorskip("torch")

NAN, INF = math.nan, math.inf
VALUES = [NAN, INF, -INF, 0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 6.0]
COUNT = len(VALUES)


def _zeros(T: Any) -> Any:
    return T.zeros(COUNT, dtype=T.float64)


OF_ONE: dict[str, Callable[[Any, Any], Any]] = {
    "clamp": lambda T, x: x.clamp(-1.0, 1.0),
    "clamp(min)": lambda T, x: x.clamp(min=0.0),
    "clamp(max)": lambda T, x: x.clamp(max=0),
    "clamp(min=nan)": lambda T, x: x.clamp(min=NAN),
    "clamp(tensor)": lambda T, x: x.clamp(_zeros(T) - 1, _zeros(T) + 1),
    "clip": lambda T, x: T.clip(x, -1.0, 2.0),
    "clamp_": lambda T, x: (x * 1).clamp_(-1.0, 1.0),
    "leaky_relu": lambda T, x: T.nn.functional.leaky_relu(x),
    "leaky_relu(-0.5)": lambda T, x: T.nn.functional.leaky_relu(x, -0.5),
    "leaky_relu_": lambda T, x: T.nn.functional.leaky_relu(x * 1, 0.1, True),
    "rrelu": lambda T, x: T.nn.functional.rrelu(x, 0.1, 0.3),
    "prelu": lambda T, x: T.nn.functional.prelu(x, T.tensor([0.25], dtype=T.float64)),
    "threshold": lambda T, x: T.nn.functional.threshold(x, 0.5, 7.0),
    "relu": lambda T, x: T.relu(x),
    "hardsigmoid": lambda T, x: T.nn.functional.hardsigmoid(x),
    "max": lambda T, x: x.max(),
    "min": lambda T, x: x.min(),
    "max(2 NaNs)": lambda T, x: T.cat([x, x]).max(),
    "amax": lambda T, x: x.amax(),
    "amin(dim)": lambda T, x: x.amin(0),
    "max(dim)": lambda T, x: x.max(0)[0],
    "median": lambda T, x: x.median(),
    "nanmedian": lambda T, x: x.nanmedian(),
    "norm(inf)": lambda T, x: x.norm(INF),
    "norm(-inf)": lambda T, x: x.norm(-INF),
    "vector_norm(inf)": lambda T, x: T.linalg.vector_norm(x, INF, 0, True),
    "scatter_reduce(amax)": lambda T, x: _zeros(T)[:3].scatter_reduce(0, T.arange(COUNT) % 3, x, "amax"),
    "scatter_reduce(amin)": lambda T, x: _zeros(T)[:3].scatter_reduce(0, T.arange(COUNT) % 3, x, "amin", include_self=False),
    "margin_ranking_loss": lambda T, x: T.nn.functional.margin_ranking_loss(x, _zeros(T), _zeros(T) + 1, reduction="none"),
    "multi_margin_loss": lambda T, x: T.nn.functional.multi_margin_loss(x.reshape(1, -1), T.tensor([2])),
    "multi_margin_loss(2)": lambda T, x: T.nn.functional.multi_margin_loss(x.reshape(1, -1), T.tensor([3]), p=2),
    "multilabel_margin_loss": lambda T, x: T.nn.functional.multilabel_margin_loss(x.reshape(1, -1), T.tensor([[2, 3] + [-1] * (COUNT - 2)])),
    "huber_loss": lambda T, x: T.nn.functional.huber_loss(x, _zeros(T), reduction="none"),
    "smooth_l1_loss": lambda T, x: T.nn.functional.smooth_l1_loss(x, _zeros(T), reduction="none"),
    "l1_loss": lambda T, x: T.nn.functional.l1_loss(x, _zeros(T)),
}
IN_VECTORS: dict[str, Callable[[Any, Any], Any]] = {
    "hardtanh": lambda T, x: T.nn.functional.hardtanh(x),
    "hardtanh(-0.5, 2)": lambda T, x: T.nn.functional.hardtanh(x, -0.5, 2.0),
    "hardtanh_": lambda T, x: T.nn.functional.hardtanh(x * 1, inplace=True),
    "relu6": lambda T, x: T.nn.functional.relu6(x),
    "hardshrink": lambda T, x: T.nn.functional.hardshrink(x),
    "hardshrink(0)": lambda T, x: T.nn.functional.hardshrink(x, 0.0),
    "softshrink": lambda T, x: T.nn.functional.softshrink(x),
    "softshrink(1)": lambda T, x: T.nn.functional.softshrink(x, 1.0),
    "hardswish": lambda T, x: T.nn.functional.hardswish(x),
    "elu": lambda T, x: T.nn.functional.elu(x, 0.5),
    "celu": lambda T, x: T.nn.functional.celu(x, 0.5),
    "selu": lambda T, x: T.nn.functional.selu(x),
    "silu": lambda T, x: T.nn.functional.silu(x),
    "mish": lambda T, x: T.nn.functional.mish(x),
    "softplus": lambda T, x: T.nn.functional.softplus(x, 2.0, 4.0),
    "logsigmoid": lambda T, x: T.nn.functional.logsigmoid(x),
    "logit": lambda T, x: T.logit(x, 0.25),
    "abs": lambda T, x: x.abs(),
    "sign": lambda T, x: x.sign(),
}
OF_TWO: dict[str, Callable[[Any, Any, Any], Any]] = {
    "clamp(min)": lambda T, a, b: T.clamp(a, min=b),
    "clamp(max)": lambda T, a, b: T.clamp(a, max=b),
    "clamp": lambda T, a, b: T.clamp(a, b, b + 1),
    "maximum": lambda T, a, b: T.maximum(a, b),
    "fmin": lambda T, a, b: T.fmin(a, b),
    "prelu": lambda T, a, b: T.nn.functional.prelu(a.reshape(1, -1), b),
    "max(dim)": lambda T, a, b: T.stack([a, b]).max(0)[0],
    "amax(dim)": lambda T, a, b: T.stack([a, b]).amax(0),
    "norm(inf)": lambda T, a, b: T.stack([a, b]).norm(INF, 0),
    "nextafter": lambda T, a, b: T.nextafter(a, b),
    "margin_ranking_loss": lambda T, a, b: T.nn.functional.margin_ranking_loss(a, b, T.ones_like(a), reduction="none"),
}


def outcome(T: Any, function: Callable[..., Any], *values: list[float]) -> tuple[list[float], ...]:
    """The values of a function, and the gradients of its weighted sum."""
    operands = [T.tensor(v, dtype=T.float64, requires_grad=True) for v in values]
    y = function(T, *operands)
    grads = T.autograd.grad(y, operands, T.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).reshape(y.shape))
    return tuple([t.detach().reshape(-1).tolist() for t in (y, *grads)])


@pytest.mark.parametrize("name", OF_ONE)
def test_a_function_of_one_tensor_with_nan(name: str) -> None:
    for found, wanted in zip(outcome(calque, OF_ONE[name], VALUES), outcome(torch, OF_ONE[name], VALUES), strict=True):
        assert found == pytest.approx(wanted, nan_ok=True), name


@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("name", IN_VECTORS)
def test_a_function_of_vectors_with_nan(name: str, kind: str) -> None:
    def found(T: Any, second: bool) -> Any:
        x = T.tensor((VALUES + [-0.0, 1e-30, -1e-30, 3.0, -3.0]) * 16, dtype=getattr(T, kind), requires_grad=True)
        y = IN_VECTORS[name](T, x)
        (grad,) = T.autograd.grad(y, x, T.linspace(0.5, 1.5, y.numel(), dtype=y.dtype), create_graph=second)
        return y.detach().tolist(), T.autograd.grad((grad * x.detach().nan_to_num(1.0, 1.0, 1.0)).sum(), x)[0].tolist() if second else grad.tolist()

    straight = name.startswith(("hardtanh", "relu6", "hardshrink", "softshrink"))  # pieces, whose second gradient is 0
    for second in (False, True) if straight else (False,):
        for mine, wanted in zip(found(calque, second), found(torch, second), strict=True):
            assert mine == pytest.approx(wanted, nan_ok=True, rel=2e-5), (name, second)


@pytest.mark.parametrize("name", OF_TWO)
def test_a_function_of_two_tensors_with_nan(name: str) -> None:
    pairs = [a for a in VALUES for _ in VALUES], VALUES * COUNT
    for found, wanted in zip(outcome(calque, OF_TWO[name], *pairs), outcome(torch, OF_TWO[name], *pairs), strict=True):
        assert found == pytest.approx(wanted, nan_ok=True), name


def test_the_gradient_at_nan_of_a_function_that_is_recorded() -> None:
    def wanted(T: Any) -> Any:
        x = T.arange(40000, dtype=T.float32).reshape(200, 200) / 20000 - 1
        x[3, 5] = NAN
        x.requires_grad_()
        (x.clamp(-0.5, 0.5) * 2 + T.nn.functional.leaky_relu(x, 0.25)).sum().backward()
        return x.grad

    assert wanted(calque).tolist() == wanted(torch).tolist()
