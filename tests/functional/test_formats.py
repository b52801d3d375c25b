"""Memory formats: copies in an order, conversions that keep one, what is made like a tensor, and modules."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

import calque
from calque import nn
from calque.base.shapes import common_order, fills, keeps_order, ordered_strides

LAST = calque.channels_last


def test_contiguous_and_to_give_the_order() -> None:
    x = calque.arange(120.0).view(2, 3, 4, 5)
    y = x.contiguous(memory_format=LAST)
    assert y.stride() == (60, 1, 15, 3)
    assert y.equal(x)
    assert y.is_contiguous(memory_format=LAST)
    assert not y.is_contiguous()
    assert not x.is_contiguous(memory_format=LAST)
    assert y.contiguous(memory_format=LAST) is y
    assert x.to(calque.float64, memory_format=LAST).stride() == (60, 1, 15, 3)
    assert y.double().stride() == y.clone().stride() == calque.zeros_like(y).stride() == copy.deepcopy(y).stride() == (60, 1, 15, 3)
    assert y.clone(memory_format=calque.contiguous_format).stride() == (60, 20, 5, 1)
    assert calque.empty(2, 3, 4, 5, memory_format=LAST).stride() == (60, 1, 15, 3)
    assert x[None].to(memory_format=calque.channels_last_3d).stride() == (120, 1, 40, 10, 2)


def test_copies_keep_the_order_of_what_they_copy() -> None:
    x = calque.arange(6.0).view(2, 3)
    y = x.t().clone()
    assert y.stride() == (1, 3)
    y.mul_(2)
    assert y.tolist() == [[0.0, 6.0], [2.0, 8.0], [4.0, 10.0]]
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        y.view(-1)
    assert y.reshape(-1).tolist() == [0.0, 6.0, 2.0, 8.0, 4.0, 10.0]
    assert y.numpy().strides == (4, 12)
    assert calque.ones(2, 3, 8, 5)[:, :, ::2].transpose(1, 2).clone().stride() == (60, 5, 20, 1)


def test_gradients_of_copies_in_another_order() -> None:
    x = calque.arange(24.0).view(1, 2, 3, 4).requires_grad_()
    y = x.to(calque.float64, memory_format=LAST)
    assert y.grad_fn is not None
    (y * y).sum().backward()
    assert x.grad is not None
    assert x.grad.dtype is calque.float32
    assert x.grad.equal(2 * x.detach())


def test_refusals() -> None:
    x = calque.ones(2, 3)
    with pytest.raises(ValueError, match=r"\[contiguous\] expected a tensor with 4 dimensions for torch.channels_last, got 2"):
        x.contiguous(memory_format=LAST)
    with pytest.raises(TypeError, match=r"\[clone\] expected a memory format such as calque.channels_last, got str 'channels_last'"):
        x.clone(memory_format="channels_last")
    with pytest.raises(TypeError, match=r"\[zeros\] got an unexpected keyword argument 'memory_format'"):
        calque.zeros(2, memory_format=LAST)
    with pytest.raises(ValueError, match="unsupported memory format"):
        x.t().contiguous(memory_format=calque.preserve_format)
    with pytest.raises(ValueError, match="unsupported memory format"):
        calque.empty(2, memory_format=calque.preserve_format)
    assert repr(LAST) == "torch.channels_last"
    assert pickle.loads(pickle.dumps(LAST)) is LAST


@pytest.mark.parametrize("hybrid", [False, True])
def test_modules_train_in_any_order(hybrid: bool) -> None:
    losses = []
    for memory_format in (calque.contiguous_format, LAST):
        calque.manual_seed(3)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)).to(memory_format=memory_format)
        assert model[0].weight.is_contiguous(memory_format=memory_format)
        optimizer = calque.optim.Adam(model.parameters(), lr=0.01)
        x = calque.randn(5, 3, 4, 4).to(memory_format=memory_format)

        def step(model: nn.Module = model, optimizer: calque.optim.Adam = optimizer, x: calque.Tensor = x) -> calque.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        run = calque.compile(step) if hybrid else step
        losses.append([run().item() for _ in range(6)])
        assert model[0].weight.is_contiguous(memory_format=memory_format)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[0][-1] < losses[0][0]


def test_replays_return_copies_in_their_order() -> None:
    @calque.compile
    def turned(x: calque.Tensor) -> calque.Tensor:
        return (x + 1).t().clone()

    for k in range(5):
        y = turned(calque.full((2, 3), float(k)))
        assert y.stride() == (1, 3)
        assert y.tolist() == [[k + 1.0] * 2] * 3


def test_strides_of_new_memory() -> None:
    assert fills((2, 3), (1, 2))
    assert not fills((2, 3), (1, 3))
    assert ordered_strides((4, 2, 3), (1, 0, 4)) == (1, 4, 8)
    assert ordered_strides((2, 3), (1, 2), (3, 1)) == (1, 2)


@given(st.data(), st.lists(st.sampled_from([1, 1, 2, 3, 5]), max_size=5).map(tuple))
def test_one_operand_keeps_the_order_that_its_strides_give(data: st.DataObject, shape: tuple[int, ...]) -> None:
    """Asked of every new layout, so told without `common_order` where strides all differ."""
    strides = tuple(data.draw(st.lists(st.sampled_from([0, 1, 2, 3, 4, 6, 12, 24]), min_size=len(shape), max_size=len(shape))))
    assert keeps_order(shape, strides) == (common_order([(shape, strides)]) == tuple(range(len(shape))))
