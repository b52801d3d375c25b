"""Rounding to quantised values and its gradient are PyTorch's, in every type and form of the arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import calque

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("kind", ["float32", "float64", "float16", "bfloat16"])
def test_values_and_gradients_are_pytorchs(kind: str, rng: np.random.Generator) -> None:
    data = np.concatenate([rng.normal(size=54) * 20, [0.0, 0.25, -0.25, np.nan, np.inf, -np.inf]]).astype(np.float32).reshape(4, 5, 3)
    scales, zeros = rng.uniform(0.01, 0.5, 5).astype(np.float32), rng.integers(-8, 7, 5).astype(np.int32)
    calls: list[Any] = [
        lambda t, x: t.fake_quantize_per_tensor_affine(x, 0.25, 3, -8, 7),
        lambda t, x: t.fake_quantize_per_tensor_affine(x, t.tensor(0.1), t.tensor(-2, dtype=t.int32), -128, 127),
        lambda t, x: t.fake_quantize_per_channel_affine(x, t.tensor(scales), t.tensor(zeros), 1, -8, 7),
        lambda t, x: t.fake_quantize_per_channel_affine(x, t.tensor(scales[:3]), t.tensor((zeros[:3] + 0.25).astype(np.float32)), 2, -8, 8),
    ]
    for k, call in enumerate(calls):
        results = []
        if k == 2:  # per channel PyTorch converts an infinity to int64, which C leaves open: here it is beyond every value
            data[np.isinf(data)] = 0
        for t in (calque, torch):
            x = t.tensor(data.tolist()).to(getattr(t, kind)).requires_grad_()
            y = call(t, x)
            y.sum().backward()
            assert str(y.dtype) == f"torch.{kind}"
            results.append([v.detach().to(t.float64).numpy() for v in (y, x.grad)])
        for ours, theirs in zip(*results, strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("fake_quantize_per_tensor_affine", (0.1, 0, 5, 3)),
        ("fake_quantize_per_tensor_affine", (0.1, 300, 0, 255)),
        ("fake_quantize_per_channel_affine", ([1.0] * 3, [0] * 3, 1, 0, 255)),
        ("fake_quantize_per_channel_affine", ([1.0] * 2, [300] * 2, 1, 0, 255)),
        ("fake_quantize_per_channel_affine", ([1.0] * 2, [0] * 2, 2, 0, 255)),
        ("fake_quantize_per_channel_affine", ([1] * 2, [0] * 2, 1, 0, 255)),
        ("fake_quantize_per_channel_affine", ([1.0] * 2, [0] * 2, 1, 3, 2)),
    ],
)  # fmt: skip
def test_what_pytorch_refuses_is_refused(name: str, arguments: tuple[Any, ...]) -> None:
    kinds = []
    for t in (calque, torch):
        scale, zero, *rest = arguments
        if isinstance(scale, list):
            scale, zero = t.tensor(scale), t.tensor(zero, dtype=t.int32)
        with pytest.raises((RuntimeError, IndexError)) as caught:
            getattr(t, name)(t.ones(2, 2), scale, zero, *rest)
        kinds.append(isinstance(caught.value, IndexError))
    assert kinds[0] == kinds[1]
