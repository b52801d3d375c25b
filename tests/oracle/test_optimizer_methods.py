"""Parameters whose class has methods of its own, or is asked what functions mean, are updated as PyTorch's optimizers update them: through the same
methods, in the same order, with state of the same class."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import calque  # noqa: E402

pytestmark = pytest.mark.oracle

OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "SGD": ("SGD", {"lr": 0.1}),
    "SGD with momentum": ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True}),
    "SGD uphill": ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "maximize": True}),
    "Adam": ("Adam", {"lr": 0.1, "weight_decay": 0.1}),
    "AdamW": ("AdamW", {"lr": 0.1, "amsgrad": True}),
    "RMSprop": ("RMSprop", {"lr": 0.1}),
    "RMSprop centered": ("RMSprop", {"lr": 0.1, "momentum": 0.5, "centered": True, "weight_decay": 0.1}),
    "Adagrad": ("Adagrad", {"lr": 0.1, "lr_decay": 0.1, "initial_accumulator_value": 0.1, "weight_decay": 0.1}),
    "Adadelta": ("Adadelta", {"weight_decay": 0.1}),
    "Adamax": ("Adamax", {"lr": 0.1, "weight_decay": 0.1}),
    "NAdam": ("NAdam", {"lr": 0.1, "weight_decay": 0.1}),
    "NAdam, decoupled": ("NAdam", {"lr": 0.1, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    "RAdam": ("RAdam", {"lr": 0.1, "weight_decay": 0.1}),
    "Rprop": ("Rprop", {"lr": 0.1}),
    "ASGD": ("ASGD", {"lr": 0.1, "lambd": 0.1, "t0": 2, "weight_decay": 0.1}),
    "ASGD uphill": ("ASGD", {"lr": 0.1, "maximize": True}),
    "Adafactor": ("Adafactor", {"lr": 0.1, "weight_decay": 0.1}),
    "Adafactor, clipped": ("Adafactor", {"lr": 0.1, "d": 1.5, "eps": (1e-6, 1e-2), "maximize": True}),
    "RAdam, decoupled": ("RAdam", {"lr": 0.1, "weight_decay": 0.1, "decoupled_weight_decay": True}),
}


def scaled(T: Any, calls: list[str]) -> Any:
    class Scaled(T.nn.Parameter):
        def add_(self, other: Any, alpha: float = 1) -> Any:
            calls.append("add_")
            return T.Tensor.add_(self, other * 0.5, alpha=alpha)

        def addcdiv_(self, first: Any, second: Any, value: float = 1) -> Any:
            calls.append("addcdiv_")
            return T.Tensor.addcdiv_(self, first, second * 2, value=value)

        def mul_(self, other: Any) -> Any:
            calls.append("mul_")
            return T.Tensor.mul_(self, other * 0.9)

    return Scaled


def without_operators(T: Any, calls: list[str]) -> Any:
    class Bare(T.nn.Parameter):
        def __sub__(self, other: Any) -> Any:
            raise AssertionError("no optimizer of PyTorch subtracts")

        __mul__ = __sub__

    return Bare


def asked(T: Any, calls: list[str]) -> Any:
    class Asked(T.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.__name__ in ("add_", "addcdiv_", "mul_", "lerp_", "addcmul_", "zeros_like", "full_like", "maximum"):
                calls.append(func.__name__)
            if func.__name__ in ("add_", "addcdiv_") and getattr(args[0], "mine", False):
                args = (args[0], args[1] * 0.5, *args[2:])
            return super().__torch_function__(func, types, args, kwargs or {})

    return Asked


def manifold(T: Any, calls: list[str]) -> Any:
    class OnSphere(T.Tensor):
        def add_(self, other: Any, alpha: float = 1) -> Any:
            calls.append("add_")
            with T.no_grad():
                plain = self.as_subclass(T.Tensor)
                new = plain + T.as_tensor(other).as_subclass(T.Tensor) * alpha
                plain.copy_(new / new.norm(dim=-1, keepdim=True))
            return self

    return OnSphere


def start(T: Any, kind: Any) -> Any:
    values = T.tensor(np.random.default_rng(0).normal(size=(4, 3)))
    p = kind(values) if issubclass(kind, T.nn.Parameter) else values.as_subclass(kind).requires_grad_()
    p.mine = True
    return p


def loss_of(T: Any, p: Any, q: Any) -> Any:
    x = T.tensor(np.random.default_rng(1).normal(size=(5, 3)))
    return ((x @ p.as_subclass(T.Tensor).T).sin() * (x @ q)[:, None]).square().mean()


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("make", [scaled, without_operators, asked, manifold])
def test_updates_are_those_of_pytorch(make: Any, name: str) -> None:
    found = []
    for T in (calque, torch):
        calls: list[str] = []
        p, q = start(T, make(T, calls)), T.nn.Parameter(T.tensor([0.5, -1.0, 0.25], dtype=T.float64))
        method, options = OPTIMIZERS[name]
        optimizer = getattr(T.optim, method)([q, p], **options)
        losses = []
        for _ in range(8):
            optimizer.zero_grad()
            loss = loss_of(T, p, q)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        state = {k: type(v).__name__ for k, v in optimizer.state[p].items() if k not in ("step", "mu_product", "eta", "mu")}
        values = {k: v.as_subclass(T.Tensor).numpy() for k, v in optimizer.state[p].items() if k in state}
        found.append((calls, state, [losses, p.detach().as_subclass(T.Tensor).numpy(), q.detach().numpy(), *(values[k] for k in sorted(values))]))
    (calls, state, ours), (their_calls, their_state, theirs) = found
    assert (calls, state) == (their_calls, their_state)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)  # NAdam keeps a product in float32


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
@pytest.mark.parametrize("make", [scaled, asked, manifold])
def test_lbfgs_moves_by_the_methods(make: Any, search: str | None) -> None:
    found = []
    for T in (calque, torch):
        calls: list[str] = []
        p, q = start(T, make(T, calls)), T.tensor([0.5, -1.0, 0.25], dtype=T.float64)
        optimizer = T.optim.LBFGS([p], lr=0.1, max_iter=5, line_search_fn=search)

        def closure() -> Any:
            optimizer.zero_grad()  # noqa: B023
            loss = loss_of(T, p, q)  # noqa: B023
            loss.backward()
            return loss

        optimizer.step(closure)
        found.append((calls, p.detach().as_subclass(T.Tensor).numpy()))
    assert found[0][0] == found[1][0]
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-9)


def test_state_of_such_parameters_is_saved_and_loaded() -> None:
    found = []
    for T in (calque, torch):
        p, q = start(T, asked(T, [])), T.tensor([0.5, -1.0, 0.25], dtype=T.float64)
        first, second = T.optim.Adam([p], lr=0.1), T.optim.Adam([p], lr=0.1)
        loss_of(T, p, q).backward()
        first.step()
        second.load_state_dict(first.state_dict())
        second.step()
        found.append(p.detach().as_subclass(T.Tensor).numpy())
    np.testing.assert_allclose(found[0], found[1], rtol=1e-12)
