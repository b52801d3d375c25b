"""Elementwise functions of the standard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import calque
from calque.array_api.helpers import common, require, together
from calque.base import dtypes as dt
from calque.base.errors import DTypeError
from calque.functional.common import is_tensor
from calque.tensor import Tensor

# Name in the standard -> Calque's function of one array, which does what the standard says.
_UNARY: dict[str, Any] = {
    name: getattr(calque, name)
    for name in (
        "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp", "expm1", "imag", "isfinite", "isinf", "isnan", "log", "log10",
        "log1p", "log2", "logical_not", "negative", "real", "sin", "sinh", "sqrt", "square", "tan", "tanh", "signbit",
    )
}  # fmt: skip
_UNARY |= {"bitwise_invert": calque.bitwise_not, "conj": calque.conj}
_BINARY: dict[str, Any] = {
    "add": calque.add, "atan2": calque.atan2, "bitwise_and": calque.bitwise_and, "bitwise_left_shift": calque.bitwise_left_shift,
    "bitwise_or": calque.bitwise_or, "bitwise_right_shift": calque.bitwise_right_shift, "bitwise_xor": calque.bitwise_xor,
    "copysign": calque.copysign, "divide": calque.div, "equal": calque.eq, "floor_divide": calque.floor_divide, "greater": calque.gt,
    "greater_equal": calque.ge, "hypot": calque.hypot, "less": calque.lt, "less_equal": calque.le, "logaddexp": calque.logaddexp,
    "logical_and": calque.logical_and, "logical_or": calque.logical_or, "logical_xor": calque.logical_xor, "maximum": calque.maximum,
    "minimum": calque.minimum, "multiply": calque.mul, "not_equal": calque.ne, "pow": calque.pow, "remainder": calque.remainder,
    "subtract": calque.sub,
}  # fmt: skip


def _unary(name: str, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def apply(x: Tensor, /) -> Tensor:
        return function(require(name, x))  # type: ignore[no-any-return]

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"`calque.{function.__name__}` of an array."
    return apply


def _binary(name: str, function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def apply(x1: Any, x2: Any, /) -> Tensor:
        return function(*together(name, x1, x2))  # type: ignore[no-any-return]

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"`calque.{function.__name__}` of two arrays, or of an array and a number, of their common type."
    return apply


globals().update({name: _unary(name, function) for name, function in _UNARY.items()})
globals().update({name: _binary(name, function) for name, function in _BINARY.items()})


def _rounding(name: str) -> Any:
    function = getattr(calque, name)

    def apply(x: Tensor, /) -> Tensor:
        if require(name, x)._layout.dtype.is_complex and name == "round":
            return calque.complex(function(x.real), function(x.imag))  # type: ignore[attr-defined, no-any-return]
        return x.clone() if x._layout.dtype.category == 1 else function(x)  # type: ignore[attr-defined, no-any-return]

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"`calque.{name}`; integers are whole already."
    return apply


ceil, floor, round, trunc = _rounding("ceil"), _rounding("floor"), _rounding("round"), _rounding("trunc")


def clip(x: Tensor, /, min: Any = None, max: Any = None) -> Tensor:
    """x, but at least min and at most max, which are numbers or arrays that broadcast with it; the type is that of x."""
    result = require("clip", x)
    for bound, function in ((min, calque.maximum), (max, calque.minimum)):
        if bound is not None:
            limit = bound.to(x.dtype) if is_tensor(bound) else calque.tensor(bound, dtype=x._layout.dtype)
            result = function(result, limit)
    return x.clone() if result is x else result  # type: ignore[attr-defined, no-any-return]


def positive(x: Tensor, /) -> Tensor:
    """+x."""
    return require("positive", x).clone()  # type: ignore[attr-defined, no-any-return]


def reciprocal(x: Tensor, /) -> Tensor:
    """1 / x of a floating array."""
    if require("reciprocal", x)._layout.dtype.category < 2:
        raise DTypeError(f"[reciprocal] expected a floating dtype, got {x._layout.dtype!r}; use astype")
    return calque.reciprocal(x)


def sign(x: Tensor, /) -> Tensor:
    """-1, 0 or 1, NaN for NaN; x / |x| of complex numbers."""
    if require("sign", x)._layout.dtype.is_complex:
        return calque.sgn(x)
    return calque.where(calque.isnan(x), x, calque.sign(x)) if x._layout.dtype.category == 2 else calque.sign(x)


def nextafter(x1: Any, x2: Any, /) -> Tensor:
    """The number next to x1 in the direction of x2."""
    dtype = common("nextafter", x1, x2)
    if dtype not in (dt.float32, dt.float64):
        raise DTypeError(f"[nextafter] expected float32 or float64, got {dtype!r}; use astype")
    a, b = calque.broadcast_tensors(*together("nextafter", x1, x2))
    whole = dt.int32 if dtype is dt.float32 else dt.int64
    bits = a.contiguous().view(whole)
    away = (b > a) == (a > 0)  # larger in size: the next bit pattern of a number with a sign is that of the next size
    smallest = calque.copysign(calque.full_like(a, float(calque.finfo(dtype).tiny * calque.finfo(dtype).eps)), b)
    moved = calque.where(a == 0, smallest, (bits + calque.where(away, 1, -1).to(whole)).contiguous().view(dtype))
    return calque.where(calque.isnan(a) | calque.isnan(b), a + b, calque.where(a == b, b, moved))


__all__ = [*_UNARY, *_BINARY, "ceil", "clip", "floor", "nextafter", "positive", "reciprocal", "round", "sign", "trunc"]
