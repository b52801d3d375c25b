"""`autograd.grad` that is recorded again without walking the graph does what the walk does: the same edges, programs, gradients and spent nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn
from calque.base.errors import AutogradError
from calque.record import recorder
from calque.replay.stretches import StretchCounts
from tests.autograd.both_ways import compare, fresh  # noqa: F401

F = nn.functional
STEPS = 9


def leaf(k: int, *shape: int) -> Any:
    return calque.tensor(np.random.default_rng(k).normal(size=shape).astype(np.float32)).requires_grad_()


def norm(k: int) -> Any:
    x, w, b, g = leaf(k, 4, 6), leaf(1, 6), leaf(2, 6), leaf(k + 9, 4, 6).detach()
    return calque.autograd.grad(F.layer_norm(x, (6,), w, b), (x, w, b), g)


def softmax(k: int) -> Any:
    x, g = leaf(k, 4, 6), leaf(k + 9, 4, 6).detach()
    y = calque.softmax(x, -1)
    return (*calque.autograd.grad(y, x, g, retain_graph=True), *calque.autograd.grad(y, x, 2 * g))


def several(k: int) -> Any:
    x, w = leaf(k, 4, 6), leaf(1, 6, 3)
    y = (x @ w).tanh()
    return calque.autograd.grad([y.sum(), (y * y).mean()], [w, x])


def some(k: int) -> Any:
    x, w, b = leaf(k, 4, 6), leaf(1, 6, 3), leaf(2, 3)
    return calque.autograd.grad(((x @ w + b) ** 2).sum(), b if k % 2 else w)


def transposed(k: int) -> Any:
    x, w = leaf(k, 4, 6), leaf(1, 6, 3)
    return calque.autograd.grad((F.linear(x, w.t()) ** 2).sum(), (w, x))


def views(k: int) -> Any:
    x = leaf(k, 4, 6)
    (g,) = calque.autograd.grad((x.t()[1:3] * 0.3).exp().sum(), x)
    return g, g.t() + 1, g.t() * 2


def unused(k: int) -> Any:
    x, w = leaf(k, 4, 6), leaf(1, 6)
    first, second = calque.autograd.grad((x * x).sum(), (x, w), allow_unused=True)
    assert second is None
    zeros = calque.autograd.grad((x * x).sum(), (x, w), materialize_grads=True)[1]
    return first, zeros


def twice(k: int) -> Any:
    x = leaf(k, 4, 6)
    return calque.autograd.grad(x.exp().sum(), (x, x))


def of_nodes(k: int) -> Any:
    x = leaf(k, 4, 6)
    y = x.exp()
    return calque.autograd.grad((y * y).sum(), (y, x))


def second_order(k: int) -> Any:
    x = leaf(k, 5)
    (g,) = calque.autograd.grad((x**3).sum(), x, create_graph=True)
    return g, *calque.autograd.grad((g * g).sum(), x)


def with_held_gradients(k: int) -> Any:
    x = leaf(k, 4, 6)
    if k % 2:
        x.grad = calque.ones(4, 6)
    found = calque.autograd.grad((x * x).sum(), x)
    assert (x.grad is None) != bool(k % 2)
    return found


def with_hooks(k: int) -> Any:
    x = leaf(k, 4, 6)
    if k % 3 == 2:
        x.register_hook(lambda g: 2 * g)
    return calque.autograd.grad((x * x).sum(), x)


def other_constants(k: int) -> Any:
    x = leaf(k, 4, 6)
    return calque.autograd.grad((x * (0.1 * k)).sin().sum(), x)


def model(k: int) -> Any:
    calque.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    x = leaf(k, 4, 6)
    return calque.autograd.grad(F.cross_entropy(net(x), calque.tensor([0, 1, 2, 1])), [*net.parameters(), x], retain_graph=k % 2 == 0)


OFTEN: tuple[Callable[[int], Any], ...] = (norm, softmax, several, some, transposed, views, with_held_gradients)
SELDOM = (other_constants, unused, twice, of_nodes, second_order, with_hooks, model)


@pytest.mark.parametrize(("call", "least"), [(f, STEPS - 5) for f in OFTEN] + [(f, 0) for f in SELDOM])
def test_both_ways_are_the_same(call: Callable[[int], Any], least: int) -> None:
    def run() -> list[np.ndarray]:
        found: list[np.ndarray] = []
        for k in range(STEPS):
            results = call(k)
            recorder.flush("test")
            found += [t.detach().numpy().copy() for t in results]
        return found

    compare(run, least)


def test_an_unused_input_is_an_error_however_often_it_was_allowed() -> None:
    for k in range(4):
        x, w = leaf(k, 4), leaf(1, 4)
        calque.autograd.grad((x * x).sum(), (x, w), allow_unused=True)
        recorder.flush("test")
    x, w = leaf(0, 4), leaf(1, 4)
    with pytest.raises(AutogradError, match="appears to not have been used"):
        calque.autograd.grad((x * x).sum(), (x, w))


def test_a_spent_graph_says_so() -> None:
    for k in range(5):
        before = StretchCounts.replays
        x = leaf(k, 4)
        y = x.exp().sum()
        calque.autograd.grad(y, x)
        assert k < 3 or StretchCounts.replays > before
        with pytest.raises(AutogradError, match="a second time"):
            calque.autograd.grad(y, x)
        recorder.flush("test")


def test_overwritten_values_are_refused() -> None:
    for k in range(5):
        x = leaf(k, 4)
        y = x.exp()
        if k == 4:
            with calque.no_grad():
                y.mul_(2)
            with pytest.raises(AutogradError, match="modified by an inplace operation"):
                calque.autograd.grad(y.sum(), x)
        else:
            calque.autograd.grad(y.sum(), x)
        recorder.flush("test")
