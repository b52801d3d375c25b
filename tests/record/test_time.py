"""What is recorded does not depend on whether earlier programs have ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import calque
from calque.functional.checks import known_values
from calque.record.recorder import flush, local
from calque.run.engine import CPU_QUEUE, Task

USES: dict[str, Callable[[Any, Any], Any]] = {
    "cross_entropy": lambda x, y: calque.nn.functional.cross_entropy(x, y),
    "embedding": lambda x, y: calque.nn.functional.embedding(y, x),
    "index_select": lambda x, y: x.index_select(0, y),
    "x[y]": lambda x, y: x[y],
    "gather": lambda x, y: x.gather(1, y[:, None]),
    "nll_loss": lambda x, y: calque.nn.functional.nll_loss(x, y),
    "one_hot": lambda x, y: calque.nn.functional.one_hot(y, 512) + x,
    "repeat": lambda x, y: x.repeat_interleave(2, 0)[y],
}


def recorded(use: Callable[[Any, Any], Any], ended: bool, read: bool) -> tuple[int, list[float]]:
    """How many operations `use` records of indices that a program makes, which has ended by then or has not; and what it gives."""
    calque.manual_seed(0)
    x = calque.rand(512, 512)
    calque.synchronize()
    gate = threading.Event()
    task = Task(lambda: gate.wait(20) and None)
    y = (calque.rand(512, 512).sum(1) * 7).long() % 512
    if ended or read:
        gate.set()
    CPU_QUEUE.submit(task, [], [])
    flush("test")
    if read:
        assert y[0].item() >= 0
    buffer = y._storage.buffer
    while ended and buffer.task is not None and not buffer.task.done:
        time.sleep(0.001)
    assert ended or read or not buffer.task.done
    flush("test")
    found = use(x, y)
    count = local.state.trace.n
    gate.set()
    return count, found.float().mean().tolist()


@pytest.mark.parametrize("name", USES)
@pytest.mark.parametrize("read", [False, True])
def test_the_same_is_recorded_sooner_and_later(name: str, read: bool) -> None:
    """Values that Python has read are known; of others nobody can say so."""
    assert recorded(USES[name], True, read) == recorded(USES[name], False, read)


@pytest.mark.parametrize("wait", [calque.synchronize, lambda: (calque.rand(512, 512) * 2).sum().item()])
def test_what_earlier_programs_make_is_known_behind_a_wait(wait: Callable[[], Any]) -> None:
    """Labels that were made once are looked at where they are used, as soon as a later value was read."""
    y = (calque.rand(512, 512).sum(1) * 7).long() % 512
    flush("test")
    x = calque.rand(512, 512)
    assert known_values(y) is None
    wait()
    found = known_values(y)
    assert found is not None and found.tolist() == y.tolist()
    with pytest.raises(IndexError, match="out of bounds"):
        x[:100].index_select(0, y)
    y += 1
    flush("test")
    assert known_values(y) is None
