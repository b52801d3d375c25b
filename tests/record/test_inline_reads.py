"""A thread that waits for a value computes it itself: waking another thread would only take longer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import calque
from calque.run import dispatch
from calque.run.engine import CPU_QUEUE, Queue

ROWS = 2048  # more work than every flush runs inline, less than a read does


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The tasks that were handed to the engine's thread."""
    seen: list[Any] = []
    submit = Queue.submit

    def counted(self: Queue, task: Any, *buffers: Any) -> None:
        seen.append(task)
        submit(self, task, *buffers)

    monkeypatch.setattr(Queue, "submit", counted)
    yield seen


def _sum_of_rows(x: calque.Tensor) -> calque.Tensor:
    return (x * 3.0 + 1.0).sum(1)


def test_a_read_runs_a_compiled_program_on_its_own_thread(submitted: list[Any]) -> None:
    assert dispatch.INLINE_WORK < ROWS * 256 < dispatch.INLINE_READ_WORK / 4
    x = calque.tensor(np.ones((ROWS, 256), np.float32))
    _sum_of_rows(x).numpy()
    calque.synchronize()
    assert submitted  # the first run compiles: that is for the engine's thread
    submitted.clear()
    for _ in range(3):
        np.testing.assert_array_equal(_sum_of_rows(x).numpy(), np.full(ROWS, 1024.0, np.float32))
    assert not submitted


def test_a_program_that_nobody_waits_for_still_goes_to_the_engine(submitted: list[Any]) -> None:
    x = calque.tensor(np.ones((ROWS, 256), np.float32))
    weight = calque.nn.Parameter(calque.ones(ROWS, 256))
    optimizer = calque.optim.SGD([weight], lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        (weight * x).sum().backward()
        optimizer.step()
    assert submitted
    assert weight[0, 0].item() == -0.5


def test_behind_queued_work_a_read_waits_for_its_turn(submitted: list[Any]) -> None:
    x = calque.tensor(np.ones((ROWS, 256), np.float32))
    for _ in range(2):
        _sum_of_rows(x).numpy()
    calque.synchronize()
    submitted.clear()
    CPU_QUEUE._busy += 1  # as if a program were running
    try:
        y = _sum_of_rows(x)
        assert y.sum().item() == 1024.0 * ROWS
    finally:
        CPU_QUEUE._busy -= 1
    assert submitted


def test_an_error_inside_a_read_that_runs_inline_is_raised_there_and_only_there() -> None:
    x, rows = calque.tensor(np.ones((ROWS, 256), np.float32)), calque.zeros(4, dtype=calque.int64)
    for _ in range(2):
        (x[rows] + x.sum()).numpy()
    wrong = rows + ROWS
    picked = x[wrong] + x.sum()
    with pytest.raises(IndexError):
        picked.numpy()
    np.testing.assert_array_equal((x[rows] + x.sum()).numpy(), np.full((4, 256), 1.0 + ROWS * 256, np.float32))
    calque.synchronize()
