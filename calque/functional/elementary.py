"""Functions that are one primitive each: exponentials, trigonometric and hyperbolic functions, roots, rounding."""

from __future__ import annotations

from typing import Any

from calque.base import dtypes as dt
from calque.functional.common import cast, unary_function
from calque.functional.declared import public
from calque.functional.writing import own_result
from calque.tensor import Tensor


def _float(x: Tensor) -> Tensor:
    """x itself, or x in the default floating type if it holds integers."""
    return x if x._layout.dtype.category >= 2 else cast(x, dt.get_default_dtype())


def define(
    name: str, doc: str, *aliases: str, of: str = "calque", to_float: bool = True, in_place: str = "both", out: bool | str = True
) -> Any:
    """The recording function of a primitive, documented and declared. It is called without any frame in between."""
    function = unary_function(name, to_float)
    function.__doc__ = f"{doc}: (*) -> (*)." + (" Integers give the default floating type." if to_float else "")
    function.__module__ = __name__
    function.__qualname__ = name
    return public(*aliases, of=of, in_place=in_place, out=out)(function)


exp = define("exp", "e**x")
expm1 = define("expm1", "e**x - 1, accurate near 0", of="calque special")
log = define("log", "Natural logarithm")
log1p = define("log1p", "log(1 + x), accurate near 0", of="calque special")
log2 = define("log2", "Logarithm to base 2")
log10 = define("log10", "Logarithm to base 10")
sqrt = define("sqrt", "Square root, NaN below 0")
rsqrt = define("rsqrt", "1 / sqrt(x)")
reciprocal = define("reciprocal", "1 / x")
sin = define("sin", "Sine of an angle in radians")
cos = define("cos", "Cosine of an angle in radians")
tan = define("tan", "Tangent of an angle in radians")
asin = define("asin", "Arc sine, in [-pi/2, pi/2]", "arcsin")
acos = define("acos", "Arc cosine, in [0, pi]", "arccos")
atan = define("atan", "Arc tangent, in (-pi/2, pi/2)", "arctan")
sinh = define("sinh", "Hyperbolic sine")
cosh = define("cosh", "Hyperbolic cosine")
tanh = define("tanh", "Hyperbolic tangent")
asinh = define("asinh", "Inverse hyperbolic sine", "arcsinh")
acosh = define("acosh", "Inverse hyperbolic cosine, NaN below 1", "arccosh")
atanh = define("atanh", "Inverse hyperbolic tangent, NaN outside [-1, 1]", "arctanh")
erf = define("erf", "Error function", of="calque special")
_erfinv = unary_function("erfinv", True)


@public(in_place="method", out=True, of="calque special")
def erfinv(input: Tensor) -> Tensor:
    """Inverse of erf, on [-1, 1]: (*) -> (*). Integers give the default floating type."""
    return own_result(_erfinv(input))  # PyTorch keeps the operand for the gradient: the result may be written


lgamma = define("lgamma", "Logarithm of |gamma(x)|", "special.gammaln", in_place="method")
digamma = define("digamma", "Derivative of lgamma", "special.psi", of="calque special", in_place="method")
sigmoid = define("sigmoid", "1 / (1 + e**-x)", "special.expit")
relu = define("relu", "max(x, 0), with gradient 0 at 0", to_float=False, out=False)
sign = define("sign", "-1, 0 or 1", to_float=False, out="exact", in_place="method")
floor = define("floor", "Largest integer <= x", to_float=False, out="exact")
ceil = define("ceil", "Smallest integer >= x", to_float=False, out="exact")
trunc = define("trunc", "x without its fraction", to_float=False, out="exact")
