"""`torch.optim._functional`: one step over lists, beside PyTorch's."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

import calque
from calque.compat.torch.optim import _functional

torch = pytest.importorskip("torch")
ADAM = {"beta1": 0.9, "beta2": 0.99, "lr": 0.1, "weight_decay": 0.01, "eps": 1e-8}
RATE = {"lr": 0.1, "weight_decay": 0.1}


class Lists:
    """Two tensors of each kind."""

    def __init__(self, T: Any) -> None:
        self.T, self.seen = T, []  # type: ignore[var-annotated]

    def t(self, first: float) -> Any:
        self.seen.append([self.T.arange(3.0) * 0.3 + first + k * 0.1 for k in range(2)])
        return self.seen[-1]

    def n(self, value: float = 3.0) -> Any:
        self.seen.append([self.T.tensor(value) for _ in range(2)])
        return self.seen[-1]

    def none(self) -> Any:
        self.seen.append([None, None])
        return self.seen[-1]


CASES: dict[str, Callable[[Lists], tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "adam": lambda s: ((s.t(0.1), s.t(0.2), [], s.n()), {**ADAM, "amsgrad": False, "maximize": False}),
    "adam decoupled": lambda s: (
        (s.t(0.1), s.t(0.2), s.t(0.3), s.n(), None, False, False, False, None, None, False, True), {**ADAM, "amsgrad": True, "maximize": True},
    ),
    "adamw": lambda s: ((s.t(0.1), s.t(0.2), s.t(0.3), s.n()), {**ADAM, "amsgrad": True, "maximize": True}),
    "sgd": lambda s: ((s.none(),), {**RATE, "momentum": 0.9, "dampening": 0.1, "nesterov": False, "maximize": False}),
    "sgd again": lambda s: ((s.t(0.2),), {**RATE, "momentum": 0.9, "dampening": 0.0, "nesterov": True, "maximize": True}),
    "adagrad": lambda s: ((s.t(0.1), s.n()), {**RATE, "lr_decay": 0.1, "eps": 1e-8, "maximize": False}),
    "adadelta": lambda s: ((s.t(0.1), s.t(0.2), s.n()), {**RATE, "rho": 0.9, "eps": 1e-6, "maximize": False}),
    "adamax": lambda s: ((s.t(0.1), s.t(0.2), s.n()), {**ADAM, "maximize": True}),
    "nadam": lambda s: ((s.t(0.1), s.t(0.2), s.n(0.8), s.n()), {**ADAM, "momentum_decay": 4e-3}),
    "radam": lambda s: ((s.t(0.1), s.t(0.2), s.n(9.0)), {**ADAM}),
    "rmsprop": lambda s: ((s.t(2.1), s.t(0.2), s.t(0.3), s.n()), {**RATE, "alpha": 0.9, "eps": 1e-8, "momentum": 0.9, "centered": True}),
    "rprop": lambda s: ((s.t(0.1), s.t(0.2), s.n()), {"step_size_min": 1e-6, "step_size_max": 50.0, "etaminus": 0.5, "etaplus": 1.2}),
    "asgd": lambda s: ((s.t(0.1), s.n(1.0), s.n(0.1), s.n()), {**RATE, "lambd": 1e-4, "t0": 1e6, "alpha": 0.75}),
}  # fmt: skip


def stepped(T: Any, module: Any, case: str) -> list[list[float]]:
    lists = Lists(T)
    params, grads = lists.t(1.0), lists.t(-0.5)
    positional, named = CASES[case](lists)
    with T.no_grad():
        getattr(module, case.split()[0])(params, grads, *positional, **named)
    assert all(p.grad is None for p in params)
    return [t.reshape(-1).tolist() for tensors in lists.seen for t in tensors]


@pytest.mark.parametrize("case", CASES)
def test_one_step_over_lists(case: str) -> None:
    theirs = importlib.import_module(f"torch.optim.{case.split()[0]}")
    for found, wanted in zip(stepped(calque, _functional, case), stepped(torch, theirs, case), strict=True):
        assert found == pytest.approx(wanted, rel=1e-5)


def test_what_a_step_over_lists_refuses() -> None:
    with pytest.raises(ValueError, match="expected a plain step, got differentiable"):
        _functional.radam([calque.ones(2)], [calque.ones(2)], [], [], [], differentiable=True, **ADAM)
    with pytest.raises(TypeError, match="expected 1 lists of states"):
        _functional.sgd([calque.ones(2)], [calque.ones(2)], lr=0.1)
    _functional.sgd([], [], [], lr=0.1, weight_decay=0.0, momentum=0.0, dampening=0.0, nesterov=False, maximize=False)
