"""Gradients of views of small tensors: the layouts that rules have answered are remembered, for Python and for the compiled module."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

import calque
from calque.autograd.eager import shown_back
from calque.base.native import hot

VIEWS: list[Callable[[calque.Tensor, random.Random], calque.Tensor]] = [
    lambda x, _: x.reshape(-1),
    lambda x, _: x.unsqueeze(0),
    lambda x, _: x.squeeze(),
    lambda x, r: x.permute(r.sample(range(x.ndim), x.ndim)),
    lambda x, _: x.flatten(),
    lambda x, r: x.narrow(0, 0, r.randint(1, max(1, x.shape[0]))) if x.ndim else x,
    lambda x, r: x[r.randrange(x.shape[0])] if x.ndim > 1 else x,
    lambda x, _: x.expand(2, *x.shape) if x.ndim < 4 else x,
    lambda x, _: x.view(x.shape),
    lambda x, _: x.transpose(0, -1) if x.ndim else x,
    lambda x, _: x.detach().clone() * x,
    lambda x, _: x * 0.5 + 1.0,
]


def program(seed: int) -> list[list[float]]:
    """Chains of views and products that begin at two leaves; what their gradients are, and that they are no views of each other."""
    r = random.Random(seed)
    leaves = [calque.arange(12.0).reshape(3, 4).requires_grad_(), calque.arange(12.0).requires_grad_()]
    for _ in range(r.randint(2, 3)):  # the second pass finds what the first has remembered
        x, y = leaves
        for _ in range(r.randint(1, 5)):
            x = r.choice(VIEWS)(x, r)
        total = (x * x).sum() + (leaves[0].view(12) + y).sum() * 2.0
        total.backward()
    found = [leaf.grad.reshape(-1).tolist() for leaf in leaves]
    leaves[0].grad.zero_()
    assert leaves[1].grad.tolist() == found[1]
    return found


@pytest.mark.parametrize("seed", range(40))
def test_they_are_those_of_recorded_programs(seed: int, eager: Callable[[bool], None]) -> None:
    eager(True)
    computed = program(seed)
    eager(False)
    assert program(seed) == computed


def test_they_are_remembered(eager: Callable[[bool], None]) -> None:
    """By rule and layout, so the number of turns does not matter."""
    eager(True)
    x = calque.arange(6.0).requires_grad_()
    counts = []
    for _ in range(4):
        y = x.view(2, 3)
        y.t().reshape(6).sum().backward()
        counts.append(len(shown_back))
    assert counts[0] > 0 and len(set(counts[1:])) == 1
    assert x.grad.tolist() == [4.0] * 6


@pytest.mark.skipif(hot is None, reason="Calque was installed without a C compiler")
def test_an_edge_remembers_several_numbers(eager: Callable[[bool], None]) -> None:
    """One line multiplies by one number and then by another; each turn is right, whichever function was the last."""
    eager(True)
    for turn in range(6):
        x = calque.ones(3, requires_grad=True)
        y = x
        for factor in (2.0, 3.0, 0.5, 5.0, 7.0, float(turn)):
            y = y * factor
        y.sum().backward()
        assert x.grad.tolist() == [105.0 * turn] * 3
