"""The optimizers that load on first use, against float64 NumPy references written from the papers; and that an optimizer is one class."""

from __future__ import annotations

import copy
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn, optim
from calque.optim.optimizer import Optimizer, gradient, replace, slot

Array = np.ndarray
START = np.array([[0.5, -1.5, 0.25], [2.0, 0.0, -1.0]])


def gradients(count: int = 9) -> list[Array]:
    return list(np.random.default_rng(5).normal(size=(count, *START.shape)))


def adadelta(gs: list[Array], lr: float = 1.0, rho: float = 0.9, eps: float = 1e-6) -> Iterator[Array]:
    p, v, u = START.copy(), 0 * START, 0 * START
    for g in gs:
        v = rho * v + (1 - rho) * g**2
        d = np.sqrt(u + eps) / np.sqrt(v + eps) * g
        u = rho * u + (1 - rho) * d**2
        p = p - lr * d
        yield p


def adamax(gs: list[Array], lr: float = 2e-3, betas: tuple = (0.9, 0.999), eps: float = 1e-8) -> Iterator[Array]:
    p, m, u = START.copy(), 0 * START, 0 * START
    for t, g in enumerate(gs, 1):
        m = betas[0] * m + (1 - betas[0]) * g
        u = np.maximum(betas[1] * u, np.abs(g) + eps)
        p = p - lr / (1 - betas[0] ** t) * m / u
        yield p


def nadam(gs: list[Array], lr: float = 2e-3, betas: tuple = (0.9, 0.999), eps: float = 1e-8, momentum_decay: float = 4e-3) -> Iterator[Array]:
    p, m, v, product = START.copy(), 0 * START, 0 * START, 1.0
    for t, g in enumerate(gs, 1):
        mu, following = (betas[0] * (1 - 0.96 ** (k * momentum_decay) / 2) for k in (t, t + 1))
        product *= mu
        m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g**2
        look = following * m / (1 - product * following) + (1 - mu) * g / (1 - product)
        p = p - lr * look / (np.sqrt(v / (1 - betas[1] ** t)) + eps)
        yield p


def radam(gs: list[Array], lr: float = 1e-3, betas: tuple = (0.9, 0.999), eps: float = 1e-8) -> Iterator[Array]:
    p, m, v, longest = START.copy(), 0 * START, 0 * START, 2 / (1 - betas[1]) - 1
    for t, g in enumerate(gs, 1):
        m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g**2
        length = longest - 2 * t * betas[1] ** t / (1 - betas[1] ** t)
        step: Any = 1.0
        if length > 5:
            r = math.sqrt((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length))
            step = r * math.sqrt(1 - betas[1] ** t) / (np.sqrt(v) + eps)
        p = p - lr * m / (1 - betas[0] ** t) * step
        yield p


def asgd(gs: list[Array], lr: float = 1e-2, lambd: float = 1e-4, alpha: float = 0.75) -> Iterator[Array]:
    p, eta = START.copy(), lr
    for t, g in enumerate(gs, 1):
        p = p - eta * (g + lambd * p)
        eta = lr / (1 + lambd * lr * t) ** alpha
        yield p


def rprop(gs: list[Array], lr: float = 1e-2, etas: tuple = (0.5, 1.2), step_sizes: tuple = (1e-6, 50)) -> Iterator[Array]:
    p, size, before = START.copy(), np.full_like(START, lr), 0 * START
    for g in gs:
        turn = np.sign(g * before)
        size = np.clip(size * np.where(turn > 0, etas[1], np.where(turn < 0, etas[0], 1.0)), *step_sizes)
        before = np.where(turn < 0, 0.0, g)
        p = p - np.sign(before) * size
        yield p


def adafactor(gs: list[Array], lr: float = 1e-2, beta2_decay: float = -0.8, d: float = 1.0) -> Iterator[Array]:
    p, r, c, eps = START.copy(), np.zeros((2, 1)), np.zeros((1, 3)), np.finfo(np.float64).eps
    for t, g in enumerate(gs, 1):
        share = t**beta2_decay
        r = (1 - share) * r + share * (g**2).mean(1, keepdims=True)
        c = (1 - share) * c + share * (g**2).mean(0, keepdims=True)
        u = g / np.sqrt(np.maximum(r * c / np.maximum(r.mean(), eps), eps**2))
        rms = np.sqrt((u**2).mean())
        p = p - min(lr, 1 / math.sqrt(t)) * max(1e-3, np.sqrt((p**2).mean())) * u / max(1.0, rms / d)
        yield p


def lars(
    gs: list[Array], lr: float = 1e-3, momentum: float = 0.9, weight_decay: float = 0, trust_coefficient: float = 1e-3, nesterov: bool = False
) -> Iterator[Array]:
    p, v, norm = START.copy(), 0 * START, np.linalg.norm
    for g in gs:
        g = (g + weight_decay * p) * trust_coefficient * norm(p) / (norm(g) + weight_decay * norm(p) + 1e-8)
        v = momentum * v + g
        p = p - lr * (g + momentum * v if nesterov else v)
        yield p


def lamb(gs: list[Array], lr: float = 1e-3, betas: tuple = (0.9, 0.999), eps: float = 1e-6, weight_decay: float = 0) -> Iterator[Array]:
    p, m, v, norm = START.copy(), 0 * START, 0 * START, np.linalg.norm
    for t, g in enumerate(gs, 1):
        m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g**2
        u = m / (1 - betas[0] ** t) / (np.sqrt(v / (1 - betas[1] ** t)) + eps) + weight_decay * p
        p = p - lr * norm(p) / norm(u) * u
        yield p


CASES: list[tuple[str, Callable[..., Iterator[Array]], dict[str, Any]]] = [
    ("Adadelta", adadelta, {"lr": 0.5, "rho": 0.8}), ("Adamax", adamax, {"lr": 0.1}), ("NAdam", nadam, {"lr": 0.1, "momentum_decay": 0.1}),
    ("RAdam", radam, {"lr": 0.1}), ("RAdam", radam, {"lr": 0.1, "betas": (0.5, 0.8)}), ("ASGD", asgd, {"lr": 0.1, "lambd": 0.1}),
    ("Rprop", rprop, {"lr": 0.1}), ("Adafactor", adafactor, {"lr": 0.1}), ("Adafactor", adafactor, {"d": 2.0, "beta2_decay": -0.5}),
    ("LARS", lars, {"lr": 0.5, "weight_decay": 0.1, "trust_coefficient": 0.1}),
    ("LARS", lars, {"nesterov": True, "trust_coefficient": 0.5, "lr": 0.1}),
    ("LAMB", lamb, {"lr": 0.1, "weight_decay": 0.1}),
]  # fmt: skip
ROUNDS = {"NAdam": 1e-6, "ASGD": 1e-6}  # rates that PyTorch keeps in float32
NAMES = sorted({name for name, _, _ in CASES} | {"Muon"})


@pytest.mark.parametrize(("name", "reference", "options"), CASES, ids=lambda v: v if isinstance(v, str) else None)
def test_follows_the_paper(name: str, reference: Callable[..., Iterator[Array]], options: dict[str, Any]) -> None:
    p = calque.tensor(START.copy()).requires_grad_()
    optimizer = getattr(optim, name)([p], **options)
    for g, wanted in zip(gradients(), reference(gradients(), **options), strict=True):
        p.grad = calque.tensor(g)
        optimizer.step()
        np.testing.assert_allclose(p.detach().numpy(), wanted, rtol=ROUNDS.get(name, 1e-11), atol=ROUNDS.get(name, 1e-11))


@pytest.mark.parametrize("name", ["LARS", "LAMB"])
def test_zeros_are_not_scaled(name: str) -> None:
    """A bias that starts at zero has no norm to compare an update with, and a gradient of zeros moves nothing."""
    p = calque.zeros(3, requires_grad=True)
    optimizer = getattr(optim, name)([p], lr=0.5)
    p.grad = calque.ones(3)
    optimizer.step()
    assert p.tolist() == pytest.approx([-0.5] * 3, rel=1e-4)
    q = calque.ones(3, requires_grad=True)
    optimizer = getattr(optim, name)([q], lr=0.5)
    q.grad = calque.zeros(3)
    optimizer.step()
    assert q.tolist() == [1.0] * 3


def test_muon_makes_singular_values_equal() -> None:
    g = np.random.default_rng(1).normal(size=(6, 4))
    p = calque.zeros(6, 4, requires_grad=True)
    optimizer = optim.Muon([p], lr=1.0, weight_decay=0.0, momentum=0.0)
    p.grad = calque.tensor(g.astype(np.float32))
    optimizer.step()
    found = np.linalg.svd(p.detach().numpy(), compute_uv=False) / math.sqrt(6 / 4)
    assert found.min() > 0.6 and found.max() < 1.3  # the coefficients of the iteration give values around 1, not 1


@pytest.mark.parametrize("name", NAMES)
def test_replays_say_the_same(name: str) -> None:
    """A hybridized loop, a plain one and one whose state went through a dict have the same values."""

    def trained(hybrid: bool, resume: bool = False) -> list[list[float]]:
        calque.manual_seed(0)
        layer = nn.Linear(3, 2, bias=False)
        optimizer = getattr(optim, name)(layer.parameters(), lr=0.05)
        x, y = calque.randn(8, 3), calque.randn(8, 2)

        def step() -> Any:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(layer(x), y)
            loss.backward()
            optimizer.step()
            return loss

        run = calque.compile(step) if hybrid else step
        for k in range(12):
            if resume and k == 7:
                state = copy.deepcopy(optimizer.state_dict())
                optimizer = getattr(optim, name)(layer.parameters(), lr=0.7)
                optimizer.load_state_dict(state)
            float(run())
        return layer.weight.tolist()

    wanted = trained(False)
    for other in (trained(True), trained(False, resume=True)):
        np.testing.assert_allclose(other, wanted, rtol=2e-2 if name == "Muon" else 1e-5)


class Lion(Optimizer):
    """Evolved sign momentum (Chen et al. 2023): everything that an optimizer of one's own has to say."""

    state_like_parameter = ("exp_avg",)
    replays = True

    def __init__(self, params: Any, lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": False})

    def step_numbers(self, group: dict[str, Any], parameters: list[Any]) -> list[float]:
        return [float(group["lr"])]

    def update_group(self, group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        parameters = [p for p in group["params"] if p._grad is not None]
        (lr,) = self.changing(group, parameters)
        for p in parameters:
            g, mean = gradient(p, group), slot(self.state[p], "exp_avg", p)
            replace(p, p - ((mean * beta1 + g * (1 - beta1)).sign() + p * group["weight_decay"]) * lr)
            replace(mean, mean * beta2 + g * (1 - beta2))


def test_an_optimizer_is_one_class() -> None:
    """One class in memory: steps as one program, schedules, closures, state dicts and hybridized loops come with it."""
    p, m = START.copy(), 0 * START
    q = calque.tensor(START.copy()).requires_grad_()
    optimizer = Lion([q], lr=0.1, weight_decay=0.1)
    scheduler = optim.lr_scheduler.StepLR(optimizer, 4)
    flushes = []
    for k, g in enumerate(gradients()):
        lr = 0.1 * 0.1 ** (k // 4)
        p = p - lr * (np.sign(0.9 * m + 0.1 * g) + 0.1 * p)
        m = 0.99 * m + 0.01 * g
        q.grad = calque.tensor(g)
        before = calque.stats()["flushes"]
        optimizer.step()
        flushes.append(calque.stats()["flushes"] - before)
        scheduler.step()
        np.testing.assert_allclose(q.detach().numpy(), p, rtol=1e-12)
    assert set(flushes) == {1}
    again = Lion([q], lr=7.0)
    again.load_state_dict(optimizer.state_dict())
    assert again.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
    assert again.state[q]["exp_avg"].tolist() == optimizer.state[q]["exp_avg"].tolist()

    @calque.compile
    def step(g: Any) -> Any:
        again.zero_grad()
        (q * g).sum().backward()
        again.step()

    before = calque.stats()["hybridize"]["replays"]
    for g in gradients():
        step(calque.tensor(g))
        p, m = p - again.param_groups[0]["lr"] * (np.sign(0.9 * m + 0.1 * g) + 0.1 * p), 0.99 * m + 0.01 * g
        np.testing.assert_allclose(q.detach().numpy(), p, rtol=1e-12)
    assert calque.stats()["hybridize"]["replays"] > before


def test_others_load_when_they_are_named() -> None:
    code = (
        "import sys, calque; assert 'calque.optim.nadam' not in sys.modules and 'NAdam' in dir(calque.optim); calque.optim.NAdam; "
        "assert 'calque.optim.nadam' in sys.modules and 'calque.optim.muon' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
    with pytest.raises(AttributeError, match="has no attribute 'Adamm'"):
        optim.Adamm  # noqa: B018


def test_subclasses_that_never_call_init_have_their_hooks() -> None:
    class Wrapper(Optimizer):
        def __init__(self, base: Any) -> None:
            self.base, self.param_groups = base, base.param_groups

        def step(self, closure: Any = None) -> Any:
            return self.base.step(closure)

    w = calque.ones(2, requires_grad=True)
    wrapper, seen = Wrapper(optim.SGD([w], lr=0.5)), []
    wrapper.register_step_post_hook(lambda *_: seen.append(w.tolist()))
    w.sum().backward()
    wrapper.step()
    wrapper.zero_grad()
    assert seen == [[0.5, 0.5]] and w.grad is None
    assert not Wrapper(wrapper.base)._optimizer_step_post_hooks


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: optim.Rprop(p, etas=(0.5, 0.9)), r"\[Rprop\] Invalid eta values: .* got \(0.5, 0.9\)"),
        (lambda p: optim.Adafactor(p, d=0.5), r"\[Adafactor\] Invalid clipping threshold d: .*\[1, inf\), got 0.5"),
        (lambda p: optim.Adafactor(p, eps=1e-3), r"\[Adafactor\] expected eps as a pair"),
        (lambda p: optim.Muon(p), r"\[Muon\] Muon only supports 2D parameters, got shape \[3\]"),
        (lambda p: optim.Muon(p, adjust_lr_fn="other"), r"\[Muon\] expected adjust_lr_fn as None, 'original' or 'match_rms_adamw', got 'other'"),
        (lambda p: optim.Muon(p, ns_coefficients=(1.0, 2.0)), r"\[Muon\] expected three ns_coefficients"),
        (lambda p: optim.NAdam(p, betas=0.9), r"\[NAdam\] expected betas as a pair of numbers in \[0, 1\), got 0.9"),
        (lambda p: optim.SparseAdam(p, lr=0), r"\[SparseAdam\] Invalid learning rate: expected a number larger than 0, got 0"),
        (lambda p: optim.LARS(p, trust_coefficient=-1), r"\[LARS\] Invalid trust coefficient"),
    ],
)
def test_refusals(make: Callable[[Any], Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make([calque.ones(3, requires_grad=True)])
