"""Windows for spectra with the names of the `torch` namespace; `calque.signal.windows` has more of them.

A window is one period of a symmetric one with an element more (`periodic`), or symmetric itself. Of no element it is empty, of one it is 1. Values
are computed in float64 and rounded to `dtype`. Source: F. Harris, "On the use of windows for harmonic analysis" (1978).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, DTypeError
from calque.base.text import type_name
from calque.functional.common import cast, is_tensor, prim
from calque.functional.options import marked, resolve_dtype
from calque.functional.placing import placed
from calque.ir.symint import any_free
from calque.tensor import Tensor, upload_known

Array = np.ndarray[Any, Any]


def _window(op: str, length: Any, periodic: bool, dtype: Any, requires_grad: bool, values: Callable[[Any], Any]) -> Tensor:
    """`values` at the places 0 ... 1 of a symmetric window."""
    if not isinstance(length, int) or isinstance(length, bool):
        raise TypeError(f"[{op}] expected window_length as an int, got {type_name(length)}: argument 'window_length' must be int")
    if length < 0:
        raise ArgumentError(f"[{op}] {op} requires non-negative window_length, got window_length={length}")
    kind = resolve_dtype(dtype, dt.get_default_dtype(), op)
    if kind.category != 2:
        raise DTypeError(f"[{op}] {op} expects floating point dtypes, got: {kind!r}; convert the window with .to(dtype)")
    last = length if periodic else length - 1
    if any_free(length) and op != "kaiser_window":
        found = values(prim("iota", (length,), dt.float64) / last) if length >= 2 else prim("full", (1.0, kind), (length,))  # type: ignore[operator]
        return marked(cast(found, kind), requires_grad, op)
    found = np.ones(length) if length < 2 else values(np.arange(length) / last)
    return marked(upload_known(found.astype(kind.np), kind, length), requires_grad, op)


def _cosines(place: Any, *weights: float) -> Any:
    """Of places in an array, or in a tensor."""
    cosine = (lambda x: prim("cos", x)) if is_tensor(place) else np.cos
    total: Any = sum((-1) ** k * w * cosine(2 * math.pi * k * place) for k, w in enumerate(weights))
    return total if is_tensor(place) else np.asarray(total)


@placed
def hann_window(
    window_length: int, periodic: bool = True, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """0.5 (1 - cos(2 pi n / N)): () -> (window_length).

    >>> import calque
    >>> calque.hann_window(4)
    tensor([0.0000, 0.5000, 1.0000, 0.5000])
    """
    return _window("hann_window", window_length, periodic, dtype, requires_grad, lambda t: _cosines(t, 0.5, 0.5))


@placed
def hamming_window(
    window_length: int, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46, *, dtype: Any = None, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """alpha - beta cos(2 pi n / N): () -> (window_length)."""
    return _window("hamming_window", window_length, periodic, dtype, requires_grad, lambda t: _cosines(t, alpha, beta))


@placed
def blackman_window(
    window_length: int, periodic: bool = True, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """0.42 - 0.5 cos(2 pi n / N) + 0.08 cos(4 pi n / N): () -> (window_length)."""
    return _window("blackman_window", window_length, periodic, dtype, requires_grad, lambda t: _cosines(t, 0.42, 0.5, 0.08))


@placed
def bartlett_window(
    window_length: int, periodic: bool = True, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A triangle, 1 - |2 n / N - 1|: () -> (window_length)."""
    return _window("bartlett_window", window_length, periodic, dtype, requires_grad, lambda t: 1 - abs(2 * t - 1))


@placed
def kaiser_window(
    window_length: int, periodic: bool = True, beta: float = 12.0, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """I0(beta sqrt(1 - (2 n / N - 1)^2)) / I0(beta), I0 the modified Bessel function: () -> (window_length)."""

    def values(t: Array) -> Array:
        inside = np.sqrt(np.maximum(1 - (2 * t - 1) ** 2, 0.0))
        return np.asarray(np.i0(beta * inside) / np.i0(beta))

    return _window("kaiser_window", window_length, periodic, dtype, requires_grad, values)
