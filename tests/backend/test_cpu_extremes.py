"""Maxima and minima of absolute values: LLVM merges the comparisons in them, once wrongly (relu(|x|) was 0 for negative x)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import calque
from calque.base import config
from tests.fuzz.check import mode

VALUES = [-1.5, 0.0, float("nan"), 2.0, -0.0, float("inf"), -float("inf"), 1e-40]
SOURCES: dict[str, Callable[[Any], Any]] = {"abs": lambda x: x.abs(), "-abs": lambda x: -x.abs(), "x": lambda x: x, "x*x": lambda x: x * x}
EXTREMES: dict[str, Callable[[Any, Any], Any]] = {
    "relu": lambda y, zeros: calque.relu(y),
    "relu(-y)": lambda y, zeros: calque.relu(-y),
    "maximum": lambda y, zeros: calque.maximum(y, zeros),
    "maximum(0, y)": lambda y, zeros: calque.maximum(zeros, y),
    "minimum": lambda y, zeros: calque.minimum(y, zeros),
    "minimum(0, y)": lambda y, zeros: calque.minimum(zeros, y),
    "clamp(min)": lambda y, zeros: y.clamp(min=0.0),
    "clamp(max)": lambda y, zeros: y.clamp(max=0.0),
    "clamp(-1, 1)": lambda y, zeros: y.clamp(-1.0, 1.0),
    "clamp(inf)": lambda y, zeros: y.clamp(max=float("inf")),
    "amax": lambda y, zeros: y.reshape(-1, 2).amax(1),
    "amin": lambda y, zeros: y.reshape(-1, 2).amin(1),
    "where(nan)": lambda y, zeros: calque.where(calque.isnan(y), y, calque.where(y > 0, y, zeros)),
    "or": lambda y, zeros: calque.logical_or(calque.isnan(y), y > 0),
    "and": lambda y, zeros: calque.logical_and(y == y, calque.logical_not(y <= 0)),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("source", SOURCES)
def test_extremes_of_absolute_values(source: str, dtype: str) -> None:
    def run() -> list[Any]:
        found = []
        for repeat in (1, 7):  # 8 values, and more than two vectors with a remainder
            x = calque.tensor(VALUES * repeat, dtype=getattr(calque, dtype))
            zeros = calque.zeros_like(x)
            y = SOURCES[source](x)
            found += [f(y, zeros).tolist() for f in EXTREMES.values()]
        return found

    with mode("ref"):
        wanted = run()
    with mode("cpu"):
        got = run()
    for name, a, b in zip(list(EXTREMES) * 2, got, wanted, strict=True):
        assert np.array_equal(np.array(a, np.float64), np.array(b, np.float64), equal_nan=True), f"{name} of {source}: {a} but {b}"


@pytest.mark.parametrize("source", SOURCES)
def test_one_value(source: str) -> None:
    for value in VALUES:
        for name, f in EXTREMES.items():
            if name in ("amax", "amin"):
                continue
            results = []
            for backend in ("ref", "cpu"):
                with mode(backend):
                    x = calque.tensor(value)
                    results.append(float(f(SOURCES[source](x), calque.zeros(())).item()))
            assert np.array_equal(*map(np.array, results), equal_nan=True), f"{name} of {source} of {value}: {results}"


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("target", ["", "avx2"])
def test_a_nan_anywhere_is_the_extreme(target: str, dim: int, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processor's maximum forgets a NaN at the next number: one NaN (of either sign) at every place of rows of several lengths."""
    monkeypatch.setattr(config.settings, "cpu_target", target)
    for length in (5, 37, 150):
        x = np.tile(np.linspace(-3, 4, length, dtype=np.float32), (length + 1, 1))
        x[np.arange(length), np.arange(length)] = np.where(np.arange(length) % 2, np.nan, -np.float32(np.nan))
        x[-1, 1], x[-1, 2] = np.inf, -np.inf
        y = calque.tensor(x if dim else x.T.copy()).to(getattr(calque, dtype))
        largest, smallest = (np.array(found.tolist()) for found in (y.amax(dim), y.amin(dim)))
        assert np.isnan(largest[:-1]).all() and np.isnan(smallest[:-1]).all()
        assert (largest[-1], smallest[-1]) == (np.inf, -np.inf)
