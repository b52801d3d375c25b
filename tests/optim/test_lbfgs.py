"""L-BFGS on problems whose answer is known, the number of its programs, and mistakes that are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import calque
from calque import optim
from calque.base.errors import ArgumentError, StateDictError
from calque.run import dispatch


def quadratic(size: int, **options: Any) -> tuple[Any, Any, Any, np.ndarray]:
    """A parameter, its optimizer, a closure, and the place of the minimum."""
    rng = np.random.default_rng(2)
    root = rng.normal(size=(size, size)) / np.sqrt(size)
    matrix, right = root @ root.T + 0.05 * np.eye(size), rng.normal(size=size)
    m, b, x = calque.tensor(matrix), calque.tensor(right), calque.zeros(size, dtype=calque.float64, requires_grad=True)
    optimizer = optim.LBFGS([x], **options)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = 0.5 * x.dot(m @ x) - b.dot(x)
        loss.backward()
        return loss

    return x, optimizer, closure, np.linalg.solve(matrix, right)


def test_finds_the_minimum_of_a_quadratic() -> None:
    x, optimizer, closure, answer = quadratic(12, max_iter=60, max_eval=200, line_search_fn="strong_wolfe")
    optimizer.step(closure)
    np.testing.assert_allclose(x.detach().numpy(), answer, atol=1e-5)


def test_the_length_of_the_history_makes_no_new_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps have seen every program; 40 more pairs of changes bring none."""
    monkeypatch.setattr(dispatch, "INTERPRET_WORK", 0)
    monkeypatch.setattr(dispatch, "INTERPRET_TIMES", 0)
    _, optimizer, closure, _ = quadratic(50, max_iter=5, tolerance_change=0.0, tolerance_grad=0.0, lr=0.1)
    for _ in range(2):
        optimizer.step(closure)
    before = calque.stats().compiled
    for _ in range(8):
        optimizer.step(closure)
    state = optimizer.state_dict()["state"][0]
    assert len(state["old_dirs"]) > 30
    assert calque.stats().compiled == before


def test_only_what_is_remembered_counts() -> None:
    """With a history of nothing, every step goes down the gradient."""
    x, optimizer, closure, _ = quadratic(3, max_iter=1, history_size=1, lr=0.01)
    optimizer.step(closure)
    optimizer.step(closure)
    state = optimizer.state_dict()["state"][0]
    assert len(state["old_dirs"]) == len(state["ro"]) == 1
    assert (state["func_evals"], state["n_iter"]) == (2, 2)
    assert x.grad is not None


def test_losses_that_are_no_numbers_end_the_search() -> None:
    w = calque.tensor([1.0], requires_grad=True)
    optimizer = optim.LBFGS([w], lr=1e3, line_search_fn="strong_wolfe", max_eval=8)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (w * w).exp().sum() + w.sum()
        loss.backward()
        return loss

    with pytest.warns(RuntimeWarning, match="finite"):
        optimizer.step(closure)
    assert optimizer.state_dict()["state"][0]["func_evals"] == 9  # a search is let make one call more, as in PyTorch


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lr": float("nan")}, "Invalid learning rate"),
        ({"history_size": -1}, "history_size"),
        ({"line_search_fn": "armijo"}, "only 'strong_wolfe' is supported"),
    ],
)
def test_refused_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        optim.LBFGS([calque.zeros(2, requires_grad=True)], **options)


def test_state_of_other_parameters_is_refused() -> None:
    _, optimizer, closure, _ = quadratic(4)
    optimizer.step(closure)
    other = optim.LBFGS([calque.zeros(5, requires_grad=True)])
    with pytest.raises(StateDictError, match="4 elements, the parameters together 5"):
        other.load_state_dict(optimizer.state_dict())
    with pytest.raises(ArgumentError, match="per-parameter options"):
        other.add_param_group({"params": [calque.zeros(2, requires_grad=True)]})
