"""Summaries of models and of memory, and where values that are not finite come from."""

from __future__ import annotations

import re
from typing import Any

import pytest

import calque
from calque import nn
from calque.memory import (
    empty_cache,
    max_memory_allocated,
    memory_allocated,
    memory_reserved,
    memory_summary,
    nan_origin,
    reset_peak_memory_stats,
    summary,
)  # fmt: skip
from calque.vision.models import resnet18

F = nn.functional


class Two(nn.Module):
    """Two inputs, operations of its own, a layer that is used twice, and one of two layers frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.last = nn.Linear(100, 100), nn.Bilinear(100, 20, 5)
        self.last.weight.requires_grad_(False)

    def forward(self, x: Any, y: Any, *, scale: float) -> Any:
        h = F.gelu(self.shared(self.shared(x))) * scale
        return self.last(h, y), {"h": h}


def test_a_summary() -> None:
    model = Two()
    found = summary(model, calque.ones(32, 100), calque.ones(32, 20), scale=2.0)
    layers = {layer.name: layer for layer in found.layers}
    assert (found.parameters, found.trainable, found.parameter_bytes) == (20_105, 10_105, 4 * 20_105)
    assert layers["shared"].calls == 2 and layers["shared"].shapes == [(32, 100)] * 2 and layers[""].shapes == [(32, 5), (32, 100)]
    assert layers["shared"].flops == pytest.approx(2 * 2 * 32 * 100 * 100, rel=0.02)
    assert layers[""].flops > 0 and found.flops == sum(layer.flops for layer in found.layers)
    text = str(found)
    assert "shared (Linear) x 2" in text and "10,005 (5 learn)" in text and "20,105 parameters (10,105 learn" in text
    model(calque.ones(32, 100), calque.ones(32, 20), scale=2.0)
    assert layers["shared"].calls == 2  # no hook is left
    with pytest.raises(TypeError, match="expected a Module and its inputs"):
        summary(lambda x: x, calque.ones(1))
    with pytest.raises(ValueError, match="Linear"):
        summary(model, calque.ones(32, 7), calque.ones(32, 20), scale=2.0)
    model(calque.ones(32, 100), calque.ones(32, 20), scale=2.0)
    assert layers["shared"].calls == 2


def test_operations_of_a_known_model() -> None:
    model = resnet18().train()
    before = {name: value.tolist() for name, value in model.named_buffers() if "running" in name}
    found = summary(model, calque.ones(1, 3, 224, 224))
    assert found.parameters == 11_689_512
    assert found.flops == pytest.approx(2 * 1.814e9, rel=0.02)  # multiply-adds as torchvision states them
    assert {name: value.tolist() for name, value in model.named_buffers() if "running" in name} == before


def test_figures_of_memory_after_each_step() -> None:
    """Ten large tensors, del, empty_cache: what is in use and what is kept says so each time."""
    empty_cache()
    start, size = memory_allocated(), 4 * 2_000_000
    tensors = [calque.randn(200_000, 10) for _ in range(10)]
    assert memory_allocated() - start == pytest.approx(10 * size, rel=0.02)
    assert "`tensors`: 10 tensors" in memory_summary()
    reset_peak_memory_stats()
    del tensors
    assert memory_allocated() - start < size and memory_reserved() - start == pytest.approx(10 * size, rel=0.02)
    assert max_memory_allocated() - start == pytest.approx(10 * size, rel=0.02)
    assert empty_cache() == pytest.approx(10 * size, rel=0.02)
    assert memory_reserved() - start < size


def test_graphs_are_shown() -> None:
    x = calque.ones(50, requires_grad=True)
    total = (x * 2).exp().sum()
    assert "`total`: [], with graphs of" in memory_summary(rows=1000)
    assert total.item() > 0


def test_the_origin_of_a_nan() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = calque.optim.Adam(model.parameters())
    weight = model[0].weight.tolist()

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = (model(x) - 100).log().mean()
        loss.backward()
        optimizer.step()
        return loss

    error = nan_origin(step, calque.ones(5, 3))
    text = str(error)
    assert text.startswith("[log] expected finite values") and "test_summary.py" in text and re.search(r"operand 0: shape \(5, 1\), min -\d+", text)
    assert model[0].weight.tolist() == weight and not optimizer.state and model[0].weight.grad is None
    assert nan_origin(lambda x: model(x).sum(), calque.ones(5, 3)) is None

    def fine(x: Any) -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    assert nan_origin(fine, calque.ones(5, 3)) is None
    assert model[0].weight.tolist() == weight and not optimizer.state
    fine(calque.ones(5, 3))
    assert model[0].weight.tolist() != weight
