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
    "cube": lambda x: x**3,
    "logcumsumexp": lambda x: x.logcumsumexp(0),
    "smooth l1": lambda x: F.smooth_l1_loss(x, x.detach().flip(0), reduction="none", beta=0.7),
    "huber": lambda x: F.huber_loss(x, x.detach().flip(0), reduction="none", delta=0.7),
    "bce": lambda x: F.binary_cross_entropy(x.abs().clamp(0.125, 0.875), (x.detach().flip(0) / 8).abs().clamp(0, 1), reduction="none"),
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


SUMS: dict[str, tuple[tuple[tuple[int, ...], ...], Callable[..., Any]]] = {
    "linear": (((3000,), (40, 60), (3000, 60)), lambda c, a, b: F.linear(a, b, c)),
    "linear of a batch": (((30,), (2, 4, 60), (30, 60)), lambda c, a, b: F.linear(a, b, c)),
    "linear of columns": (((30,), (60, 40), (30, 60)), lambda c, a, b: F.linear(a.t(), b, c)),
    "addmm": (((40, 50), (40, 60), (60, 50)), calque.addmm),
    "addmm of a row": (((50,), (40, 60), (60, 50)), calque.addmm),
    "addmm of a column": (((40, 1), (40, 60), (60, 50)), calque.addmm),
    "addmm of columns": (((2000, 50), (2000, 60), (50, 60)), lambda c, a, b, **scales: calque.addmm(c, a, b.t(), **scales)),
    "addmv": (((4000,), (4000, 9), (9,)), calque.addmv),
    "addmv of a number": (((), (40, 9), (9,)), calque.addmv),
    "baddbmm": (((3, 40, 50), (3, 40, 60), (3, 60, 50)), calque.baddbmm),
    "addbmm": (((40, 50), (3, 40, 60), (3, 60, 50)), calque.addbmm),
    "conv2d": (((32,), (2, 32, 16, 16), (32, 32, 3, 3)), lambda c, a, b: F.conv2d(a, b, c, padding=1)),
    "conv2d of few channels": (((3,), (2, 4, 9, 9), (3, 4, 3, 3)), lambda c, a, b: F.conv2d(a, b, c)),
    "conv2d with a stride": (((64,), (4, 64, 14, 14), (64, 64, 3, 3)), lambda c, a, b: F.conv2d(a, b, c, 2, 1)),
    "conv2d of pixels": (((130,), (4, 64, 14, 14), (130, 64, 1, 1)), lambda c, a, b: F.conv2d(a, b, c)),
    "conv2d in groups": (((128,), (2, 64, 16, 16), (128, 32, 3, 3)), lambda c, a, b: F.conv2d(a, b, c, padding=1, groups=2)),
    "conv1d": (((6,), (3, 4, 30), (6, 4, 5)), lambda c, a, b: F.conv1d(a, b, c)),
    "conv_transpose2d": (((32,), (2, 32, 16, 16), (32, 32, 3, 3)), lambda c, a, b: F.conv_transpose2d(a, b, c, padding=1)),
    "conv_transpose2d by two": (((48,), (2, 64, 12, 12), (64, 48, 3, 3)), lambda c, a, b: F.conv_transpose2d(a, b, c, 2, 1, 1)),
    "conv_transpose2d by two in groups": (((128,), (2, 64, 12, 12), (64, 64, 2, 2)), lambda c, a, b: F.conv_transpose2d(a, b, c, 2, groups=2)),
    "conv_transpose2d with gaps": (((48,), (2, 64, 12, 12), (64, 48, 1, 1)), lambda c, a, b: F.conv_transpose2d(a, b, c, 3)),
    "conv_transpose1d": (((6,), (3, 4, 30), (4, 6, 5)), lambda c, a, b: F.conv_transpose1d(a, b, c, 2)),
    "conv3d": (((6,), (2, 4, 5, 7, 7), (6, 4, 3, 3, 3)), lambda c, a, b: F.conv3d(a, b, c, padding=1)),
    "conv_transpose3d": (((6,), (2, 4, 3, 7, 7), (4, 6, 3, 3, 3)), lambda c, a, b: F.conv_transpose3d(a, b, c, 2)),
    "conv3d of one step": (((6,), (2, 4, 3, 7, 7), (6, 4, 1, 3, 3)), lambda c, a, b: F.conv3d(a, b, c)),
}


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", SUMS)
def test_a_product_plus_something_is_rounded_once(name: str, kind: str) -> None:
    """Computed at once, interpreted and compiled, all within half a unit in the last place and what float32 leaves; so are its gradients."""
    random, dtype = np.random.default_rng(5), getattr(calque, kind)
    shapes, function = SUMS[name]
    given = [calque.tensor(random.normal(size=shape)).to(dtype) for shape in shapes]
    size = function(*[x.double().abs() for x in given]).numpy()  # of what is added up: float32 rounds that
    for scales in ({}, {"beta": 0.3, "alpha": -0.7}) if name.startswith(("add", "badd")) else ({},):
        exact_operands = [x.double().requires_grad_() for x in given]
        exact = function(*exact_operands, **scales)
        weights = calque.tensor(random.integers(-2, 3, size=tuple(exact.shape))).double()
        (exact * weights).sum().backward()
        for way in (function, calque.compile(function)):
            for _ in range(20):  # a program that is seen often is compiled
                operands = [x.clone().requires_grad_() for x in given]
                found = way(*operands, **scales)
                found.backward(weights.to(dtype))
            assert found.dtype is dtype
            half = 2.0**-8 if kind == "bfloat16" else 2.0**-11
            wanted = exact.detach().numpy()
            assert (np.abs(found.detach().double().numpy() - wanted) <= half * np.abs(wanted) + 2e-6 * size).all()
            gradients: list[tuple[Any, Any]] = [(x.grad, y.grad) for x, y in zip(operands, exact_operands, strict=True)]
            for mine, true in gradients:
                limit = 4 * half * float(true.abs().max())
                np.testing.assert_allclose(mine.double().numpy(), true.numpy(), rtol=4 * half, atol=limit)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
def test_factors_may_differ_at_every_step(kind: str) -> None:
    """They are numbers that a program is handed: one program does for all."""
    c, a, b = [calque.ones(130, 130).to(getattr(calque, kind)) for _ in range(3)]

    def step(factor: float) -> float:
        return float((calque.addmm(c, a, b, alpha=factor, beta=-factor) + calque.baddbmm(c[None], a[None], b[None], beta=factor)).sum().item())

    for k in range(20):
        step(0.3 + k / 64)
    before = calque.stats()["programs"]
    for k in range(20):
        step(0.65 + k / 64)
    assert calque.stats()["programs"] == before
