"""How this layer makes tensors out of host data, and rows out of tensors: its only module that touches tensor memory.

Batches of values that the CPU has are put together on the host. Recording a gather or a stack per batch instead would add work to every step of the
trace and make it wait for nothing. Values of other devices stay there, and are never waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from calque.base.asked import ASKED
from calque.base.device import CPU
from calque.base.dtypes import DType, from_numpy_dtype, promote
from calque.base.layout import dense_layout
from calque.base.text import shown
from calque.functional.joining import stack as record_stack
from calque.functional.selection import index_select
from calque.run.dispatch import new_array
from calque.run.memory import out_of_memory
from calque.tensor import Tensor, from_array, read

SHARED_FROM = 1 << 15  # bytes
shared: Callable[[int], np.ndarray[Any, Any]] | None = None  # in a worker process: memory for so many bytes that the loader sees, too


def empty(shape: tuple[int, ...], dtype: DType) -> tuple[Tensor, np.ndarray[Any, Any]]:
    """A new tensor and its memory, which the caller fills before anybody reads the tensor."""
    layout = dense_layout(shape, dtype)
    try:
        size = layout.numel * dtype.itemsize
        flat = new_array(layout.numel, dtype) if shared is None or size < SHARED_FROM else shared(size).view(dtype.np)
    except MemoryError as error:
        raise out_of_memory(error, "DataLoader", f"a batch of shape {shape} and {shown(dtype)}") from None
    return from_array(flat, layout), flat.reshape(shape)


def dtype_of(array: np.ndarray[Any, Any] | np.generic) -> DType | None:
    """The element type a tensor of these values has, or None where there is none."""
    return from_numpy_dtype(array.dtype)


def copy_array(array: np.ndarray[Any, Any] | np.generic) -> Tensor:
    """A tensor with a copy of the values, of the same shape."""
    dtype = dtype_of(array)
    assert dtype is not None, "checked by the caller"
    tensor, memory = empty(array.shape, dtype)
    memory[...] = array
    return tensor


def stack_arrays(arrays: Sequence[Any]) -> Tensor:
    """Arrays of one shape `(...)` along a new first dimension: `(N, ...)`, in the promoted element type."""
    dtypes = {dtype for array in arrays if (dtype := dtype_of(array)) is not None}
    dtype = reduce(promote, dtypes)
    tensor, memory = empty((len(arrays), *arrays[0].shape), dtype)
    np.stack(arrays, out=memory, casting="unsafe")
    return tensor


def stack_tensors(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors of one shape `(...)` along a new first dimension: `(N, ...)`."""
    if any(tensor.requires_grad or tensor.__class__ in ASKED or tensor.device is not CPU for tensor in tensors):
        return record_stack(list(tensors))
    return stack_arrays([read(tensor) for tensor in tensors])


def rows(tensor: Tensor, indices: Sequence[int]) -> Tensor:
    """The given rows of a tensor without history: `(N, ...) -> (len(indices), ...)`."""
    if tensor.device is not CPU:
        return index_select(tensor, 0, copy_array(np.asarray(indices, np.int64)).to(tensor.device))
    values = read(tensor)
    result, memory = empty((len(indices), *values.shape[1:]), tensor.dtype)
    np.take(values, np.asarray(indices, np.intp), axis=0, out=memory, mode="clip")  # the caller has checked; "raise" would copy
    return result


def from_numbers(numbers: Sequence[Any]) -> Tensor:
    """A tensor `(N,)` of Python numbers: float64, int64 or bool by the first number, as PyTorch collates them."""
    if isinstance(numbers[0], float):
        array = np.array(numbers, np.float64)
    elif all(isinstance(number, bool) for number in numbers):
        array = np.array(numbers, np.bool_)
    elif any(isinstance(number, float) for number in numbers):
        array = np.array(numbers, np.float32)  # what torch.tensor([1, 2.5]) gives
    else:
        array = np.array(numbers, np.int64)
    return copy_array(array)
