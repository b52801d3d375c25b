"""L-BFGS as PyTorch's: places, losses and state after every step, with and without line search."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import calque  # noqa: E402
from tests.oracle.optim_harness import SIDES, moved, numbers  # noqa: E402

pytestmark = pytest.mark.oracle

OPTIONS: list[dict[str, Any]] = [
    {"lr": 0.1},
    {"lr": 0.3, "history_size": 2, "max_iter": 7},
    {"lr": 0.01, "max_eval": 4},
    {"line_search_fn": "strong_wolfe"},
    {"line_search_fn": "strong_wolfe", "history_size": 3, "max_iter": 6, "lr": 5.0},
    {"line_search_fn": "strong_wolfe", "max_eval": 3, "lr": 20.0},
    {"line_search_fn": "strong_wolfe", "tolerance_grad": 0.5},
    {"line_search_fn": "strong_wolfe", "tolerance_change": 1e-2},
]


def rosenbrock(T: Any, ps: list[Any]) -> Any:
    a, b = ps[0].reshape(-1), ps[1]
    return ((1 - a) ** 2).sum() + 10 * ((b - a**2) ** 2).sum()


def quartic(T: Any, ps: list[Any]) -> Any:
    return ((ps[0] - 1) ** 4).sum() + (ps[1] * ps[0].sum()).cosh().log().sum()


def fit(T: Any, ps: list[Any]) -> Any:
    x = T.linspace(-2, 2, 20, dtype=ps[0].dtype)[:, None]
    return T.nn.functional.mse_loss((T.tanh(x @ ps[0].reshape(1, -1)) * ps[1]).sum(1), T.sin(2 * x[:, 0]))


def start(T: Any, dtype: str = "float64") -> list[Any]:
    values = np.random.default_rng(4).normal(size=(2, 4))
    return [T.tensor(v, dtype=getattr(T, dtype)).requires_grad_() for v in (values[0].reshape(2, 2), values[1])]


def steps(T: Any, ps: list[Any], optimizer: Any, function: Any, count: int) -> list[float]:
    def closure() -> Any:
        optimizer.zero_grad()
        loss = function(T, ps)
        loss.backward()
        return loss

    return [optimizer.step(closure).item() for _ in range(count)]


@pytest.mark.parametrize("function", [rosenbrock, quartic, fit])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_option(function: Any, options: dict[str, Any]) -> None:
    found = []
    for T in SIDES:
        ps = start(T)
        optimizer = T.optim.LBFGS(ps, **options)
        losses = steps(T, ps, optimizer, function, 1)
        places = [numbers(p).copy() for p in ps]  # later ones differ by what rounding makes of the search
        losses += steps(T, ps, optimizer, function, 2)
        entries = optimizer.state_dict()["state"][0]
        counts = [entries["func_evals"], entries["n_iter"], len(entries.get("old_dirs", ()))]
        found.append((losses, places, counts, repr(optimizer)))
    (losses, places, counts, text), expected = found
    assert counts == expected[2]
    assert text == expected[3]
    np.testing.assert_allclose(losses, expected[0], rtol=1e-6, atol=1e-12)
    for a, b in zip(places, expected[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("direction", ["ours", "theirs"])
def test_state_dict_crosses(direction: str) -> None:
    """A state saved on one side goes on on the other as it would have at home."""
    source, target = (calque, torch) if direction == "ours" else (torch, calque)
    ps = start(source)
    optimizer = source.optim.LBFGS(ps, max_iter=5, line_search_fn="strong_wolfe")
    steps(source, ps, optimizer, rosenbrock, 1)
    others = [target.tensor(numbers(p).copy()).requires_grad_() for p in ps]
    other = target.optim.LBFGS(others, max_iter=5, line_search_fn="strong_wolfe")
    other.load_state_dict(moved(target, optimizer.state_dict()))
    np.testing.assert_allclose(steps(target, others, other, rosenbrock, 2), steps(source, ps, optimizer, rosenbrock, 2), rtol=1e-6)


def test_missing_gradients_and_arguments() -> None:
    found = []
    for T in SIDES:
        ps = start(T)
        optimizer = T.optim.LBFGS(ps, lr=0.1)
        losses = steps(T, ps, optimizer, lambda T, ps: ((ps[1] - 2) ** 2).sum(), 2)
        found.append((losses, numbers(ps[0]).tolist(), numbers(ps[1])))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-9)
    assert found[0][1] == found[1][1]
    np.testing.assert_allclose(found[0][2], found[1][2], rtol=1e-9)
    listed = [[(p.name, p.default) for p in inspect.signature(T.optim.LBFGS).parameters.values()] for T in SIDES]
    assert listed[0] == listed[1]


def test_refusals() -> None:
    for T in SIDES:
        with pytest.raises(ValueError, match="doesn't support per-parameter options"):
            T.optim.LBFGS([{"params": [p]} for p in start(T)])
        with pytest.raises(ValueError, match="Invalid learning rate"):
            T.optim.LBFGS(start(T), lr=-1)
