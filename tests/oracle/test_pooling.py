"""Pooling beside PyTorch: values and gradients over kernels, strides, paddings and both roundings of the size."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import calque

torch = pytest.importorskip("torch")

KERNELS = ((2, 2), (3, 3), (3, 2), (1, 3), (5, 4), (4, 4))
STRIDES = ((1, 1), (2, 2), (2, 1), (3, 3), (2, 3))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("stride", STRIDES)
def test_max_and_average(kernel: tuple[int, int], stride: tuple[int, int]) -> None:
    rng = np.random.default_rng(sum(kernel) + 7 * sum(stride))
    for padding, ceil, shape in itertools.product((0, 1), (False, True), ((2, 3, 9, 11), (1, 2, 8, 8))):
        if 2 * padding > min(kernel):
            continue
        x = rng.integers(-5, 5, shape).astype(np.float32) if ceil else rng.standard_normal(shape, np.float32)
        for name in ("max_pool2d", "avg_pool2d"):
            a, b = torch.tensor(x, requires_grad=True), calque.tensor(x, requires_grad=True)
            want = getattr(torch.nn.functional, name)(a, kernel, stride, padding, ceil_mode=ceil)
            got = getattr(calque.nn.functional, name)(b, kernel, stride, padding, ceil_mode=ceil)
            g = rng.standard_normal(tuple(want.shape), np.float32)
            want.backward(torch.tensor(g))
            got.backward(calque.tensor(g))
            np.testing.assert_allclose(got.detach().numpy(), want.detach().numpy(), rtol=1e-6, atol=1e-6)
            if name == "max_pool2d":  # ties, and the order in which windows are summed, are PyTorch's
                np.testing.assert_array_equal(b.grad.numpy(), a.grad.numpy())
            else:
                np.testing.assert_allclose(b.grad.numpy(), a.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_second_derivative_of_overlapping_windows() -> None:
    x = np.random.default_rng(0).standard_normal((1, 2, 7, 7), np.float32)
    grads = []
    for T in (torch, calque):
        leaf = T.tensor(x, requires_grad=True)
        y = T.nn.functional.max_pool2d(leaf * leaf, 3, 2, 1) + T.nn.functional.avg_pool2d(leaf * leaf * leaf, 3, 2, 1)
        (first,) = T.autograd.grad((y * y).sum(), leaf, create_graph=True)
        (second,) = T.autograd.grad((first * first).sum(), leaf)
        grads.append(second.numpy())
    np.testing.assert_allclose(grads[1], grads[0], rtol=1e-3, atol=1e-3)
