"""Names of graph nodes beside PyTorch's, of functions that are one node in both."""

from __future__ import annotations

from typing import Any

import pytest

import calque

torch = pytest.importorskip("torch")

ELEMENTWISE = [
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "digamma", "erf", "erfc", "erfinv", "exp", "expm1",
    "floor", "lgamma", "log", "log10", "log1p", "log2", "logit", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh",
    "sqrt", "tan", "tanh", "trunc", "i0", "clone", "t", "relu", "prod", "sum", "max", "min", "amax", "amin",
]  # fmt: skip
OF_TWO = ["add", "sub", "mul", "div", "pow", "atan2", "maximum", "minimum", "fmod", "remainder", "matmul", "mm", "logaddexp", "xlogy"]
ACTIVATIONS = [
    "hardtanh", "relu6", "hardshrink", "softshrink", "elu", "celu", "selu", "softplus", "logsigmoid", "gelu", "silu", "tanhshrink", "softsign",
]  # fmt: skip
OTHERS: dict[str, Any] = {
    "stack": lambda T, x, y: T.stack([x, y], 1), "cat": lambda T, x, y: T.cat([x, y]), "sum(0)": lambda T, x, y: x.sum(0),
    "prod(0)": lambda T, x, y: x.prod(0),
    "column": lambda T, x, y: x[:, 0],
    "new dim": lambda T, x, y: x[..., None],
    "slice": lambda T, x, y: x[1, 1:],
    "squeeze": lambda T, x, y: x[:1].squeeze(), "squeeze(0)": lambda T, x, y: x[:1].squeeze(0), "squeeze(dims)": lambda T, x, y: x.squeeze((0, 1)),
    "power": lambda T, x, y: x**3.5, "of a number": lambda T, x, y: 2.0**x, "bmm": lambda T, x, y: T.bmm(x[None], y[None]),
    "fmod": lambda T, x, y: x.fmod(2.0), "conv2d": lambda T, x, y: T.nn.functional.conv2d(x[None, None], y[None, None]),
    "transposed": lambda T, x, y: T.nn.functional.conv_transpose2d(x[None, None], y[None, None]), "rfft": lambda T, x, y: T.fft.rfft(x),
    "addmm": lambda T, x, y: T.addmm(x.bfloat16(), x.bfloat16(), y.bfloat16()), "layer_norm": lambda T, x, y: T.nn.functional.layer_norm(x, (3,)),
    "baddbmm": lambda T, x, y: T.baddbmm(*[t.bfloat16()[None] for t in (x, x, y)]),
    "view": lambda T, x, y: x.view(9),
    "where": lambda T, x, y: T.where(x > 0, x, y),
    "cross_entropy": lambda T, x, y: T.nn.functional.cross_entropy(x, T.tensor([0, 1, 2])), "softmax": lambda T, x, y: x.softmax(1),
    "linear": lambda T, x, y: T.nn.functional.linear(x, y),
    "linear with bias": lambda T, x, y: T.nn.functional.linear(x.half(), y.half(), y[0].half()),
}  # fmt: skip


def test_names_of_nodes() -> None:
    cases: dict[str, Any] = {name: lambda T, x, y, name=name: getattr(T, name)(x) for name in ELEMENTWISE}
    cases |= {f"{name}(y)": lambda T, x, y, name=name: getattr(T, name)(x, y) for name in OF_TWO}
    cases |= {name: lambda T, x, y, name=name: getattr(T.nn.functional, name)(x) for name in ACTIVATIONS} | OTHERS
    found = []
    for T in (calque, torch):
        values = [T.tensor([[0.2, 0.3, 0.4], [0.7, 0.6, 0.5], [0.1, 0.9, 0.8]], requires_grad=True) for _ in range(2)]
        found.append({name: function(T, *values).grad_fn.name() for name, function in cases.items()})
    assert found[0] == found[1]
