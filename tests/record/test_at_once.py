"""What `recorder._flush_at_once` runs here and now gives the same as the long way: values, state, and what the statistics say."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import calque
from calque.observe.causes import flush_lines
from calque.record import recorder
from calque.run import dispatch
from calque.run.engine import CPU_QUEUE, ENGINE, Task

_OPS: list[Any] = [
    lambda a, b: a * b + 0.25, lambda a, b: (a - b).tanh(), lambda a, b: a + b.sum(), lambda a, b: a.reshape(2, 3).t().reshape(6) - b,
    lambda a, b: a[1:5].mean() * b, lambda a, b: a.add_(b * 0.5), lambda a, b: a[2:4].mul_(0.5), lambda a, b: a.copy_(b),
]  # fmt: skip


def _random_program(seed: int) -> list[Any]:
    """What a program of random operations, writes, drops, flushes and reads has read."""
    rng = np.random.default_rng(seed)
    values = [calque.tensor(rng.standard_normal(6, dtype=np.float32)) for _ in range(4)]
    seen: list[Any] = []
    for _ in range(25):
        act = rng.integers(10)
        a, b = (values[k] for k in rng.integers(len(values), size=2))
        if act < 6:
            made = _OPS[rng.integers(len(_OPS))](a, b)
            values.append(made if made._layout.numel == 6 else made.sum() + a)
        elif act == 6 and len(values) > 3:
            values.pop(int(rng.integers(len(values))))
        elif act == 7:
            recorder.flush("test")
        elif act == 8:
            seen.append(a.sum().item())
        else:
            seen.append(a.numpy().copy())
    return seen + [v.numpy().copy() for v in values]


def test_random_programs_give_the_same_the_long_way(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(dispatch, "INTERPRET_WORK", 0)
    found: list[Any] = []
    counts: list[Any] = []
    at_once = recorder._flush_at_once
    taken = [0]

    def counted(*arguments: Any) -> bool:
        done = at_once(*arguments)
        taken[0] += done
        return done

    for way in (counted, lambda *arguments: False):
        monkeypatch.setattr(recorder, "_flush_at_once", way)
        for _ in range(2):  # the second time all programs are compiled
            before, reasons, lines = recorder.Counters.flushes, dict(recorder.Counters.reasons), flush_lines()
            found.append([_random_program(seed + k) for k in range(25)])
            now = flush_lines()
            counts.append((
                recorder.Counters.flushes - before,
                {r: n - reasons.get(r, 0) for r, n in recorder.Counters.reasons.items() if n != reasons.get(r, 0)},
                {line: n - lines.get(line, 0) for line, n in now.items() if n != lines.get(line, 0)},
            ))  # fmt: skip
    assert taken[0] > 20
    for other in found[1:]:
        for expected, got in zip(found[0], other, strict=True):
            for a, b in zip(expected, got, strict=True):
                np.testing.assert_array_equal(a, b)
    assert counts[0] == counts[1] == counts[2] == counts[3]


def test_other_threads_and_other_handles_see_the_same_value() -> None:
    x = calque.arange(4.0)
    for k in range(40):
        a = x * (k + 0.5)
        twin, view = a.detach(), a[1:3]
        assert a.sum().item() == 6 * (k + 0.5)
        assert twin.tolist() == a.tolist() and view.tolist() == a.tolist()[1:3]
        twin.add_(1.0)
        assert a.tolist() == [i * (k + 0.5) + 1.0 for i in range(4)] and view.tolist() == a.tolist()[1:3]


@pytest.mark.parametrize("light", [True, False])
def test_a_short_program_waits_for_short_ones_only(light: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind another short program it would stay in the queue at every call of a loop; behind a long one waiting would cost the overlap."""
    calque.synchronize()
    monkeypatch.setattr(ENGINE, "tracking", False)  # as it is as long as there is one queue: with several, a short one may wait for a long one
    x = calque.ones(4)

    def start() -> calque.Tensor:
        made = x * 0.3 + 1.0
        recorder.flush("test")
        return made

    for _ in range(40):
        start()
    calque.synchronize()
    gate = threading.Event()
    task = Task(lambda: gate.wait() and None)
    task.light = light
    CPU_QUEUE.submit(task)
    threading.Timer(0.05, gate.set).start()
    made = start()
    assert (made._storage.buffer.array is not None) is light and task.done is light
    assert made.tolist() == [np.float32(1.3)] * 4
    calque.synchronize()
    assert CPU_QUEUE.idle() and CPU_QUEUE.light()
