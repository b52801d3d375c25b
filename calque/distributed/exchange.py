"""Work that other processes take part in: tasks of a queue of its own, so that devices compute meanwhile.

All of them run in the order in which they were asked for, whichever values are there first: the other processes have the same order. So a task takes
its place in the queue at once and waits for its inputs when its turn comes, each no longer than until that value is there, while the program that
makes it goes on. Nothing can wait in a circle: a task waits for what was asked for before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from calque.base.layout import Layout
from calque.distributed.watch import reported
from calque.observe import events
from calque.observe.source import user_line
from calque.record import recorder
from calque.record.copies import buffer_of
from calque.record.recorder import Storage
from calque.record.threads import LOCK
from calque.replay.capture import abort
from calque.run.buffer import Buffer, strided
from calque.run.dispatch import new_array, remember, settled
from calque.run.engine import ENGINE, Queue, Task

REASON = "communication"
INLINE_BYTES = 1 << 16  # up to which waking another thread takes longer than the work
Arrays = list[np.ndarray[Any, Any]]
SMALL_BYTES = 1 << 14  # of results that are not worth a place in the pool
QUEUES: list[Queue] = []  # the first is that of collectives; each of the others serves one message at a time


def _finished() -> Task:
    task = Task(lambda: None)
    task.run()
    return task


FINISHED = _finished()


class Work(Protocol):
    """What a task does: flat arrays of the results from flat arrays of the sources."""

    def __call__(self, arrays: Arrays) -> Sequence[Any]:
        """All of it."""


class Parted(Work, Protocol):
    """The same in parts, so that a thread which has begun it need not wait for others to come (see `group.Turn`)."""

    def note(self, line: str) -> None:
        """Where the user has asked for it. Before `begin`, or behind it."""

    def hurries(self) -> bool:
        """Whether to begin as soon as the sources are there, while the program that makes them goes on."""

    def begin(self, arrays: Arrays) -> None:
        """Never blocks for long."""

    def soon(self) -> bool:
        """Whether others are there in a moment."""

    def wait(self) -> None:
        """For them."""

    def end(self) -> Sequence[Any]:
        """The results."""


def brief(sources: Sequence[Layout], targets: Sequence[Layout]) -> bool:
    """Whether there is so little to do that the thread which asks for it should do it."""
    return sum([view.nbytes for view in (*sources, *targets)]) <= INLINE_BYTES


def exchange(
    sources: Sequence[Any], targets: Sequence[Layout], work: Parted, name: str, brief: bool = False, away: bool = False
) -> tuple[list[Buffer], Task]:
    """New buffers of dense layouts, which `work` computes from what the sources, tensors, show. `brief`: this thread does it, if nothing is to be
    done before it; `away`: it does no more than to begin it, if others are not there."""
    queue = QUEUES[0] if QUEUES else _queue()
    inputs = values_of(sources)
    if brief and not queue.depth and (arrays := _settled(inputs, sources)) is not None:
        start = events.clock() if events.active is not None else 0.0
        line = ""
        try:
            work.begin(arrays)
            line = user_line()
            work.note(line)
        except Exception as error:
            remember(error, line or user_line())
            reported(error)
            raise
        return go_on(inputs, targets, work, name, line, away, start)
    line = user_line()
    work.note(line)
    made = [Buffer(None) for _ in targets]
    views = [t._layout for t in sources]
    writers: list[Task | None] = []  # of the values that there are now: whoever overwrites one later waits for this task

    def results_later() -> Sequence[Any]:
        for writer in () if work.hurries() else writers:
            if writer is not None:
                writer.wait()
        arrays = [_flat(b.early(w), v) for b, w, v in zip(inputs, writers, views, strict=True)]
        writers.clear()
        return work(arrays)

    with LOCK:
        writers += [b.task for b in inputs]
        task = _later(queue, inputs, list(made), results_later, name, line)
    return made, task


def go_on(
    inputs: list[Buffer], targets: Sequence[Layout], work: Parted, name: str, line: str, away: bool, start: float = 0.0
) -> tuple[list[Buffer], Task]:
    """What is left of work that this thread has begun, at `start` of a profile."""
    try:
        if away and not work.soon():
            made = [Buffer(None) for _ in targets]
            task = _rest(QUEUES[0], inputs, made, work, name, line)
            if task is not None:
                return made, task
        work.wait()
        results = work.end()
    except Exception as error:
        remember(error, line)
        reported(error)
        raise
    if events.active is not None and start:
        events.active.span(name, "communication", start, line=line)
    return [Buffer(array) for array in results], FINISHED


def _settled(inputs: list[Buffer], sources: Sequence[Any]) -> Arrays | None:
    """What the sources show, if all of it is computed."""
    found = []
    for buffer, t in zip(inputs, sources):
        array, view = buffer.array, t._layout
        if array is None or (buffer.task is not None and settled([buffer]) is None):
            return None
        found.append(array if view.plain and array.size == view.numel and array.dtype is view.dtype.np else _flat(array, view))
    return found


def _rest(queue: Queue, inputs: list[Buffer], made: list[Buffer], work: Parted, name: str, line: str) -> Task | None:
    """Queue what is left of work that was begun; None if others are queued, which would wait for it while it waits behind them."""

    def rest() -> Sequence[Any]:
        work.wait()
        return work.end()

    with ENGINE.lock:
        return _later(queue, inputs, list(made), rest, name, line) if queue.idle() else None


def _later(queue: Queue, inputs: list[Buffer], outputs: list[Buffer], results: Callable[[], Sequence[Any]], name: str, line: str) -> Task:
    """Queue it."""

    def run() -> None:
        start = events.clock()
        try:
            found = results()
        except Exception as error:
            remember(error, line)
            raise
        for buffer, array in zip(outputs, found, strict=True):
            buffer.array = array
        if events.active is not None:
            events.active.span(name, "communication", start, line=line)

    task = Task(run)
    task.hold(inputs, outputs)
    queue.submit(task, (), outputs, inputs)
    return task


def _flat(array: Any, view: Layout) -> Any:
    """What a view shows of an array, as a flat array."""
    if array.size == view.numel and view.dense and array.dtype is view.dtype.np and array.ndim == 1:
        return array
    return np.ascontiguousarray(strided(array, view)).reshape(-1)


def values_of(sources: Sequence[Any]) -> list[Buffer]:
    """The buffers of tensors, whose programs are started."""
    state = recorder.local.state
    if state.capture is not None:
        abort("communicates with other processes")
    trace = state.trace
    if not trace.eager or trace.loose:  # else there is nothing to start, and nothing that a flush would change
        recorder.flush(REASON)
    found = []
    for t in sources:
        buffer = t._storage.buffer
        if buffer is None or buffer.owner is not None or buffer.export is not None:
            buffer = buffer_of(t._storage, REASON)
        found.append(buffer)
    return found


def beside(work: Callable[[], None], outputs: list[Buffer]) -> Task:
    """A task that fills buffers by itself, whatever other tasks do: it waits for a message."""
    task = Task(work)
    with LOCK:
        _queue()
        queue = next((queue for queue in QUEUES[1:] if queue.idle()), None)
        if queue is None:
            queue = Queue(f"message {len(QUEUES)}")
            QUEUES.append(queue)
        task.hold(list(outputs))
        queue.submit(task, (), outputs)
    return task


def set_value(storage: Storage, view: Layout, value: Buffer) -> bool:
    """Let a storage hold a value that exists, or will, from now on; False, and nothing has happened, if that takes a copy: the view shows a part of
    it, or NumPy sees its memory."""
    buffer = storage.buffer
    if buffer is not None and (buffer.owner is not None or buffer.export is not None) and buffer.shared():
        return False
    if not (view is storage.layout or (view.dense and view.numel == storage.layout.numel and view.dtype is storage.layout.dtype)):
        return False
    with LOCK:
        storage.trace, storage.slot, storage.buffer, storage.home, storage.writer = None, -1, value, None, None
        storage.version += 1
    return True


def wait_for(task: Task) -> None:
    """Block until a task has run; raises its error."""
    task.wait()
    if task.error is not None:
        reported(task.error)
        raise task.error


def wait_for_exchanges() -> None:
    """Until everything that was asked for is over, failed or not."""
    for queue in list(QUEUES):
        queue.drain()


def flat(numel: int, dtype: Any) -> Any:
    """Memory for a result: a flat array of a NumPy dtype (an instance)."""
    if numel * dtype.itemsize <= SMALL_BYTES:
        return np.empty(numel, dtype)
    return new_array(numel, None, dtype)


def _queue() -> Queue:
    if not QUEUES:
        QUEUES.append(Queue("communication"))
    return QUEUES[0]
