"""The leak watcher names the variable in ten loops with a leak, and says nothing of ten without."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

import calque
from calque import nn
from calque.memory import LeakWarning, LeakWatch
from calque.monitor import Meter

TURNS = 16
GLOBAL: list[Any] = []


class Parts:
    """A model, its optimizer and a batch."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        self.optimizer = calque.optim.SGD(self.model.parameters(), lr=0.01)
        self.x = calque.randn(16, 4)

    def loss(self) -> Any:
        return self.model(self.x).square().mean()

    def update(self) -> Any:
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        self.optimizer.step()
        return loss


def summed(p: Parts, watch: LeakWatch) -> None:
    total_loss = 0.0
    for _ in range(TURNS):
        total_loss += p.update()
        watch.step()


def listed(p: Parts, watch: LeakWatch) -> None:
    losses = []
    for _ in range(TURNS):
        losses.append(p.update())
        watch.step()


def in_a_dict(p: Parts, watch: LeakWatch) -> None:
    history: dict[str, list[Any]] = {"loss": []}
    for _ in range(TURNS):
        history["loss"].append(p.update())
        watch.step()


def by_number(p: Parts, watch: LeakWatch) -> None:
    cache = {}
    for k in range(TURNS):
        cache[k] = p.model(p.x)
        watch.step()


def on_an_object(p: Parts, watch: LeakWatch) -> None:
    class Tracker:
        def __init__(self) -> None:
            self.seen: list[Any] = []

    tracker = Tracker()
    for _ in range(TURNS):
        tracker.seen.append(p.update())
        watch.step()


def in_a_closure(p: Parts, watch: LeakWatch) -> None:
    def recorder() -> Callable[[Any], None]:
        kept: list[Any] = []
        return lambda value: kept.append(value)

    record = recorder()
    for _ in range(TURNS):
        record(p.update())
        watch.step()


def in_a_module(p: Parts, watch: LeakWatch) -> None:
    GLOBAL.clear()
    for _ in range(TURNS):
        GLOBAL.append(p.update())
        watch.step()
    GLOBAL.clear()


def averaged(p: Parts, watch: LeakWatch) -> None:
    average = calque.zeros(())
    for _ in range(TURNS):
        average = 0.9 * average + 0.1 * p.update()
        watch.step()


def carried(p: Parts, watch: LeakWatch) -> None:
    cell = nn.GRUCell(4, 8)
    hidden = calque.zeros(16, 8)
    for _ in range(TURNS):
        hidden = cell(p.x, hidden)
        watch.step()


def hooked(p: Parts, watch: LeakWatch) -> None:
    activations: list[Any] = []
    handle = p.model[0].register_forward_hook(lambda module, given, out: activations.append(out))
    for _ in range(TURNS):
        p.update()
        watch.step()
    handle.remove()


LEAKS = {
    summed: "total_loss", listed: "losses", in_a_dict: "history", by_number: "cache", on_an_object: "tracker.seen", in_a_closure: "record: kept",
    in_a_module: "GLOBAL", averaged: "average", carried: "hidden", hooked: "activations",
}  # fmt: skip


def plain(p: Parts, watch: LeakWatch) -> None:
    for _ in range(TURNS):
        loss = p.update()
        watch.step()
    assert loss is not None


def numbers(p: Parts, watch: LeakWatch) -> None:
    total, losses = 0.0, []
    for _ in range(TURNS):
        loss = p.update()
        total += loss.item()
        losses.append(float(loss))
        watch.step()


def detached(p: Parts, watch: LeakWatch) -> None:
    losses, total = [], calque.zeros(())
    for _ in range(TURNS):
        loss = p.update()
        losses.append(loss.detach())
        total += loss.detach()
        watch.step()


def bounded(p: Parts, watch: LeakWatch) -> None:
    last: deque[Any] = deque(maxlen=3)
    for _ in range(TURNS):
        last.append(p.update())
        watch.step()


def metered(p: Parts, watch: LeakWatch) -> None:
    meter = Meter()
    for _ in range(TURNS):
        meter.update(p.update())
        watch.step()


def truncated(p: Parts, watch: LeakWatch) -> None:
    cell = nn.GRUCell(4, 8)
    hidden = calque.zeros(16, 8)
    for _ in range(TURNS):
        hidden = cell(p.x, hidden.detach())
        hidden.sum().backward()
        watch.step()


def predicted(p: Parts, watch: LeakWatch) -> None:
    outputs = []
    for _ in range(TURNS):
        with calque.no_grad():
            outputs.append(p.model(p.x))
        watch.step()


def accumulated(p: Parts, watch: LeakWatch) -> None:
    for k in range(TURNS):
        (p.loss() / 4).backward()
        if k % 4 == 3:
            p.optimizer.step()
            p.optimizer.zero_grad()
        watch.step()


def unrolled(p: Parts, watch: LeakWatch) -> None:
    for _ in range(TURNS):
        steps = [p.loss() for _ in range(3)]
        calque.stack(steps).sum().backward()
        watch.step()


def smoothed(p: Parts, watch: LeakWatch) -> None:
    shadow = {name: value.detach().clone() for name, value in p.model.named_parameters()}
    for _ in range(TURNS):
        p.update()
        with calque.no_grad():
            for name, value in p.model.named_parameters():
                shadow[name].mul_(0.9).add_(value, alpha=0.1)
        watch.step()


CLEAN = (plain, numbers, detached, bounded, metered, truncated, predicted, accumulated, unrolled, smoothed)


@pytest.mark.parametrize("loop", LEAKS, ids=lambda loop: loop.__name__)
def test_a_leak_is_named(loop: Any) -> None:
    watch = LeakWatch()
    with pytest.warns(LeakWarning) as caught:
        loop(Parts(), watch)
    assert [leak.name for leak in watch.leaks] == [LEAKS[loop]]
    assert len(caught) == 1 and f"`{LEAKS[loop]}`" in str(caught[0].message) and "test_leaks.py" in str(caught[0].message)
    assert watch.leaks[0].nodes >= 1


@pytest.mark.parametrize(
    "loop", [pytest.param(loop, marks=pytest.mark.slow if k % 2 else (), id=loop.__name__) for k, loop in enumerate(CLEAN)]
)
def test_nothing_is_said_of_a_clean_loop(loop: Any) -> None:
    watch = LeakWatch(every=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LeakWarning)
        loop(Parts(), watch)
    assert watch.leaks == []
