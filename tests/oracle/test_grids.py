"""Block matrices, products and combinations, integrals: values, dtypes and gradients as PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import calque

torch = pytest.importorskip("torch")
Y = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)

CASES: list[Callable[[Any, Any], Any]] = [
    lambda t, y: t.block_diag(y, t.ones(2), t.tensor(3.0), t.ones(1, 0)),
    lambda t, y: t.block_diag(t.ones(1, 1, dtype=t.int64), y),
    lambda t, y: t.cartesian_prod(y[0], y[1], y[2]),
    lambda t, y: t.cartesian_prod(y[0]),
    lambda t, y: t.combinations(y[0], 3),
    lambda t, y: t.combinations(y[0], with_replacement=True),
    lambda t, y: t.combinations(y[0, :2], 3),
    lambda t, y: t.trapezoid(y),
    lambda t, y: t.trapezoid(y, t.arange(5.0) ** 2),
    lambda t, y: t.trapezoid(y, y.cumsum(1)),
    lambda t, y: t.trapz(y, dx=0.5, dim=0),
    lambda t, y: t.trapezoid(y[:, :1]),
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_as_pytorch(case: int) -> None:
    results = []
    for framework in (torch, calque):
        y = framework.tensor(Y, requires_grad=True)
        out = CASES[case](framework, y)
        (out * out).sum().backward()
        results.append((tuple(out.shape), str(out.dtype), out.detach().numpy(), y.grad.numpy()))
    (shape, dtype, value, grad), (shape2, dtype2, value2, grad2) = results
    assert (shape, dtype) == (shape2, dtype2.replace("calque", "torch"))
    np.testing.assert_allclose(value2, value, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(grad2, grad, rtol=1e-5, atol=1e-5)


def test_broadcast_shapes() -> None:
    assert calque.broadcast_shapes((2, 1), (3,), 1) == torch.broadcast_shapes((2, 1), (3,), 1) == (2, 3)
    with pytest.raises(RuntimeError, match="broadcast_shapes"):
        calque.broadcast_shapes((2,), (3,))
