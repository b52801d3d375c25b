"""Several threads that call one hybridized function: no call comes in between another one, and no thread misses a value that exists."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import calque
from calque import nn
from calque.base.native import hot
from calque.hybrid import region, repeat, walk
from calque.record import recorder, threads, trie
from calque.replay import capture
from tests.hybrid.common import counts, reasons


@pytest.fixture(autouse=True)
def _cold() -> Iterator[None]:
    """Nothing was recorded before, and later tests count the programs of threads that share nothing."""
    recorder.flush("test")
    calque.synchronize()
    trie.forget()
    yield
    threads.Sharing.left = 0


@pytest.fixture
def other() -> Iterator[Callable[..., Any]]:
    """Does something in another thread and waits for it."""
    with ThreadPoolExecutor(1) as thread:
        yield lambda *call: thread.submit(*call).result(30)


def together(work: Callable[[int], None], threads: int) -> None:
    """Call `work` with the number of each thread; they take turns as often as Python lets them."""
    errors: list[BaseException] = []

    def guarded(k: int) -> None:
        try:
            work(k)
        except BaseException as error:
            errors.append(error)

    started = [threading.Thread(target=guarded, args=(k,), daemon=True) for k in range(threads)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in started:
            thread.start()
        for thread in started:
            thread.join(300)
            assert not thread.is_alive()
    finally:
        sys.setswitchinterval(before)
    if errors:
        raise errors[0]


def inputs() -> Any:
    """Of the model."""
    return calque.tensor([[0.5, -1.0, 2.0], [1.0, 0.25, -0.5]])


class Job:
    """A model that is trained, in steps that several threads take."""

    def __init__(self, hybrid: bool, how: str = "adam") -> None:
        calque.manual_seed(2)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        kind: Any = {"adam": calque.optim.Adam, "sgd": calque.optim.SGD}[how.split()[0]]
        self.optimizer = kind(self.model.parameters(), lr=0.01)
        self.looks = "looks" in how
        self.step: Any = calque.compile(self._step) if hybrid else self._step

    def _step(self, x: Any) -> Any:
        self.optimizer.zero_grad()
        loss = self.model(x).square().mean()
        loss.backward()
        if self.looks and loss.item() < 0.05:
            for p in self.model.parameters():
                p.grad.mul_(0.5)
        self.optimizer.step()
        return loss


@pytest.mark.parametrize("how", ["sgd", "adam", "sgd looks", "adam looks"])
def test_steps_of_several_threads_are_those_of_one(how: str) -> None:
    for _ in range(3):
        trie.forget()
        job, twin = Job(True, how), Job(False, how)
        assert job.step(inputs()).item() == twin.step(inputs()).item()  # the first call runs as written
        losses: list[list[Any]] = [[] for _ in range(3)]

        def work(k: int, job: Job = job, losses: Any = losses) -> None:
            for _ in range(40):
                losses[k].append(job.step(inputs()).item())

        together(work, 3)
        expected = [twin.step(inputs()).item() for _ in range(120)]
        found = sorted((loss for row in losses for loss in row), reverse=True)
        assert found == pytest.approx(sorted(expected, reverse=True), rel=1e-4)  # the first runs may be interpreted
        for p, q in zip(job.model.parameters(), twin.model.parameters(), strict=True):
            assert p.detach().tolist() == [pytest.approx(row, rel=1e-3, abs=1e-6) for row in q.detach().tolist()]


def test_a_model_that_several_threads_use_is_recorded_once() -> None:
    """What one thread meets of another's is no reason to give up."""
    total = calque.zeros(())

    @calque.compile
    def count(x: Any) -> Any:
        with calque.no_grad():
            total.add_(x.sum())
        return x * 2.0

    count(calque.ones(2))

    def work(k: int) -> None:
        for _ in range(30):
            assert count(calque.ones(2)).tolist() == [2.0, 2.0]

    before = counts()["replays"]
    together(work, 4)
    assert total.item() == 242.0
    more = counts()["replays"]
    for _ in range(10):
        count(calque.ones(2))
    assert counts()["replays"] - more == 10 and more > before


def _argument(value: float, pending: bool) -> Any:
    x = calque.ones(2) * value
    if not pending:
        calque.synchronize()
    return x


def _branching(pending: bool) -> tuple[Any, Any]:
    """A function that branches by a value, of an argument and a weight, and the weight."""
    w = calque.ones(2, requires_grad=True)

    @calque.compile
    def function(x: Any) -> Any:
        w.grad = None
        (w * x).sum().backward()
        with calque.no_grad():
            w.sub_(w.grad)
        if x.sum() > 10.0:
            return x * 3.0
        return x * 2.0

    for k in range(6):
        function(_argument(float(k % 3 + 1), pending)).tolist()
    return function, w


def test_values_pending_when_python_takes_a_call_over_are_there_for_other_threads(monkeypatch: Any, other: Any) -> None:
    function, w = _branching(True)
    take, seen = walk.Walk.take_back, []

    def taken(self: Any) -> Any:
        script = take(self)
        seen.append(other(lambda: (x + 0.0).tolist()))
        return script

    monkeypatch.setattr(walk.Walk, "take_back", taken)
    x = _argument(8.0, True)
    before = counts()["continued"]
    assert function(x).tolist() == [24.0, 24.0] and counts()["continued"] == before + 1
    assert seen == [[8.0, 8.0]] and x.tolist() == [8.0, 8.0] and w.tolist() == [-19.0, -19.0]


@pytest.mark.parametrize("pending", [False, True])
def test_what_a_call_does_again_is_read_by_other_threads_when_it_is_done(pending: bool, monkeypatch: Any) -> None:
    """Its programs have run already: weights and gradients that it records once more are those."""
    function, w = _branching(pending)
    flushing, seen, threads = capture.Capture.flushing, [], []

    def again(self: Any, *args: Any) -> bool:
        if self.scripted() and not threads:
            for read in (lambda: w.grad.tolist(), lambda: (w.detach() + 0.0).tolist(), lambda: (x * 1.0).tolist()):
                threads.append(threading.Thread(target=lambda read=read: seen.append(read())))
                threads[-1].start()
            threads[1].join(0.2)
        return flushing(self, *args)  # type: ignore[no-any-return]

    monkeypatch.setattr(capture.Capture, "flushing", again)
    x = _argument(8.0, pending)
    assert function(x).tolist() == [24.0, 24.0]
    for thread in threads:
        thread.join(300)
    assert len(threads) == 3 and sorted(seen) == [[-19.0, -19.0], [8.0, 8.0], [8.0, 8.0]]


@pytest.mark.skipif(hot is None, reason="calls are repeated by the compiled module")
def test_numbers_of_a_repeat_that_is_interrupted_are_not_lost(monkeypatch: Any) -> None:
    """Nor if the next call finds other gradients: Adam's step is counted once."""
    job, twin = Job(True), Job(False)
    for _ in range(40):
        assert job.step(inputs()).item() == pytest.approx(twin.step(inputs()).item(), rel=1e-4)
        calque.synchronize()
    assert job.step.repeat is not None and job.step.repeat.hits
    rerun, idle = job.step.repeat.rerun, []

    class Busy:
        """A repeat that another thread has come in between of."""

        def results(self) -> Any:
            return rerun.results()

        def run(self, *args: Any) -> bool:
            idle.append(1)
            job.model[0].weight.grad = None
            return False

    monkeypatch.setattr(job.step.repeat, "rerun", Busy())
    for _ in range(6):
        assert job.step(inputs()).item() == pytest.approx(twin.step(inputs()).item(), rel=1e-4)
    assert idle and repeat.MISSED is not None
    steps = {float(job.optimizer.state[p]["step"]) for p in job.model.parameters()}
    assert steps == {46.0}


class Locked:
    """Has locks, under several names."""

    def __init__(self) -> None:
        self.lock, self.locks, self.unused = threading.Lock(), [threading.RLock()], threading.Lock()

    def by_name(self, x: Any) -> Any:
        with self.lock:
            return x * 2.0

    def by_number(self, x: Any) -> Any:
        with self.locks[0]:
            return x * 2.0


class Unlocked:
    """Has one that nobody takes."""

    def __init__(self) -> None:
        self.unused = threading.Lock()

    def call(self, x: Any) -> Any:
        return x * 2.0


def test_functions_that_take_locks_run_as_written() -> None:
    """A replay would not take them."""
    held = threading.Lock()

    def closed(x: Any) -> Any:
        with held:
            return x * 2.0

    x = calque.ones(2)
    for function in (Locked().by_name, Locked().by_number, closed):
        call = calque.compile(function)
        assert "takes a lock" in reasons(lambda call=call: [call(x) for _ in range(4)])
    call, before = calque.compile(Unlocked().call), counts()["replays"]
    for _ in range(6):
        assert call(x).tolist() == [2.0, 2.0]
    assert counts()["replays"] > before


def test_python_goes_on_with_a_call_while_another_thread_finds_that_gradients_matter(
    monkeypatch: pytest.MonkeyPatch, other: Callable[..., Any]
) -> None:  # fmt: skip
    """They are among what calls depend on from then on, but not for the call that had begun."""
    w = calque.zeros(3, requires_grad=True)

    def function(x: Any) -> Any:
        y = x + 1
        for _ in range(int(x.sum().item())):
            w.grad = None
            (w * x).sum().backward()
            with calque.no_grad():
                w.sub_(w.grad)
        return y, x * 1

    call, go, main = calque.compile(function), walk.Walk.go, threading.current_thread()
    once = calque.tensor([0.0, 1.0, 0.0])
    for _ in range(6):
        call(calque.tensor([0.0, 0.0, 0.0]))

    def interrupted(self: walk.Walk, *arguments: Any) -> Any:
        last = go(self, *arguments)
        if last is None and threading.current_thread() is main:
            other(call, once)
        return last

    monkeypatch.setattr(walk.Walk, "go", interrupted)
    assert call(once)[0].tolist() == [1.0, 2.0, 1.0]
    monkeypatch.undo()
    assert w.tolist() == [0.0, -2.0, 0.0]
    for k in range(6):
        assert call(once)[0].tolist() == [1.0, 2.0, 1.0] and w.tolist() == [0.0, -3.0 - k, 0.0]


@pytest.mark.parametrize("moment", ["found", "walked"])
def test_a_way_that_writes_is_gone_alone_if_another_thread_found_it_meanwhile(
    moment: str, monkeypatch: pytest.MonkeyPatch, other: Callable[..., Any]
) -> None:  # fmt: skip
    """Calls of which nobody knows that they write go on side by side; the first of them that meets a way that does waits for its turn."""
    count = calque.zeros(())

    def function(x: Any) -> Any:
        if x.sum().item() > 1:
            count.add_(x.sum())
        return x * 1

    call, main, met, alone = calque.compile(function), threading.current_thread(), [], []
    for _ in range(6):
        call(calque.tensor([0.0, 1.0])).tolist()  # begins a program, which is where the calls of the other thread begin
    look, replay, find = walk.Walk._look, walk.Walk._replay, region.CallMemory.find

    def learned() -> None:
        if threading.current_thread() is main and not met:
            met.append(moment)
            for _ in range(3):
                other(lambda: (call(calque.tensor([2.0, 3.0])).tolist(), count.item()))

    def looked(self: walk.Walk, test: Any) -> Any:
        if moment == "walked":
            learned()
        return look(self, test)

    def found(self: region.CallMemory, *where: Any) -> Any:
        if moment == "found":
            learned()
        return find(self, *where)

    def replayed(self: walk.Walk, macro: Any) -> None:
        if macro.written and threading.current_thread() is main:
            alone.append(threads.SECTION._is_owned())  # type: ignore[attr-defined]
        replay(self, macro)

    monkeypatch.setattr(walk.Walk, "_look", looked)
    monkeypatch.setattr(region.CallMemory, "find", found)
    monkeypatch.setattr(walk.Walk, "_replay", replayed)
    assert call(calque.tensor([2.0, 3.0])).tolist() == [2.0, 3.0]
    assert met and False not in alone and count.item() == 20.0
