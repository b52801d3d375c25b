"""Gradients of what a hybridized call uses several times are added in the order of the call as written, also to what came from elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import calque
from calque import nn
from calque.base import config
from tests.hybrid.common import batch

Loss = Callable[[Any, Any], Any]


class Tied(nn.Module):
    """Uses its weight and its input three times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)

    def forward(self, x: Any) -> Any:
        inner = self.layer(x).tanh() * x
        return self.norm(self.layer(inner) + x) / self.layer.weight.norm()


def _penalty(net: Any, x: Any) -> Any:
    return net(x).abs().mean() + 0.01 * sum(p.pow(2).sum() for p in net.parameters())


def _penalty_first(net: Any, x: Any) -> Any:
    penalty = 0.01 * sum(p.pow(2).sum() for p in net.parameters())
    return net(x).abs().mean() + penalty


def _two_calls(net: Any, x: Any) -> Any:
    return (net(x) * net(x.flip(0)).sigmoid()).mean()


def _one_after_the_other(net: Any, x: Any) -> Any:
    return net(net(x) * 0.5).pow(2).mean()


def _input_used_again(net: Any, x: Any) -> Any:
    inner = x * net.layer.bias
    return (net(inner) * inner.sigmoid() + inner).mean()


def _run(loss: Loss, hybrid: bool) -> tuple[list[Any], int]:
    calque.manual_seed(0)
    net = Tied()
    if hybrid:
        net.hybridize()
    optimizer = calque.optim.SGD(net.parameters(), lr=0.05)
    before = calque.stats()["hybridize"]["replays"]
    found = []
    for k in range(16):
        x = batch(k, 5).requires_grad_(k >= 8)
        optimizer.zero_grad()
        loss(net, x).backward()
        optimizer.step()
        found.append([[p.tolist(), p.grad.tolist()] for p in net.parameters()])
        found.append(None if x.grad is None else x.grad.tolist())
    return found, calque.stats()["hybridize"]["replays"] - before


CASES = [_penalty, _penalty_first, _input_used_again, _two_calls, _one_after_the_other]


@pytest.mark.parametrize("backend", ["cpu", "ref"])
@pytest.mark.parametrize("loss", CASES, ids=[loss.__name__.strip("_") for loss in CASES])
def test_bits_of_gradients(loss: Loss, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config.settings, "backend", backend)
    expected, _ = _run(loss, False)
    found, replays = _run(loss, True)
    assert found == expected
    assert replays >= 8
