"""`torch.cuda` names: NVIDIA's GPUs through XLA (`pip install 'calque-dl[cuda]'`). Without one, no device is available, and what needs one
says so.

>>> import calque
>>> calque.cuda.is_available() == (calque.cuda.device_count() > 0)
True
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from calque.base.device import Device
from calque.functional.generators import default_generator
from calque.report.accelerators import DeviceKind, StreamContext
from calque.report.streams import Event as _Event
from calque.report.streams import Stream as _Stream
from calque.tensor import Tensor

__all__ = [
    "Event", "Stream", "StreamContext", "current_device", "current_stream", "default_stream", "device", "device_count", "device_of", "empty_cache",
    "get_device_capability", "get_device_name", "get_device_properties", "get_rng_state", "get_rng_state_all", "init", "initial_seed", "is_available",
    "is_bf16_supported", "is_initialized", "is_tf32_supported", "manual_seed", "manual_seed_all", "max_memory_allocated", "max_memory_reserved",
    "mem_get_info", "memory_allocated", "memory_reserved", "memory_stats", "memory_summary", "reset_max_memory_allocated",
    "reset_peak_memory_stats", "seed", "seed_all", "set_device", "set_rng_state", "set_rng_state_all", "set_stream", "stream", "synchronize",
]  # fmt: skip


class Event(_Event):
    """`torch.cuda.Event`: see `calque.Event`."""

    _kind = "cuda"

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False) -> None:
        super().__init__(None, enable_timing=enable_timing, blocking=blocking, interprocess=interprocess)


class Stream(_Stream):
    """`torch.cuda.Stream`: see `calque.Stream`."""

    _kind = "cuda"
    _event = Event


_cuda = DeviceKind("cuda", Stream)
is_available, device_count, current_device, set_device = _cuda.is_available, _cuda.device_count, _cuda.current_device, _cuda.set_device
device, device_of, synchronize, empty_cache = _cuda.device, _cuda.device_of, _cuda.synchronize, _cuda.empty_cache
current_stream, default_stream, set_stream, stream = _cuda.current_stream, _cuda.default_stream, _cuda.set_stream, StreamContext
get_device_name, get_device_properties, get_device_capability = _cuda.get_device_name, _cuda.get_device_properties, _cuda.get_device_capability
memory_allocated, max_memory_allocated = _cuda.memory_allocated, _cuda.max_memory_allocated
memory_reserved, max_memory_reserved = _cuda.memory_reserved, _cuda.max_memory_reserved
memory_stats, memory_summary, mem_get_info = _cuda.memory_stats, _cuda.memory_summary, _cuda.mem_get_info
reset_peak_memory_stats = reset_max_memory_allocated = _cuda.reset_peak_memory_stats


def init() -> None:
    """Use the current device; raises `DeviceError` if there is none."""
    current_device()


def is_initialized() -> bool:
    """Whether a CUDA device was used."""
    return any(found.type == "cuda" for found in Device.served())


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether bfloat16 can be computed: on every device that XLA compiles for."""
    return is_available()


def is_tf32_supported() -> bool:
    """Whether the current device has TF32: NVIDIA's of compute capability 8 and later."""
    return is_available() and int(_cuda.get_device_properties().__dict__.get("major", 0)) >= 8


def manual_seed(seed: int) -> None:
    """Start the default stream of random numbers, which serves all devices and the CPU, from `seed`; nothing without a CUDA device, as in PyTorch."""
    if is_available():
        default_generator.manual_seed(seed)


manual_seed_all = manual_seed


def seed() -> None:
    """The same from a seed that nobody can predict."""
    if is_available():
        default_generator.seed()


seed_all = seed


def initial_seed() -> int:
    """Seed of the default stream of random numbers, which serves all devices."""
    return default_generator.initial_seed()


def get_rng_state(device: Any = "cuda") -> Tensor:
    """State of the default stream of random numbers, which serves all devices."""
    _cuda._device(device, "get_rng_state")
    return default_generator.get_state()


def set_rng_state(new_state: Tensor, device: Any = "cuda") -> None:
    """Continue the default stream of random numbers, which serves all devices, from a state."""
    _cuda._device(device, "set_rng_state")
    default_generator.set_state(new_state)


def get_rng_state_all() -> list[Tensor]:
    """A state for each device: the same one."""
    return [default_generator.get_state() for _ in range(device_count())]


def set_rng_state_all(new_states: Iterable[Tensor]) -> None:
    """Continue from the states of `get_rng_state_all`."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)
