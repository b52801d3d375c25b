"""Sharing memory with other frameworks by DLPack, in both directions.

Source of the protocol: DLPack 1.1 (`dlpack.h`), and the Array API standard 2024.12 for `__dlpack__`, `__dlpack_device__` and `from_dlpack`. NumPy
makes and reads the capsules; types that it does not know travel as integers of their width, and the field of the capsule that says the type is
changed.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from calque.base import dtypes as dt
from calque.base.device import META
from calque.base.errors import ArgumentError, DTypeError, SharingError
from calque.base.text import described, shown, type_name
from calque.functional.common import cast, is_tensor, method, require_tensors
from calque.functional.creation import as_tensor, from_numpy, frombuffer
from calque.functional.declared import public
from calque.functional.formats import clone
from calque.functional.memory import export, share_array
from calque.functional.options import marked, resolve_device, resolve_dtype
from calque.functional.views import detach
from calque.tensor import Tensor

_CPU = (1, 0)  # kDLCPU, and the number of the device
# Codes of the types that NumPy does not exchange. Those of float8 came with DLPack 1.1.
_CODES = {
    dt.bfloat16: 4, dt.float8_e4m3fn: 10, dt.float8_e4m3fnuz: 11, dt.float8_e5m2: 12, dt.float8_e5m2fnuz: 13, dt.float8_e8m0fnu: 14,
}  # fmt: skip
_BY_CODE = {code: dtype for dtype, code in _CODES.items()}
_CARRIERS: dict[int, Any] = {1: np.uint8, 2: np.uint16}  # by the width of an element; the code of unsigned integers is 1
_CODE_AT = {b"dltensor": 20, b"dltensor_versioned": 52}  # where DLTensor.dtype.code stands behind the capsule's pointer
_FLAGS_AT, _READ_ONLY, _COPIED = 24, 1, 2  # DLManagedTensorVersioned.flags


def _pointer(capsule: Any) -> tuple[int, bytes]:
    """Address and name of the struct in a DLPack capsule."""
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype, api.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
    api.PyCapsule_GetPointer.restype, api.PyCapsule_GetPointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    name = api.PyCapsule_GetName(capsule)
    if name not in _CODE_AT:
        raise ArgumentError(f"[from_dlpack] expected a fresh DLPack capsule, got {shown(name)}; a capsule can be read once, ask for another one")
    return int(api.PyCapsule_GetPointer(capsule, name)), name


def _code(capsule: Any) -> Any:
    """The number in a capsule that says which kind of type its elements have; it can be changed."""
    address, name = _pointer(capsule)
    return ctypes.c_uint8.from_address(address + _CODE_AT[name])


@method("__dlpack__")
def _dlpack(self: Tensor, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None) -> Any:
    """A capsule of the tensor's memory, in the layout of DLPack 1 if `max_version` allows it. `copy`: True for a copy, False for none in any case."""
    if self._requires_grad:
        raise SharingError("[__dlpack__] Can't export tensors that require gradient, use tensor.detach()")
    if self._layout.device is META:
        raise SharingError("[__dlpack__] expected a tensor with memory, got one on meta; make it on the CPU")
    if stream is not None and (not isinstance(stream, int) or isinstance(stream, bool)):
        raise TypeError(f"[__dlpack__] expected stream as an int or None, got {shown(stream)}")
    if stream not in (None, -1):
        raise ArgumentError(f"[__dlpack__] expected no stream for a tensor on the CPU, got {shown(stream)}")
    if dl_device is not None and (not isinstance(dl_device, tuple) or tuple(map(int, dl_device)) != _CPU):
        raise SharingError(f"[__dlpack__] expected dl_device=(1, 0), the CPU, got {shown(dl_device)}: there is no other memory here; leave it out")
    array = export(clone(self) if copy else self, "dlpack")
    code = _CODES.get(self._layout.dtype)
    if code is not None:
        array = array.view(_CARRIERS[array.itemsize])
    versioned = max_version is not None and max_version[0] >= 1 and hasattr(np, "from_dlpack") and _numpy_versions()
    options: Any = {"max_version": max_version} if versioned else {}
    capsule = array.__dlpack__(**options)
    if code is not None:
        _code(capsule).value = code
    if copy and versioned:
        address, _ = _pointer(capsule)
        flags = ctypes.c_uint64.from_address(address + _FLAGS_AT)
        flags.value |= _COPIED
    return capsule


def _numpy_versions() -> bool:
    """Whether NumPy knows DLPack 1: it does since 2.1."""
    return tuple(map(int, np.__version__.split(".")[:2])) >= (2, 1)


@method("__dlpack_device__")
def _dlpack_device(self: Tensor) -> tuple[int, int]:
    """(1, 0): the CPU, of which logical devices are parts."""
    if self._layout.device is META:
        raise ArgumentError("[__dlpack_device__] Unknown device type meta for Dlpack: expected a tensor with memory")
    return _CPU


@public(method=False)
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
        return _CPU


def _ask(source: Any, copy: bool | None) -> Any:
    """The capsule of an object; older ones know no arguments."""
    wishes: dict[str, Any] = {"max_version": (1, 1)} if copy is None else {"max_version": (1, 1), "copy": copy}
    try:
        return source.__dlpack__(**wishes)
    except TypeError:
        return source.__dlpack__()


@public(method=False)
def from_dlpack(ext_tensor: Any, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """A tensor over the memory of an array of another framework (anything with `__dlpack__`, or a capsule).

    `device`: None or the CPU. `copy`: True for memory of its own, False for none whatever happens, None to copy where memory cannot be shared: what
    its owner says is read-only is copied, for a tensor can be written to.

    Raises TypeError for what has no `__dlpack__`, DTypeError for a type that tensors do not have, SharingError (a BufferError) for memory that cannot
    be shared where no copy is allowed.

    >>> import calque, numpy as np
    >>> a = np.arange(3)
    >>> t = calque.from_dlpack(a)
    >>> t[0] = 9
    >>> int(a[0])
    9
    """
    if device is not None and resolve_device(device, "from_dlpack") is META:
        raise SharingError("[from_dlpack] expected a device with memory, got meta; leave it out")
    if isinstance(ext_tensor, Tensor):
        return clone(detach(ext_tensor)) if copy else detach(ext_tensor)
    try:
        capsule = _ask(ext_tensor, copy) if hasattr(ext_tensor, "__dlpack__") else ext_tensor
    except BufferError as reason:
        hint = "copy it first" if "readonly" in str(reason) else "convert it to numbers first"
        raise DTypeError(f"[from_dlpack] expected memory that can be shared, got {described(ext_tensor)}: {reason} {hint}") from None
    if type(capsule).__name__ != "PyCapsule":
        raise TypeError(f"[from_dlpack] expected an object with __dlpack__ or a DLPack capsule, got {type_name(ext_tensor)}")
    address, name = _pointer(capsule)
    flags = ctypes.c_uint64.from_address(address + _FLAGS_AT).value if name == b"dltensor_versioned" else 0
    code = _code(capsule)
    dtype = _BY_CODE.get(code.value)
    if dtype is not None:
        code.value = 1
    try:
        array = np.from_dlpack(_Capsule(capsule))  # type: ignore[arg-type]
    except (BufferError, RuntimeError, TypeError) as reason:
        raise DTypeError(
            f"[from_dlpack] expected CPU memory of a type that Calque has, got one NumPy refuses: {reason}"
        ) from None
    return _over(array, dtype, bool(flags & _READ_ONLY), None if flags & _COPIED else copy)


def _over(array: np.ndarray[Any, Any], dtype: dt.DType | None, read_only: bool, copy: bool | None) -> Tensor:
    """A tensor over an array that NumPy has read from a capsule; `dtype` is what its elements are, if NumPy does not know."""
    if read_only and copy is False:
        raise SharingError("[from_dlpack] expected memory that may be written to, got some that is read-only; leave copy=False out to copy it")
    seen = array if read_only else np.asarray(_Foreign(array))
    if dtype is None:
        made = from_numpy(seen)
    elif read_only or not seen.flags.c_contiguous:
        made = cast(from_numpy(np.array(seen).view(dtype.np)), dtype)
    else:
        made = share_array(seen.view(dtype.np), dtype)
    return clone(made) if copy else made


def _has_bytes(obj: Any) -> bool:
    try:
        memoryview(obj)
    except TypeError:
        return False
    return True


@public(method=False)
def asarray(obj: Any, *, dtype: Any = None, device: Any = None, copy: bool | None = None, requires_grad: bool | None = None) -> Tensor:
    """A tensor of another one, an array, an object with `__dlpack__` or a capsule, bytes, or nested sequences of numbers.

    `copy`: True for memory of its own, False for none whatever happens, None to share memory where dtype and device allow it (an array without
    dims is copied). The result has the history of a tensor unless `requires_grad` is False.

    >>> import calque
    >>> calque.asarray(bytearray(b"ab"), dtype=calque.uint8)
    tensor([97, 98], dtype=torch.uint8)
    """
    plain = isinstance(obj, (list, tuple, bool, int, float, complex))
    if is_tensor(obj) or isinstance(obj, np.ndarray):
        source = obj if is_tensor(obj) else from_numpy(obj)
    elif isinstance(obj, np.generic) and copy is False:
        raise ArgumentError(f"[asarray] can't alias NumPy scalars: expected an array for copy=False, got {shown(obj)}; leave copy out")
    elif not plain and not isinstance(obj, np.generic) and (hasattr(obj, "__dlpack__") or type_name(obj) == "PyCapsule"):
        source = from_dlpack(obj)
    elif not plain and not hasattr(obj, "__array__") and _has_bytes(obj):
        source = frombuffer(obj, dtype=resolve_dtype(dtype, dt.get_default_dtype(), "asarray"))
    elif copy is False and plain:
        raise ArgumentError(f"[asarray] can't alias arbitrary sequence into a tensor: expected an array, got {shown(obj)}; leave copy out")
    else:
        return marked(as_tensor(obj, dtype, device=device), bool(requires_grad), "asarray")
    made = source if dtype is None and device is None else source.to(dtype=dtype, device=device)  # type: ignore[attr-defined]
    if copy is False and made is not source:
        raise ArgumentError(
            f"[asarray] can't alias tensor with dtype {source._layout.dtype!r} on {source._layout.device}: expected these for copy=False, got "
            f"{made._layout.dtype!r} on {made._layout.device}; leave copy out"
        )
    single = copy is None and isinstance(obj, np.ndarray) and not obj.ndim  # PyTorch copies what is as good as a number
    made = clone(made) if (copy or single) and made._storage is source._storage else made
    if requires_grad is False and made._grad_fn is not None:
        return detach(made)
    if requires_grad is not None:
        made.requires_grad_(requires_grad)  # type: ignore[attr-defined]
    return made
