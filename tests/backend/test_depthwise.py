"""Depthwise convolutions whose planes are read where they lie, against the definition, number by number and at the borders."""

from __future__ import annotations

import numpy as np
import pytest

from calque.backend.cpu.contract import Conv2d
from tests.backend.contract_harness import library, strides_of

SIZES = [
    (1, 32, 28, 40, 3, 1, 1), (2, 24, 33, 31, 3, 2, 1), (2, 40, 14, 14, 3, 1, 1), (1, 60, 7, 7, 3, 1, 1), (1, 24, 28, 28, 5, 1, 2),
    (3, 24, 29, 31, 5, 2, 2), (1, 64, 5, 9, 3, 1, 0), (1, 64, 3, 3, 3, 1, 1), (2, 33, 8, 40, 3, 2, 0), (1, 16, 1, 1, 3, 1, 1),
    (1, 20, 2, 50, 5, 1, 2), (1, 18, 6, 6, 5, 2, 4), (1, 16, 4, 16, 3, 1, 2), (5, 4, 9, 17, 3, 1, 1),
]  # fmt: skip


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", SIZES)
def test_planes_where_they_lie(size: tuple[int, ...], dtype: str, threads: int) -> None:
    images, channels, height, width, taps, stride, padding = size
    rng, made = np.random.default_rng(sum(size)), library(dtype)
    x = rng.standard_normal((images, channels, height, width)).astype(dtype)
    w = rng.standard_normal((channels, 1, taps, taps)).astype(dtype)
    x[0, 0, 0, 0], w[channels // 2, 0, 0, -1] = np.nan, np.inf  # the zeros around an image are multiplied, too
    rows, columns = ((extent + 2 * padding - taps) // stride + 1 for extent in (height, width))
    found = np.full((images, channels, rows, columns), 7, dtype)
    params = Conv2d(images, channels, (height, width), channels, (taps, taps), (rows, columns), (stride, stride), (padding, padding), groups=channels,
                    x_strides=strides_of(x), w_strides=strides_of(w))  # fmt: skip
    made.prepare("conv2d", params, x, w, found)(threads)
    around = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    wanted = np.zeros(found.shape)
    with np.errstate(invalid="ignore"):
        for u in range(taps):
            for v in range(taps):
                met = around[:, :, u : u + stride * (rows - 1) + 1 : stride, v : v + stride * (columns - 1) + 1 : stride]
                wanted += met * w[None, :, 0, u, v, None, None]
    tolerance = 1e-5 if dtype == "float32" else 1e-13
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=10 * tolerance)


def test_images_that_are_views() -> None:
    """Rows and planes apart, and rows in reverse order."""
    rng, made = np.random.default_rng(3), library("float32")
    whole = rng.standard_normal((2, 40, 40, 60)).astype(np.float32)
    for x in (whole[:, ::2, 3:17, 5:30], whole[:, 4:24, ::-1, :20]):
        w = rng.standard_normal((20, 1, 3, 3)).astype(np.float32)
        n, c, height, width = x.shape
        results = []
        for given in (x, np.ascontiguousarray(x)):
            out = np.zeros(x.shape, np.float32)
            params = Conv2d(n, c, (height, width), c, (3, 3), (height, width), padding=(1, 1), groups=c, x_strides=strides_of(given),
                            w_strides=strides_of(w))  # fmt: skip
            made.prepare("conv2d", params, given, w, out)(2)
            results.append(out)
        np.testing.assert_array_equal(*results)
