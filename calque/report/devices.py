"""The devices of this process, as a user sees them: how many there are, their memory, and work of the host beside theirs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calque.base.config import MOST_DEVICES, settings
from calque.base.device import BACKENDS, Device, backend_of, known
from calque.base.errors import ArgumentError, DeviceError
from calque.base.layout import Layout
from calque.base.text import shown
from calque.observe import events
from calque.observe.source import user_line
from calque.record.recorder import flush, local
from calque.replay.counts import Changes
from calque.run.backends import host_memory
from calque.run.buffer import Buffer, next_program
from calque.run.dispatch import remember, wait_for_queues
from calque.run.engine import Queue, Task

_HOST: list[Queue] = []
SHOWN = {"read", "numpy", "print", "save", "pickle", "item", "tolist", "bool", "index", "detect_anomaly"}
"""Reasons of reads by which values are only shown. All others are names of functions that compute with them on the host."""


def set_logical_devices(count: int) -> None:
    """Share the threads of the CPU out among devices `cpu:0` to `cpu:count-1`, which work at the same time: each gets an equal part of
    `get_num_threads()`, at least one. `cpu` still means all threads. Call it before tensors are put on them; 1 makes `cpu:0` the CPU itself.
    The environment variable `CALQUE_LOGICAL_DEVICES` sets the first value.

    >>> import calque
    >>> calque.set_logical_devices(2)
    >>> calque.device_count(), calque.ones(2, device="cpu:1")
    (2, tensor([1., 1.], device='cpu:1'))
    >>> calque.set_logical_devices(1)
    """
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_DEVICES:
        raise ValueError(
            f"[set_logical_devices] expected a positive integer up to {MOST_DEVICES}, got {shown(count)}; a device takes threads of its own at its "
            f"first work, and they share {settings.threads} of the CPU's"
        )
    wait_for_queues()
    settings.logical_devices = count
    Changes.hooks += 1  # what was recorded for replay may have shared its work out among the devices


def device_count() -> int:
    """Number of logical CPU devices."""
    return settings.logical_devices


def memory_stats(device: Any = None) -> dict[str, int]:
    """Bytes in use, their peak, and freed bytes kept for reuse: of one device, or without an argument of all together.

    >>> import calque
    >>> sorted(calque.memory_stats("cpu"))
    ['cached', 'in_use', 'peak']
    """
    where = None if device is None else known(Device(device))
    if where is not None and where.backend is not None:
        there = where.backend.memory(where.index)
        return {"in_use": there.in_use, "peak": there.peak, "cached": there.cached}
    if where is not None and where.type != "cpu":
        raise DeviceError(f"[memory_stats] expected a device with memory, got {str(where)!r}; use 'cpu'")
    found = host_memory().memory() if where is None else host_memory().memory(-1 if where.index is None else where.index)
    return {"in_use": found.in_use, "peak": found.peak, "cached": found.cached}


def synchronize() -> None:
    """Start what this thread has recorded and wait until everything has run, on all devices; raise what failed and was not reported yet.

    `waitall` is the same function. A clock that is stopped behind it has measured the work, not only its recording.

    >>> import calque
    >>> x = calque.ones(3) + 1
    >>> calque.synchronize()
    """
    flush("synchronize")
    wait_for_queues()
    local.state.reached = next_program()


waitall = synchronize


class Callback:
    """A function that runs beside the devices once values are there (`call_when_ready`)."""

    def __init__(self, task: Task) -> None:
        self._task = task

    @property
    def done(self) -> bool:
        """Whether it has run."""
        return self._task.done

    def wait(self) -> None:
        """Block until it has run; raises what it raised."""
        self._task.wait()
        if self._task.error is not None:
            self._task.error.calque_reported = True  # type: ignore[attr-defined]
            raise self._task.error


def call_on_host(function: Callable[..., Any], buffers: list[Buffer], views: Callable[[list[Any]], list[Any]]) -> Callback:
    """Queue `function(*views(arrays))` behind the tasks that fill the buffers, on a thread of the host."""
    inputs = list(buffers)
    line = user_line()

    def work() -> None:
        try:
            arrays = [b.wait() for b in inputs]
            session, start = events.active, events.clock()
            function(*views(arrays))
            if session is not None:
                session.span(f"callback {getattr(function, '__name__', 'of the user')}", "host queue", start, line=line)
        except Exception as error:
            remember(error, line)
            raise

    if not _HOST:
        _HOST.append(Queue("host"))
    task = Task(work)
    task.hold(inputs)
    _HOST[0].submit(task, inputs)
    return Callback(task)


def look_for_padding(value: Any, view: Layout, reason: str) -> None:
    """Refuse that the host computes with elements that are there only to fill a batch: what it gives would not say which they are."""
    kind = view.device.type
    if reason not in SHOWN and kind in BACKENDS and backend_of(kind).padded(value, view):
        raise ArgumentError(
            f"[{reason}] expected operands without padding, because the host computes it, got padding, at {user_line() or 'an unknown line'}; "
            "compute it on batches that are not padded"
        )
