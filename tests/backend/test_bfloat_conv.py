"""Native convolutions of bfloat16 against float64, where the processor multiplies pairs; elsewhere the casts to float32 stay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import calque
from calque.backend.cpu.compile.target import current
from calque.backend.cpu.contract import AVX512, Conv2d, Conv2dInputGrad, Conv2dWeightGrad, is_narrow, module_ir, suits_pairs
from calque.backend.cpu.program import host
from calque.base import config
from calque.ops.routines import ContractSpec
from tests.backend.contract_harness import host_target, library, strides_of
from tests.backend.test_contract import LAYERS, naive, out_extent

Array = NDArray[Any]
BFLOAT = ml_dtypes.bfloat16
KINDS = ("conv2d", "conv2d_input_grad", "conv2d_weight_grad")
HERE = host_target()
paired = pytest.mark.skipif(not HERE.bfloat_pairs, reason="this processor does not multiply pairs of bfloat16")


def laid_out(rng: np.random.Generator, shape: tuple[int, ...], order: list[int], gap: int) -> Array:
    """Random values with dimensions in an order of their own, every ``gap``-th element of memory."""
    block = rng.standard_normal((*(shape[dim] for dim in order), gap)).astype(BFLOAT)
    return block[..., 0].transpose(np.argsort(order))


def case(kind: str, sizes: dict[str, Any], x: Array, w: Array, g: Array) -> tuple[Any, tuple[Array, Array]]:
    """Parameters and operands of one direction."""
    kinds: dict[str, Any] = {
        "conv2d": (Conv2d, "x_strides", x, "w_strides", w),
        "conv2d_input_grad": (Conv2dInputGrad, "g_strides", g, "w_strides", w),
        "conv2d_weight_grad": (Conv2dWeightGrad, "x_strides", x, "g_strides", g),
    }
    make, first, a, second, b = kinds[kind]
    return make(**sizes, **{first: strides_of(a), second: strides_of(b)}, pairs=True), (a, b)


def check(kind: str, sizes: dict[str, Any], x: Array, w: Array, g: Array) -> bool:
    """Float32 sums rounded once, and the same bits for every thread count; False if the sizes do not suit pairs."""
    native, (a, b) = case(kind, sizes, x, w, g)
    if not suits_pairs(native, HERE):
        return False
    exact = naive(kind, a, b, native, x.shape)
    size = naive(kind, np.abs(a.astype(np.float64)), np.abs(b.astype(np.float64)), native, x.shape)
    results = []
    for threads in (1, 2, 3):
        out = np.full(exact.shape, np.nan, BFLOAT)
        library("bfloat16").prepare(kind, native, a, b, out)(threads)
        results.append(out)
    depth = g[:, 0].size if kind == "conv2d_weight_grad" else w[0].size if kind == "conv2d" else w[:, 0].size
    # Half a unit of bfloat16 for the one rounding, float32's rounding of the sums besides.
    bound = 2.0**-8 * np.abs(exact) + (depth + 8) * 2.0**-24 * size + 1e-30
    assert (np.abs(results[0].astype(np.float64) - exact) <= bound).all()
    assert all(other.tobytes() == results[0].tobytes() for other in results[1:])
    return True


PAIR = st.tuples(st.integers(1, 3), st.integers(1, 3))


@paired
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30, deadline=None, derandomize=True)
@given(data=st.data())
def test_random_convolutions(kind: str, data: st.DataObject) -> None:
    """Strides, dilation, groups, padding, odd channels and batches, layouts."""
    groups = data.draw(st.sampled_from([1, 1, 2]))
    full, other = groups * data.draw(st.sampled_from([27, 30, 31, 32, 59, 61, 64])), groups * data.draw(st.integers(1, 70))
    channels, out_channels = (full, other) if kind == "conv2d_input_grad" else (other, full)
    size = data.draw(st.tuples(st.integers(7, 24), st.integers(9, 40)))
    kernel = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    stride, dilation = data.draw(st.one_of(st.just((1, 1)), st.just((2, 2)), PAIR)), data.draw(st.one_of(st.just((1, 1)), PAIR))
    before, after = (data.draw(st.tuples(st.integers(0, 3), st.integers(0, 3))) for _ in range(2))
    out = tuple(out_extent(*sizes) for sizes in zip(size, kernel, stride, dilation, before, after, strict=True))
    assume(min(out) >= 1)
    images = data.draw(st.integers(1, 5))
    sizes = {"images": images, "channels": channels, "size": size, "out_channels": out_channels, "kernel": kernel,
             "out_size": out, "stride": stride, "padding": before, "dilation": dilation, "groups": groups}
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    shapes = ((images, channels, *size), (out_channels, channels // groups, *kernel), (images, out_channels, *out))
    orders = st.sampled_from([[0, 1, 2, 3], [0, 1, 2, 3], [0, 2, 3, 1], [1, 0, 3, 2]])
    assume(check(kind, sizes, *(laid_out(rng, shape, data.draw(orders), data.draw(st.sampled_from([1, 1, 2]))) for shape in shapes)))


@paired
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layer", LAYERS)
def test_layers(kind: str, layer: str) -> None:
    """Shapes of real networks in small."""
    images, channels, size, out_channels, kernel, stride, padding, groups = LAYERS[layer]
    out = tuple(out_extent(*s) for s in zip(size, kernel, stride, (1, 1), padding, padding, strict=True))
    sizes = {"images": images, "channels": channels, "size": size, "out_channels": out_channels, "kernel": kernel,
             "out_size": out, "stride": stride, "padding": padding, "groups": groups}
    rng = np.random.default_rng(3)
    shapes = ((images, channels, *size), (out_channels, channels // groups, *kernel), (images, out_channels, *out))
    check(kind, sizes, *(rng.standard_normal(shape).astype(BFLOAT) for shape in shapes))


@paired
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("odd", [0, 1])
def test_the_layers_that_must_suit(kind: str, stride: int, kernel: int, odd: int) -> None:
    """Layers of residual networks; an odd number of channels and images leaves a half of the last pairs empty."""
    channels, outputs, images, size = 64 - odd, 96 - odd, 2 + odd, (28, 28)
    out = (size[0] // stride, size[1] // stride)
    sizes = {"images": images, "channels": channels, "size": size, "out_channels": outputs, "kernel": (kernel, kernel), "out_size": out,
             "stride": (stride, stride), "padding": (kernel // 2, kernel // 2)}
    rng = np.random.default_rng(4)
    shapes = ((images, channels, *size), (outputs, channels, kernel, kernel), (images, outputs, *out))
    assert check(kind, sizes, *(rng.standard_normal(shape).astype(BFLOAT) for shape in shapes))


@paired
def test_nothing_is_skipped() -> None:
    """Zero times infinity is NaN; a repeated image is as good as a copy."""
    x, w = np.zeros((3, 32, 8, 8), BFLOAT), np.ones((32, 32, 3, 3), BFLOAT)
    w[5, 7, 1, 1] = np.inf
    sizes = {"images": 3, "channels": 32, "size": (8, 8), "out_channels": 32, "kernel": (3, 3), "out_size": (8, 8), "padding": (1, 1)}
    native, operands = case("conv2d", sizes, x, w, x)
    out = np.empty((3, 32, 8, 8), BFLOAT)
    library("bfloat16").prepare("conv2d", native, *operands, out)(1)
    assert np.isnan(out[:, 5].astype(np.float32)).all() and not np.isnan(np.delete(out, 5, 1).astype(np.float32)).any()
    rng = np.random.default_rng(0)
    one = np.broadcast_to(rng.standard_normal((1, 32, 8, 8)).astype(BFLOAT), (4, 32, 8, 8))
    assert check("conv2d_weight_grad", sizes | {"images": 4}, one, w, rng.standard_normal((4, 32, 8, 8)).astype(BFLOAT))


def test_only_pairs_are_multiplied_natively() -> None:
    """Without the instruction there is no native convolution of bfloat16."""
    shapes = ((2, 64, 28, 28), (64, 64, 1, 1), (2, 64, 28, 28))
    spec = ContractSpec(shapes[0], (50176, 784, 28, 1), shapes[1], (64, 1, 1, 1), shapes[2])
    assert not is_narrow("conv2d", spec, AVX512) and "calque_conv2d_bf16" not in module_ir("bfloat16", AVX512)
    assert is_narrow("conv2d", spec, HERE) == HERE.bfloat_pairs


@pytest.fixture(params=["", "avx2"])
def restricted(request: pytest.FixtureRequest) -> Iterator[str]:
    """This processor, and the same with fewer instructions."""
    before, config.settings.cpu_target = config.settings.cpu_target, request.param
    yield request.param
    config.settings.cpu_target = before


def test_under_autocast_as_pytorch(restricted: str) -> None:
    """A small network with its gradients, and which of its convolutions stay in bfloat16 on this target."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((3, 3, 18, 18), (33, 3, 3, 3), (40, 33, 3, 3), (64, 40, 1, 1))]
    before, results = host.COUNTERS.contractions, []
    torch = pytest.importorskip("torch")
    for module in (calque, torch):
        x, *weights = (module.tensor(value).requires_grad_() for value in arrays)  # type: ignore[attr-defined]
        with module.autocast("cpu", dtype=module.bfloat16):  # type: ignore[attr-defined]
            y = x
            for weight, stride in zip(weights, (1, 2, 1), strict=True):
                y = module.nn.functional.conv2d(y, weight, stride=stride, padding=weight.shape[2] // 2)  # type: ignore[attr-defined]
        y.float().square().mean().backward()
        assert y.dtype is module.bfloat16  # type: ignore[attr-defined]
        results.append([y.detach().float().numpy(), *(value.grad.numpy() for value in (x, *weights))])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=4e-2, atol=3e-2 * np.abs(theirs).max())
    assert host.COUNTERS.contractions == before and current().bfloat_pairs == (HERE.bfloat_pairs and not restricted)
