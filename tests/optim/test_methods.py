"""Parameters of classes with methods of their own are updated through these methods."""

from __future__ import annotations

from typing import Any

import pytest

import calque
from calque import nn


class Halved(nn.Parameter):
    """Moves half as far as it is told to."""

    def add_(self, other: Any, *, alpha: float = 1) -> Any:
        return calque.Tensor.add_(self, other * 0.5, alpha=alpha)


class Asked(calque.Tensor):
    """The same, said by `__torch_function__`."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ == "add_":
            args = (args[0], args[1] * 0.5)
        return super().__torch_function__(func, types, args, kwargs or {})


class Printed(nn.Parameter):
    def __repr__(self) -> str:
        return "printed"


def halved() -> Any:
    return Halved(calque.ones(2))


def asked() -> Any:
    return calque.ones(2).as_subclass(Asked).requires_grad_()


@pytest.mark.parametrize("make", [halved, asked])
def test_a_step_goes_through_the_methods(make: Any) -> None:
    p, q = make(), nn.Parameter(calque.ones(2))
    optimizer = calque.optim.SGD([q, p], lr=0.25)
    for _ in range(5):
        p.grad, q.grad = calque.ones(2), calque.ones(2)
        optimizer.step()
    assert p.tolist() == [1 - 5 * 0.125] * 2
    assert q.tolist() == [1 - 5 * 0.25] * 2


@pytest.mark.parametrize("make", [halved, asked])
def test_so_does_a_hybridized_one(make: Any) -> None:
    p = make()
    optimizer = calque.optim.SGD([p], lr=0.25)

    @calque.compile
    def step() -> None:
        p.grad = calque.ones(2)
        optimizer.step()

    for _ in range(6):
        step()
    assert p.tolist() == [1 - 6 * 0.125] * 2


def test_classes_without_such_methods_are_updated_as_ever() -> None:
    p = Printed(calque.ones(2))
    optimizer = calque.optim.Rprop([p], lr=0.25)
    p.grad = calque.ones(2)
    optimizer.step()
    assert p.tolist() == [0.75, 0.75]


def test_optimizers_that_do_not_know_the_methods_refuse_them() -> None:
    p = halved()
    optimizer = calque.optim.LAMB([p], lr=0.25)
    p.grad = calque.ones(2)
    with pytest.raises(ValueError, match=r"\[LAMB\] expected parameters of an ordinary class, got one of Halved, .* define LAMB.update_by_methods"):
        optimizer.step()

    class Mine(calque.optim.SGD):
        def update_group(self, group: dict[str, Any]) -> None:
            raise AssertionError("not called")

    with pytest.raises(ValueError, match=r"\[Mine\] expected parameters of an ordinary class"):
        Mine([p], lr=0.25).step()
    assert p.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("kind", [calque.optim.Rprop, calque.optim.ASGD, calque.optim.Adafactor, calque.optim.Muon])
def test_methods_that_do_nothing_of_their_own_change_nothing(kind: Any) -> None:
    """The update in PyTorch's calls is the one of ordinary parameters."""

    class Same(nn.Parameter):
        def add_(self, other: Any, *, alpha: float = 1) -> Any:
            return calque.Tensor.add_(self, other, alpha=alpha)

    values = calque.tensor([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]])
    p, q = Same(values.clone()), nn.Parameter(values.clone())
    optimizer, twin = kind([p], lr=0.1), kind([q], lr=0.1)
    for k in range(5):
        p.grad, q.grad = (values.sin() * (-1) ** (k // 2) + 0.1 * k for _ in range(2))
        optimizer.step()
        twin.step()
    assert calque.allclose(p, q, atol=1e-6 if kind is not calque.optim.Muon else 1e-3)  # whose iteration is in bfloat16
    assert optimizer.state_dict()["state"][0].keys() == twin.state_dict()["state"][0].keys()


def test_complex_and_sparse_gradients_of_such_a_class_are_refused() -> None:
    p = Halved(calque.ones(2, dtype=calque.complex64))
    p.grad = calque.ones(2, dtype=calque.complex64)
    with pytest.raises(ValueError, match=r"\[SGD\] expected a real, dense gradient of a parameter of Halved, .* got a complex one"):
        calque.optim.SGD([p], lr=0.25).step()
    p = halved()
    p.grad = calque.ones(2).to_sparse()
    with pytest.raises(ValueError, match=r"got a sparse one"):
        calque.optim.SGD([p], lr=0.25).step()
