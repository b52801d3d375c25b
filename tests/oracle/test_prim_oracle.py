"""Primitives beside PyTorch: values on special inputs, conversions, indexing and convolution, gradients at singular points."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from calque.backend.ref.interpret import interpret
from calque.base.dtypes import float32, float64
from calque.ops import get
from tests.ops.cases import assert_near, epsilon, evaluate, operands, program_of

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.oracle

Array = np.ndarray[Any, Any]
SPECIAL = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, 3.0, -3.0, 1e-12, -1e-12, 20.0, -20.0]

UNARY = [
    "neg", "abs", "sign", "exp", "expm1", "log", "log1p", "log2", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tan",
    "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfinv", "sigmoid", "relu", "floor",
    "ceil", "round", "trunc", "logical_not", "lgamma", "digamma",
]  # fmt: skip
BINARY: dict[str, Callable[..., Any]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "floor_divide": torch.floor_divide,
    "remainder": torch.remainder, "fmod": torch.fmod, "pow": torch.pow, "atan2": torch.atan2, "maximum": torch.maximum,
    "minimum": torch.minimum, "lt": torch.lt, "le": torch.le, "eq": torch.eq, "ne": torch.ne, "gt": torch.gt, "ge": torch.ge,
}  # fmt: skip


@pytest.mark.parametrize("dtype", [float32, float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", UNARY)
def test_unary_values(name: str, dtype: Any) -> None:
    x = np.array(SPECIAL, dtype.np)
    want = getattr(torch, name)(torch.from_numpy(x)).numpy()
    got = evaluate(get(name), [x], ())
    assert got.dtype == want.dtype
    if got.dtype == np.bool_:
        np.testing.assert_array_equal(got, want)
    else:  # near the zeros of digamma only the absolute error is small
        assert_near(got, want, 8, dtype, 2 * epsilon(dtype) if name == "digamma" else 0.0)


@pytest.mark.parametrize("dtype", [float32, float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", BINARY)
def test_binary_values(name: str, dtype: Any) -> None:
    pairs = np.array(list(itertools.product(SPECIAL, SPECIAL)), dtype.np)
    x, y = pairs[:, 0].copy(), pairs[:, 1].copy()
    want = BINARY[name](torch.from_numpy(x), torch.from_numpy(y)).numpy()
    got = evaluate(get(name), [x, y], ())
    if got.dtype == np.bool_:
        np.testing.assert_array_equal(got, want)
    else:
        assert_near(got, want, 8, dtype)


@pytest.mark.parametrize("name", ["floor_divide", "remainder", "fmod", "pow", "maximum"])
def test_integer_values(name: str) -> None:
    pairs = np.array(list(itertools.product(range(-4, 5), [-3, -2, -1, 1, 2, 3])))
    x, y = pairs[:, 0].copy(), pairs[:, 1].copy()
    if name == "pow":
        y = np.abs(y)
    want = BINARY[name](torch.from_numpy(x), torch.from_numpy(y)).numpy()
    np.testing.assert_array_equal(evaluate(get(name), [x, y], ()), want)


@pytest.mark.parametrize("number", range(len(get("conv2d").samples)))
def test_convolution(number: int, rng: np.random.Generator) -> None:
    sample = get("conv2d").samples[number]
    x, w = operands(get("conv2d"), sample, float64, rng)
    stride, padding, dilation, groups = sample.attrs
    tx, tw = torch.from_numpy(x).requires_grad_(), torch.from_numpy(w).requires_grad_()
    out = torch.nn.functional.conv2d(tx, tw, None, stride, padding, dilation, groups)
    np.testing.assert_allclose(evaluate(get("conv2d"), [x, w], sample.attrs), out.detach().numpy(), rtol=1e-10, atol=1e-12)
    g = rng.standard_normal(out.shape)
    out.backward(torch.from_numpy(g))
    for name, operands_, hw, want in (
        ("conv2d_input_grad", [g, w], x.shape[2:], tx.grad),
        ("conv2d_weight_grad", [x, g], w.shape[2:], tw.grad),
    ):
        got = evaluate(get(name), operands_, (hw, *sample.attrs))
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("descending", [False, True])
def test_argsort(descending: bool, rng: np.random.Generator) -> None:
    x = rng.integers(0, 4, (5, 20)).astype(np.float32)
    x[rng.random(x.shape) < 0.2] = math.nan
    want = torch.argsort(torch.from_numpy(x), dim=1, descending=descending, stable=True).numpy()
    np.testing.assert_array_equal(evaluate(get("argsort"), [x], (1, descending)), want)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_positions_of_extremes(name: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((5, 6))
    x[2, 3] = x[2, 5] = math.nan
    want = getattr(torch, name)(torch.from_numpy(x), dim=1).numpy()
    np.testing.assert_array_equal(evaluate(get(name), [x], ((1,), False)), want)


@pytest.mark.parametrize("name", ["scatter", "scatter_add"])
def test_scatter(name: str, rng: np.random.Generator) -> None:
    base, source = rng.standard_normal((4, 5)), rng.standard_normal((3, 5))
    index = np.stack([rng.permutation(4)[:3] for _ in range(5)], axis=1)
    want = getattr(torch, name)(torch.from_numpy(base), 0, torch.from_numpy(index), torch.from_numpy(source)).numpy()
    np.testing.assert_allclose(evaluate(get(name), [base, index, source], (0,)), want, rtol=1e-14)


@pytest.mark.parametrize("target", ["float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool"])
def test_conversions(target: str) -> None:
    from calque.base.dtypes import dtype_by_name

    x = np.array([0.0, -0.0, 0.4, -0.6, 1.5, 2.5, -2.5, 100.7, 127.9, 250.1], np.float32)
    if target in ("uint8", "int8"):
        x = x[:8] if target == "int8" else np.abs(x)
    want = torch.from_numpy(x).to(getattr(torch, target))
    got = evaluate(get("cast"), [x], (dtype_by_name(target),))
    np.testing.assert_array_equal(got.astype(np.float64), want.to(torch.float64).numpy())


# ------------------------------------------------------------------------------------------------------------------- gradients

POINTS = np.array([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0])


def _compare(name: str, xs: list[Array], function: Callable[..., Any]) -> None:
    import calque
    import calque.functional as F
    from calque.autograd import grad

    ours = [calque.tensor(x, requires_grad=True) for x in xs]
    theirs = [torch.from_numpy(x).requires_grad_() for x in xs]
    got = grad(F.prim(name, *ours).sum(), ours)
    want = torch.autograd.grad(function(*theirs).sum(), theirs)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g.numpy(), w.numpy(), rtol=1e-12, atol=1e-13, equal_nan=True)


@pytest.mark.parametrize("name", [n for n in UNARY if get(n).vjp and n != "digamma"])  # PyTorch's trigamma has 9 digits
def test_unary_gradients(name: str) -> None:
    _compare(name, [POINTS.copy()], getattr(torch, name))


@pytest.mark.parametrize("name", [n for n in BINARY if get(n).vjp and n != "floor_divide"])
def test_binary_gradients(name: str) -> None:
    pairs = np.array(list(itertools.product(POINTS, POINTS)))
    if name == "atan2":
        pairs = pairs[(pairs != 0).any(axis=1)]
    _compare(name, [pairs[:, 0].copy(), pairs[:, 1].copy()], BINARY[name])


def test_programs_of_bfloat16_agree_with_pytorch(rng: np.random.Generator) -> None:
    op = get("exp")
    x = rng.standard_normal(100).astype(np.float32)
    narrow = torch.from_numpy(x).bfloat16()
    ours = narrow.float().numpy().astype(get("cast").samples[-1].attrs[0].np)
    got = interpret(program_of(op, [ours], ()), [ours])[0]
    np.testing.assert_array_equal(got.astype(np.float32), torch.exp(narrow).float().numpy())
