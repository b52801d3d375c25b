"""Lazy layers whose first call is inside a transform, is planned, or fails."""

from __future__ import annotations

from typing import Any

import pytest

import calque
from calque import nn
from calque.base.errors import ArgumentError, MemoryPlanError
from calque.nn.parameter import is_lazy


def model() -> Any:
    return nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyBatchNorm1d(track_running_stats=False), nn.LazyLinear(3))


@pytest.mark.parametrize("randomness", ["error", "same", "different"])
def test_vmap(randomness: str) -> None:
    """Initial values are drawn once, for all slices: they were zeros after the error of the first call, or values of one slice."""
    layers, x = model(), calque.randn(2, 4, 5)
    found = calque.vmap(layers, randomness=randomness)(x)
    assert calque.allclose(found, calque.stack([layers(row) for row in x]), atol=1e-6)
    assert all(p.abs().sum().item() > 0 for p in (layers[0].weight, layers[0].bias, layers[3].weight)) and type(layers[0]) is nn.Linear
    layers(x[0]).sum().backward()
    assert layers[0].weight.grad.shape == (8, 5)


def test_other_transforms() -> None:
    for call in (lambda f, x: calque.func.grad(lambda x: f(x).sum())(x), lambda f, x: calque.func.jvp(f, (x,), (x,))[0]):
        layers = model()
        call(layers, calque.randn(4, 5))
        assert not any(map(is_lazy, layers.parameters())) and layers[0].weight.abs().sum().item() > 0


def test_plans_say_what_to_do() -> None:
    layers = model()
    for step in (layers, lambda x: layers(x).sum().backward()):
        with pytest.raises(MemoryPlanError, match=r"gets its shape in the first call of its layer.*call the model once before"):
            calque.memory.plan(step, calque.ones(4, 5))
    assert layers(calque.ones(4, 5)).shape == (4, 3)
    assert calque.memory.plan(layers, calque.ones(4, 5)).peak > 0


def test_a_failed_first_call_leaves_the_layer_lazy() -> None:
    class Fussy(nn.modules.lazy.LazyModuleMixin, nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.UninitializedParameter()

        def initialize_parameters(self, x: Any) -> None:
            self.weight.materialize((x.shape[-1],))
            self.width = x.shape[-1]
            if x.shape[0] > 3:
                raise ArgumentError("too many")
            nn.init.ones_(self.weight)

        def forward(self, x: Any) -> Any:
            return x * self.weight

    layer = Fussy()
    with pytest.raises(ArgumentError, match="too many"):
        layer(calque.ones(4, 2))
    assert layer.has_uninitialized_params() and not hasattr(layer, "width")
    assert layer(calque.ones(2, 5)).tolist() == [[1.0] * 5] * 2
