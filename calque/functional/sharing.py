"""Tensors whose memory several processes see: `share_memory_`. Python's `multiprocessing` carries such memory along, in queues, pipes and
arguments of processes; other tensors travel by value."""

from __future__ import annotations

import os
import pickle
from multiprocessing import reduction
from typing import Any

import numpy as np

from calque.base import between
from calque.base import dtypes as dt
from calque.base.device import META
from calque.base.layout import dense_layout, layout
from calque.functional.common import method
from calque.functional.interop import attributes_of, of_class
from calque.functional.memory import own_buffer
from calque.run.buffer import Buffer
from calque.tensor import Tensor, from_array, wrap

_ROOM = "[share_memory_] expected room for {} that processes share", "free memory, or share less"


class Common:
    """Memory that other processes may have; the owner of a buffer, which is shared for ever."""

    __slots__ = ("handle", "size", "__weakref__")

    def __init__(self, handle: int, size: int) -> None:
        self.handle, self.size = handle, size

    def array(self, dtype: dt.DType) -> np.ndarray[Any, Any]:
        """The memory as a flat array, which keeps it mapped."""
        return np.frombuffer(between.mapped(self.handle, max(self.size, 1), *_ROOM), np.uint8, self.size).view(dtype.np)

    def __del__(self) -> None:
        os.close(self.handle)


def _common(t: Tensor) -> Common | None:
    buffer = t._storage.buffer
    return buffer.owner if buffer is not None and buffer.owner.__class__ is Common else None


@method()
def is_shared(input: Tensor) -> bool:
    """Whether other processes may see the memory; see `share_memory_`."""
    return _common(input) is not None


@method()
def share_memory_(input: Tensor) -> Tensor:
    """The tensor itself, its memory moved where processes that get it, or a view of it, see what others write to it.

    They get it as an argument of a process of `multiprocessing`, in its queues and pipes, or by `fork`. Nothing orders what several processes write;
    operations read such memory as it is when they are written. Arrays that `numpy()` gave before keep the memory that they have.

    >>> import calque
    >>> calque.zeros(2).share_memory_().is_shared()
    True
    """
    if input._layout.device is META or input._layout.device.backend is not None or _common(input) is not None:
        return input
    flat = own_buffer(input, "share_memory_").wait()
    owner = Common(between.new_memory(max(flat.nbytes, 1), *_ROOM), flat.nbytes)
    memory = owner.array(input._storage.layout.dtype)
    memory[...] = flat
    _travels(type(input))
    input._storage.buffer = Buffer(memory, owner=owner)
    return input


def _travels(kind: type) -> None:
    """From here on `multiprocessing` asks us how tensors of a class are pickled."""
    for cls in (Tensor, kind):
        if cls.__reduce_ex__ is Tensor.__reduce_ex__:  # others, such as parameters, are pickled with the tensor that they are made of
            reduction.ForkingPickler.register(cls, _sent)


def _sent(t: Tensor) -> Any:
    """What `multiprocessing` pickles of a tensor."""
    owner, made = _common(t), (type(t), t._requires_grad, attributes_of(t))
    if owner is None or (t._requires_grad and t._grad_fn is not None):
        return t.__reduce_ex__(pickle.DEFAULT_PROTOCOL)
    view, whole = t._layout, t._storage.layout
    facts = tuple(view.shape), view.strides, view.offset, view.dtype
    return _received, (reduction.DupFd(owner.handle), owner.size, whole.dtype, facts, *made)  # type: ignore[attr-defined]


def _received(
    handle: Any, size: int, dtype: dt.DType, facts: tuple[Any, ...], cls: type, requires_grad: bool, attributes: dict[str, Any]
) -> Tensor:
    _travels(cls)
    owner = Common(handle.detach(), size)
    whole = from_array(owner.array(dtype), dense_layout((size // dtype.itemsize,), dtype), owner=owner)
    made: Tensor = of_class(wrap(whole._storage, layout(*facts)), cls)
    made._requires_grad = requires_grad
    made.__dict__.update(attributes)
    return made
