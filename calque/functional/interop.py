"""Exchange with NumPy, and with `copy` and `pickle`; `dlpack.py` has other frameworks."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from copy import deepcopy
from mmap import mmap
from typing import Any

import numpy as np

from calque.autograd.assign import check_in_place, continue_history
from calque.autograd.moving import move
from calque.base import dtypes as dt
from calque.base.asked import ordinary
from calque.base.device import CPU, Device, InUse, known, place_elsewhere
from calque.base.errors import ArgumentError, AutogradError, DTypeError
from calque.base.layout import dense_layout, layout
from calque.base.shapes import common_order, contiguous_strides, inverse
from calque.base.text import type_name
from calque.functional.common import is_tensor, method
from calque.functional.creation import from_numpy
from calque.functional.formats import clone
from calque.functional.memory import export, own_buffer, share_array
from calque.functional.options import resolve_device
from calque.functional.subclasses import instead
from calque.functional.views import detach, int_tuple
from calque.record.nodes import GradNode
from calque.record.recorder import local
from calque.record.storage import Storage
from calque.replay.effects import gradients_matter
from calque.tensor import Tensor, from_array, function_node, read, wrap

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
    """What `untyped_storage()` returns: the memory behind a tensor, as bytes."""

    def __init__(self, owner: Tensor) -> None:
        self._owner = owner

    def _elements(self) -> Tensor:
        """All that lies in the memory, in its own type."""
        whole = self._owner._storage.layout
        return self._owner.detach().as_strided((whole.numel,), (1,), 0)  # type: ignore[attr-defined, no-any-return]

    def _parts(self) -> Tensor:
        """What `len` counts and an index finds."""
        return self._elements().view(dt.uint8)  # type: ignore[attr-defined, no-any-return]

    @property
    def device(self) -> Any:
        """Where the memory is."""
        return self._owner.device  # type: ignore[attr-defined]

    @property
    def is_cuda(self) -> bool:
        """Whether it is a GPU's."""
        return bool(self._owner.is_cuda)  # type: ignore[attr-defined]

    def data_ptr(self) -> int:
        """Address of the memory."""
        return int(own_buffer(self._owner, "data_ptr").wait().ctypes.data)

    def nbytes(self) -> int:
        """Bytes of the memory."""
        return self._owner._storage.layout.nbytes

    size = nbytes

    def element_size(self) -> int:
        """Bytes of what an index finds."""
        return 1

    def __len__(self) -> int:
        return self.size()

    def __getitem__(self, index: int) -> Any:
        return self._parts()[index].item()  # type: ignore[index, attr-defined]

    def tolist(self) -> list[Any]:
        """What lies in the memory, as Python's numbers."""
        found: list[Any] = self._parts().tolist()  # type: ignore[attr-defined]
        return found

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tolist())

    def is_shared(self) -> bool:
        """Whether other processes see the memory."""
        return bool(self._owner.is_shared())  # type: ignore[attr-defined]

    def is_pinned(self) -> bool:
        """Whether the memory is locked, for copies to a GPU."""
        return bool(self._owner.is_pinned())  # type: ignore[attr-defined]

    def untyped(self) -> "StorageView":
        """The memory as bytes."""
        return StorageView(self._owner)

    def clone(self) -> Any:
        """A copy of the memory."""
        return type(self)(clone(self._elements()))

    def _moved(self, device: Any) -> "StorageView":
        whole = self._elements()
        return self if whole._layout.device is device else type(self)(move(whole, device))

    def cpu(self) -> "StorageView":
        """The memory itself if it is the CPU's, else a copy there."""
        return self._moved(CPU)

    def cuda(self, device: Any = None, non_blocking: bool = False) -> "StorageView":
        """A copy on a CUDA device; the memory itself if it is there."""
        return self._moved(resolve_device("cuda" if device is None else device, "cuda"))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StorageView) and other._owner._storage is self._owner._storage

    def __hash__(self) -> int:
        return id(self._owner._storage)


class TypedStorageView(StorageView):
    """What `storage()` returns: the memory behind a tensor, as elements of its type."""

    def _parts(self) -> Tensor:
        return self._elements()

    @property
    def dtype(self) -> dt.DType:
        """Type of the elements."""
        return self._owner._storage.layout.dtype

    def size(self) -> int:
        """Elements of the memory."""
        return self._owner._storage.layout.numel

    def element_size(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    def __setitem__(self, index: int, value: Any) -> None:
        self._elements()[index] = value  # type: ignore[index]


@method("untyped_storage")
def untyped_storage(input: Tensor) -> StorageView:
    """The memory behind the tensor, as bytes."""
    return StorageView(ordinary(input))


@method("storage", "typed_storage")
def storage(input: Tensor) -> TypedStorageView:
    """The memory behind the tensor, as elements of its type."""
    return TypedStorageView(ordinary(input))


@method("set_")
def set_(input: Tensor, source: Any = (), storage_offset: int = 0, size: Any = None, stride: Any = None) -> Tensor:
    """Let the tensor lie in the memory of `source`, a tensor or a storage: from `storage_offset` on, of that size and stride (row-major without
    one), or as `source` lies there. Without a source it becomes empty."""
    state = local.state
    if state.grad:
        check_in_place(input)
    elif input._requires_grad and input._grad_fn is not None:
        raise ArgumentError("[set_] expected a tensor without history, got one with a grad_fn; detach() it first")
    history = state.grad and (input._requires_grad or getattr(source, "_requires_grad", False))
    if source.__class__ is tuple and not source:
        source = input.new_empty(0)  # type: ignore[attr-defined]
    elif isinstance(source, StorageView):
        source = source._elements()
    elif not is_tensor(source):
        raise DTypeError(f"[set_] expected source as a Tensor or a storage, got {type_name(source)}; see Tensor.untyped_storage()")
    elif size is not None:
        storage_offset += source._layout.offset
    if source._layout.dtype is not input._layout.dtype:
        raise DTypeError(f"[set_] expected memory of {input._layout.dtype!r}, got {source._layout.dtype!r}; view(dtype) reads bytes as another type")
    if size is not None:
        shape = int_tuple("set_", (size,))
        source = source.detach().as_strided(shape, contiguous_strides(shape) if stride is None else stride, storage_offset)
    before, after = input._storage, source._storage
    if after is not before and after.version <= before.version:
        after.version = before.version + 1  # whoever has saved the tensor for a gradient finds that it has changed
    input._storage, input._layout, input._cache = after, source._layout, None
    if history:
        continue_history(input, function_node("NotImplemented", (source,), (input._layout,), _no_derivative))
    return input


def _no_derivative(node: GradNode, grads: Any) -> Any:
    raise AutogradError(
        "[set_] the derivative for set_ is not implemented: expected memory without a history, got some of a tensor that requires grad; detach() it"
    )


# ------------------------------------------------------------------------------------------------------ copy and pickle


def _rebuild(
    values: Any, dtype: dt.DType, shape: tuple[int, ...], requires_grad: bool, strides: tuple[int, ...] | None = None, device: Device = CPU
) -> Tensor:
    flat = np.frombuffer(values, dtype=dtype.np)
    if not (isinstance(_origin(flat), mmap) and flat.flags.writeable and flat.ctypes.data % dtype.itemsize == 0):
        flat = flat.copy()  # whoever has given a buffer may have it, or give it again; the memory of our own processes is handed over
    made = from_array(flat, dense_layout(shape, dtype) if strides is None else layout(shape, strides, 0, dtype))
    made = made if device is CPU or InUse.helper else made.to(known(device))  # type: ignore[attr-defined]
    made._requires_grad = requires_grad
    return made


def _origin(memory: Any) -> Any:
    """The object whose memory an array or a memoryview shows; None if the array has its own."""
    while isinstance(memory, (np.ndarray, memoryview)):
        memory = memory.base if isinstance(memory, np.ndarray) else memory.obj
    return memory


def of_class(made: Tensor, cls: type) -> Tensor:
    """The same tensor, as one of a subclass."""
    return made if cls is Tensor else instead(made, cls)  # type: ignore[no-any-return]


def _rebuild_of_class(cls: type, plain: tuple[Any, ...], attributes: dict[str, Any]) -> Tensor:
    made = of_class(_rebuild(*plain), cls)
    made.__dict__.update(attributes)
    return made


def attributes_of(t: Tensor) -> dict[str, Any]:
    """What a program has set on a tensor, for a copy of it: hooks stay with the original, as in PyTorch."""
    return {name: value for name, value in t.__dict__.items() if name != "_post_accumulate"}


@method("__reduce_ex__")
def _reduce(self: Tensor, protocol: int) -> Any:
    found, view = read(self, "pickle"), self._layout
    order = common_order([(tuple(view.shape), view.strides)])
    plain: tuple[Any, ...] = (view.dtype, tuple(view.shape), self._requires_grad)
    if order != tuple(range(view.ndim)):  # in the order of memory, as it comes back
        found = found.transpose(order)
        strides = contiguous_strides(found.shape)
        plain += (tuple([strides[d] for d in inverse(order)]),)
    if (place := place_elsewhere(view.device)) is not CPU:
        plain += (place,) if len(plain) == 4 else (None, place)
    values: Any = np.ascontiguousarray(found).reshape(-1).view(np.uint8)
    plain = (pickle.PickleBuffer(values) if protocol >= 5 else values.tobytes(), *plain)
    attributes = attributes_of(self)
    if type(self) is Tensor and not attributes:
        return (_rebuild, plain)
    return (_rebuild_of_class, (type(self), plain, attributes))


def copied_with(t: Tensor, memo: Any) -> Tensor:
    """The same values in a copy of the memory. What is copied in one go (`memo`) and shares memory shares that of the copies, as in PyTorch."""
    if local.state.trace.transforms:
        return clone(detach(t))
    storage, key = t._storage, ("memory", id(t._storage))
    if key not in memo:  # with the original, whose id nothing else may get meanwhile
        memo[key] = storage, _copied_storage(storage, memo)
    made: Tensor = wrap(memo[key][1], t._layout)
    return made


def _copied_storage(storage: Storage, memo: Any) -> Storage:
    """A copy of the memory. Bytes that are shown as several types (`x.view(dtype)`) are copied once, and shown as these again."""
    plain: Tensor = wrap(storage, storage.layout)
    buffer = storage.buffer
    if buffer is None or not buffer.shared() or (buffer.whole() is buffer and (buffer.export is None or buffer.export() is None)):
        return clone(plain)._storage
    own_buffer(plain, "deepcopy")  # what is recorded of it has run
    whole, shown = buffer.whole(), buffer.wait()
    key = ("bytes", id(whole))
    if key not in memo:
        values = np.array(whole.wait().view(np.uint8))
        memo[key] = whole, from_array(values, dense_layout((values.size,), dt.uint8))
    copy = memo[key][1]
    start = shown.__array_interface__["data"][0] - whole.wait().__array_interface__["data"][0]
    part = export(copy, "deepcopy").view(np.uint8)[start : start + shown.nbytes].view(shown.dtype)
    return share_array(part, storage.layout.dtype, copy._storage.buffer)._storage


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
    made = of_class(copied_with(self, memo), type(self))
    made._requires_grad = self._requires_grad
    gradients_matter()
    if self._grad is not None:
        made._grad = _deepcopy(self._grad, memo)
    memo[id(self)] = made
    made.__dict__.update(deepcopy(attributes_of(self), memo))
    return made


@method("__copy__")
def _copy(self: Tensor) -> Tensor:
    made = of_class(detach(self), type(self))
    made._requires_grad = self._requires_grad
    made.__dict__.update(attributes_of(self))
    return made
