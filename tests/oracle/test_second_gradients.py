"""Second gradients of functions with kinks are PyTorch's, also where they are zero everywhere: then a gradient requires gradients, and what it was
taken of gets zeros."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import calque  # noqa: E402

pytestmark = pytest.mark.oracle

POINTS = [-1.3, -0.2, 0.3, 0.7, 1.9]


def F(T: Any) -> Any:
    return T.nn.functional


FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    **{
        name: lambda T, x, name=name: getattr(F(T), name)(x)
        for name in ("relu", "leaky_relu", "relu6", "hardtanh", "softshrink", "hardshrink", "elu", "selu", "celu", "silu", "mish", "softplus")
    },
    **{name: lambda T, x, name=name: getattr(T, name)(x) for name in ("abs", "amax", "max", "median", "nan_to_num", "round", "floor", "sign")},
    "square of relu": lambda T, x: x.relu() ** 2,
    "relu of square": lambda T, x: (x * x - 0.3).relu(),
    "clamp": lambda T, x: x.clamp(-0.5, 0.5) * x,
    "maximum": lambda T, x: T.maximum(x * x, x),
    "where": lambda T, x: T.where(x > 0, x**3, 2 * x),
    "threshold": lambda T, x: F(T).threshold(x, 0.1, 2.0),
    "prelu": lambda T, x: F(T).prelu(x, T.tensor([0.2], dtype=T.float64)),
    "max_pool1d": lambda T, x: F(T).max_pool1d(x[None, None], 2),
    "pooled squares": lambda T, x: F(T).max_pool1d((x**3)[None, None], 2),
    "smooth_l1": lambda T, x: F(T).smooth_l1_loss(x, T.zeros(5, dtype=T.float64)),
    "huber": lambda T, x: F(T).huber_loss(x, T.zeros(5, dtype=T.float64), delta=0.5),
    "norm": lambda T, x: x.norm(),
    "norm of relu": lambda T, x: x.relu().norm(),
    "sort": lambda T, x: x.sort().values ** 2,
    "fmod": lambda T, x: T.fmod(x, 0.7) * x,
}


def second(T: Any, function: Callable[[Any, Any], Any]) -> np.ndarray:
    """The gradient of the sum of the gradient; zeros where nothing depends on the points."""
    x = T.tensor(POINTS, dtype=T.float64, requires_grad=True)
    (g,) = T.autograd.grad(function(T, x).sum(), x, create_graph=True)
    h = T.autograd.grad(g.sum(), x, allow_unused=True)[0] if g.requires_grad else None
    return np.zeros(5) if h is None else np.asarray((h + T.zeros(5, dtype=T.float64)).detach())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_second_gradients(name: str) -> None:
    mine, reference = second(calque, FUNCTIONS[name]), second(torch, FUNCTIONS[name])
    np.testing.assert_allclose(mine, reference, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["relu", "leaky_relu", "relu6", "hardtanh", "softshrink", "hardshrink", "threshold", "max_pool1d", "abs", "rrelu"])
def test_gradients_of_linear_pieces_are_functions_of_the_points(name: str) -> None:
    """A penalty on such a gradient sends zeros to everything that the points depend on."""
    found = []
    for T in (torch, calque):
        x, b = T.tensor(POINTS, dtype=T.float64, requires_grad=True), T.zeros(5, dtype=T.float64, requires_grad=True)
        function = FUNCTIONS.get(name) or (lambda T, x: F(T).rrelu(x))
        (g,) = T.autograd.grad(function(T, x + b).sum(), x, create_graph=True)
        assert g.requires_grad
        g.square().sum().backward()
        found.append((g.tolist(), None if b.grad is None else (b.grad + 0.0).tolist()))
    assert found[0] == found[1]
    assert found[0][1] == [0.0] * 5


KINKS: dict[str, Callable[[Any, Any], Any]] = {
    "elu": lambda T, x: F(T).elu(x, 0.75),
    "elu_": lambda T, x: F(T).elu(x * 1, 0.75, inplace=True),
    "celu": lambda T, x: F(T).celu(x, 0.5),
    "selu": lambda T, x: F(T).selu(x),
    "softplus": lambda T, x: F(T).softplus(x, 2.0, 3.0),
    "one slope": lambda T, x: F(T).prelu(x, T.tensor([0.25], dtype=T.float64)),
}


@pytest.mark.parametrize("name", KINKS)
def test_gradients_exactly_at_kinks(name: str) -> None:
    """Both passes: PyTorch's second one may count a kink to the other side than its first."""
    assert_passes_agree(lambda T, x, w: KINKS[name](T, x) * w)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("name", ["elu", "elu_", "celu", "selu", "softplus", "logsigmoid"])  # of a slope PyTorch's two modes take two sides
def test_forward_mode_exactly_at_kinks(name: str) -> None:
    found = []
    for T in (calque, torch):
        x = T.tensor([0.0, -0.0, 1.5, -1.0, 0.5], dtype=T.float64)
        found.append(np.asarray(T.func.jvp(lambda x, T=T: KINKS.get(name, lambda T, x: F(T).logsigmoid(x))(T, x), (x,), (T.ones_like(x),))[1]))
    np.testing.assert_allclose(*found, rtol=1e-12)


def test_gradients_of_learned_slopes_at_zero() -> None:
    assert_passes_agree(lambda T, x, w: F(T).prelu(x, w.sum().reshape(1)))
    assert_passes_agree(lambda T, x, w: F(T).prelu(x.reshape(1, 5, 1), w))


def assert_passes_agree(function: Callable[[Any, Any, Any], Any]) -> None:
    """First and second gradients to the points, to weights and to the gradient that comes in."""
    found = []
    for T in (calque, torch):
        x = T.tensor([0.0, -0.0, 1.5, -1.0, 0.5], dtype=T.float64, requires_grad=True)
        w = T.tensor([0.25, 0.5, -1.0, 2.0, 0.125], dtype=T.float64, requires_grad=True)
        y = function(T, x, w)
        g = T.full(tuple(y.shape), 1.5, dtype=T.float64, requires_grad=True)
        first = T.autograd.grad(y, (x, w), g, create_graph=True)
        mixed = (first[0] * T.tensor([2.0, 3.0, 5.0, 7.0, 11.0], dtype=T.float64)).sum() + (first[1] * 13.0).sum()
        found.append([np.asarray(t.detach()) for t in (*first, *T.autograd.grad(mixed, (x, w, g)))])
    for mine, reference in zip(*found, strict=True):
        np.testing.assert_allclose(mine, reference, rtol=1e-9, atol=1e-12)


OF_RESULTS: dict[str, Callable[[Any, Any], Any]] = {
    "softmax": lambda T, x: F(T).softmax(x, -1), "softmin": lambda T, x: F(T).softmin(x, -1), "log_softmax": lambda T, x: F(T).log_softmax(x, -1),
    **{name: lambda T, x, name=name: getattr(T, name)(x) for name in ("sigmoid", "tanh", "exp", "sqrt", "rsqrt", "reciprocal", "tan", "expm1")},
}  # fmt: skip


def _since(T: Any, x: Any, how: str) -> None:
    if how == "set":
        x.data = x.data * 0.5
    elif how == "written through data":
        x.data.mul_(0.5)
    elif how == "written":
        with T.no_grad():
            x.mul_(0.5)


@pytest.mark.parametrize("how", ["nothing", "set", "written through data", "written"])
@pytest.mark.parametrize("name", OF_RESULTS)
def test_gradients_that_are_made_of_the_result_are_functions_of_it(name: str, how: str) -> None:
    """Whatever has become of the operand; and who asks for the gradient of the result gets it."""
    found: list[list[np.ndarray]] = []
    for T in (torch, *[calque] * 4):  # as written, watched, and as steps that are known
        x = T.tensor([[0.3, 0.7, 1.9], [0.2, 1.3, 0.5]], dtype=T.float64, requires_grad=True)
        w = T.tensor([[0.5, -0.2, 1.1], [0.3, 0.8, -0.6]], dtype=T.float64, requires_grad=True)
        operand = x * 1.0
        y = OF_RESULTS[name](T, operand)
        _since(T, operand, how)
        (g,) = T.autograd.grad(y, x, w, create_graph=True)
        found.append([np.asarray(t.detach()) for t in (g, *T.autograd.grad((g * g).sum(), (x, w, y)))])
    for mine in found[1:]:
        for a, b in zip(mine, found[0], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
