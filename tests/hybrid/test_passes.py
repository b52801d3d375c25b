"""Backward passes through hybridized calls are recorded again as a whole: the same edges, programs, gradients and errors as when they are walked."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn
from calque.base.config import settings
from calque.base.errors import AutogradError
from calque.record import recorder
from calque.replay.stretches import StretchCounts
from tests.autograd.both_ways import compare, fresh  # noqa: F401
from tests.hybrid.common import batch, perceptron

F = nn.functional


class Two(nn.Module):
    """Two results, one of which may go unused, from a layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)

    def forward(self, x: Any, scale: float = 1.0) -> Any:
        y = self.norm(self.layer(x)) * scale
        return self.layer(y[:, 1:4].repeat(1, 2)).tanh(), y.t()


def square() -> Any:
    return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)).hybridize()


def _several_times(k: int, net: Any, x: Any) -> None:
    for _ in range(3):
        x = x + net(x)
    x.pow(2).mean().backward()


def _micro_batches(k: int, net: Any, x: Any) -> None:
    for rows in (2, 4, 3):
        (net(x[:rows]).pow(2).mean() / 3).backward()


def _twice(k: int, net: Any, x: Any) -> None:
    loss = net(x).exp().mean()
    loss.backward(retain_graph=True)
    (loss * 0.5 + net(x).mean()).backward()


def _input_too(k: int, net: Any, x: Any) -> None:
    """The gradient of the input is made while those of the parameters are added to."""
    x = x.requires_grad_()
    net(x).sum().backward()
    net(x.detach().requires_grad_()).sum().backward()
    net(x).mean().backward()


def _given(k: int, net: Any, x: Any) -> None:
    first = calque.autograd.grad(net(x).pow(2).mean(), list(net.parameters()))
    calque.autograd.backward([net(x), net(x * 0.5)], [calque.ones(4, 6), calque.ones(4, 6)])
    for p, g in zip(net.parameters(), first, strict=True):
        assert p.grad is not None
        p.grad = p.grad + g


def _frozen(k: int, net: Any, x: Any) -> None:
    net[0].requires_grad_(k % 4 < 2)
    net(net(x)).sum().backward()


@pytest.mark.parametrize("use", [_several_times, _micro_batches, _twice, _input_too, _given, _frozen], ids=lambda f: f.__name__.strip("_"))
def test_passes_are_those_that_are_walked(use: Callable[[int, Any, Any], None]) -> None:
    def run() -> list[np.ndarray]:
        calque.manual_seed(0)
        net = square()
        optimizer = calque.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        found = []
        for k in range(24):
            optimizer.zero_grad(set_to_none=k % 8 < 5)
            use(k, net, batch(k))
            optimizer.step()
            if k % 5 == 4:
                found += [p.grad.numpy().copy() for p in net.parameters() if p.grad is not None]
        return [*found, *(p.detach().numpy().copy() for p in net.parameters())]

    compare(run, 8)


def test_several_results_and_statistics() -> None:
    def run() -> list[np.ndarray]:
        calque.manual_seed(0)
        net = Two().hybridize()
        optimizer = calque.optim.Adam(net.parameters(), lr=0.01)
        for k in range(24):
            optimizer.zero_grad()
            first, second = net(batch(k), scale=0.7)
            other, _ = net(first * 2.0)
            (first.mean() + other.mean() if k % 2 else second.exp().mean() + other.sum()).backward()
            optimizer.step()
        return [v.numpy().copy() for v in net.state_dict().values()]

    compare(run, 12)


def test_what_a_pass_records_depends_on_its_facts_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every replay is walked instead and compared with the recording."""
    monkeypatch.setattr(settings, "verify", True)
    calque.manual_seed(0)
    net, two = square(), Two().hybridize()
    optimizer = calque.optim.SGD([*net.parameters(), *two.parameters()], lr=0.1)
    before = StretchCounts.recordings
    for k in range(9):
        optimizer.zero_grad(set_to_none=k % 4 < 3)
        x = batch(k, 3 + k % 2)
        first, second = two(net(x) + x)
        (net(first).mean() + second.sum() if k % 3 else F.mse_loss(net(first), x)).backward()
        optimizer.step()
    assert StretchCounts.recordings > before


def test_a_value_that_was_overwritten_is_refused_by_name() -> None:
    net = perceptron().hybridize()
    for k in range(8):
        loss = net(batch(k)).sum()
        if k % 4 == 3:
            with calque.no_grad():
                net[2].weight.mul_(0.5)
            with pytest.raises(AutogradError, match="modified by an inplace operation: mul"):
                loss.backward()
        else:
            loss.backward()


def test_a_replayed_pass_spends_the_graph() -> None:
    net = perceptron().hybridize()
    for k in range(8):
        loss = net(batch(k)).pow(2).sum()
        loss.backward()
        with pytest.raises(AutogradError, match="backward through the graph a second time"):
            loss.backward()


def test_hooks_of_parameters_run() -> None:
    net, seen = perceptron().hybridize(), []
    for k in range(8):
        if k == 5:
            net[0].weight.register_hook(lambda g: seen.append(1))
        net(batch(k)).pow(2).sum().backward()
    assert len(seen) == 3


def test_what_was_recorded_keeps_no_module_alive() -> None:
    net = perceptron().hybridize()
    for k in range(8):
        recorder.flush("test")
        net(batch(k)).pow(2).sum().backward()
    weight = weakref.ref(net[0].weight)
    del net
    gc.collect()
    assert weight() is None
