"""Writes inside of transforms. Without history in `vmap`: a value keeps the history that it has, so gradients are those of a loop over the slices.
Of what moves into a tensor that did not: gradients inside of forward mode go through it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import calque
from calque.base.errors import BatchError
from calque.func import grad, hessian, jacrev, jvp, vmap

WRITES: dict[str, Callable[[Any, Any], Any]] = {
    "add_": lambda y, x: y.add_(0.1),
    "of_another": lambda y, x: y.add_(x),
    "of_a_row": lambda y, x: y[0].fill_(1.0),
    "of_rows": lambda y, x: y[1:].mul_(0.5),
    "an_item": lambda y, x: y.__setitem__(0, x[1]),
    "copy_": lambda y, x: y.copy_(x * 2.0),
    "through_a_view": lambda y, x: y.view(-1)[1:].mul_(2.0),
}


def without_history(write: Any, y: Any, x: Any) -> None:
    with calque.no_grad():
        write(y, x)


def through_detached(write: Any, y: Any, x: Any) -> None:
    write(y.detach(), x.detach())


def through_data(write: Any, y: Any, x: Any) -> None:
    write(y.data, x.data)


HOW = pytest.mark.parametrize("how", [without_history, through_detached, through_data])


@HOW
@pytest.mark.parametrize("name", WRITES)
def test_gradients_are_those_of_a_loop(name: str, how: Any) -> None:
    def f(x: Any) -> Any:
        y = x * x
        how(WRITES[name], y, x)
        return y * y * 3.0 + x * y

    values = calque.arange(12, dtype=calque.float64).reshape(2, 2, 3) / 10
    found, expected = values.clone().requires_grad_(), values.clone().requires_grad_()
    vmap(vmap(f))(found).sum().backward()
    calque.stack([f(row) for row in expected.reshape(4, 3)]).sum().backward()
    np.testing.assert_allclose(found.grad.numpy(), expected.grad.numpy())
    inside = vmap(grad(lambda x: vmap(f)(x).sum()))(values)
    np.testing.assert_allclose(inside.numpy(), expected.grad.numpy())


@HOW
def test_an_argument_that_is_written_to(how: Any) -> None:
    """Its slices have the history of what was given."""
    leaf = calque.ones(2, 3, dtype=calque.float64, requires_grad=True)

    def f(x: Any) -> Any:
        how(WRITES["add_"], x, x)
        return x * 3.0

    vmap(f)(leaf * 1.0).sum().backward()
    assert leaf.grad.tolist() == [[3.0] * 3] * 2


@pytest.mark.parametrize("made", [calque.zeros_like, lambda x: calque.zeros(3, dtype=x.dtype), lambda x: x * 0.0, calque.empty_like])
def test_a_gradient_through_a_tensor_that_begins_to_move(made: Any) -> None:
    def f(x: Any) -> Any:
        y = made(x)
        y.fill_(0.5)
        y[:2] = x[1:]
        return (y * y).sum() + y.sin().prod()

    x = calque.tensor([0.5, -0.2, 1.1], dtype=calque.float64)
    expected = jacrev(grad(f))(x)
    np.testing.assert_allclose(hessian(f)(x).detach().numpy(), expected.numpy())
    np.testing.assert_allclose(jvp(grad(f), (x,), (x,))[1].detach().numpy(), (expected @ x).numpy())


@pytest.mark.parametrize("name", ["median", "nanmedian", "max"])
def test_equal_elements_share_on_every_level(name: str) -> None:
    """The tangent of an extreme or a median goes to all elements that equal it, whatever is around."""

    def f(x: Any) -> Any:
        return getattr(x, name)() * (x * calque.arange(3, dtype=x.dtype)).sum()

    x = calque.tensor([2.0, 2.0, 2.0], dtype=calque.float64)
    along = calque.tensor([1.0, -3.0, 0.5], dtype=calque.float64)
    expected = jacrev(grad(f))(x) @ along
    np.testing.assert_allclose(grad(lambda x: jvp(f, (x,), (along,))[1])(x).numpy(), expected.numpy())
    np.testing.assert_allclose(jvp(lambda x: jvp(f, (x,), (along,))[1], (x,), (along,))[1].numpy(), (expected @ along).numpy())


@pytest.mark.parametrize("made", [calque.zeros_like, lambda x: calque.zeros(3, dtype=x.dtype), lambda x: calque.tensor([0.0] * 3, dtype=x.dtype)])
def test_a_tensor_made_inside_begins_to_differ_after_a_read(made: Any) -> None:
    """What was made inside is written to with values of the slices, also if the recorded operations have run since."""
    seen = calque.ones(2, dtype=calque.float64)

    def f(x: Any) -> Any:
        (seen + 1).sum().item()
        y = made(x)
        (seen + 2).sum().item()
        y[1:] = x[:2] * x[1:]
        return y * x[0]

    rows = calque.tensor([[0.5, -0.2, 1.1], [2.0, 3.0, 4.0]], dtype=calque.float64)
    np.testing.assert_allclose(vmap(f)(rows).numpy(), calque.stack([f(row) for row in rows]).numpy())
    np.testing.assert_allclose(vmap(jacrev(f))(rows).numpy(), calque.stack([jacrev(f)(row) for row in rows]).numpy())


def test_a_captured_tensor_that_was_written_to_is_still_captured() -> None:
    total = calque.zeros(2)
    with pytest.raises(BatchError, match=r"\[vmap\] vmap: inplace arithmetic is not possible"):
        vmap(lambda x: (total.add_(1), total.copy_(x)))(calque.ones(3, 2))
    assert total.tolist() == [1.0, 1.0]
