"""Window functions with the names of `torch.signal.windows`.

A window of M points is symmetric (`sym`, for filters) or one period of a window of M + 1 points (for spectra). No point gives an empty tensor, one
point 1. Computed in float64 and rounded to `dtype`. Source: F. Harris, "On the use of windows for harmonic analysis" (1978).
"""

import math
from collections.abc import Callable, Iterable
from operator import index
from typing import Any

import numpy as np

from calque.base import dtypes as dt
from calque.base.errors import ArgumentError
from calque.base.text import shown
from calque.functional.blame import framed
from calque.functional.options import marked, resolve_dtype
from calque.functional.placing import placed
from calque.tensor import Tensor, upload_known

__all__ = [
    "bartlett", "blackman", "cosine", "exponential", "gaussian", "general_cosine", "general_hamming", "hamming", "hann", "kaiser", "nuttall",
]  # fmt: skip

Array = np.ndarray[Any, Any]


def _window(op: str, M: int, sym: bool, dtype: Any, requires_grad: bool, values: Callable[[Array, float], Array]) -> Tensor:
    """`values(k, last)` at the positions k = 0 .. M - 1 of a symmetric window that ends at `last`."""
    kind, M = resolve_dtype(dtype, dt.get_default_dtype(), op), index(M)
    if kind not in (dt.float32, dt.float64):
        raise ArgumentError(f"[{op}] {op} expects float32 or float64 dtypes, got: {kind!r}; convert the window with .to(dtype)")
    if M < 0:
        raise ArgumentError(f"[{op}] {op} requires non-negative window length, expected M >= 0, got M={M}")
    if M < 2:
        found: Array = np.ones(M)
    else:
        found = values(np.arange(M, dtype=np.float64), float(M - 1 if sym else M))
    return marked(upload_known(found.astype(kind.np), kind, M), requires_grad, op)


def _cosines(k: Array, last: float, a: list[float]) -> Array:
    return np.asarray(sum((-1) ** i * w * np.cos(2 * math.pi * i * k / last) for i, w in enumerate(a)))


@placed
def general_cosine(M: int, *, a: Iterable[float], sym: bool = True, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Sum of cosines of 0, 1, 2, ... periods with weights `a` and alternating signs: () -> (M)."""
    if not isinstance(a, Iterable):
        raise TypeError(f"[general_cosine] Coefficients must be a list/tuple, expected numbers, got {shown(a)}")
    weights = [float(w) for w in a]
    if not weights:
        raise ArgumentError("[general_cosine] Coefficients cannot be empty: expected at least one number in `a`, got none")
    return _window("general_cosine", M, sym, dtype, requires_grad, lambda k, last: _cosines(k, last, weights))


@placed
def general_hamming(
    M: int, *, alpha: float = 0.54, sym: bool = True, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """`alpha - (1 - alpha) cos(2 pi k / last)`: () -> (M)."""
    return _window("general_hamming", M, sym, dtype, requires_grad, lambda k, last: _cosines(k, last, [alpha, 1.0 - alpha]))


@placed
def hamming(M: int, *, sym: bool = True, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Hamming window `0.54 - 0.46 cos(2 pi k / last)`: () -> (M)."""
    return _window("hamming", M, sym, dtype, requires_grad, lambda k, last: _cosines(k, last, [0.54, 0.46]))


@placed
def hann(M: int, *, sym: bool = True, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Hann window `0.5 - 0.5 cos(2 pi k / last)`: () -> (M)."""
    return _window("hann", M, sym, dtype, requires_grad, lambda k, last: _cosines(k, last, [0.5, 0.5]))


@placed
def blackman(M: int, *, sym: bool = True, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Blackman window, three cosine terms: () -> (M)."""
    return _window("blackman", M, sym, dtype, requires_grad, lambda k, last: _cosines(k, last, [0.42, 0.5, 0.08]))


@placed
def nuttall(M: int, *, sym: bool = True, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Minimum 4-term Blackman-Harris window by Nuttall: () -> (M)."""
    return _window("nuttall", M, sym, dtype, requires_grad, lambda k, last: _cosines(k, last, [0.3635819, 0.4891775, 0.1365995, 0.0106411]))


@placed
def bartlett(M: int, *, sym: bool = True, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Triangle from 0 to 1 to 0: () -> (M)."""
    return _window("bartlett", M, sym, dtype, requires_grad, lambda k, last: 1.0 - np.abs(2.0 * k / last - 1.0))


@placed
def cosine(M: int, *, sym: bool = True, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Half a period of a sine, `sin(pi (k + 1/2) / (last + 1))`: () -> (M)."""
    return _window("cosine", M, sym, dtype, requires_grad, lambda k, last: np.sin(math.pi * (k + 0.5) / (last + 1.0)))


@placed
def exponential(
    M: int,
    *,
    center: float | None = None,
    tau: float = 1.0,
    sym: bool = True,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """`exp(-|k - center| / tau)` around the middle (or around `center`, where the window is not symmetric): () -> (M)."""
    if tau <= 0:
        raise ArgumentError(f"[exponential] Tau must be positive, expected tau > 0, got: {tau} instead.")
    if sym and center is not None:
        raise ArgumentError(f"[exponential] Center must be None for symmetric windows: expected none, got {center}; pass sym=False")
    return _window(
        "exponential", M, sym, dtype, requires_grad, lambda k, last: np.exp(-np.abs(k - (last / 2 if center is None else center)) / tau)
    )


@placed
def gaussian(M: int, *, std: float = 1.0, sym: bool = True, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """`exp(-(k - middle)**2 / (2 std**2))`: () -> (M)."""
    if std <= 0:
        raise ArgumentError(f"[gaussian] Standard deviation must be positive, expected std > 0, got: {std} instead.")
    return _window("gaussian", M, sym, dtype, requires_grad, lambda k, last: np.exp(-0.5 * ((k - last / 2) / std) ** 2))


@placed
def kaiser(M: int, *, beta: float = 12.0, sym: bool = True, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """`I0(beta sqrt(1 - (2 k / last - 1)**2)) / I0(beta)`: () -> (M)."""
    if beta < 0:
        raise ArgumentError(f"[kaiser] beta must be non-negative, expected beta >= 0, got: {beta} instead.")
    inside = lambda k, last: np.sqrt(np.clip(1.0 - (2.0 * k / last - 1.0) ** 2, 0.0, None))  # noqa: E731
    return _window("kaiser", M, sym, dtype, requires_grad, lambda k, last: np.i0(beta * inside(k, last)) / np.i0(beta))


globals().update(framed({name: globals()[name] for name in __all__}, __name__))
