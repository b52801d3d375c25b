"""Features of regions and moved convolutions against loops over every sample."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import calque
from calque.nn import functional as F
from calque.vision import ops
from calque.vision.ops import regions

Array = np.ndarray[Any, Any]


def sampled(image: Array, y: float, x: float) -> Array:
    """(C,) of (C, H, W), interpolated: elements outside are 0."""
    top, left = math.floor(y), math.floor(x)
    total = np.zeros(image.shape[0])
    for row, down in ((top, 1 - (y - top)), (top + 1, y - top)):
        for column, across in ((left, 1 - (x - left)), (left + 1, x - left)):
            if 0 <= row < image.shape[1] and 0 <= column < image.shape[2]:
                total += image[:, row, column] * down * across
    return total


def naive_align(x: Array, boxes: Array, size: tuple[int, int], scale: float, ratio: int, aligned: bool) -> Array:
    """As torchvision's kernel: sample by sample."""
    out = np.zeros((len(boxes), x.shape[1], *size))
    height, width = x.shape[2:]
    for k, (image, *corners) in enumerate(boxes):
        left, top, right, bottom = (c * scale - (0.5 if aligned else 0.0) for c in corners)
        spans = [bottom - top, right - left]
        steps = [(span if aligned else max(span, 1.0)) / n for span, n in zip(spans, size, strict=True)]
        counts = [ratio if ratio > 0 else math.ceil(step) for step in steps]
        for i, j in np.ndindex(*size):
            for a, b in np.ndindex(*counts):
                y = top + i * steps[0] + (a + 0.5) * steps[0] / counts[0]
                z = left + j * steps[1] + (b + 0.5) * steps[1] / counts[1]
                if -1.0 <= y <= height and -1.0 <= z <= width:
                    out[k, :, i, j] += sampled(x[int(image)], min(max(y, 0.0), height - 1.0), min(max(z, 0.0), width - 1.0))
            out[k, :, i, j] /= max(counts[0] * counts[1], 1)
    return out


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize(("ratio", "read"), [(-1, False), (2, False), (2, True)])
def test_regions_are_means_of_samples(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, ratio: int, read: bool, aligned: bool) -> None:
    monkeypatch.setattr(regions, "READ", 1e-9 if read else 10**9)
    x = rng.normal(size=(3, 2, 9, 7))
    corners = rng.uniform(-4, 22, size=(6, 2, 2))
    boxes = np.concatenate([np.array([[2, 0, 2, 1, 0, 2]]).T, np.sort(corners, 1).reshape(6, 4)], 1)
    boxes[5, 1:] = [3.0, 3.0, 3.0, 3.0]  # nothing inside
    given = calque.tensor(x, requires_grad=True)
    found = ops.roi_align(given, calque.tensor(boxes), (3, 2), 0.5, ratio, aligned)
    np.testing.assert_allclose(found.detach().numpy(), naive_align(x, boxes, (3, 2), 0.5, ratio, aligned), rtol=1e-9, atol=1e-12)
    assert calque.autograd.gradcheck(lambda t: ops.roi_align(t, calque.tensor(boxes), (3, 2), 0.5, ratio, aligned), (given,))
    order = np.argsort(boxes[:, 0], kind="stable")
    listed = [calque.tensor(boxes[boxes[:, 0] == image][:, 1:]) for image in range(3)]
    layer = ops.RoIAlign((3, 2), 0.5, ratio, aligned)
    np.testing.assert_allclose(layer(given, listed).detach().numpy(), found.detach().numpy()[order])
    assert tuple(ops.roi_align(given, calque.zeros(0, 5), 4).shape) == (0, 2, 4, 4)
    for wrong in (calque.zeros(2, 4), [calque.zeros(1, 4)]):
        with pytest.raises(RuntimeError, match=r"\[roi_align\] expected"):
            ops.roi_align(given, wrong, 2)
    with pytest.raises(ValueError, match=r"expected images in 0\.\.2"):
        ops.roi_align(given, calque.tensor([[3.0, 0, 0, 1, 1]]), 2)


def test_moved_taps_read_where_they_are_told(rng: np.random.Generator) -> None:
    x, weight, bias = rng.normal(size=(2, 4, 6, 5)), rng.normal(size=(6, 2, 3, 2)), rng.normal(size=6)
    stride, padding, dilation, shifts = (2, 1), (1, 2), (1, 2), 2
    out = (3, 7)
    offset, mask = rng.normal(size=(2, 2 * shifts * 6, *out)) * 2, rng.uniform(size=(2, shifts * 6, *out))
    want = np.zeros((2, 6, *out))
    for n, o, i, j in np.ndindex(*want.shape):
        for c in range(2):
            channel = c + 2 * (o // 3)
            group = channel // 2
            for tap, (a, b) in enumerate(np.ndindex(3, 2)):
                k = group * 6 + tap
                y = i * stride[0] - padding[0] + a * dilation[0] + offset[n, 2 * k, i, j]
                z = j * stride[1] - padding[1] + b * dilation[1] + offset[n, 2 * k + 1, i, j]
                want[n, o, i, j] += weight[o, c, a, b] * mask[n, k, i, j] * sampled(x[n, channel : channel + 1], y, z)[0]
    want += bias[:, None, None]
    tensors = [calque.tensor(v, requires_grad=True) for v in (x, offset, weight, bias, mask)]

    def convolved(x: Any, offset: Any, weight: Any, bias: Any, mask: Any) -> Any:
        return ops.deform_conv2d(x, offset, weight, bias, stride, padding, dilation, mask)

    np.testing.assert_allclose(convolved(*tensors).detach().numpy(), want, rtol=1e-9, atol=1e-12)
    assert calque.autograd.gradcheck(convolved, tensors)


def test_taps_that_are_not_moved_are_a_convolution(rng: np.random.Generator) -> None:
    layer = ops.DeformConv2d(4, 6, 3, padding=1, groups=2)
    x = calque.tensor(rng.normal(size=(2, 4, 5, 5)).astype(np.float32))
    offset = calque.zeros(2, 18, 5, 5, requires_grad=True)
    found = layer(x, offset)
    want = F.conv2d(x, layer.weight, layer.bias, padding=1, groups=2)
    np.testing.assert_allclose(found.detach().numpy(), want.detach().numpy(), rtol=1e-4, atol=1e-5)
    found.sum().backward()
    assert float(offset.grad.abs().sum()) > 0
    with pytest.raises(RuntimeError, match=r"\[deform_conv2d\] expected offset"):
        layer(x, calque.zeros(2, 17, 5, 5))
    with pytest.raises(RuntimeError, match=r"\[deform_conv2d\] expected mask"):
        layer(x, offset, calque.zeros(2, 8, 5, 5))


def bins_of(first: float, last: float, bins: int, size: int) -> list[range]:
    """The elements of each bin of a row, as torchvision's kernels count them."""
    step = max(last - first, 1.0) / bins
    ends = [(math.floor(k * step + first), math.ceil((k + 1) * step + first)) for k in range(bins)]
    return [range(min(max(a, 0), size), min(max(b, 0), size)) for a, b in ends]


def test_pooled_regions_are_largest_elements_and_means(rng: np.random.Generator) -> None:
    x = rng.normal(size=(2, 12, 9, 7))
    boxes = np.concatenate([np.array([[1, 0, 1, 0]]).T, np.sort(rng.uniform(-3, 20, size=(4, 2, 2)), 1).reshape(4, 4)], 1)
    largest, own, sampled_own = np.zeros((4, 12, 3, 2)), np.zeros((4, 2, 3, 2)), np.zeros((4, 2, 3, 2))
    aligned = naive_align(x, boxes, (3, 2), 0.5, 2, True)
    for k, (image, *corners) in enumerate(boxes):
        left, top, right, bottom = (math.floor(c * 0.5 + 0.5) for c in corners)
        rows, columns = bins_of(top, bottom + 1, 3, 9), bins_of(left, right + 1, 2, 7)
        parts = bins_of(top, bottom, 3, 9), bins_of(left, right, 2, 7)
        for i, j in np.ndindex(3, 2):
            window = x[int(image)][:, rows[i]][:, :, columns[j]]
            largest[k, :, i, j] = window.max((1, 2)) if window.size else 0
            for c in range(2):
                channel = (c * 3 + i) * 2 + j
                part = x[int(image), channel][parts[0][i]][:, parts[1][j]]
                own[k, c, i, j] = part.mean() if part.size else 0
                sampled_own[k, c, i, j] = aligned[k, channel, i, j]
    given, corners = calque.tensor(x), calque.tensor(boxes)
    few = calque.tensor(x[:, :6, :5, :4], requires_grad=True)
    for layer, want in (
        (ops.RoIPool((3, 2), 0.5), largest), (ops.PSRoIPool((3, 2), 0.5), own), (ops.PSRoIAlign((3, 2), 0.5, 2), sampled_own),
    ):  # fmt: skip
        np.testing.assert_allclose(layer(given, corners).detach().numpy(), want, rtol=1e-9, atol=1e-12, err_msg=str(layer))
        assert calque.autograd.gradcheck(lambda t, f=layer: f(t, corners), (few,))
        assert tuple(layer(given, calque.zeros(0, 5)).shape) == (0, *want.shape[1:])
    with pytest.raises(RuntimeError, match=r"\[ps_roi_pool\] expected a number of channels that 5 x 5 bins divide"):
        ops.ps_roi_pool(given, corners, 5)


def test_blocks_are_dropped_whole() -> None:
    calque.manual_seed(3)
    for layer, shape in ((ops.DropBlock2d(0.2, 3), (8, 4, 12, 12)), (ops.DropBlock3d(0.2, 3), (4, 2, 9, 9, 9))):
        x = calque.ones(*shape)
        out = layer(x)
        kept = float((out > 0).float().mean())
        assert 0.7 < kept < 0.95 and abs(float(out.mean()) - 1) < 1e-3
        assert layer.eval()(x) is x
    for wrong, words in (({"p": 1.5, "block_size": 3}, "between 0 and 1"), ({"p": 0.5, "block_size": 4}, "should be odd")):
        with pytest.raises(ValueError, match=words):
            ops.drop_block2d(calque.ones(1, 1, 8, 8), **wrong)
    with pytest.raises(ValueError, match="should be 5 dimensional"):
        ops.drop_block3d(calque.ones(1, 1, 8, 8), 0.5, 3)
