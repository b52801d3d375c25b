"""`torch._utils`: small helpers that libraries import."""

from __future__ import annotations

import math
from typing import Any

import calque
from calque.compat.face import face
from calque.io.torch_tensors import with_state

__all__ = [
    "ExceptionWrapper", "_flatten_dense_tensors", "_get_all_device_indices", "_get_available_device_type", "_get_device_index", "_get_device_module",
    "_is_privateuse1", "_rebuild_parameter", "_rebuild_parameter_with_state", "_rebuild_tensor", "_rebuild_tensor_v2", "_unflatten_dense_tensors",
    "is_compiling",
]  # fmt: skip


def is_compiling() -> bool:
    """False."""
    return False


def _get_device_module(device_type: str) -> Any:
    return face(f"torch.{device_type}")


def _get_device_index(device: Any, optional: bool = False, allow_cpu: bool = False) -> int:
    if isinstance(device, int):
        return device
    if device is None:
        return 0 if optional else -1
    found = calque.device(device)
    if found.type == "cpu" and not allow_cpu:
        raise ValueError(f"[_get_device_index] expected a device with an index, got {device!r}; pass an int")
    return -1 if found.index is None else found.index


def _get_available_device_type() -> None:
    """None: there is no device beside the processor."""


def _get_all_device_indices() -> list[int]:
    return []


def _is_privateuse1(name: str) -> bool:
    return False


def _flatten_dense_tensors(tensors: Any) -> Any:
    """The elements of several tensors of one type, one behind the other."""
    return calque.cat([t.contiguous().view(-1) for t in tensors])


def _unflatten_dense_tensors(flat: Any, tensors: Any) -> tuple[Any, ...]:
    """The inverse: views of `flat` with the shapes of `tensors`."""
    out, begin = [], 0
    for t in tensors:
        count = math.prod(t.shape)
        out.append(flat.narrow(0, begin, count).view(t.shape))
        begin += count
    return tuple(out)


def _rebuild_tensor(storage: Any, storage_offset: int, size: Any, stride: Any) -> Any:
    """A tensor over a storage, as pickles of PyTorch's tensors ask for it."""
    return calque.empty(0, dtype=storage.dtype, device=storage.device).set_(storage, storage_offset, tuple(size), tuple(stride))


def _rebuild_tensor_v2(
    storage: Any, storage_offset: int, size: Any, stride: Any, requires_grad: bool, backward_hooks: Any, metadata: Any = None
) -> Any:  # fmt: skip
    """The same, with what its pickle says of it beside its memory. Hooks are gone: PyTorch's pickles hold none."""
    made = _rebuild_tensor(storage, storage_offset, size, stride)
    for name, change in (("conj", "conj_physical"), ("neg", "neg")):
        if metadata and metadata.get(name):
            made = getattr(made, change)()
    return made.requires_grad_(requires_grad)


def _rebuild_parameter(data: Any, requires_grad: bool, backward_hooks: Any) -> Any:
    return calque.nn.Parameter(data, requires_grad)


def _rebuild_parameter_with_state(data: Any, requires_grad: bool, backward_hooks: Any, state: Any) -> Any:
    return with_state(_rebuild_parameter(data, requires_grad, backward_hooks), state)


class ExceptionWrapper:
    """An exception with its traceback as text, for another thread or process."""

    def __init__(self, exc_info: Any, where: str = "in background") -> None:
        self.exc_type, self.exc_msg, self.where = exc_info[0], str(exc_info[1]), where

    def reraise(self) -> None:
        """Raise an exception of the same class."""
        raise self.exc_type(f"Caught {self.exc_type.__name__} {self.where}.\n{self.exc_msg}")
