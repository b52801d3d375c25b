"""`interpolate(antialias=True)`: values and gradients are PyTorch's, smaller and larger, with and without aligned corners."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import calque

torch = pytest.importorskip("torch")

TARGETS: tuple[dict[str, Any], ...] = ({"size": (3, 4)}, {"size": (10, 12)}, {"scale_factor": 0.6}, {"scale_factor": (1.7, 0.5)})


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_filters_are_those_of_pytorch(mode: str, rng: np.random.Generator) -> None:
    for aligned, shape, target in itertools.product((False, True), ((7, 9), (16, 5)), TARGETS):
        values = rng.normal(size=(1, 2, *shape))
        results = []
        for library in (torch, calque):
            x = library.tensor(values, requires_grad=True)
            y = library.nn.functional.interpolate(x, mode=mode, align_corners=aligned, antialias=True, **target)
            (y**2).sum().backward()
            results.append((y.detach().numpy(), x.grad.numpy()))
        for theirs, ours in zip(*results, strict=True):
            assert np.allclose(theirs, ours, atol=1e-9), (aligned, shape, target)


def test_other_modes_refuse() -> None:
    with pytest.raises(calque.base.errors.ArgumentError, match="restricted to bilinear and bicubic"):
        calque.nn.functional.interpolate(calque.ones(1, 1, 4), 2, mode="linear", antialias=True)
