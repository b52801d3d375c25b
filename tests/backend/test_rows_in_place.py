"""A that is read where it lies, k or rows contiguous, gives the bits that a packed one gives."""

from __future__ import annotations

import numpy as np
import pytest

from calque.backend.cpu.contract import AVX2, NEON
from tests.backend.contract_harness import Library, host_target, library, matmul_params


def compare(lib: Library, rng: np.random.Generator, rows: int, depth: int, columns: int, gap: int, transposed: bool) -> None:
    """The same numbers every other element (packed), with contiguous rows, and with contiguous k."""
    a = rng.standard_normal((rows, depth + gap)).astype(lib.dtype)[:, :depth]
    b = rng.standard_normal((columns, depth)).astype(lib.dtype).T if transposed else rng.standard_normal((depth, columns)).astype(lib.dtype)
    found = []
    apart = np.zeros((rows, 2 * depth), lib.dtype)[:, ::2]
    apart[:] = a
    for left in (apart, np.asfortranarray(a), a):
        for threads in (1, 2):
            out = np.full((rows, columns), np.nan, lib.dtype)
            lib.prepare("matmul", matmul_params(left, b), left, b, out)(threads)
            found.append(out)
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)
    np.testing.assert_allclose(found[0], a.astype(np.float64) @ b.astype(np.float64), rtol=0, atol=np.finfo(a.dtype).eps * 64 * np.sqrt(depth))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bits(dtype: str, transposed: bool, rng: np.random.Generator) -> None:
    for rows, depth, columns in ((700, 900, 200), (460, 1000, 64), (183, 2100, 40), (900, 801, 33), (365, 900, 49), (181, 900, 100)):
        for gap in (0, 5, (-depth) % 1024):  # the last: rows that compete for the same sets are packed
            compare(library(dtype), rng, rows, depth, columns, gap, transposed)


def test_narrow_vectors(rng: np.random.Generator) -> None:
    if host_target() is NEON:
        pytest.skip("an x86 processor is needed")
    lib = library("float32", AVX2)
    for rows, depth, columns in ((300, 900, 77), (101, 850, 16), (400, 1000, 24)):
        compare(lib, rng, rows, depth, columns, 3, False)
