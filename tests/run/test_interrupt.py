"""Ctrl-C at every point of a flush: nothing that existed is lost, and training goes on."""

from __future__ import annotations

import contextlib
import functools
import gc
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn
from calque.backend.cpu.team.memory import Pool
from calque.base.asked import LOCAL, plainly
from calque.base.errors import InterruptedValueError
from calque.hybrid import call as hybrid_call
from calque.hybrid import repeat
from calque.nn.parallel.data_parallel import _keep_statistics
from calque.observe.events import Session, clock
from calque.record import recorder
from calque.record.recorder import local
from calque.replay import direct
from calque.replay.macro import Macro
from calque.run.interrupt import SHIELD, of_handler

F = nn.functional


class _Trap:
    """Calls `act` at the n-th call or return inside a function; not before a builtin function is called: no signal is handled there, and a lock
    whose release is kept from running stays locked."""

    def __init__(self, inside: Any, number: int, act: Callable[[], None]) -> None:
        self._code, self._left, self._act, self._depth = inside.__code__, number, act, 0

    def __enter__(self) -> "_Trap":
        gc.disable()  # callbacks of the collector swallow what is raised in them
        sys.setprofile(self._seen)
        return self

    def __exit__(self, *exc: object) -> None:
        sys.setprofile(None)
        gc.enable()

    @property
    def sprung(self) -> bool:
        return self._left <= 0

    def _seen(self, frame: FrameType, event: str, arg: Any) -> None:
        if frame.f_code is self._code and event in ("call", "return"):
            self._depth += 1 if event == "call" else -1
        if self._depth and not self.sprung and event != "c_call":
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


def test_ctrl_c_inside_a_flush_that_runs_at_once_leaves_everything_as_it_was_or_done(python_handler: None) -> None:
    x = calque.arange(5.0)

    def work(k: int) -> tuple[calque.Tensor, calque.Tensor]:
        return x * (k + 0.3), (x + float(k)).sum()

    for k in range(40):
        a, b = work(k)
        a.tolist()
    for number in range(1, 200):
        a, b = work(number)
        with _Trap(recorder._flush_at_once, number, lambda: signal.raise_signal(signal.SIGINT)) as trap:
            try:
                b.item()
                assert not trap.sprung
            except KeyboardInterrupt:
                pass
        if not trap.sprung:
            break
        later = b * 2.0 + a.sum()
        assert b.item() == 10.0 + 5 * number
        expected = np.arange(5.0, dtype=np.float32) * np.float32(number + 0.3)
        np.testing.assert_array_equal(a.numpy(), expected)
        np.testing.assert_allclose(later.item(), 2 * b.item() + expected.sum(), rtol=1e-6)
    assert 20 < number < 199


def test_code_that_an_interrupt_runs_may_record_and_flush(python_handler: None) -> None:
    x = calque.arange(5.0)
    total = calque.zeros(())

    def act() -> None:
        total.add_(1.0)
        kept.append(total * 3.0)
        if number % 2:
            kept[-1].item()

    for k in range(40):
        ((x * (k + 0.5)).sum() + total).item()
    for number in range(1, 200):
        kept: list[calque.Tensor] = []
        value = (x * (number + 0.5)).sum() + total
        with _Trap(recorder._flush_at_once, number, act) as trap:
            value.item()
        if not trap.sprung:
            break
        assert value.item() == 10.0 * (number + 0.5) + number - 1
        assert kept[0].item() == 3.0 * number and total.item() == number
    assert 20 < number < 199


def _replayed() -> tuple[nn.Linear, Callable[[], float]]:
    layer, _ = _training()
    optimizer = calque.optim.Adam(layer.parameters(), lr=0.01)
    x, labels = calque.randn(6, 4), calque.arange(6) % 3

    def step(x: calque.Tensor, labels: calque.Tensor) -> calque.Tensor:
        loss = F.cross_entropy(layer(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    run = calque.compile(step)
    return layer, lambda: run(x, labels).item()


@pytest.mark.parametrize("repeats", [False, True])
def test_ctrl_c_while_a_replay_starts_its_program(repeats: bool, python_handler: None, monkeypatch: pytest.MonkeyPatch) -> None:
    number, stopped = 1, 0
    inside: Any = repeat.Repeat.__call__ if repeats else direct.start_plan
    if not repeats:
        monkeypatch.setattr(hybrid_call, "repeat_of", lambda *call: None)
    while True:
        layer, run = _replayed()
        losses = [run() for _ in range(20)]
        with _Trap(inside, number, lambda: signal.raise_signal(signal.SIGINT)) as trap:
            try:
                run()
                losses.append(run())
            except KeyboardInterrupt:
                stopped += 1
        if not trap.sprung:
            break
        losses += [run() for _ in range(3)]
        assert losses == sorted(losses, reverse=True)
        assert calque.isfinite(layer.weight).all() and calque.isfinite(layer.weight.grad).all()
        number += 7
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


def test_handlers_of_the_program_are_held_off_too_and_called_once_each() -> None:
    calls: list[tuple[int, str]] = []

    def handler(number: int, frame: FrameType | None) -> None:
        assert frame is not None
        calls.append((number, frame.f_code.co_name))
        raise TimeoutError(str(number))

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGRTMIN)
    before = [signal.signal(number, handler) for number in signals]
    try:
        assert SHIELD.hold() and not SHIELD.hold()
        for number in (*signals, signal.SIGTERM):
            signal.raise_signal(number)
        assert SHIELD.asked and not calls
        with pytest.raises(TimeoutError) as raised:
            SHIELD.release()
        assert sorted(number for number, _ in calls) == sorted(signals)
        others, error = 0, raised.value.__context__
        while error is not None:
            others, error = others + 1, error.__context__
        assert others == 3 and not SHIELD.asked
        assert [signal.getsignal(number) for number in signals] == [handler] * 4
        assert {name for _, name in calls} == {"test_handlers_of_the_program_are_held_off_too_and_called_once_each"}
    finally:
        for number, old in zip(signals, before, strict=True):
            signal.signal(number, old)


def test_what_a_handler_raised_is_known_by_its_frame() -> None:
    class Handler:
        def __call__(self, number: int, frame: FrameType | None) -> None:
            {}["nothing"]

    def strict(number: int, frame: FrameType | None) -> None:
        raise OSError

    def loose(*arguments: Any) -> None:
        raise OSError

    for handler in (strict, loose, Handler(), Handler().__call__, functools.partial(strict)):
        before = signal.signal(signal.SIGTERM, handler)
        try:
            signal.raise_signal(signal.SIGTERM)
        except (OSError, KeyError) as error:
            assert of_handler(error)
        else:
            raise AssertionError("nothing was raised")
        finally:
            signal.signal(signal.SIGTERM, before)
    try:
        strict(1, None)
    except OSError as error:
        assert not of_handler(error)


def test_ctrl_c_at_the_start_of_a_backward_pass_leaves_the_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> str:
        raise KeyboardInterrupt

    x = calque.ones(2, requires_grad=True)
    y = (x * 2.0).sum()
    monkeypatch.setattr("calque.autograd.engine.user_line", interrupted)
    with pytest.raises(KeyboardInterrupt):
        y.backward()
    monkeypatch.undo()
    assert calque.is_grad_enabled()
    (x * 3.0).sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]


def test_no_python_runs_when_a_block_of_memory_dies() -> None:
    """Where no Python runs no Ctrl-C is handled, which would lose the block."""
    pool = Pool()
    block = pool.empty(1000, np.dtype(np.float32))
    address = block.ctypes.data
    seen: list[str] = []
    sys.setprofile(lambda frame, event, arg: seen.append(f"{event} {frame.f_code.co_name}"))
    del block
    sys.setprofile(None)
    assert [s for s in seen if s.startswith("call ")] == []
    assert pool.stats().in_use == 0
    assert pool.empty(1000, np.dtype(np.float32)).ctypes.data == address


def test_a_ctrl_c_inside_an_allocation_loses_no_memory() -> None:
    """It may come where a function begins and behind every call into C: no block is lost then, and none is counted that nobody has."""
    pool, number = Pool(), np.dtype(np.float32)
    held: list[Any] = []

    def work(k: int) -> None:
        held.append(pool.empty(100 + 300 * (k % 5), number))
        held.append(pool.arena(4000 + 1000 * (k % 7)))
        held.extend(pool.together([(10, number), (20 + k % 3, number)]))
        del held[: k % 6]
        if k % 11 == 0:
            pool.release_cached()

    for k in range(400):
        left = [k % 100]

        def look(frame: Any, event: str, arg: Any, left: list[int] = left) -> None:
            left[0] -= event in ("call", "c_return")
            if left[0] == 0:
                left[0] = -1
                raise KeyboardInterrupt

        sys.setprofile(look)
        try:
            work(k)
        except KeyboardInterrupt:
            pass
        left[0] = -1
        sys.setprofile(None)
        stats = pool.stats()
        blocks = pool.blocks()
        assert sum(size for _, size, taken in blocks if taken) == stats.in_use, k
        assert sum(size for _, size, taken in blocks if not taken) == stats.cached, k
        assert {address for address, _, _ in blocks} >= set(pool._memory), "a block is neither in use nor kept"
    held.clear()
    assert pool.stats().in_use == 0


def test_no_python_runs_when_a_value_dies_that_a_profile_follows() -> None:
    """What a handler raised there would be lost."""
    session = Session(lambda: 0, values=True)
    kept, array = np.ones(3), np.ones(5)
    session._know([kept, array], 0.0, None, ())
    seen: list[str] = []
    sys.setprofile(lambda frame, event, arg: seen.append(f"{event} {frame.f_code.co_name}"))
    del array
    sys.setprofile(None)
    after = clock()
    session.stop()
    assert [s for s in seen if s.startswith("call ")] == []
    assert session.values[0].end == session.ended >= after > session.values[1].end


def test_memory_is_counted_in_the_middle_of_counting() -> None:
    pool = Pool()
    seen: list[Any] = []

    class Block:
        """A block of a pool that died; asked for its size, it looks at the pool as a handler may."""

        address = 0

        @property
        def size(self) -> int:
            seen.append((pool.stats(), pool.release_cached()))
            return 0

    pool.empty(1000, np.dtype(np.float32))
    pool._out[0] = Block()  # type: ignore[assignment]
    pool.returned.appendleft(pool._out[0])
    assert pool.stats().in_use == 0 and len(seen) == 1 and seen[0][1] == 0


@pytest.mark.usefixtures("two_devices")
def test_ctrl_c_while_statistics_are_kept_leaves_gradients_on(python_handler: None) -> None:
    model = nn.parallel.DataParallel(nn.BatchNorm1d(3))
    x = calque.randn(4, 3)
    for number in range(1, 1000):
        with _Trap(_keep_statistics, number, lambda: signal.raise_signal(signal.SIGINT)) as trap, contextlib.suppress(KeyboardInterrupt):
            model(x)
        assert calque.is_grad_enabled()
        if not trap.sprung:
            break
    assert 10 < number < 990


@pytest.mark.parametrize("library", [nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_, calque.optim.SGD.zero_grad, calque.optim.SGD.step])
def test_ctrl_c_between_backward_and_step_leaves_gradients_on(library: Any, python_handler: None) -> None:
    weights = [calque.ones(3, requires_grad=True)]
    optimizer = calque.optim.SGD(weights, lr=0.1)
    code = getattr(library, "__wrapped__", library)
    for number in range(1, 4000):
        weights[0].grad = calque.ones(3)
        with _Trap(code, number, lambda: signal.raise_signal(signal.SIGINT)) as trap, contextlib.suppress(KeyboardInterrupt):
            nn.utils.clip_grad_norm_(weights, 1.0)
            nn.utils.clip_grad_value_(weights, 0.5)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        assert calque.is_grad_enabled()
        LOCAL.off = 0  # what is raised where `plainly.__enter__` returns leaves it; no signal is handled there
        if not trap.sprung:
            break
    assert 3 < number < 3990


class _Cut(list[Any]):
    """Ctrl-C when the n-th item is asked for, as it comes at the ends of loops."""

    left = 0

    def __iter__(self) -> Any:
        return _Items(list.__iter__(self))


class _Items:
    def __init__(self, items: Iterator[Any]) -> None:
        self._items = items

    def __iter__(self) -> "_Items":
        return self

    def __next__(self) -> Any:
        _Cut.left -= 1
        if _Cut.left == 0:
            signal.raise_signal(signal.SIGINT)
        return next(self._items)


def test_ctrl_c_while_a_stretch_is_recorded_again_leaves_it_recorded_or_not(python_handler: None, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Macro.replay

    def cut(self: Macro, trace: recorder.Trace, cells: list[Any], known: list[Any]) -> list[recorder.Storage]:
        inputs, written, place = self.inputs, self.written, trace.cur
        versions = [cells[w[0]].version for w in written]
        self.inputs, self.written = _Cut(inputs), _Cut(written)
        try:
            return whole(self, trace, cells, known)
        except KeyboardInterrupt:
            changed = [w[2] for w in written] if trace.cur is self.end is not place else [0] * len(written)
            assert [cells[w[0]].version - v for w, v in zip(written, versions, strict=True)] == changed
            ends.add(trace.cur is place)
            raise
        finally:
            self.inputs, self.written = inputs, written
            assert len(trace.inputs) == _number(trace.cur, recorder.INPUT) and all(st.slot < trace.n for st in trace.storages)
            assert all(b.trace is trace and b.number == k for k, b in enumerate(trace.inputs))

    number, stopped, ends = 1, 0, set[bool]()
    while True:
        layer, step = _training()
        monkeypatch.setattr(Macro, "replay", cut)
        _Cut.left = number
        try:
            step()
        except KeyboardInterrupt:
            stopped += 1
        monkeypatch.undo()
        if _Cut.left > 0:
            break
        losses = [step(), step(), step()]
        assert losses == sorted(losses, reverse=True) and losses[0] < 1.5 and calque.isfinite(layer.weight).all()
        number += 1
    assert stopped == number - 1 > 15 and ends == {True, False}


def _number(edge: recorder.Edge | None, op: Any) -> int:
    """How many operations of this kind lie on the path to an edge."""
    found = 0
    while edge is not None:
        found += edge.op is op
        edge = edge.parent
    return found


_BLOCKS: dict[str, Callable[[], Any]] = {
    "no_grad": calque.no_grad,
    "inference_mode": calque.inference_mode,
    "autocast": lambda: calque.autocast("cpu", calque.bfloat16),
    "plainly": plainly,
}


@pytest.mark.parametrize("name", _BLOCKS)
def test_ctrl_c_at_the_end_of_a_block_leaves_no_mode_behind(python_handler: None, name: str) -> None:
    block, over, stopped, main = _BLOCKS[name], threading.Event(), 0, threading.get_ident()
    wanted = threading.Semaphore(0)

    def interrupt() -> None:
        while wanted.acquire() and not over.is_set():
            time.sleep(random.random() * 2e-4)
            signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        for _ in range(300):
            try:
                wanted.release()
                while True:
                    with block():
                        pass
            except KeyboardInterrupt:
                stopped += 1
            assert calque.is_grad_enabled() and not calque.is_inference_mode_enabled() and not calque.is_autocast_enabled("cpu")
            assert not LOCAL.off
    finally:
        over.set()
        wanted.release()
        thread.join()
        local.state.grad, local.state.inference, local.state.autocast = True, False, None
        LOCAL.off = 0
    assert stopped == 300


def test_a_handler_that_is_set_inside_a_block_stays(python_handler: None) -> None:
    def own(number: int, frame: FrameType | None) -> None:
        raise ValueError

    with calque.no_grad():
        signal.signal(signal.SIGINT, own)
    assert signal.getsignal(signal.SIGINT) is own
    with calque.no_grad(), calque.enable_grad():
        assert signal.getsignal(signal.SIGINT) is own
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with calque.no_grad(), calque.enable_grad():
        pass
    calque.set_grad_enabled(False)
    calque.set_grad_enabled(True)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_programs_are_shielded_inside_a_block_too(python_handler: None) -> None:
    with calque.no_grad():
        within = signal.getsignal(signal.SIGINT)
        assert SHIELD.hold()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            SHIELD.release()
        assert signal.getsignal(signal.SIGINT) is within
