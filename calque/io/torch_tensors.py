"""Tensors of PyTorch checkpoints: what their pickles name to make them, over storages that tensors share as they did when they were saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from calque.base import dtypes as dt
from calque.base.device import META
from calque.base.dtypes import DType
from calque.base.errors import DTypeError
from calque.base.layout import MOST_DIMS, dense_layout, layout
from calque.io.bounds import MEMORY_ALLOWANCE, Budget, Damaged
from calque.io.structure import Array
from calque.io.unpickle import Known, Refused, Unfinished
from calque.nn.parameter import Parameter
from calque.tensor import Tensor, from_array, wrap

# PyTorch's old names of typed storages and tensors: what stands before "Storage" and "Tensor".
TYPED = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64", "Int": "int32", "Short": "int16",
    "Char": "int8", "Byte": "uint8", "Bool": "bool", "ComplexFloat": "complex64", "ComplexDouble": "complex128",
}  # fmt: skip
_MOST = 2**62  # elements

# What a tensor becomes on the device where its storage goes: given the tensor of the whole storage and the name of the device it was saved from.
Place = Callable[[Tensor, str], Tensor]


class Stored(Unfinished):
    """A storage that a pickle names, or a part of one: `dtype` is None where it counts bytes."""

    def __init__(self, key: str, dtype: DType | None, location: str, numel: int, offset: int = 0) -> None:
        self.key, self.dtype, self.location, self.numel, self.offset = key, dtype, location, numel, offset


class Tensors:
    """The tensors of one file. `read(key, size)` are the bytes of a storage; without it tensors stay empty, which is enough to find what is named.

    `swapped`: whether numbers stand in the other byte order than this machine's. `size`: bytes of the file.
    """

    def __init__(self, read: Callable[[str, int], Array] | None, place: Place, swapped: bool = False, size: int = 0) -> None:
        self.read, self.place, self.swapped = read, place, swapped
        self.copies = Budget(size + MEMORY_ALLOWANCE, f"it holds views of conjugate or negative numbers that are larger than its {size:,} bytes")
        self.whole: dict[str, tuple[DType, Tensor]] = {}
        self.named: dict[str, Stored] = {}
        self.known: dict[str, Any] = {
            "torch._utils._rebuild_tensor": lambda storage, offset, size, stride: self.tensor(storage, offset, size, stride),
            "torch._utils._rebuild_tensor_v2": self.rebuild_v2,
            "torch._utils._rebuild_tensor_v3": self.rebuild_v3,
            "torch._utils._rebuild_meta_tensor_no_storage": self.rebuild_meta,
            "torch._utils._rebuild_parameter": lambda data, requires_grad, hooks: _parameter(data, requires_grad),
            "torch._utils._rebuild_parameter_with_state": lambda data, grad, hooks, state: with_state(_parameter(data, grad), state),
            "torch._utils._rebuild_device_tensor_from_numpy": self.rebuild_numpy,
            "torch._utils._rebuild_device_tensor_from_cpu_tensor": lambda data, dtype, device, grad: self.moved(data, device, grad),
            "torch._tensor._rebuild_from_type_v2": rebuild_from_type,
            "torch.nn.parameter.Parameter": lambda data=None, requires_grad=True, *_: _parameter(data, requires_grad),
            "torch.Tensor": None, "torch.storage.UntypedStorage": None, "torch.UntypedStorage": None, "torch.storage.TypedStorage": None,
        }  # fmt: skip
        for name in TYPED:
            for module in ("torch", "torch.cuda"):
                self.known[f"{module}.{name}Storage"] = self.known[f"{module}.{name}Tensor"] = None
        self.known = {name: Known(name, make) for name, make in self.known.items()}

    def stored(self, kind: Any, key: Any, location: Any, numel: Any) -> Stored:
        """The storage behind a persistent id."""
        location = location.decode("ascii") if type(location) is bytes else location
        if not isinstance(kind, Known) or not isinstance(key, str) or not isinstance(location, str) or type(numel) is not int:
            raise Damaged("its pickle names a storage by something else than type, key, place and size")
        if not 0 <= numel < _MOST:
            raise Damaged(f"its storage {key[:40]!r} should hold {numel:,} elements")
        found = Stored(key, storage_dtype(kind), location, numel)
        first = self.named.setdefault(key, found)
        if (first.dtype, first.location, first.numel) != (found.dtype, location, numel):
            raise Damaged(f"its storage {key[:40]!r} is named with two types, places or sizes")
        return found

    def base(self, storage: Stored, dtype: DType) -> Tensor:
        """The tensor of a whole storage, on the device where it goes."""
        found = self.whole.get(storage.key)
        if found is None:
            assert self.read is not None
            size = self.named[storage.key].numel * (1 if storage.dtype is None else dtype.itemsize)
            if size % dtype.itemsize:
                raise Damaged(f"its storage {storage.key[:40]!r} of {size:,} bytes holds no whole number of {dtype.name}")
            data = self.read(storage.key, size)
            if dtype is dt.bool_ and size and data.max() > 1:
                raise Damaged(f"its storage {storage.key[:40]!r} of booleans holds bytes other than 0 and 1")
            flat = data.view(dtype.np)
            if self.swapped:
                flat = flat.byteswap()
            made = self.place(from_array(flat, dense_layout((flat.size,), dtype)), storage.location)
            found = self.whole[storage.key] = (dtype, made)
        if found[0] is not dtype:
            raise Damaged(f"its storage {storage.key[:40]!r} is used as {found[0].name} and as {dtype.name}")
        return found[1]

    def tensor(self, storage: Any, offset: Any, size: Any, stride: Any, dtype: Any = None) -> Tensor:
        """A tensor over a storage."""
        if not isinstance(storage, Stored):
            raise Damaged("its pickle makes a tensor without a storage")
        dtype = storage.dtype if dtype is None else dtype
        if not isinstance(dtype, DType):
            raise Damaged("its pickle makes a tensor without an element type")
        sizes, strides = _counts(size, "size"), _counts(stride, "stride")
        last = _last(sizes, strides, offset)
        numel = storage.numel if storage.dtype is not None else storage.numel // dtype.itemsize
        if last >= numel:
            raise Damaged(f"a tensor of size {sizes[:8]} in it reaches to element {last:,} of the {numel:,} of its storage")
        if self.read is None:
            return Tensor.__new__(Tensor)
        base = self.base(storage, dtype)
        view = layout(sizes, strides, storage.offset + min(offset, storage.numel), dtype, base._layout.device)
        result: Tensor = wrap(base._storage, view)
        return result

    def rebuild_v2(self, storage: Any, offset: Any, size: Any, stride: Any, requires_grad: Any, hooks: Any, metadata: Any = None) -> Tensor:
        """A tensor of a typed storage."""
        return self.finished(self.tensor(storage, offset, size, stride), requires_grad, metadata)

    def rebuild_v3(
        self, storage: Any, offset: Any, size: Any, stride: Any, requires_grad: Any, hooks: Any, dtype: Any, metadata: Any = None
    ) -> Tensor:
        """A tensor of a storage that counts bytes."""
        if not isinstance(dtype, DType) or isinstance(storage, Stored) and storage.dtype is not None:
            raise Damaged("its pickle makes a tensor without an element type")
        return self.finished(self.tensor(storage, offset, size, stride, dtype), requires_grad, metadata)

    def rebuild_meta(self, dtype: Any, size: Any, stride: Any, requires_grad: Any) -> Tensor:
        """A tensor without values."""
        if not isinstance(dtype, DType):
            raise Damaged("its pickle makes a tensor without an element type")
        sizes, strides = _counts(size, "size"), _counts(stride, "stride")
        if self.read is None:
            return Tensor.__new__(Tensor)
        count = _last(sizes, strides, 0) + 1
        if count * dtype.itemsize >= _MOST:
            raise Damaged(f"a tensor of size {sizes[:8]} in it is larger than any memory")
        whole = from_array(np.zeros(0, dtype.np), dense_layout((0,), dtype)).new_empty((count,), device=META)
        return self.finished(wrap(whole._storage, layout(sizes, strides, 0, dtype, META)), requires_grad, None)

    def rebuild_numpy(self, array: Any, dtype: Any, device: Any, requires_grad: Any) -> Tensor:
        """A tensor of a device without storages of its own, saved as an array."""
        if not isinstance(array, np.ndarray) or not isinstance(dtype, DType):
            raise Damaged("its pickle makes a tensor of something else than an array")
        if self.read is None:
            return Tensor.__new__(Tensor)
        flat = np.ascontiguousarray(array, dtype.np).reshape(-1)
        return self.moved(from_array(flat, dense_layout(array.shape, dtype)), device, requires_grad)

    def moved(self, data: Any, device: Any, requires_grad: Any) -> Tensor:
        """A tensor that was on another device, where it goes now."""
        if not isinstance(data, Tensor):
            raise Damaged("its pickle makes a tensor of something else than a tensor")
        return data if self.read is None else self.finished(self.place(data, str(device)), requires_grad, None)

    def finished(self, made: Tensor, requires_grad: Any, metadata: Any) -> Tensor:
        """A tensor with what its pickle says of it beside its memory."""
        if type(requires_grad) is not bool or metadata is not None and type(metadata) is not dict:
            raise Damaged("its pickle says of a tensor neither that it requires a gradient nor that it does not")
        if self.read is None:
            return made
        for name, change in (("conj", "conj_physical"), ("neg", "neg")):
            if metadata and metadata.get(name) is True:
                self.copies.take(made._layout.nbytes)
                made = getattr(made, change)()
        if requires_grad:
            if made._layout.dtype.category < 2:
                raise Damaged(f"its pickle asks for gradients of {made._layout.dtype.name}")
            made._requires_grad = True
        return made


def storage_dtype(kind: Known) -> DType | None:
    """Element type of a class of storages; None for one that counts bytes."""
    name = kind.name.rpartition(".")[2].removesuffix("Storage")
    if name == "Untyped":
        return None
    if name not in TYPED or not kind.name.endswith("Storage"):
        raise Damaged(f"its pickle names {kind.name} as a storage")
    found = getattr(dt, "bool_" if name == "Bool" else TYPED[name], None)
    if not isinstance(found, DType):
        raise DTypeError(f"[load] expected an element type that Calque has, got {TYPED[name]}; convert the tensor before it is saved")
    return found


def _counts(value: Any, what: str) -> tuple[int, ...]:
    if not isinstance(value, tuple) or len(value) > MOST_DIMS or not all(type(n) is int and 0 <= n < _MOST for n in value):
        raise Damaged(f"its pickle makes a tensor of an impossible {what}")
    return tuple(value)


def _last(sizes: tuple[int, ...], strides: tuple[int, ...], offset: Any) -> int:
    """The largest place in the storage that a tensor reaches; -1 for none."""
    if type(offset) is not int or not 0 <= offset < _MOST or len(sizes) != len(strides):
        raise Damaged("its pickle makes a tensor of an impossible place")
    count, last = 1, offset
    for size, stride in zip(sizes, strides, strict=True):
        count *= max(size, 1)
        last += max(size - 1, 0) * stride
    if count >= _MOST or last >= _MOST:
        raise Damaged(f"a tensor of size {sizes[:8]} in it is larger than any memory")
    return -1 if 0 in sizes else last


def _parameter(data: Any, requires_grad: Any) -> Any:
    if not isinstance(data, Tensor) or type(requires_grad) is not bool:
        raise Damaged("its pickle makes a parameter of something else than a tensor")
    if not hasattr(data, "_storage"):  # read without values
        return data
    if requires_grad and data._layout.dtype.category < 2:
        raise Damaged(f"its pickle asks for gradients of {data._layout.dtype.name}")
    return Parameter(data, requires_grad)


def with_state(value: Any, state: Any) -> Any:
    """A tensor with the attributes that a user had set on it."""
    if type(state) is tuple and len(state) == 2:
        state = {**(state[0] or {}), **(state[1] or {})} if all(part is None or type(part) is dict for part in state) else None
    if type(state) is not dict or not all(type(name) is str and not hasattr(Tensor, name) for name in state):
        raise Refused("it sets attributes of a tensor that are its own")
    if hasattr(value, "_storage"):
        value.__dict__.update(state)
    return value


def rebuild_from_type(function: Any, kind: Any, arguments: Any, state: Any) -> Any:
    """A tensor that had attributes, or was of a class of its own."""
    if not isinstance(function, Known) or function.make is None or not function.name.startswith("torch._utils._rebuild_"):
        raise Refused(f"it makes a tensor by {getattr(function, 'name', 'a value')}")
    if not isinstance(kind, Known) or kind.name not in ("torch.Tensor", "torch.nn.parameter.Parameter"):
        raise Refused(f"it makes a tensor of class {getattr(kind, 'name', 'unknown')}")
    if type(arguments) is not tuple:
        raise Damaged("its pickle makes a tensor of something else than arguments")
    made = function.make(*arguments)
    if kind.name.endswith("Parameter") and type(made) is Tensor and hasattr(made, "_storage"):
        made = Parameter(made, made._requires_grad)
    return with_state(made, state)
