"""Code that the collector runs in the middle of other work reads and records as another thread would."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import calque
from calque import nn
from calque.record.recorder import local

F = nn.functional


class Garbage:
    """A cycle whose `__del__` does something."""

    def __init__(self, act: Callable[[], None]) -> None:
        self.act, self.me = act, self

    def __del__(self) -> None:
        self.act()


@pytest.fixture(autouse=True)
def collections() -> Iterator[None]:
    """Only those that a test asks for."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


_acts: list[Callable[[], None]] = []


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    """Does what a test asks for, whenever the signal is handled."""
    before = signal.signal(signal.SIGUSR1, lambda number, frame: _acts.pop()())
    yield
    signal.signal(signal.SIGUSR1, before)


def by_collector(act: Callable[[], None]) -> None:
    Garbage(act)
    gc.collect(0)


def by_signal(act: Callable[[], None]) -> None:
    _acts.append(act)
    signal.raise_signal(signal.SIGUSR1)


def interrupted_at(point: int, run: Callable[[Callable[[], None]], None], act: Callable[[], None], work: Callable[[], Any]) -> tuple[Any, int]:
    """`work()`, with `run(act)` at call number `point` that it makes; and how many calls there were."""
    count = 0

    def look(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        if event == "c_call":
            return
        count += 1
        if count == point:
            sys.setprofile(None)
            run(act)

    sys.setprofile(look)
    try:
        return work(), count
    finally:
        sys.setprofile(None)


def _training(kind: str) -> Callable[[], list[Any]]:
    """Two steps from one state; what they give."""
    calque.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))
    optimizer = calque.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    x, y = calque.randn(5, 4), calque.arange(5) % 3

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        if kind == "looks" and loss.item() < 0.0:
            return loss
        optimizer.step()
        return loss.detach()

    run = step if kind == "plain" else calque.compile(step)
    for _ in range(8):
        run(x, y).item()
    state = [t.detach().clone().numpy() for t in (*net.parameters(), *net.buffers())]

    def work() -> list[Any]:
        with calque.no_grad():
            for t, value in zip((*net.parameters(), *net.buffers()), state, strict=True):
                t.copy_(calque.tensor(value))
        for p in net.parameters():
            optimizer.state[p]["momentum_buffer"].zero_()
        return [run(x, y).item(), run(x, y).item(), *(p.tolist() for p in net.parameters())]

    return work


@pytest.mark.parametrize("run", [by_collector, by_signal])
@pytest.mark.parametrize("kind", ["plain", "step", "looks"])
def test_values_are_read_and_recorded_at_any_call(kind: str, run: Callable[[Callable[[], None]], None]) -> None:
    work = _training(kind)
    expected = [work(), work()][1]
    known = calque.arange(6.0)
    seen: list[Any] = []

    def act() -> None:
        pending = known * 2.0
        seen.append(((pending + 1.0).sum().item(), pending.sum(), calque.is_grad_enabled()))

    _, calls = interrupted_at(-1, run, act, work)
    for point in range(1, calls + 1, 11):
        result, reached = interrupted_at(point, run, act, work)
        assert _same(result, expected), point
        if reached < point:
            break
        total, later, _ = seen.pop()
        assert (total, later.item()) == (36.0, 30.0), point
        assert not local.state.nested and local.aside.trace.n == 0 and local.state.capture is None
    assert calls > 100 and not seen


def _same(a: Any, b: Any) -> bool:
    return bool(calque.allclose(calque.tensor(_flat(a)), calque.tensor(_flat(b)), rtol=1e-4, atol=1e-6))


def _flat(a: Any) -> list[float]:
    return [v for item in a for v in _flat(item)] if isinstance(a, list) else [a]


def test_what_the_interrupted_code_has_recorded_can_be_read() -> None:
    x = calque.ones(3) * 2.0
    seen: list[Any] = []

    def act() -> None:
        seen.append(x.tolist())
        x.add_(1.0)

    Garbage(act)
    y = x * 3.0
    gc.collect(0)
    assert seen == [[2.0] * 3] and y.tolist() == [6.0] * 3 and x.tolist() == [3.0] * 3


def test_modes_that_a_handler_sets_stay_as_in_pytorch() -> None:
    seen: list[Any] = []

    def act() -> None:
        seen.append(calque.is_grad_enabled())
        calque.set_grad_enabled(not seen[-1])
        with calque.inference_mode():
            calque.ones(2)

    by_signal(act)
    assert not calque.is_grad_enabled()
    by_signal(act)
    assert calque.is_grad_enabled() and not calque.is_inference_mode_enabled() and seen == [True, False]


def test_a_handler_in_a_backward_pass_differentiates() -> None:
    seen: list[Any] = []
    x = calque.ones(3, requires_grad=True)

    def hook(gradient: Any) -> None:
        by_signal(lambda: seen.append(_gradient(4.0)))

    other = calque.ones(3, requires_grad=True)
    y = other * x
    y.register_hook(hook)
    y.sum().backward()
    assert seen == [[4.0] * 2] and x.grad.tolist() == other.grad.tolist() == [1.0] * 3


def _gradient(factor: float) -> list[float]:
    leaf = calque.ones(2, requires_grad=True)
    (leaf * factor).sum().backward()
    return leaf.grad.tolist()  # type: ignore[union-attr]


def test_what_a_handler_has_recorded_before_it_raises_is_there() -> None:
    kept: list[Any] = []
    x = calque.ones(3) * 2.0

    def act() -> None:
        kept.append(x * 4.0)
        raise ValueError("deadline")

    y = x + 1.0
    with pytest.raises(ValueError, match="deadline"):
        by_signal(act)
    x.add_(1.0)
    assert kept[0].tolist() == [8.0] * 3 and y.tolist() == [3.0] * 3 == x.tolist() and not local.state.nested


def test_a_handler_inside_a_handler_and_inside_a_collection() -> None:
    x = calque.ones(3) * 2.0
    kept: list[Any] = []

    def inner() -> None:
        kept.append((x + 1.0).tolist())

    def outer() -> None:
        y = x * 3.0
        by_signal(inner)
        kept.append(y.tolist())

    z = x * 5.0
    by_signal(outer)
    by_signal(lambda: by_collector(outer))
    by_collector(outer)
    assert kept == [[3.0] * 3, [6.0] * 3] * 3 and z.tolist() == [10.0] * 3
    assert not local.state.nested and local.aside.nested


def test_modes_are_those_of_the_code_it_comes_into() -> None:
    seen: list[Any] = []
    with calque.no_grad():
        Garbage(lambda: seen.append(calque.is_grad_enabled()))
        gc.collect(0)
    Garbage(lambda: seen.append(calque.is_grad_enabled()))
    gc.collect(0)
    assert seen == [False, True] and not local.state.nested


def test_a_thread_that_begins_during_a_collection() -> None:
    found: list[Any] = []

    def work() -> None:
        gc.collect()
        found.append((calque.ones(2) + 1.0).tolist())

    def act() -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    Garbage(act)
    gc.collect()
    assert found == [[2.0, 2.0]]
