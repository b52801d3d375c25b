"""Profiles of a run: when programs were flushed, compiled and run, and how much memory was held, as a timeline for Perfetto or Chrome.

>>> import calque
>>> x = calque.ones(100, 100)
>>> with calque.profiler.profile() as p:
...     total = (x @ x).sum().item()
>>> sorted({e.row for e in p.events if e.row != "compile"})
['cpu queue', 'recording']
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from calque.base.errors import ProfileError
from calque.run import recorder, trace
from calque.run.backends import backend
from calque.run.dispatch import synchronize
from calque.run.trace import Event

__all__ = ["Event", "profile"]


class profile:
    """Context manager that records flushes, compilations and runs of programs; with `kernels=True` also every launch, which is then timed by
    itself, so that programs take somewhat longer.

    `events`: everything that took time, `memory`: (seconds, bytes in use) samples; times are those of `time.perf_counter`. Work that was pending
    before the block is finished first and work of the block before it ends. Raises ProfileError inside another profile.

    >>> with calque.profiler.profile(kernels=True) as p:
    ...     y = calque.ones(300, 300).exp().sum().item()
    >>> any(e.row == "cpu queue" for e in p.events)
    True
    """

    def __init__(self, kernels: bool = False) -> None:
        self._session = trace.Session(lambda: backend().memory().in_use, kernels=kernels)
        self._entered = False

    def __enter__(self) -> profile:
        recorder.flush("profiler")
        synchronize()
        self._session.start()
        self._entered = True
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None) -> None:
        try:
            if kind is None:
                recorder.flush("profiler")
                synchronize()
        finally:
            self._session.stop()

    @property
    def events(self) -> list[Event]:
        """What took time, in order of its end."""
        return list(self._session.events)

    @property
    def memory(self) -> list[tuple[float, int]]:
        """Samples of the memory in use."""
        return list(self._session.memory)

    def export_chrome_trace(self, path: str | Path) -> None:
        """Write the timeline as JSON, to be opened in https://ui.perfetto.dev or chrome://tracing. Raises ProfileError if nothing was profiled."""
        if not self._entered:
            raise ProfileError("[export_chrome_trace] expected a profile, got one that never ran; use `with calque.profiler.profile() as p:` first")
        trace.export(self._session, path)
