"""The text of random tensors equals PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest

import calque

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.oracle

SHAPES = [(), (1,), (5,), (2, 3), (2, 0), (0,), (2, 3, 4), (30, 40), (1001,), (1, 1, 1200), (3, 2, 7, 100), (1, 30)]
SCALES = {"units": 1.0, "thousands": 1000.0, "tiny": 1e-5, "huge": 1e9}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_random_values(dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> None:
    normal = rng.normal(size=shape)
    cases = [normal * scale for scale in SCALES.values()]
    cases.append(np.round(normal * 3))
    cases.append(np.where(rng.random(shape) < 0.3, np.nan, np.where(rng.random(shape) < 0.3, -np.inf, normal)))
    for values in cases:
        if dtype in ("int64", "int32", "uint8", "bool"):
            values = np.abs(np.nan_to_num(values, posinf=1, neginf=0)) % 200
        expected = torch.tensor(values).to(getattr(torch, dtype))
        assert repr(calque.from_dlpack(expected)) == repr(expected)


@pytest.mark.parametrize("options", [
    {"precision": 2}, {"linewidth": 40}, {"threshold": 5, "edgeitems": 2}, {"sci_mode": True},
    {"sci_mode": False, "precision": 8},
    {"profile": "short"}, {"profile": "full"}, {"threshold": 3, "edgeitems": 1, "linewidth": 20},
], ids=str)  # fmt: skip
def test_options(options: dict[str, object], rng: np.random.Generator) -> None:
    values = rng.normal(size=(4, 7, 5)) * 100
    torch.set_printoptions(**options)
    calque.set_printoptions(**options)
    try:
        assert repr(calque.tensor(values)) == repr(torch.tensor(values))
        assert repr(calque.tensor(values, requires_grad=True).reshape(-1)) == repr(
            torch.tensor(values, requires_grad=True).reshape(-1)
        )
    finally:
        torch.set_printoptions(profile="default")
        calque.set_printoptions(profile="default")
