"""The family of the gamma function beyond `lgamma` and `digamma`: incomplete gamma functions, zeta, polygamma.

Sums that end where their terms vanish (incomplete gamma functions, zeta) are evaluated in NumPy, in float64: a sync point. Sources: Abramowitz and
Stegun 6.5.29 and 6.5.31 (incomplete gamma function), 23.2.5 and the Euler-Maclaurin formula (zeta).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from calque.autograd.host import on_host
from calque.base import dtypes as dt
from calque.base.device import META
from calque.base.errors import ArgumentError
from calque.base.layout import dense_layout
from calque.base.shapes import broadcast_shapes, whole
from calque.functional.common import Operand, method, prim, require_tensors
from calque.functional.declared import public
from calque.functional.elementary import _float, digamma, exp, lgamma, log
from calque.functional.math import _both_float, where, with_formula
from calque.functional.placing import beside_input, host_values
from calque.functional.reductions import sum as total
from calque.functional.views import sum_to_shape, unsqueeze
from calque.functional.writing import in_place_form
from calque.tensor import Tensor, constant, upload

Array = np.ndarray[Any, Any]
_lgamma = np.vectorize(math.lgamma, otypes=[np.float64])
TINY = 1e-300
SETTLED = 1e-15  # a factor this near to 1 changes nothing any more; nearer than its rounding error none comes


def _evaluated(name: str, a: Tensor, x: Tensor, function: Callable[[Array, Array], Array]) -> Tensor:
    """A NumPy function of two operands in float64."""
    shape = broadcast_shapes(tuple(a._layout.shape), tuple(x._layout.shape), op=name)
    kind = a._layout.dtype
    if META in (a._layout.device, x._layout.device):
        return constant(0, dense_layout(shape, kind, META))

    def found(p: Array, q: Array) -> Array:
        first, second = np.broadcast_arrays(p.astype(np.float64), q.astype(np.float64))
        with np.errstate(all="ignore"):
            return function(first.ravel(), second.ravel()).reshape(shape).astype(kind.np)

    return upload(on_host(name, found, (a, x), [shape])[0], kind)


# ------------------------------------------------------------------------------------------------------ incomplete gamma functions


def _series(a: Array, x: Array) -> Array:
    """Sum of x**k / ((a + 1) ... (a + k)): the lower function without its first factor."""
    term = np.ones_like(a)
    found, k = np.ones_like(a), a.copy()
    while True:
        k += 1.0
        term *= x / k
        found += term
        if not (term > found * 1e-17).any():
            return found


def _fraction(a: Array, x: Array) -> Array:
    """Lentz's method for the continued fraction of the upper function without its first factor."""
    b = x + 1.0 - a
    c, d = np.full_like(a, 1 / TINY), 1.0 / np.where(b == 0, TINY, b)
    found = d.copy()
    for k in range(1, 100_000):
        step = -k * (k - a)
        b = b + 2.0
        d = step * d + b
        d = 1.0 / np.where(np.abs(d) < TINY, TINY, d)
        c = b + step / c
        c = np.where(np.abs(c) < TINY, TINY, c)
        found *= d * c
        if not (np.abs(d * c - 1.0) > SETTLED).any():
            break
    return found


def _incomplete(a: Array, x: Array, upper: bool) -> Array:
    """P(a, x), or Q(a, x) = 1 - P(a, x)."""
    out = np.full(a.shape, np.nan)
    right = (a >= 0) & (x >= 0) & ~((a == 0) & (x == 0)) & ~((a == np.inf) & (x == np.inf))
    out[right & ((a == 0) | (x == np.inf))] = 0.0 if upper else 1.0
    out[right & (a > 0) & ((x == 0) | (a == np.inf)) & (x < np.inf)] = 1.0 if upper else 0.0
    left = right & (a > 0) & (a < np.inf) & (x > 0) & (x < np.inf)
    factor = np.zeros_like(out)
    factor[left] = np.exp(a[left] * np.log(x[left]) - x[left] - _lgamma(a[left]))
    by_series = left & (x < a + 1.0)
    by_fraction = left & ~by_series
    if by_series.any():
        lower = factor[by_series] * _series(a[by_series], x[by_series]) / a[by_series]
        out[by_series] = 1.0 - lower if upper else lower
    if by_fraction.any():
        rest = factor[by_fraction] * _fraction(a[by_fraction], x[by_fraction])
        out[by_fraction] = rest if upper else 1.0 - rest
    return out


@beside_input
def _gamma_part(name: str, input: Operand, other: Operand, upper: bool) -> Tensor:
    a, x = _both_float(name, input, other, promote=False)

    def backward(g: Tensor) -> tuple[Tensor | None, Tensor]:
        slope = exp(log(where(x == 0, 1.0, x)) * (a - 1.0) - x - lgamma(a))
        slope = where(x == 0, where(a == 1, 1.0, where(a < 1, math.inf, 0.0)), slope)
        if a._requires_grad:
            raise NotImplementedError(f"[{name}] the derivative with respect to 'input' is not implemented: expected only 'other' to require a "
                                      "gradient; detach() the first operand")  # fmt: skip
        return None, sum_to_shape(g * (-slope if upper else slope), tuple(x._layout.shape))

    label = "IgammacBackward0" if upper else "IgammaBackward0"
    return with_formula(label, (a, x), lambda: _evaluated(name, a, x, lambda p, q: _incomplete(p, q, upper)), backward)


@public("special.gammainc", in_place="method", out=True)
def igamma(input: Tensor, other: Tensor) -> Tensor:
    """Regularised lower incomplete gamma function P(input, other) of non-negative numbers, broadcast: (*), (*) -> (*). Reads the values; there is no
    gradient for `input`.

    >>> import calque
    >>> calque.igamma(calque.tensor([4.0]), calque.tensor([3.0]))
    tensor([0.3528])
    """
    require_tensors("igamma", input, other)
    return _gamma_part("igamma", input, other, False)


@public("special.gammaincc", in_place="method", out=True)
def igammac(input: Tensor, other: Tensor) -> Tensor:
    """Regularised upper incomplete gamma function Q = 1 - P(input, other), broadcast: (*), (*) -> (*). Reads the values; there is no gradient for
    `input`.

    >>> import calque
    >>> calque.igammac(calque.tensor([4.0]), calque.tensor([3.0]))
    tensor([0.6472])
    """
    require_tensors("igammac", input, other)
    return _gamma_part("igammac", input, other, True)


# ------------------------------------------------------------------------------------------------------------- zeta and polygamma

_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798, -174611 / 330)  # B_2, B_4, ...
FROM = 12.0  # from here on by the Euler-Maclaurin formula


def _zeta(s: Array, q: Array) -> Array:
    """sum over k >= 0 of (q + k)**-s."""
    out = np.full(s.shape, np.nan)
    whole = np.floor(q) == q
    out[(s == 1) | ((s > 1) & (q <= 0) & whole)] = np.inf
    left = (s > 1) & ~((q <= 0) & (whole | (np.floor(s) != s))) & (q == q) & (q > -1e6)
    if left.any():
        p, place = s[left], q[left].copy()
        found = np.zeros_like(place)
        while (low := place < FROM).any():
            found[low] += place[low] ** -p[low]
            place[low] += 1.0
        found += place ** (1.0 - p) / (p - 1.0) + 0.5 * place**-p
        factor = p * place ** (-p - 1.0)
        for k, b in enumerate(_BERNOULLI, 1):
            found += b / math.factorial(2 * k) * factor
            factor = factor * (p + 2 * k - 1) * (p + 2 * k) / place**2
        out[left] = found
    return out


@public(of="special", out=True)
@beside_input
def zeta(input: Operand, other: Operand) -> Tensor:
    """Hurwitz zeta function, the sum of `(other + k) ** -input` over k = 0, 1, ..., broadcast: (*), (*) -> (*). Reads the values; there is no
    gradient for `input`.

    >>> import calque
    >>> calque.special.zeta(calque.tensor([2.0, 4.0]), 1)
    tensor([1.6449, 1.0823])
    """
    s, q = _both_float("zeta", input, other)

    def backward(g: Tensor) -> tuple[Tensor | None, Tensor]:
        if s._requires_grad:
            raise NotImplementedError("[zeta] the derivative with respect to 'input' is not implemented: expected only 'other' to require a gradient")
        return None, sum_to_shape(g * -s * zeta(s + 1.0, q), tuple(q._layout.shape))

    return with_formula("SpecialZetaBackward0", (s, q), lambda: _evaluated("zeta", s, q, _zeta), backward)


@public(of="calque special", method=False, out=True)
def polygamma(n: int, input: Tensor) -> Tensor:
    """The n-th derivative of `digamma`, n >= 0: (*) -> (*).

    >>> import calque
    >>> calque.polygamma(1, calque.tensor([1.0, 0.5]))
    tensor([1.6449, 4.9348])
    """
    n = whole("polygamma", "n", n)
    if n < 0:
        raise ArgumentError(f"[polygamma] polygamma(n, x) does not support negative n: expected n >= 0, got {n}; integrals have no name here")
    if n > MOST_DERIVATIVES:
        raise ArgumentError(f"[polygamma] expected n <= {MOST_DERIVATIVES}, got {n}: its factorial is larger than any float64")
    x = _float(input)
    if n == 0:
        return digamma(x)
    return prim("polygamma", x, n)


MOST_DERIVATIVES = 170


@method("polygamma")
def _polygamma_method(input: Tensor, n: int) -> Tensor:
    """The n-th derivative of `digamma`, n >= 0: (*) -> (*)."""
    return polygamma(n, input)


method("polygamma_")(in_place_form("polygamma_", _polygamma_method))


@public("special.multigammaln", in_place="method", out=True, steps=True)
def mvlgamma(input: Tensor, p: int) -> Tensor:
    """Logarithm of the multivariate gamma function of dimension p >= 1, for x > (p - 1) / 2: (*) -> (*).

    >>> import calque
    >>> calque.mvlgamma(calque.tensor([2.0, 3.0]), 2)
    tensor([0.4516, 1.5502])
    """
    p = whole("mvlgamma", "p", p)
    if p < 1:
        raise ArgumentError(f"[mvlgamma] p has to be greater than or equal to 1: expected p >= 1, got {p}")
    if input._layout.dtype is dt.bool_:
        raise ArgumentError("[mvlgamma] The input tensor may not be a boolean tensor; expected numbers")
    x = _float(input)
    shifts = host_values((p,), x._layout.dtype, lambda: -0.5 * np.arange(p, dtype=x._layout.dtype.np))
    return total(lgamma(unsqueeze(x, -1) + shifts), -1) + p * (p - 1) * math.log(math.pi) / 4
