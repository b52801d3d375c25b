"""Plans of memory: what they predict is what a run holds then, and nothing is left of the rehearsal."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import calque
from bench.models import JOBS
from calque import nn
from calque.backend.cpu.team.memory import POOL
from calque.base.config import settings
from calque.base.errors import MemoryPlanError, ShapeError
from calque.memory import largest_batch, plan
from calque.monitor import AverageMeter
from calque.record.path import ALWAYS
from calque.record.recorder import flush, local, record_from_here
from calque.vision import models as zoo

F = nn.functional
pytestmark = pytest.mark.usefixtures("nothing_forgotten", "nothing_kept")


def measured(step: Callable[..., Any], *inputs: Any) -> int:
    """The peak of a loop."""
    gc.collect()
    calque.synchronize()
    POOL.reset_peak()
    for _ in range(3):
        result = step(*inputs)
        calque.synchronize()
    del result
    return POOL.stats().peak


@pytest.mark.parametrize("name", ["mlp", "lenet", "resnet18-32", pytest.param("resnet18-224", marks=pytest.mark.slow), "lstm", "gpt"])
def test_the_six_steps(name: str) -> None:
    job = JOBS[name]
    model = job.model(calque)
    optimizer = job.optimizer(calque, model)
    x, y = (calque.tensor(a) for a in job.batch(np.random.default_rng(0), job.small))
    found = plan(job.step, calque, model, optimizer, x, y)
    assert not optimizer.state and all(p.grad is None for p in model.parameters())
    assert measured(job.step, calque, model, optimizer, x, y) == pytest.approx(found.peak, rel=0.02)
    assert sum(h.nbytes for h in found.held) == found.peak
    assert found.held[0].line or found.held[0].kind == "made before"
    assert any(str(t.text).startswith("gradient of model.") for t in found.tensors)


def trained(build: Callable[[], Any], size: int, batch: int) -> Any:
    model = build()
    optimizer = calque.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x, y = calque.randn(batch, 3, size, size), calque.randint(0, 1000, (batch,))

    def step() -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()  # type: ignore[no-any-return]

    return step


def encoder() -> Any:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model = nn.Sequential(nn.Embedding(500, 64), nn.TransformerEncoder(layer, 3), nn.Linear(64, 500))
    optimizer = calque.optim.AdamW(model.parameters())
    x = calque.randint(0, 500, (8, 64))

    def step() -> Any:
        loss = F.cross_entropy(model(x).view(-1, 500), x.view(-1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return step


def recurrent() -> Any:
    model, head = nn.GRU(64, 128, 2), nn.Linear(128, 10)
    optimizer = calque.optim.Adam([*model.parameters(), *head.parameters()])
    x = calque.randn(20, 64, 64)

    def step() -> float:
        loss = head(model(x)[0]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss)

    return step


def evaluated() -> Any:
    model, x = zoo.resnet18().eval(), calque.randn(8, 3, 96, 96)

    def step() -> Any:
        with calque.no_grad():
            return model(x).argmax(1)

    return step


ZOO = {"resnet50": lambda: trained(zoo.resnet50, 40, 2), "encoder": encoder, "recurrent": recurrent, "evaluated": evaluated}
HEAVY = {
    "resnet18": lambda: trained(zoo.resnet18, 40, 2), "resnet34": lambda: trained(zoo.resnet34, 64, 4),
    "vgg11": lambda: trained(zoo.vgg11, 224, 2), "vgg13_bn": lambda: trained(zoo.vgg13_bn, 224, 1),
    "resnet101": lambda: trained(zoo.resnet101, 64, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", [*ZOO, *(pytest.param(name, marks=pytest.mark.slow) for name in HEAVY)])
def test_models_of_the_zoo(name: str) -> None:
    step = (ZOO | HEAVY)[name]()
    found = plan(step)
    assert measured(step) == pytest.approx(found.peak, rel=0.02)


def test_a_plan_leaves_nothing_behind() -> None:
    """A run with a plan before every step gives the bits of one without: parameters, states, statistics, streams of random numbers, Python."""

    def run(planned: bool) -> Any:
        calque.manual_seed(3)
        random.seed(3)
        np.random.seed(3)
        model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
        optimizer = calque.optim.Adam(model.parameters(), lr=0.01)
        scheduler, meter = calque.optim.lr_scheduler.StepLR(optimizer, 1, 0.5), AverageMeter("loss")
        scheduler_steps: list[int] = []
        total, count = 0.0, 0

        def step(x: Any) -> Any:
            nonlocal total, count
            optimizer.zero_grad()
            loss = model(x + random.random()).square().mean() + float(np.random.rand())
            loss.backward()
            optimizer.step()
            total, count = total + loss.detach(), count + 1
            scheduler_steps.append(count)
            scheduler.step()
            meter.update(loss)
            model.last = loss.detach()  # an attribute
            return loss

        losses = []
        for _ in range(4):
            x = calque.randn(8, 6)
            if planned:
                plan(step, x)
            losses.append(step(x).item())
        assert count == 4 and scheduler_steps == [1, 2, 3, 4] and scheduler.last_epoch == 4
        losses.append(meter.avg)
        state = {name: value.tolist() for name, value in model.state_dict().items()}
        return losses, float(total), state, float(model.last), [p.grad.tolist() for p in model.parameters()]

    calque.use_deterministic_algorithms(True)  # else a program is compiled when it has come often enough
    try:
        assert run(True) == run(False)
    finally:
        calque.use_deterministic_algorithms(False)


def test_values_that_python_looks_at() -> None:
    x = calque.ones(100, 100)

    def reads() -> Any:
        y = x @ x
        if y.sum().item() > 0:
            y = calque.cat([y, y])
        return y

    found = plan(reads)
    assert len(found.reads) == 1 and "test_plan.py" in found.reads[0][0] and "planned as if it were 1" in str(found)
    with pytest.raises(MemoryPlanError, match="expected a step that leaves the values of its tensors alone, but at .*test_plan.py"):
        plan(lambda: (x + 1).numpy())
    kept: Any = type("Holder", (), {"__slots__": ("value",)})()
    with pytest.raises(MemoryPlanError, match=r"still holds add \[100, 100\] float32 of .*test_plan.py"):
        plan(lambda holder: setattr(holder, "value", x + 1), kept)
    assert calque.equal(x, calque.ones(100, 100))


def test_an_error_of_the_step_comes_through_and_nothing_is_left() -> None:
    model = nn.Linear(4, 4)
    before = model.weight.tolist()

    def step() -> None:
        with calque.no_grad():
            model.weight.mul_(2)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        plan(step)
    assert model.weight.tolist() == before and (model.weight + 0).tolist() == before


@pytest.mark.parametrize("budget", ["2 parsecs", "", -1, True, None, "nan", "-2GiB"])
def test_wrong_budgets(budget: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="expected a budget"):
        plan(lambda: calque.ones(3) + 1).fits(budget)


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="expected a function, got int"):
        plan(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one step, got steps=0"):
        plan(lambda: None, steps=0)
    with pytest.raises(MemoryPlanError, match="outside of"):
        plan(lambda: plan(lambda: None))


def test_the_largest_batch() -> None:
    model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 5))

    def step(x: Any, y: Any) -> None:
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()

    budget = POOL.stats().in_use + (8 << 20)
    found = largest_batch(step, calque.randn(4, 32), calque.randint(0, 5, (4,)), budget=budget)
    fits = [plan(step, calque.randn(n, 32), calque.randint(0, 5, (n,))).peak for n in (found, found + max(found // 50, 8))]
    assert fits[0] <= budget * 1.01 and fits[1] > budget
    with pytest.raises(MemoryPlanError, match="expected one sample to fit into"):
        largest_batch(step, calque.randn(4, 32), calque.randint(0, 5, (4,)), budget=1000)


def test_the_largest_batch_of_a_step_that_refuses_one_sample() -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.Linear(64, 5))

    def step(x: Any) -> None:
        model.zero_grad()
        model(x).sum().backward()

    budget = POOL.stats().in_use + (4 << 20)
    assert largest_batch(step, calque.randn(16, 32), budget=budget) == largest_batch(step, calque.randn(2, 32), budget=budget) > 100
    with pytest.raises(MemoryPlanError, match="expected 2 samples to fit into"):
        largest_batch(step, calque.randn(16, 32), budget=1000)
    with pytest.raises(ShapeError, match="Expected more than 1 value per channel"):
        largest_batch(step, calque.randn(1, 32), budget=budget)


def test_an_error_in_the_middle_of_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever breaks a plan: the values that the step was to overwrite are there afterwards."""
    model = nn.Linear(40, 40)
    optimizer = calque.optim.Adam(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(calque.ones(64, 40)).square().mean().backward()
        optimizer.step()

    for name in ("plan_of", "_lowered", "hand_out"):
        before = [p.tolist() for p in model.parameters()]

        def broken(*_: Any) -> Any:
            raise ZeroDivisionError(name)  # noqa: B023

        with monkeypatch.context() as patch:
            patch.setattr(f"calque.memory.rehearsal.{name}", broken)
            with pytest.raises(ZeroDivisionError, match=name):
                plan(step)
        assert [(p + 0).tolist() for p in model.parameters()] == before and not optimizer.state
        step()
        calque.synchronize()
        assert [p.tolist() for p in model.parameters()] != before
        optimizer.state.clear()


def test_a_plan_among_small_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is computed where it is written (decision 0079) ends before a rehearsal: `plan` was refused there."""
    calque.manual_seed(0)
    model = nn.Linear(6, 3)
    optimizer = calque.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Any) -> None:
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()

    flush("test")
    monkeypatch.setattr(settings, "eager", 1)
    local.state.trace.recorded = 0
    try:
        x = calque.ones(4, 6) + 1
        y = x * 2
        assert local.state.trace.eager
        before = model.weight.detach().numpy().copy()
        found = plan(step, y)
        assert found.peak > found.before and np.array_equal(model.weight.detach().numpy(), before)
        z = x * 3
        assert largest_batch(step, z, budget="1MiB") > 100
    finally:
        record_from_here(local.state, "test")
        local.state.trace.recorded = ALWAYS
