"""Functions of the normal distribution, and products with logarithms that are 0 where a factor is."""

from __future__ import annotations

import math

from calque.functional import chebyshev as table
from calque.functional.arithmetic import abs as magnitude
from calque.functional.chebyshev import series
from calque.functional.common import Operand, cast
from calque.functional.declared import public
from calque.functional.elementary import _float, erf, exp, log, log1p, sqrt
from calque.functional.math import _both_float, clamp, erfc, where, widened, with_formula
from calque.functional.views import sum_to_shape
from calque.tensor import Tensor

HALF = math.sqrt(0.5)
DENSITY = 1 / math.sqrt(2 * math.pi)


@public(of="special", out=True, steps=True)
def entr(input: Tensor) -> Tensor:
    """`-x log(x)`, 0 at 0 and -infinity below: (*) -> (*).

    >>> import calque
    >>> calque.special.entr(calque.tensor([-1.0, 0.0, 0.5]))
    tensor([  -inf, 0.0000, 0.3466])
    """
    x = _float(input)

    def value() -> Tensor:
        safe = where(x > 0, x, 1.0)
        return where(x > 0, -safe * log(safe), where(x == 0, 0.0, where(x < 0, -math.inf, x)))

    return with_formula("SpecialEntrBackward0", (x,), value, lambda g: (g * where(x < 0, math.nan, -log(where(x < 0, 1.0, x)) - 1.0),))


@public(of="special", out=True, steps=True)
def xlog1py(input: Operand, other: Operand) -> Tensor:
    """`input * log1p(other)`, and 0 where input is 0 (unless other is NaN), broadcast: (*), (*) -> (*).

    >>> import calque
    >>> calque.special.xlog1py(calque.tensor([0.0, 2.0]), calque.tensor([-1.0, 1.0]))
    tensor([0.0000, 1.3863])
    """
    x, y = _both_float("xlog1py", input, other)

    def value() -> Tensor:
        vanishes = (x == 0) & (y == y)
        return where(vanishes, 0.0, x * log1p(where(vanishes, 0.0, y)))

    def backward(g: Tensor) -> tuple[Tensor, Tensor]:
        inner = where((x == 0) & (y <= -1), 0.0, xlog1py(g, y))
        return sum_to_shape(inner, tuple(x._layout.shape)), sum_to_shape(g * x / (y + 1.0), tuple(y._layout.shape))

    return with_formula("SpecialXlog1PyBackward0", (x, y), value, backward)


def _scaled_tail(x: Tensor) -> Tensor:
    """exp(x**2) erfc(x) for x >= 0: a series in (x - 3.75) / (x + 3.75), as by Shepherd and Laframboise (1981)."""
    finite = where(x == math.inf, 1.0, x)
    return where(x == math.inf, 0.0, series((finite - 3.75) / (finite + 3.75), table.ERFCX) / (finite * 2.0 + 1.0))


@public(of="special", out=True)
def erfcx(input: Tensor) -> Tensor:
    """`exp(x**2) erfc(x)` without overflow for large x: (*) -> (*).

    >>> import calque
    >>> calque.special.erfcx(calque.tensor([0.0, 10.0]))
    tensor([1.0000, 0.0561])
    """
    x = _float(input)

    def value() -> Tensor:
        wide = widened(x)
        tail = _scaled_tail(magnitude(wide))
        low = clamp(wide, None, 0.0)
        return cast(where(wide < 0, exp(low * low) * 2.0 - tail, tail), x._layout.dtype)

    return with_formula("SpecialErfcxBackward0", (x,), value, lambda g: (g * (x * erfcx(x) - 1 / math.sqrt(math.pi)) * 2.0,))


@public(of="special", out=True)
def ndtr(input: Tensor) -> Tensor:
    """Probability that a standard normal variable is at most x: (*) -> (*).

    >>> import calque
    >>> calque.special.ndtr(calque.tensor([-1.0, 0.0]))
    tensor([0.1587, 0.5000])
    """
    x = _float(input)

    def value() -> Tensor:
        wide = widened(x) * HALF
        return cast(where(wide < -HALF, erfc(-wide) * 0.5, erf(wide) * 0.5 + 0.5), x._layout.dtype)

    return with_formula("SpecialNdtrBackward0", (x,), value, lambda g: (g * exp(x * x * -0.5) * DENSITY,))


@public(of="special", out=True)
def log_ndtr(input: Tensor) -> Tensor:
    """Logarithm of `ndtr(x)`, accurate in the lower tail: (*) -> (*).

    >>> import calque
    >>> calque.special.log_ndtr(calque.tensor([-10.0, 0.0]))
    tensor([-53.2313,  -0.6931])
    """
    x = _float(input)

    def value() -> Tensor:
        wide = widened(x)
        low = clamp(wide, None, -1.0)
        tail = log(_scaled_tail(low * -HALF) * 0.5) - low * low * 0.5
        return cast(where(wide < -1.0, tail, log1p(erfc(clamp(wide, -1.0, None) * HALF) * -0.5)), x._layout.dtype)

    def backward(g: Tensor) -> tuple[Tensor]:
        return (g / erfcx(x * -HALF) * math.sqrt(2 / math.pi),)

    return with_formula("SpecialLogNdtrBackward0", (x,), value, backward)


def _lower_quantile(p: Tensor) -> Tensor:
    """-x with ndtr(x) = p for small p: z - log(z) / z - f(1 / z) / z with z = sqrt(-2 log p)."""
    z = sqrt(log(p) * -2.0)
    inverse = 1.0 / z
    near = series((clamp(inverse, 1 / 8, 1 / 2) - 1 / 8) * (2 / (1 / 2 - 1 / 8)) - 1.0, table.NDTRI_NEAR)
    far = series((clamp(inverse, 1 / 64, 1 / 8) - 1 / 64) * (2 / (1 / 8 - 1 / 64)) - 1.0, table.NDTRI_FAR)
    return z - log(z) * inverse - where(z < 8.0, near, far) * inverse


TAIL = math.exp(-2.0)  # z = 2: the end of the series in the tail


def _quantile(p: Tensor) -> Tensor:
    from_centre = (clamp(p, TAIL, 1 - TAIL) * 2.0 - 1.0).erfinv() * math.sqrt(2)  # type: ignore[attr-defined]
    low, high = _lower_quantile(where((p > 0) & (p < TAIL), p, TAIL)), _lower_quantile(where((p > 1 - TAIL) & (p < 1), 1.0 - p, TAIL))
    inside = where(p < TAIL, -low, where(p > 1 - TAIL, high, from_centre))
    return where(p == 0, -math.inf, where(p == 1, math.inf, where((p < 0) | (p > 1), math.nan, inside)))


@public(of="special", out=True)
def ndtri(input: Tensor) -> Tensor:
    """x with `ndtr(x)` equal to the argument, which lies in [0, 1]: (*) -> (*); NaN outside.

    >>> import calque
    >>> calque.special.ndtri(calque.tensor([0.0, 0.5, 0.975]))
    tensor([  -inf, 0.0000, 1.9600])
    """
    x = _float(input)

    def backward(g: Tensor) -> tuple[Tensor]:
        found = ndtri(x)
        return (g * exp(found * found * 0.5) * math.sqrt(2 * math.pi),)

    return with_formula("SpecialNdtriBackward0", (x,), lambda: cast(_quantile(widened(x)), x._layout.dtype), backward)
