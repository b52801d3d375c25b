"""Weight gradients of 1x1 convolutions with stride 2, whose operands are read where they lie: ends of memory, register files, cuts."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from calque.backend.cpu.contract import AVX2, NEON, SSE, Conv2dWeightGrad, PlainUnit
from calque.backend.cpu.contract.plane_grad import PIXELS
from tests.backend.contract_harness import library, strides_of


def params_for(x: NDArray[Any], g: NDArray[Any]) -> Conv2dWeightGrad:
    """Stride 2, one tap."""
    (images, channels, *size), (_, rows, *out) = x.shape, g.shape
    return Conv2dWeightGrad(images, channels, (size[0], size[1]), rows, (1, 1), (out[0], out[1]), (2, 2), x_strides=strides_of(x),  # type: ignore[arg-type]
                            g_strides=strides_of(g))  # type: ignore[arg-type]


def at_the_end(values: NDArray[Any]) -> tuple[NDArray[Any], mmap.mmap]:
    """A copy whose last byte is followed by a page that nobody may read."""
    size = -(-values.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, size + mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(start + size), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    copy = np.frombuffer(memory, values.dtype, values.size, size - values.nbytes).reshape(values.shape)
    copy[...] = values
    return copy, memory


@pytest.mark.parametrize("size", [(14, 14), (13, 13), (9, 27), (8, 28), (6, 32), (5, 57), (30, 6), (64, 1)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nothing_is_read_behind_the_last_pixel(size: tuple[int, int], dtype: str, rng: np.random.Generator) -> None:
    """Rows of less than half a vector, less than one, some; even and odd widths; one image, and more than sums hold in registers."""
    out = (-(-size[0] // 2), -(-size[1] // 2))
    for images in (1, 9):
        x, memory = at_the_end(rng.standard_normal((images, 56, *size)).astype(dtype))
        g, other_memory = at_the_end(rng.standard_normal((images, 64, *out)).astype(dtype))
        params, dw = params_for(x, g), np.empty((64, 56, 1, 1), dtype)
        assert params.planes
        assert params.planes.even
        assert (params.planes.block > 1) == (images > 1 and 2 * out[0] * out[1] <= PIXELS)
        expected = np.einsum("nohw,nchw->oc", g.astype(np.float64), x[:, :, ::2, ::2].astype(np.float64))
        results = []
        for threads in (1, 2, 3):
            dw[...] = np.nan
            library(dtype).prepare("conv2d_weight_grad", params, x, g, dw)(threads)
            results.append(dw[:, :, 0, 0].copy())
        np.testing.assert_allclose(results[0], expected, atol=np.finfo(dtype).eps * 8 * np.sqrt(g.size), rtol=0)
        assert all(np.array_equal(results[0], other) for other in results)
        assert memory
        assert other_memory


@pytest.mark.parametrize("target", [AVX2, SSE, NEON], ids=lambda target: target.name)
def test_narrower_vectors(target: PlainUnit, rng: np.random.Generator) -> None:
    """Squares of eight and four elements, tiles of fewer rows."""
    lib = library("float32", target)
    for rows, channels, size in ((64, 32, (14, 14)), (40, 32, (27, 30)), (96, 64, (23, 5)), (32, 32, (31, 3)), (64, 31, (56, 56)), (48, 32, (80, 1))):
        out = (-(-size[0] // 2), -(-size[1] // 2))
        x = rng.standard_normal((6, channels, *size)).astype(np.float32)
        g = rng.standard_normal((6, rows, *out)).astype(np.float32)
        dw = np.empty((rows, channels, 1, 1), np.float32)
        params = params_for(x, g)
        assert params.planes
        assert params.planes.even
        lib.prepare("conv2d_weight_grad", params, x, g, dw)(2)
        expected = np.einsum("nohw,nchw->oc", g.astype(np.float64), x[:, :, ::2, ::2].astype(np.float64))
        np.testing.assert_allclose(dw[:, :, 0, 0], expected, atol=1e-6 * np.sqrt(g.size), rtol=0)
