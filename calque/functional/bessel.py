"""Bessel and Airy functions of real arguments: Chebyshev series near zero and of what is left beside the asymptotic form far from it.

The tables of `chebyshev.py` were fitted to the functions' definitions. Sources of the forms: Abramowitz and Stegun, chapters 9 and 10.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from calque.functional import chebyshev as table
from calque.functional.arithmetic import abs as magnitude
from calque.functional.chebyshev import series
from calque.functional.common import cast, require_real
from calque.functional.declared import public
from calque.functional.elementary import _float, cos, exp, log, rsqrt, sign, sin, sqrt
from calque.functional.math import clamp, where, widened, with_formula
from calque.tensor import Tensor

NEAR, KNEAR = 8.0, 2.0  # where the series near zero end: of J, Y and I, of K


def _function(label: str, input: Tensor, value: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor]) -> Tensor:
    """`value(x)` with the derivative `slope(x)`; 16-bit floats are computed in float32, integers in the default floating type."""
    require_real(label.removesuffix("Backward0"), input)
    x = _float(input)

    def found() -> Tensor:
        return cast(value(widened(x)), x._layout.dtype)

    return with_formula(label, (x,), found, lambda g: (g * cast(slope(widened(x)), x._layout.dtype),))


def _scaled_i(order: int, x: Tensor) -> Tensor:
    """exp(-|x|) I_order(x) for order 0 and 1."""
    near, far = (table.I0_NEAR, table.I0_FAR) if order == 0 else (table.I1_NEAR, table.I1_FAR)
    size = magnitude(x)
    inside, outside = clamp(size, None, NEAR), clamp(size, NEAR, None)
    centre, tail = series(inside * (2 / NEAR) - 1.0, near), series(2 * NEAR / outside - 1.0, far) * rsqrt(outside)
    if order == 0:
        return where(size <= NEAR, centre, tail)
    return where(size <= NEAR, x * centre, sign(x) * tail)


@public(of="calque special", in_place="both", out=True)
def i0(input: Tensor) -> Tensor:
    """Modified Bessel function of the first kind, order 0: (*) -> (*). Integers give the default floating type.

    >>> import calque
    >>> calque.i0(calque.tensor([0.0, 1.0, 2.0]))
    tensor([1.0000, 1.2661, 2.2796])
    """
    return _function("I0Backward0", input, lambda x: exp(magnitude(x)) * _scaled_i(0, x), i1)



@public(of="special", out=True)
def i0e(input: Tensor) -> Tensor:
    """`exp(-|x|) i0(x)`: (*) -> (*).

    >>> import calque
    >>> calque.special.i0e(calque.tensor([0.0, 1.0]))
    tensor([1.0000, 0.4658])
    """
    return _function("SpecialI0EBackward0", input, lambda x: _scaled_i(0, x), lambda x: i1e(x) - sign(x) * i0e(x))


@public(of="special", out=True)
def i1(input: Tensor) -> Tensor:
    """Modified Bessel function of the first kind, order 1: (*) -> (*).

    >>> import calque
    >>> calque.special.i1(calque.tensor([0.0, 1.0]))
    tensor([0.0000, 0.5652])
    """
    return _function("SpecialI1Backward0", input, lambda x: exp(magnitude(x)) * _scaled_i(1, x), lambda x: i0(x) - _over(i1(x), x, 0.5))


@public(of="special", out=True)
def i1e(input: Tensor) -> Tensor:
    """`exp(-|x|) i1(x)`: (*) -> (*).

    >>> import calque
    >>> calque.special.i1e(calque.tensor([0.0, 1.0]))
    tensor([0.0000, 0.2079])
    """
    return _function("SpecialI1EBackward0", input, lambda x: _scaled_i(1, x), lambda x: i0e(x) - sign(x) * i1e(x) - _over(i1e(x), x, 0.5))


def _over(value: Tensor, x: Tensor, limit: float) -> Tensor:
    """`value / x`, and its limit where x is 0."""
    return where(x == 0, limit, value / where(x == 0, 1.0, x))


def _plain_i0(x: Tensor) -> Tensor:
    return exp(magnitude(x)) * _scaled_i(0, x)


def _plain_i1(x: Tensor) -> Tensor:
    return exp(magnitude(x)) * _scaled_i(1, x)


@public(of="special", out=True)
def modified_bessel_i0(input: Tensor) -> Tensor:
    """Modified Bessel function of the first kind, order 0: (*) -> (*). The same as `i0`."""
    return i0(input)


@public(of="special", out=True)
def modified_bessel_i1(input: Tensor) -> Tensor:
    """Modified Bessel function of the first kind, order 1: (*) -> (*). The same as `i1`."""
    return i1(input)


def _second_kind(order: int, x: Tensor, scaled: bool) -> Tensor:
    """K_order(x), or exp(x) K_order(x): infinite at 0 and NaN below."""
    inside, outside = clamp(x, None, KNEAR), clamp(x, KNEAR, None)
    t = inside * inside * (2 / KNEAR**2) - 1.0
    logarithm = log(where(x <= 0, 1.0, inside) * 0.5)
    if order == 0:
        centre = series(t, table.K0_NEAR) - logarithm * _plain_i0(inside)
        tail = series(2 * KNEAR / outside - 1.0, table.K0_FAR)
    else:
        centre = series(t, table.K1_NEAR) / where(x <= 0, 1.0, inside) + logarithm * _plain_i1(inside)
        tail = series(2 * KNEAR / outside - 1.0, table.K1_FAR)
    tail = tail * rsqrt(outside)
    centre, tail = (centre * exp(inside), tail) if scaled else (centre, tail * exp(-outside))
    return where(x == 0, math.inf, where(x < 0, math.nan, where(x <= KNEAR, centre, tail)))


@public(of="special", out=True)
def modified_bessel_k0(input: Tensor) -> Tensor:
    """Modified Bessel function of the second kind, order 0: (*) -> (*); infinite at 0, NaN below.

    >>> import calque
    >>> calque.special.modified_bessel_k0(calque.tensor([1.0, 2.0]))
    tensor([0.4210, 0.1139])
    """
    return _function("SpecialModifiedBesselK0Backward0", input, lambda x: _second_kind(0, x, False), lambda x: -modified_bessel_k1(x))


@public(of="special", out=True)
def modified_bessel_k1(input: Tensor) -> Tensor:
    """Modified Bessel function of the second kind, order 1: (*) -> (*); infinite at 0, NaN below.

    >>> import calque
    >>> calque.special.modified_bessel_k1(calque.tensor([1.0, 2.0]))
    tensor([0.6019, 0.1399])
    """
    slope = lambda x: -modified_bessel_k0(x) - modified_bessel_k1(x) / x  # noqa: E731
    return _function("SpecialModifiedBesselK1Backward0", input, lambda x: _second_kind(1, x, False), slope)


@public(of="special", out=True)
def scaled_modified_bessel_k0(input: Tensor) -> Tensor:
    """`exp(x) modified_bessel_k0(x)`: (*) -> (*)."""
    slope = lambda x: scaled_modified_bessel_k0(x) - scaled_modified_bessel_k1(x)  # noqa: E731
    return _function("SpecialScaledModifiedBesselK0Backward0", input, lambda x: _second_kind(0, x, True), slope)


@public(of="special", out=True)
def scaled_modified_bessel_k1(input: Tensor) -> Tensor:
    """`exp(x) modified_bessel_k1(x)`: (*) -> (*)."""

    def slope(x: Tensor) -> Tensor:
        k1 = scaled_modified_bessel_k1(x)
        return k1 - scaled_modified_bessel_k0(x) - k1 / x

    return _function("SpecialScaledModifiedBesselK1Backward0", input, lambda x: _second_kind(1, x, True), slope)


def _waves(order: int, x: Tensor, kind: str) -> Tensor:
    """J ("first") or Y ("second" kind) for x > 8: the amplitude times the cosine or sine of a phase."""
    p, q = (table.P0_FAR, table.Q0_FAR) if order == 0 else (table.P1_FAR, table.Q1_FAR)
    inverse = NEAR / x
    t = inverse * inverse * 2.0 - 1.0
    phase = x - math.pi * (2 * order + 1) / 4
    even, odd = series(t, p), series(t, q) * inverse
    wave = even * cos(phase) - odd * sin(phase) if kind == "first" else even * sin(phase) + odd * cos(phase)
    return wave * sqrt(2 / math.pi / x)


def _first_kind(order: int, x: Tensor) -> Tensor:
    size = magnitude(x)
    inside, outside = clamp(size, None, NEAR), clamp(size, NEAR, None)
    t = inside * inside * (2 / NEAR**2) - 1.0
    tail = where(size == math.inf, 0.0, _waves(order, where(outside == math.inf, NEAR, outside), "first"))
    if order == 0:
        return where(size <= NEAR, series(t, table.J0_NEAR), tail)
    return sign(x) * where(size <= NEAR, inside * series(t, table.J1_NEAR), tail)


def _neumann(order: int, x: Tensor) -> Tensor:
    inside, outside = clamp(x, None, NEAR), clamp(x, NEAR, None)
    positive = where(x <= 0, 1.0, inside)
    t = positive * positive * (2 / NEAR**2) - 1.0
    if order == 0:
        centre = series(t, table.Y0_NEAR) + log(positive) * series(t, table.J0_NEAR) * (2 / math.pi)
    else:
        j1 = positive * series(t, table.J1_NEAR)
        centre = positive * series(t, table.Y1_NEAR) + (log(positive) * j1 - 1.0 / positive) * (2 / math.pi)
    return where(x == 0, -math.inf, where(x < 0, math.nan, where(x <= NEAR, centre, _waves(order, outside, "second"))))


@public(of="special", out=True)
def bessel_j0(input: Tensor) -> Tensor:
    """Bessel function of the first kind, order 0: (*) -> (*).

    >>> import calque
    >>> calque.special.bessel_j0(calque.tensor([0.0, 1.0]))
    tensor([1.0000, 0.7652])
    """
    return _function("SpecialBesselJ0Backward0", input, lambda x: _first_kind(0, x), lambda x: -bessel_j1(x))


@public(of="special", out=True)
def bessel_j1(input: Tensor) -> Tensor:
    """Bessel function of the first kind, order 1: (*) -> (*).

    >>> import calque
    >>> calque.special.bessel_j1(calque.tensor([0.0, 1.0]))
    tensor([0.0000, 0.4401])
    """
    return _function("SpecialBesselJ1Backward0", input, lambda x: _first_kind(1, x), lambda x: bessel_j0(x) - _over(bessel_j1(x), x, 0.5))


@public(of="special", out=True)
def bessel_y0(input: Tensor) -> Tensor:
    """Bessel function of the second kind, order 0: (*) -> (*); -infinity at 0, NaN below.

    >>> import calque
    >>> calque.special.bessel_y0(calque.tensor([1.0, 2.0]))
    tensor([0.0883, 0.5104])
    """
    return _function("SpecialBesselY0Backward0", input, lambda x: _neumann(0, x), lambda x: -bessel_y1(x))


@public(of="special", out=True)
def bessel_y1(input: Tensor) -> Tensor:
    """Bessel function of the second kind, order 1: (*) -> (*); -infinity at 0, NaN below.

    >>> import calque
    >>> calque.special.bessel_y1(calque.tensor([1.0, 2.0]))
    tensor([-0.7812, -0.1070])
    """
    return _function("SpecialBesselY1Backward0", input, lambda x: _neumann(1, x), lambda x: bessel_y0(x) - bessel_y1(x) / x)


AIRY = 2.25  # beyond it, on both sides, the asymptotic form; there zeta is 2.25 as well


def _airy(x: Tensor) -> Tensor:
    size = clamp(magnitude(x), AIRY, None)
    zeta = size * sqrt(size) * (2 / 3)
    root = rsqrt(sqrt(size)) / math.sqrt(math.pi)
    falling = series(2 * AIRY / zeta - 1.0, table.AI_FAR) * exp(-zeta) * root * 0.5
    square = (AIRY / zeta) * (AIRY / zeta) * 2.0 - 1.0
    phase = zeta + math.pi / 4
    waving = (series(square, table.AI_SINE) * sin(phase) - series(square, table.AI_COSINE) / zeta * cos(phase)) * root
    centre = series(clamp(x, -AIRY, AIRY) / AIRY, table.AI_CENTRE)
    return where(x > AIRY, where(zeta > 1e3, 0.0, falling), where(x < -AIRY, waving, centre))


def _no_slope(x: Tensor) -> Any:
    raise NotImplementedError("[airy_ai] expected no gradient to be asked for: the derivative for airy_ai is not implemented; detach() its operand")


@public(of="special", out=True)
def airy_ai(input: Tensor) -> Tensor:
    """Airy function Ai: (*) -> (*). It has no gradient.

    >>> import calque
    >>> calque.special.airy_ai(calque.tensor([0.0, 1.0]))
    tensor([0.3550, 0.1353])
    """
    return _function("SpecialAiryAiBackward0", input, lambda x: where(magnitude(x) == math.inf, math.nan, _airy(x)), _no_slope)


@public(of="special", out=True, steps=True)
def spherical_bessel_j0(input: Tensor) -> Tensor:
    """`sin(x) / x`, and 1 at 0: (*) -> (*).

    >>> import calque
    >>> calque.special.spherical_bessel_j0(calque.tensor([0.0, 1.0]))
    tensor([1.0000, 0.8415])
    """

    def value(x: Tensor) -> Tensor:
        far = where(magnitude(x) == math.inf, 0.0, sin(where(magnitude(x) == math.inf, 1.0, x)) / where(x == 0, 1.0, x))
        square = x * x
        near = 1.0 - square / 42 * (1.0 - square / 72 * (1.0 - square / 110))
        return where(magnitude(x) < 0.5, 1.0 - square / 6 * (1.0 - square / 20 * near), far)

    return _function("SpecialSphericalBesselJ0Backward0", input, value, lambda x: _over(cos(x) - spherical_bessel_j0(x), x, 0.0))
