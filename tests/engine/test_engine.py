"""The engine: order by buffers, errors, callbacks, bounds, fork, exit; random programs agree with the synchronous twin."""

from __future__ import annotations

import gc
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import calque
from calque.backend.base import WAITING
from calque.base.config import settings
from calque.ir.program import Program
from calque.run.buffer import Buffer
from calque.run.engine import ENGINE, Queue, Task, drain

WIDTH = 4


@pytest.fixture
def queues() -> Iterator[list[Queue]]:
    made = [Queue(f"test {k}") for k in range(3)]
    yield made
    for queue in made:
        queue.close()
        ENGINE.queues.remove(queue)


pytestmark = pytest.mark.usefixtures("two_devices")


def _program(seed: int, queues: list[Queue], count: int, priorities: bool) -> list[int]:
    """Random tasks over eight buffers: each writes a hash of what it reads, so any wrong order shows in the values."""
    rng = random.Random(seed)
    buffers = [Buffer([k + 1]) for k in range(8)]

    def work(task: tuple[int, list[Buffer], list[Buffer]]) -> None:
        number, reads, writes = task
        total = number
        for b in reads:
            total = (total * 1_000_003 + b.array[0]) % (1 << 61)
        if number % 7 == 0:
            time.sleep(0)  # another thread may go on
        for b in writes:
            b.array[0] = (b.array[0] * 31 + total) % (1 << 61)

    for number in range(count):
        reads, writes = rng.sample(buffers, rng.randrange(4)), rng.sample(buffers, rng.randrange(3))
        inputs, outputs = [*reads, *writes], list(writes)
        task = Task(lambda given=(number, reads, writes): work(given), rng.randrange(3) * priorities)  # type: ignore[misc]
        task.brief, task.aside = number % 3 == 0, number % 5 == 0
        rng.choice(queues).submit(task, inputs, outputs)
        if number % 11 == 10:
            task.wait()
    drain()
    return [b.array[0] for b in buffers]


@pytest.mark.parametrize("programs", [300, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("shared", [False, True])
def test_random_programs_agree_with_the_synchronous_twin(queues: list[Queue], programs: int, shared: bool) -> None:
    for queue in queues:
        queue.move = (lambda place: place) if shared else None  # any thread may serve it
    for seed in range(programs):
        count = 5 + seed % 40
        found = _program(seed, queues, count, seed % 2 == 1)
        settings.sync = True
        try:
            expected = _program(seed, queues, count, False)
        finally:
            settings.sync = False
        assert found == expected, seed


@pytest.mark.parametrize("tasks", [30_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_many_tasks_leave_nothing_behind(queues: list[Queue], tasks: int) -> None:
    buffers = [Buffer([0]) for _ in range(4)]

    def add(target: Buffer) -> None:
        target.array[0] += 1

    def rounds(count: int) -> None:
        for k in range(count):
            target = buffers[k % 4]
            inputs = [target, buffers[(k + 1) % 4]]
            task = Task(lambda target=target: add(target))  # type: ignore[misc]
            task.hold(inputs, [target])
            queues[k % 3].submit(task, inputs, [target])
        drain()

    rounds(2000)
    gc.collect()
    before = len(gc.get_objects())
    rounds(tasks)
    gc.collect()
    assert [b.array[0] for b in buffers] == [(tasks + 2000) // 4] * 4
    assert len(gc.get_objects()) - before < 200
    assert all(b.pins == 0 and len(b.readers or ()) <= 10 for b in buffers)


def test_priorities_order_what_is_ready(queues: list[Queue]) -> None:
    gate, seen = threading.Event(), []
    queues[0].submit(Task(gate.wait))  # type: ignore[arg-type]
    for k, priority in enumerate((0, 2, 1, 2)):
        queues[0].submit(Task(lambda k=k: seen.append(k), priority))  # type: ignore[misc]
    gate.set()
    deadline = time.monotonic() + 300
    while len(seen) < 4 and time.monotonic() < deadline:  # `drain` would help
        time.sleep(0.001)
    assert sorted(seen) == [0, 1, 2, 3]
    assert all(abs(seen.index(k) - place) <= 1 for place, k in enumerate([1, 3, 2, 0]))  # what two threads begin in order may end in another


def test_a_full_queue_blocks_the_sender() -> None:
    queue = Queue("small", bound=2)
    gate, sent = threading.Event(), []

    def send() -> None:
        for k in range(5):
            queue.submit(Task(gate.wait))  # type: ignore[arg-type]
            sent.append(k)

    sender = threading.Thread(target=send)
    sender.start()
    deadline = time.monotonic() + 300
    while len(sent) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert len(sent) == 2 and queue.depth == 2
    gate.set()
    sender.join(300)
    queue.close()
    ENGINE.queues.remove(queue)
    assert len(sent) == 5


def _tensor_program(seed: int) -> list[list[float]]:
    """Random work on three devices with copies and in-place writes."""
    rng = random.Random(seed)
    names = ("cpu", "cpu:0", "cpu:1")
    held = [calque.arange(float(WIDTH)).to(n) + k for k, n in enumerate(names * 2)]
    for step in range(rng.randrange(4, 14)):
        a = rng.choice(held)
        mates = [t for t in held if t.device == a.device]
        kind = rng.randrange(6)
        if kind == 0:
            held[rng.randrange(len(held))] = a.to(rng.choice(names))
        elif kind == 1:
            a.mul_(0.5).add_(float(step))
        elif kind == 2:
            held[rng.randrange(len(held))] = a * 0.25 + rng.choice(mates)
        elif kind == 3:
            a[1:3] = rng.choice(mates)[:2] - 1.0
        elif kind == 4:
            a.copy_(rng.choice(held))
        else:
            rng.choice(held).sum().item()
    return [t.tolist() for t in held]


@pytest.mark.parametrize("programs", [100, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("early", [False, True])
def test_random_tensor_programs_agree_with_the_synchronous_twin(programs: int, early: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from calque.record import places
    from calque.run import dispatch

    if early:  # whatever a copy need not wait for becomes a program of its own
        monkeypatch.setattr(places, "LATE_WORK", -1)
        monkeypatch.setattr(places, "LATE_SHARE", -1.0)
    monkeypatch.setattr(dispatch, "INLINE_WORK", 0)  # everything goes through the queues
    monkeypatch.setattr(dispatch, "INLINE_READ_WORK", 0)
    for seed in range(programs):
        found = _tensor_program(seed)
        monkeypatch.setattr(settings, "sync", True)
        expected = _tensor_program(seed)
        monkeypatch.setattr(settings, "sync", False)
        assert found == expected, seed


@pytest.mark.parametrize("how", ["read", "synchronize"])
def test_a_program_that_overlaps_with_another_device_stays_in_its_queue(how: str, queues: list[Queue], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is always waited for, but the thread that would run it has to record what the other device does meanwhile."""
    from calque.record import recorder
    from calque.run import dispatch

    monkeypatch.setattr(dispatch, "AT_ONCE", 60.0)
    run, found = dispatch.Plan.run, list[int]()

    def slowly(*arguments: Any) -> Any:
        time.sleep(0.02)  # so that the reader waits
        return run(*arguments)

    monkeypatch.setattr(dispatch.Plan, "run", slowly)
    monkeypatch.setattr(dispatch.Plan, "habitual", lambda plan: found.append(plan.habit) or False)
    x = calque.ones(256, 256, device="cpu:0")
    for _ in range(12):
        calque.synchronize()
        gate = threading.Event()
        y = (x @ x @ x @ x).sum()
        queues[0].submit(Task(lambda gate=gate: gate.wait() and None))  # type: ignore[misc]
        recorder.flush("test")
        opener = threading.Timer(0.1, gate.set)
        opener.start()
        if how == "synchronize":
            calque.synchronize()
        assert y.item() == 256.0**4 * 256
        opener.join()
    assert len(found) >= 12 and not any(found)


@pytest.mark.parametrize(("seconds", "habit"), [(0.0, True), (2.5e-4, True), (1e-3, False)])
def test_what_queueing_costs_is_no_work_of_the_user(seconds: float, habit: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the start of a program and the line that waits for it the queue itself takes a quarter of a millisecond when caches are cold."""
    from calque.run import dispatch

    clock = [0.0]
    monkeypatch.setattr(dispatch.events, "clock", lambda: clock[0])
    plan = dispatch.Plan(Program((), ()))
    plan.compiled = object()
    for _ in range(dispatch.HABIT):
        assert not plan.habitual()
        task = Task(lambda: None)
        plan.watch(task, dispatch.CPU_QUEUE)
        clock[0] += seconds
        assert task.waited is not None
        task.waited()
    assert plan.habitual() is habit


@pytest.mark.parametrize("how", ["read", "synchronize"])
def test_a_program_that_is_always_waited_for_runs_where_it_is_started(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only as long as it is: work that nobody waits for at once goes through the queue."""
    from calque.record import recorder
    from calque.run import dispatch

    monkeypatch.setattr(dispatch, "AT_ONCE", 60.0)  # a busy machine is slow between two lines
    run, here = dispatch.Plan.run, threading.current_thread()

    def slowly(*arguments: Any) -> Any:
        if threading.current_thread() is not here:
            time.sleep(0.05)  # so that the reader waits, and not for nothing
        return run(*arguments)

    monkeypatch.setattr(dispatch.Plan, "run", slowly)
    x = calque.ones(256, 256)

    def start() -> tuple[Any, bool]:
        calque.synchronize()
        before = ENGINE.numbers
        y = (x @ x @ x @ x).sum()
        recorder.flush("test")
        return y, ENGINE.numbers > before

    def queued_when_read() -> bool:
        y, queued = start()
        if how == "synchronize":
            calque.synchronize()
        assert y.item() == 256.0**4 * 256
        return queued

    calque.synchronize()
    found = [queued_when_read() for _ in range(40)]
    assert found[:3] == [True] * 3  # compiling, and no habit yet
    assert not any(found[-20:])
    monkeypatch.setattr(dispatch, "AT_ONCE", 0.0)
    free = [start()[1] for _ in range(dispatch.TRUSTED + 12)]
    assert not free[0] and all(free[-10:])


@pytest.mark.parametrize("inline", [True, False])
def test_forced_failures_are_reported_where_they_were_recorded(inline: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 bad indices at random points of a program: each names its line, and what does not depend on it is right."""
    from calque.run import dispatch

    if not inline:
        monkeypatch.setattr(dispatch, "INLINE_WORK", 0)
        monkeypatch.setattr(dispatch, "INLINE_READ_WORK", 0)
    rng = random.Random(5)
    for round_ in range(100):
        device = f"cpu:{round_ % 2}"
        table = calque.arange(10.0, device=device)
        at = rng.randrange(6)
        good, bad, line = [], None, 0
        for step in range(6):
            if step == at:
                where = calque.tensor([1, 10 + step], device=device) * 1  # not known before it runs
                bad = calque.index_select(table, 0, where) * 2.0  # the bad line
                line = sys._getframe().f_lineno - 1
            good.append((table + step).to(f"cpu:{(round_ + step) % 2}"))
            if rng.random() < 0.3:
                calque.record.recorder.flush("test")  # type: ignore[attr-defined]
        assert bad is not None
        after = bad + 1.0
        with pytest.raises(IndexError) as caught:
            after.tolist() if round_ % 3 else after.to("cpu").tolist()
        text = str(caught.value) + "".join(getattr(caught.value, "__notes__", []))
        assert re.search(rf"{re.escape(__file__)}:{line}\b", text), text
        for step, value in enumerate(good):
            assert value.tolist() == [k + step for k in range(10)]


def test_what_a_failure_leaves_is_computed_in_little_memory() -> None:
    """Values go after their last use. All of them were kept: beside a new large model a bad index took 6 GB."""
    x, where = calque.rand(1 << 18), calque.tensor([1, 12])
    calque.synchronize()
    wave, bad = x, calque.index_select(calque.arange(10.0), 0, where * 1)
    for _ in range(60):
        wave = wave.sin() * 1.5
    tracemalloc.start()
    try:
        with pytest.raises(IndexError):
            bad.tolist()
        assert tracemalloc.get_traced_memory()[1] < 16 << 20  # of 120 values of 1 MiB each
    finally:
        tracemalloc.stop()
    assert wave.shape == (1 << 18,) and bool(wave.isfinite().all())


def test_waitall_raises_what_nobody_has_read() -> None:
    x = calque.arange(4.0, device="cpu:1")
    bad = calque.index_select(x, 0, calque.tensor([8], device="cpu:1") + 1)
    later = [(bad + k).to("cpu:0") for k in range(3)]
    fine = x * 2
    with pytest.raises(IndexError, match="9"):
        calque.waitall()
    calque.waitall()  # once
    assert fine.tolist() == [0.0, 2.0, 4.0, 6.0]
    for value in later:
        with pytest.raises(IndexError, match="9"):
            value.wait_to_read()


def test_callbacks_run_when_values_are_there() -> None:
    seen: list[float] = []
    x = calque.ones(1 << 16, device="cpu:1")
    for k in range(5):
        calque.call_when_ready(lambda total, k=k: seen.append(float(total) + k), x.sum())
        x = x + 1.0
    calque.synchronize()
    assert seen == [(1 << 16) * (k + 1) + k for k in range(5)]
    handle = calque.call_when_ready(lambda value: 1 / 0, x)
    with pytest.raises(ZeroDivisionError):
        handle.wait()
    assert handle.done
    calque.call_when_ready(lambda value: 1 / 0, x)
    with pytest.raises(ZeroDivisionError):
        calque.synchronize()


def test_updates_stay_in_place_while_earlier_steps_still_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """What tasks hold must not look like a second owner: no new plans, no copies, one buffer for ever."""
    from calque.run import dispatch

    monkeypatch.setattr(dispatch, "INLINE_WORK", 0)
    w = calque.zeros(1 << 18)
    step = calque.ones(1 << 18)
    calque.waitall()
    buffer = id(w._storage.buffer)

    def advance(count: int) -> None:
        for _ in range(count):
            w.add_(step)
            calque.record.recorder.flush("test")  # type: ignore[attr-defined]

    advance(3)
    calque.synchronize()
    before = calque.stats()["programs"]
    advance(40)
    assert id(w._storage.buffer) == buffer
    assert calque.stats()["programs"] == before
    assert w[:3].tolist() == [43.0] * 3


def test_threads_may_share_devices() -> None:
    failures: list[BaseException] = []

    def train(number: int) -> None:
        try:
            device = f"cpu:{number % 2}"
            x = calque.full((32, 32), float(number + 1), device=device)
            for _ in range(20):
                x = (x @ x).clamp(max=2.0).to(f"cpu:{(number + 1) % 2}").to(device) * 0.5
            assert x.cpu().flatten()[0].item() == 1.0
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=train, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(300)
    assert not failures, failures


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork")
def test_a_forked_child_has_an_engine_of_its_own() -> None:
    x = calque.ones(1 << 18, device="cpu:1")
    y = [(x * k).to("cpu:0") for k in range(8)]
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            ok = all(t[5].item() == k for k, t in enumerate(y))
            ok = ok and (x.to("cpu:0") + 1.0).sum().item() == 2 << 18
            status = 0 if ok else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert y[7][0].item() == 7.0


EXIT = """
import calque
calque.set_logical_devices(2)
x = calque.ones(512, 512, device="cpu:1")
for _ in range(30):
    x = (x @ x).clamp(max=1.0).to("cpu:0").to("cpu:1")
calque.call_when_ready(lambda v: print("seen", v[0, 0]), x)
{end}
"""


@pytest.mark.parametrize(("chosen", "expected"), [(None, 2e-4), (0.01, 0.01)])
def test_python_hands_the_interpreter_over_soon_unless_somebody_chose_otherwise(chosen: float | None, expected: float) -> None:
    code = f"""
import sys
import calque
assert sys.getswitchinterval() == 0.005  # importing changes nothing
if {chosen} is not None:
    sys.setswitchinterval({chosen})
from calque.run.engine import CPU_QUEUE, Task
CPU_QUEUE.submit(Task(lambda: None))
CPU_QUEUE.drain()
print(sys.getswitchinterval())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and float(done.stdout) == pytest.approx(expected), done.stderr


@pytest.mark.parametrize(("end", "status"), [("", 0), ("raise SystemExit(3)", 3), ("1 / 0", 1)])
def test_the_interpreter_exits_cleanly(end: str, status: int) -> None:
    done = subprocess.run([sys.executable, "-c", EXIT.format(end=end)], capture_output=True, text=True, timeout=300)
    assert done.returncode == status, done.stderr
    assert "seen 1.0" in done.stdout
    assert not done.stderr or "ZeroDivisionError" in done.stderr, done.stderr


INTERRUPT = """
import signal, calque
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job starts with the signal ignored
calque.set_logical_devices(2)
x = calque.ones(400, 400, device="cpu:1")
calque.synchronize()
steps = 0
try:
    while True:
        x = (x @ x).clamp(max=1.0).to("cpu:0").to("cpu:1")
        steps += 1
        if steps == 3:
            print("ready", flush=True)
except KeyboardInterrupt:
    pass
assert calque.ones(3, device="cpu:1").sum().item() == 3.0
try:
    value = x[0, 0].item()
except RuntimeError as error:
    value = 1.0 if "interrupt" in type(error).__name__.lower() else 0.0
print("alive", steps > 0, value, flush=True)
"""


@pytest.mark.parametrize("delay", [0.0, 0.05, 0.21])
def test_ctrl_c_leaves_a_working_engine(delay: float) -> None:
    child = subprocess.Popen([sys.executable, "-c", INTERRUPT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "ready\n"
        time.sleep(0.1 + delay)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=300)
    finally:
        child.kill()
    assert child.returncode == 0 and "alive True 1.0" in out, (out, err)


def test_work_on_two_devices_overlaps(queues: list[Queue]) -> None:
    """Recorded serially, run at the same time: the tasks of both devices are under way together."""
    together, met = threading.Barrier(2, timeout=300), []

    def meet() -> None:  # ends when a task of the other queue is under way as well
        met.append(together.wait())

    first, second = Buffer([0]), Buffer([0])
    for _ in range(5):
        queues[0].submit(Task(meet), [first], [first])
        queues[1].submit(Task(meet), [second], [second])
    drain()
    assert sorted(met) == [0] * 5 + [1] * 5


def test_a_copy_waits_for_its_value_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A, B, C, D: C's device gets A while B, recorded before C, still runs."""
    from calque.record import places, recorder

    made: list[Any] = []
    monkeypatch.setattr(recorder, "split", lambda *given: made.append(places.split(*given)) or made[-1])
    w = calque.randn(256, 256, device="cpu:0") * 0.05
    start = calque.ones(128, 256, device="cpu:0")
    calque.waitall()
    a = start * 2.0
    b = ((a + 1.0) @ w).tanh() @ w
    c = a.to("cpu:1") + 2.0
    d = b * c.to("cpu:0")
    parts = [[str(part.device) for part in split.parts] for split in made]
    assert parts[0] == ["cpu:0", "cpu:0"], parts
    early, late = made[0].parts
    assert early.plan.cost < late.plan.cost / 10
    held = (start.numpy() * 2.0).astype(np.float64)
    weights = w.cpu().numpy().astype(np.float64)
    np.testing.assert_allclose(d.cpu().numpy(), np.tanh((held + 1.0) @ weights) @ weights * (held + 2.0), rtol=1e-3, atol=1e-3)


def test_results_do_not_depend_on_the_share_of_threads() -> None:
    x: Any = np.random.default_rng(0).standard_normal((64, 512)).astype(np.float32)
    found = []
    for count in (1, 2, 3):
        calque.set_logical_devices(count)
        t = calque.tensor(x, device=f"cpu:{count - 1}")
        found.append(((t @ t.t()).softmax(-1).sum(0) + t.mean()).cpu().numpy().copy())
    assert all(np.array_equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize("wait", [calque.synchronize, calque.waitall])
def test_synchronize_starts_what_was_only_recorded(wait: Callable[[], None]) -> None:
    """A clock stopped behind it measures the work: PyTorch programs time themselves so."""
    x = calque.ones(300, 300)
    calque.synchronize()
    before = calque.stats().flushes
    y = x @ x
    assert calque.stats().flushes == before
    wait()
    assert calque.stats().flushes == before + 1 and not any(calque.stats().queues.values())
    assert y.sum().item() == 300.0**3


def test_an_error_is_raised_once_whichever_of_its_values_is_read() -> None:
    """The index is part of the program that fails, and is kept, but never read."""
    x, index = calque.zeros(2, 3), calque.zeros(2, 3, dtype=calque.int64) - 1000
    x.scatter_(0, index, calque.ones(2, 3))
    with pytest.raises(IndexError, match="index -1000"):
        x.tolist()
    calque.synchronize()
    assert index.shape == (2, 3)


def test_who_is_woken_waits_no_more(queues: list[Queue]) -> None:
    """The next task of a queue begins before the thread that waited has the interpreter's lock: it is counted as going on all the same."""
    met: list[bool] = []

    def first() -> None:
        while not WAITING:
            time.sleep(1e-4)

    for _ in range(20):
        task = Task(first)
        queues[0].submit(task)
        queues[0].submit(Task(lambda: met.append(bool(WAITING))))
        task.wait()
        while queues[0].depth:  # without waiting for it
            time.sleep(1e-4)
    assert met == [False] * 20
