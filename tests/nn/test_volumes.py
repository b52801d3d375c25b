"""Layers over three dims, unpooling, sampling on grids and CTC against plain loops, and their gradients against differences."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import calque
import calque.nn.functional as F
from calque.autograd import gradcheck, gradgradcheck


def tensor(rng: np.random.Generator, *shape: int, grad: bool = False) -> calque.Tensor:
    return calque.tensor(rng.normal(size=shape), requires_grad=grad)


def at(x: calque.Tensor, places: calque.Tensor) -> np.ndarray:
    """The elements of each channel at flat positions."""
    lead = (*x.shape[:2], -1)
    return np.take_along_axis(x.numpy().reshape(lead), places.numpy().reshape(lead), 2).reshape(tuple(places.shape))


def windows(x: np.ndarray, k: tuple[int, ...], s: tuple[int, ...], p: tuple[int, ...], fill: float) -> np.ndarray:
    padded = np.pad(x, [(0, 0), (0, 0), *[(q, q) for q in p]], constant_values=fill)
    view = np.lib.stride_tricks.sliding_window_view(padded, k, axis=(2, 3, 4))
    return view[:, :, :: s[0], :: s[1], :: s[2]]


@pytest.mark.parametrize(("k", "s", "p"), [((2, 2, 2), (2, 2, 2), (0, 0, 0)), ((3, 2, 3), (1, 2, 2), (1, 1, 1)), ((2, 3, 1), (2, 1, 3), (1, 0, 0))])
def test_pooling_of_volumes(rng: np.random.Generator, k: tuple[int, ...], s: tuple[int, ...], p: tuple[int, ...]) -> None:
    x = tensor(rng, 2, 3, 5, 6, 7)
    largest = windows(x.numpy(), k, s, p, -np.inf).max((5, 6, 7))
    values, places = F.max_pool3d(x, k, s, p, return_indices=True)
    np.testing.assert_array_equal(values.numpy(), largest)
    np.testing.assert_array_equal(at(x, places), largest)
    np.testing.assert_allclose(F.avg_pool3d(x, k, s, p).numpy(), windows(x.numpy(), k, s, p, 0.0).mean((5, 6, 7)))
    ones = windows(np.ones((1, 1, 5, 6, 7)), k, s, p, 0.0).sum((5, 6, 7))
    without = F.avg_pool3d(x, k, s, p, count_include_pad=False).numpy()
    np.testing.assert_allclose(without, windows(x.numpy(), k, s, p, 0.0).sum((5, 6, 7)) / ones)
    small = tensor(rng, 1, 2, 4, 4, 4, grad=True)
    assert gradcheck(lambda x: F.avg_pool3d(x, k, s, p), (small,)) and gradcheck(lambda x: F.max_pool3d(x, k, s, p), (small,))


def test_adaptive_pooling_of_volumes(rng: np.random.Generator) -> None:
    x = tensor(rng, 2, 2, 5, 6, 7)
    out = (3, 4, 2)
    mean, (largest, places) = F.adaptive_avg_pool3d(x, out).numpy(), F.adaptive_max_pool3d(x, out, True)
    for cell in itertools.product(*map(range, out)):
        part = x.numpy()[(slice(None), slice(None), *[slice(i * n // o, -(-(i + 1) * n // o)) for i, n, o in zip(cell, (5, 6, 7), out, strict=True)])]
        np.testing.assert_allclose(mean[(slice(None), slice(None), *cell)], part.mean((2, 3, 4)))
        np.testing.assert_array_equal(largest.numpy()[(slice(None), slice(None), *cell)], part.max((2, 3, 4)))
    np.testing.assert_array_equal(at(x, places), largest.numpy())


@pytest.mark.parametrize(
    ("stride", "padding", "extra", "dilation", "groups"), [(1, 0, 0, 1, 1), (2, 1, 1, 1, 1), ((2, 1, 3), (0, 1, 1), 0, 2, 2)]
)
def test_transposed_convolution_is_the_adjoint(
    rng: np.random.Generator, stride: object, padding: object, extra: object, dilation: object, groups: int
) -> None:
    x, w = tensor(rng, 2, 4, 3, 4, 3), tensor(rng, 4, 3, 2, 3, 2)
    y = F.conv_transpose3d(x, w, None, stride, padding, extra, groups, dilation)
    g = tensor(rng, *y.shape)
    back = F.conv3d(g, w, None, stride, padding, dilation, groups)
    np.testing.assert_allclose((y * g).sum().item(), (x * back).sum().item(), rtol=1e-9)


def test_unpooling_puts_maxima_back(rng: np.random.Generator) -> None:
    for n, pool, unpool in ((1, F.max_pool1d, F.max_unpool1d), (2, F.max_pool2d, F.max_unpool2d), (3, F.max_pool3d, F.max_unpool3d)):
        x = tensor(rng, 2, 3, *(5,) * n)
        values, places = pool(x, 2, return_indices=True)
        back = unpool(values, places, 2, output_size=x.shape)
        assert back.shape == x.shape and (back != 0).sum() == values.numel()
        np.testing.assert_array_equal(back.numpy()[back.numpy() != 0], x.numpy()[back.numpy() != 0])
        size = places.shape[:2] + (5,) * n
        put_back = lambda v, places=places, unpool=unpool, size=size: unpool(v, places, 2, output_size=size)  # noqa: E731
        assert gradcheck(put_back, (values.detach().requires_grad_(),))
    with pytest.raises(IndexError, match="invalid max index"):
        F.max_unpool1d(calque.ones(1, 1, 1), calque.tensor([[[9]]]), 2)
    with pytest.raises(ValueError, match="output_size"):
        F.max_unpool1d(calque.ones(1, 1, 1), calque.tensor([[[0]]]), 2, output_size=(9,))


def test_fractional_windows_cover_the_image(rng: np.random.Generator) -> None:
    x = tensor(rng, 2, 3, 9, 11)
    values, places = F.fractional_max_pool2d(x, 2, output_size=(4, 5), return_indices=True)
    np.testing.assert_array_equal(at(x, places), values.numpy())
    assert F.fractional_max_pool3d(tensor(rng, 1, 2, 6, 6, 6), 2, output_ratio=0.5).shape == (1, 2, 3, 3, 3)
    fixed = calque.tensor(rng.random((1, 1, 2)))
    small = tensor(rng, 1, 1, 6, 6, grad=True)
    assert gradcheck(lambda x: F.fractional_max_pool2d(x, 2, output_size=3, _random_samples=fixed), (small,))


@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("align_corners", [False, True])
def test_gradients_of_samples(rng: np.random.Generator, mode: str, padding_mode: str, align_corners: bool) -> None:
    image, grid = tensor(rng, 1, 1, 3, 4, grad=True), calque.tensor(rng.uniform(-1.4, 1.4, (1, 2, 1, 2)), requires_grad=True)
    call = lambda i, g: F.grid_sample(i, g, mode, padding_mode, align_corners)  # noqa: E731
    assert gradcheck(call, (image, grid))
    assert align_corners or gradgradcheck(call, (image, grid))


def test_the_identity_grid_gives_the_image_back(rng: np.random.Generator) -> None:
    for shape in ((2, 3, 4, 5), (1, 2, 3, 4, 5)):
        x = tensor(rng, *shape)
        theta = calque.eye(len(shape) - 2, len(shape) - 1, dtype=calque.float64).expand(shape[0], len(shape) - 2, len(shape) - 1)
        for align in (False, True):
            grid = F.affine_grid(theta, shape, align)
            for mode in ("bilinear", "nearest"):
                np.testing.assert_allclose(F.grid_sample(x, grid, mode, "border", align).numpy(), x.numpy(), atol=1e-12)


def brute_force(log_probs: np.ndarray, labels: list[int], blank: int) -> float:
    """-log of the summed probability of all alignments."""
    time, classes = log_probs.shape
    total = -np.inf
    for path in itertools.product(range(classes), repeat=time):
        merged = [c for c, _ in itertools.groupby(path) if c != blank]
        if merged == labels:
            total = np.logaddexp(total, sum(log_probs[t, c] for t, c in enumerate(path)))
    return -total


def test_ctc_is_the_sum_over_alignments(rng: np.random.Generator) -> None:
    scores = tensor(rng, 5, 3, 3, grad=True)
    labels = [[1, 2], [1, 1], []]
    lengths = ([5, 4, 3], [2, 2, 0])
    for blank in (0, 2):
        rows = [[c if c != blank else 0 for c in row] for row in labels]
        table = calque.tensor([[*row, *[0] * (2 - len(row))] for row in rows])
        log_probs = F.log_softmax(scores, -1)
        found = F.ctc_loss(log_probs, table, *lengths, blank=blank, reduction="none")
        expected = [brute_force(log_probs.detach().numpy()[:n, i], rows[i], blank) for i, n in enumerate(lengths[0])]
        np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-10)
        together = calque.tensor([c for row in rows for c in row])
        np.testing.assert_allclose(F.ctc_loss(log_probs, together, *lengths, blank=blank, reduction="none").detach().numpy(), expected, rtol=1e-10)
        assert gradcheck(lambda s, table=table, blank=blank: F.ctc_loss(F.log_softmax(s, -1), table, *lengths, blank=blank), (scores,))


def test_ctc_without_any_alignment() -> None:
    log_probs = calque.zeros(2, 1, 3).log_softmax(-1).requires_grad_()
    hard = F.ctc_loss(log_probs, calque.tensor([[1, 1]]), [2], [2])
    assert hard.item() == float("inf")
    soft = F.ctc_loss(log_probs, calque.tensor([[1, 1]]), [2], [2], zero_infinity=True)
    soft.backward()
    assert soft.item() == 0 and not log_probs.grad.numpy().any()
    with pytest.raises(ValueError, match="blank"):
        F.ctc_loss(log_probs, calque.tensor([[1]]), [2], [1], blank=3)
    with pytest.raises(ValueError, match="input_lengths"):
        F.ctc_loss(log_probs, calque.tensor([[1]]), [3], [1])


def test_multilabel_margin_loss() -> None:
    x, labels = calque.tensor([[0.1, 0.2, 0.4, 0.8], [0.5, 0.1, 0.9, 0.3]]), calque.tensor([[3, 0, -1, 1], [-1, 0, 1, 2]])
    expected = (sum(max(0, 1 - x[0, y].item() + x[0, i].item()) for y in (3, 0) for i in (1, 2)) / 4, 0.0)
    np.testing.assert_allclose(F.multilabel_margin_loss(x, labels, reduction="none").numpy(), expected, rtol=1e-6)
