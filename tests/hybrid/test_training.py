"""Whole training steps in one hybridized call: every optimizer, schedules, scaled losses, clipping, two optimizers, accumulation, caches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn
from tests.hybrid.common import counts


def batches(count: int, rows: int = 4, scale: float = 1.0) -> list[Any]:
    rng = np.random.default_rng(0)
    return [calque.tensor(rng.standard_normal((rows, 6), dtype=np.float32) * scale) for _ in range(count)]


def perceptron() -> Any:
    calque.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))


def compare(run: Callable[[Callable[[Any], Any]], Any], least: int) -> None:
    """`run(wrap)` gives the same as written and hybridized, with at least so many replays."""
    expected = run(lambda f: f)
    before = counts()
    got = run(calque.compile)
    after = counts()
    assert repr(expected) == repr(got)
    assert after["replays"] - before["replays"] >= least, after["reasons"]


def state(*owners: Any) -> list[Any]:
    """Everything in state dicts, as lists."""
    found: list[Any] = []
    for owner in owners:
        stack = [owner.state_dict()]
        while stack:
            item = stack.pop()
            if isinstance(item, dict):
                stack += item.values()
            elif isinstance(item, (list, tuple)):
                stack += item
            else:
                found.append(item.tolist() if isinstance(item, calque.Tensor) else item)
    return found


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9, "nesterov": True}, "Adam": {"amsgrad": True}, "AdamW": {}, "RMSprop": {"momentum": 0.5, "centered": True},
    "Adagrad": {"lr_decay": 0.1},
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_with_a_schedule_and_clipping_inside(name: str) -> None:
    def run(wrap: Callable[[Any], Any]) -> Any:
        net = perceptron()
        optimizer = getattr(calque.optim, name)(net.parameters(), lr=0.05, **OPTIMIZERS[name])
        schedule = calque.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.5)

        def step(x: Any) -> Any:
            optimizer.zero_grad()
            loss = (net(x) ** 2).mean()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
            schedule.step()
            return loss.item()

        call = wrap(step)
        losses = [call(x) for x in batches(14)]
        return losses, state(net, optimizer, schedule), optimizer.param_groups[0]["lr"], calque.rand(2).tolist()

    compare(run, 10)


def test_scaled_losses_with_steps_that_are_skipped() -> None:
    def run(wrap: Callable[[Any], Any]) -> Any:
        net = perceptron()
        optimizer = calque.optim.SGD(net.parameters(), lr=0.05)
        scaler = calque.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)

        def step(x: Any) -> Any:
            optimizer.zero_grad()
            with calque.autocast("cpu", dtype=calque.bfloat16):
                loss = (net(x).float() ** 2).mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            return loss

        call, losses = wrap(step), []
        for k, x in enumerate(batches(30)):
            losses.append(call(x * float("inf") if k % 7 == 5 else x * 1.0).tolist())
            losses.append(scaler.get_scale())
        return losses, scaler.state_dict(), [p.detach().tolist() for p in net.parameters()]

    compare(run, 15)


def test_two_optimizers_in_one_call() -> None:
    def run(wrap: Callable[[Any], Any]) -> Any:
        maker, judge = perceptron(), nn.Linear(3, 1)
        first, second = calque.optim.Adam(maker.parameters(), lr=0.01), calque.optim.RMSprop(judge.parameters(), lr=0.01)

        def step(x: Any) -> Any:
            made = maker(x)
            second.zero_grad()
            judge_loss = nn.functional.softplus(judge(made.detach())).mean()
            judge_loss.backward()
            second.step()
            first.zero_grad()
            maker_loss = nn.functional.softplus(-judge(made)).mean()
            maker_loss.backward()
            first.step()
            return judge_loss, maker_loss

        call = wrap(step)
        return [[loss.tolist() for loss in call(x)] for x in batches(10)], state(maker, judge, first, second)

    compare(run, 6)


def test_accumulation_over_several_calls() -> None:
    def run(wrap: Callable[[Any], Any]) -> Any:
        net = perceptron()
        optimizer = calque.optim.AdamW(net.parameters(), lr=0.01)

        def step(x: Any, last: bool) -> Any:
            loss = (net(x) ** 2).mean() / 3
            loss.backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
            return loss.item()

        call = wrap(step)
        return [call(x, k % 3 == 2) for k, x in enumerate(batches(24))], state(net, optimizer)

    compare(run, 12)


def test_rates_that_the_step_itself_sets() -> None:
    def run(wrap: Callable[[Any], Any]) -> Any:
        net = perceptron()
        optimizer = calque.optim.SGD(net.parameters(), lr=0.05)

        def step(x: Any) -> Any:
            for group in optimizer.param_groups:
                group["lr"] *= 0.5 if group["lr"] > 0.01 else 1.25
            optimizer.zero_grad()
            loss = (net(x) ** 2).mean()
            loss.backward()
            optimizer.step()
            return loss * optimizer.param_groups[0]["lr"]

        call = wrap(step)
        return [call(x).item() for x in batches(14)], state(net)

    compare(run, 0)


def test_code_that_reads_a_schedule() -> None:
    def run(wrap: Callable[[Any], Any]) -> Any:
        w = calque.ones(6, requires_grad=True)
        optimizer = calque.optim.SGD([w], lr=0.5)
        schedule = calque.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

        def step(x: Any) -> Any:
            schedule.step()
            return x * schedule.get_last_lr()[0]

        def peek(x: Any) -> Any:
            schedule.step()
            return x * schedule.last_epoch

        first, second = wrap(step), wrap(peek)
        optimizer.step()
        return [(first(x).tolist(), second(x).tolist()) for x in batches(10, 1)]

    compare(run, 0)


def test_a_cache_that_grows_and_one_of_fixed_size() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.key = nn.Linear(6, 4)
            self.register_buffer("keys", calque.zeros(12, 4))
            self.register_buffer("length", calque.zeros((), dtype=calque.int64))

        def forward(self, x: Any) -> Any:
            n = int(self.length)
            self.keys[n : n + 1] = self.key(x).detach()
            self.length.add_(1)
            scores = self.keys[: n + 1] @ self.key(x).reshape(4)
            return scores.softmax(0).sum(), scores

    def run(wrap: Callable[[Any], Any]) -> Any:
        calque.manual_seed(0)
        net = Attention()
        call = wrap(net)
        found = []
        with calque.no_grad():
            for _ in range(5):
                net.length.zero_()
                for x in batches(10, 1):
                    total, scores = call(x)
                    found.append((total.tolist(), scores.tolist()))
        return found, net.keys.tolist()

    def wrapped(f: Any) -> Any:
        return f

    expected = run(wrapped)
    before = counts()["replays"]
    assert run(lambda net: net.hybridize()) == expected
    assert counts()["replays"] - before >= 15
