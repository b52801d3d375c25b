"""Where the work of a device runs: its queue, its threads and memory; host callbacks; copies between devices."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from calque.base.device import CPU, META, Device
from calque.base.errors import DeviceError
from calque.observe import events
from calque.run.backends import host_memory
from calque.run.engine import CPU_QUEUE, Queue

_QUEUES: dict[Device, Queue] = {CPU: CPU_QUEUE}
_LOCK = threading.Lock()


def queue_of(device: Device) -> Queue:
    """The queue of a device with memory."""
    found = _QUEUES.get(device)
    if found is None:
        if device.type != "cpu" and device.backend is None:
            raise DeviceError(f"[engine] expected a device with memory, got {str(device)!r}; use device='cpu'")
        with _LOCK:
            found = _QUEUES.get(device)
            if found is None:
                found = _QUEUES[device] = Queue(str(device), device=device, move=at)
    return found


class _At(threading.local):
    device = CPU


_AT = _At()


def at(device: Device) -> Device:
    """Let this thread use the cores and the memory of a device; returns the one before."""
    before = _AT.device
    if device is not before:
        host_memory().enter(None if device.backend is not None else device.index)  # whoever works for another device has the cores as a whole
        events.where.queue = str(device)
        _AT.device = device
    return before


CPU_QUEUE.device, CPU_QUEUE.move = CPU, at


def on(device: Device, work: Callable[[], Any]) -> Any:
    """`work()` with the cores and the memory of a device."""
    if device is _AT.device or device is META:
        return work()
    before = at(device)
    try:
        return work()
    finally:
        at(before)


def placed(array: Any, device: Device) -> Any:
    """A flat array of the host that nobody else has, as a value of the device."""
    return array if device.backend is None else device.backend.put(array, device.index)
