"""Errors of float32 sums: bounded by what a block of turns adds in float32, whatever the length (decision 0045)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import calque
from calque.backend.cpu.loops.emit_reduce import BLOCK
from calque.base import config
from calque.kernel import lower
from tests.fuzz.check import mode

ROUNDING = 2.0**-24
LENGTHS = (1, 15, 16, 63, 64, 65, 127, 513, 1031, 8192, 70_001)
VALUES: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Any]] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "positive": lambda rng, shape: rng.uniform(0.5, 1.0, shape),
    "large and small": lambda rng, shape: rng.standard_normal(shape) * 10.0 ** rng.integers(-6, 7, shape),
    "equal": lambda rng, shape: np.full(shape, 0.1),
}


def _assert_close(found: np.ndarray, x: np.ndarray, axis: int) -> None:
    """A lane adds at most `BLOCK` values in float32, and a tree of four such sums joins them."""
    exact, size = x.sum(axis, dtype=np.float64), np.abs(x).sum(axis, dtype=np.float64)
    bound = ROUNDING * ((BLOCK + 1) * size + np.abs(exact)) + 1e-30
    assert (np.abs(found.astype(np.float64) - exact) <= bound).all()


@pytest.mark.parametrize("target", ["", "avx2", "sse2"])
@pytest.mark.parametrize("name", VALUES)
def test_row_sums(name: str, target: str, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    monkeypatch.setattr(config.settings, "cpu_target", target)
    for length in LENGTHS:
        x = VALUES[name](rng, (7, length)).astype(np.float32)
        with mode("cpu"):
            t = calque.tensor(x)
            plain, squares = t.sum(1).numpy(), (t * t).sum(1).numpy()
        _assert_close(plain, x, 1)
        _assert_close(squares, x * x, 1)


@pytest.mark.parametrize("panels", [False, True])
@pytest.mark.parametrize("name", VALUES)
def test_column_sums(name: str, panels: bool, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    monkeypatch.setattr(lower, "PANEL_BYTES", 0 if panels else 1 << 60)
    for length in LENGTHS:
        x = VALUES[name](rng, (length, 133)).astype(np.float32)
        with mode("cpu"):
            found = calque.tensor(x).sum(0).numpy()
        _assert_close(found, x, 0)


def test_the_error_does_not_grow_with_the_length(rng: np.random.Generator) -> None:
    """A sum in float32 alone would be off by thousands of units here."""
    x = rng.uniform(0.5, 1.0, (2, 3_000_000)).astype(np.float32)
    with mode("cpu"):
        found = calque.tensor(x).sum(1).numpy()
    exact = x.sum(1, dtype=np.float64)
    assert (np.abs(found - exact) <= np.spacing(found)).all()


def test_infinities_and_nan(rng: np.random.Generator) -> None:
    x = rng.standard_normal((4, 1031)).astype(np.float32)
    x[0, 5], x[1, 700], x[2, 1030], x[3, 3], x[3, 900] = np.inf, -np.inf, np.nan, np.inf, -np.inf
    with mode("cpu"):
        rows, columns = calque.tensor(x).sum(1).numpy(), calque.tensor(np.ascontiguousarray(x.T)).sum(0).numpy()
    for found in (rows, columns):
        assert found[0] == np.inf and found[1] == -np.inf and np.isnan(found[2:]).all()
