"""Contractions that find their weights packed: what calls pack and what they find are the same, and so are results, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest

from calque.backend.cpu.contract import Conv2d, packed_bytes
from calque.backend.cpu.contract.packed import WEIGHTS
from tests.backend.contract_harness import aligned, library, matmul_params, strides_of

SIZES = {
    "Winograd, tiles by columns": (2, 20, 30, 28, 3, 1, 1, 1),
    "Winograd, tiles by rows": (1, 272, 520, 7, 3, 1, 1, 1),
    "Winograd, stride 2": (1, 48, 40, 28, 3, 2, 1, 1),
    "Winograd, 5 x 5": (1, 24, 32, 24, 5, 1, 2, 1),
    "planes where they lie": (1, 40, 50, 16, 1, 1, 0, 1),
    "patches": (2, 33, 45, 7, 1, 1, 0, 1),
    "direct": (1, 64, 96, 12, 7, 2, 3, 1),
    "few channels": (1, 3, 40, 30, 7, 2, 3, 1),
    "one by one, stride 2": (1, 64, 128, 14, 1, 2, 0, 1),
    "depthwise": (2, 40, 40, 14, 3, 1, 1, 40),
    "depthwise, stride 2": (1, 24, 24, 30, 5, 2, 2, 24),
    "two groups": (1, 32, 24, 13, 3, 1, 1, 2),
}


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", SIZES)
def test_convolutions(name: str, dtype: str, threads: int) -> None:
    images, channels, outputs, size, kernel, stride, padding, groups = SIZES[name]
    rng, made = np.random.default_rng(1), library(dtype)
    out = (size + 2 * padding - kernel) // stride + 1
    x = rng.standard_normal((images, channels, size, size)).astype(dtype)
    w = rng.standard_normal((outputs, channels // groups, kernel, kernel)).astype(dtype)
    wanted, found = (np.full((images, outputs, out, out), np.nan, dtype) for _ in range(2))
    params = Conv2d(images, channels, (size, size), outputs, (kernel, kernel), (out, out), (stride, stride), (padding, padding), groups=groups,
                    x_strides=strides_of(x), w_strides=strides_of(w))  # fmt: skip
    made.prepare("conv2d", params, x, w, wanted)(threads)
    nbytes = packed_bytes(params, dtype, made.target)
    assert nbytes > 0
    space = aligned(nbytes, np.uint8)
    made.prepare_any("conv2d", params, [x, w], [found], to_pack=space)(threads)
    assert np.isnan(found).all(), "it does nothing but pack"
    w[...] = np.nan  # nobody looks there any more
    made.prepare_any("conv2d", params, [x, w], [found], packed={WEIGHTS: space})(threads)
    np.testing.assert_array_equal(found, wanted)


PRODUCTS = [(128, 768, 96), (35, 200, 1000), (197, 1536, 384), (26, 40, 50), (64, 1700, 33), (300, 70, 65), (1, 64, 64), (17, 900, 700)]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize("size", PRODUCTS)
def test_products(size: tuple[int, int, int], turned: bool, dtype: str, threads: int) -> None:
    (rows, depth, columns), rng, made = size, np.random.default_rng(2), library(dtype)
    a = rng.standard_normal((rows, depth)).astype(dtype)
    b = rng.standard_normal((columns, depth) if turned else (depth, columns)).astype(dtype)
    right = b.T if turned else b
    wanted, found = (np.full((rows, columns), np.nan, dtype) for _ in range(2))
    params = matmul_params(a, right)
    made.prepare("matmul", params, a, right, wanted)(threads)
    np.testing.assert_allclose(wanted, a @ right, rtol=1e-4 if dtype == "float32" else 1e-11, atol=1e-3 if dtype == "float32" else 1e-10)
    nbytes = packed_bytes(params, dtype, made.target)
    if not nbytes:
        assert rows < 25, "read where they lie"
        return
    space = aligned(nbytes, np.uint8)
    made.prepare_any("matmul", params, [a, right], [found], to_pack=space)(threads)
    assert np.isnan(found).all(), "it does nothing but pack"
    b[...] = np.nan
    made.prepare_any("matmul", params, [a, right], [found], packed={WEIGHTS: space})(threads)
    np.testing.assert_array_equal(found, wanted)
