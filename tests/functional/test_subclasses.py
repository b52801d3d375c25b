"""`__torch_function__`: classes that give functions another meaning are asked, whatever way a function was called."""

from __future__ import annotations

from typing import Any

import pytest

import calque
from calque.base.errors import DTypeError
from calque.functional.subclasses import disabled

CALLS: list[str] = []


class Logged(calque.Tensor):
    """Writes down what is called, and keeps a unit."""

    unit = ""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        CALLS.append(func.__name__)
        found = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(found, Logged):
            found.unit = next((x.unit for x in args if isinstance(x, Logged)), "")
        return found


class Number:
    """No tensor; knows two functions."""

    def __init__(self, value: float) -> None:
        self.value = value

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is calque.add:
            return Number(sum(getattr(x, "value", x) for x in args))
        if func is calque.mean:
            return args[0].value
        return NotImplemented


def logged(values: Any, unit: str = "m") -> Any:
    x = calque.tensor(values).as_subclass(Logged)
    x.unit = unit
    return x


def test_every_way_to_call_asks_the_class() -> None:
    x, y = logged([[1.0, 2.0], [3.0, 4.0]]), calque.ones(2, 2)
    ways = {
        "operator": lambda: x + y, "reflected": lambda: y + x, "number": lambda: 2 - x, "function": lambda: calque.exp(x),
        "method": lambda: x.sum(),
        "second operand": lambda: calque.mm(y, x), "list": lambda: calque.cat([x, y]), "index": lambda: x[0], "view": lambda: x.reshape(4),
        "T": lambda: x.T,
        "functional": lambda: calque.nn.functional.softmax(x, -1), "late": lambda: calque.add(y, x, alpha=2), "product": lambda: calque.mul(y, x),
        "module": lambda: calque.nn.Linear(2, 3)(x), "two results": lambda: x.max(0).values,
    }  # fmt: skip
    for name, call in ways.items():
        found = call()
        assert type(found) is Logged, name
    assert (x * 3).unit == "m" and x.sum().unit == "m"
    CALLS.clear()
    calque.exp(x + 1)
    assert CALLS == ["add", "exp"]
    assert x.tolist() == [[1.0, 2.0], [3.0, 4.0]] and float(x.sum()) == 10.0 and x.shape == (2, 2) and len(x) == 2 and x.numpy().sum() == 10.0


def test_gradients_writes_and_plain_tensors_beside() -> None:
    w = logged([1.0, 2.0]).requires_grad_()
    (w * w).sum().backward()
    assert w.grad.tolist() == [2.0, 4.0] and type(w.grad) is calque.Tensor
    x = logged([1.0, 2.0])
    x.add_(1)
    x[0] = 5.0
    assert x.tolist() == [5.0, 3.0]
    assert type(calque.ones(2) + 1) is calque.Tensor
    with pytest.raises(calque.base.errors.ShapeError):
        x + calque.ones(3)


def test_other_classes_are_asked_where_a_call_fails() -> None:
    assert calque.mean(Number(3.0)) == 3.0 and calque.add(Number(1.0), 2).value == 3.0
    with pytest.raises(DTypeError, match="no implementation found for sin"):
        calque.sin(Number(1.0))
    with pytest.raises(DTypeError, match="expected a Tensor"):
        calque.sin(object())


def test_a_class_may_have_none_of_it() -> None:
    class Off(calque.Tensor):
        __torch_function__ = disabled

    class Own(calque.nn.Parameter):
        pass

    assert type(calque.ones(2).as_subclass(Off) + 1) is calque.Tensor and type(Own(calque.ones(2)) * 2) is calque.Tensor
    with pytest.raises(DTypeError, match="expected a subclass of Tensor"):
        calque.ones(2).as_subclass(int)


def test_long_lists_are_asked_once_for_each_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value of millions of numbers that is refused, as `save` does, took seconds."""
    from calque.functional import subclasses

    asked: list[type] = []
    monkeypatch.setattr(subclasses, "overrides", lambda cls: bool(asked.append(cls)))
    assert subclasses.overriding([[1.0] * 1000 + [2] * 1000, 3]) == [] and asked == [float, int, int]
