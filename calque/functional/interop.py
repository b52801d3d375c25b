"""Exchange with NumPy, and with `copy` and `pickle`; `dlpack.py` has other frameworks."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, AutogradError
from calque.base.layout import dense_layout
from calque.functional.common import method
from calque.functional.creation import from_numpy
from calque.functional.formats import clone
from calque.functional.memory import export, own_buffer
from calque.functional.views import detach
from calque.record.recorder import local
from calque.replay.effects import gradients_matter
from calque.tensor import Tensor, from_array, read, upload

# ---------------------------------------------------------------------------------------------------------------- NumPy


@method("numpy")
def numpy(input: Tensor, *, force: bool = False) -> np.ndarray[Any, Any]:
    """A NumPy array that shares the tensor's memory.

    >>> import calque
    >>> t = calque.zeros(2)
    >>> t.numpy()[0] = 3.0
    >>> t
    tensor([3., 0.])
    """
    if input._requires_grad and not force and local.state.grad:
        raise AutogradError("[numpy] Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
    if force and input._layout.device.backend is not None:
        return export(input.detach().cpu(), "numpy")  # type: ignore[attr-defined]
    return export(input, "numpy")


@method("__array__")
def _array(self: Tensor, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
    if self._requires_grad:
        raise AutogradError("[numpy] Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
    wanted = self._layout.dtype.np if dtype is None else np.dtype(dtype)
    if wanted != self._layout.dtype.np or copy:
        if copy is False:
            raise ArgumentError(f"[__array__] expected dtype {self._layout.dtype.np} without a copy, got {wanted}; allow copying")
        return np.array(read(self, "numpy"), dtype=wanted)
    return export(self, "numpy")


@method("__array_wrap__")
def _array_wrap(self: Tensor, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
    """What a NumPy function has made of tensors, as a tensor again: `numpy.sin(t)`. Truth values come as uint8, as PyTorch gives them."""
    values = np.asarray(array)
    return from_numpy(values.view(np.uint8) if values.dtype == np.bool_ else values)


# --------------------------------------------------------------------------------------------------------------- memory


@method("data_ptr")
def data_ptr(input: Tensor) -> int:
    """Address of the first element."""
    flat = own_buffer(input, "data_ptr").wait()
    return int(flat.ctypes.data) + input._layout.offset * input._layout.dtype.itemsize


class StorageView:
    """What `untyped_storage()` returns: the memory behind a tensor."""

    def __init__(self, owner: Tensor) -> None:
        self._owner = owner

    def data_ptr(self) -> int:
        """Address of the memory."""
        return int(own_buffer(self._owner, "data_ptr").wait().ctypes.data)

    def nbytes(self) -> int:
        """Bytes of the memory."""
        return self._owner._storage.layout.nbytes

    def size(self) -> int:
        """Elements of the memory."""
        return self._owner._storage.layout.numel

    def __len__(self) -> int:
        return self.size()

    def cpu(self) -> "StorageView":
        """The memory itself: it is the CPU's."""
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StorageView) and other._owner._storage is self._owner._storage

    def __hash__(self) -> int:
        return id(self._owner._storage)


@method("untyped_storage", "storage", "typed_storage")
def storage(input: Tensor) -> StorageView:
    """The memory behind the tensor."""
    return StorageView(input)


# ------------------------------------------------------------------------------------------------------ copy and pickle


def _rebuild(values: Any, dtype: dt.DType, shape: tuple[int, ...], requires_grad: bool) -> Tensor:
    flat = np.frombuffer(values, dtype=dtype.np)
    if flat.flags.writeable and flat.ctypes.data % dtype.itemsize == 0:
        made = from_array(flat, dense_layout(shape, dtype))  # the unpickler hands the buffer over
    else:
        made = upload(flat.reshape(shape), dtype)
    made._requires_grad = requires_grad
    return made


@method("__reduce_ex__")
def _reduce(self: Tensor, protocol: int) -> Any:
    values: Any = np.ascontiguousarray(read(self, "pickle")).reshape(-1).view(np.uint8)
    data: Any = pickle.PickleBuffer(values) if protocol >= 5 else values.tobytes()
    return (_rebuild, (data, self._layout.dtype, tuple(self._layout.shape), self._requires_grad))


@method("__deepcopy__")
def _deepcopy(self: Tensor, memo: dict[int, Any]) -> Tensor:
    if id(self) in memo:
        found: Tensor = memo[id(self)]
        return found
    if self._requires_grad and self._grad_fn is not None:
        raise AutogradError(
            "[deepcopy] Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol; detach() or "
            "clone() it"
        )
    made = clone(detach(self))
    made._requires_grad = self._requires_grad
    gradients_matter()
    if self._grad is not None:
        made._grad = _deepcopy(self._grad, memo)
    memo[id(self)] = made
    return made


@method("__copy__")
def _copy(self: Tensor) -> Tensor:
    made = detach(self)
    made._requires_grad = self._requires_grad
    return made
