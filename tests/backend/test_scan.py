"""Running sums and products of the native library: the bits of NumPy's float64 sums, for any layout of the operand and any number of threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import calque
from calque.backend.cpu.contract import contraction
from calque.backend.cpu.host import COUNTERS
from calque.ops.routines import ScanSpec
from tests.backend.contract_harness import aligned, library, strides_of

FUNCTIONS = {"cumsum": np.cumsum, "cumprod": np.cumprod}


def laid_out(rng: np.random.Generator, dtype: str) -> Any:
    """Random numbers of up to four dims in some order, with gaps or repeated."""
    shape = [int(n) for n in rng.choice([1, 2, 3, 5, 8, 17, 40, 70], rng.integers(1, 5), p=[0.15, 0.2, 0.2, 0.15, 0.1, 0.1, 0.05, 0.05])]
    order = rng.permutation(len(shape))
    gap = int(rng.integers(1, 3))
    block = rng.standard_normal((*[shape[d] for d in order], gap)).astype(dtype)[..., 0].transpose(np.argsort(order))
    if rng.random() < 0.3:
        d = int(rng.integers(len(shape)))
        block = np.broadcast_to(np.take(block, [0], d), shape)
    return block


@given(st.integers(0, 10**9), st.sampled_from(["float32", "float64"]), st.sampled_from(["cumsum", "cumprod"]))
def test_every_layout(seed: int, dtype: str, kind: str) -> None:
    rng = np.random.default_rng(seed)
    x = laid_out(rng, dtype)
    dim = int(rng.integers(x.ndim))
    with np.errstate(all="ignore"):
        expected = FUNCTIONS[kind](x, axis=dim, dtype=np.float64).astype(dtype)
    spec = ScanSpec((x.shape, strides_of(x)), dim)
    params = contraction(kind, spec, dtype)
    for threads in (1, 2, 3):
        out = aligned(x.size, dtype).reshape(x.shape)
        out[...] = np.nan
        library(dtype).prepare_any(kind, params, [x], [out])(threads)
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("shape, dim", [((100_000,), 0), ((3, 20_000), 1), ((300, 70), 0), ((4, 50, 60), 1), ((0, 5), 0), ((5, 0), 0)])
def test_long_ones_run_natively(shape: tuple[int, ...], dim: int) -> None:
    before = COUNTERS.contractions
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    for take in (lambda v: v, lambda v: v.flip(dim).flip(dim), lambda v: v.transpose(0, -1).contiguous().transpose(0, -1)):
        got = calque.cumsum(take(calque.tensor(x)), dim).numpy()
        np.testing.assert_array_equal(got, np.cumsum(x, dim, dtype=np.float64).astype(np.float32))
    assert COUNTERS.contractions == before
