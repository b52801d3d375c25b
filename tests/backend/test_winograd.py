"""Winograd convolutions against naive float64 loops and against their direct twins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from calque.backend.cpu.contract import AVX2, NEON, SSE, Conv2d, Conv2dInputGrad, Conv2dWeightGrad, PlainUnit
from calque.backend.cpu.contract.winograd import FEWEST_STRIDED_TILES, FEWEST_TILES, MOST_CHANNELS
from tests.backend.contract_harness import library, strides_of
from tests.backend.test_contract import check_convolution, naive, strided

Array = NDArray[Any]
KINDS = ("conv2d", "conv2d_input_grad", "conv2d_weight_grad")
SETTINGS = settings(max_examples=40, deadline=None, derandomize=True)


def layer(images: int, channels: int, size: tuple[int, int], rows: int, padding: tuple[int, int] = (1, 1),
          after: tuple[int, int] | None = None, taps: int = 3, stride: int = 1) -> dict[str, Any]:
    """Sizes of a 3x3 (or 5x5) convolution; ``after`` is the padding at the end, if another."""
    last = padding if after is None else after
    return {"images": images, "channels": channels, "size": size, "out_channels": rows, "kernel": (taps, taps), "padding": padding,
            "stride": (stride, stride), "out_size": tuple((size[axis] + padding[axis] + last[axis] - taps) // stride + 1 for axis in (0, 1))}


def shapes(sizes: dict[str, Any]) -> tuple[tuple[int, ...], ...]:
    """Shapes of x, w and the output gradient."""
    images, channels, rows = sizes["images"], sizes["channels"], sizes["out_channels"]
    return (images, channels, *sizes["size"]), (rows, channels, *sizes["kernel"]), (images, rows, *sizes["out_size"])


def values(sizes: dict[str, Any], dtype: str = "float32", seed: int = 0) -> list[Array]:
    """Random x, w and output gradient."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes(sizes)]


def operands(kind: str, x: Array, w: Array, g: Array) -> tuple[Array, Array, Array]:
    """The two operands of a direction and an empty result."""
    first, second, result = {"conv2d": (x, w, g), "conv2d_input_grad": (g, w, x), "conv2d_weight_grad": (x, g, w)}[kind]
    return first, second, np.full(result.shape, 7, result.dtype)


def parameters(kind: str, sizes: dict[str, Any], x: Array, w: Array, g: Array) -> Any:
    """Native parameters of a direction."""
    xs, ws, gs = strides_of(x), strides_of(w), strides_of(g)
    if kind == "conv2d":
        return Conv2d(**sizes, x_strides=xs, w_strides=ws)  # type: ignore[arg-type]
    if kind == "conv2d_input_grad":
        return Conv2dInputGrad(**sizes, g_strides=gs, w_strides=ws)  # type: ignore[arg-type]
    return Conv2dWeightGrad(**sizes, x_strides=xs, g_strides=gs)  # type: ignore[arg-type]


def run(kind: str, sizes: dict[str, Any], arrays: list[Array], direct: bool = False, threads: int = 1) -> Array:
    """The result of one direction."""
    first, second, out = operands(kind, *arrays)
    params = replace(parameters(kind, sizes, *arrays), direct=direct)
    assert params.winograd is not direct or not sizes["images"]
    library(out.dtype.name).prepare(kind, params, first, second, out)(threads)
    return out


@pytest.mark.parametrize("kind", KINDS)
@SETTINGS
@given(st.data())
def test_random_layers(kind: str, data: st.DataObject) -> None:
    """Odd sizes, any padding on each side (also a cropping one for the input gradient), any memory layout, any channels."""
    dtype = data.draw(st.sampled_from(["float32", "float32", "float64"]))
    size = data.draw(st.tuples(st.integers(3, 20), st.one_of(st.integers(3, 20), st.integers(30, 80))))
    pads = [data.draw(st.tuples(st.integers(0, 4), st.integers(0, 4))) for _ in range(2)]
    channels, rows = data.draw(st.integers(16, 70)), data.draw(st.integers(16, 70))
    taps, stride = data.draw(st.sampled_from([(3, 1), (5, 1), (3, 2), (3, 2)]))
    sizes = layer(data.draw(st.integers(1, 4)), channels, size, rows, *pads, taps, stride)
    if min(sizes["out_size"]) < 3:
        return
    tiles = -(-sizes["out_size"][0] // 2) * -(-sizes["out_size"][1] // 2)
    sizes["images"] = max(sizes["images"], -(-(FEWEST_TILES if stride == 1 else FEWEST_STRIDED_TILES) // tiles))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    arrays = []
    for shape in shapes(sizes):
        order = data.draw(st.one_of(st.just([0, 1, 2, 3]), st.just([0, 2, 3, 1]), st.permutations(range(4))))
        arrays.append(strided(rng, shape, dtype, list(order), data.draw(st.sampled_from([1, 1, 2]))))
    check_convolution(kind, sizes, *arrays)


LAYERS = {
    "rows of one vector": layer(2, 24, (32, 32), 40),
    "several parts of the tiles": layer(8, 16, (33, 35), 17),
    "several blocks of depth": layer(3, 300, (8, 8), 30),
    "several blocks of channels": layer(3, 150, (8, 8), 140),
    "4x4 images": layer(13, 70, (4, 4), 30),
    "7x7 images": layer(5, 40, (7, 7), 33),
    "rows in several pieces": layer(1, 16, (5, 300), 16),
    "wider than high": layer(2, 20, (3, 140), 18, (1, 0)),
    "threads share rows": layer(3, 400, (8, 8), 330),
    "most channels": layer(3, MOST_CHANNELS, (8, 8), 16),
    "one image": layer(1, 64, (14, 14), 64),
    "5x5": layer(4, 32, (14, 14), 64, (2, 2), taps=5),
    "5x5, rows of one vector": layer(2, 24, (32, 32), 40, (2, 2), taps=5),
    "5x5, several parts of the tiles": layer(8, 16, (33, 35), 17, taps=5),
    "5x5, several blocks of depth": layer(3, 150, (8, 8), 30, (2, 2), taps=5),
    "5x5, several blocks of channels": layer(3, 150, (8, 8), 140, (2, 2), taps=5),
    "5x5, rows in several pieces": layer(1, 16, (5, 300), 16, (2, 2), taps=5),
    "5x5, threads share rows": layer(3, 256, (8, 8), 256, (2, 2), taps=5),
    "stride 2, rows of one vector": layer(2, 24, (64, 64), 40, stride=2),
    "stride 2, several parts of the tiles": layer(16, 16, (63, 55), 17, stride=2),
    "stride 2, several blocks of depth": layer(7, 150, (16, 16), 30, stride=2),
    "stride 2, several blocks of channels": layer(7, 150, (16, 16), 140, stride=2),
    "stride 2, 4x4 outputs": layer(25, 70, (8, 8), 30, stride=2),
    "stride 2, rows in several pieces": layer(1, 16, (11, 600), 16, stride=2),
    "stride 2, more padding": layer(5, 30, (23, 15), 40, (3, 1), (1, 3), stride=2),
    "stride 2, wider than high": layer(2, 20, (7, 279), 18, (1, 3), stride=2),
    "stride 2, threads share rows": layer(25, 256, (8, 8), 512, stride=2),
    "stride 2, most channels": layer(7, MOST_CHANNELS // 4, (16, 16), 16, stride=2),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])  # one text for both; forms below have both
@pytest.mark.parametrize("name", LAYERS)
def test_layers(kind: str, dtype: str, name: str) -> None:
    """Each on a path of its own."""
    check_convolution(kind, LAYERS[name], *values(LAYERS[name], dtype))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LAYERS)
def test_thread_counts_give_the_same_bits(kind: str, name: str) -> None:
    """One, two and four threads."""
    arrays = values(LAYERS[name])
    results = [run(kind, LAYERS[name], arrays, threads=threads).tobytes() for threads in (1, 2, 4)]
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [layer(8, 64, (32, 32), 64), layer(32, 32, (14, 14), 64, (2, 2), taps=5), layer(8, 64, (32, 32), 128, stride=2)],
                         ids=["ResNet-18", "LeNet", "ResNet-18, stride 2"])
def test_error_stays_near_the_direct_kernel(kind: str, sizes: dict[str, Any]) -> None:
    """Root mean square error against float64, on a layer of a network: at most three times that of the definition."""
    arrays = values(sizes)
    arrays[0] += 1  # inputs with a mean, as behind a ReLU
    first, second, _ = operands(kind, *arrays)
    exact = naive(kind, first, second, parameters(kind, sizes, *arrays), arrays[0].shape)
    errors = [np.sqrt(np.mean((run(kind, sizes, arrays, direct) - exact) ** 2)) for direct in (False, True)]
    assert errors[0] <= 3 * errors[1], errors


@pytest.mark.parametrize("kind", KINDS[:2])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_stay_in_their_tiles(kind: str, value: float) -> None:
    """Every pixel that depends on one is not finite; no pixel of a tile that does not depend on it is touched."""
    sizes = layer(2, 16, (12, 12), 16)
    arrays = values(sizes)
    source = arrays[0] if kind == "conv2d" else arrays[2]
    source[1, 3, 5, 6] = value
    finite = np.isfinite(run(kind, sizes, arrays))
    assert finite[0].all() and not finite[1, :, 4:7, 5:8].any()
    outside = np.ones((12, 12), bool)
    outside[4:8, 4:8] = False  # the tiles whose outputs are rows 4..6 and columns 5..7
    assert finite[1][:, outside].all()


@pytest.mark.parametrize("kind", KINDS[:2])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_with_stride_2(kind: str, value: float) -> None:
    """As with stride 1; a pixel of the output gradient meets 3x3 pixels of its input gradient, in up to four tiles of 4x4."""
    sizes = layer(12, 16, (16, 16), 16, stride=2)
    arrays = values(sizes)
    source = arrays[0] if kind == "conv2d" else arrays[2]
    source[1, 3, 5, 6] = value
    finite = np.isfinite(run(kind, sizes, arrays))
    hit, tiles = {"conv2d": (np.s_[2:4, 3:4], np.s_[2:4, 2:4]), "conv2d_input_grad": (np.s_[9:12, 11:14], np.s_[8:12, 8:16])}[kind]
    assert finite[0].all() and not finite[1][:, *hit].any()
    outside = np.ones(finite.shape[2:], bool)
    outside[tiles] = False
    assert finite[1][:, outside].all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weight_gradient_of_values_that_are_not_finite(value: float) -> None:
    """They reach all taps of their channel and no other."""
    sizes = layer(2, 20, (12, 12), 18)
    for which, axis, channel in ((0, 1, 3), (2, 0, 5)):
        arrays = values(sizes)
        arrays[which][1, channel, 5, 6] = value
        finite = np.isfinite(run("conv2d_weight_grad", sizes, arrays))
        hit = np.take(finite, channel, axis)
        assert not hit.any() and np.delete(finite, channel, axis).all()


@pytest.mark.parametrize("target", [AVX2, SSE, NEON], ids=lambda target: target.name)
def test_other_register_files(target: PlainUnit) -> None:
    """Narrower vectors and fewer registers; any processor can run them."""
    lib = library("float32", target)
    for sizes in (layer(2, 20, (13, 9), 19), layer(1, 16, (5, 60), 33, (0, 2)), LAYERS["threads share rows"],
                  layer(3, 20, (13, 9), 19, (2, 2), taps=5), LAYERS["5x5, threads share rows"],
                  layer(5, 20, (25, 16), 19, stride=2), LAYERS["stride 2, threads share rows"]):
        for kind in KINDS:
            check_convolution(kind, sizes, *values(sizes), lib)


def test_sizes_decide() -> None:
    """Only 3x3 and 5x5 kernels with stride, dilation and groups of one, 3x3 also with stride 2, and enough of everything."""
    def used(**changes: Any) -> bool:
        return Conv2d(**{**layer(4, 16, (8, 8), 16), **changes}).winograd

    assert used() and used(kernel=(5, 5))
    two: dict[str, Any] = {"stride": (2, 2), "images": 7}
    assert used(**two) and used(**two, out_channels=512) and not used(**{**two, "images": 6})
    for changes in ({"out_size": (7, 7)}, {"channels": 257}, {"kernel": (5, 5)}, {"out_channels": 1025}):
        assert not used(**{**two, "images": 30, **changes})
    for changes in ({"kernel": (3, 1)}, {"kernel": (5, 3)}, {"kernel": (5, 5), "channels": 257},
                    {"stride": (1, 2)}, {"dilation": (2, 2)}, {"groups": 2}, {"channels": 8},
                    {"out_channels": 8}, {"out_size": (8, 2)}, {"channels": 5000}, {"direct": True},
                    {"images": 1}):
        assert not used(**changes)
    assert Conv2dWeightGrad(**layer(1, 16, (8, 8), 16)).winograd
    strided = layer(9, 512, (16, 12), 1024, stride=2)
    assert Conv2dInputGrad(**strided).winograd and not Conv2d(**strided).winograd
    for other in ({"padding": (1, 0)}, {"stride": (2, 1)}, {"size": (14, 14)}, {"channels": 8}, {"out_channels": 1025}, {"dilation": (2, 2)},
                  {"groups": 2}, {"direct": True}, {"images": 3}):
        assert not Conv2dInputGrad(**{**strided, **other}).winograd


def test_empty_batch() -> None:
    """An empty batch: nothing to write forward, zero weight gradients."""
    sizes = layer(0, 16, (8, 8), 16)
    for kind in KINDS:
        assert not run(kind, sizes, values(sizes), threads=2).any()
