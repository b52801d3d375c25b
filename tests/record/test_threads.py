"""Threads that work on the same tensors: what one has recorded and not flushed, another reads, overwrites and trains."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import calque
from calque import nn
from calque.base.errors import AutogradError, LeakWarning
from calque.hybrid import walk
from calque.record import recorder, threads
from calque.replay import capture, macro
from calque.report import history
from calque.run.buffer import Buffer
from tests.hybrid.common import replays


def together(targets: list[Any], interval: float) -> None:
    """Run each in a thread of its own to its end; they take turns after `interval` seconds."""
    threads = [threading.Thread(target=target, daemon=True) for target in targets]
    before = sys.getswitchinterval()
    sys.setswitchinterval(interval)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
            assert not thread.is_alive()
    finally:
        sys.setswitchinterval(before)


@pytest.fixture(autouse=True)
def alone_again() -> Iterator[None]:
    """Other tests count the programs of threads that share nothing."""
    yield
    threads.Sharing.left = 0


def in_thread(work: Callable[[], Any]) -> Any:
    """What `work` returns in a thread of its own."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join(300)
    assert not thread.is_alive()
    return found[0]


def test_a_value_overwritten_while_the_program_of_its_old_value_starts(monkeypatch: Any) -> None:
    x = calque.zeros(3)
    x.tolist()
    x.add_(1.0)
    start, kept = recorder.dispatch, []

    def meanwhile(*args: Any) -> Any:
        monkeypatch.setattr(recorder, "dispatch", start)
        kept.append(in_thread(lambda: (x.fill_(7.0), recorder.local.state.trace)))
        return start(*args)

    monkeypatch.setattr(recorder, "dispatch", meanwhile)
    calque.synchronize()
    recorder.flush("test")
    assert kept and x.tolist() == [7.0] * 3
    x.add_(1.0)
    assert x.tolist() == [8.0] * 3


def test_a_value_overwritten_while_it_enters_a_trace(monkeypatch: Any) -> None:
    x = calque.zeros(3)
    x.tolist()
    enter, kept = recorder._input_slot, []

    def meanwhile(*args: Any) -> Any:
        monkeypatch.setattr(recorder, "_input_slot", enter)
        kept.append(in_thread(lambda: (x.fill_(7.0), recorder.local.state.trace)))
        return enter(*args)

    monkeypatch.setattr(recorder, "_input_slot", meanwhile)
    y = x + 1.0
    assert kept and y.tolist() in ([1.0] * 3, [8.0] * 3)  # the value of a moment (the compiled module looks twice where no edge is known)
    assert x.tolist() == [7.0] * 3 and (x + 1.0).tolist() == [8.0] * 3


@pytest.fixture
def other() -> Iterator[Callable[..., Any]]:
    """Does something in another thread, always the same, and waits for it."""
    with ThreadPoolExecutor(1) as thread:
        yield lambda *call: thread.submit(*call).result(30)


def test_an_update_behind_a_replay_that_finds_a_value_just_computed(monkeypatch: Any, other: Any) -> None:
    weights = [nn.Parameter(calque.ones(5, 4)) for _ in range(3)]
    weight, optimizer = weights[0], calque.optim.SGD(weights, lr=1.0, weight_decay=0.5)
    replay, ask, met = macro.Macro.replay, macro.foreign_buffer, []

    def overwritten(*args: Any) -> Any:
        monkeypatch.setattr(macro.Macro, "replay", replay)
        other(weight.detach().fill_, 3.0)
        return replay(*args)

    def computed(*args: Any) -> Any:
        met.append(other(recorder.flush, "test"))
        return ask(*args)

    for k in range(6):
        for w in weights:
            w.grad = calque.ones(5, 4)
        calque.synchronize()
        if k == 5:
            monkeypatch.setattr(macro.Macro, "replay", overwritten)
            monkeypatch.setattr(macro, "foreign_buffer", computed)
        optimizer.step()
        calque.synchronize()
        weight.tolist()
    assert met and weight.tolist() == [[0.5] * 4] * 5  # 3 - (1 + 3 / 2)


def test_memory_shared_with_numpy_that_another_thread_overwrites_before_a_replay_copies_it(monkeypatch: Any) -> None:
    model, owner = calque.compile(lambda x: x * 2.0 + 1.0), calque.zeros(3, 4)
    array, replay, flush, threads = owner.numpy(), macro.Macro.replay, recorder.flush, []
    inside, over = threading.Event(), threading.Event()

    def overwrite() -> None:
        with calque.no_grad():
            owner.copy_(calque.tensor([[1.0], [2.0], [3.0]]).expand(3, 4))

    def flushed(*args: Any, **named: Any) -> Any:
        if threading.current_thread() in threads:
            inside.set()
            assert over.wait(300)
        return flush(*args, **named)

    def overwritten(*args: Any) -> Any:
        monkeypatch.setattr(macro.Macro, "replay", replay)
        threads.append(threading.Thread(target=overwrite))
        threads[0].start()
        assert inside.wait(300)
        return replay(*args)

    for _ in range(4):
        assert model(owner[1:]).tolist() == [[1.0] * 4] * 2
    monkeypatch.setattr(macro.Macro, "replay", overwritten)
    monkeypatch.setattr(recorder, "flush", flushed)
    y = model(owner[1:])
    over.set()
    threads[0].join(300)
    assert y.tolist() == [[5.0] * 4, [7.0] * 4] and array[2].tolist() == [3.0] * 4


def test_a_program_started_directly_while_another_thread_puts_a_value_there(monkeypatch: Any, other: Any) -> None:
    model = nn.Linear(4, 3)
    optimizer = calque.optim.SGD(model.parameters(), lr=0.5)
    start, x, watches = macro.Macro.start_directly, calque.ones(2, 4), []

    class Meanwhile(list):  # type: ignore[type-arg]
        """Cells that another thread overwrites when all have been looked at once."""

        left = 0

        def __getitem__(self, k: Any) -> Any:
            self.left -= 1
            if self.left == -1:
                other(replaced)
            return super().__getitem__(k)

    def replaced() -> None:
        model.weight.detach().fill_(3.0)
        recorder.flush("test")

    def watched(self: Any, cells: list[Any], *args: Any) -> Any:
        if not self.start_up:
            return start(self, cells, *args)
        watches.append(self)
        found = Meanwhile(cells)
        found.left = len(self.start_up.inputs)
        return start(self, found, *args)

    @calque.compile
    def step(x: Any) -> Any:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    for _ in range(5):
        step(x)
        calque.synchronize()
    old, later = model.weight.tolist(), in_thread(lambda: (model.weight.detach() * 2.0, recorder.local.state.trace))
    monkeypatch.setattr(macro.Macro, "start_directly", watched)
    step(x)
    calque.synchronize()
    assert watches and later[0].tolist() == [[2.0 * number for number in row] for row in old]


def test_a_value_overwritten_while_the_recording_of_a_call_begins(monkeypatch: Any, other: Any) -> None:
    x, met = calque.zeros(3), []
    x.tolist()
    call = calque.compile(lambda x: x * 2.0 + 1.0)

    def meanwhile(value: Any) -> int:
        if isinstance(value, Buffer) and not met:
            met.append(other(x.fill_, 7.0))
        return id(value)

    call(calque.ones(3))
    monkeypatch.setattr(capture, "id", meanwhile, raising=False)
    assert call(x).tolist() in ([1.0] * 3, [15.0] * 3) and met
    assert x.tolist() == [7.0] * 3


@pytest.mark.parametrize("when", ["before", "pending", "after"])
def test_a_call_that_python_takes_over_while_another_thread_uses_its_parameters(when: str, monkeypatch: Any, other: Any) -> None:
    model = nn.Linear(4, 3)
    optimizer = calque.optim.SGD(model.parameters(), lr=1e-3)
    take, seen = walk.Walk.take_back, []

    @calque.compile
    def step(x: Any) -> float:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        value: float = loss.item()
        if value > 50.0:
            model.bias.data.mul_(0.5)
        return value

    def taken(self: Any) -> Any:
        if when != "after":
            other(model.weight.detach().fill_, 3.0)
        if when == "before":
            other(recorder.flush, "test")
        script = take(self)
        seen.append(other(lambda: model.weight.detach().add(0.0).tolist()))
        return script

    for _ in range(30):  # which call is the first replay depends on what was recorded before
        if replays(lambda: step(calque.ones(2, 4) * 0.1)):
            break
    monkeypatch.setattr(walk.Walk, "take_back", taken)
    refused = False
    try:
        step(calque.ones(2, 4) * 100.0)
    except RuntimeError as error:  # it found that it cannot be done again
        assert when != "after" and "[hybridize] expected a call to do again" in str(error)
        refused = not seen
    monkeypatch.undo()
    assert refused or seen and all(math.isfinite(number) for row in seen[0] for number in row)
    assert model.weight.isfinite().all() and model.bias.isfinite().all()
    assert math.isfinite(step(calque.ones(2, 4) * 0.1))


def test_another_handle_on_what_another_thread_has_recorded() -> None:
    made: Any = in_thread(lambda: (calque.ones(3) * 2.0, recorder.local.state.trace))
    copy = made[0].detach().clone()
    grown = made[0].contiguous() + 1.0
    w = calque.zeros(3, requires_grad=True)
    w.grad = made[0]
    assert copy.tolist() == [2.0] * 3 and grown.tolist() == [3.0] * 3 and w.grad.tolist() == [2.0] * 3


def test_all_values_of_another_threads_trace_are_evaluated_at_once(monkeypatch: Any) -> None:
    start, count = threads.dispatch, []
    monkeypatch.setattr(threads, "dispatch", lambda *args: (count.append(1), start(*args)))
    values, _ = in_thread(lambda: ([calque.full((2,), float(k)) * 2.0 for k in range(8)], recorder.local.state.trace))
    total = sum(value + 1.0 for value in values)
    assert total.tolist() == [2.0 * sum(range(8)) + 8.0] * 2
    assert len(count) == 1


def test_two_threads_that_hold_losses_of_one_line(monkeypatch: Any) -> None:
    w = calque.ones(2, requires_grad=True)
    monkeypatch.setattr(history.gc, "collect", lambda: history._roots.clear())  # the other thread comes to its warning first
    losses = []
    for _ in range(2 * history.REPEATS):
        losses.append((w * 2.0).sum())
        losses[-1].backward()
    monkeypatch.undo()
    with pytest.warns(LeakWarning):
        for _ in range(2 * history.REPEATS):
            losses.append((w * 2.0).sum())
            losses[-1].backward()


@pytest.mark.parametrize("hybridized", [False, True])
@pytest.mark.parametrize("trainers", [1, 3])
def test_one_model_in_several_threads(hybridized: bool, trainers: int, rng: Any) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    if hybridized:
        model.hybridize()
    optimizer = calque.optim.Adam(model.parameters(), lr=1e-3)
    inputs = [calque.tensor(rng.standard_normal((4, 8)).astype("float32")) for _ in range(3)]
    failures: list[BaseException] = []
    updates = []

    def train() -> None:
        for k in range(25):
            try:
                optimizer.zero_grad()
                model(inputs[k % 3]).square().mean().backward()
                optimizer.step()
                updates.append(k)
            except AutogradError as error:  # another thread has updated the weights meanwhile; PyTorch raises the same
                assert "modified by an inplace operation" in str(error)
                if trainers == 1:
                    failures.append(error)
            except BaseException as error:
                failures.append(error)

    def evaluate() -> None:
        try:
            for k in range(50):
                with calque.no_grad():
                    assert math.isfinite(model(inputs[k % 3]).sum().item())
        except BaseException as error:
            failures.append(error)

    together([train if k < trainers else evaluate for k in range(5)], 1e-5)
    assert not failures and updates
    for p in model.parameters():
        assert p.isfinite().all()


def test_a_child_is_not_kept_waiting_by_a_thread_that_is_gone() -> None:
    script = """
import os, threading, warnings, calque
from calque.record.threads import LOCK, SECTION
warnings.simplefilter("ignore")
held, over = threading.Event(), threading.Event()
def hold():
    with LOCK, SECTION:
        held.set()
        over.wait(300)
threading.Thread(target=hold, daemon=True).start()
held.wait()
child = os.fork()
if not child:
    w = calque.ones(3, requires_grad=True)
    (w * 2.0).sum().backward()
    os._exit(0 if w.grad.tolist() == [2.0] * 3 else 1)
over.set()
assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)


def test_hybridized_models_of_several_threads_wait_for_each_other_in_one_order(rng: Any) -> None:
    inputs = [calque.tensor(rng.standard_normal((4, 8)).astype("float32")) for _ in range(3)]
    finished = []

    def train() -> None:
        for _ in range(12):
            model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).hybridize()
            optimizer = calque.optim.SGD(model.parameters(), lr=1e-3)
            for k in range(30):
                optimizer.zero_grad()
                model(inputs[k % 3]).square().mean().backward()
                optimizer.step()
        finished.append(1)

    together([train] * 6, 2e-4)
    assert len(finished) == 6
