"""`torch.cuda` beyond `calque.cuda`: what asks is answered, what we do not have says so when it is called."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import calque
from calque.base.errors import OutOfMemoryError
from calque.compat.missing import pytorch_has
from calque.compat.refused import no, nothing, without_device

__all__ = [
    "OutOfMemoryError", "_device_t", "_is_in_bad_fork", "_lazy_call", "can_device_access_peer", "current_blas_handle", "default_generators", "device",
    "find", "get_arch_list", "get_gencode_flags", "get_rng_state_all", "has_half", "has_magma", "initial_seed", "ipc_collect", "is_bf16_supported",
    "is_current_stream_capturing", "is_initialized", "is_tf32_supported", "max_memory_cached", "memory_cached", "memory_stats", "seed", "seed_all",
    "set_rng_state_all", "stream",
]  # fmt: skip

_device_t = Any
default_generators: tuple[Any, ...] = ()
has_half, has_magma = True, False
is_initialized = is_bf16_supported = is_tf32_supported = is_current_stream_capturing = _is_in_bad_fork = can_device_access_peer = no
ipc_collect = seed = seed_all = _lazy_call = nothing
current_blas_handle = without_device("torch.cuda.current_blas_handle", "CUDA")


memory_cached, max_memory_cached = calque.cuda.memory_reserved, calque.cuda.max_memory_reserved


def memory_stats(device: Any = None) -> dict[str, Any]:
    """{}: there is nothing to count."""
    return {}


def initial_seed() -> int:
    """The seed of the CPU: there is no other generator."""
    return calque.initial_seed()


def get_arch_list() -> list[str]:
    """[]: kernels of no GPU were compiled."""
    return []


def get_gencode_flags() -> str:
    """"": see `get_arch_list`."""
    return ""


def get_rng_state_all() -> list[Any]:
    """[]: one state for each device."""
    return []


def set_rng_state_all(new_states: Any) -> None:
    """Nothing for no device; states of devices are refused."""
    if len(list(new_states)):
        without_device("torch.cuda.set_rng_state_all", "CUDA")()


@contextlib.contextmanager
def stream(stream: Any = None) -> Iterator[None]:
    """A block in which work is queued elsewhere; `None` means nothing, as in PyTorch."""
    if stream is not None:
        without_device("torch.cuda.stream", "CUDA")()
    yield


class device:
    """A block in which another CUDA device is the current one: index -1 and None mean nothing, as in PyTorch."""

    def __init__(self, device: Any) -> None:
        self._device = None if device is None or device == -1 or str(device) == "cpu" else device

    def __enter__(self) -> None:
        if self._device is not None:
            self._before = calque.cuda.current_device()
            calque.cuda.set_device(self._device)

    def __exit__(self, *_: object) -> None:
        if self._device is not None:
            calque.cuda.set_device(self._before)


def find(name: str, nothing: Any) -> Any:
    """The other functions and classes of PyTorch's module: they raise `DeviceError` when they are called."""
    if hasattr(calque.cuda, name) or not pytorch_has("torch.cuda", name):
        return nothing
    return without_device(f"torch.cuda.{name}", "CUDA")
