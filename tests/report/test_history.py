"""Autograd history that is kept alive without need is named; loops that keep none stay silent."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import calque
from calque import nn
from calque.base.errors import LeakWarning
from calque.record import recorder
from calque.record.path import Counters
from calque.record.trie import BOUND
from calque.report import history
from tests.fuzz.endless import bounds


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    history._seen.clear()
    history._roots.clear()
    yield
    history._seen.clear()  # a recorded path remembers the first line that made it


class Training:
    """A tiny model and its optimizer."""

    def __init__(self, layers: int = 1) -> None:
        self.model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(layers)])
        self.optimizer = calque.optim.SGD(self.model.parameters(), lr=1e-3)
        self.x = calque.ones(2, 4)
        self.total: Any = 0.0

    def step(self) -> Any:
        loss = (self.model(self.x) ** 2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


def warnings_of(action: Callable[[], None]) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    return [c for c in caught if issubclass(c.category, LeakWarning)]


def assert_named(found: list[warnings.WarningMessage], *facts: str) -> None:
    assert len(found) == 1, [str(c.message) for c in found]
    for fact in (*facts, "test_history.py:", "memory grows at every step", ".detach()"):
        assert fact in str(found[0].message)
    assert found[0].filename == __file__


def test_total_plus_loss_is_named() -> None:
    def loop() -> None:
        training, total_loss = Training(), 0
        for _ in range(130):
            total_loss = total_loss + training.step()

    assert_named(warnings_of(loop), "total_loss (", "earlier iterations", ".item()")


def test_in_place_addition_is_named() -> None:
    def loop() -> None:
        training, epoch_loss = Training(), calque.zeros(())
        for _ in range(130):
            epoch_loss += training.step()

    assert_named(warnings_of(loop), "epoch_loss (", ".item()")


def test_an_attribute_is_named() -> None:
    class Meter:
        def __init__(self) -> None:
            self.total: Any = 0

        def update(self, loss: Any) -> None:
            self.total = self.total + loss

    def loop() -> None:
        training, meter = Training(), Meter()
        for _ in range(130):
            meter.update(training.step())

    assert_named(warnings_of(loop), "self.total (", ".item()")


def test_an_entry_of_a_dict_is_named() -> None:
    def loop() -> None:
        training, logs = Training(), {"loss": calque.zeros(())}
        for _ in range(130):
            logs["loss"] = logs["loss"] + training.step()

    assert_named(warnings_of(loop), "logs['loss'] (", ".item()")


def test_a_list_of_losses_is_named() -> None:
    def loop() -> None:
        training, history_of_losses = Training(), []
        for _ in range(130):
            history_of_losses.append(training.step())

    assert_named(warnings_of(loop), "history_of_losses holds", "append loss.item()")


def test_evaluation_without_no_grad_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """No backward ever frees anything: one graph grows through the whole loop, read or not."""
    monkeypatch.setattr(history, "OPERATIONS", 12_000)

    def loop() -> None:
        weight, total = calque.ones(3, requires_grad=True), calque.zeros(())
        for _ in range(8000):
            total = total + (weight * weight).sum()

    assert_named(warnings_of(loop), "total (", "earlier operations")


def test_a_normal_loop_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    def loop() -> None:
        training, running, losses = Training(layers=3), 0.0, []
        for _ in range(300):
            loss = training.step()
            print(loss, f"{loss.item():.3f}")
            running += loss.item()
            losses.append(loss.detach())

    assert not warnings_of(loop)


def test_reading_the_output_of_a_deep_model_before_the_loss_is_silent() -> None:
    """The output enters a second trace at every step, with many operations of one line, and is gone after it."""

    def loop() -> None:
        training = Training(layers=30)
        for _ in range(120):
            out = training.model(training.x)
            out.argmax(1).tolist()
            training.optimizer.zero_grad()
            (out * out).mean().backward()
            training.optimizer.step()

    assert not warnings_of(loop)


def test_a_recurrent_state_carried_with_detach_is_silent() -> None:
    def loop() -> None:
        rnn = nn.RNN(3, 4)
        optimizer = calque.optim.SGD(rnn.parameters(), lr=1e-3)
        state, x = calque.zeros(1, 2, 4), calque.ones(5, 2, 3)
        for _ in range(130):
            state = state.detach()
            out, state = rnn(x, state)
            optimizer.zero_grad()
            (out**2).mean().backward()
            optimizer.step()

    assert not warnings_of(loop)


def test_a_long_unrolled_recurrence_is_silent() -> None:
    """200 time steps in one graph, read as they come, for 3 optimizer steps."""

    def loop() -> None:
        cell = nn.RNNCell(3, 4)
        optimizer = calque.optim.SGD(cell.parameters(), lr=1e-3)
        x = calque.ones(2, 3)
        for _ in range(3):
            state = calque.zeros(2, 4)
            for _ in range(200):
                state = cell(x, state)
                state.tolist()
            optimizer.zero_grad()
            state.sum().backward()
            optimizer.step()

    assert not warnings_of(loop)


def test_gradient_accumulation_is_silent() -> None:
    def loop() -> None:
        training = Training()
        for _ in range(12):
            total = calque.zeros(())
            for _ in range(16):
                total = total + (training.model(training.x) ** 2).mean()
                total.item()
            total.backward()
            training.optimizer.step()
            training.optimizer.zero_grad()

    assert not warnings_of(loop)


def test_a_name_that_cannot_be_found() -> None:
    holder = [calque.zeros(())]

    def loop() -> None:
        weight = calque.ones(3, requires_grad=True)
        for _ in range(130):
            holder[0] = holder[0] + (weight * weight).sum()
            recorder.flush("optimizer.step")

    assert_named(warnings_of(loop), "a tensor (", ".item()")


def test_a_leak_inside_a_step_longer_than_the_bound_is_named() -> None:
    """Behind cuts one operation is met in every path; what was kept from step to step counts all the same."""
    cuts = Counters.reasons.get(BOUND, 0)

    def loop() -> None:
        training, total_loss = Training(layers=30), calque.zeros(())
        for _ in range(130):
            loss = (training.model(training.x) ** 2).mean()
            total_loss = total_loss + loss
            training.optimizer.zero_grad()
            loss.backward()
            training.optimizer.step()

    with bounds(64):
        assert_named(warnings_of(loop), "total_loss (", "earlier iterations", ".item()")
    assert Counters.reasons.get(BOUND, 0) - cuts >= 130


def test_deep_graphs_that_are_never_read_are_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty steps whose graphs are cut many times each: what the cuts bring back belongs to one step, where one operation is met 20 times."""
    monkeypatch.setattr(history, "REPEATS", 10)
    cuts = Counters.reasons.get(BOUND, 0)

    def loop() -> None:
        training = Training()
        cell = nn.RNNCell(4, 4)
        optimizer = calque.optim.SGD(cell.parameters(), lr=1e-3)
        for _ in range(60):
            state = calque.zeros(2, 4)
            for _ in range(120):
                state = cell(training.x, state)
            optimizer.zero_grad()
            state.sum().backward()
            optimizer.step()

    with bounds(16):
        assert not warnings_of(loop)
    assert Counters.reasons.get(BOUND, 0) - cuts >= 60 * 20
