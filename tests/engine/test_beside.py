"""How many cores a queued program takes: one while somebody goes on recording, all when somebody waits. Its values are the same bits."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import calque
from calque.backend import base
from calque.backend.base import SERVING, WAITING, beside
from calque.backend.cpu.program import executable
from calque.base.config import settings
from calque.run import engine
from calque.run.engine import ENGINE, Queue, Task

LONG = 300  # seconds after which something that should happen does not


@pytest.fixture(autouse=True)
def all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "available_cores", lambda: settings.threads)


@pytest.fixture
def queue() -> Iterator[Queue]:
    made = Queue("beside", bound=8)
    yield made
    made.close()
    ENGINE.queues.remove(made)


def until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + LONG
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)
    return condition()


def test_a_program_is_beside_its_sender_until_somebody_waits_for_it(queue: Queue) -> None:
    found: list[bool] = []
    gate = threading.Event()

    def work() -> None:
        found.append(beside())
        gate.wait(LONG)
        until(lambda: bool(WAITING))
        found.append(beside())

    task = Task(work)
    queue.submit(task)
    assert until(lambda: len(found) == 1)
    assert not beside()  # this thread serves no queue
    gate.set()
    task.wait()
    assert found == [True, False]
    assert not WAITING


def test_where_there_are_more_cores_than_threads_nobody_makes_room(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "available_cores", lambda: settings.threads + 1)
    found: list[bool] = []
    queue.submit(Task(lambda: found.append(beside())))
    assert until(lambda: found == [False])


def test_who_finds_a_queue_full_goes_on_when_half_of_it_has_run(queue: Queue) -> None:
    """So that he records in one piece, and the cores are all the queue's in between."""
    turns, sent = threading.Semaphore(0), []

    def send() -> None:
        for k in range(9):
            queue.submit(Task(lambda: turns.acquire(timeout=LONG)))  # type: ignore[arg-type, return-value]
            sent.append(k)

    sender, second = threading.Thread(target=send), threading.Thread(target=lambda: queue.submit(Task(lambda: None)))
    sender.start()
    assert until(lambda: len(sent) == 8 and sender.ident in WAITING)
    for left in (7, 6, 5):
        turns.release()
        assert until(lambda left=left: queue.depth == left)  # type: ignore[misc]
        if left == 7:
            second.start()  # there is room for one, but he has come later
            assert until(lambda: second.ident in WAITING)
        time.sleep(0.02)
        assert len(sent) == 8 and queue.depth == left
    turns.release()
    assert until(lambda: len(sent) == 9 and not second.is_alive())
    assert not WAITING
    turns.release(8)
    sender.join(LONG)


def test_a_queue_is_full_too_where_what_waits_takes_long(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C and the end of a program wait for what is queued: of steps of seconds that would be minutes."""
    monkeypatch.setattr(engine, "AHEAD", 10)
    turns, sent = threading.Semaphore(0), []

    def send() -> None:
        for k, cost in enumerate((20, 20, 20, 4, 4, 4, 4)):
            task = Task(lambda: turns.acquire(timeout=LONG))  # type: ignore[arg-type, return-value]
            task.cost = cost
            queue.submit(task)
            sent.append(k)

    sender = threading.Thread(target=send)
    sender.start()
    for ran, most in enumerate((2, 3, 4, 6)):  # one that is too long alone runs while another waits
        assert until(lambda most=most: len(sent) == most and sender.ident in WAITING), (ran, sent)  # type: ignore[misc]
        time.sleep(0.02)
        assert len(sent) == most
        turns.release()
    turns.release(8)
    sender.join(LONG)
    assert until(lambda: len(sent) == 7 and queue.idle())
    assert not WAITING


def test_a_loop_of_long_steps_is_never_far_ahead() -> None:
    """In a process of its own: here other tests have made further queues, of which one that is full would keep work from the others."""
    program = """
import calque
from calque import nn
from calque.run import engine

engine.AHEAD = 1  # every step is long
model = nn.Linear(256, 256)
optimizer = calque.optim.Adam(model.parameters())
deepest = 0
for _ in range(40):
    optimizer.zero_grad()
    model(calque.randn(512, 256)).square().mean().backward()
    optimizer.step()
    deepest = max(deepest, engine.CPU_QUEUE.depth)
print(deepest)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LONG)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= 2


def test_a_queue_that_ends_serves_nobody_any_more() -> None:
    queue = Queue("short")
    seen: list[int] = []
    queue.submit(Task(lambda: seen.append(threading.get_ident())))
    queue.drain()
    assert seen[0] in SERVING
    queue.close()
    ENGINE.queues.remove(queue)
    assert seen[0] not in SERVING


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_child_begins_with_nobody_waiting(queue: Queue) -> None:
    queue.submit(Task(lambda: None))
    queue.drain()
    assert SERVING
    pid = os.fork()
    if pid == 0:
        os._exit(1 if SERVING or WAITING else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_one_core_gives_the_bits_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of a network with products, sums, a normalisation and moves; the queue runs each alone, or never."""

    def losses() -> tuple[list[float], np.ndarray]:
        calque.manual_seed(3)
        net = calque.nn.Sequential(calque.nn.Linear(40, 200), calque.nn.LayerNorm(200), calque.nn.GELU(), calque.nn.Linear(200, 7))
        optimizer = calque.optim.Adam(net.parameters(), lr=1e-2)
        x, y = calque.randn(96, 40), calque.randint(0, 7, (96,))
        found = []
        for _ in range(12):
            optimizer.zero_grad()
            loss = calque.nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            found.append(loss.detach())
        return [value.item() for value in found], net[0].weight.detach().numpy().copy()

    asked: list[bool] = []
    results = []
    for answer in (True, False):
        monkeypatch.setattr(executable, "beside", lambda answer=answer: asked.append(answer) or answer)  # type: ignore[func-returns-value]
        results.append(losses())
    assert True in asked
    assert results[0][0] == results[1][0]
    np.testing.assert_array_equal(results[0][1], results[1][1])
