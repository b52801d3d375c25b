"""Memory that Calque shares with NumPy: tensors over foreign arrays, arrays over a tensor's memory."""

from __future__ import annotations

from sys import getrefcount
from typing import Any

import numpy as np

from calque.base.dtypes import DType
from calque.base.errors import DTypeError
from calque.base.layout import layout
from calque.base.shapes import contiguous_strides, view_bounds
from calque.record.recorder import flush, local
from calque.record.state import read_by_python
from calque.run.buffer import Buffer, ForeignMemory, exported_view
from calque.run.dispatch import new_array, raise_pending
from calque.run.engine import drain
from calque.tensor import Tensor, from_array, realise


def own_buffer(t: Tensor, reason: str) -> Buffer:
    """The tensor's realised memory, shared with no other storage. What was recorded before has run, so it cannot see later
    writes to it."""
    device = t._layout.device
    if device.backend is not None:
        raise DTypeError(
            f"[{reason}] can't convert {device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
        )
    buffer = realise(t, reason)
    if buffer.trace is local.state.trace:
        flush("memory shared with NumPy")
    drain()
    flat = buffer.wait()
    raise_pending()
    read_by_python(local.state, buffer)
    # Storages that hold equal values may share a buffer until one is written: here are the storage's reference, `buffer` and
    # the argument.
    if not buffer.shared() and getrefcount(buffer) > 3:
        copy = new_array(flat.size, t._storage.layout.dtype)
        copy[...] = flat
        buffer = t._storage.buffer = Buffer(copy)
    return buffer


def export(t: Tensor, reason: str) -> np.ndarray[Any, Any]:
    """A NumPy array over the tensor's memory."""
    return exported_view(own_buffer(t, reason), t._layout)


def share_array(array: np.ndarray[Any, Any], dtype: DType, of: Buffer | None = None) -> Tensor:
    """A tensor over the memory of a writable NumPy array with strides >= 0 that are multiples of the element size. `of`: the buffer it is, if it is
    one of ours that is read as another type."""
    item = dtype.itemsize
    shape, strides = tuple(array.shape), tuple(s // item for s in array.strides)
    if array.size == 0:
        return from_array(np.empty(0, dtype.np), layout(shape, contiguous_strides(shape), 0, dtype))
    extent = array.size if array.flags.c_contiguous else view_bounds(shape, strides, 0)[1] + 1
    memory = ForeignMemory(array)
    memory.of = of
    return from_array(memory.over(array, dtype.np, extent), layout(shape, strides, 0, dtype), owner=memory)
