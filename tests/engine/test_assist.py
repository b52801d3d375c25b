"""Which thread runs a task: workers that have nothing to do and threads that wait serve the queues of devices that nobody serves."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import calque
from calque.run.buffer import Buffer
from calque.run.engine import ENGINE, Queue, Task, _assist, drain

pytestmark = pytest.mark.usefixtures("two_devices")


@pytest.fixture
def queues() -> Iterator[list[Queue]]:
    made = [Queue(f"test {k}", move=lambda place: place) for k in range(3)]
    yield made
    for queue in made:
        queue.close()
        ENGINE.queues.remove(queue)


@pytest.fixture
def asleep(queues: list[Queue], monkeypatch: pytest.MonkeyPatch) -> list[Queue]:
    """The queues with workers that nobody wakes; those of other queues sleep, too, as one that has nothing to do would run what is here."""
    for queue in queues:
        queue.submit(Task(lambda: None))
    drain()
    monkeypatch.setattr(Queue, "rouse", lambda queue: None)
    while True:
        with ENGINE.lock:
            if all(queue._parked or queue._worker is None for queue in ENGINE.queues):
                return queues


def _noted(ran: list[tuple[str, Any]], name: str, brief: bool = True) -> Task:
    task = Task(lambda: ran.append((name, threading.current_thread())))
    task.brief = brief
    return task


def _rest(queues: list[Queue], monkeypatch: pytest.MonkeyPatch) -> None:
    """Wake the workers and wait for what is left."""
    monkeypatch.undo()
    with ENGINE.lock:
        for queue in queues:
            queue.rouse()
    drain()


def test_a_thread_that_waits_runs_what_is_brief_and_ready(asleep: list[Queue], monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, Any]] = []
    value = Buffer([0])
    asleep[0].submit(_noted(ran, "first"), [], [value])
    asleep[1].submit(_noted(ran, "then"), [value])
    long = _noted(ran, "long", brief=False)
    asleep[2].submit(long)
    _assist()
    here = threading.current_thread()
    assert ran == [("first", here), ("then", here)]
    assert asleep[0].idle() and asleep[1].idle() and asleep[2].depth == 1
    _rest(asleep, monkeypatch)
    assert ran[2][0] == "long" and ran[2][1] is not here


def test_who_waits_for_one_task_runs_only_what_that_needs(asleep: list[Queue], monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, Any]] = []
    one, two = Buffer([0]), Buffer([0])
    asleep[1].submit(_noted(ran, "needed"), [], [one])
    wanted = _noted(ran, "wanted")
    asleep[2].submit(wanted, [one], [two])
    asleep[0].submit(_noted(ran, "other"))
    wanted.wait()
    assert [name for name, _ in ran] == ["needed", "wanted"] and wanted.done
    _rest(asleep, monkeypatch)
    assert [name for name, _ in ran] == ["needed", "wanted", "other"]


def test_the_worker_that_made_a_task_ready_runs_it(queues: list[Queue]) -> None:
    """Waking the worker of the other queue would take longer than many a task."""
    ran: list[tuple[str, Any]] = []
    gate, value = threading.Event(), Buffer([0])
    first = Task(lambda: gate.wait() and ran.append(("first", threading.current_thread())))
    queues[0].submit(first, [], [value])
    queues[1].submit(_noted(ran, "then", brief=False), [value])
    gate.set()
    drain()
    assert [name for name, _ in ran] == ["first", "then"] and ran[0][1] is ran[1][1]


def test_a_queue_that_is_not_shared_is_served_by_its_worker_only(queues: list[Queue]) -> None:
    ran: list[tuple[str, Any]] = []
    queues[1].move = None
    gate, value = threading.Event(), Buffer([0])
    queues[0].submit(Task(lambda: gate.wait() and ran.append(("first", threading.current_thread()))), [], [value])
    queues[1].submit(_noted(ran, "then"), [value])
    gate.set()
    drain()
    assert [(name, thread.name) for name, thread in ran][1] == ("then", "calque-test 1")


def test_ctrl_c_waits_for_the_task_that_a_waiting_thread_runs(asleep: list[Queue], monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    ran = []

    def work() -> None:
        signal.raise_signal(signal.SIGINT)
        ran.append(1)

    task = Task(work)
    task.brief = True
    try:
        asleep[0].submit(task)
        with pytest.raises(KeyboardInterrupt):
            task.wait()
    finally:
        signal.signal(signal.SIGINT, before)
    assert ran == [1] and task.done and task.error is None and asleep[0].idle() and not asleep[0].runner
    _rest(asleep, monkeypatch)
    asleep[0].submit(Task(lambda: ran.append(2)))
    drain()
    assert ran == [1, 2]


@pytest.mark.parametrize(("count", "queued"), [(1000, False), (1 << 19, True)])
def test_small_copies_of_values_that_are_there_are_made_at_once(count: int, queued: bool) -> None:
    x = calque.arange(float(count), device="cpu:0")
    calque.waitall()
    before = ENGINE.numbers
    y = x.to("cpu:1")
    assert (ENGINE.numbers > before) is queued
    x.mul_(2.0)
    assert y[-1].item() == count - 1 and x[-1].item() == 2 * (count - 1)
    assert y.device == calque.device("cpu:1")
    t = calque.arange(12.0, device="cpu:0").reshape(3, 4).t().to("cpu:1")
    assert t.tolist() == [[0.0, 4.0, 8.0], [1.0, 5.0, 9.0], [2.0, 6.0, 10.0], [3.0, 7.0, 11.0]]


def test_copies_run_beside_a_task_of_their_queue(queues: list[Queue]) -> None:
    """A thread with nothing to do makes the copy that the device will need next while the device still computes."""
    ran: list[tuple[str, Any]] = []
    gate, started = threading.Event(), threading.Event()
    queues[0].submit(Task(lambda: started.set() or gate.wait() and None))
    assert started.wait(300)
    waiting = _noted(ran, "waiting", brief=False)
    queues[0].submit(waiting)
    copy = _noted(ran, "copy")
    copy.aside, copy.priority = True, 1
    queues[0].submit(copy)
    copy.wait()
    assert [name for name, _ in ran] == ["copy"] and queues[0].depth == 2 and not waiting.done
    gate.set()
    drain()
    assert [name for name, _ in ran] == ["copy", "waiting"] and queues[0].idle()
