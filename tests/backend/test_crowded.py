"""A team whose threads the operating system takes away leaves short jobs to the thread that has them."""

from __future__ import annotations

import ctypes
import threading
import time

import numpy as np

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


def test_short_jobs_are_the_callers_alone_where_the_team_was_kept_waiting() -> None:
    """For a while, which gets longer as long as that comes again; jobs that are not short are the team's."""
    team = runtime.Runtime(lambda: 2)
    stalls, alone = [0], []
    team._restart(2)
    team._stalls = stalls

    def job(late: bool = False, brief: bool = True) -> None:
        request = [0] * len(runtime_text.REQUEST)

        def call() -> None:
            alone.append(request[runtime._ALONE])
            stalls[0] += late and not alone[-1]

        team.step(call, request, False, brief)

    try:
        for _ in range(3):
            job()
        assert alone == [False] * 3
        for rest in (runtime.ALONE, 2 * runtime.ALONE):
            job(late=True)
            alone.clear()
            for _ in range(rest):
                job(late=True)
            assert alone == [True] * rest
        job(brief=False)
        assert alone[-1] is False
        for _ in range(runtime.SMOOTH):
            job()
        job(late=True)
        alone.clear()
        for _ in range(2 * runtime.ALONE + 1):
            job()
        assert alone == [True] * (2 * runtime.ALONE) + [False]
    finally:
        team.shut_down()
