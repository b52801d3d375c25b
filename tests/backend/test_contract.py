"""The native contractions against naive float64 loops, for random shapes, strides and thread counts."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from calque.backend.cpu.contract import (
    AVX2,
    AVX512,
    NEON,
    SSE,
    Conv2d,
    Conv2dInputGrad,
    Conv2dWeightGrad,
    Matmul,
    PlainUnit,
    contraction,
    module_ir,
    target_for_features,
    ways_of,
)
from calque.backend.cpu.contract.product_words import blocking_for
from calque.ops.routines import ContractSpec
from tests.backend.contract_harness import Library, library, matmul_params, strides_of

Array = NDArray[Any]
DTYPES = ("float32", "float64")
SETTINGS = settings(max_examples=60, deadline=None, derandomize=True)


def strided(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, order: list[int], gap: int) -> Array:
    """Random values laid out in the given order of dimensions, every ``gap``-th element of memory."""
    laid = [shape[dim] for dim in order]
    block = rng.standard_normal((*laid, gap)).astype(dtype)
    return block[..., 0].transpose(np.argsort(order))


def check(kind: str, params: Any, x: Array, y: Array, expected: Array, depth: int, lib: Library | None = None) -> None:
    """Equal to the twin within rounding, and the same bits for every thread count."""
    dtype = x.dtype.name
    lib = lib or library(dtype)
    results = []
    for threads in (1, 2, 3):
        out = np.full(expected.shape, np.nan, dtype)
        lib.prepare(kind, params, x, y, out)(threads)
        results.append(out)
    scale = max(1.0, float(np.abs(expected).max(initial=0)))
    np.testing.assert_allclose(results[0], expected, rtol=0, atol=(depth + 8) * np.finfo(dtype).eps * scale)
    for other in results[1:]:
        assert results[0].tobytes() == other.tobytes()


SIZES = st.one_of(st.integers(1, 20), st.integers(21, 150))


@SETTINGS
@given(st.data())
def test_matmul(data: st.DataObject) -> None:
    """Random sizes, layouts of both operands, and batch dimensions that may be broadcast."""
    dtype = data.draw(st.sampled_from(DTYPES))
    m, n, k = data.draw(SIZES), data.draw(SIZES), data.draw(st.one_of(st.just(0), SIZES, st.integers(250, 700)))
    batch = tuple(data.draw(st.lists(st.integers(1, 3), max_size=4)))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    operands = []
    for shape in ((m, k), (k, n)):
        lead = tuple(1 if data.draw(st.booleans()) else size for size in batch)
        full = (*lead, *shape)
        order = data.draw(st.permutations(range(len(full))))
        array = strided(rng, full, dtype, list(order), data.draw(st.integers(1, 2)))
        operands.append(np.broadcast_to(array, (*batch, *shape)))
    a, b = operands
    expected = np.matmul(a.astype(np.float64), b.astype(np.float64))
    check("matmul", matmul_params(a, b), a, b, expected, k)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(300, 10, 520), (10, 300, 520), (1, 1000, 300), (1000, 1, 300), (700, 40, 30),
                                   (40, 700, 30), (1, 1, 5000), (3, 50, 640), (77, 2, 320), (5, 7, 1024), (257, 1025, 300), (100, 500, 700),
                                   (1, 301, 1024), (2, 301, 1024), (301, 2, 1024), (13, 52, 512), (52, 12, 512), (24, 31, 256), (25, 31, 256),
                                   (9, 20, 8192)])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_matmul_paths(dtype: str, shape: tuple[int, int, int], layout: str) -> None:
    """Every driver path: direct, packed, transposed product, several blocks of depth; one that is packed by one thread, read in place by several;
    few rows against more of B than the second-level cache holds."""
    m, n, k = shape
    rng = np.random.default_rng(1)
    a = rng.standard_normal((m, k) if layout[0] == "n" else (k, m)).astype(dtype)
    b = rng.standard_normal((k, n) if layout[1] == "n" else (n, k)).astype(dtype)
    a, b = (a if layout[0] == "n" else a.T), (b if layout[1] == "n" else b.T)
    check("matmul", matmul_params(a, b), a, b, a.astype(np.float64) @ b.astype(np.float64), k)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_matmul_in_chunks(dtype: str, layout: str) -> None:
    """More rows than packed panels have room for, more columns than one chunk, two blocks of depth, odd edges."""
    m, n, k = 5001, 1045, 397
    rng = np.random.default_rng(2)
    a = rng.standard_normal((m, k) if layout[0] == "n" else (k, m)).astype(dtype)
    b = rng.standard_normal((k, n) if layout[1] == "n" else (n, k)).astype(dtype)
    a, b = (a if layout[0] == "n" else a.T), (b if layout[1] == "n" else b.T)
    check("matmul", matmul_params(a, b), a, b, a.astype(np.float64) @ b.astype(np.float64), k)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(16, 16, 16), (8, 8, 8), (4, 30, 64), (5, 17, 33), (33, 65, 31), (13, 400, 49), (64, 3, 17), (9, 1, 100),
                                   (40, 7, 12)])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_many_small_products(dtype: str, shape: tuple[int, int, int], layout: str) -> None:
    """Batches of several dimensions, one of them broadcast, and operands with gaps, computed without packing A."""
    m, k, n = shape
    rng = np.random.default_rng(3)
    a = strided(rng, (3, 5, m, k), dtype, [1, 0, 2, 3] if layout[0] == "n" else [0, 1, 3, 2], 1)
    b = strided(rng, (1, 5, k, n + 1), dtype, [0, 1, 2, 3] if layout[1] == "n" else [0, 1, 3, 2], 1)[..., :n]
    b = np.broadcast_to(b, (3, 5, k, n))
    check("matmul", matmul_params(a, b), a, b, np.matmul(a.astype(np.float64), b.astype(np.float64)), k)


@pytest.mark.parametrize("unit", [AVX512, AVX2, SSE])
def test_small_products_of_other_registers(unit: PlainUnit) -> None:
    """The tiles of narrower and fewer registers run on this machine as well."""
    lib = library("float32", unit)
    rng = np.random.default_rng(4)
    for m, k, n in ((16, 16, 16), (7, 9, 5), (19, 31, 21), (4, 20, 130)):
        a, b = rng.standard_normal((9, m, k)).astype("f"), rng.standard_normal((9, k, n)).astype("f")
        check("matmul", matmul_params(a, b), a, b, np.matmul(a.astype(np.float64), b.astype(np.float64)), k, lib)
    for m in (1, 2, 3, 7):
        a, b = rng.standard_normal((m, 1024)).astype("f"), rng.standard_normal((299, 1024)).astype("f").T
        check("matmul", matmul_params(a, b), a, b, a.astype(np.float64) @ b.astype(np.float64), 1024, lib)


@pytest.mark.parametrize("unit", [AVX512, AVX2, SSE, NEON])
@pytest.mark.parametrize("dtype", DTYPES)
def test_tiles_of_dot_products_have_room(unit: PlainUnit, dtype: str) -> None:
    """A tile that is copied out has a row's columns side by side."""
    blocking = blocking_for(dtype, unit)
    assert max(blocking.dot_rows, blocking.stream_columns) <= blocking.tile_columns
    assert blocking.stream_rows <= blocking.dot_rows


def test_matmul_propagates_nan_and_infinity() -> None:
    """Zero times infinity is not skipped."""
    a, b = np.zeros((20, 30), np.float32), np.ones((30, 40), np.float32)
    b[3, 5], b[4, 6] = np.inf, np.nan
    out = np.empty((20, 40), np.float32)
    library("float32").prepare("matmul", matmul_params(a, b), a, b, out)(1)
    assert np.isnan(out[:, 5:7]).all() and not np.isnan(np.delete(out, [5, 6], 1)).any()


def pixels(sizes: Any, axis: int, tap: int, extent: int) -> tuple[Array, Array]:
    """The output positions for which a tap lies inside the image, and the input positions that it reads there."""
    outputs = np.arange(sizes.out_size[axis])
    inputs = outputs * sizes.stride[axis] - sizes.padding[axis] + tap * sizes.dilation[axis]
    inside = (inputs >= 0) & (inputs < extent)
    return outputs[inside], inputs[inside]


def patches(x: Array, sizes: Any) -> Array:
    """The im2col tensor (N, C, KH, KW, OH, OW) in float64, zero outside of the image."""
    (n, c), (kh, kw), (oh, ow) = x.shape[:2], sizes.kernel, sizes.out_size
    result = np.zeros((n, c, kh, kw, oh, ow))
    for u, v in np.ndindex(kh, kw):
        (i, row), (j, column) = pixels(sizes, 0, u, x.shape[2]), pixels(sizes, 1, v, x.shape[3])
        result[:, :, u, v, i[:, None], j] = x[:, :, row[:, None], column]
    return result


def grouped(x: Array, groups: int, axis: int) -> Array:
    """Split one axis into (groups, rest)."""
    return x.reshape(*x.shape[:axis], groups, x.shape[axis] // groups, *x.shape[axis + 1 :])


def naive(kind: str, first: Array, second: Array, sizes: Any, input_shape: tuple[int, ...]) -> Array:
    """All three directions as einsums over the im2col tensor."""
    g, wide = sizes.groups, np.float64
    if kind == "conv2d":
        p, w = grouped(patches(first, sizes), g, 1), grouped(second.astype(wide), g, 0)
        y = np.einsum("ngcuvij,gocuv->ngoij", p, w, optimize=True)
        return y.reshape(y.shape[0], -1, *y.shape[3:])
    if kind == "conv2d_weight_grad":
        p, dy = grouped(patches(first, sizes), g, 1), grouped(second.astype(wide), g, 1)
        dw = np.einsum("ngcuvij,ngoij->gocuv", p, dy, optimize=True)
        return dw.reshape(-1, *dw.shape[2:])
    dy, w = grouped(first.astype(wide), g, 1), grouped(second.astype(wide), g, 0)
    spread = np.einsum("ngoij,gocuv->ngcuvij", dy, w, optimize=True)
    spread = spread.reshape(spread.shape[0], -1, *spread.shape[3:])
    dx = np.zeros(input_shape)
    for u, v in np.ndindex(*sizes.kernel):
        (i, row), (j, column) = pixels(sizes, 0, u, dx.shape[2]), pixels(sizes, 1, v, dx.shape[3])
        dx[:, :, row[:, None], column] += spread[:, :, u, v, i[:, None], j]
    return dx


def check_convolution(kind: str, sizes: dict[str, Any], x: Array, w: Array, g: Array, lib: Library | None = None) -> None:
    """Run one direction on the given operands, by every method that suits it."""
    xs, ws, gs = strides_of(x), strides_of(w), strides_of(g)
    twin: Any = Conv2d(**sizes)
    depth = g.size if kind == "conv2d_weight_grad" else w.size
    if kind == "conv2d":
        params: Any = Conv2d(**sizes, x_strides=xs, w_strides=ws)  # type: ignore[arg-type]
        operands = (x, w)
    elif kind == "conv2d_input_grad":
        params, operands = Conv2dInputGrad(**sizes, g_strides=gs, w_strides=ws), (g, w)  # type: ignore[arg-type]
    else:
        params, operands = Conv2dWeightGrad(**sizes, x_strides=xs, g_strides=gs), (x, g)  # type: ignore[arg-type]
    expected = naive(kind, *operands, twin, x.shape)
    check(kind, params, *operands, expected, depth, lib)
    if params.winograd:
        check(kind, replace(params, direct=True), *operands, expected, depth, lib)


def out_extent(size: int, kernel: int, stride: int, dilation: int, before: int, after: int) -> int:
    """Output size of one dimension."""
    return (size + before + after - dilation * (kernel - 1) - 1) // stride + 1


PAIR = st.tuples(st.integers(1, 3), st.integers(1, 3))


@pytest.mark.parametrize("kind", ["conv2d", "conv2d_input_grad", "conv2d_weight_grad"])
@SETTINGS
@given(st.data())
def test_convolution(kind: str, data: st.DataObject) -> None:
    """Random sizes, strides, padding (also more than the kernel), dilation, groups and memory layouts."""
    dtype, groups = data.draw(st.sampled_from(DTYPES)), data.draw(st.sampled_from([1, 1, 2, 3]))
    channels, out_channels = groups * data.draw(st.integers(1, 9)), groups * data.draw(st.integers(1, 20))
    images = data.draw(st.integers(1, 4))
    size = data.draw(st.tuples(st.integers(1, 19), st.integers(1, 40)))
    kernel = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    stride, dilation = data.draw(PAIR), data.draw(PAIR)
    before = data.draw(st.tuples(st.integers(0, 4), st.integers(0, 4)))
    after = data.draw(st.tuples(st.integers(0, 4), st.integers(0, 4)))
    out = tuple(out_extent(*sizes) for sizes in zip(size, kernel, stride, dilation, before, after, strict=True))
    if min(out) < 1:
        return
    sizes = {"images": images, "channels": channels, "size": size, "out_channels": out_channels, "kernel": kernel,
             "out_size": out, "stride": stride, "padding": before, "dilation": dilation, "groups": groups}
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    shapes = ((images, channels, *size), (out_channels, channels // groups, *kernel), (images, out_channels, *out))
    arrays = []
    for shape in shapes:
        order = data.draw(st.one_of(st.just([0, 1, 2, 3]), st.just([0, 2, 3, 1]), st.permutations(range(4))))
        arrays.append(strided(rng, shape, dtype, list(order), data.draw(st.sampled_from([1, 1, 2]))))
    check_convolution(kind, sizes, *arrays)


LAYERS = {
    "3x3": (2, 40, (16, 16), 48, (3, 3), (1, 1), (1, 1), 1),
    "deep, several blocks of depth": (2, 130, (8, 8), 40, (3, 3), (1, 1), (1, 1), 1),
    "4x4 images": (5, 70, (4, 4), 30, (3, 3), (1, 1), (1, 1), 1),
    "7x7 images": (3, 20, (7, 7), 30, (3, 3), (1, 1), (1, 1), 1),
    "first layer": (1, 3, (41, 41), 20, (7, 7), (2, 2), (3, 3), 1),
    "1x1": (3, 33, (9, 9), 35, (1, 1), (1, 1), (0, 0), 1),
    "1x1 stride 2": (3, 33, (16, 16), 35, (1, 1), (2, 2), (0, 0), 1),
    "3x3 stride 2": (3, 20, (32, 32), 35, (3, 3), (2, 2), (1, 1), 1),
    "depthwise": (2, 24, (17, 33), 24, (3, 3), (1, 1), (1, 1), 24),
    "depthwise stride 2": (2, 24, (17, 33), 24, (3, 3), (2, 2), (1, 1), 24),
    "depthwise multiplier": (2, 8, (9, 33), 16, (5, 5), (1, 1), (2, 2), 8),
    "depthwise 1x1 stride 2": (2, 12, (16, 16), 12, (1, 1), (2, 2), (0, 0), 12),
    "depthwise 5x7": (1, 3, (20, 50), 6, (5, 7), (1, 1), (2, 1), 3),
    "patches": (2, 3, (32, 32), 40, (16, 16), (16, 16), (0, 0), 1),
    "large kernel": (1, 2, (40, 40), 5, (31, 31), (1, 1), (15, 15), 1),
    "5x5": (3, 32, (14, 14), 64, (5, 5), (1, 1), (2, 2), 1),
    "7 pixels wide": (2, 16, (14, 14), 60, (3, 3), (2, 2), (1, 1), 1),
    "4 pixels wide": (5, 24, (8, 8), 32, (3, 3), (2, 2), (1, 1), 1),
    "many output channels in groups": (2, 60, (9, 30), 96, (3, 3), (1, 1), (1, 1), 3),
    "blocks of rows": (1, 64, (60, 50), 64, (3, 3), (2, 2), (1, 1), 1),
    "first layer of whole vectors": (2, 3, (41, 41), 64, (7, 7), (2, 2), (3, 3), 1),
    "one channel": (3, 1, (28, 28), 32, (5, 5), (1, 1), (2, 2), 1),
    "1x1 of many channels": (3, 136, (14, 14), 288, (1, 1), (1, 1), (0, 0), 1),
    "1x1 stride 2 of many channels": (3, 64, (28, 28), 128, (1, 1), (2, 2), (0, 0), 1),
    "1x1 stride 2 of larger images": (2, 35, (27, 26), 40, (1, 1), (2, 2), (0, 0), 1),
    "1x1 to few output channels": (3, 96, (13, 12), 24, (1, 1), (1, 1), (0, 0), 1),
    "1x1 from few channels, stride 2": (3, 18, (16, 16), 61, (1, 1), (2, 2), (0, 0), 1),
    "few output channels": (2, 20, (12, 15), 7, (3, 3), (1, 1), (1, 1), 1),
    "few channels in groups, stride 2": (2, 12, (13, 15), 18, (3, 3), (2, 2), (1, 1), 3),
    "depthwise, blocks of rows": (1, 3, (130, 120), 3, (3, 3), (1, 1), (1, 1), 3),
    "depthwise 7 pixels wide": (3, 20, (7, 7), 20, (3, 3), (1, 1), (1, 1), 20),
    "depthwise stride 2 by 1": (2, 6, (15, 18), 6, (3, 4), (2, 1), (1, 2), 6),
    "depthwise stride 3": (2, 6, (20, 33), 6, (3, 3), (3, 3), (1, 1), 6),
    "stride 3": (1, 24, (31, 32), 64, (5, 5), (3, 3), (2, 2), 1),
    "padding alone": (3, 40, (1, 7), 64, (1, 1), (4, 4), (1, 0), 1),
    "padding alone, depthwise": (2, 12, (1, 10), 12, (1, 5), (3, 3), (2, 2), 12),
    "long weight sum": (9, 6, (33, 33), 11, (3, 3), (1, 1), (1, 1), 1),
}


@pytest.mark.parametrize("kind", ["conv2d", "conv2d_input_grad", "conv2d_weight_grad"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layer", LAYERS)
def test_layers(kind: str, dtype: str, layer: str) -> None:
    """Shapes of real networks in small, each on its own path."""
    images, channels, size, out_channels, kernel, stride, padding, groups = LAYERS[layer]
    out = tuple(out_extent(*s) for s in zip(size, kernel, stride, (1, 1), padding, padding, strict=True))
    sizes = {"images": images, "channels": channels, "size": size, "out_channels": out_channels, "kernel": kernel,
             "out_size": out, "stride": stride, "padding": padding, "groups": groups}
    rng = np.random.default_rng(3)
    x, w, g = (rng.standard_normal(shape).astype(dtype) for shape in (
        (images, channels, *size), (out_channels, channels // groups, *kernel), (images, out_channels, *out)))
    check_convolution(kind, sizes, x, w, g)


@pytest.mark.parametrize("kind", ["conv2d", "conv2d_input_grad", "conv2d_weight_grad"])
@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.data())
def test_convolution_of_many_channels(kind: str, data: st.DataObject) -> None:
    """Channels that fill vectors, so that pixels are broadcast: strides, dilation, groups, padding, layouts."""
    dtype, groups = data.draw(st.sampled_from(DTYPES)), data.draw(st.sampled_from([1, 1, 2]))
    channels, out_channels = (groups * data.draw(st.sampled_from([7, 16, 24, 31, 32, 48])) for _ in range(2))
    size = data.draw(st.tuples(st.integers(3, 19), st.integers(4, 34)))
    kernel = data.draw(st.tuples(st.integers(1, 4), st.integers(2, 4)))
    stride, dilation = data.draw(PAIR), data.draw(PAIR)
    before, after = (data.draw(st.tuples(st.integers(0, 4), st.integers(0, 4))) for _ in range(2))
    out = tuple(out_extent(*sizes) for sizes in zip(size, kernel, stride, dilation, before, after, strict=True))
    if min(out) < 1:
        return
    images = data.draw(st.integers(1, 5))
    sizes = {"images": images, "channels": channels, "size": size, "out_channels": out_channels, "kernel": kernel,
             "out_size": out, "stride": stride, "padding": before, "dilation": dilation, "groups": groups}
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    shapes = ((images, channels, *size), (out_channels, channels // groups, *kernel), (images, out_channels, *out))
    orders = st.sampled_from([[0, 1, 2, 3], [0, 2, 3, 1], [1, 0, 3, 2]])
    arrays = [strided(rng, shape, dtype, data.draw(orders), data.draw(st.sampled_from([1, 1, 2]))) for shape in shapes]
    check_convolution(kind, sizes, *arrays)


@pytest.mark.parametrize("kind", ["conv2d", "conv2d_input_grad", "conv2d_weight_grad"])
@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.data())
def test_depthwise_convolution_of_small_planes(kind: str, data: st.DataObject) -> None:
    """Channels as lanes: a last block that is not full, strides, dilation, any padding, rows with gaps, channels last."""
    dtype, channels = data.draw(st.sampled_from(DTYPES)), data.draw(st.sampled_from([8, 16, 20, 33]))
    size = data.draw(st.tuples(st.integers(1, 9), st.integers(1, 14)))
    kernel = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    stride, dilation = data.draw(PAIR), data.draw(PAIR)
    before, after = (data.draw(st.tuples(st.integers(0, 4), st.integers(0, 4))) for _ in range(2))
    out = tuple(out_extent(*sizes) for sizes in zip(size, kernel, stride, dilation, before, after, strict=True))
    if min(out) < 1:
        return
    images = data.draw(st.integers(1, 4))
    sizes = {"images": images, "channels": channels, "size": size, "out_channels": channels, "kernel": kernel,
             "out_size": out, "stride": stride, "padding": before, "dilation": dilation, "groups": channels}
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    shapes = ((images, channels, *size), (channels, 1, *kernel), (images, channels, *out))
    orders = st.sampled_from([[0, 1, 2, 3], [0, 1, 2, 3], [0, 2, 3, 1], [1, 0, 2, 3]])
    arrays = [strided(rng, shape, dtype, data.draw(orders), data.draw(st.sampled_from([1, 1, 2]))) for shape in shapes]
    arrays[0] = np.pad(arrays[0], [(0, 0)] * 3 + [(0, 3)])[..., : size[1]] if data.draw(st.booleans()) else arrays[0]
    check_convolution(kind, sizes, *arrays)


def test_depthwise_channels_do_not_meet() -> None:
    """What is not finite stays in its own channel, however channels share vectors."""
    x, w, y = (np.ones(shape, np.float32) for shape in ((2, 37, 7, 7), (37, 1, 3, 3), (2, 37, 7, 7)))
    x[1, 20, 6, 6], w[5, 0, 0, 0] = np.nan, np.inf
    sizes = {"images": 2, "channels": 37, "size": (7, 7), "out_channels": 37, "kernel": (3, 3), "out_size": (7, 7), "padding": (1, 1),
             "groups": 37}
    forward = Conv2d(**sizes, x_strides=strides_of(x), w_strides=strides_of(w))  # type: ignore[arg-type]
    library("float32").prepare("conv2d", forward, x, w, y)(2)
    spoilt = ~np.isfinite(y)
    assert spoilt[1, 20, 5:, 5:].all() and spoilt[1, 20].sum() == 4 and spoilt[:, 5].all() and spoilt.sum() == 4 + 2 * 49
    dw = np.empty_like(w)
    gradient = Conv2dWeightGrad(**sizes, x_strides=strides_of(x), g_strides=strides_of(x))  # type: ignore[arg-type]
    library("float32").prepare("conv2d_weight_grad", gradient, x, np.ones_like(x), dw)(2)
    assert np.isnan(dw[20]).any() and np.isfinite(np.delete(dw, 20, 0)).all()


@pytest.mark.parametrize("target", [AVX2, SSE, NEON], ids=lambda target: target.name)
def test_other_register_files(target: PlainUnit) -> None:
    """Tiles derived for narrower vectors and fewer registers compute the same; any processor can run them."""
    lib, rng = library("float32", target), np.random.default_rng(5)
    for m, n, k in ((50, 70, 300), (1, 33, 70), (40, 3, 64)):
        a, b = rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((n, k)).astype(np.float32).T
        check("matmul", matmul_params(a, b), a, b, a.astype(np.float64) @ b.astype(np.float64), k, lib)
    for channels, rows, groups, stride in ((6, 12, 1, 1), (6, 12, 1, 2), (6, 12, 6, 1), (16, 24, 1, 2), (32, 32, 2, 1), (3, 32, 1, 1)):
        kernel = 7 if channels == 3 else 3
        out = out_extent(17, kernel, stride, 1, 1, 1)
        sizes = {"images": 4, "channels": channels, "size": (17, 17), "out_channels": rows, "kernel": (kernel, kernel),
                 "out_size": (out, out), "stride": (stride, stride), "padding": (1, 1), "groups": groups}
        x, w, g = (rng.standard_normal(shape).astype(np.float32) for shape in (
            (4, channels, 17, 17), (rows, channels // groups, kernel, kernel), (4, rows, out, out)))
        for kind in ("conv2d", "conv2d_input_grad", "conv2d_weight_grad"):
            check_convolution(kind, sizes, x, w, g, lib)
    x, w, g = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 33, 27, 30), (40, 33, 1, 1), (2, 40, 14, 15)))
    for kind in ("conv2d", "conv2d_input_grad"):
        sizes = {"images": 2, "channels": 33, "size": (27, 30), "out_channels": 40, "kernel": (1, 1), "out_size": (14, 15), "stride": (2, 2)}
        check_convolution(kind, sizes, x, w, g, lib)
    for kind in ("conv2d", "conv2d_input_grad", "conv2d_weight_grad"):
        sizes = {"images": 2, "channels": 21, "size": (5, 7), "out_channels": 21, "kernel": (3, 3), "out_size": (5, 7), "padding": (1, 1),
                 "groups": 21}
        x, w, g = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 21, 5, 7), (21, 1, 3, 3), (2, 21, 5, 7)))
        check_convolution(kind, sizes, x, w, g, lib)


@pytest.mark.parametrize(("rows", "channels", "groups", "planes"), [(32, 1, 1, 1), (64, 24, 1, 0), (64, 32, 2, 0), (8, 24, 1, None)])
def test_weight_gradients_without_patches(rows: int, channels: int, groups: int, planes: int | None) -> None:
    """Sizes choose: planes for few channels, pixels x channels for many, patches where vectors would be mostly empty."""
    tiled = Conv2dWeightGrad(4, channels, (20, 20), rows, (3, 3), (18, 18), groups=groups).tiled
    assert (tiled and tiled.planes) == planes
    if tiled:
        assert tiled.splits > 1 and tiled.block_images * tiled.block_rows * 18 >= 18


@pytest.mark.parametrize(("rows", "channels", "groups", "size", "stride"), [
    (64, 256, 1, 14, 1), (256, 64, 1, 7, 1), (32, 32, 2, 20, 1), (33, 31, 1, 23, 1), (300, 290, 1, 6, 1), (56, 64, 1, 31, 2), (64, 56, 1, 28, 2),
    (128, 32, 1, 57, 3), (32, 64, 2, 30, 2), (70, 31, 2, 12, 2), (290, 160, 1, 13, 2), (33, 32, 1, 27, 2), (128, 48, 1, 71, 2)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_weight_gradients_of_one_tap(dtype: str, rows: int, channels: int, groups: int, size: int, stride: int, rng: np.random.Generator) -> None:
    """Either operand in place, whole and partly filled panels and vectors, parts of images and several small ones, strides, groups; also views of
    larger arrays."""
    out = (size - 1) // stride + 1
    sizes: dict[str, Any] = {"images": 7, "channels": channels * groups, "size": (size, size), "out_channels": rows * groups, "kernel": (1, 1),
                             "out_size": (out, out), "stride": (stride, stride), "groups": groups}
    for spare in (0, 3):
        x = rng.standard_normal((7, channels * groups + spare, size + spare * (stride - 1), size))[:, : channels * groups, :size].astype(dtype)
        w = np.empty((rows * groups, channels, 1, 1), dtype)
        g = rng.standard_normal((7, rows * groups + spare, out, out)).astype(dtype)[:, : rows * groups]
        params = Conv2dWeightGrad(**sizes, x_strides=strides_of(x), g_strides=strides_of(g))  # type: ignore[arg-type]
        assert params.planes and params.words()[0] == -4
        check_convolution("conv2d_weight_grad", sizes, x, w, g)
        check("conv2d_weight_grad", replace(params, patches=True), x, g, naive("conv2d_weight_grad", x, g, params, x.shape), g.size)


@pytest.mark.parametrize(("rows", "channels", "groups", "size"), [(64, 40, 1, 28), (33, 300, 2, 12), (48, 530, 1, 20), (7, 64, 3, 36)])
@pytest.mark.parametrize("kind", ["conv2d", "conv2d_input_grad"])
def test_planes_where_they_lie(kind: str, rows: int, channels: int, groups: int, size: int, rng: np.random.Generator) -> None:
    """Planes of whole vectors, half-filled panels, several blocks of depth, groups; the same numbers as from packed patches."""
    inner, outer = (channels, rows) if kind == "conv2d" else (rows, channels)
    sizes: dict[str, Any] = {"images": 3, "channels": inner * groups, "size": (size, size), "out_channels": outer * groups, "kernel": (1, 1),
                             "out_size": (size, size), "groups": groups}
    x, w, g = (rng.standard_normal(shape).astype(np.float32) for shape in (
        (3, inner * groups, size, size), (outer * groups, inner, 1, 1), (3, outer * groups, size, size)))
    params: Any = (Conv2d(**sizes, x_strides=strides_of(x), w_strides=strides_of(w)) if kind == "conv2d"  # type: ignore[arg-type]
                   else Conv2dInputGrad(**sizes, g_strides=strides_of(g), w_strides=strides_of(w)))  # type: ignore[arg-type]
    if rows * groups > 25:
        assert ways_of(kind, params, "float32", library("float32").target) == {"near"}
    check_convolution(kind, sizes, x, w, g)
    operands = (x, w) if kind == "conv2d" else (g, w)
    check(kind, replace(params, patches=True), *operands, naive(kind, *operands, params, x.shape), w.size)


@pytest.mark.parametrize(("rows", "channels", "groups", "size", "kernel", "padding", "dilation"), [
    (64, 64, 1, (28, 28), 3, 1, 1), (27, 70, 1, (15, 14), 3, 1, 1), (32, 64, 2, (9, 33), 3, 0, 1), (64, 65, 1, (13, 29), 2, 0, 1),
    (31, 64, 1, (20, 11), 5, 2, 1), (32, 64, 1, (17, 18), 3, 2, 2), (32, 64, 1, (16, 66), 4, 1, 1), (32, 300, 1, (40, 40), 3, 1, 3)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_residue_classes_together(dtype: str, rows: int, channels: int, groups: int, size: tuple[int, int], kernel: int, padding: int,
                                  dilation: int, rng: np.random.Generator) -> None:
    """Input gradients of stride 2: odd sizes, rows that no output meets, several blocks of rows, taps of one parity, groups, other layouts."""
    out = tuple(out_extent(extent, kernel, 2, dilation, padding, padding) for extent in size)
    sizes: dict[str, Any] = {"images": 2, "channels": rows * groups, "size": size, "out_channels": channels * groups, "kernel": (kernel, kernel),
                             "out_size": out, "stride": (2, 2), "padding": (padding, padding), "dilation": (dilation, dilation), "groups": groups}
    x = np.empty((2, rows * groups, *size), dtype)
    for order in ([0, 1, 2, 3], [0, 2, 3, 1]):
        w = strided(rng, (channels * groups, rows, kernel, kernel), dtype, order, 1)
        g = strided(rng, (2, channels * groups, *out), dtype, order, 1)
        params = Conv2dInputGrad(**sizes, g_strides=strides_of(g), w_strides=strides_of(w), direct=True)  # type: ignore[arg-type]
        assert ways_of("conv2d_input_grad", params, dtype, library(dtype).target) == {"joint"}
        check_convolution("conv2d_input_grad", sizes, x, w, g)
        apart = replace(params, patches=True)
        check("conv2d_input_grad", apart, g, w, naive("conv2d_input_grad", g, w, params, x.shape), w.size)


@pytest.mark.parametrize(("rows", "channels", "groups", "size"), [
    (64, 40, 1, (56, 56)), (33, 300, 1, (34, 33)), (40, 33, 2, (24, 57)), (32, 17, 1, (16, 1024)), (48, 70, 1, (31, 28)), (32, 5, 1, (300, 2))])
@pytest.mark.parametrize("kind", ["conv2d", "conv2d_input_grad"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_pixels_of_stride_2_together(dtype: str, kind: str, rows: int, channels: int, groups: int, size: tuple[int, int],
                                     rng: np.random.Generator) -> None:
    """1x1 with stride 2: odd sizes, several parts of an image and blocks of depth, planes in place and copied, very narrow ones, other layouts."""
    inner, outer = (channels, rows) if kind == "conv2d" else (rows, channels)
    out = (-(-size[0] // 2), -(-size[1] // 2))
    sizes: dict[str, Any] = {"images": 2, "channels": inner * groups, "size": size, "out_channels": outer * groups, "kernel": (1, 1),
                             "out_size": out, "stride": (2, 2), "groups": groups}
    for order in ([0, 1, 2, 3], [0, 2, 3, 1]):
        x, w, g = (strided(rng, shape, dtype, order, 1) for shape in (
            (2, inner * groups, *size), (outer * groups, inner, 1, 1), (2, outer * groups, *out)))
        params: Any = (Conv2d(**sizes, x_strides=strides_of(x), w_strides=strides_of(w)) if kind == "conv2d"  # type: ignore[arg-type]
                       else Conv2dInputGrad(**sizes, g_strides=strides_of(g), w_strides=strides_of(w)))  # type: ignore[arg-type]
        assert ways_of(kind, params, dtype, library(dtype).target) == {"strided"}
        check_convolution(kind, sizes, x, w, g)
        operands = (x, w) if kind == "conv2d" else (g, w)
        check(kind, replace(params, patches=True), *operands, naive(kind, *operands, params, x.shape), w.size)


def test_weight_gradients_of_one_tap_that_are_packed() -> None:
    """Few channels, channels innermost, very long strided rows: the other ways."""
    for rows, channels, width, stride, step in ((8, 64, 20, 1, 1), (64, 64, 20, 1, 64), (64, 64, 300, 2, 1)):
        out = (width - 1) // stride + 1
        params = Conv2dWeightGrad(2, channels, (20, width), rows, (1, 1), ((19 // stride) + 1, out), (stride, stride),
                                  x_strides=(20 * width * channels, 20 * width if step == 1 else 1, width * step, step),
                                  g_strides=(((19 // stride) + 1) * out * rows, ((19 // stride) + 1) * out, out, 1))
        assert params.planes is None


@pytest.mark.parametrize(("rows", "groups", "chosen"), [(1, 32, True), (1, 1, True), (4, 8, True), (16, 2, False)])
def test_weight_gradients_of_few_channels(rows: int, groups: int, chosen: bool) -> None:
    """Few channels and rows per group: planes; splits make work for threads where groups are few."""
    params = Conv2dWeightGrad(6, rows * groups, (12, 12), rows * groups, (3, 3), (10, 10), groups=groups,
                              x_strides=(1, 1, 1, 1), g_strides=(1, 1, 1, 1))
    mark, *_ = params.words()
    assert (mark == -2) == chosen
    if chosen:
        assert params.workspace_bytes("float32", AVX512) == (6 * 9 * 4 if groups == 1 else params.words()[5] * groups * rows * rows * 36
                                                            if params.words()[5] > 1 else 0)


def test_empty_results_and_sums() -> None:
    """No rows: nothing is written; no depth: zeros."""
    a, b = np.ones((4, 0), np.float32), np.ones((0, 5), np.float32)
    check("matmul", matmul_params(a, b), a, b, np.zeros((4, 5)), 0)
    a, b = np.ones((0, 3), np.float32), np.ones((3, 5), np.float32)
    check("matmul", matmul_params(a, b), a, b, np.zeros((0, 5)), 0)


@pytest.mark.parametrize("target", [AVX512, AVX2, SSE, NEON])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_target_gives_valid_ir(target: Any, dtype: str) -> None:
    """The emitter names no processor: the text verifies for all register files."""
    import llvmlite.binding as llvm

    llvm.parse_assembly(module_ir(dtype, target)).verify()


def test_folded_batch() -> None:
    """Batch dimensions that B does not vary over become rows."""
    folded = Matmul(8, 5, 4, (4, 1), (5, 1), (2, 3, 4), (96, 32, 32), (0, 0, 0)).folded()
    assert folded.batch == (2, 3) and folded.rows == 32
    assert Matmul(8, 5, 4, (4, 1), (5, 1), (2, 3, 4), (384, 128, 32), (0, 0, 0)).folded().rows == 8 * 24


@pytest.mark.parametrize("kind", ["conv2d", "conv2d_input_grad", "conv2d_weight_grad"])
def test_parameters_of_a_scheduled_convolution(kind: str) -> None:
    """A schedule's neutral description says the same as the sizes."""
    x, w, y = (2, 4, 9, 8), (6, 2, 3, 2), (2, 6, 5, 7)
    a, b, out = {"conv2d": (x, w, y), "conv2d_input_grad": (y, w, x), "conv2d_weight_grad": (x, y, w)}[kind]
    steps = {"a_strides": (9, 8, 7, 6), "b_strides": (5, 4, 3, 2)}
    spec = ContractSpec(a, steps["a_strides"], b, steps["b_strides"], out, (2, 1), (1, 0), (1, 1), 2)
    made = contraction(kind, spec)
    assert not isinstance(made, Matmul)
    assert (made.images, made.channels, made.size, made.out_channels) == (2, 4, (9, 8), 6)
    assert (made.kernel, made.out_size, made.groups, made.stride) == ((3, 2), (5, 7), 2, (2, 1))


def test_parameters_of_a_scheduled_product() -> None:
    """Batch dimensions come first, broadcast ones with step zero."""
    spec = ContractSpec((2, 3, 4, 5), (60, 20, 5, 1), (2, 3, 5, 6), (30, 0, 6, 1), (2, 3, 4, 6))
    expected = Matmul(4, 6, 5, (5, 1), (6, 1), (2, 3), (60, 20), (30, 0))
    assert contraction("matmul", spec) == expected


def test_target_for_features() -> None:
    """Instruction sets map to register files."""
    assert target_for_features("x86_64", frozenset({"avx512f", "avx2", "fma"})) is AVX512
    assert target_for_features("x86_64", frozenset({"avx2", "fma"})) is AVX2
    assert target_for_features("x86_64", frozenset()) is SSE
    assert target_for_features("aarch64", frozenset()) is NEON


def test_import_does_not_load_llvm() -> None:
    """Parameters and IR text need no LLVM."""
    code = "import sys, calque.backend.cpu.contract as c; c.module_ir('float32', c.AVX2); assert 'llvmlite' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
