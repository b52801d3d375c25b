"""Work that other processes take part in: tasks of a queue of its own, so that devices compute meanwhile.

All of them run in the order in which they were asked for, whichever values are there first: the other processes have the same order. So a task takes
its place in the queue at once and waits for its inputs when its turn comes, each no longer than until that value is there, while the program that
makes it goes on. Nothing can wait in a circle: a task waits for what was asked for before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from calque.base.layout import Layout
from calque.observe import events
from calque.observe.source import user_line
from calque.record import recorder
from calque.record.copies import buffer_of
from calque.record.others import LOCK
from calque.record.recorder import Storage, realised
from calque.replay.capture import abort
from calque.run.buffer import Buffer, strided
from calque.run.dispatch import new_array, remember, settled
from calque.run.engine import Queue, Task

REASON = "communication"
INLINE_BYTES = 1 << 16  # up to which waking another thread takes longer than the work
Arrays = list[np.ndarray[Any, Any]]
SMALL_BYTES = 1 << 14  # of results that are not worth a place in the pool
_QUEUES: list[Queue] = []  # the first is that of collectives; each of the others serves one message at a time


def _finished() -> Task:
    task = Task(lambda: None)
    task.run()
    return task


_DONE = _finished()


def exchange(
    sources: Sequence[tuple[Storage, Layout]], targets: Sequence[Layout], work: Callable[[Arrays], Sequence[Any]], name: str,
    queued: bool = False, line: str | None = None,
) -> tuple[list[Storage], Task]:  # fmt: skip
    """New storages of dense layouts, which `work` computes from what the sources show: flat arrays of the targets from flat arrays of the sources.
    `queued`: the caller does not wait, also if there is little to do. `line`: of the user, where it is known."""
    inputs = values_of(sources)
    line = user_line() if line is None else line
    queue = _QUEUES[0] if _QUEUES else _queue()
    if not queued and sum([view.nbytes for _, view in sources]) + sum([view.nbytes for view in targets]) <= INLINE_BYTES and queue.idle():
        with LOCK:
            arrays = settled(inputs)
        if arrays is not None:
            results = _here(arrays, sources, work, name, line)
            return [realised(Buffer(array), target) for array, target in zip(results, targets, strict=True)], _DONE
    made = [Buffer(None) for _ in targets]
    task = _later(queue, inputs, [view for _, view in sources], list(made), work, name, line)
    return [realised(buffer, target) for buffer, target in zip(made, targets, strict=True)], task


def _here(arrays: Arrays, sources: Sequence[tuple[Storage, Layout]], work: Callable[[Arrays], Sequence[Any]], name: str, line: str) -> Sequence[Any]:
    """Do it on this thread; its error is raised now."""
    start = events.clock() if events.active is not None else 0.0
    try:
        results = work([_flat(array, view) for array, (_, view) in zip(arrays, sources, strict=True)])
    except Exception as error:
        remember(error, line)
        reported(error)
        raise
    if events.active is not None:
        events.active.span(name, "communication", start, line=line)
    return results


def _later(
    queue: Queue, inputs: list[Buffer], views: list[Layout], outputs: list[Buffer], work: Callable[[Arrays], Sequence[Any]], name: str, line: str
) -> Task:
    """Queue it."""
    writers: list[Task | None] = []  # of the values that there are now: whoever overwrites one later waits for this task

    def run() -> None:
        start = events.clock()
        try:
            results = work([_flat(b.early(w), v) for b, w, v in zip(inputs, writers, views, strict=True)])
            writers.clear()
        except Exception as error:
            remember(error, line)
            raise
        for buffer, array in zip(outputs, results, strict=True):
            buffer.array = array
        if events.active is not None:
            events.active.span(name, "communication", start, line=line)

    task = Task(run)
    with LOCK:
        writers += [b.task for b in inputs]
        task.hold(inputs, outputs)
        queue.submit(task, (), outputs, inputs)
    return task


def _flat(array: Any, view: Layout) -> Any:
    """What a view shows of an array, as a flat array."""
    if array.size == view.numel and view.dense and array.dtype is view.dtype.np and array.ndim == 1:
        return array
    return np.ascontiguousarray(strided(array, view)).reshape(-1)


def values_of(sources: Sequence[tuple[Storage, Layout]]) -> list[Buffer]:
    """The buffers of storages, whose programs are started."""
    abort("communicates with other processes")
    recorder.flush(REASON)
    return [buffer_of(storage, REASON) for storage, _ in sources]


def beside(work: Callable[[], None], outputs: list[Buffer]) -> Task:
    """A task that fills buffers by itself, whatever other tasks do: it waits for a message."""
    task = Task(work)
    with LOCK:
        _queue()
        queue = next((queue for queue in _QUEUES[1:] if queue.idle()), None)
        if queue is None:
            queue = Queue(f"message {len(_QUEUES)}")
            _QUEUES.append(queue)
        task.hold(list(outputs))
        queue.submit(task, (), outputs)
    return task


def set_value(storage: Storage, view: Layout, value: Storage) -> bool:
    """Let a storage hold a value that exists, or will, from now on; False, and nothing has happened, if that takes a copy: the view shows a part of
    it, or NumPy sees its memory."""
    buffer = storage.buffer
    if buffer is not None and (buffer.owner is not None or buffer.export is not None) and buffer.shared():
        return False
    if not (view is storage.layout or (view.dense and view.numel == storage.layout.numel and view.dtype is storage.layout.dtype)):
        return False
    with LOCK:
        storage.trace, storage.slot, storage.buffer, storage.home, storage.writer = None, -1, value.buffer, None, None
        storage.version += 1
    return True


def wait_for(task: Task) -> None:
    """Block until a task has run; raises its error."""
    task.wait()
    if task.error is not None:
        reported(task.error)
        raise task.error


def reported(error: BaseException) -> None:
    """Somebody has met the error."""
    error.calque_reported = True  # type: ignore[attr-defined]


def wait_for_exchanges() -> None:
    """Until everything that was asked for is over, failed or not."""
    for queue in list(_QUEUES):
        queue.drain()


def flat(numel: int, dtype: Any) -> Any:
    """Memory for a result: a flat array of a NumPy dtype (an instance)."""
    if numel * dtype.itemsize <= SMALL_BYTES:
        return np.empty(numel, dtype)
    return new_array(numel, None, dtype)


def _queue() -> Queue:
    if not _QUEUES:
        _QUEUES.append(Queue("communication"))
    return _QUEUES[0]
