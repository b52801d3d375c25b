"""Averaged models and their schedule as PyTorch's."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import calque  # noqa: E402
from tests.oracle.nn_harness import close  # noqa: E402

pytestmark = pytest.mark.oracle


def model(T: Any) -> Any:
    net = T.nn.Sequential(T.nn.Linear(3, 4), T.nn.BatchNorm1d(4), T.nn.Linear(4, 2)).double()
    rng = np.random.default_rng(0)
    with T.no_grad():
        for p in net.parameters():
            p.copy_(T.tensor(rng.normal(size=tuple(p.shape))))
    return net


WAYS: dict[str, Any] = {
    "mean": lambda S: {},
    "mean with buffers": lambda S: {"use_buffers": True},
    "ema": lambda S: {"multi_avg_fn": S.get_ema_multi_avg_fn(0.7)},
    "ema with buffers": lambda S: {"multi_avg_fn": S.get_ema_multi_avg_fn(0.7), "use_buffers": True},
    "ema one by one": lambda S: {"avg_fn": S.get_ema_avg_fn(0.7)},
    "mean one by one": lambda S: {"avg_fn": S.get_swa_avg_fn()},
    "mean of lists": lambda S: {"multi_avg_fn": S.get_swa_multi_avg_fn()},
    "own": lambda S: {"avg_fn": lambda mean, p, n: mean * 0.5 + p * n},
}


@pytest.mark.parametrize("way", WAYS)
def test_averages(way: str) -> None:
    sides = []
    for T in (calque, torch):
        net = model(T)
        average = T.optim.swa_utils.AveragedModel(net, **WAYS[way](T.optim.swa_utils))
        optimizer = T.optim.SGD(net.parameters(), lr=0.1)
        rng = np.random.default_rng(1)
        for _ in range(4):
            optimizer.zero_grad()
            net(T.tensor(rng.normal(size=(5, 3)))).square().mean().backward()
            optimizer.step()
            average.update_parameters(net)
        copy = T.optim.swa_utils.AveragedModel(net, **WAYS[way](T.optim.swa_utils))
        copy.load_state_dict(average.state_dict())
        copy.update_parameters(net)
        sides.append((average.state_dict(), copy.state_dict(), average(T.ones(2, 3, dtype=T.float64))))
    for k in (0, 1):
        assert list(sides[0][k]) == list(sides[1][k])
        for name, value in sides[1][k].items():
            close(sides[0][k][name], value, name, 1e-6)  # PyTorch takes 1 / n in float32
    close(sides[0][2], sides[1][2], tolerance=1e-5)


def test_statistics_anew() -> None:
    found = []
    for T in (calque, torch):
        net = model(T).eval()
        rng = np.random.default_rng(2)
        batches = [[T.tensor(rng.normal(size=(4, 3))), None] for _ in range(3)]
        T.optim.swa_utils.update_bn(batches, net)
        found.append(dict(net.named_buffers()))
        assert (net.training, net[1].momentum) == (False, 0.1)
    for name, value in found[1].items():
        close(found[0][name], value, name)


@pytest.mark.parametrize("options", [{}, {"anneal_strategy": "linear", "anneal_epochs": 4}, {"anneal_epochs": 0}, {"swa_lr": [0.3, 0.01]}], ids=str)
def test_rates(options: dict[str, Any]) -> None:
    found = []
    for T in (calque, torch):
        optimizer = T.optim.SGD([{"params": [T.ones(1).requires_grad_()]}, {"params": [T.ones(1).requires_grad_()], "lr": 0.5}], lr=0.1)
        schedule = T.optim.swa_utils.SWALR(optimizer, **{"swa_lr": 0.05, **options})
        rates = [schedule.get_last_lr()]
        for step in range(14):
            optimizer.step()
            schedule.step()
            rates.append(schedule.get_last_lr())
            if step == 6:
                saved = schedule.state_dict()
                schedule = T.optim.swa_utils.SWALR(optimizer, **{"swa_lr": 0.05, **options})
                schedule.load_state_dict(saved)
        found.append(rates)
    assert found[0] == found[1]


def test_arguments_and_refusals() -> None:
    for name in ("AveragedModel", "SWALR", "update_bn", "get_ema_avg_fn"):
        mine, reference = (list(inspect.signature(getattr(T.optim.swa_utils, name)).parameters) for T in (calque, torch))
        assert mine == reference
    for T in (calque, torch):
        S, optimizer = T.optim.swa_utils, T.optim.SGD([T.ones(1).requires_grad_()], lr=0.1)
        with pytest.raises(ValueError, match="Invalid decay value"):
            S.get_ema_multi_avg_fn(1.5)
        with pytest.raises(ValueError, match="anneal_strategy must be one of"):
            S.SWALR(optimizer, 0.1, anneal_strategy="square")
        with pytest.raises(ValueError, match="anneal_epochs must be"):
            S.SWALR(optimizer, 0.1, anneal_epochs=-1)
        with pytest.raises((AssertionError, ValueError), match="Only one of"):
            S.AveragedModel(model(T), avg_fn=S.get_swa_avg_fn(), multi_avg_fn=S.get_swa_multi_avg_fn())
