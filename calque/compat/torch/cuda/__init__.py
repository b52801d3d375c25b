"""`torch.cuda` beyond `calque.cuda`: what asks is answered, what we do not have says so when it is called."""

from __future__ import annotations

from typing import Any

import calque
from calque.base.errors import OutOfMemoryError
from calque.compat.missing import pytorch_has
from calque.compat.refused import no, nothing, without_device
from calque.functional.legacy import on_device

__all__ = [
    "BFloat16Tensor", "BoolTensor", "ByteTensor", "CharTensor", "DoubleTensor", "FloatTensor", "HalfTensor", "IntTensor", "LongTensor",
    "OutOfMemoryError", "ShortTensor", "_device_t", "_initialized", "_is_in_bad_fork", "_lazy_call", "can_device_access_peer",
    "current_blas_handle", "default_generators", "find", "get_arch_list", "get_gencode_flags", "has_half", "has_magma", "ipc_collect",
    "is_current_stream_capturing", "max_memory_cached", "memory_cached", "reset_accumulated_memory_stats", "reset_max_memory_cached",
]  # fmt: skip

_device_t = Any
_old = on_device("cuda")
FloatTensor, DoubleTensor, HalfTensor, BFloat16Tensor = _old["FloatTensor"], _old["DoubleTensor"], _old["HalfTensor"], _old["BFloat16Tensor"]
ByteTensor, CharTensor, ShortTensor = _old["ByteTensor"], _old["CharTensor"], _old["ShortTensor"]
IntTensor, LongTensor, BoolTensor = _old["IntTensor"], _old["LongTensor"], _old["BoolTensor"]
default_generators: tuple[Any, ...] = ()
has_half, has_magma = True, False
is_current_stream_capturing = _is_in_bad_fork = can_device_access_peer = no
ipc_collect = reset_accumulated_memory_stats = nothing
current_blas_handle = without_device("torch.cuda.current_blas_handle", "CUDA", "cuda")


memory_cached, max_memory_cached = calque.cuda.memory_reserved, calque.cuda.max_memory_reserved
reset_max_memory_cached = calque.cuda.reset_peak_memory_stats


class _Initialized:
    """True once a device was used: libraries ask before they keep the state of its generator."""

    def __bool__(self) -> bool:
        return calque.cuda.is_initialized()


_initialized = _Initialized()


def _lazy_call(call: Any, **keywords: Any) -> None:
    """Call it now, if there is a device."""
    if calque.cuda.is_available():
        call()


def get_arch_list() -> list[str]:
    """[]: kernels were compiled for no GPU beforehand."""
    return []


def get_gencode_flags() -> str:
    """"": see `get_arch_list`."""
    return ""


def find(name: str, nothing: Any) -> Any:
    """The other functions and classes of PyTorch's module: they raise `DeviceError` without a device when they are called, else say what to use."""
    if hasattr(calque.cuda, name) or not pytorch_has("torch.cuda", name):
        return nothing
    return without_device(f"torch.cuda.{name}", "CUDA", "cuda")
