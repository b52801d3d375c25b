"""A team whose threads the operating system takes away leaves short jobs to the thread that has them."""

from __future__ import annotations

import ctypes
import threading
import time
from typing import Any

import numpy as np
import pytest

from calque.backend.cpu.team import runtime
from calque.backend.cpu.text import runtime_text


def test_a_thread_that_waits_long_is_counted() -> None:
    """A thread that the operating system has taken away keeps the others at the barrier; short waits are as ever."""
    control = runtime.aligned_bytes(512)
    words, barrier = control.view(np.int64), ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(runtime.native().barrier)
    at = control.ctypes.data + runtime_text.BARRIER
    for late in (False, True):
        other = threading.Thread(target=barrier, args=(at, 2))
        other.start()
        time.sleep(0.05 if late else 0.0)
        barrier(at, 2)
        other.join()
        if late:
            assert words[runtime_text.STALLS // 8] >= 1


def test_short_jobs_are_the_callers_alone_where_the_team_was_kept_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a while behind two stalls that come soon behind each other, and for longer as long as that comes again; jobs that are not short are the
    team's."""
    clock = [100.0]
    monkeypatch.setattr(runtime, "perf_counter", lambda: clock[0])
    team = runtime.Runtime(lambda: 2)
    stalls: list[int] = [0]
    team._restart(2)
    team._stalls = stalls

    def alone(late: bool = False, brief: bool = True) -> bool:
        """Whether a job is the caller's alone. `late`: a team is kept waiting in it."""
        request: list[Any] = [0] * len(runtime_text.REQUEST)

        def call() -> None:
            stalls[0] += late and not request[runtime._ALONE]
            clock[0] += 0.004 if late and not request[runtime._ALONE] else 0.001

        team.step(call, request, False, brief)
        return bool(request[runtime._ALONE])

    try:
        assert not any(alone() for _ in range(3)) and not alone(late=True) and not alone()
        clock[0] += 1.0
        assert not alone(late=True) and not alone(late=True)  # the second one comes soon
        for rest in (0.02, 0.04, 0.08):
            until = clock[0] + rest
            while clock[0] < until - 0.0005:
                assert alone(late=True) and not alone(brief=False)
            assert not alone(late=True)
        clock[0] += 1.0
        assert not alone(late=True) and not alone()  # long after the last rest, one stall is one
    finally:
        team.shut_down()
