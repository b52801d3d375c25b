"""`torch.accelerator` names: whatever device there is beside the processor: a CUDA device, a TPU, one of a kind that a package added, or what JAX
prefers if that is not the CPU.

>>> import calque
>>> calque.accelerator.is_available() == (calque.accelerator.current_accelerator() is not None)
True
"""

from __future__ import annotations

from typing import Any

from calque.base.device import Device
from calque.base.device import accelerator as _kind
from calque.base.dtypes import ALL
from calque.report.accelerators import DeviceKind

__all__ = [
    "current_accelerator", "current_device_idx", "current_device_index", "current_stream", "device_count", "device_index", "empty_cache",
    "empty_host_cache", "get_device_capability", "get_memory_info", "is_available", "max_memory_allocated", "max_memory_reserved",
    "memory_allocated", "memory_reserved", "memory_stats", "reset_accumulated_memory_stats", "reset_peak_memory_stats", "set_device_idx",
    "set_device_index", "set_stream", "synchronize",
]  # fmt: skip

_there = DeviceKind(None)
is_available, device_count, synchronize = _there.is_available, _there.device_count, _there.synchronize
current_device_index = current_device_idx = _there.current_device
set_device_index = set_device_idx = _there.set_device
current_stream, set_stream, device_index = _there.current_stream, _there.set_stream, _there.device
memory_allocated, max_memory_allocated, memory_stats = _there.memory_allocated, _there.max_memory_allocated, _there.memory_stats
memory_reserved, max_memory_reserved, get_memory_info = _there.memory_reserved, _there.max_memory_reserved, _there.mem_get_info
reset_peak_memory_stats, empty_cache = _there.reset_peak_memory_stats, _there.empty_cache
empty_host_cache = _there.empty_cache


def current_accelerator(check_available: bool = False) -> Device | None:
    """The kind of device that is there, as a device without a number; None if there is none. `check_available` changes nothing: only devices that
    can be used are found."""
    kind = _kind()
    return None if kind is None else Device(kind)


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Nothing: there are no sums of what was taken and given back."""


def get_device_capability(device: Any = None) -> dict[str, Any]:
    """{"supported_dtypes": the types of tensors that can live on the device}."""
    _there._device(device, "get_device_capability")
    return {"supported_dtypes": set(ALL)}
