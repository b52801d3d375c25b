"""Forward mode and backward mode give one derivative, also where it has two sides."""

from __future__ import annotations

import pytest

import calque
from calque.nn import functional as F

POINTS = calque.tensor([0.0, -0.0, -1.0, 1.0, 3.0, -3.0, 6.0, 0.5, -0.5, 100.0, -100.0])


@pytest.mark.parametrize("name", [
    "relu", "relu6", "leaky_relu", "elu", "celu", "selu", "logsigmoid", "softplus", "hardtanh", "hardswish", "hardsigmoid", "hardshrink",
    "softshrink", "gelu", "silu", "mish", "softsign", "tanhshrink",
])  # fmt: skip
def test_both_modes_agree(name: str) -> None:
    function = getattr(F, name)
    forward = calque.func.jvp(function, (POINTS,), (calque.ones_like(POINTS),))[1]
    assert calque.allclose(forward, calque.func.grad(lambda x: function(x).sum())(POINTS))
    assert calque.allclose(calque.func.jacfwd(function)(POINTS), calque.func.jacrev(function)(POINTS))
