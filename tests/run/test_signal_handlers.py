"""Handlers of SIGINT that a program sets inside and around blocks that change a mode: they are called, and they stay."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import calque
from calque.record.recorder import local
from calque.run.interrupt import SHIELD

_BLOCKS: dict[str, Callable[[], Any]] = {
    "no_grad": calque.no_grad,
    "inference_mode": calque.inference_mode,
    "autocast": lambda: calque.autocast("cpu", calque.bfloat16),
}


@pytest.fixture(params=_BLOCKS)
def block(request: pytest.FixtureRequest) -> Callable[[], Any]:
    return _BLOCKS[request.param]


@pytest.fixture(autouse=True)
def python_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
    local.state.grad, local.state.inference, local.state.autocast = True, False, None  # left by generators, as in PyTorch


class Own:
    """A handler that counts."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, *_: Any) -> None:
        self.calls += 1


def _press() -> None:
    signal.raise_signal(signal.SIGINT)


def _unchanged() -> bool:
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _in_thread(work: Callable[[], Any]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(300)
    assert not thread.is_alive()


def test_a_handler_around_blocks_is_called_in_them(block: Callable[[], Any]) -> None:
    own = Own()
    signal.signal(signal.SIGINT, own)
    with block():
        _press()
        with block():
            _press()
            assert (calque.ones(3) + 1.0).sum().item() == 6.0
        _press()
    _press()
    assert own.calls == 4 and signal.getsignal(signal.SIGINT) is own


def test_a_handler_for_a_part_of_a_block(block: Callable[[], Any]) -> None:
    own = Own()
    with block():
        before = signal.signal(signal.SIGINT, own)
        with block():
            _press()
        signal.signal(signal.SIGINT, before)
        with block(), pytest.raises(KeyboardInterrupt):
            _press()
    assert own.calls == 1 and _unchanged()


def test_a_handler_that_is_set_in_a_block_and_taken_back_behind_it(block: Callable[[], Any]) -> None:
    own = Own()
    with block():
        before = signal.signal(signal.SIGINT, own)
    _press()
    signal.signal(signal.SIGINT, before)
    with pytest.raises(KeyboardInterrupt):
        _press()
    with block():
        pass
    assert own.calls == 1 and _unchanged()


def test_a_handler_that_calls_the_one_before(block: Callable[[], Any]) -> None:
    with block():
        before: Any = signal.getsignal(signal.SIGINT)
        signal.signal(signal.SIGINT, lambda number, frame: before(number, frame))
        with pytest.raises(KeyboardInterrupt):
            _press()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with block():
            pass
    assert _unchanged()


def test_blocks_of_other_threads_leave_handlers_alone(block: Callable[[], Any]) -> None:
    own, inside, over = Own(), threading.Event(), threading.Event()

    def work() -> None:
        with block():
            inside.set()
            over.wait(300)

    threads = [threading.Thread(target=work) for _ in range(2)]
    threads[0].start()
    assert inside.wait(300) and _unchanged()
    signal.signal(signal.SIGINT, own)
    inside.clear()
    threads[1].start()
    assert inside.wait(300)
    with block():
        _press()
    over.set()
    for thread in threads:
        thread.join(300)
    _press()
    assert own.calls == 2 and signal.getsignal(signal.SIGINT) is own


def test_an_ignored_ctrl_c_stays_ignored(block: Callable[[], Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with block():
        _press()
        assert SHIELD.hold()
        _press()
        assert not SHIELD.asked
        SHIELD.release()
        assert (calque.ones(3) + 1.0).sum().item() == 6.0
    _press()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with block():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _press()
    _press()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_programs_see_the_handlers_that_they_set() -> None:
    own, other = Own(), Own()
    from_module = signal.signal.__globals__["_signal"]
    before = signal.signal(signal.SIGUSR1, own)
    try:
        assert signal.getsignal(signal.SIGUSR1) is own and signal.signal(signal.SIGUSR1, other) is own
        with pytest.raises(TypeError, match="signal handler must be"):
            signal.signal(signal.SIGUSR1, "nothing")  # type: ignore[arg-type]
        with pytest.raises((ValueError, OSError)):
            signal.signal(signal.SIGKILL, own)
        with pytest.raises(ValueError, match="out of range"):
            signal.signal(12345, own)
        refused: list[BaseException] = []

        def elsewhere() -> None:
            try:
                signal.signal(signal.SIGUSR1, own)
            except ValueError as error:
                refused.append(error)

        _in_thread(elsewhere)
        assert len(refused) == 1 and signal.getsignal(signal.SIGUSR1) is other and signal.getsignal(signal.SIGKILL) is signal.SIG_DFL
        signal.raise_signal(signal.SIGUSR1)
        assert (own.calls, other.calls) == (0, 1)
        assert signal.signal(signal.SIGUSR1, signal.SIG_IGN) is other and signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
        signal.raise_signal(signal.SIGUSR1)
        assert signal.signal(signal.SIGUSR1, own) is signal.SIG_IGN and from_module.default_int_handler is signal.default_int_handler
        assert (own.calls, other.calls) == (0, 1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert signal.getsignal(signal.SIGUSR1) is before


_IN_A_THREAD = """
import signal, threading
from signal import getsignal, signal as set_handler
set_handler(signal.SIGINT, signal.default_int_handler)
came = []
own = lambda number, frame: came.append(number)
set_handler(signal.SIGUSR1, own)
thread = threading.Thread(target=__import__, args=["calque.record.aside"])
thread.start()
thread.join()
from calque.run.interrupt import SHIELD
assert getsignal(signal.SIGUSR1) is own and getsignal(signal.SIGINT) is signal.default_int_handler
assert SHIELD.hold()
signal.raise_signal(signal.SIGUSR1)
assert SHIELD.asked and not came
SHIELD.release()
assert came == [signal.SIGUSR1] and getsignal(signal.SIGUSR1) is own
later = lambda number, frame: came.append(-number)
assert set_handler(signal.SIGUSR1, later) is own
assert SHIELD.hold()
signal.raise_signal(signal.SIGUSR1)
assert len(came) == 1
SHIELD.release()
assert came[1:] == [-signal.SIGUSR1] and set_handler(signal.SIGUSR1, signal.SIG_DFL) is later
signal.raise_signal(signal.SIGINT)
"""


def test_handlers_that_were_set_before_another_thread_imported_us() -> None:
    run = subprocess.run([sys.executable, "-c", _IN_A_THREAD], capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == -signal.SIGINT and run.stderr.strip().endswith("KeyboardInterrupt"), run.stderr


def _held(block: Callable[[], Any]) -> Iterator[int]:
    with block():
        yield 1
        yield 2


def test_generators_that_hold_blocks_open_and_end_in_any_order(block: Callable[[], Any]) -> None:
    first, second = _held(block), _held(block)
    assert next(first) + next(second) == 2
    with block():
        first.close()  # type: ignore[attr-defined]
        with pytest.raises(KeyboardInterrupt):
            _press()
    with pytest.raises(KeyboardInterrupt):
        _press()
    second.close()  # type: ignore[attr-defined]
    assert _unchanged()


def test_a_generator_that_another_thread_ends(block: Callable[[], Any]) -> None:
    held = _held(block)
    next(held)
    _in_thread(held.close)  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        _press()
    with block():
        pass
    assert _unchanged()


def test_a_generator_that_another_thread_began(block: Callable[[], Any]) -> None:
    held = _held(block)
    _in_thread(lambda: next(held))
    with block():
        held.close()  # type: ignore[attr-defined]
        with pytest.raises(KeyboardInterrupt):
            _press()
    assert _unchanged()


@pytest.mark.parametrize("around", [False, True])
def test_a_signal_handler_of_asyncio(around: bool, block: Callable[[], Any]) -> None:
    own = Own()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, own)
        with block():
            _press()
            await asyncio.sleep(0.01)
            assert (calque.ones(3) + 1.0).sum().item() == 6.0
        _press()
        await asyncio.sleep(0.01)
        assert loop.remove_signal_handler(signal.SIGINT)
        with block(), pytest.raises(KeyboardInterrupt):
            _press()

    if around:
        with block():
            asyncio.run(main())
    else:
        asyncio.run(main())
    assert own.calls == 2 and _unchanged()


@pytest.mark.parametrize("around", [False, True])
def test_ctrl_c_ends_what_asyncio_runs(around: bool, block: Callable[[], Any]) -> None:
    seen = []

    async def main() -> None:
        with block():
            asyncio.get_running_loop().call_later(0.01, _press)
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise

    with pytest.raises(KeyboardInterrupt):
        if around:
            with block():
                asyncio.run(main())
        else:
            asyncio.run(main())
    assert seen == ["cancelled"] and _unchanged()


def test_a_handler_that_is_set_while_ctrl_c_is_held_off_stays() -> None:
    own = Own()
    assert SHIELD.hold()
    signal.signal(signal.SIGINT, own)  # as the handler of another signal may do
    SHIELD.release()
    _press()
    assert own.calls == 1


def test_a_child_that_another_thread_forks_while_ctrl_c_is_held_off() -> None:
    found = []

    def fork() -> None:
        child = os.fork()
        if not child:
            try:
                _press()
                os._exit(1)
            except KeyboardInterrupt:
                os._exit(7)
        found.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    assert SHIELD.hold()
    try:
        _in_thread(fork)
        _press()
        assert SHIELD.asked
    finally:
        with pytest.raises(KeyboardInterrupt):
            SHIELD.release()
    assert found == [7] and _unchanged()
