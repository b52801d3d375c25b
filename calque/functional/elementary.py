"""Functions that are one primitive each: exponentials, trigonometric and hyperbolic functions, roots, rounding."""

from __future__ import annotations

from typing import Any

from calque.base import dtypes as dt
from calque.functional.common import cast, method, unary_function
from calque.functional.writing import own_result
from calque.tensor import Tensor


def _float(x: Tensor) -> Tensor:
    """x itself, or x in the default floating type if it holds integers."""
    return x if x._layout.dtype.category >= 2 else cast(x, dt.get_default_dtype())


def _define(name: str, doc: str, *aliases: str, to_float: bool = True) -> Any:
    """The recording function of a primitive, documented and attached to `Tensor`. It is called without any frame in between."""
    function = unary_function(name, to_float)
    function.__doc__ = f"{doc}: (*) -> (*)." + (" Integers give the default floating type." if to_float else "")
    function.__module__ = __name__
    function.__qualname__ = name
    return method(name, *aliases)(function)


exp = _define("exp", "e**x")
expm1 = _define("expm1", "e**x - 1, accurate near 0")
log = _define("log", "Natural logarithm")
log1p = _define("log1p", "log(1 + x), accurate near 0")
log2 = _define("log2", "Logarithm to base 2")
sqrt = _define("sqrt", "Square root, NaN below 0")
rsqrt = _define("rsqrt", "1 / sqrt(x)")
reciprocal = _define("reciprocal", "1 / x")
sin = _define("sin", "Sine of an angle in radians")
cos = _define("cos", "Cosine of an angle in radians")
tan = _define("tan", "Tangent of an angle in radians")
asin = arcsin = _define("asin", "Arc sine, in [-pi/2, pi/2]", "arcsin")
acos = arccos = _define("acos", "Arc cosine, in [0, pi]", "arccos")
atan = arctan = _define("atan", "Arc tangent, in (-pi/2, pi/2)", "arctan")
sinh = _define("sinh", "Hyperbolic sine")
cosh = _define("cosh", "Hyperbolic cosine")
tanh = _define("tanh", "Hyperbolic tangent")
asinh = arcsinh = _define("asinh", "Inverse hyperbolic sine", "arcsinh")
acosh = arccosh = _define("acosh", "Inverse hyperbolic cosine, NaN below 1", "arccosh")
atanh = arctanh = _define("atanh", "Inverse hyperbolic tangent, NaN outside [-1, 1]", "arctanh")
erf = _define("erf", "Error function")
_erfinv = unary_function("erfinv", True)


@method()
def erfinv(input: Tensor) -> Tensor:
    """Inverse of erf, on [-1, 1]: (*) -> (*). Integers give the default floating type."""
    return own_result(_erfinv(input))  # PyTorch keeps the operand for the gradient: the result may be written


lgamma = _define("lgamma", "Logarithm of |gamma(x)|")
digamma = _define("digamma", "Derivative of lgamma")
sigmoid = _define("sigmoid", "1 / (1 + e**-x)", "expit")
relu = _define("relu", "max(x, 0), with gradient 0 at 0", to_float=False)
sign = _define("sign", "-1, 0 or 1", to_float=False)
floor = _define("floor", "Largest integer <= x", to_float=False)
ceil = _define("ceil", "Smallest integer >= x", to_float=False)
trunc = _define("trunc", "x without its fraction", to_float=False)

__all__ = [
    "acos", "acosh", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctanh", "asin", "asinh", "atan", "atanh", "ceil",
    "cos", "cosh",
    "digamma", "erf", "erfinv", "exp", "expm1", "floor", "lgamma", "log", "log1p", "log2", "reciprocal", "relu", "rsqrt",
    "sigmoid",
    "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
]  # fmt: skip
