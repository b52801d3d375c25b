"""Learning-rate schedules inside hybridized training steps: every rate, momentum and counter is that of the step as written, in every replay."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

import calque
from calque import nn

F = nn.functional
L = calque.optim.lr_scheduler
STEPS = 40

SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "StepLR": lambda o: L.StepLR(o, 3),
    "LambdaLR": lambda o: L.LambdaLR(o, lambda k: 1 / (1 + k)),
    "SequentialLR": lambda o: L.SequentialLR(o, [L.LinearLR(o, 0.1, total_iters=4), L.CosineAnnealingLR(o, 8), L.StepLR(o, 2)], [4, 20]),
    "ChainedScheduler": lambda o: L.ChainedScheduler([L.ConstantLR(o, 0.5, 4), L.ExponentialLR(o, 0.9)]),
    "CosineAnnealingWarmRestarts": lambda o: L.CosineAnnealingWarmRestarts(o, 4, 2),
    "OneCycleLR": lambda o: L.OneCycleLR(o, 0.1, total_steps=STEPS + 2),
    "OneCycleLR, three phases": lambda o: L.OneCycleLR(o, 0.1, total_steps=STEPS + 2, three_phase=True, anneal_strategy="linear"),
    "OneCycleLR without momentum": lambda o: L.OneCycleLR(o, 0.1, total_steps=STEPS + 2, cycle_momentum=False),
    "CyclicLR": lambda o: L.CyclicLR(o, 0.01, 0.1, 3, 4),
    "CyclicLR down to no momentum": lambda o: L.CyclicLR(o, 0.01, 0.1, 4, 4, base_momentum=0.0, mode="triangular2"),
    "CyclicLR without momentum": lambda o: L.CyclicLR(o, 0.01, 0.1, 3, 4, cycle_momentum=False, mode="exp_range", gamma=0.9),
    "ReduceLROnPlateau": lambda o: L.ReduceLROnPlateau(o, patience=1, threshold=0.2, cooldown=1),
}
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda p: calque.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda p: calque.optim.AdamW(p, lr=0.05),
    "rmsprop": lambda p: calque.optim.RMSprop(p, lr=0.05, momentum=0.9),
}


def train(schedule: str, optimizer: str, hybridized: bool, metric: Callable[[Any], Any], middle: Callable[..., None]) -> str:
    """Everything that a run leaves behind, after every step."""
    calque.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    rates = OPTIMIZERS[optimizer](model.parameters())
    plan = SCHEDULES[schedule](rates)
    plateau = schedule == "ReduceLROnPlateau"

    def step(x: Any, y: Any) -> Any:
        rates.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        rates.step()
        if plateau:
            plan.step(metric(loss))
        else:
            plan.step()
        return loss

    call = calque.compile(step) if hybridized else step
    seen = []
    for k in range(STEPS):
        if k == STEPS // 2:
            middle(rates, plan)
        loss = call(calque.randn(5, 4), calque.randn(5, 3))
        options = [{name: value for name, value in group.items() if name != "params"} for group in rates.param_groups]
        seen.append((loss.item(), options, plan.state_dict() if "Lambda" not in schedule else plan.get_last_lr()))
    return repr((seen, [p.tolist() for p in model.parameters()]))


def nothing(*_: Any) -> None:
    pass


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_rates_of_replays(schedule: str, optimizer: str) -> None:
    run = functools.partial(train, schedule, optimizer, metric=lambda loss: loss.item(), middle=nothing)
    expected = run(False)
    before = calque.stats()["hybridize"]
    assert run(True) == expected
    after = calque.stats()["hybridize"]
    assert after["imperative"] - before["imperative"] == 1 and after["replays"] - before["replays"] >= STEPS - 12, after["reasons"]


@pytest.mark.parametrize("kind", ["tensor", "computed", "constant"])
def test_metrics_of_a_plateau(kind: str) -> None:
    metrics: dict[str, Callable[[Any], Any]] = {
        "tensor": lambda loss: loss.detach(), "computed": lambda loss: 0.5 * loss.item() + 0.01, "constant": lambda loss: 3,
    }  # fmt: skip
    run = functools.partial(train, "ReduceLROnPlateau", "sgd", metric=metrics[kind], middle=nothing)
    expected = run(False)
    before = calque.stats()["hybridize"]["replays"]
    assert run(True) == expected
    assert calque.stats()["hybridize"]["replays"] - before >= STEPS - 4


@pytest.mark.parametrize("schedule", ["OneCycleLR", "SequentialLR", "ReduceLROnPlateau"])
@pytest.mark.parametrize("change", ["rate", "state", "momentum"])
def test_changes_between_steps(schedule: str, change: str) -> None:
    def middle(rates: Any, plan: Any) -> None:
        if change == "rate":
            rates.param_groups[0]["lr"] = 0.123
        elif change == "momentum":
            rates.param_groups[0]["momentum"] = 0.25
        else:
            plan.load_state_dict({**plan.state_dict(), "last_epoch": 3})

    run = functools.partial(train, schedule, "sgd", metric=lambda loss: loss.item(), middle=middle)
    assert run(True) == run(False)


def test_code_that_reads_a_momentum_that_moves() -> None:
    """It is compared like any other value that code names."""
    weight = calque.ones(2, requires_grad=True)
    rates = calque.optim.SGD([weight], lr=0.1, momentum=0.9)
    plan = L.CyclicLR(rates, 0.01, 0.1, 3, 4)

    def read(x: Any) -> Any:
        return x * rates.param_groups[0]["momentum"]

    hybrid = calque.compile(read)
    for _ in range(12):
        x = calque.ones(2)
        assert hybrid(x).tolist() == read(x).tolist()
        weight.grad = calque.ones(2)
        rates.step()
        plan.step()
