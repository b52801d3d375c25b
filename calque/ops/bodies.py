"""Bodies in the closed scalar set that need more than one line. Formulas are accurate to a few units in the last place.

A body sees 16-bit floats as float32 (see `OpDef`): the result is rounded once, not after every instruction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from calque.base.dtypes import DType, bool_, float32, float64, int32, int64

Builder = Any
Value = Any
LN2 = math.log(2.0)


def like(s: Builder, x: Value, value: float) -> Value:
    """A constant of x's dtype."""
    return s.const(value, s.dtype(x))


def is_bool(s: Builder, x: Value) -> bool:
    """Whether x is bool."""
    return bool(s.dtype(x) is bool_)


def horner(s: Builder, x: Value, coefficients: Sequence[float]) -> Value:
    """Polynomial in x, highest power first."""
    result = like(s, x, coefficients[0])
    for coefficient in coefficients[1:]:
        result = s.fma(result, x, like(s, x, coefficient))
    return result


def with_sign_of(s: Builder, magnitude: Value, x: Value) -> Value:
    """magnitude of a floating type, negated where x has its sign bit set: also where x is -0."""
    word = int64 if s.dtype(x) is float64 else int32
    return s.select(s.lt(s.bitcast(x, word), s.const(0, word)), s.neg(magnitude), magnitude)


# ------------------------------------------------------------------------------------------------------ exponentials


def expm1(s: Builder, x: Value) -> Value:
    """exp(x) - 1 = tanh(x / 2) (exp(x) + 1): no cancellation anywhere."""
    return s.mul(s.tanh(s.mul(x, like(s, x, 0.5))), s.add(s.exp(x), like(s, x, 1)))


def log1p(s: Builder, x: Value) -> Value:
    """log(1 + x) corrected by the rounding of 1 + x (Goldberg 1991, theorem 4)."""
    one = like(s, x, 1)
    u = s.add(x, one)
    d = s.sub(u, one)
    log_u = s.log(u)
    corrected = s.select(s.eq(d, x), log_u, s.mul(log_u, s.div(x, d)))
    return s.select(s.eq(u, one), x, corrected)


def _log_to_base(s: Builder, x: Value, base: float, digits: float, rest: float) -> Value:
    """Exponent times log(2) / log(base), plus log(mantissa) / log(base). `digits`: the leading digits of that factor, so few that its product with an
    exponent is exact; with the `rest` of it powers of the base are what they should be to the last bit."""
    dtype = s.dtype(x)
    double = dtype is float64
    word, bits, half_root, tiny = (int64, 52, 0x3FE6A09E667F3BCD, 2.0**-1022) if double else (int32, 23, 0x3F3504F3, 2.0**-126)
    subnormal = s.lt(x, s.const(tiny, dtype))
    scaled = s.select(subnormal, s.mul(x, s.const(2.0**bits, dtype)), x)
    raw = s.bitcast(scaled, word)
    exponent = s.shr(s.sub(raw, s.const(half_root, word)), s.const(bits, word))
    mantissa = s.bitcast(s.sub(raw, s.shl(exponent, s.const(bits, word))), dtype)
    shift = s.select(subnormal, s.const(-bits, word), s.const(0, word))
    inverse, count = s.const(1 / math.log(base), dtype), s.cast(s.add(exponent, shift), dtype)
    if rest:
        fraction = s.fma(count, s.const(rest, dtype), s.mul(s.log(mantissa), inverse))
        regular = s.fma(count, s.const(digits, dtype), fraction)
    else:
        regular = s.fma(s.log(mantissa), inverse, count)
    ordinary = s.and_(s.lt(s.const(0, dtype), x), s.lt(x, s.const(math.inf, dtype)))
    return s.select(ordinary, regular, s.log(x))


def log2(s: Builder, x: Value) -> Value:
    """log(x) / log(2), exact for powers of two."""
    return _log_to_base(s, x, 2.0, 1.0, 0.0)


def log10(s: Builder, x: Value) -> Value:
    """log(x) / log(10), exact for powers of ten."""
    double = s.dtype(x) is float64
    return _log_to_base(s, x, 10.0, *((0x1344135 / 2.0**26, 5.801722962879576e-10) if double else (0x1344 / 2.0**14, 4.605038981195214e-06)))


def sigmoid(s: Builder, x: Value) -> Value:
    """1 / (1 + exp(-x)) through exp(-|x|), which never overflows."""
    one = like(s, x, 1)
    e = s.exp(s.neg(s.abs(x)))
    return s.div(s.select(s.lt(x, like(s, x, 0)), e, one), s.add(one, e))


# ---------------------------------------------------------------------------------------- trigonometric and hyperbolic


def asin(s: Builder, x: Value) -> Value:
    """atan(x / sqrt((1 - x) (1 + x)))."""
    one = like(s, x, 1)
    return s.atan(s.div(x, s.sqrt(s.mul(s.sub(one, x), s.add(one, x)))))


def acos(s: Builder, x: Value) -> Value:
    """2 atan(sqrt((1 - x) / (1 + x)))."""
    one = like(s, x, 1)
    return s.mul(like(s, x, 2), s.atan(s.sqrt(s.div(s.sub(one, x), s.add(one, x)))))


_SINH = [1 / math.factorial(k) for k in range(19, 2, -2)]


def sinh(s: Builder, x: Value) -> Value:
    """Taylor series below 1, (exp(|x|) - exp(-|x|)) / 2 above; exp(|x|) is a square, so that only the result can overflow."""
    half = like(s, x, 0.5)
    h = s.exp(s.mul(half, s.abs(x)))
    large = s.sub(s.mul(s.mul(half, h), h), s.div(s.div(half, h), h))
    square = s.mul(x, x)
    small = s.fma(s.mul(x, square), horner(s, square, _SINH), x)
    return s.select(s.lt(s.abs(x), like(s, x, 1)), small, with_sign_of(s, large, x))


def cosh(s: Builder, x: Value) -> Value:
    """(exp(|x|) + exp(-|x|)) / 2 with exp(|x|) as a square."""
    half = like(s, x, 0.5)
    h = s.exp(s.mul(half, s.abs(x)))
    return s.add(s.mul(s.mul(half, h), h), s.div(s.div(half, h), h))


def _large(s: Builder, x: Value) -> Value:
    """Bound above which sqrt(x**2 + 1) = x in x's type."""
    return like(s, x, 1e8 if s.dtype(x) is float64 else 1e4)


def asinh(s: Builder, x: Value) -> Value:
    """sign(x) log1p(|x| + x**2 / (1 + sqrt(x**2 + 1)))."""
    one = like(s, x, 1)
    a = s.abs(x)
    square = s.mul(x, x)
    small = log1p(s, s.add(a, s.div(square, s.add(one, s.sqrt(s.add(square, one))))))
    large = s.add(s.log(a), like(s, x, LN2))
    return with_sign_of(s, s.select(s.lt(_large(s, x), a), large, small), x)


def acosh(s: Builder, x: Value) -> Value:
    """log1p(t + sqrt(t) sqrt(t + 2)) with t = x - 1."""
    t = s.sub(x, like(s, x, 1))
    small = log1p(s, s.add(t, s.mul(s.sqrt(t), s.sqrt(s.add(t, like(s, x, 2))))))
    return s.select(s.lt(_large(s, x), x), s.add(s.log(x), like(s, x, LN2)), small)


def atanh(s: Builder, x: Value) -> Value:
    """sign(x) / 2 log1p(2 |x| / (1 - |x|))."""
    a = s.abs(x)
    half = s.mul(like(s, x, 0.5), log1p(s, s.div(s.add(a, a), s.sub(like(s, x, 1), a))))
    return with_sign_of(s, half, x)


def atan2(s: Builder, y: Value, x: Value) -> Value:
    """atan of the smaller over the larger magnitude, then the octant from the signs (signed zeros included)."""
    dtype = s.dtype(x)
    word = int64 if dtype is float64 else int32
    zero, infinity = s.const(0, dtype), s.const(math.inf, dtype)
    ax, ay = s.abs(x), s.abs(y)
    low, high = s.min(ax, ay), s.max(ax, ay)
    ratio = s.select(s.eq(low, infinity), s.const(1, dtype), s.div(low, high))
    angle = s.atan(s.select(s.eq(high, zero), zero, ratio))
    angle = s.select(s.lt(ax, ay), s.sub(s.const(math.pi / 2, dtype), angle), angle)
    angle = s.select(s.lt(s.bitcast(x, word), s.const(0, word)), s.sub(s.const(math.pi, dtype), angle), angle)
    return s.select(s.lt(s.bitcast(y, word), s.const(0, word)), s.neg(angle), angle)


# --------------------------------------------------------------------------------------------- division and remainders


def fmod(s: Builder, x: Value, y: Value) -> Value:
    """Remainder with the sign of x."""
    if s.dtype(x).is_floating_point:
        return with_sign_of(s, s.mod(s.abs(x), s.abs(y)), x)
    m = s.mod(x, y)
    if not s.dtype(x).is_signed:
        return m
    zero = like(s, x, 0)
    wrong = s.and_(s.ne(m, zero), s.xor(s.lt(x, zero), s.lt(y, zero)))
    return s.select(wrong, s.sub(m, y), m)


def _opposite(s: Builder, m: Value, y: Value) -> Value:
    zero = like(s, m, 0)
    return s.and_(s.ne(m, zero), s.xor(s.lt(m, zero), s.lt(y, zero)))


def remainder(s: Builder, x: Value, y: Value) -> Value:
    """Remainder with the sign of y (Python's rule)."""
    if not s.dtype(x).is_floating_point:
        return s.mod(x, y)
    m = fmod(s, x, y)
    return s.select(_opposite(s, m, y), s.add(m, y), m)


def floor_divide(s: Builder, x: Value, y: Value) -> Value:
    """floor(x / y) without the rounding error of x / y; a zero has the sign of x / y."""
    if not s.dtype(x).is_floating_point:
        return s.floordiv(x, y)
    m = fmod(s, x, y)
    quotient = s.rint(s.div(s.sub(x, m), y))
    quotient = s.select(_opposite(s, m, y), s.sub(quotient, like(s, x, 1)), quotient)
    zero = like(s, x, 0)
    exact = s.div(x, y)
    quotient = s.select(s.eq(quotient, zero), with_sign_of(s, zero, exact), quotient)
    return s.select(s.eq(y, zero), exact, quotient)


def power(s: Builder, x: Value, y: Value) -> Value:
    """x**y; integers by repeated squaring, where a negative exponent gives 1, -1 or 0 as in PyTorch."""
    dtype: DType = s.dtype(x)
    if dtype.is_floating_point:
        return s.pow(x, y)
    if dtype is bool_:
        return s.or_(x, s.not_(y))
    one, zero = s.const(1, dtype), s.const(0, dtype)
    result, base = one, x
    for bit in range(dtype.bits - dtype.is_signed):
        is_set = s.ne(s.and_(y, s.const(1 << bit, dtype)), zero)
        result = s.select(is_set, s.mul(result, base), result)
        base = s.mul(base, base)
    if not dtype.is_signed:
        return result
    odd = s.ne(s.and_(y, one), zero)
    inverse = s.select(s.eq(x, one), one, s.select(s.eq(x, s.const(-1, dtype)), s.select(odd, x, one), zero))
    return s.select(s.lt(y, zero), inverse, result)


# ------------------------------------------------------------------------------------------------- one-line variants


def sign(s: Builder, x: Value) -> Value:
    """-1, 0 or 1; NaN gives 0, as in PyTorch."""
    if is_bool(s, x):
        return x
    zero, one = like(s, x, 0), like(s, x, 1)
    negative = s.select(s.lt(x, zero), like(s, x, -1), zero) if s.dtype(x).is_signed else zero
    return s.select(s.lt(zero, x), one, negative)


def absolute(s: Builder, x: Value) -> Value:
    """|x|."""
    return s.abs(x) if s.dtype(x).is_signed else x


def convert(s: Builder, x: Value, dtype: DType) -> Value:
    """PyTorch's conversion: to bool is "not zero"; floats reach the narrow integers through int32, so that they wrap around."""
    source = s.dtype(x)
    if source is dtype:
        return x
    if dtype is bool_:
        return s.ne(x, like(s, x, 0))
    if source.is_floating_point and dtype.category == 1 and dtype.itemsize < 4:
        return s.cast(s.cast(x, int32), dtype)
    return s.cast(x, dtype)


def compare(kind: str) -> Any:
    """Body of a comparison; on bool it is written with logical instructions."""

    def body(s: Builder, x: Value, y: Value) -> Value:
        if not is_bool(s, x):
            return s.lt(y, x) if kind == "gt" else s.le(y, x) if kind == "ge" else getattr(s, kind)(x, y)
        return {
            "lt": lambda: s.and_(s.not_(x), y),
            "le": lambda: s.or_(s.not_(x), y),
            "gt": lambda: s.and_(x, s.not_(y)),
            "ge": lambda: s.or_(x, s.not_(y)),
            "eq": lambda: s.not_(s.xor(x, y)),
            "ne": lambda: s.xor(x, y),
        }[kind]()

    return body


def either(on_numbers: str, on_bool: str) -> Any:
    """Body that is one instruction on numbers and another on bool."""

    def body(s: Builder, x: Value, y: Value) -> Value:
        return getattr(s, on_bool if is_bool(s, x) else on_numbers)(x, y)

    return body


def integer_identity(name: str) -> Any:
    """Body of floor, ceil, round and trunc: integers are unchanged."""

    def body(s: Builder, x: Value) -> Value:
        return getattr(s, name)(x) if s.dtype(x).is_floating_point else x

    return body


def narrow_in_double(body: Any) -> Any:
    """Run a body in float64 and round: for special functions whose float32 form would cancel."""

    def wide(s: Builder, x: Value, *attrs: Any) -> Value:
        if s.dtype(x) is float32:
            return s.cast(body(s, s.cast(x, float64), *attrs), float32)
        return body(s, x, *attrs)

    return wide
