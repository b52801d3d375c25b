"""Covariance and correlation, greatest common divisors."""

from __future__ import annotations

from typing import Any

import numpy as np

from calque.base.device import META
from calque.base.errors import ArgumentError, DTypeError, ShapeError, UnsupportedTypeError
from calque.base.shapes import broadcast_shapes
from calque.base.text import shown
from calque.functional.arithmetic import as_operand
from calque.functional.common import cast, is_tensor, number, prim, require_numbers, require_tensors, result_dtype
from calque.functional.complex import conj, imag, real
from calque.functional.declared import public
from calque.functional.elementary import _float
from calque.functional.linalg import matmul, matrix_transpose
from calque.functional.math import clamp, isnan, where
from calque.functional.placing import beside_input, host_values
from calque.functional.reductions import sum
from calque.functional.views import reshape, unsqueeze
from calque.tensor import Tensor, read


@public(steps=True)
def cov(input: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None) -> Tensor:
    """Covariance of variables (rows) over observations (columns): (n, k) -> (n, n); (k) and (1, k) -> (). Weights: how often, how much each
    counts.

    >>> import calque
    >>> calque.cov(calque.tensor([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]]))
    tensor([[ 1., -1.],
            [-1.,  1.]])
    """
    if input._layout.ndim > 2:
        raise ShapeError(f"[cov] expected input to have two or fewer dimensions, got shape {tuple(input._layout.shape)}")
    require_numbers("cov", input)
    x = _float(input)
    if aweights is not None:
        x = cast(x, result_dtype(x, aweights))
    rows = x if x._layout.ndim == 2 else reshape(x, (1, x._layout.numel))
    weights = _weights(fweights, aweights, rows)
    count: Any = rows._layout.shape[1] * 1.0 if weights is None else sum(weights)
    centre = sum(rows if weights is None else rows * weights, 1, True) / count
    apart = rows - centre
    if aweights is not None and weights is not None:
        extra = cast(aweights, x._layout.dtype.to_real())
        freedom: Any = count - sum(weights * extra) / count * float(correction)
    else:
        freedom = count - float(correction)
    freedom = freedom.clamp(min=0) if is_tensor(freedom) else max(freedom, 0.0)
    product = matmul(apart if weights is None else apart * weights, conj(matrix_transpose(apart))) / freedom
    return product if rows._layout.shape[0] != 1 else reshape(product, ())


def _weights(frequencies: Tensor | None, importance: Tensor | None, rows: Tensor) -> Tensor | None:
    weights = None
    for name, given in (("fweights", frequencies), ("aweights", importance)):
        if given is None:
            continue
        if given._layout.ndim != 1 or given._layout.numel != rows._layout.shape[1]:
            raise ShapeError(f"[cov] expected {name} of shape ({rows._layout.shape[1]},), got {tuple(given._layout.shape)}")
        if name == "fweights" and given._layout.dtype.category == 2:
            raise DTypeError(f"[cov] expected fweights to have integral dtype, got {given._layout.dtype!r}")
        if given._layout.device is not META and bool((read(given, "cov") < 0).any()):
            raise ArgumentError(f"[cov] {name} cannot be negative: expected weights >= 0, got one below")
        converted = cast(given, rows._layout.dtype.to_real())
        weights = converted if weights is None else weights * converted
    return weights


@public(steps=True)
def corrcoef(input: Tensor) -> Tensor:
    """Correlation of variables (rows) over observations (columns), in [-1, 1]: (n, k) -> (n, n); (k) -> ()."""
    c = cov(input)
    if not c._layout.ndim:
        return c / c
    deviation = prim("sqrt", c.diagonal())
    result = c / unsqueeze(deviation, 1) / unsqueeze(deviation, 0)
    if result._layout.dtype.is_complex:
        return prim("complex", clamp(real(result), -1, 1), clamp(imag(result), -1, 1))
    return where(isnan(result), result, clamp(result, -1, 1))


@beside_input
def _integers(name: str, a: Any, b: Any, function: Any) -> Tensor:
    a, b = as_operand(a), as_operand(b)
    require_tensors(name, a, b)
    dtype = result_dtype(a, b)
    if dtype.category != 1:
        raise UnsupportedTypeError(f"[{name}] expected integers, got a result of type {shown(dtype)}")
    shape = broadcast_shapes(*[tuple(x._layout.shape) if is_tensor(x) else () for x in (a, b)], op=name)

    def found() -> np.ndarray[Any, Any]:
        arrays = [read(x, name) if is_tensor(x) else np.asarray(number(x)) for x in (a, b)]
        return np.asarray(function(*[x.astype(dtype.np) for x in arrays]))

    return host_values(shape, dtype, found)


@public(in_place="both", out=True)
def gcd(input: Tensor, other: Tensor) -> Tensor:
    """Greatest common divisor of integers, broadcast: (*), (*) -> (*). Reads the values."""
    return _integers("gcd", input, other, np.gcd)


@public(in_place="both", out=True)
def lcm(input: Tensor, other: Tensor) -> Tensor:
    """Least common multiple of integers, broadcast: (*), (*) -> (*). Reads the values."""
    return _integers("lcm", input, other, np.lcm)
