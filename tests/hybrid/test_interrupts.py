"""Ctrl-C, and exceptions of the program's own signal handlers, at every call that a training step makes: they surface, what was recorded by then is
whole, and the next steps are those of an undisturbed run.

A profile function asks for the interrupt, so it comes before or after a call, as signals do.
"""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import calque
from calque import nn
from calque.optim.kept import held
from calque.record.recorder import LOCK, flush, local
from tests.hybrid.common import batch


class Preempted(Exception):
    """What the program's own handler raises."""


def _preempt(number: int, frame: Any) -> None:
    raise Preempted


class _Training:
    """A small network with everything that a step leaves behind; `restore` sets that back."""

    def __init__(self, kind: str) -> None:
        calque.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 3))
        self.scale = calque.full((3,), 0.5)
        self.optimizer = calque.optim.Adam(self.net.parameters(), lr=0.01)
        if kind == "module":
            self.net.hybridize()
        self.step = calque.compile(self._step) if kind == "step" else self._step
        for k in range(8):
            self.step(batch(k), 1.5)
        calque.synchronize()
        self.state = [t.clone() for t in self._tensors()]
        self.random = calque.get_rng_state()
        self.counts = [held(self.optimizer.state[p], "step") for p in self.net.parameters()]

    def _tensors(self) -> list[Any]:
        kept = [t for values in self.optimizer.state.values() for t in values.values() if isinstance(t, calque.Tensor)]
        return [*self.net.parameters(), *self.net.buffers(), *kept]

    def _step(self, x: Any, factor: float) -> Any:
        self.optimizer.zero_grad()
        out = self.net(x) * factor
        loss = (out[:, 1:] * 0.3 + out[:, :2] / 1.7 - self.scale[1:]).abs().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def restore(self) -> None:
        with calque.no_grad():
            for t, value in zip(self._tensors(), self.state, strict=True):
                t.copy_(value)
        for p in self.net.parameters():
            p.grad = None
        for p, count in zip(self.net.parameters(), self.counts, strict=True):
            self.optimizer.state[p]["step"] = count
        calque.set_rng_state(self.random)
        flush("test")

    def go_on(self) -> list[Any]:
        """Two steps from the state of old."""
        self.restore()
        losses = [self.step(batch(k), 1.5).tolist() for k in range(2)]
        return [losses, [p.tolist() for p in self.net.parameters()], [b.tolist() for b in self.net.buffers()]]

    def interrupted(self, point: int, number: int = signal.SIGINT) -> int:
        """One step with a signal at call number `point`, whose handler's exception must come out; how many calls there were, if that comes never."""
        count = 0
        surfaced = False

        def look(frame: Any, event: str, argument: Any) -> None:
            nonlocal count
            if event == "c_call":  # no signal is handled there, and a lock whose release is kept from running stays locked
                return
            count += 1
            if count == point:
                signal.raise_signal(number)

        sys.setprofile(look)
        try:
            self.step(batch(3), 1.5)
        except (KeyboardInterrupt, Preempted) as error:
            surfaced = isinstance(error, Preempted) is (number != signal.SIGINT)
        finally:
            sys.setprofile(None)
        assert surfaced is (count >= point > 0), point
        return count


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Python's own handler of Ctrl-C and one of the program; no callbacks of the collector, out of which nothing can be raised."""
    before = [signal.signal(signal.SIGINT, signal.default_int_handler), signal.signal(signal.SIGTERM, _preempt)]
    gc.disable()
    yield
    gc.enable()
    signal.signal(signal.SIGINT, before[0])
    signal.signal(signal.SIGTERM, before[1])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("kind", ["plain", "module", "step"])
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_interrupts_at_calls(kind: str, number: int, every: int) -> None:
    training = _Training(kind)
    training.go_on()
    expected = training.go_on()
    calls = training.interrupted(-1)
    for point in range(1, calls + 1, every if number == signal.SIGINT else 3 * every):  # what raises matters less than where
        training.restore()
        training.interrupted(point, number)
        state = local.state
        assert state.capture is None, point
        assert state.grad, point
        assert not LOCK._is_owned(), point
        assert training.go_on() == expected, point
