"""Elementwise primitives of one operand, and `cast`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from calque.base.dtypes import DType, bool_, dtype_by_name
from calque.ops import bodies
from calque.ops.forward import flat, linear
from calque.ops.opdef import Attrs, OpDef, Sample, Vjp, register
from calque.ops.rules import UNARY_SHAPES, Array, any_dtype, comparison, integral, numeric, same_shape, unary

NUMBERS = ("float32", "float64", "int64", "int8")


def _zero_gradient(F: Any, g: Any, c: Any) -> Any:
    return F.zeros_like(g)


FLAT = Vjp(_zero_gradient)  # piecewise constant functions

# ------------------------------------------------------------------------------------------------------ arithmetic and signs

def _size(dtypes: Sequence[DType], attrs: Attrs) -> DType:
    return numeric("abs")(dtypes, attrs).to_real()


def _size_moves(F: Any, op: OpDef, c: Any, tangents: Sequence[Any]) -> Any:
    direction = F.sgn(c.x(0))
    return F.real(F.conj(direction) * tangents[0]) if c.dtype(0).is_complex else direction * tangents[0]


unary(
    "neg", "-x.", lambda s, x: s.neg(x), np.negative, Vjp(lambda F, g, c: -g), dtype=numeric("neg"), dtypes=NUMBERS, complex="direct", exact=True,
    involution=True, wraps=True,
)  # fmt: skip
unary(
    "abs",
    "|x|; the gradient at 0 is 0.",
    bodies.absolute,
    np.abs,
    Vjp(lambda F, g, c: g * F.sgn(c.x(0)), (0,)),
    dtype=_size,
    dtypes=NUMBERS,
    complex="direct",
    stored="tensors",
    jvp=_size_moves,
    exact=True,
    idempotent=True,
)
unary(
    "sign",
    "-1, 0 or 1; NaN gives 0.",
    bodies.sign,
    lambda x: x if x.dtype == np.bool_ else (x > 0).astype(x.dtype) - (x < 0).astype(x.dtype),
    FLAT,
    dtype=any_dtype("sign"),
    dtypes=NUMBERS,
)
unary(
    "reciprocal",
    "1 / x.",
    lambda s, x: s.div(bodies.like(s, x, 1), x),
    lambda x: 1 / x,
    Vjp(lambda F, g, c: -g * (c.out * c.out), (-1,)),
    low=0.5,
    complex="holomorphic",
)
unary(
    "sqrt", "Square root; NaN below 0.", lambda s, x: s.sqrt(x), np.sqrt, Vjp(lambda F, g, c: g / (c.out * 2), (-1,)), low=0.1, complex="holomorphic",
    exact=True,
)  # fmt: skip
unary(
    "rsqrt",
    "1 / sqrt(x).",
    lambda s, x: s.div(bodies.like(s, x, 1), s.sqrt(x)),
    lambda x: 1 / np.sqrt(x),
    Vjp(lambda F, g, c: g * (c.out * c.out * c.out) * -0.5, (-1,)),
    low=0.2,
    complex="holomorphic",
)

# ------------------------------------------------------------------------------------------------ exponentials and logarithms

def _log10_ref(x: Array) -> Array:
    wide = np.float64 if x.dtype == np.float32 else x.dtype  # NumPy's in float32 is not exact for powers of ten
    result: Array = np.log10(x.astype(wide)).astype(x.dtype)
    return result


unary("exp", "e**x.", lambda s, x: s.exp(x), np.exp, Vjp(lambda F, g, c: g * c.out, (-1,)), complex="holomorphic")
unary(
    "exp_shifted", "e**x of numbers that the largest was subtracted from; to a unit in the last place and one more for every 25 below 0.",
    lambda s, x: s.exp_shifted(x), np.exp, Vjp(lambda F, g, c: g * c.out, (-1,)), high=0.0,
)  # fmt: skip
unary("expm1", "e**x - 1, accurate near 0.", bodies.expm1, np.expm1, Vjp(lambda F, g, c: g * (c.out + 1), (-1,)), complex="holomorphic")
unary("log", "Natural logarithm.", lambda s, x: s.log(x), np.log, Vjp(lambda F, g, c: g / c.x(0), (0,)), low=0.1, complex="holomorphic")
unary("log1p", "log(1 + x), accurate near 0.", bodies.log1p, np.log1p, Vjp(lambda F, g, c: g / (c.x(0) + 1), (0,)), low=-0.8, complex="holomorphic",
      node="Log1P")
unary("log2", "Logarithm to base 2.", bodies.log2, np.log2, Vjp(lambda F, g, c: g / (c.x(0) * math.log(2)), (0,)), low=0.1, complex="holomorphic")
unary(
    "log10", "Logarithm to base 10.", bodies.log10, _log10_ref,
    Vjp(lambda F, g, c: g / (c.x(0) * math.log(10)), (0,)), low=0.1, complex="holomorphic",
)  # fmt: skip


def _sigmoid_ref(x: Array) -> Array:
    if x.dtype.kind == "c":
        return np.asarray(1 / (1 + np.exp(-x)))
    e = np.exp(-np.abs(x))
    result: Array = np.where(x < 0, e, 1) / (1 + e)
    return result.astype(x.dtype)


unary("sigmoid", "1 / (1 + e**-x).", bodies.sigmoid, _sigmoid_ref, Vjp(lambda F, g, c: g * (1 - c.out) * c.out, (-1,)), complex="holomorphic")

# ----------------------------------------------------------------------------------------------- trigonometric and hyperbolic

unary("sin", "Sine.", lambda s, x: s.sin(x), np.sin, Vjp(lambda F, g, c: g * F.cos(c.x(0)), (0,)), complex="holomorphic")
unary("cos", "Cosine.", lambda s, x: s.cos(x), np.cos, Vjp(lambda F, g, c: -g * F.sin(c.x(0)), (0,)), complex="holomorphic")
unary(
    "tan",
    "Tangent.",
    lambda s, x: s.div(s.sin(x), s.cos(x)),
    np.tan,
    Vjp(lambda F, g, c: g * (c.out * c.out + 1), (-1,)),
    low=-1.2,
    high=1.2,
    complex="holomorphic",
)
unary(
    "asin",
    "Arc sine, in [-pi/2, pi/2].",
    bodies.asin,
    np.arcsin,
    Vjp(lambda F, g, c: g * F.rsqrt(1 - c.x(0) * c.x(0)), (0,)),
    low=-0.9,
    high=0.9,
    complex="holomorphic",
)
unary(
    "acos",
    "Arc cosine, in [0, pi].",
    bodies.acos,
    np.arccos,
    Vjp(lambda F, g, c: -g * F.rsqrt(1 - c.x(0) * c.x(0)), (0,)),
    low=-0.9,
    high=0.9,
    complex="holomorphic",
)
unary("atan", "Arc tangent.", lambda s, x: s.atan(x), np.arctan, Vjp(lambda F, g, c: g / (c.x(0) * c.x(0) + 1), (0,)), complex="holomorphic")
def _acosh_gradient(F: Any, g: Any, c: Any) -> Any:
    """Of complex numbers with one root for each factor: the root of the product may be on the other branch."""
    x = c.x(0)
    return g * (F.rsqrt(x + 1) * F.rsqrt(x - 1)) if c.dtype(0).is_complex else g * F.rsqrt(x * x - 1)


unary("sinh", "Hyperbolic sine.", bodies.sinh, np.sinh, Vjp(lambda F, g, c: g * F.cosh(c.x(0)), (0,)), complex="holomorphic")
unary("cosh", "Hyperbolic cosine.", bodies.cosh, np.cosh, Vjp(lambda F, g, c: g * F.sinh(c.x(0)), (0,)), complex="holomorphic")
unary("tanh", "Hyperbolic tangent.", lambda s, x: s.tanh(x), np.tanh, Vjp(lambda F, g, c: g * (1 - c.out * c.out), (-1,)), complex="holomorphic")
unary("asinh", "Inverse of sinh.", bodies.asinh, np.arcsinh, Vjp(lambda F, g, c: g * F.rsqrt(c.x(0) * c.x(0) + 1), (0,)), complex="holomorphic")
unary(
    "acosh",
    "Inverse of cosh for x >= 1.",
    bodies.acosh,
    np.arccosh,
    Vjp(_acosh_gradient, (0,)),
    low=1.2,
    high=4.0,
    complex="holomorphic",
)
unary(
    "atanh",
    "Inverse of tanh on (-1, 1).",
    bodies.atanh,
    np.arctanh,
    Vjp(lambda F, g, c: g / (1 - c.x(0) * c.x(0)), (0,)),
    low=-0.9,
    high=0.9,
    complex="holomorphic",
)

# ------------------------------------------------------------------------------------------------------ rounding and clipping

unary(
    "relu",
    "max(x, 0); the gradient at 0 is 0.",
    lambda s, x: s.max(x, bodies.like(s, x, 0)),
    lambda x: np.maximum(x, np.zeros((), x.dtype)),
    Vjp(lambda F, g, c: c.link(F.where(c.out <= 0, 0.0, g), 0), (-1,)),
    dtype=numeric("relu"),
    dtypes=NUMBERS,
    idempotent=True,
)


def _rounding(name: str, doc: str, instruction: str, ref: Any, exact: bool = True) -> None:
    unary(
        name,
        doc,
        bodies.integer_identity(instruction),
        lambda x: ref(x) if x.dtype.kind not in "iub" else x,
        FLAT,
        dtype=numeric(name),
        dtypes=NUMBERS,
        stored="unsigned",
        exact=exact,
        idempotent=True,
    )


_rounding("floor", "Largest integer <= x.", "floor", np.floor)
_rounding("ceil", "Smallest integer >= x.", "ceil", np.ceil)
_rounding("round", "Nearest integer, halves to even.", "rint", np.rint, exact=False)
_rounding("trunc", "x without its fraction.", "trunc", np.trunc)

# ------------------------------------------------------------------------------------------------------------------- logical

unary(
    "logical_not",
    "Whether x is 0.",
    lambda s, x: s.not_(x) if bodies.is_bool(s, x) else s.eq(x, bodies.like(s, x, 0)),
    lambda x: x == 0,
    dtype=comparison("logical_not"),
    dtypes=("bool", "float32", "int64"),
    complex="direct",
    exact=True,
    involution=True,
)
unary(
    "bitwise_not",
    "All bits flipped; logical not on bool.",
    lambda s, x: s.not_(x),
    np.invert,
    dtype=integral("bitwise_not"),
    low=-100,
    high=100,
    dtypes=("bool", "int64", "uint8"),
    exact=True,
    involution=True,
)

# -------------------------------------------------------------------------------------------------------------- cast and copy

unary(
    "copy", "x itself, as a new value.", lambda s, x: x, lambda x: x.copy(), Vjp(lambda F, g, c: g), dtype=any_dtype("copy"), complex="direct",
    stored="every",
    exact=True, identity=True, ordered=False, node="Clone",
)  # fmt: skip
unary(
    "kink", "x itself, before a function that is linear in pieces: its gradient depends on x, with derivative zero.",
    lambda s, x: x, lambda x: x.copy(), Vjp(lambda F, g, c: c.link(g, 0)), dtype=any_dtype("kink"),
    complex="direct",
    exact=True, identity=True,
)  # fmt: skip
unary(
    "still", "x itself, which no gradient reaches: in exported programs, where a gradient of the function ends.",
    lambda s, x: x, lambda x: x.copy(), None, dtype=any_dtype("still"), jvp=flat,
    complex="direct", exact=True, identity=True,
)  # fmt: skip


def convert_array(x: Array, dtype: DType) -> Array:
    """PyTorch's conversion of a NumPy array: to bool is "not zero", floats reach narrow integers through int32."""
    if dtype is bool_:
        return np.asarray(x != 0)
    if x.dtype.kind == "c" and dtype.category < 3:
        x = x.real  # as NumPy does, which warns
    if x.dtype.kind not in "iub" and dtype.category == 1 and (dtype.itemsize < 4 or dtype.stored):
        x = np.where(x >= 2.0**63, x - 2.0**64, x).astype(np.int64) if dtype.itemsize == 8 else x.astype(np.int32 if dtype.itemsize < 4 else np.int64)
    return np.array(dtype.encode(x))


def _cast_dtype(dtypes: Sequence[DType], attrs: Attrs) -> DType:
    result: DType = attrs[0]
    return result


register(
    OpDef(
        "cast",
        "elementwise",
        "x converted to `dtype`: floats truncate to integers, anything non-zero is True.",
        attrs=("dtype",),
        shape=same_shape,
        dtype=_cast_dtype,
        body=bodies.convert,
        vjp=(Vjp(lambda F, g, c: F.cast(g, c.dtype(0))),),
        jvp=linear,
        ref=convert_array,
        node="ToCopy",
        samples=tuple(Sample((shape,), (dtype_by_name("float64"),)) for shape in UNARY_SHAPES)
        + tuple(
            Sample(((3, 4),), (dtype_by_name(name),), low=0.0, high=90.0, differentiable=False)
            for name in ("float32", "int64", "int8", "uint8", "bool", "float16", "bfloat16")
        ),
        dtypes=("float32", "float64", "int64", "uint8", "bool", "float16", "bfloat16"),
        complex="direct",
        stored="every",
        exact=True,
    )
)
