"""Optimizers against float64 NumPy references written from the papers and PyTorch's documented formulas, and what only Calque promises:
one program per step that a new rate does not change, updates in place, mistakes refused before anything changes.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn, optim
from calque.base.errors import ArgumentError, DTypeError, NonFiniteError, StateDictError
from calque.record.recorder import local
from tests.fuzz.check import mode

Array = np.ndarray
START = np.array([[0.5, -1.5], [2.0, 0.0]])


def gradients(count: int = 8) -> list[Array]:
    return list(np.random.default_rng(5).normal(size=(count, 2, 2)))


# ---------------------------------------------------------------- references: value after each step, from the gradients alone


def sgd(gs: list[Array], lr: float, momentum: float = 0, dampening: float = 0, weight_decay: float = 0, nesterov: bool = False) -> Iterator[Array]:
    p, v = START.copy(), np.zeros_like(START)
    for t, g in enumerate(gs):
        g = g + weight_decay * p
        v = g if t == 0 else momentum * v + (1 - dampening) * g
        p = p - lr * ((g + momentum * v if nesterov else v) if momentum else g)
        yield p


def adam(
    gs: list[Array], lr: float = 1e-3, betas: tuple = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0, amsgrad: bool = False,
    decoupled: bool = False,
) -> Iterator[Array]:  # fmt: skip
    """Kingma & Ba 2015, algorithm 1; Reddi et al. 2018 for amsgrad; Loshchilov & Hutter 2019, algorithm 2 for the decoupled decay."""
    p, m, v, top = START.copy(), 0.0 * START, 0.0 * START, 0.0 * START
    for t, g in enumerate(gs, 1):
        if decoupled:
            p = p - lr * weight_decay * p
        else:
            g = g + weight_decay * p
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g**2
        top = np.maximum(top, v)
        unbiased = (top if amsgrad else v) / (1 - betas[1] ** t)
        p = p - lr * (m / (1 - betas[0] ** t)) / (np.sqrt(unbiased) + eps)
        yield p


def rmsprop(
    gs: list[Array], lr: float = 1e-2, alpha: float = 0.99, eps: float = 1e-8, weight_decay: float = 0, momentum: float = 0, centered: bool = False
) -> Iterator[Array]:
    p, v, mean, b = START.copy(), 0.0 * START, 0.0 * START, 0.0 * START
    for g in gs:
        g = g + weight_decay * p
        v = alpha * v + (1 - alpha) * g**2
        mean = alpha * mean + (1 - alpha) * g
        b = momentum * b + g / (np.sqrt(v - mean**2 if centered else v) + eps)
        p = p - lr * b
        yield p


def adagrad(
    gs: list[Array], lr: float = 1e-2, lr_decay: float = 0, weight_decay: float = 0, initial_accumulator_value: float = 0, eps: float = 1e-10
) -> Iterator[Array]:
    p, total = START.copy(), np.full_like(START, initial_accumulator_value)
    for t, g in enumerate(gs, 1):
        g = g + weight_decay * p
        total = total + g**2
        p = p - lr / (1 + (t - 1) * lr_decay) * g / (np.sqrt(total) + eps)
        yield p


def grid(**options: tuple[Any, ...]) -> list[dict[str, Any]]:
    return [dict(zip(options, values, strict=True)) for values in itertools.product(*options.values())]


CASES: list[tuple[Any, Any, dict[str, Any]]] = [
    *((optim.SGD, sgd, k) for k in grid(lr=(0.1,), momentum=(0, 0.9), weight_decay=(0, 0.1))),
    *((optim.SGD, sgd, k) for k in grid(lr=(0.1,), momentum=(0.9,), dampening=(0.4,), weight_decay=(0, 0.1))),
    *((optim.SGD, sgd, k) for k in grid(lr=(0.1,), momentum=(0.9,), nesterov=(True,), weight_decay=(0, 0.1))),
    *((optim.Adam, adam, k) for k in grid(lr=(0.1,), weight_decay=(0, 0.1), amsgrad=(False, True))),
    (optim.Adam, adam, {}),
    (optim.Adam, adam, {"betas": (0.5, 0.6), "eps": 0.1}),
    *((optim.AdamW, adam, k) for k in grid(lr=(0.1,), weight_decay=(0.0, 0.1), amsgrad=(False, True))),
    *((optim.RMSprop, rmsprop, k) for k in grid(momentum=(0, 0.9), centered=(False, True), weight_decay=(0, 0.1))),
    (optim.RMSprop, rmsprop, {"alpha": 0.6, "eps": 0.1, "lr": 0.5}),
    *((optim.Adagrad, adagrad, k) for k in grid(lr_decay=(0, 0.1), weight_decay=(0, 0.1), initial_accumulator_value=(0, 0.3))),
]
KINDS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9}, "Adam": {"amsgrad": True}, "AdamW": {}, "RMSprop": {"momentum": 0.9, "centered": True}, "Adagrad": {"lr_decay": 0.1},
}  # fmt: skip


@pytest.mark.parametrize(("kind", "reference", "options"), CASES, ids=lambda v: getattr(v, "__name__", None) or str(v))
def test_formula(kind: Any, reference: Any, options: dict[str, Any]) -> None:
    extra = {"decoupled": True} if kind is optim.AdamW else {}
    for maximize in (False, True):
        p = calque.tensor(START).requires_grad_()
        optimizer = kind([p], maximize=maximize, **options)
        signed = [-g for g in gradients()] if maximize else gradients()
        for g, expected in zip(gradients(), reference(signed, **options, **extra), strict=True):
            p.grad = calque.tensor(g)
            optimizer.step()
            np.testing.assert_allclose(p.detach().numpy(), expected, rtol=1e-12, atol=1e-13)


def make(name: str, *ps: Any, **options: Any) -> Any:
    return getattr(optim, name)(list(ps), **{"lr": 0.1, **KINDS[name], **options})


def two() -> tuple[Any, Any]:
    return calque.ones(3, requires_grad=True), calque.full((2, 2), 2.0, requires_grad=True)


def train_step(optimizer: Any, *ps: Any) -> None:
    optimizer.zero_grad()
    sum(((p * p).sum() for p in ps), calque.zeros(())).backward()
    optimizer.step()


@pytest.mark.parametrize("name", KINDS)
def test_a_new_rate_compiles_nothing(name: str) -> None:
    """Any rate, betas and momentum: three steps to warm up (first state, donated state, steady), then always the same program."""
    a, b = two()
    optimizer = make(name, a, b, weight_decay=0.01)
    for _ in range(3):
        train_step(optimizer, a, b)
    before = calque.stats()
    group = optimizer.param_groups[0]
    for k, rate in enumerate((0.5, 1, 0.0, 1e-30, 2.0, 3.0)):
        group["lr"] = rate
        if "betas" in group:
            group["betas"] = (0.5 + k / 20, 0.9)
        if "momentum" in group:
            group["momentum"] = 0.5 + k / 20
        train_step(optimizer, a, b)
    after = calque.stats()
    assert after["programs"] == before["programs"] and after["compiled"] == before["compiled"]
    assert after["program_hits"] - before["program_hits"] == 6
    assert after["flush_reasons"]["optimizer.step"] - before["flush_reasons"]["optimizer.step"] == 6


@pytest.mark.parametrize("name", KINDS)
def test_schedules_compile_nothing(name: str) -> None:
    a, b = two()
    optimizer = make(name, a, b)
    scheduler = optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20, cycle_momentum=name != "Adagrad")
    counts = []
    for _ in range(20):
        train_step(optimizer, a, b)
        scheduler.step()
        counts.append(calque.stats()["programs"])
    assert len(set(counts[3:])) == 1


@pytest.mark.parametrize("name", KINDS)
def test_updates_are_in_place(name: str) -> None:
    """Memory of parameters and states stays where it is, other handles see the update, and nothing grows."""
    a, b = two()
    view = a.detach()[1:]
    optimizer = make(name, a, b)

    def addresses() -> list[int]:
        return [p.data_ptr() for p in (a, b)] + [s.data_ptr() for state in optimizer.state.values() for s in state.values() if calque.is_tensor(s)]

    for _ in range(2):  # in the first step no older gradients are held
        train_step(optimizer, a, b)
    start, memory = addresses(), calque.stats()["memory"]["in_use"]
    states = {id(s) for state in optimizer.state.values() for s in state.values() if calque.is_tensor(s)}
    for _ in range(5):
        train_step(optimizer, a, b)
        assert addresses() == start
    assert {id(s) for state in optimizer.state.values() for s in state.values() if calque.is_tensor(s)} == states
    assert view.tolist() == a.tolist()[1:] and a.is_leaf and a.requires_grad
    assert calque.stats()["memory"]["in_use"] <= memory


def test_step_is_one_flush() -> None:
    a, b = two()
    optimizer = make("Adam", a, b)
    for _ in range(3):
        train_step(optimizer, a, b)
    before = calque.stats()["flushes"]
    train_step(optimizer, a, b)
    assert calque.stats()["flushes"] == before + 1


@pytest.mark.parametrize("name", KINDS)
def test_parameters_without_a_gradient_are_left_alone(name: str) -> None:
    a, b = two()
    optimizer = make(name, a, b, weight_decay=0.5)
    a.grad = calque.ones(3)
    optimizer.step()
    assert b.tolist() == [[2.0, 2.0]] * 2 and a.tolist() != [1.0] * 3
    assert name == "Adagrad" or b not in optimizer.state
    b.grad = calque.zeros(2, 2)
    optimizer.step()
    assert b.tolist() != [[2.0, 2.0]] * 2, "a gradient of zeros still decays"


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_states_have_the_type_of_the_parameter(name: str, dtype: str) -> None:
    p = calque.ones(4, dtype=getattr(calque, dtype), requires_grad=True)
    optimizer = make(name, p, eps=1e-3) if name != "SGD" else make(name, p)
    for _ in range(3):
        train_step(optimizer, p)
    assert all(s.dtype is p.dtype and s.shape == p.shape for s in optimizer.state[p].values() if calque.is_tensor(s))
    assert p.dtype is getattr(calque, dtype) and bool((p < 1).all())


def test_frozen_layers_and_groups() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    net[0].requires_grad_(False)
    before = [p.tolist() for p in net.parameters()]
    optimizer = optim.SGD([{"params": net[0].parameters()}, {"params": net[1].parameters(), "lr": 1.0}], lr=0.1, momentum=0.9)
    assert [g["lr"] for g in optimizer.param_groups] == [0.1, 1.0]
    net(calque.ones(3, 2)).sum().backward()
    optimizer.step()
    after = [p.tolist() for p in net.parameters()]
    assert after[:2] == before[:2] and after[2:] != before[2:]
    optimizer.zero_grad()
    assert all(p.grad is None for p in net.parameters())


def test_text() -> None:
    a, b = two()
    optimizer = optim.SGD([{"params": [a]}, {"params": [b], "lr": 0.5}], lr=0.1)
    group = (
        "    dampening: 0\n    differentiable: False\n    foreach: None\n    fused: None\n    lr: {}\n    maximize: False\n    momentum: 0\n"
        "    nesterov: False\n    weight_decay: 0\n"
    )
    assert repr(optimizer) == f"SGD (\nParameter Group 0\n{group.format(0.1)}\nParameter Group 1\n{group.format(0.5)})"


@pytest.mark.parametrize("name", KINDS)
def test_resume(name: str) -> None:
    """State dict into a fresh optimizer: bit-equal continuation; the loaded state shares no memory with the dict."""
    a, b = two()
    optimizer = make(name, a, b)
    for _ in range(3):
        train_step(optimizer, a, b)
    state = copy.deepcopy(optimizer.state_dict())
    c, d = (p.detach().clone().requires_grad_() for p in (a, b))
    again = make(name, c, d, lr=77.0)
    again.load_state_dict(state)
    for _ in range(3):
        train_step(optimizer, a, b)
        train_step(again, c, d)
    assert a.tolist() == c.tolist() and b.tolist() == d.tolist()
    third = make(name, *two())
    third.load_state_dict(state)
    assert third.state_dict()["param_groups"] == state["param_groups"]
    if name != "SGD":
        assert [s["step"].item() for s in state["state"].values()] == [3.0, 3.0]
        assert state["state"][0]["step"].dtype is calque.float32 and state["state"][0]["step"].shape == ()


def test_copies() -> None:
    a, b = two()
    optimizer = make("Adam", a, b)
    train_step(optimizer, a, b)
    model = {"p": [a, b], "optimizer": optimizer}
    other = copy.deepcopy(model)
    train_step(other["optimizer"], *other["p"])
    assert a.tolist() != other["p"][0].tolist() and optimizer.state[a]["step"] == 1
    train_step(optimizer, a, b)
    assert a.tolist() == other["p"][0].tolist()


def test_state_that_does_not_fit_changes_nothing() -> None:
    a, b = two()
    optimizer = make("Adam", a, b)
    for p in (a, b):
        p._name = "abc"[p.dim()]
    train_step(optimizer, a, b)
    good = optimizer.state_dict()

    def refused(change: Any, *facts: str) -> None:
        state = copy.deepcopy(good)
        change(state)
        new = make("Adam", a, b, lr=0.25)
        with pytest.raises((StateDictError, ArgumentError)) as caught:
            new.load_state_dict(state)
        assert isinstance(caught.value, ValueError)
        for fact in facts:
            assert fact in str(caught.value)
        assert not new.state and new.param_groups[0]["lr"] == 0.25

    def both_wrong(state: Any) -> None:
        state["state"][0]["exp_avg"] = calque.ones(4)
        state["state"][1]["exp_avg_sq"] = calque.ones(2, 3, dtype=calque.float64)

    refused(
        both_wrong, "'exp_avg' of parameter 0 (b)", "[4]", "[3]", "'exp_avg_sq' of parameter 1 (c)", "[2, 3]", "[2, 2]", "nothing was loaded",
    )  # fmt: skip
    refused(lambda s: s["state"][1].pop("exp_avg"), "parameter 1 (c) lacks the state ['exp_avg']", "found ['step', 'exp_avg_sq'")
    refused(lambda s: s["state"].update({0: {"momentum_buffer": calque.ones(3)}}), "lacks the state ['step', 'exp_avg', 'exp_avg_sq']", "kind")
    refused(lambda s: s.pop("state"), "['state'] are missing", "['param_groups']")
    refused(lambda s: s["param_groups"].append(s["param_groups"][0]), "different number of parameter groups: 2, expected 1")
    refused(lambda s: s["param_groups"][0]["params"].pop(), "group 0 has 2 parameters, the loaded one 1")
    refused(lambda s: s["param_groups"][0].update(lr=float("nan")), "learning rate", "nan")


def test_a_group_without_momentum_beside_nesterov() -> None:
    a, b = (calque.ones(2, requires_grad=True) for _ in range(2))
    optimizer = calque.optim.SGD([{"params": [a]}, {"params": [b], "momentum": 0}], lr=0.1, momentum=0.5, nesterov=True)
    for p in (a, b):
        p.grad = calque.ones(2)
    optimizer.step()
    np.testing.assert_allclose(a.detach().numpy(), 1 - 0.1 * 1.5, rtol=1e-6)
    np.testing.assert_allclose(b.detach().numpy(), 1 - 0.1, rtol=1e-6)


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf"), "0.1", None, True])
@pytest.mark.parametrize("name", KINDS)
def test_rates_outside_the_range(name: str, value: Any) -> None:
    """Row 32 of the bad-input table, also in a group added later, which is then not there."""
    a, b = two()
    optimizer = make(name, a)
    group = {"params": [b], "lr": value}
    with pytest.raises(ArgumentError, match=rf"\[{name}\] Invalid learning rate: expected a finite number in \[0, inf\), got ") as caught:
        optimizer.add_param_group(group)
    assert repr(value) in str(caught.value)
    assert len(optimizer.param_groups) == 1 and group == {"params": [b], "lr": value}


OPTIONS: list[tuple[str, dict[str, Any], str]] = [
    ("SGD", {"momentum": -1.0}, r"Invalid momentum value: .*\[0, inf\), got -1.0"),
    ("SGD", {"weight_decay": float("nan")}, r"Invalid weight_decay value: .* got nan"),
    ("SGD", {"momentum": 0.0, "nesterov": True}, "Nesterov momentum requires a momentum and zero dampening, got momentum=0.0, dampening=0"),
    ("SGD", {"dampening": 0.1, "nesterov": True}, "got momentum=0.9, dampening=0.1"),
    ("Adam", {"betas": (1.0, 0.9)}, r"beta parameter at index 0: .*\[0, 1\), got 1.0"),
    ("AdamW", {"betas": (0.9, float("nan"))}, r"beta parameter at index 1: .*\[0, 1\), got nan"),
    ("Adam", {"betas": 0.9}, r"expected betas as a pair of numbers in \[0, 1\), got 0.9"),
    ("Adam", {"eps": -1.0}, "Invalid epsilon value"),
    ("RMSprop", {"alpha": -1.0}, "Invalid alpha value"),
    ("Adagrad", {"lr_decay": "x"}, "Invalid lr_decay value: .* got 'x'"),
    ("Adagrad", {"initial_accumulator_value": -1.0}, "Invalid initial_accumulator_value value"),
    ("Adam", {"fused": True, "foreach": True}, "`fused` and `foreach` cannot be `True` together"),
    ("SGD", {"fused": True, "differentiable": True}, "`fused` and `differentiable` cannot be `True` together"),
    ("SGD", {"lr": calque.ones(2)}, r"Invalid learning rate: a Tensor must be 1-element, got shape \[2\]"),
]


@pytest.mark.parametrize(("name", "options", "words"), OPTIONS, ids=lambda v: str(v)[:40])
def test_options_outside_the_range(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=rf"\[{name}\] .*{words}|\[{name}\] {words}"):
        make(name, *two(), **options)


def test_rows_31_and_33() -> None:
    net = nn.Linear(2, 2)
    used = net.parameters()
    list(used)
    with pytest.raises(ValueError, match=r"\[RMSprop\] optimizer got an empty parameter list; was the iterator consumed already, or are the "):
        optim.RMSprop(used)
    with pytest.raises(ValueError, match=r"\[Adam\] some parameters appear .* got parameter bias twice"):
        optim.Adam([{"params": net.named_parameters()}, {"params": [("bias", net.bias)]}])
    with pytest.warns(UserWarning, match=r"duplicate parameters.*: expected every parameter once, got of shape \[1\] twice"):
        optim.SGD([calque.ones(1, requires_grad=True)] * 2)


def test_mistakes_in_groups() -> None:
    a, b = two()
    with pytest.raises(TypeError, match="one of the params is float"):
        optim.SGD([1.0])
    with pytest.raises(TypeError, match="ordered collections.*Please use a list"):
        optim.SGD([{"params": {a}}])
    with pytest.raises(TypeError, match="param_group must be a dict, but got list"):
        optim.SGD([a]).add_param_group([b])  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="Some param names are missing"):
        optim.SGD([("a", a), b])
    with pytest.raises(ArgumentError, match="cannot add param group without names"):
        optim.SGD([("a", a)]).add_param_group({"params": [b]})
    with pytest.raises(ArgumentError, match="didn't specify a value of required optimization parameter lr"):
        optim.Optimizer([a], {"lr": optim.optimizer.required})
    optimizer = optim.SGD([a])
    optimizer.register_step_pre_hook(lambda *_: 3)
    with pytest.raises(ArgumentError, match="pre-hook must return None or a tuple of .new_args, new_kwargs., got 3 from .*<lambda>"):
        optimizer.step()


def test_a_failing_step_leaves_the_optimizer_usable() -> None:
    a, _ = two()
    optimizer = make("SGD", a)

    def closure() -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        optimizer.step(closure)
    assert calque.is_grad_enabled()
    calls = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    train_step(optimizer, a)
    assert calls == [1]


def test_own_optimizers() -> None:
    """Either `update_group`, or `step` as for PyTorch; hooks run once even if `step` calls its parent's."""

    class Loud(optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    a, _ = two()
    optimizer = Loud([a], lr=0.1)
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("pre"))
    train_step(optimizer, a)
    assert calls == ["pre"]

    class Halve(optim.Optimizer):
        def update_group(self, group: dict[str, Any]) -> None:
            for p in group["params"]:
                p.mul_(0.5)

    Halve([a], {}).step()
    np.testing.assert_allclose(a.tolist(), [0.4] * 3, rtol=1e-6)
    with pytest.raises(NotImplementedError):
        optim.Optimizer([a], {}).step()


# ----------------------------------------------------------------------------------------------------------- gradient clipping


def with_gradients() -> tuple[list[Any], list[Array]]:
    values = [np.array([[3.0, -4.0], [0.5, 1.0]]), np.array([12.0]), np.array(0.25)]
    ps = []
    for v in values:
        p = calque.zeros(*v.shape, dtype=calque.float64, requires_grad=True)
        p.grad = calque.tensor(v)
        ps.append(p)
    return [*ps, calque.zeros(1, requires_grad=True)], values


@pytest.mark.parametrize("order", [1.0, 2.0, 3.0, math.inf])
@pytest.mark.parametrize("limit", [0.0, 1.5, 1000.0])
def test_clip_grad_norm(order: float, limit: float) -> None:
    ps, values = with_gradients()
    flat = np.concatenate([v.ravel() for v in values])
    expected = np.linalg.norm(flat, order)
    kept = [p.grad for p in ps]
    addresses = [g.data_ptr() for g in kept[:3]]
    total = nn.utils.clip_grad_norm_(ps, limit, order)
    np.testing.assert_allclose(total.item(), expected, rtol=1e-14)
    for p, v, g, address in zip(ps, values, kept, addresses, strict=False):
        np.testing.assert_allclose(p.grad.numpy(), v * min(1.0, limit / (expected + 1e-6)), rtol=1e-14)
        assert p.grad is g and g.data_ptr() == address
    assert ps[3].grad is None


def test_clip_grad_value() -> None:
    ps, values = with_gradients()
    nn.utils.clip_grad_value_(ps, 2)
    for p, v in zip(ps, values, strict=False):
        np.testing.assert_array_equal(p.grad.numpy(), v.clip(-2, 2))
    nn.utils.clip_grad_value_(ps[0], 0.75)
    np.testing.assert_array_equal(ps[0].grad.numpy(), values[0].clip(-0.75, 0.75))


def test_clip_grad_mistakes() -> None:
    ps, values = with_gradients()
    with pytest.raises(ArgumentError, match="expected max_norm >= 0, got nan"):
        nn.utils.clip_grad_norm_(ps, math.nan)
    ps[0].grad = calque.tensor(values[0] * math.inf)
    with pytest.raises(NonFiniteError, match="is non-finite"):
        nn.utils.clip_grad_norm_(ps, 1.0, error_if_nonfinite=True)
    with pytest.warns(UserWarning, match="empty generator"):
        nn.utils.clip_grad_norm_((p for p in ()), 1.0)
    assert nn.utils.clip_grad_norm_([], 1.0).item() == 0.0
    for several in (lambda: nn.utils.clip_grad_norm_(range(10**9), 1.0), lambda: nn.utils.clip_grads_with_norm_(range(10**9), 1.0, calque.ones(()))):
        with pytest.raises(DTypeError, match="expected Tensors as parameters, got int"):  # at the first one: a list of all would be 8 GB
            several()


def test_initialising_a_large_model_is_a_program_of_its_own() -> None:
    """So the first step is the program of the later ones; a small model's is computed with the first step."""
    with mode():
        pending = []
        for layers in (2, 40):
            model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(layers)))
            optim.SGD(model.parameters(), lr=0.1)
            pending.append(local.state.trace.n)
        assert pending[0] > 0 and pending[1] == 0
