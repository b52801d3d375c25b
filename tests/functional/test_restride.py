"""In-place view functions: the same tensor, another shape."""

from __future__ import annotations

import pytest

import calque
from calque.base.errors import AutogradError


def test_the_same_tensor_gets_another_shape() -> None:
    x = calque.arange(6.0).reshape(2, 1, 3).clone()
    same = x
    assert x.squeeze_(1) is same and tuple(x.shape) == (2, 3)
    x.t_()
    assert x.tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    assert tuple(x.unsqueeze_(0).shape) == (1, 3, 2)
    assert tuple(x.transpose_(0, 2).shape) == (2, 3, 1)


def test_gradients_follow() -> None:
    w = calque.arange(6.0).reshape(2, 3).requires_grad_()
    y = w * 2.0
    y.t_()
    (y * calque.arange(6.0).reshape(3, 2)).sum().backward()
    assert w.grad.tolist() == [[0.0, 4.0, 8.0], [2.0, 6.0, 10.0]]


@pytest.mark.parametrize("shape", [(2, 3), (3, 3)])
def test_gradients_follow_without_a_history_of_the_step(shape: tuple[int, int]) -> None:
    """A square one was differentiated wrongly, without a word."""
    w = calque.ones(*shape, requires_grad=True)
    y = w * 2.0
    with calque.no_grad():
        y.t_()
    factors = calque.arange(float(y.numel())).reshape(*y.shape)
    (y * factors).sum().backward()
    assert w.grad.tolist() == (2 * factors.t()).tolist()


def test_a_leaf_that_requires_grad_is_refused() -> None:
    with pytest.raises(RuntimeError, match="leaf"):
        calque.zeros(2, 3, requires_grad=True).t_()


@pytest.mark.parametrize("mode", [calque.no_grad, calque.enable_grad])
def test_what_a_graph_has_saved_must_not_be_looked_at_in_another_way(mode: type) -> None:
    """A square one was differentiated wrongly, without a word."""
    h = calque.arange(4.0).reshape(2, 2).requires_grad_() * 2
    z = h * calque.tensor([[1.0, 2.0], [3.0, 4.0]]) * h
    with mode():
        h.t_()
    assert h._version == 1
    with pytest.raises(AutogradError, match="modified by an inplace operation"):
        z.sum().backward()
    shown = h.data
    z = h * h
    shown.t_()
    z.sum().backward()
