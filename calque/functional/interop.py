"""Exchange with NumPy, with other frameworks by DLPack, and with `copy` and `pickle`."""

from __future__ import annotations

import ctypes
import pickle
from typing import Any

import numpy as np

from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, AutogradError, DTypeError
from calque.base.layout import dense_layout
from calque.base.text import described, shown, type_name
from calque.functional.common import cast, method, require_tensors
from calque.functional.creation import from_numpy
from calque.functional.formats import clone
from calque.functional.memory import export, own_buffer, share_array
from calque.functional.views import detach
from calque.run.effects import gradients_matter
from calque.run.recorder import local
from calque.tensor import Tensor, from_array, read, upload

__all__ = ["from_dlpack", "to_dlpack"]


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
    if input._requires_grad and not force and (local.state.grad or input._grad_fn is None):
        raise AutogradError("[numpy] Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
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

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StorageView) and other._owner._storage is self._owner._storage

    def __hash__(self) -> int:
        return id(self._owner._storage)


@method("untyped_storage", "storage", "typed_storage")
def storage(input: Tensor) -> StorageView:
    """The memory behind the tensor."""
    return StorageView(input)


# --------------------------------------------------------------------------------------------------------------- DLPack

_BFLOAT_CODE = 4
_CODE_OFFSET = {b"dltensor": 20, b"dltensor_versioned": 52}  # of DLTensor.dtype.code in the struct behind the capsule


def _pointer(capsule: Any) -> tuple[int, bytes]:
    """Address and name of the struct in a DLPack capsule."""
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype, api.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
    api.PyCapsule_GetPointer.restype, api.PyCapsule_GetPointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    name = api.PyCapsule_GetName(capsule)
    return int(api.PyCapsule_GetPointer(capsule, name)), name


@method("__dlpack__")
def _dlpack(self: Tensor, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None) -> Any:
    if self._requires_grad:
        raise AutogradError("[__dlpack__] Can't export tensors that require gradient, use tensor.detach()")
    if stream not in (None, -1):
        raise ArgumentError(f"[__dlpack__] expected no stream for a tensor on the CPU, got {shown(stream)}")
    source = clone(self) if copy else self
    array = export(source, "dlpack")
    bfloat = self._layout.dtype is dt.bfloat16
    if bfloat:
        array = array.view(np.int16)
    options = (
        {"max_version": max_version} if max_version is not None and tuple(np.__version__.split("."))[:2] >= ("2", "1") else {}
    )
    capsule = array.__dlpack__(**options)  # type: ignore[arg-type]
    if bfloat:
        address, name = _pointer(capsule)
        ctypes.c_uint8.from_address(address + _CODE_OFFSET[name]).value = _BFLOAT_CODE
    return capsule


@method("__dlpack_device__")
def _dlpack_device(self: Tensor) -> tuple[int, int]:
    return (1, 0)


def to_dlpack(tensor: Tensor) -> Any:
    """A DLPack capsule of the tensor's memory."""
    require_tensors("to_dlpack", tensor)
    return tensor.__dlpack__()  # type: ignore[attr-defined]


class _Foreign:
    """Memory of another framework as NumPy sees it, writable, kept alive by `owner`."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.owner = array
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}


class _Capsule:
    """A bare capsule dressed as an object with `__dlpack__`."""

    def __init__(self, capsule: Any) -> None:
        self.capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class _AsInt16(_Capsule):
    """A bfloat16 export relabelled as int16, which NumPy can import."""

    def __init__(self, capsule: Any) -> None:
        super().__init__(capsule)
        address, name = _pointer(capsule)
        ctypes.c_uint8.from_address(address + _CODE_OFFSET[name]).value = 0


def _is_bfloat(capsule: Any) -> bool:
    address, name = _pointer(capsule)
    return ctypes.c_uint8.from_address(address + _CODE_OFFSET[name]).value == _BFLOAT_CODE


def from_dlpack(ext_tensor: Any, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """A tensor that shares memory with an array of another framework (anything with `__dlpack__`, or a capsule).

    >>> import calque, numpy as np
    >>> a = np.arange(3)
    >>> t = calque.from_dlpack(a)
    >>> t[0] = 9
    >>> int(a[0])
    9
    """
    if isinstance(ext_tensor, Tensor):
        return detach(ext_tensor)
    try:
        capsule = ext_tensor.__dlpack__() if hasattr(ext_tensor, "__dlpack__") else ext_tensor
    except BufferError as reason:
        hint = "copy it first" if "readonly" in str(reason) else "convert it to numbers first"
        raise DTypeError(f"[from_dlpack] expected memory that can be shared, got {described(ext_tensor)}: {reason} {hint}") from None
    if type(capsule).__name__ != "PyCapsule":
        raise TypeError(f"[from_dlpack] expected an object with __dlpack__ or a DLPack capsule, got {type_name(ext_tensor)}")
    bfloat = _is_bfloat(capsule)
    try:
        array = np.from_dlpack(_AsInt16(capsule) if bfloat else _Capsule(capsule))  # type: ignore[arg-type]
    except (BufferError, RuntimeError, TypeError) as reason:
        raise DTypeError(
            f"[from_dlpack] expected CPU memory of a type that Calque has, got one NumPy refuses: {reason}"
        ) from None
    writable = np.asarray(_Foreign(array))
    if bfloat:
        return (
            share_array(writable.view(dt.bfloat16.np), dt.bfloat16)
            if writable.flags.c_contiguous
            else cast(from_numpy(writable), dt.bfloat16)
        )
    made = from_numpy(writable)
    return clone(made) if copy else made


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
    if self._requires_grad and self._grad_fn is not None:
        raise AutogradError("[pickle] only leaf tensors can be pickled, a graph does not survive: detach() the tensor first")
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
