"""`Variable(data)`: programs written before PyTorch 0.4 wrap every tensor, labels too."""

from __future__ import annotations

import pytest

import calque
from calque.autograd import Variable


@pytest.mark.parametrize("dtype", [calque.float32, calque.float64, calque.int64, calque.uint8, calque.bool, calque.complex64])
def test_every_dtype_and_the_same_memory(dtype: calque.dtype) -> None:
    data = calque.ones(3).to(dtype)
    made = Variable(data)
    assert type(made) is calque.Tensor
    assert made is not data
    data[0] = 0
    assert made.tolist() == data.tolist()


def test_a_leaf_with_a_gradient() -> None:
    x = Variable(calque.arange(3.0), requires_grad=True)
    (x * x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0, 2, 4]
    again = Variable(x * 2)
    assert not again.requires_grad
    assert again.is_leaf
    assert type(Variable(calque.nn.Parameter(calque.ones(2)))) is calque.Tensor


def test_instances() -> None:
    assert isinstance(calque.ones(2), Variable)
    assert isinstance(calque.nn.Parameter(calque.ones(2)), Variable)
    assert not isinstance(1.0, Variable)
    assert not issubclass(calque.Tensor, Variable)  # as in PyTorch
    assert Variable().shape == (0,)


def test_volatile_and_mistakes() -> None:
    with pytest.warns(UserWarning, match="volatile was removed"):
        assert not Variable(calque.ones(2), volatile=True).requires_grad
    with pytest.warns(UserWarning, match="volatile"), pytest.raises(ValueError, match=r"\[Variable\] expected volatile or requires_grad"):
        Variable(calque.ones(2), True, True)
    with pytest.raises(TypeError, match=r"\[Variable\] expected a tensor, got list"):
        Variable([1.0])  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="floating"):
        Variable(calque.arange(3), requires_grad=True)
