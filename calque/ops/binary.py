"""Elementwise primitives of two or three operands: arithmetic, comparisons, bits, `where`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from calque.base.dtypes import DType, bool_
from calque.base.errors import AutogradError, DTypeError
from calque.ops import bodies
from calque.ops.forward import flat
from calque.ops.opdef import Attrs, OpDef, Sample, Vjp, register
from calque.ops.rules import Array, binary, broadcasting, comparison, floating, integral, numeric, require_equal

# ---------------------------------------------------------------------------------------------------------------- arithmetic

binary(
    "add",
    "x + y; logical or on bool.",
    bodies.either("add", "or_"),
    np.add,
    (Vjp(lambda F, g, c: g), Vjp(lambda F, g, c: g)),
    dtypes=("float32", "float64", "int64", "uint8", "bool"),
    complex="direct",
    commutative=True,
    exact=True,
    wraps=True,
)
binary(
    "sub",
    "x - y.",
    lambda s, x, y: s.sub(x, y),
    np.subtract,
    (Vjp(lambda F, g, c: g), Vjp(lambda F, g, c: -g)),
    dtype=numeric("sub"),
    complex="direct",
    exact=True,
    wraps=True,
)
binary(
    "mul",
    "x * y; logical and on bool.",
    bodies.either("mul", "and_"),
    np.multiply,
    (Vjp(lambda F, g, c: g * c.x(1), (1,)), Vjp(lambda F, g, c: g * c.x(0), (0,))),
    dtypes=("float32", "float64", "int64", "uint8", "bool"),
    complex="holomorphic",
    stored="tensors",
    commutative=True,
    exact=True,
    wraps=True,
    wide=(0, 1),
)
binary(
    "div",
    "x / y of floating operands.",
    lambda s, x, y: s.div(x, y),
    np.divide,
    (Vjp(lambda F, g, c: g / c.x(1), (1,)), Vjp(lambda F, g, c: -g * ((c.x(0) / c.x(1)) / c.x(1)), (0, 1))),
    dtype=floating("div"),
    low=0.5,
    dtypes=("float32", "float64"),
    complex="holomorphic",
    exact=True,
    wide=(0, 1),
)


def integer_safe(function: Any) -> Any:
    """An integer operation whose division by zero gives 0 (the closed set's rule)."""

    def call(x: Array, y: Array) -> Array:
        divisor = np.where(y == 0, np.ones((), y.dtype), y)
        result: Array = np.where(y == 0, np.zeros((), x.dtype), function(x, divisor))
        return result.astype(x.dtype)

    return call


def divided(name: str) -> Callable[[tuple[int | None, ...]], str]:
    """The name of the node of a remainder, of which PyTorch has one of numbers and one of tensors."""
    return lambda ranks: f"{name}Backward{int(ranks[1] is not None)}"


def _floor_divide_ref(x: Array, y: Array) -> Array:
    if x.dtype.kind in "iu":
        result: Array = integer_safe(np.floor_divide)(x, y)
        return result
    m = np.fmod(x, y)
    quotient = np.rint((x - m) / y) - ((m != 0) & ((m < 0) != (y < 0)))
    quotient = np.where(quotient == 0, np.copysign(0.0, x / y), quotient)
    return np.where(y == 0, x / y, quotient).astype(x.dtype)


def _remainder_ref(x: Array, y: Array) -> Array:
    if x.dtype.kind in "iu":
        result: Array = integer_safe(np.mod)(x, y)
        return result
    m = np.fmod(x, y)
    return np.where((m != 0) & ((m < 0) != (y < 0)), m + y, m).astype(x.dtype)


def _fmod_ref(x: Array, y: Array) -> Array:
    result: Array = integer_safe(np.fmod)(x, y) if x.dtype.kind in "iu" else np.fmod(x, y)
    return result


def no_derivative(F: Any, g: Any, c: Any) -> Any:
    raise AutogradError(
        "[floor_divide] the derivative of floor_divide is not implemented: expected operands without a gradient; "
        "div(x, y, rounding_mode='floor') has one, of zeros"
    )


binary(
    "floor_divide",
    "floor(x / y); an integer division by zero gives 0.",
    bodies.floor_divide,
    _floor_divide_ref,
    (Vjp(no_derivative), Vjp(no_derivative)),
    dtype=numeric("floor_divide"),
    low=0.3,
    exact=True,
    jvp=flat,  # what is made of it by other operations, the derivative of a remainder, say, may move
    wide=(1,),
)
binary(
    "remainder",
    "x - y floor(x / y): the sign of y, as Python's %.",
    bodies.remainder,
    _remainder_ref,
    (Vjp(lambda F, g, c: g), Vjp(lambda F, g, c: -g * F.div(c.x(0), c.x(1), rounding_mode="floor"), (0, 1))),
    dtype=numeric("remainder"),
    node=divided("Remainder"),
    low=0.3,
    exact=True,
)
binary(
    "fmod",
    "x - y trunc(x / y): the sign of x, as C's fmod.",
    bodies.fmod,
    _fmod_ref,
    (Vjp(lambda F, g, c: g), Vjp(lambda F, g, c: -g * F.div(c.x(0), c.x(1), rounding_mode="trunc"), (0, 1))),
    dtype=numeric("fmod"),
    node=divided("Fmod"),
    low=0.3,
)


def _pow_ref(x: Array, y: Array) -> Array:
    if x.dtype.kind not in "iub":
        return np.power(x, y)
    if x.dtype == np.bool_:
        return x | ~y
    raised = np.power(x, np.maximum(y, np.zeros((), y.dtype)))
    if x.dtype.kind == "u":
        return np.asarray(raised)
    inverse = np.where(x == 1, 1, np.where(x == -1, np.where(y % 2 == 0, 1, -1), 0))
    return np.where(y < 0, inverse, raised).astype(x.dtype)


def _pow_base_gradient(F: Any, g: Any, c: Any) -> Any:
    """y x**(y - 1), and 0 where y = 0 whatever x is."""
    x, y = c.x(0), c.x(1)
    if not isinstance(y, int | float):
        return F.where(y == 0, 0.0, g * (y * F.pow(x, y - 1)))
    if y == 0:
        return F.zeros_like(g)
    if y == 1:
        return c.link(g, 0)
    return g * (x * 2) if y == 2 else g * (F.pow(x, y - 1) * y)


def _pow_exponent_gradient(F: Any, g: Any, c: Any) -> Any:
    """x**y log(x), and 0 where x = 0 <= y."""
    x, y = c.x(0), c.x(1)
    if isinstance(x, int | float):
        if x == 0:
            return g * F.where(y >= 0, 0.0, c.out * -math.inf)
        return g * (c.out * (math.log(x) if x > 0 else math.nan))
    vanishes = (x == 0) & ((F.real(y) if c.dtype(1).is_complex else y) >= 0)
    return g * F.where(vanishes, 0.0, c.out * F.log(x))


binary(
    "pow",
    "x**y; integers with a negative exponent give 1, -1 or 0.",
    bodies.power,
    _pow_ref,
    (Vjp(_pow_base_gradient, (0, 1)), Vjp(_pow_exponent_gradient, (0, 1, -1))),
    low=0.2,
    high=4.0,
    complex="holomorphic",
    node=lambda ranks: f"PowBackward{0 if ranks[1] is None else 2 if ranks[0] is None else 1}",
)
def _distance(F: Any, c: Any) -> Any:
    """x**2 + y**2, and 1 at the origin, where the angle has no derivative and PyTorch says 0."""
    square = c.x(0) * c.x(0) + c.x(1) * c.x(1)
    return F.where(square == 0, 1.0, square)


binary(
    "atan2",
    "Angle of the point (y, x), in [-pi, pi]; operands in the order (y, x).",
    bodies.atan2,
    np.arctan2,
    (
        Vjp(lambda F, g, c: g * (c.x(1) / _distance(F, c)), (0, 1)),
        Vjp(lambda F, g, c: -g * (c.x(0) / _distance(F, c)), (0, 1)),
    ),
    dtype=floating("atan2"),
    low=0.2,
    dtypes=("float32", "float64"),
)

# ------------------------------------------------------------------------------------------------------------------- extremes


def _extreme_gradient(own: int, larger: bool) -> Any:
    """The winner takes the gradient, equal operands take half each."""

    def rule(F: Any, g: Any, c: Any) -> Any:
        mine, other = c.x(own), c.x(1 - own)
        loses = mine < other if larger else mine > other
        return F.where(mine == other, g * 0.5, F.where(loses, 0.0, g))

    return rule


_body: Any
_ref: Any
for _name, _doc, _body, _ref in (
    ("maximum", "Larger of x and y; NaN if either is. Equal operands share the gradient.", bodies.either("max", "or_"), np.maximum),
    ("minimum", "Smaller of x and y; NaN if either is. Equal operands share the gradient.", bodies.either("min", "and_"), np.minimum),
):
    binary(
        _name, _doc, _body, _ref, tuple(Vjp(_extreme_gradient(own, _name == "maximum"), (0, 1)) for own in (0, 1)),
        dtypes=("float32", "float64", "int64", "bool"), commutative=True, exact=True, ordering=True,
    )  # fmt: skip

# ---------------------------------------------------------------------------------------------------------------- comparisons

_EQUALITY: dict[str, Any] = {"complex": "direct", "stored": "every", "commutative": True}
_ORDER: dict[str, Any] = {"ordering": True}
for _name, _doc, _ref, _fields in (
    ("lt", "x < y.", np.less, _ORDER),
    ("le", "x <= y.", np.less_equal, _ORDER),
    ("eq", "x == y.", np.equal, _EQUALITY),
    ("ne", "x != y.", np.not_equal, _EQUALITY),
    ("gt", "x > y.", np.greater, _ORDER),
    ("ge", "x >= y.", np.greater_equal, _ORDER),
):
    binary(
        _name, _doc, bodies.compare(_name), _ref, dtype=comparison(_name), dtypes=("float32", "float64", "int64", "uint8", "bool"), exact=True,
        **_fields,
    )  # fmt: skip

# ----------------------------------------------------------------------------------------------------------------------- bits

INTEGERS = ("int64", "int32", "uint8")
_BITS: dict[str, Any] = {"high": 100, "dtypes": (*INTEGERS, "bool"), "stored": "unsigned", "commutative": True, "exact": True}
_SHIFT: dict[str, Any] = {"high": 7, "dtypes": INTEGERS}
for _name, _doc, _body, _ref, _fields in (
    ("bitwise_and", "Bits set in both; logical and on bool.", lambda s, x, y: s.and_(x, y), np.bitwise_and, _BITS),
    ("bitwise_or", "Bits set in either; logical or on bool.", lambda s, x, y: s.or_(x, y), np.bitwise_or, _BITS),
    ("bitwise_xor", "Bits set in one of the two; logical exclusive or on bool.", lambda s, x, y: s.xor(x, y), np.bitwise_xor, _BITS),
    ("shift_left", "x times 2**y, wrapping; 0 <= y < bits.", lambda s, x, y: s.shl(x, y), np.left_shift, _SHIFT),
    ("shift_right", "floor(x / 2**y); 0 <= y < bits.", lambda s, x, y: s.shr(x, y), np.right_shift, _SHIFT),
):
    binary(_name, _doc, _body, _ref, dtype=integral(_name, allow_bool=_fields is _BITS), low=0, **_fields)

# ---------------------------------------------------------------------------------------------------------------------- where


def _where_dtype(dtypes: Sequence[DType], attrs: Attrs) -> DType:
    if dtypes[0] is not bool_:
        raise DTypeError(f"[where] expected a condition of dtype torch.bool, got {dtypes[0]!r}; compare it with something first")
    return require_equal("where", dtypes[1:])


def _where_vjp(own: int) -> Vjp:
    return Vjp(lambda F, g, c: F.where(c.x(0), g, 0.0) if own == 1 else F.where(c.x(0), 0.0, g), (0,))


register(
    OpDef(
        "where",
        "elementwise",
        "x where the condition holds, else y.",
        arity=3,
        shape=broadcasting("where"),
        dtype=_where_dtype,
        body=lambda s, condition, x, y: s.select(condition, x, y),
        vjp=(None, _where_vjp(1), _where_vjp(2)),
        ref=np.where,
        samples=(
            Sample(((3, 4), (3, 4), (3, 4)), integers=((0, 2),)),
            Sample(((3, 1), (4,), ()), integers=((0, 2),)),
            Sample(((0, 2), (1, 2), ()), integers=((0, 2),)),
        ),
        dtypes=("float32", "float64", "int64", "bool"),
        complex="direct",
        stored="every",
        exact=True,
    )
)
