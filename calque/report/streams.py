"""PyTorch's streams and events on devices with a backend of their own.

A device runs its programs in the order in which they were started, and what reads a value runs behind what makes it, on whichever devices. So all
streams of a device are one queue under several names: waiting for a stream or an event orders nothing that is not ordered already. What can be
asked of them is true all the same: whether the device has come so far, and when it did.
"""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

from calque.backend.base import Mark
from calque.base.device import CURRENT, Device, accelerator, known
from calque.base.errors import ArgumentError, DeviceError
from calque.base.text import shown
from calque.record.recorder import flush
from calque.run.engine import Queue, Task
from calque.run.queues import queue_of


def device_of_kind(device: Any, kind: str | None, op: str) -> Device:
    """The device with a backend of its own that a user means: None is the current one of the kind, a number one of that kind. `kind` None: whatever
    accelerator is there. Raises `DeviceError`."""
    number = isinstance(device, int) and not isinstance(device, bool)
    if number or device is None:
        name = kind or accelerator()
        if name is None:
            raise DeviceError(f"[{op}] expected an accelerator, got none: neither CUDA nor another device is there; use device='cpu'")
        return known(Device(name, device if number and device >= 0 else None))
    found = Device(device)
    if found.type in ("cpu", "meta") or kind not in (None, found.type):
        wanted = "a CUDA device" if kind == "cuda" else f"a device {kind!r}" if kind else "an accelerator"
        raise DeviceError(f"[{op}] expected {wanted}, got {shown(str(found))}; pass {(kind or 'cuda') + ':0'!r}, a number, or nothing")
    return known(found)


class _Reached:
    """A place in the work of a device. `when`: the earliest moment at which somebody has seen that the device had come so far."""

    _watchers: dict[Device, Queue] = {}  # each has a thread that waits for a device

    def __init__(self, device: Device, timed: bool) -> None:
        self.when: float | None = None
        self._mark: Mark | None = None
        self._task: Task | None = None
        self._device = device
        self._lock = threading.Lock()
        queue = queue_of(device)
        if queue.idle():
            self._look()
        else:  # programs that wait for others have not been started yet
            self._task = Task(self._look)
            queue.submit(self._task)
        if timed and not self.ready():
            if device not in self._watchers:
                self._watchers[device] = Queue(f"events of {device}")
            self._watchers[device].submit(Task(self.wait))

    def _look(self) -> None:
        self._mark = self._device.backend.mark(self._device.index)

    def ready(self) -> bool:
        """Whether the device has come so far."""
        mark = self._mark
        if mark is not None and mark.ready():
            self._seen()
        return self.when is not None

    def wait(self) -> None:
        """Block until it has."""
        task = self._task
        if task is not None:
            task.wait()
            if task.error is not None:
                raise task.error
        mark = self._mark
        if mark is not None:
            mark.wait()
        self._seen()

    def _seen(self) -> None:
        now = time.perf_counter()
        with self._lock:
            if self.when is None:
                self.when, self._mark, self._task = now, None, None


class Event:
    """`torch.Event`: a place in the work of a device. `device`: None is the accelerator's current one when it is recorded.

    `enable_timing`: keep the moment at which the device comes there, for `elapsed_time`; it is taken by a thread of this process that waits for the
    device, so it may be later by what a thread takes to wake, some tens of microseconds when the processor is free. `blocking` and `interprocess`
    are taken and change nothing. Recording an event starts what was recorded before it, so what stands on both sides is not one program.

    >>> import calque
    >>> if calque.accelerator.is_available():
    ...     x = calque.ones(300, 300, device=calque.accelerator.current_accelerator())
    ...     start, end = calque.Event(enable_timing=True), calque.Event(enable_timing=True)
    ...     start.record()
    ...     y = x @ x
    ...     end.record()
    ...     end.synchronize()
    ...     assert start.elapsed_time(end) > 0
    """

    _kind: str | None = None

    def __init__(self, device: Any = None, *, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self.device: Device | None = device_of_kind(device, self._kind, "Event")
        self._chosen = device is not None
        self._timing = bool(enable_timing)
        self._reached: _Reached | None = None

    def record(self, stream: "Stream | None" = None) -> None:
        """Mark the place behind everything that this thread has written so far on the device of `stream` (None: the current one)."""
        if stream is not None:
            self.device = _checked(stream, "Event.record").device
        elif not self._chosen:
            self.device = device_of_kind(None, self._kind, "Event.record")
        flush("event")
        self._reached = _Reached(self.device, self._timing)  # type: ignore[arg-type]

    def query(self) -> bool:
        """Whether the device has come to the place; True if none was marked."""
        return self._reached is None or self._reached.ready()

    def synchronize(self) -> None:
        """Wait until the device has come to the place."""
        if self._reached is not None:
            self._reached.wait()

    def wait(self, stream: "Stream | None" = None) -> None:
        """Nothing to wait for: what reads a value runs behind what makes it."""
        if stream is not None:
            _checked(stream, "Event.wait")

    def elapsed_time(self, end_event: "Event") -> float:
        """Milliseconds between this place and a later one. Raises `ArgumentError` unless both have `enable_timing`, were recorded and are reached."""
        if not isinstance(end_event, Event):
            raise ArgumentError(f"[elapsed_time] expected an event, got {shown(end_event)}")
        both = (self, end_event)
        if not all(event._timing for event in both):
            raise ArgumentError("[elapsed_time] expected events that keep their time, got one that does not: Both events must be created with "
                                "argument 'enable_timing=True'")  # fmt: skip
        places = [event._reached for event in both if event._reached is not None]
        if len(places) < 2:
            raise ArgumentError("[elapsed_time] Both events must be recorded before calculating elapsed time; call record()")
        times = [place.when for place in places if place.ready() and place.when is not None]
        if len(times) < 2:
            raise ArgumentError("[elapsed_time] Both events must be completed before calculating elapsed time; call end_event.synchronize()")
        return (times[1] - times[0]) * 1e3

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.device}, {'not recorded' if self._reached is None else 'recorded'}>"


class _Streams(threading.local):
    """The current stream of each device in this thread, and what was current outside of `with` blocks."""

    def __init__(self) -> None:
        self.current: dict[Device, Stream] = {}
        self.before: list[tuple[Stream | None, int | None]] = []


class Stream:
    """`torch.Stream`: a name for the queue of a device (None: the accelerator's current one), which orders itself (see `docs/devices.md`).
    `priority` is kept and changes nothing. `with stream:` makes it, and its device, the current ones."""

    _kind: str | None = None
    _event: type[Event] = Event
    _numbers = itertools.count(1)
    device: Device
    stream_id: int
    priority: int

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.device = device_of_kind(device, self._kind, "Stream")
        self.stream_id, self.priority = next(self._numbers), int(priority)

    @property
    def device_index(self) -> int:
        """Number of the device among those of its kind."""
        return int(self.device.index or 0)

    @property
    def device_type(self) -> str:
        """The kind of device."""
        return self.device.type

    def query(self) -> bool:
        """Whether everything that this thread has written so far has run on the device."""
        flush("stream")
        return _Reached(self.device, False).ready()

    def synchronize(self) -> None:
        """Wait until everything that this thread has written so far has run on the device."""
        flush("stream")
        _Reached(self.device, False).wait()

    def record_event(self, event: Event | None = None) -> Event:
        """Mark this place by an event (a new one if none is given)."""
        found = self._event(self.device) if event is None else event
        found.record(self)
        return found

    def wait_event(self, event: Event) -> None:
        """Nothing to wait for: what reads a value runs behind what makes it."""
        if not isinstance(event, Event):
            raise ArgumentError(f"[wait_event] expected an event, got {shown(event)}")

    def wait_stream(self, stream: "Stream") -> None:
        """Nothing to wait for: what reads a value runs behind what makes it."""
        _checked(stream, "wait_stream")

    def __enter__(self) -> "Stream":
        STREAMS.before.append((STREAMS.current.get(self.device), CURRENT.index.get(self.device.type)))
        STREAMS.current[self.device], CURRENT.index[self.device.type] = self, self.device_index
        return self

    def __exit__(self, *_: object) -> None:
        stream, index = STREAMS.before.pop()
        _back(STREAMS.current, self.device, stream)
        _back(CURRENT.index, self.device.type, index)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and (self.device, self.stream_id) == (other.device, other.stream_id)

    def __hash__(self) -> int:
        return hash((self.device, self.stream_id))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.stream_id} of {self.device}>"


STREAMS = _Streams()


def _back(table: dict[Any, Any], key: Any, value: Any) -> None:
    """Give an entry the value back that it had; None: it was not there."""
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


def _checked(stream: Any, op: str) -> Stream:
    if not isinstance(stream, Stream):
        raise ArgumentError(f"[{op}] expected a stream, got {shown(stream)}; torch.cuda.current_stream() is one")
    return stream


def default_stream(device: Device, kind: type[Stream] = Stream) -> Stream:
    """Stream 0 of a device."""
    found = object.__new__(kind)
    found.device, found.stream_id, found.priority = device, 0, 0
    return found


def current_stream(device: Device, kind: type[Stream] = Stream) -> Stream:
    """The stream that this thread has chosen last for a device."""
    return STREAMS.current.get(device) or default_stream(device, kind)
