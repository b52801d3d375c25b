"""What creation functions share: sizes, dtypes, devices and `requires_grad` from the user's arguments."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from calque.base import dtypes as dt
from calque.base.asked import plainly
from calque.base.device import CPU, META, Device, known
from calque.base.errors import ArgumentError, DTypeError
from calque.base.shapes import Shape
from calque.base.text import type_name
from calque.functional.common import complex_number, dtype_of, is_tensor, number, prim
from calque.functional.views import int_tuple
from calque.ir.symint import SymInt
from calque.record.live import LiveFloat
from calque.record.outputs import no_history, write_result
from calque.tensor import Tensor


def resolve_device(device: Any, op: str) -> Device:
    """The device a result lives on; `None` means the CPU. Raises `DeviceError` for devices this installation cannot use."""
    if device is None or device is CPU:
        return CPU
    if isinstance(device, int) and not isinstance(device, bool):
        device = f"cuda:{device}"
    return known(Device(device))


def resolve_dtype(dtype: Any, default: dt.DType, op: str) -> dt.DType:
    """A dtype argument: a dtype, a NumPy dtype, a Python type, or None for `default`."""
    if dtype is None:
        return default
    return dt.with_values(dtype, op) if isinstance(dtype, dt.DType) else dtype_of(dtype, op)


def size_of(op: str, size: tuple[Any, ...], keyword: Any = None) -> Shape:
    """Shape from `(2, 3)`, `((2, 3),)`, `([2, 3],)` or the keyword `size=(2, 3)`."""
    if not size and keyword is not None:
        size = (keyword,)
    shape = int_tuple(op, size)
    for extent in shape:
        if extent < 0:
            raise ArgumentError(
                f"[{op}] Trying to create tensor with negative dimension {extent}: {list(shape)}; sizes must be >= 0"
            )
    return shape


def marked(t: Tensor, requires_grad: bool, op: str) -> Tensor:
    """`t` as a leaf that requires a gradient if asked."""
    if requires_grad:
        if t._layout.dtype.category < 2:
            raise DTypeError(
                f"[{op}] only Tensors of floating point and complex dtype can require gradients, got {t._layout.dtype}; pass "
                "dtype=calque.float32"
            )
        t._requires_grad = True
    return t


def read_number(op: str, value: Any) -> Any:
    """A plain number; a 0-d tensor in its place is read, as for a `Scalar` of PyTorch's."""
    if not is_tensor(value):
        return number(value)
    if value._layout.ndim:
        raise DTypeError(f"[{op}] expected a number or a 0-d tensor, got a Tensor of shape {tuple(value._layout.shape)}; use .item() of one element")
    return value.item()


def held(op: str, value: Any, dtype: dt.DType) -> Any:
    """A number, or a 0-d tensor, that is to be written as `dtype`. A tensor whose type has values that an integer type has not is read for that."""
    if not is_tensor(value):
        return fill_number(value, dtype, op)
    kind = value._layout.dtype
    narrower = dtype.category == 1 and dt.promote(kind, dtype) is not dtype or kind.is_complex and dtype.category == 2
    return fill_number(value, dtype, op) if narrower and value._layout.device is not META else value


def within(value: Any, dtype: dt.DType) -> Any:
    """A number that an index or `where` writes. What is too large for a 16-bit float is infinite there, as in PyTorch; `masked_fill` refuses it."""
    if dtype.category == 2 and dtype.itemsize == 2 and isinstance(value, (int, float)) and not -_SAFE <= value <= _SAFE and value == value:
        return float(np.array(value, np.float64).astype(dtype.np))
    return value


_SAFE = 60_000  # every floating type holds it


def _no_overflow(op: str, value: Any, dtype: dt.DType) -> None:
    """Raise where a finite number is beyond the largest of a floating type."""
    largest = _largest(dtype)
    for part in (value.real, value.imag) if isinstance(value, complex) else (value,):
        if abs(part) > largest and part not in (float("inf"), -float("inf")):
            raise ArgumentError(f"[{op}] value cannot be converted to {dtype} without overflow: {part} is beyond {largest:g}; use float('inf')")


@functools.cache
def _largest(dtype: dt.DType) -> float:
    return dt.FInfo(dtype.to_real()).max


def fill_number(value: Any, dtype: dt.DType, op: str) -> Any:
    """A Python number that `dtype` can hold; a 0-d tensor is read. A negative integer counts from the end of an unsigned type."""
    value = read_number(op, value)
    if isinstance(value, complex) and not dtype.is_complex:
        if dtype.category == 0:
            return bool(value)
        if value.imag:
            raise ArgumentError(f"[{op}] value cannot be converted to type {dtype} without overflow: {value} has an imaginary part")
        value = value.real
    if isinstance(value, SymInt):
        size: Any = value
        return size * 1.0 if dtype.category >= 2 else size
    if dtype.category >= 2:
        if value.__class__ is LiveFloat:
            return value
        _no_overflow(op, value, dtype)
        return value if isinstance(value, complex) else float(value)
    if dtype.category == 0:
        return bool(value)
    if isinstance(value, float) and value != value or value in (float("inf"), float("-inf")):
        raise ArgumentError(f"[{op}] value cannot be converted to {dtype} without overflow: {value}")
    whole = int(value)
    info = np.iinfo(dtype.np)
    low = int(info.min) if dtype.is_signed or isinstance(value, float) else -int(info.max)
    if not low <= value <= info.max:
        raise ArgumentError(f"[{op}] value cannot be converted to {dtype} without overflow: {value} is outside {info.min}..{info.max}")
    return whole if dtype.is_signed else whole % (1 << dtype.bits)


def factor(op: str, alpha: Any, common: dt.DType) -> Any:
    """`alpha` as it may be for operands of a type: a tensor is read where its value, or its type, could be refused."""
    if is_tensor(alpha) and (common.category < 2 or alpha._layout.dtype.category in (0, 3) or alpha._layout.ndim):
        alpha = read_number(op, alpha)
    if common.category < 2 and isinstance(alpha, float):
        raise DTypeError(f"[{op}] For integral input tensors, argument alpha must not be a floating point number, got {alpha}")
    if isinstance(alpha, complex) and not common.is_complex:
        raise DTypeError(f"[{op}] For non-complex input tensors, argument alpha must not be a complex number, got {alpha}")
    if isinstance(alpha, bool) and common.category:
        raise DTypeError(f"[{op}] Boolean alpha only supported for Boolean results, got {common!r}")
    return fill_number(alpha, common, op) if common.category < 2 else alpha


def filled(shape: Shape, value: Any, dtype: dt.DType, op: str) -> Tensor:
    """A tensor of one value: a Python number or a 0-d tensor."""
    value = held(op, value, dtype)
    if is_tensor(value):
        return prim("full", prim("cast", value.detach(), dtype), shape)
    if isinstance(value, complex):
        return prim("full", complex_number(value, dtype), shape)
    return prim("full", (value, dtype), shape)


def dtype_for(out: Any, dtype: Any) -> Any:
    """The dtype in which numbers for `out` are made, if no other one is said."""
    return out._layout.dtype if dtype is None and is_tensor(out) else dtype


def written(op: str, result: Tensor, out: Any) -> Tensor:
    """`result` in the tensor that was given for it, which takes its shape."""
    if not is_tensor(out):
        raise DTypeError(f"[{op}] expected out as a Tensor, got {type_name(out)}; leave it out to get a new one")
    if result._requires_grad:
        raise no_history(op)
    with plainly():
        write_result(op, out, result)
    return out  # type: ignore[no-any-return]
