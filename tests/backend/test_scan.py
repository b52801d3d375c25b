"""Running sums, products and extremes of the native library, for any layout of the operand and any number of threads: the bits of NumPy's float64
sums, and the positions that a walk finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import calque
from calque.backend.cpu.contract import contraction
from calque.backend.cpu.program.host import COUNTERS
from calque.ops.opdef import get
from calque.ops.routines import ScanSpec
from tests.backend.contract_harness import aligned, library, strides_of


def walked(x: Any, axis: int, larger: bool) -> Any:
    """Where the extreme so far is, element by element."""
    rows = np.moveaxis(x, axis, 0)
    best, at, found = rows[0].copy(), np.zeros(rows[0].shape, np.int64), []
    for k, row in enumerate(rows):
        taken = np.isnan(row) | (~np.isnan(best) & ((row >= best) if larger else (row <= best)))
        best, at = np.where(taken, row, best), np.where(taken, k, at)
        found.append(at)
    return np.moveaxis(np.stack(found), 0, axis)


FUNCTIONS: dict[str, Any] = {
    "cumsum": lambda x, dim: np.cumsum(x, dim, dtype=np.float64).astype(x.dtype),
    "cumprod": lambda x, dim: np.cumprod(x, dim, dtype=np.float64).astype(x.dtype),
    "cumargmax": lambda x, dim: walked(x, dim, True),
    "cumargmin": lambda x, dim: walked(x, dim, False),
}
PEAKS = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, 1.0, 2.0)


def laid_out(rng: np.random.Generator, dtype: str) -> Any:
    """Random numbers of up to four dims in some order, with gaps or repeated."""
    shape = [int(n) for n in rng.choice([1, 2, 3, 5, 8, 17, 40, 70], rng.integers(1, 5), p=[0.15, 0.2, 0.2, 0.15, 0.1, 0.1, 0.05, 0.05])]
    order = rng.permutation(len(shape))
    gap = int(rng.integers(1, 3))
    numbers = rng.standard_normal((*[shape[d] for d in order], gap)).astype(dtype)
    if rng.random() < 0.4:  # ties, infinities, a few NaN
        numbers = np.where(rng.random(numbers.shape) < 0.3, rng.choice(PEAKS[int(rng.integers(2)):], numbers.shape), numbers).astype(dtype)
    block = numbers[..., 0].transpose(np.argsort(order))
    if rng.random() < 0.3:
        d = int(rng.integers(len(shape)))
        block = np.broadcast_to(np.take(block, [0], d), shape)
    return block


@given(st.integers(0, 10**9), st.sampled_from(["float32", "float64"]), st.sampled_from(sorted(FUNCTIONS)))
def test_every_layout(seed: int, dtype: str, kind: str) -> None:
    rng = np.random.default_rng(seed)
    x = laid_out(rng, dtype)
    dim = int(rng.integers(x.ndim))
    with np.errstate(all="ignore"):
        expected = FUNCTIONS[kind](x, dim)
    spec = ScanSpec((x.shape, strides_of(x)), dim)
    params = contraction(kind, spec, dtype)
    for threads in (1, 2, 3):
        out = aligned(x.size, expected.dtype).reshape(x.shape)
        out[...] = -7
        library(dtype).prepare_any(kind, params, [x], [out])(threads)
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int64", "uint64", "float16", "bfloat16"])
def test_running_extremes_of_other_types(dtype: str, rng: np.random.Generator) -> None:
    numbers = rng.integers(0, 2 if dtype == "bool" else 100, (5, 9))
    x = calque.tensor(numbers).to(getattr(calque, dtype))
    if dtype in ("int8", "int64"):
        x, numbers = -x, -numbers
    for dim in (0, 1):
        for name in ("cummax", "cummin"):
            at, found = walked(numbers, dim, name == "cummax"), getattr(x, name)(dim)
            np.testing.assert_array_equal(found.indices.numpy(), at)
            assert found.values.dtype is x.dtype and found.values.tolist() == np.take_along_axis(numbers, at, dim).tolist()


@pytest.mark.parametrize("shape, dim", [((100_000,), 0), ((3, 20_000), 1), ((300, 70), 0), ((4, 50, 60), 1), ((0, 5), 0), ((5, 0), 0)])
def test_long_ones_run_natively(shape: tuple[int, ...], dim: int) -> None:
    before = COUNTERS.contractions
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    for take in (lambda v: v, lambda v: v.flip(dim).flip(dim), lambda v: v.transpose(0, -1).contiguous().transpose(0, -1)):
        got = calque.cumsum(take(calque.tensor(x)), dim).numpy()
        np.testing.assert_array_equal(got, np.cumsum(x, dim, dtype=np.float64).astype(np.float32))
        for name in ("cummax", "cummin"):
            values, indices = getattr(take(calque.tensor(x)), name)(dim)
            at = get(f"cumarg{name[3:]}").ref(x, dim)  # type: ignore[misc]
            np.testing.assert_array_equal(indices.numpy(), at)
            np.testing.assert_array_equal(values.numpy(), np.take_along_axis(x, at, dim))
    assert COUNTERS.contractions == before
