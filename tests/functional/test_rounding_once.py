"""Functions of 16-bit floats are computed in float32 and rounded once, as PyTorch's kernels do: values, gradients, and no overflow on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import calque
from calque.nn import functional as F

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "mish": F.mish,
    "softplus": lambda x: F.softplus(x, 1.7),
    "logsigmoid": F.logsigmoid,
    "elu": lambda x: F.elu(x, 0.7),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.7),
    "glu": F.glu,
    "log_softmax": lambda x: F.log_softmax(x, 1),
    "layer_norm": lambda x: F.layer_norm(x, (8,)),
    "var": lambda x: x.var(1),
    "std": lambda x: x.std(1),
    "norm": lambda x: x.norm(dim=1),
    "norm 3": lambda x: x.norm(3, dim=1),
    "avg_pool": lambda x: F.avg_pool2d(x[None, None], 3, padding=1, count_include_pad=False),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x[None, None], (7, 3)),
    "hypot": lambda x: calque.hypot(x, x.flip(0)),
    "lerp": lambda x: calque.lerp(x, x.flip(0), 0.3),
    "lerp by tensors": lambda x: calque.lerp(x, x.flip(0), (x.detach() > 0).to(x.dtype) * 0.75),
    "bilinear": lambda x: F.interpolate(x[None, None], scale_factor=2.7, mode="bilinear"),
    "bicubic": lambda x: F.interpolate(x[None, None], size=(31, 13), mode="bicubic"),
    "antialias": lambda x: F.interpolate(x[None, None], size=(21, 5), mode="bilinear", antialias=True),
    "linear": lambda x: F.interpolate(x[None], scale_factor=3, mode="linear"),
    "norm 1": lambda x: x.norm(1, dim=1),
}


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_rounded_once(name: str, kind: str) -> None:
    dtype = getattr(calque, kind)
    values = calque.tensor(np.random.default_rng(7).normal(size=(50, 8)) * 2).to(dtype)
    results = []
    for inside in (dtype, calque.float32):
        x = values.detach().clone().to(inside).requires_grad_()
        y = FUNCTIONS[name](x)
        y.backward((calque.arange(y.numel()) % 3 + 1).reshape(y.shape).to(inside))
        assert y.dtype is inside and x.grad.dtype is inside
        results.append((y.detach().float().numpy(), x.grad.float().numpy()))
    (value, gradient), (exact, exact_gradient) = results
    half = 2.0**-8 if kind == "bfloat16" else 2.0**-11
    np.testing.assert_allclose(value, exact, rtol=half, atol=1e-6)  # half a unit in the last place, and what float32 leaves of 1 + tanh(x)
    slack = 2 * half  # a gradient may be computed from a result that was rounded
    np.testing.assert_allclose(gradient, exact_gradient, rtol=slack, atol=slack * float(np.abs(exact_gradient).max()))


@pytest.mark.parametrize("name", ["gelu", "gelu tanh", "silu", "mish", "hardswish", "norm", "var", "std"])
def test_nothing_overflows_on_the_way(name: str) -> None:
    """Squares and cubes of 300 are beyond float16, their results are not."""
    x = calque.tensor([[300.0, -300.0, 299.0, 41.0, -41.0, 300.0, 0.0, 1.0]], dtype=calque.float16).mul(0.5).requires_grad_()
    y = FUNCTIONS[name](x)
    (y * 0.5).sum().backward()
    assert np.isfinite(x.grad.float().numpy()).all()
    wide = FUNCTIONS[name](x.detach().float()).to(calque.float16)
    assert y.detach().tolist() == wide.tolist()


def test_in_place_keeps_the_type() -> None:
    for name in ("silu", "hardswish", "hardsigmoid", "mish", "elu", "selu", "celu"):
        x = calque.tensor([-1.5, 0.3, 2.7], dtype=calque.bfloat16)
        expected = getattr(F, name)(x)
        assert getattr(F, name)(x, inplace=True) is x
        assert x.dtype is calque.bfloat16
        assert x.tolist() == expected.tolist()


@pytest.mark.parametrize("name", ["addmm", "addmv", "baddbmm"])
def test_scaled_products_round_twice_at_most(name: str) -> None:
    """The product, and the sum of what is scaled: on average that is less than 1.7 times the error of one rounding."""
    random = np.random.default_rng(5)
    shapes = {"addmm": ((40, 40),) * 3, "addmv": ((4000,), (4000, 9), (9,)), "baddbmm": ((2, 40, 40),) * 3}[name]
    given = [calque.tensor(random.normal(size=shape)).to(calque.bfloat16) for shape in shapes]
    function = getattr(calque, name)
    exact = function(*[x.double() for x in given], beta=0.3, alpha=0.7)
    errors = [(found.double() - exact).abs().mean().item() for found in (function(*given, beta=0.3, alpha=0.7), exact.to(calque.bfloat16))]
    assert errors[0] < 1.7 * errors[1]
