"""Gradients of an export are those of its function also where derivatives have sides and ties are broken; what a program cannot say is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import calque
from calque import nn
from calque.base.errors import AutogradError
from calque.nn import functional as F

POINTS = calque.tensor([0.0, -0.0, -1.0, 1.0, 3.0, -3.0, 6.0, 0.5, -0.5, 100.0, -100.0])
TOKENS = calque.tensor([[1, 2, 1], [0, 2, 2]])
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    name: getattr(F, name)
    for name in ("relu", "relu6", "leaky_relu", "elu", "celu", "selu", "logsigmoid", "softplus", "hardtanh", "hardswish", "hardsigmoid", "gelu",
                 "silu", "mish", "softsign", "tanhshrink")
} | {
    "abs": calque.abs, "clamp": lambda x: x.clamp(-1, 3), "max": lambda x: x.clamp(0, 1).max(), "amax": lambda x: x.clamp(0, 1).amax(),
    "norm": lambda x: (x * 0).norm(), "smooth_l1": lambda x: F.smooth_l1_loss(x, x * 0), "huber": lambda x: F.huber_loss(x, x * 0),
}  # fmt: skip


def gradient(function: Callable[[Any], Any], x: Any) -> Any:
    leaf = x.detach().clone().requires_grad_()
    out = function(leaf)
    out.backward(calque.linspace(1, 2, out.numel()).reshape(out.shape))
    return leaf.grad


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_where_derivatives_have_sides(name: str) -> None:
    exported = calque.export(FUNCTIONS[name], POINTS.clone().requires_grad_())
    assert calque.allclose(gradient(exported, POINTS), gradient(FUNCTIONS[name], POINTS), equal_nan=True)


def test_the_row_of_padding_has_no_gradient() -> None:
    calque.manual_seed(0)
    model = nn.Sequential(nn.Embedding(4, 3, padding_idx=2), nn.Linear(3, 2))
    with calque.no_grad():
        model[0].weight[2] = 5.0  # an export reads the row as it is
    exported = calque.export(model, TOKENS, {"input": {0: "batch"}})
    assert calque.equal(exported(TOKENS), model(TOKENS))
    for one in (model, exported):
        one(TOKENS).square().sum().backward()
    for mine, wanted in zip(exported.parameters(), model.parameters(), strict=True):
        assert calque.allclose(mine.grad, wanted.grad) and wanted.grad.any()
    assert not exported.get_parameter("0.weight").grad[2].any()


def test_gradients_divided_by_how_often_a_row_is_used_are_refused() -> None:
    exported = calque.export(nn.Embedding(4, 3, scale_grad_by_freq=True), TOKENS)
    with pytest.raises(AutogradError, match="lets gradients pass where they are not those of its operations"):
        exported(TOKENS).sum().backward()


class Hooked(nn.Module):
    """A layer; `kind`: of its hooks."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.layer = kind, nn.Linear(3, 3)
        if kind == "module":
            self.layer.register_full_backward_hook(lambda module, before, after: (before[0] * 5,))
        if kind == "parameter":
            self.layer.weight.register_hook(lambda g: g * 5)

    def forward(self, x: Any) -> Any:
        y = self.layer(x)
        if self.kind == "value":
            y.register_hook(lambda g: g * 0.1)
        return y.tanh()


@pytest.mark.parametrize("kind", ["value", "module", "parameter"])
def test_hooks_are_not_dropped_silently(kind: str) -> None:
    model, x = Hooked(kind), calque.ones(2, 3, requires_grad=True)
    exported = calque.export(model, x)
    assert calque.equal(exported(x), model(x))
    said = "has a hook on a parameter" if kind == "parameter" else r"runs a hook in its backward pass, at .*test_grad"
    with pytest.raises(AutogradError, match=said):
        exported(x).sum().backward()
    plain = calque.export(Hooked(""), x)
    plain(x).sum().backward()
    assert x.grad is not None


def test_cells_of_one_step() -> None:
    """They are read as a whole, not through a view of the last: that was refused as something that is no tensor."""
    layer = calque.nn.LSTM(3, 4)
    exported = calque.export(lambda x: layer(x)[1][1].clone(), calque.ones(1, 2, 3))
    x = calque.randn(1, 2, 3, requires_grad=True)
    found, wanted = exported(x), layer(x)[1][1]
    assert calque.allclose(found, wanted)
    assert calque.allclose(*(calque.autograd.grad(y.sum(), x)[0] for y in (found, wanted)))
