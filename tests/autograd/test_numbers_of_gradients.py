"""Gradients of small operations with a Python number that is another one each time: step sizes, returns, weights that are annealed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import calque
from calque.autograd import formula
from calque.base.native import hot
from calque.record.recorder import local

CASES: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "x * h": (lambda x, h: x * h, lambda x, h: h + 0 * x),
    "h * x": (lambda x, h: h * x, lambda x, h: h + 0 * x),
    "x / h": (lambda x, h: x / h, lambda x, h: 1 / h + 0 * x),
    "h / x": (lambda x, h: h / x, lambda x, h: -h / x**2),
    "h - x * x": (lambda x, h: h - x * x, lambda x, h: -2 * x),
    "lerp": (lambda x, h: calque.lerp(x, x * 3, h), lambda x, h: 1 + 2 * h + 0 * x),
}
BY_NUMBER: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "x ** h": (lambda x, h: x**h, lambda x, h: h * x ** (h - 1)),
    "h ** x": (lambda x, h: h**x, lambda x, h: math.log(h) * h**x if h > 0 else x * 0 if h == 0 else x * math.nan),
}
ODD = (0.0, -0.0, 1.0, 2.0, -1.0, math.inf, -math.inf, math.nan, 1e-300)


def checked(names: tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]], numbers: list[float]) -> None:
    function, slope = names
    values = np.linspace(0.5, 2.0, 7)
    x = calque.tensor(values, requires_grad=True)
    with np.errstate(all="ignore"):
        for h in numbers:
            (found,) = calque.autograd.grad(function(x, h).sum(), x)
            np.testing.assert_allclose(found.numpy(), slope(values, np.float64(h)), rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("name", CASES)
def test_one_function_is_for_all_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = [0]
    write = formula._watched

    def counted(*arguments: Any) -> Any:
        written[0] += 1
        return write(*arguments)

    numbers = np.random.default_rng(3).uniform(-2, 2, 60).tolist()
    checked(CASES[name], numbers[:5])
    monkeypatch.setattr(formula, "_watched", counted)
    checked(CASES[name], numbers[5:])
    assert written[0] == 0


@pytest.mark.parametrize("name", [*CASES, *BY_NUMBER])
def test_each_gradient_has_its_number(name: str) -> None:
    numbers = np.random.default_rng(4).uniform(0.5, 2, 20).tolist()
    mixed = [h for pair in zip(numbers, ODD * 3, strict=False) for h in pair] + [numbers[0]] * 3 + [2.0] * 3 + numbers
    odd = {"h ** x": (-1.0, -math.inf, math.inf, math.nan, -0.0), "x ** h": (math.inf, -math.inf), "lerp": (math.inf, -math.inf)}.get(name, ())
    checked((CASES | BY_NUMBER)[name], [h for h in mixed if not any(h == o or h != h for o in odd)])


def test_numbers_that_gradients_decide_by_have_functions_of_their_own() -> None:
    x = calque.tensor([0.0, 1.0, 2.0], requires_grad=True)
    for h in (3.0, 2.0, 1.0, 0.0, 2.0, 1.0, 0.0, 3.0, *np.linspace(3, 4, 40), 2.0, 1.0, 0.0):
        (found,) = calque.autograd.grad((x ** float(h)).sum(), x)
        expected = [0.0 if h > 1 or h == 0 else 1.0, h, h * 2 ** (h - 1)]
        assert found.tolist() == pytest.approx(expected, rel=1e-6), h


@pytest.mark.skipif(hot is None, reason="Calque was installed without a C compiler")
@pytest.mark.usefixtures("as_users")
def test_edges_know_superinstructions_alone() -> None:
    """A rule that decides by its number has one for each; that it does is no superinstruction, and the compiled module would read it as one."""
    for _ in range(6):
        x = calque.tensor([0.5, 1.0, 2.0], requires_grad=True)
        x.detach().numpy()
        y = x**2.75
        calque.autograd.grad(y.sum(), x)[0].numpy()
        assert [f.__class__ for f in y._grad_fn.edge.formula] == [hot.Superinstruction] * len(y._grad_fn.edge.formula)
    assert y._grad_fn.edge.formula and hot.gradients((object(),), local.state.trace, y._grad_fn, y) is None
