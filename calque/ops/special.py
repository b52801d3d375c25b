"""Special functions: erf and erfinv, the gamma family. Bodies in the closed scalar set beside scalar definitions in Python.

Sources: M. Giles, "Approximating the erfinv function" (2010), single and double precision; S. Moshier, Cephes `lgam` (rational
approximation on [2, 3)); Abramowitz and Stegun 6.1.40, 6.3.18 and 23.1 (Stirling and Euler-Maclaurin series).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from calque.base.dtypes import float32
from calque.base.errors import ArgumentError
from calque.ops.bodies import horner, like, narrow_in_double
from calque.ops.opdef import OpDef, Sample, Vjp, register
from calque.ops.rules import UNARY_SHAPES, Array, floating, same_shape, unary

Builder = Any
Value = Any
HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class OnElements:
    """A function of one Python float (and attributes behind it) applied in float64 to every element; the result is rounded to the operand's type.
    That is as plain as a definition can be. `slow`: it takes microseconds an element, so what computes a user's values rather runs the body.
    """

    def __init__(self, function: Callable[..., float], slow: bool = True) -> None:
        self.function, self.slow = function, slow

    def __call__(self, x: Array, *attrs: Any) -> Array:
        found = [self.function(value, *attrs) for value in x.astype(np.float64).reshape(-1).tolist()]
        result: Array = np.array(found, np.float64).reshape(x.shape).astype(x.dtype)
        return result


# ------------------------------------------------------------------------------------------------------------ erf, erfinv

# Giles 2010, table 5 and the double precision version; w = -log(1 - x**2)
_SINGLE_CENTRE = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164, 0.246640727,
    1.50140941,
)  # fmt: skip
_SINGLE_TAIL = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047, 1.00167406,
    2.83297682,
)  # fmt: skip
_DOUBLE_CENTRE = (
    -3.6444120640178196996e-21, -1.685059138182016589e-19, 1.2858480715256400167e-18, 1.115787767802518096e-17,
    -1.333171662854620906e-16, 2.0972767875968561637e-17, 6.6376381343583238325e-15, -4.0545662729752068639e-14,
    -8.1519341976054721522e-14, 2.6335093153082322977e-12, -1.2975133253453532498e-11, -5.4154120542946279317e-11,
    1.051212273321532285e-09, -4.1126339803469836976e-09, -2.9070369957882005086e-08, 4.2347877827932403518e-07,
    -1.3654692000834678645e-06, -1.3882523362786468719e-05, 0.0001867342080340571352, -0.00074070253416626697512,
    -0.0060336708714301490533, 0.24015818242558961693, 1.6536545626831027356,
)  # fmt: skip
_DOUBLE_MIDDLE = (
    2.2137376921775787049e-09, 9.0756561938885390979e-08, -2.7517406297064545428e-07, 1.8239629214389227755e-08,
    1.5027403968909827627e-06, -4.013867526981545969e-06, 2.9234449089955446044e-06, 1.2475304481671778723e-05,
    -4.7318229009055733981e-05, 6.8284851459573175448e-05, 2.4031110387097893999e-05, -0.0003550375203628474796,
    0.00095328937973738049703, -0.0016882755560235047313, 0.0024914420961078508066, -0.0037512085075692412107,
    0.005370914553590063617, 1.0052589676941592334, 3.0838856104922207635,
)  # fmt: skip
_DOUBLE_TAIL = (
    -2.7109920616438573243e-11, -2.5556418169652520055e-10, 1.5076572693500548083e-09, -3.7894654401267369937e-09,
    7.6157012080783393804e-09, -1.4960026627149240478e-08, 2.9147953450901080826e-08, -6.7711997758452339498e-08,
    2.2900482228026654717e-07, -9.9298272942317002539e-07, 4.5260625972231537039e-06, -1.9681778105531670567e-05,
    7.5995277030017761139e-05, -0.00021503011930044477347, -0.00013871931833623122026, 1.0103004648645343977,
    4.8499064014085844221,
)  # fmt: skip


def erfinv(s: Builder, x: Value) -> Value:
    """Giles' polynomials in w = -log((1 - x) (1 + x)); the ends give infinity, beyond them NaN."""
    one = like(s, x, 1)
    w = s.neg(s.log(s.mul(s.sub(one, x), s.add(one, x))))
    root = s.sqrt(w)

    def piece(argument: Value, shift: float, coefficients: tuple[float, ...]) -> Value:
        return horner(s, s.sub(argument, like(s, x, shift)), coefficients)

    if s.dtype(x) is float32:
        centre, tail = piece(w, 2.5, _SINGLE_CENTRE), piece(root, 3.0, _SINGLE_TAIL)
        factor = s.select(s.lt(w, like(s, x, 5)), centre, tail)
    else:
        middle, tail = piece(root, 3.25, _DOUBLE_MIDDLE), piece(root, 5.0, _DOUBLE_TAIL)
        tail = s.select(s.lt(w, like(s, x, 16)), middle, tail)
        factor = s.select(s.lt(w, like(s, x, 6.25)), piece(w, 3.125, _DOUBLE_CENTRE), tail)
    end = s.eq(s.abs(x), one)
    return s.mul(x, s.select(end, like(s, x, math.inf), factor))


def erfinv_scalar(x: float) -> float:
    """Newton's method on erf, or on log(erfc) near the ends."""
    if not -1.0 < x < 1.0:
        return math.copysign(math.inf, x) if abs(x) == 1.0 else math.nan
    if x == 0.0:
        return x
    a = abs(x)
    y = math.sqrt(math.pi) / 2 * a if a < 0.5 else math.sqrt(max(-math.log((1 - a) * (1 + a)) - 0.3, 0.05))
    for _ in range(60):
        slope = 2 / math.sqrt(math.pi) * math.exp(-y * y)
        if a < 0.5:
            step = (math.erf(y) - a) / slope
        else:
            tail = math.erfc(y)
            step = (math.log(1 - a) - math.log(tail)) * tail / slope
        y -= step
        if abs(step) < 1e-17 * abs(y):
            break
    return math.copysign(y, x)


unary(
    "erf",
    "Error function.",
    lambda s, x: s.erf(x),
    OnElements(math.erf, slow=False),
    Vjp(lambda F, g, c: g * F.exp(-c.x(0) * c.x(0)) * (2 / math.sqrt(math.pi)), (0,)),
)
unary(
    "erfinv",
    "Inverse of erf on (-1, 1); -1 and 1 give infinities.",
    erfinv,
    OnElements(erfinv_scalar),
    Vjp(lambda F, g, c: g * F.exp(c.out * c.out) * (math.sqrt(math.pi) / 2), (-1,)),
    low=-0.95,
    high=0.95,
)


# ----------------------------------------------------------------------------------------------------------- gamma family

# Cephes lgam: lgamma(2 + x) = x P(x) / Q(x) for 0 <= x < 1
_LGAMMA_P = (
    -1.37825152569120859100e3, -3.88016315134637840924e4, -3.31612992738871184744e5, -1.16237097492762307383e6,
    -1.72173700820839662146e6, -8.53555664245765465627e5,
)  # fmt: skip
_LGAMMA_Q = (
    1.0, -3.51815701436523470549e2, -1.70642106651881159223e4, -2.20528590553854454839e5, -1.13933444367982507207e6,
    -2.53252307177582951285e6, -2.01889141433532773231e6,
)  # fmt: skip
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)  # B_2, B_4, ...
_STIRLING = tuple(b / (2 * k * (2 * k - 1)) for k, b in enumerate(_BERNOULLI, 1))[::-1]
_PSI = tuple(b / (2 * k) for k, b in enumerate(_BERNOULLI, 1))[::-1]
_SHIFT = 10


def _lgamma_positive(s: Builder, x: Value) -> Value:
    """Below 8 the recurrence to [2, 3) and the rational approximation there; from 8 on Stirling's series."""
    one, two = like(s, x, 1), like(s, x, 2)
    below_one, below_two = s.lt(x, one), s.lt(x, two)
    divisor = s.select(below_one, s.mul(x, s.add(x, one)), s.select(below_two, x, one))
    t = s.sub(x, s.select(below_one, like(s, x, 0), s.select(below_two, one, two)))  # (x shifted into [2, 3)) - 2
    factor = one
    for k in range(1, 6):
        lower = s.sub(x, like(s, x, k))
        used = s.le(two, lower)
        factor = s.select(used, s.mul(factor, lower), factor)
        t = s.select(used, s.sub(lower, two), t)
    rational = s.mul(t, s.div(horner(s, t, _LGAMMA_P), horner(s, t, _LGAMMA_Q)))
    small = s.add(rational, s.log(s.div(factor, divisor)))
    inverse = s.div(one, x)
    series = s.mul(inverse, horner(s, s.mul(inverse, inverse), _STIRLING))
    main = s.sub(s.mul(s.sub(x, like(s, x, 0.5)), s.sub(s.log(x), one)), like(s, x, 0.5 - HALF_LOG_2PI))
    return s.select(s.lt(x, like(s, x, 8)), small, s.add(main, series))


def _sin_pi(s: Builder, x: Value) -> Value:
    """|sin(pi x)| with the argument reduced exactly."""
    return s.abs(s.sin(s.mul(s.sub(x, s.rint(x)), like(s, x, math.pi))))


def lgamma(s: Builder, x: Value) -> Value:
    """log |gamma(x)|; the reflection formula for x <= 0."""
    zero = like(s, x, 0)
    positive = _lgamma_positive(s, s.abs(x))
    product = s.mul(s.abs(x), _sin_pi(s, x))
    reflected = s.sub(s.sub(like(s, x, math.log(math.pi)), s.log(product)), positive)
    whole = s.eq(s.floor(x), x)
    return s.select(s.lt(zero, x), positive, s.select(whole, like(s, x, math.inf), reflected))


def lgamma_scalar(x: float) -> float:
    """`math.lgamma` with infinity at its poles."""
    try:
        return math.lgamma(x)
    except (ValueError, OverflowError):
        return math.inf


def digamma(s: Builder, x: Value) -> Value:
    """Recurrence up to x >= 10, then the asymptotic series; reflection for x <= 0."""
    zero, one = like(s, x, 0), like(s, x, 1)
    reflect = s.le(x, zero)
    y = s.select(reflect, s.sub(one, x), x)
    small = s.lt(y, like(s, x, _SHIFT))
    harmonic = s.div(one, y)
    for k in range(1, _SHIFT):
        harmonic = s.add(harmonic, s.div(one, s.add(y, like(s, x, k))))
    high = s.select(small, s.add(y, like(s, x, _SHIFT)), y)
    inverse = s.div(one, high)
    square = s.mul(inverse, inverse)
    tail = s.add(s.mul(like(s, x, 0.5), inverse), s.mul(square, horner(s, square, _PSI)))
    value = s.sub(s.sub(s.log(high), tail), s.select(small, harmonic, zero))
    angle = s.mul(s.sub(x, s.rint(x)), like(s, x, math.pi))
    cotangent = s.div(s.cos(angle), s.sin(angle))
    reflected = s.sub(value, s.mul(like(s, x, math.pi), cotangent))
    pole = s.select(s.eq(x, zero), s.div(like(s, x, -1), x), like(s, x, math.nan))
    return s.select(reflect, s.select(s.eq(s.floor(x), x), pole, reflected), value)


def digamma_scalar(x: float) -> float:
    """The same definition on one Python float."""
    if x == 0:
        return -math.copysign(math.inf, x)
    if x < 0:
        if math.isinf(x) or x == math.floor(x):
            return math.nan
        return digamma_scalar(1 - x) - math.pi / math.tan(math.pi * (x - round(x)))
    total = 0.0
    while x < 12:
        total -= 1 / x
        x += 1
    if math.isnan(x) or math.isinf(x):
        return x
    square = 1 / x / x
    return total + math.log(x) - 0.5 / x - sum(b / (2 * k) * square**k for k, b in enumerate(_BERNOULLI, 1))


def _integer_power(s: Builder, x: Value, n: int) -> Value:
    result = None
    while n:
        if n & 1:
            result = x if result is None else s.mul(result, x)
        n >>= 1
        x = s.mul(x, x) if n else x
    return result


def _zeta_tail(order: int) -> list[float]:
    """Euler-Maclaurin coefficients B_2j / (2 j)! order (order + 1) ... (order + 2 j - 2) for j = 1, 2, ..."""
    found, rising = [], 1.0
    for j, b in enumerate(_BERNOULLI, 1):
        rising = float(order) if j == 1 else rising * (order + 2 * j - 3) * (order + 2 * j - 2)
        found.append(b / math.factorial(2 * j) * rising)
    return found


def polygamma(s: Builder, x: Value, n: int) -> Value:
    """(-1)**(n + 1) n! zeta(n + 1, x) by Euler-Maclaurin summation; for x <= 0 the reflection formula, at its poles infinite."""
    order = n + 1
    zero, one = like(s, x, 0), like(s, x, 1)
    reflect = s.le(x, zero)
    y = s.select(reflect, s.sub(one, x), x)
    total = _integer_power(s, s.div(one, y), order)
    for k in range(1, _SHIFT):
        total = s.add(total, _integer_power(s, s.div(one, s.add(y, like(s, x, k))), order))
    inverse = s.div(one, s.add(y, like(s, x, _SHIFT)))
    square = s.mul(inverse, inverse)
    series = s.mul(square, horner(s, square, _zeta_tail(order)[::-1]))
    head = s.fma(inverse, like(s, x, 0.5), like(s, x, 1 / n))
    total = s.add(total, s.mul(_integer_power(s, inverse, n), s.add(head, series)))
    value = s.mul(total, like(s, x, math.copysign(math.factorial(n), (n % 2) - 0.5)))
    if n == 1:
        ratio = s.div(like(s, x, math.pi), _sin_pi(s, x))
        return s.select(reflect, s.sub(s.mul(ratio, ratio), value), value)
    angle = s.mul(s.sub(x, s.rint(x)), like(s, x, math.pi))
    turn = horner(s, s.div(s.cos(angle), s.sin(angle)), [math.pi ** (n + 1) * v for v in _cotangent(n)[::-1]])
    reflected = s.sub(value if n % 2 == 0 else s.neg(value), turn)
    pole = like(s, x, math.inf if n % 2 else -math.inf)
    return s.select(reflect, s.select(s.eq(s.floor(x), x), pole, reflected), value)


def _cotangent(n: int) -> list[float]:
    """The n-th derivative of the cotangent as a polynomial in the cotangent: the constant first."""
    found = [0.0, 1.0]
    for _ in range(n):
        slope = [k * v for k, v in enumerate(found)][1:]
        found = [-v for v in slope] + [0.0, 0.0]
        for k, v in enumerate(slope):
            found[k + 2] -= v
    return found


def polygamma_scalar(x: float, n: int) -> float:
    """The same definition on one Python float; for x > 0 so small that x**(-n - 1) overflows the result is infinite."""
    if 0 < x < 1e-300 ** (1 / (n + 1)):
        return math.inf if n % 2 else -math.inf
    order = n + 1
    if x <= 0:
        if math.isinf(x):
            return math.nan
        if x == math.floor(x):
            return math.inf if n % 2 else -math.inf
        cotangent = 1 / math.tan(math.pi * (x - round(x)))
        turn = math.pi ** (n + 1) * sum(v * cotangent**k for k, v in enumerate(_cotangent(n)))
        return (polygamma_scalar(1 - x, n) if n % 2 == 0 else -polygamma_scalar(1 - x, n)) - turn
    total = 0.0
    while x < 16:
        total += x ** -float(order)
        x += 1
    total += x ** -float(n) / n + 0.5 * x ** -float(order)
    for j, coefficient in enumerate(_zeta_tail(order), 1):
        total += coefficient * x ** -float(order + 2 * j - 1)
    return float(total * math.factorial(n) * (1 if n % 2 else -1))


unary(
    "lgamma",
    "Logarithm of the absolute value of the gamma function.",
    narrow_in_double(lgamma),
    OnElements(lgamma_scalar, slow=False),
    Vjp(lambda F, g, c: g * F.digamma(c.x(0)), (0,)),
    low=0.1,
    high=6.0,
)
unary(
    "digamma",
    "Logarithmic derivative of the gamma function.",
    narrow_in_double(digamma),
    OnElements(digamma_scalar),
    Vjp(lambda F, g, c: g * F.prim("polygamma", c.x(0), 1), (0,)),
    low=0.2,
    high=6.0,
)


def _polygamma_dtype(dtypes: Any, attrs: Any) -> Any:
    if attrs[0] < 1:
        raise ArgumentError(f"[polygamma] expected an order n >= 1, got {attrs[0]}; use digamma() for order 0")
    return floating("polygamma")(dtypes, attrs)


register(
    OpDef(
        "polygamma",
        "elementwise",
        "n-th derivative of digamma, n >= 1.",
        attrs=("n",),
        shape=same_shape,
        dtype=_polygamma_dtype,
        body=narrow_in_double(polygamma),
        vjp=(Vjp(lambda F, g, c: g * F.prim("polygamma", c.x(0), c.attrs[0] + 1), (0,)),),
        ref=OnElements(polygamma_scalar),
        samples=tuple(Sample((shape,), (n,), low=0.5, high=5.0) for shape in UNARY_SHAPES for n in (1, 2, 3)),
    )
)
