"""Copies between devices: tasks on the queue of the device that receives. Nothing waits for them but what uses the copy."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from calque.base.device import META, Device
from calque.base.errors import UnsupportedTypeError
from calque.base.layout import Layout, dense_layout
from calque.observe import events
from calque.ops.opdef import get
from calque.record import recorder
from calque.record.fallback import refusal, way_out
from calque.record.places import no_values
from calque.record.recorder import Storage, realised
from calque.record.threads import LOCK
from calque.run.buffer import Buffer, interrupted, strided
from calque.run.dispatch import new_array
from calque.run.engine import Task
from calque.run.interrupt import SHIELD
from calque.run.plans import settle
from calque.run.queues import on, placed, queue_of

COPY = get("copy")
REASON = "copy between devices"
INLINE_BYTES = 1 << 20  # up to which waking another thread takes longer than the copy
BRIEF_BYTES = 64 << 20  # copied in some ten milliseconds
URGENT = 1  # another device waits for a copy: it overtakes computations


class _Wanted(threading.local):
    priority = 0


_WANTED = _Wanted()


@contextmanager
def copies_of_priority(priority: int) -> Iterator[None]:
    """Of the copies that wait for a device, those begun inside run by their priority, the highest first; others count as 0. Against computations
    it makes no difference: every copy overtakes them."""
    before = _WANTED.priority
    _WANTED.priority = priority
    try:
        yield
    finally:
        _WANTED.priority = before


def _urgency() -> float:
    """A number in (0, 2) that grows with the priority."""
    return URGENT + _WANTED.priority / (1 + abs(_WANTED.priority))


class _CopyCounters:
    """What was moved between devices; read by `calque.stats()`. One object, for the reason that `Counters` of `record/path.py` is one."""

    __slots__ = ("copies", "nbytes")

    def __init__(self) -> None:
        self.copies = self.nbytes = 0


CopyCounters = _CopyCounters()


def copy_values(sources: Sequence[tuple[Storage, Layout]], device: Device) -> list[Storage]:
    """New storages on `device` with what the layouts show of the storages: one task for all. What is pending is dispatched first."""
    state = recorder.local.state
    pending = tuple(sorted({storage.slot for storage, _ in sources if storage.buffer is None and storage.trace is state.trace}))
    if state.capture is not None:

        def start(given: list[Buffer] | None) -> list[Storage]:
            return _start(sources, device) if given is None else [realised(b, _target(v, device)) for b, (_, v) in zip(given, sources, strict=True)]

        made: list[Storage] = state.capture.copied(sources, device, REASON, pending, start)
        return made
    if pending and device is not META:
        recorder.flush(REASON, wanted=pending)
    return _start(sources, device)


def _target(view: Layout, device: Device) -> Layout:
    return dense_layout(tuple(view.shape), view.dtype, device)


def _start(sources: Sequence[tuple[Storage, Layout]], device: Device) -> list[Storage]:
    """Queue the copies."""
    if device is META:
        return [_meta(view) for _, view in sources]
    for _, view in sources if device.backend is not None else ():
        if why := refusal(device, COPY, (view.dtype,), view.dtype):
            raise UnsupportedTypeError(
                f"[to] expected a dtype that {device} has, got {view.dtype!r}: {why}; keep it on the CPU"
                f"{way_out(device, COPY, (view.dtype,), view.dtype)}"
            )
    if any(view.device is META for _, view in sources):
        raise no_values()
    found = [(buffer_of(storage, REASON), view) for storage, view in sources]
    settle(buffer for buffer, _ in found)
    made = [Buffer(None) for _ in found]
    targets = [_target(view, device) for _, view in found]
    inputs, outputs = [buffer for buffer, _ in found], list(made)
    views = [view for _, view in found]

    session = events.active

    def work() -> None:
        start = events.clock()
        on(device, lambda: _fill(inputs, views, outputs, device))
        if session is not None:
            session.span(f"copy to {device}", events.COPIES, start, bytes=nbytes, values=len(targets))

    nbytes = sum(target.nbytes for target in targets)
    CopyCounters.copies += len(made)
    CopyCounters.nbytes += nbytes
    task = Task(work, _urgency())
    task.brief, task.aside = nbytes <= BRIEF_BYTES, True
    with LOCK:
        queue = queue_of(device)
        if nbytes <= INLINE_BYTES and queue.idle() and all(buffer.task is None or buffer.task.done for buffer in inputs):
            _run_here(task, outputs)
        else:
            task.hold(inputs, outputs)
            queue.submit(task, inputs, outputs)
    return [realised(buffer, target) for buffer, target in zip(made, targets, strict=True)]


def _run_here(task: Task, outputs: list[Buffer]) -> None:
    """Make the copies on this thread."""
    for buffer in outputs:
        buffer.task = task
    held = SHIELD.hold()
    try:
        task.run()
    finally:
        if held:
            SHIELD.release()


def buffer_of(storage: Storage, reason: str) -> Buffer:
    """The buffer of a storage, started if it is only recorded; what NumPy may write to at any time is what it holds now, in a buffer of its own."""
    buffer = storage.buffer or recorder.materialise(storage, reason, awaited=False)
    if buffer.owner is not None or buffer.export is not None:
        buffer.wait()
        if buffer.shared():  # NumPy may write to it at any time: what is copied is what it holds now
            return recorder.snapshot(buffer, storage.layout)
    return buffer


def _fill(sources: list[Buffer], views: list[Layout], targets: list[Buffer], device: Device) -> None:
    """Make the copies; a source that failed is reported when the others are done."""
    failed: BaseException | None = None
    for source, view, target in zip(sources, views, targets, strict=True):
        if source.array is None:
            failed = source.task.error if source.task is not None and source.task.error is not None else interrupted()
        else:
            target.array = _sent(source, view, device)
    if failed is not None:
        raise failed


def _sent(buffer: Buffer, view: Layout, device: Device) -> Any:
    """What the view shows, on the device."""
    array = buffer.array
    if array.__class__ is not np.ndarray:
        if view.dense and view.numel == array.size and device.backend is not None:  # the host need not see it
            return device.backend.put(array, device.index)
        return placed(np.array(strided(array, view)).reshape(-1), device)
    return placed(_copied(buffer, view), device)


def _copied(buffer: Buffer, view: Layout) -> Any:
    fresh = new_array(view.numel, view.dtype)
    if view.dense and view.nbytes <= INLINE_BYTES and view.numel == buffer.array.size:
        # NumPy would give the interpreter's lock away, and wait for it longer than this takes
        fresh.view(np.uint8).data[:] = buffer.array.view(np.uint8).data
    else:
        fresh.reshape(tuple(view.shape))[...] = strided(buffer.array, view)
    return fresh


def _meta(view: Layout) -> Storage:
    buffer = Buffer(None, Task.failed(no_values()))
    return realised(buffer, dense_layout(tuple(view.shape), view.dtype, META))
