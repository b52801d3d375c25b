"""Which gradients exist when a hybridized call begins, and what they are like, decides what it does, also if it was recorded when there were none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import calque
from calque import nn
from calque.record import recorder
from tests.hybrid.common import batch, perceptron, replays

Step = Callable[[Any, Any, Any], Any]


def _clears(net: Any, optimizer: Any, x: Any) -> Any:
    loss = net(x).sum()
    optimizer.zero_grad()
    return loss.detach()


def _steps(net: Any, optimizer: Any, x: Any) -> Any:
    loss = net(x).sum()
    optimizer.step()
    return loss.detach()


def _clears_at_the_end(net: Any, optimizer: Any, x: Any) -> Any:
    loss = net(x).sum()
    loss.backward()
    optimizer.step()
    net.zero_grad()
    return loss.detach()


def _looks(net: Any, optimizer: Any, x: Any) -> Any:
    return net(x).detach() * (1 if net[0].weight.grad is None else 2)


def _clips(net: Any, optimizer: Any, x: Any) -> Any:
    nn.utils.clip_grad_norm_(net.parameters(), 0.01)
    return net(x).detach()


def _steps_on_a_branch(net: Any, optimizer: Any, x: Any) -> Any:
    loss = net(x).sum()
    if loss.detach() > 0:
        optimizer.step()
        optimizer.zero_grad()
    return loss.detach()


STEPS: list[Step] = [_clears, _steps, _clears_at_the_end, _looks, _clips, _steps_on_a_branch]


def _given(net: Any, k: int, change: str) -> None:
    """Give the weights gradients before some of the calls."""
    if k % 7 != 5:
        return
    weight = net[0].weight
    if change == "a backward pass":
        net(batch(k)).mean().backward()
    elif change == "transposed":
        weight.grad = batch(k, 6).t()
    elif change == "the value itself":
        weight.grad = weight.detach()
    elif change == "of a frozen weight":
        weight.requires_grad_(False)
        weight.grad = calque.ones_like(weight)
    else:
        weight.grad = batch(k, 6).requires_grad_(True)


CHANGES = ["a backward pass", "transposed", "the value itself", "of a frozen weight", "with a gradient"]


def _run(step: Step, change: str, hybrid: bool) -> list[Any]:
    calque.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)) if change != "a backward pass" else perceptron()
    optimizer = calque.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)

    def function(x: Any) -> Any:
        return step(net, optimizer, x)

    call = calque.compile(function) if hybrid else function
    found = []
    for k in range(20):
        if k < 12 or k % 3:  # in between one kind of call follows the other
            _given(net, k, change)
        found.append(call(batch(k)).tolist())
        found.append([None if p.grad is None else p.grad.tolist() for p in net.parameters()])
    return [*found, [p.tolist() for p in net.parameters()]]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__.strip("_"))
def test_gradients_from_outside(step: Step, change: str) -> None:
    assert _run(step, change, True) == _run(step, change, False)


def test_calls_that_do_not_look_at_gradients_are_replayed_whichever_exist() -> None:
    """The forward pass of a training loop finds other gradients at every call."""
    net = perceptron()
    net.hybridize()

    def call(k: int) -> None:
        net[k % 2 * 2].weight.grad = calque.ones_like(net[k % 2 * 2].weight) if k % 3 else None
        recorder.flush("test")
        net(batch(k)).tolist()

    for k in range(4):
        call(k)
    assert replays(lambda: [call(k) for k in range(4, 12)]) == 8
