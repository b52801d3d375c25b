"""What averaged models promise without PyTorch: means that are means, an independent copy, settings that come back after an error."""

from __future__ import annotations

from typing import Any

import pytest

import calque
from calque import nn
from calque.optim import SGD, swa_utils


def test_the_mean_of_all_updates_and_nothing_shared() -> None:
    layer = nn.Linear(1, 1, bias=False)
    average = swa_utils.AveragedModel(layer)
    for k in range(1, 6):
        layer.weight.data.fill_(float(k * k))
        average.update_parameters(layer)
    assert average.module.weight.item() == pytest.approx(55 / 5)
    assert average.n_averaged.item() == 5
    layer.weight.data.fill_(100.0)
    assert average(calque.ones(1, 1)).item() == pytest.approx(11.0)


def test_averaging_adds_no_programs_with_time() -> None:
    """The count is a value, not part of a program: later updates find the programs of the first ones."""
    net = nn.Linear(3, 2)
    average, optimizer = swa_utils.AveragedModel(net, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9)), SGD(net.parameters(), 0.1)
    counts = []
    for _ in range(10):
        optimizer.zero_grad()
        net(calque.ones(2, 3)).square().mean().backward()
        optimizer.step()
        average.update_parameters(net)
        counts.append(calque.stats()["programs"])
    assert len(set(counts[4:])) == 1


def test_an_error_in_a_batch_gives_the_momenta_back() -> None:
    net = nn.BatchNorm1d(2, momentum=0.3).eval()

    def batches() -> Any:
        yield calque.ones(3, 2)
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        swa_utils.update_bn(batches(), net)
    assert (net.momentum, net.training) == (0.3, False)
