"""What tensors are handles on."""

from __future__ import annotations

from typing import Any

from calque.base.layout import Layout
from calque.run.buffer import Buffer


class Storage:
    """The current value behind one or more tensor handles.

    `layout`: dense layout of the value. `buffer` is None while the value is only recorded; `home` then is the buffer the value will replace.
    `version` counts in-place writes. `writer` is the edge of the last in-place write. `silent` is unset in most, see `versions`.
    """

    __slots__ = ("trace", "slot", "layout", "buffer", "home", "version", "writer", "silent", "__weakref__")
    trace: Any
    slot: int
    layout: Layout
    buffer: Buffer | None
    home: Buffer | None
    version: int
    writer: Any
    silent: tuple[int, int, int]
    __weakref__: Any


def pending(trace: Any, slot: int, value: Layout) -> Storage:
    """A storage whose value is only recorded."""
    storage = Storage()
    storage.trace, storage.slot, storage.layout, storage.buffer = trace, slot, value, None
    storage.home, storage.version, storage.writer = None, 0, None
    return storage


def realised(buffer: Buffer, value: Layout) -> Storage:
    """A storage whose value exists already."""
    storage = Storage()
    storage.trace, storage.slot, storage.layout, storage.buffer = None, -1, value, buffer
    storage.home, storage.version, storage.writer = None, 0, None
    return storage
