"""`torch.cuda` names: NVIDIA's GPUs through XLA (`pip install 'calque-dl[cuda]'`). Without one, no device is available, and what needs one
says so.

>>> import calque
>>> calque.cuda.is_available() == (calque.cuda.device_count() > 0)
True
"""

from __future__ import annotations

from typing import Any, NamedTuple

from calque.base.device import CURRENT, Device, backend_of, known
from calque.base.errors import DeviceError
from calque.base.text import shown
from calque.record.recorder import flush
from calque.run.dispatch import wait_for_queues


def is_available() -> bool:
    """Whether a CUDA device can be used."""
    return device_count() > 0


def device_count() -> int:
    """Number of usable CUDA devices."""
    return int(backend_of("cuda").count())


def _device(device: Any) -> Device:
    """The CUDA device that is meant; None is the current one. Raises `DeviceError` if it is not there."""
    found = Device("cuda" if device is None else f"cuda:{device}" if isinstance(device, int) and not isinstance(device, bool) else device)
    if found.type != "cuda":
        raise DeviceError(f"[cuda] expected a CUDA device, got {shown(str(found))}; pass 'cuda:0', a number, or nothing")
    return known(found)


def current_device() -> int:
    """Index of the current CUDA device of this thread."""
    return int(_device(None).index or 0)


def set_device(device: Any) -> None:
    """Choose the current CUDA device of this thread: what `"cuda"` without a number means."""
    CURRENT.index["cuda"] = int(_device(device).index or 0)


def synchronize(device: Any = None) -> None:
    """Start what this thread has recorded and wait until everything has run; raise what failed and was not reported yet."""
    _device(device)
    flush("synchronize")
    wait_for_queues()


def get_device_name(device: Any = None) -> str:
    """The device's name, as its maker calls it."""
    found = _device(device)
    return str(found.backend.name(found.index))


class Properties(NamedTuple):
    """What is known of a device. `total_memory`: bytes that this process may use."""

    name: str
    total_memory: int


def get_device_properties(device: Any = None) -> Properties:
    """Name and memory of a device."""
    found = _device(device)
    return Properties(found.backend.name(found.index), found.backend.limit(found.index))


def _memory(device: Any) -> Any:
    """Accounting of a device; None where there is none, as PyTorch counts 0 then."""
    if not is_available():
        return None
    found = _device(device)
    return found.backend.memory(found.index)


def memory_allocated(device: Any = None) -> int:
    """Bytes in use on the device."""
    found = _memory(device)
    return 0 if found is None else int(found.in_use)


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes that were in use on the device."""
    found = _memory(device)
    return 0 if found is None else int(found.peak)


def memory_reserved(device: Any = None) -> int:
    """Bytes in use and bytes kept for reuse."""
    found = _memory(device)
    return 0 if found is None else int(found.in_use + found.cached)


max_memory_reserved = max_memory_allocated


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """(free bytes, all bytes) that this process may use on the device."""
    found = _device(device)
    limit = int(found.backend.limit(found.index))
    return max(0, limit - int(found.backend.memory(found.index).in_use)), limit


def reset_peak_memory_stats(device: Any = None) -> None:
    """Start the peak anew, where the device can: XLA's own accounting of GPUs keeps the peak of the process."""
    if is_available():
        found = _device(device)
        found.backend.reset_peak(found.index)


def empty_cache() -> None:
    """Nothing: freed memory belongs to XLA's allocator, which serves every use of the device in this process."""


def manual_seed_all(seed: int) -> None:
    """Nothing: one generator (`calque.manual_seed`) serves all devices, and gives the same numbers on each."""


manual_seed = manual_seed_all
