"""Hybridized layers that record next to nothing: as quick as written."""

from __future__ import annotations

from typing import Any

import pytest

import calque
from calque import nn
from calque.base.errors import AutogradError
from calque.record import recorder
from tests.hybrid.common import batch, counts, perceptron, replays, same


def test_a_layer_that_records_next_to_nothing_runs_as_written() -> None:
    layer = nn.ReLU().hybridize()

    def call() -> None:
        recorder.flush("test")
        same(layer(batch(0)), batch(0).relu())

    for _ in range(4):
        call()
    before = counts()["recordings"]
    assert replays(call) == 0 and counts()["recordings"] == before
    reason = "records so little that it is quicker as written"
    before = counts()["reasons"][reason]
    call()
    assert counts()["reasons"][reason] == before + 1


@pytest.mark.parametrize("make", [lambda: nn.Linear(6, 6), lambda: nn.Dropout(0.5), lambda: nn.LayerNorm(6)])
def test_other_layers_are_replayed(make: Any) -> None:
    layer = make().hybridize()
    for k in range(4):
        recorder.flush("test")
        layer(batch(k))
    recorder.flush("test")
    assert replays(lambda: layer(batch(9))) == 1


def test_a_layer_that_must_be_replayed_is() -> None:
    layer = nn.ReLU().hybridize(fullgraph=True)
    for k in range(4):
        recorder.flush("test")
        layer(batch(k))
    recorder.flush("test")
    assert replays(lambda: layer(batch(9))) == 1


def test_functions_of_the_user_are_replayed_however_short() -> None:
    class Twice(nn.Module):
        def forward(self, x: Any) -> Any:
            return x * 2.0

    layer = Twice().hybridize()
    for k in range(4):
        recorder.flush("test")
        layer(batch(k))
    recorder.flush("test")
    assert replays(lambda: layer(batch(9))) == 1


def test_the_line_of_a_call_is_known_when_its_gradient_fails() -> None:
    net = perceptron().hybridize()
    for k in range(6):
        recorder.flush("test")
        result = net(batch(k)).sum()
        result.backward()
    loss = net(batch(0))
    with calque.no_grad():
        net[2].weight.mul_(0.5)
    with pytest.raises(AutogradError, match=r"\[backward\] a hybridized call \(.*test_small_parts.py:\d+\) needs a value of shape"):
        loss.sum().backward()
