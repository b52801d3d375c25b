"""Sums, means and the like, over one axis, several or all."""

from __future__ import annotations

from typing import Any

import calque
from calque.array_api.helpers import Axis, checked, dims, one_axis, require, together
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, DTypeError
from calque.tensor import Tensor

__all__ = ["all", "any", "cumulative_prod", "cumulative_sum", "diff", "max", "mean", "min", "prod", "std", "sum", "var"]


def _summed(op: str, x: Tensor, dtype: Any) -> Any:
    """The array in the type of its sum or product: integers and bool become int64 unless one is given."""
    own = require(op, x)._layout.dtype
    return calque.Tensor.to(x, checked(op, dtype) or (dt.int64 if own.category < 2 else own))  # type: ignore[attr-defined]


def sum(x: Tensor, /, *, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
    """The sum along axes."""
    source = _summed("sum", x, dtype)
    axes = dims("sum", x, axis)
    return calque.sum(source, axes, keepdims) if axes else source.clone()


def prod(x: Tensor, /, *, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
    """The product along axes."""
    result = _summed("prod", x, dtype)
    axes = sorted(dims("prod", x, axis), reverse=True)
    for d in axes:
        result = calque.prod(result, d, keepdims)
    return result if axes else result.clone()


def _extreme(name: str) -> Any:
    function = getattr(calque, f"a{name}")

    def apply(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
        axes = dims(name, require(name, x), axis)
        if 0 in [x.shape[d] for d in axes]:
            raise ArgumentError(f"[{name}] expected at least one element along the axes, got shape {tuple(x.shape)}")
        return function(x, axes, keepdims) if axes else x.clone()  # type: ignore[attr-defined, no-any-return]

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"`calque.a{name}` along axes; NaN wins."
    return apply


max, min = _extreme("max"), _extreme("min")


def mean(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The mean along axes of a floating array."""
    axes = dims("mean", _floating("mean", x), axis)
    return calque.mean(x, axes, keepdims) if axes else x.clone()  # type: ignore[attr-defined, no-any-return]


def _floating(op: str, x: Tensor) -> Tensor:
    if require(op, x)._layout.dtype.category < 2:
        raise DTypeError(f"[{op}] expected a floating dtype, got {x._layout.dtype!r}; use astype")
    return x


def var(x: Tensor, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """The variance along axes: the sum of squares of differences from the mean, divided by the number of elements less `correction`."""
    axes = dims("var", _floating("var", x), axis)
    return calque.var(x, axes, correction=correction, keepdim=keepdims) if axes else calque.zeros_like(x)


def std(x: Tensor, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """The root of the variance along axes."""
    return calque.sqrt(var(x, axis=axis, correction=correction, keepdims=keepdims))


def all(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Whether all elements along axes are not 0."""
    axes = dims("all", require("all", x), axis)
    return calque.all(x != 0, axes, keepdims) if axes else x != 0


def any(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Whether any element along axes is not 0."""
    axes = dims("any", require("any", x), axis)
    return calque.any(x != 0, axes, keepdims) if axes else x != 0


def _running(name: str, function: Any, neutral: int) -> Any:
    def apply(x: Tensor, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Tensor:
        if axis is None:
            if require(name, x).ndim != 1:
                raise ArgumentError(f"[{name}] expected an axis for an array of {x.ndim} dims; give axis=")
            axis = 0
        d = one_axis(name, axis, x.ndim)
        result = function(_summed(name, x, dtype), d)
        if include_initial:
            shape = [1 if n == d else extent for n, extent in enumerate(x.shape)]
            result = calque.cat([calque.full(shape, neutral, dtype=result.dtype), result], d)
        return result  # type: ignore[no-any-return]

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"`calque.{function.__name__}` along an axis; `include_initial` puts {neutral} before it."
    return apply


cumulative_sum, cumulative_prod = _running("cumulative_sum", calque.cumsum, 0), _running("cumulative_prod", calque.cumprod, 1)


def diff(x: Tensor, /, *, axis: int = -1, n: int = 1, prepend: Tensor | None = None, append: Tensor | None = None) -> Tensor:
    """Differences of neighbours along an axis, n times."""
    given = [part for part in (prepend, require("diff", x), append) if part is not None]
    parts = together("diff", *given)
    d = one_axis("diff", axis, x.ndim)
    return calque.diff(calque.cat(parts, d) if len(parts) > 1 else parts[0], n, d)
