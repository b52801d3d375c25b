"""What the functions of the standard share: arrays and numbers brought to one type, axes, devices."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from calque.base import dtypes as dt
from calque.base.dtypes import DType
from calque.base.errors import ArgumentError, DTypeError
from calque.base.text import type_name
from calque.functional.common import is_tensor
from calque.functional.creation import tensor
from calque.functional.options import resolve_device
from calque.tensor import Tensor

Axis = int | tuple[int, ...] | None


def common(op: str, *values: Any) -> DType:
    """The type that arrays, dtypes and Python numbers have together: a number takes that of the arrays unless it is of a higher kind."""
    kinds = [v._layout.dtype if is_tensor(v) else v for v in values if is_tensor(v) or isinstance(v, DType)]
    numbers = [v for v in values if not is_tensor(v) and not isinstance(v, DType)]
    for v in numbers:
        if not isinstance(v, (bool, int, float, complex)):
            raise TypeError(f"[{op}] expected arrays or numbers, got {type_name(v)}; use asarray")
    if not kinds:
        raise TypeError(f"[{op}] expected at least one array, got numbers alone; use asarray")
    return functools.reduce(dt.promote_scalar, numbers, functools.reduce(dt.promote, kinds))


def together(op: str, *values: Any) -> list[Tensor]:
    """Arrays of one type."""
    dtype = common(op, *values)
    return [v.to(dtype) if is_tensor(v) else tensor(v, dtype=dtype) for v in values]


def require(op: str, x: Any) -> Tensor:
    """The argument, which must be an array."""
    if not is_tensor(x):
        raise TypeError(f"[{op}] expected an array, got {type_name(x)}; use asarray")
    return x  # type: ignore[no-any-return]


def dims(op: str, x: Tensor, axis: Axis) -> list[int]:
    """Axes as numbers from 0, all of them for None; each once and inside."""
    if axis is None:
        return list(range(x.ndim))
    found = []
    for a in axis if isinstance(axis, Sequence) else (axis,):
        found.append(one_axis(op, a, x.ndim))
    if len(set(found)) != len(found):
        raise ArgumentError(f"[{op}] expected different axes, got {axis}")
    return found


def one_axis(op: str, axis: int, ndim: int) -> int:
    """One axis as a number from 0. Raises IndexError, which the standard wants, if there is none."""
    if not isinstance(axis, int) or isinstance(axis, bool):
        raise TypeError(f"[{op}] expected axis as an int, got {type_name(axis)}")
    if not -ndim <= axis < ndim:
        raise IndexError(f"[{op}] expected axis in {-ndim}..{ndim - 1}, got {axis}")
    return axis % ndim


def on(device: Any, op: str) -> Any:
    """A device argument; None is the default one."""
    return None if device is None else resolve_device(device, op)


def checked(op: str, dtype: Any) -> DType | None:
    """A dtype argument."""
    if dtype is not None and not isinstance(dtype, DType):
        raise DTypeError(f"[{op}] expected a dtype of the namespace, got {type_name(dtype)}; use one such as float32")
    return dtype
