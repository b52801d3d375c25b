"""Results whose last vector is at most half full: vectors of half the width give the bits that whole ones give."""

from __future__ import annotations

import numpy as np
import pytest

from calque.backend.cpu.contract import AVX2, AVX512, NEON, SSE
from calque.backend.cpu.contract.target import Blocking
from tests.backend.contract_harness import library, matmul_params
from tests.backend.test_recurrent_kernels import backward_operands, check, forward_operands


def test_where_panels_of_rows_are_the_same() -> None:
    pairs = [(dtype, target) for dtype in ("f32", "f64", "bf16") for target in (AVX512, AVX2, SSE, NEON)]
    found = {(dtype, target.name) for dtype, target in pairs if Blocking(dtype, target).half is not None}
    assert found == {("f32", "avx512"), ("f64", "avx512"), ("f32", "avx2")}


@pytest.mark.parametrize("rows", [301, 18, 22])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_against_whole_vectors(dtype: str, layout: str, rows: int, rng: np.random.Generator) -> None:
    depth, most = 900, 64  # k of this length is packed, and cut in the same way whatever the columns

    def operand(shape: tuple[int, int], transposed: bool) -> np.ndarray:
        return rng.standard_normal(shape[::-1] if transposed else shape).astype(dtype).swapaxes(0, 1 if transposed else 0)

    a, wide = operand((rows, depth), layout[0] == "t"), operand((depth, most), layout[1] == "t")

    def product(columns: int, threads: int) -> np.ndarray:
        b = np.ascontiguousarray(wide[:, :columns].T).T if layout[1] == "t" else np.ascontiguousarray(wide[:, :columns])
        out = np.full((rows, columns), np.nan, dtype)
        library(dtype).prepare("matmul", matmul_params(a, b), a, b, out)(threads)
        return out

    whole = product(most, 1)
    for columns in (18, 20, 33, 36, 39, 40, 41, 52):
        for threads in (1, 2):
            np.testing.assert_array_equal(product(columns, threads), whole[:, :columns])


@pytest.mark.parametrize("rows", [17, 20])
@pytest.mark.parametrize("units", [5, 8, 36, 40, 44])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_recurrent_layers(kind: str, dtype: str, units: int, rows: int, rng: np.random.Generator) -> None:
    forward = forward_operands(rng, kind, dtype, (3, rows, units), gaps=False)
    check(f"{kind}_grad", backward_operands(rng, kind, forward, gaps=False))
