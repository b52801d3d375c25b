"""Ctrl-C at every point of a flush: nothing that existed is lost, and training goes on."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

import calque
from calque import nn
from calque.base.errors import InterruptedValueError
from calque.run import recorder
from calque.run.interrupt import SHIELD

F = nn.functional


class _Trap:
    """Calls `act` at the n-th call or return inside a function."""

    def __init__(self, inside: Any, number: int, act: Callable[[], None]) -> None:
        self._code, self._left, self._act, self._depth = inside.__code__, number, act, 0

    def __enter__(self) -> "_Trap":
        sys.setprofile(self._seen)
        return self

    def __exit__(self, *exc: object) -> None:
        sys.setprofile(None)

    @property
    def sprung(self) -> bool:
        return self._left <= 0

    def _seen(self, frame: FrameType, event: str, arg: Any) -> None:
        if frame.f_code is self._code and event in ("call", "return"):
            self._depth += 1 if event == "call" else -1
        if self._depth and not self.sprung:
            self._left -= 1
            if self.sprung:
                sys.setprofile(None)
                self._act()


@pytest.fixture
def python_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _training() -> tuple[nn.Linear, Callable[[], float]]:
    calque.manual_seed(0)
    layer = nn.Linear(4, 3)
    optimizer = calque.optim.Adam(layer.parameters(), lr=0.01)
    x, labels = calque.randn(6, 4), calque.arange(6) % 3

    def step() -> float:
        loss = F.cross_entropy(layer(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    for _ in range(5):
        step()
    return layer, step


def test_ctrl_c_inside_a_flush_loses_nothing(python_handler: None) -> None:
    number, stopped = 1, 0
    while True:
        layer, step = _training()
        losses = []
        with _Trap(recorder._dispatch, number, lambda: signal.raise_signal(signal.SIGINT)) as trap:
            try:
                step()
                losses.append(step())
            except KeyboardInterrupt:
                stopped += 1
        if not trap.sprung:
            break
        losses += [step(), step()]
        assert losses == sorted(losses, reverse=True) and losses[0] < 1.5
        assert calque.isfinite(layer.weight).all()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        number += 23
    assert stopped >= 5


def test_another_exception_inside_a_flush_is_an_error_at_the_read() -> None:
    def fail() -> None:
        raise TimeoutError

    for number in (3, 40, 60, 80):
        a = calque.ones(3)
        b = a * 2.0
        with _Trap(recorder._dispatch, number, fail) as trap, pytest.raises(TimeoutError):
            b.tolist()
        assert trap.sprung
        try:
            assert b.tolist() == [2.0] * 3
        except (InterruptedValueError, TimeoutError):
            pass
        try:
            assert (b + 1.0).tolist() == [3.0] * 3
        except (InterruptedValueError, TimeoutError):
            pass
        assert (a + 1.0).tolist() == [2.0] * 3


def test_a_handler_of_the_program_is_left_alone() -> None:
    before = signal.signal(signal.SIGINT, handler := lambda number, frame: None)
    try:
        assert not SHIELD.hold()
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)
