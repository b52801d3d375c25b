"""`torch.cpu`: the processor by the names of devices. Queues are not chosen by hand here: a stream is a name, and waiting is `calque.synchronize`."""

from __future__ import annotations

from typing import Any

import calque
from calque.compat.refused import nothing

__all__ = [
    "Event", "Stream", "StreamContext", "current_device", "current_stream", "device_count", "is_available", "is_initialized", "set_device", "stream",
    "synchronize",
]  # fmt: skip

set_device = nothing


def is_available() -> bool:
    """True."""
    return True


is_initialized = is_available


def device_count() -> int:
    """1: the processor as a whole. `calque.set_logical_devices` shares it out."""
    return 1


def current_device() -> str:
    """"cpu"."""
    return "cpu"


def synchronize(device: Any = None) -> None:
    """Wait until everything that was recorded is computed."""
    calque.synchronize()


class Stream:
    """A queue of work. There is one for each device, which orders itself by what depends on what."""

    def __init__(self, priority: int = -1) -> None:
        self.priority = priority

    def wait_stream(self, stream: Any) -> None:
        """Nothing to wait for: the order is kept anyway."""

    def record_event(self) -> "Event":
        """An event, which has happened when everything before it is computed."""
        return Event()

    def wait_event(self, event: Any) -> None:
        """Nothing to wait for: the order is kept anyway."""


class Event:
    """A place in the queue."""

    def query(self) -> bool:
        """True: reading a value waits for it."""
        return True

    def record(self, stream: Any = None) -> None:
        """Mark the place."""

    def synchronize(self) -> None:
        """Wait until everything that was recorded is computed."""
        calque.synchronize()

    def wait(self, stream: Any = None) -> None:
        """Nothing to wait for: the order is kept anyway."""


class StreamContext:
    """A block in which a stream is the current one."""

    cur_stream: Stream | None = None

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


_CURRENT = Stream()


def stream(stream: Any) -> StreamContext:
    """`StreamContext(stream)`."""
    return StreamContext(stream)


def current_stream(device: Any = None) -> Stream:
    """The queue of the processor."""
    return _CURRENT
