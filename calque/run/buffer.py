"""Realised memory of a storage, possibly still being computed, possibly shared with NumPy or another framework."""

from __future__ import annotations

import itertools
import sys
import weakref
from copy import copy
from typing import Any

import numpy as np

from calque.base.config import settings
from calque.base.errors import InterruptedValueError, OutOfMemoryError
from calque.base.layout import Layout
from calque.base.native import hot
from calque.observe import events
from calque.ops.movement import window
from calque.run.engine import Task

UNKNOWN = 1 << 62  # number of what is no program: a copy, a message
_started = itertools.count(1)


def next_program() -> int:
    """The number of a program that is started now."""
    return next(_started)


class Buffer:
    """A dense 1-D array of the storage's elements; on a device with a backend of its own a value of that (`backend.base.DeviceBackend`).

    `task` is set while (or after) a flush fills it. `owner` is the `ForeignMemory` that also sees the memory (`from_numpy`, DLPack);
    `export` is a weak reference to the hook behind arrays handed out by `Tensor.numpy()`.
    `number`/`trace`: position among the inputs of the trace that currently reads the buffer. `readers`: tasks that read it since it was
    written; `pins`: references that tasks hold. `floating`: a table or constant of our own, which may go to any device. `made`: number of the
    program that makes the values (see `State.reached`); 0 if they came with the buffer, or if Python has read them since.
    """

    __slots__ = ("array", "task", "owner", "export", "trace", "number", "readers", "pins", "floating", "made", "__weakref__")
    __weakref__: Any

    def __init__(self, array: Any, task: Task | None = None, owner: Any = None, made: int = 0) -> None:
        self.array: Any = array
        self.task = task
        self.owner = owner
        self.export: weakref.ref[Any] | None = None
        self.trace: Any = None
        self.number = -1
        self.readers: list[Task] | None = None
        self.pins = 0
        self.floating = False
        self.made = made if array is not None else UNKNOWN

    def wait(self) -> np.ndarray[Any, Any]:
        """The array, once it is filled; raises the error of the computation that was to fill it."""
        task = self.task
        if task is not None:
            if events.active is None or task.done:
                task.wait()
            else:
                _wait_seen(events.active, task)
            if task.error is not None and self.array is None:
                task.error.calque_reported = True  # type: ignore[attr-defined]
                raise own(task.error)
            self.task = None
        result: np.ndarray[Any, Any] = self.array
        if result.__class__ is not np.ndarray:
            return host_array(result)
        return result

    def readable(self) -> np.ndarray[Any, Any]:
        """The array, for reading alone, once this value is there: the program that makes it may go on, and read it, too."""
        task = self.task
        if task is not None and not task.done and events.active is None:
            partial = task.partial
            if partial is not None:
                return partial.read(self)
        return self.wait()

    def early(self, writer: Task | None) -> np.ndarray[Any, Any]:
        """The array, for reading alone, as soon as the value is there that `writer` makes: whoever overwrites it later may wait for this reader.
        For a thread that has nothing else to do."""
        if writer is not None:
            partial = writer.partial if not writer.done else None
            found = None if partial is None else partial.early(self)
            if found is not None:
                return found
            writer.wait()
            if writer.error is not None and self.array is None:
                raise own(writer.error)
        result: np.ndarray[Any, Any] = self.array
        if result.__class__ is not np.ndarray:
            return host_array(result)
        return result

    def whole(self) -> "Buffer":
        """The buffer whose bytes this one shows as another type; itself, if it is of its own."""
        buffer = self
        while isinstance(buffer.owner, ForeignMemory) and buffer.owner.of is not None:
            buffer = buffer.owner.of
        return buffer

    def shared(self) -> bool:
        """Whether somebody outside Calque can read or write this memory right now."""
        owner = self.owner
        if owner is not None:
            if not isinstance(owner, ForeignMemory) or owner.in_use():
                return True
            self.owner = None  # nobody else has it any more; the array itself keeps the memory alive
        return self.export is not None and self.export() is not None


def _wait_seen(session: events.Session, task: Task) -> None:
    """Wait under a profile."""
    start = session.begin()
    try:
        task.wait()
    finally:
        session.end("wait for a value", start)


def host_array(value: Any) -> np.ndarray[Any, Any]:
    """What a device computes, once it is there, as an array of the host; not to be written to."""
    if value is None:
        raise interrupted()
    return np.asarray(value)


def own(error: BaseException) -> BaseException:
    """The error of a task, for one reader: when memory has run out, the frames that meet it must not live as long as the task's values do."""
    if not isinstance(error, OutOfMemoryError):
        return error
    return copy(error).with_traceback(None)


def interrupted() -> InterruptedValueError:
    """The error of a value that nobody will compute."""
    return InterruptedValueError("[read] expected a value, got none: an exception came while its program was started; compute it again")


class ForeignMemory:
    """Memory of a NumPy array that Calque shares. It holds the only reference that Calque has to the array that owns the memory, so the
    reference count tells whether anybody else still has it (every view of an array refers to the array that owns the memory).

    `of`: the buffer whose bytes these are, where a tensor shows those of another one as another type."""

    __slots__ = ("root", "known", "of", "__array_interface__", "__weakref__")

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        root = array
        while isinstance(root.base, np.ndarray):
            root = root.base
        self.known = root.base is None  # memory of an unknown object may be in use for ever
        self.root = root
        self.of: Buffer | None = None

    def over(self, array: np.ndarray[Any, Any], dtype: np.dtype[Any], count: int) -> np.ndarray[Any, Any]:
        """So many elements of the array's memory, from its first one on, as a flat array that this keeps alive."""
        if hot is not None:
            return hot.over(self, array, dtype, count)  # type: ignore[no-any-return]
        address = array.__array_interface__["data"][0]
        self.__array_interface__ = {"data": (address, False), "shape": (count * dtype.itemsize,), "typestr": "|u1", "version": 3}
        return np.asarray(self).view(dtype)

    def in_use(self) -> bool:
        """Whether anybody but Calque has a reference."""
        return not self.known or sys.getrefcount(self.root) > 2  # the attribute and the argument


class ExportHook:
    """Keeps a buffer alive for NumPy arrays that view it, and is the witness that such arrays exist."""

    __slots__ = ("buffer", "__array_interface__", "__weakref__")

    def __init__(self, buffer: Buffer, array: np.ndarray[Any, Any]) -> None:
        self.buffer = buffer
        self.__array_interface__ = array.__array_interface__


def exported_view(buffer: Buffer, view: Layout) -> np.ndarray[Any, Any]:
    """A NumPy array over the buffer's memory with the given layout; the buffer counts as shared while the array lives."""
    flat, size = buffer.wait(), view.dtype.itemsize
    hook = buffer.export() if buffer.export is not None else None
    if hook is None:
        hook = ExportHook(buffer, flat.view(np.uint8) if flat.size else flat)
        buffer.export = weakref.ref(hook)
    if not view.numel:
        return np.empty(view.shape, view.dtype.np)
    root = np.asarray(hook)  # base is the hook, so every derived view keeps the hook alive
    return np.ndarray(tuple(view.shape), view.dtype.np, root, view.offset * size, [s * size for s in view.strides])


def strided(flat: np.ndarray[Any, Any], view: Layout) -> np.ndarray[Any, Any]:
    """NumPy view of a dense 1-D array under a layout; no copy, unless the array is a device's."""
    if flat.__class__ is not np.ndarray:
        flat = host_array(flat)
    if flat.dtype is not view.dtype.np and flat.dtype != view.dtype.np:  # a real view of complex numbers, or a complex one of real ones
        size = view.dtype.itemsize
        flat = flat[: flat.nbytes // size * size // flat.itemsize].view(view.dtype.np)
    if view.dense and view.numel == flat.size:
        return flat.reshape(view.shape)
    if view.numel == 0:
        return np.empty(view.shape, flat.dtype)
    if settings.poison and view.offset + sum((n - 1) * s for n, s in zip(view.shape, view.strides, strict=True)) >= flat.size:
        raise interrupted()
    if view.numel == 1:
        return flat[view.offset : view.offset + 1].reshape(view.shape)
    step = flat.itemsize
    return window(flat[view.offset :], tuple(view.shape), tuple([s * step for s in view.strides]))
