"""Elementwise mathematics: functions of one operand, selection, clamping, tests for NaN and closeness.

Functions with real values convert integer operands to the default floating type, as PyTorch does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from calque.autograd.assign import without_base
from calque.autograd.engine import require_history
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, AutogradError, DTypeError, UnsupportedTypeError
from calque.base.text import type_name
from calque.functional.arithmetic import abs as abs_
from calque.functional.arithmetic import call, float_result, gt, lt, mul, not_floating, record_numbers
from calque.functional.common import (
    Operand,
    cast,
    is_number,
    is_tensor,
    linked,
    method,
    number,
    operand,
    prim,
    require_numbers,
    require_operands,
    require_real,
    require_some_tensor,
    require_tensors,
    result_dtype,
    unless_nan,
)
from calque.functional.declared import public
from calque.functional.elementary import _float, erf, exp, log, log1p, sigmoid, sqrt
from calque.functional.options import fill_number, within
from calque.functional.views import sum_to_shape
from calque.functional.writing import kept_operand
from calque.observe.source import user_line
from calque.ops.opdef import get
from calque.record.nodes import FunctionNode
from calque.record.places import require_one_place
from calque.record.recorder import Trace, local
from calque.tensor import Tensor, binary, function_node, read, record, wrap

WHERE = get("where")


def pick(condition: Tensor, x: Any, y: Any, dtype: dt.DType) -> Tensor:
    """`where` of operands that are Tensors or numbers, converted to `dtype`."""
    return record(WHERE, (condition, operand("where", x, dtype), operand("where", y, dtype)))


@public(out="exact", steps=True)
def where(condition: Tensor, input: Operand = None, other: Operand = None) -> Any:
    """`input` where the condition holds, else `other`: (*) bool, (*), (*) -> (*), broadcast. With the condition alone, the index
    tensors of its
    True elements.

    >>> import calque
    >>> x = calque.tensor([-1.0, 2.0])
    >>> calque.where(x > 0, x, 0.0)
    tensor([0., 2.])
    """
    if input is None and other is None:
        return condition.nonzero(as_tuple=True)
    if condition._layout.dtype is dt.bool_:
        if other.__class__ is float and -60_000 < other < 60_000 and is_tensor(input) and input._layout.dtype.category == 2:
            return record(WHERE, (condition, input, (other, input._layout.dtype)))
        if input.__class__ is float and -60_000 < input < 60_000 and is_tensor(other) and other._layout.dtype.category == 2:
            return record(WHERE, (condition, (input, other._layout.dtype), other))
    require_operands("where", input, other)
    dtype = result_dtype(input, other)
    if condition._layout.dtype is not dt.bool_:
        if condition._layout.dtype is not dt.uint8:
            got = f"got a tensor with dtype {condition._layout.dtype!r}; compare it first"
            raise DTypeError(f"[where] expected condition to be a boolean tensor, but {got}")
        condition = cast(condition, dt.bool_)
    if dtype.category:
        input, other = (fill_number(within(x, dtype), dtype, "where") if is_number(x) else x for x in (input, other))
    return pick(condition, input, other, dtype)


def _where_method(input: Tensor, condition: Tensor, other: Operand) -> Any:
    """`input` where the condition holds, else `other`."""
    return where(condition, input, other)


method("where")(_where_method)


def with_formula(
    label: str, inputs: tuple[Tensor, ...], value: Callable[[], Tensor], backward: Callable[[Any], tuple[Any, ...]], straight: bool = False,
    uses: bool = False,
) -> Tensor:  # fmt: skip
    """A function whose gradient has a formula of its own: `value()` is recorded without history, `backward(g)` gives one gradient per input.
    `straight`: the formula is not the derivative of `value`, but goes past what has none (rounding). `uses`: it reads the result."""
    state = local.state
    before, state.grad = state.grad, False
    try:
        out = value()
    finally:
        state.grad = before
    if not state.plain and state.trace.__class__ is not Trace:
        out = state.trace.by_formula(inputs, out, backward, straight)
    if before and any(x._requires_grad for x in inputs) and out._layout.dtype.category >= 2:

        def rule(node: FunctionNode, grads: list[Any]) -> tuple[Any, ...]:
            require_history(node)
            return backward(grads[0])

        node = function_node(label, inputs, (out._layout,), rule)
        saved: dict[int, Any] = {**dict(enumerate(inputs)), **({-1: out._storage} if uses else {})}
        node.where, node.saved, node.versions = user_line(), saved, [(x if k < 0 else x._storage).version for k, x in saved.items()]
        if state.trace.transforms:
            state.trace.saving(node)
        without_base(out, inputs)._grad_fn, out._requires_grad = node, True
        if state.trace.transforms:
            out = state.trace.depending(out)
    return out


# ------------------------------------------------------------------------------------------------------------- unary


@public(in_place="both", out=True, steps=True)
def square(input: Tensor) -> Tensor:
    """`input * input`: (*) -> (*); bool gives int64."""
    if input._layout.dtype is dt.bool_:
        input = cast(input, dt.int64)
    return mul(input, input)


@public(in_place="both", out=True, of="calque special")
def exp2(input: Tensor) -> Tensor:
    """2**x: (*) -> (*)."""
    x = _float(input)
    if x._requires_grad:
        x = kept_operand(x)  # PyTorch keeps the result for the gradient: the operand may be written
    return record(get("pow"), ((2.0, x._layout.dtype), x))


@public(in_place="both", out="exact")
def frac(input: Tensor) -> Tensor:
    """`x - trunc(x)`: (*) -> (*), the sign of x; floating tensors only."""
    if input._layout.dtype.category != 2:
        raise UnsupportedTypeError(f"[frac] expected a floating dtype, got {input._layout.dtype!r}; integers have no fraction")
    return input - prim("trunc", input)


@public(in_place="both", out="exact", of="calque special")
def round(input: Tensor, *, decimals: int = 0) -> Tensor:
    """Nearest integer, halves to even: (*) -> (*). With `decimals`, that many digits after the point are kept (if negative, before it).

    >>> import calque
    >>> calque.round(calque.tensor([0.5, 1.5, 2.347]), decimals=2)
    tensor([0.5000, 1.5000, 2.3500])
    """
    if decimals == 0:
        return prim("round", input)
    if input._layout.dtype.category != 2:
        raise UnsupportedTypeError(f"[round] expected a floating dtype with decimals={decimals}, got {input._layout.dtype!r}; convert with .float()")
    scale, x = 10.0 ** int(math.fabs(decimals)), widened(input)
    if decimals > 0:
        return cast(prim("round", x * scale) / scale, input._layout.dtype)
    return cast(prim("round", x / scale) * scale, input._layout.dtype)


@public(in_place="both", out=True)
def fix(input: Tensor) -> Tensor:
    """x without its fraction: (*) -> (*). Alias of `trunc`."""
    return prim("trunc", input)


_ERFC = (
    -1.3026537197817094, 6.4196979235649026e-1, 1.9476473204185836e-2, -9.561514786808631e-3, -9.46595344482036e-4,
    3.66839497852761e-4, 4.2523324806907e-5, -2.0278578112534e-5, -1.624290004647e-6, 1.303655835580e-6, 1.5626441722e-8,
    -8.5238095915e-8, 6.529054439e-9, 5.059343495e-9, -9.91364156e-10, -2.27365122e-10, 9.6467911e-11, 2.394038e-12,
    -6.886027e-12, 8.94487e-13, 3.13092e-13, -1.12708e-13, 3.81e-16, 7.106e-15, -1.523e-15, -9.4e-17, 1.21e-16, -2.8e-17,
)  # fmt: skip


def _erfc_value(x: Tensor) -> Tensor:
    z = prim("abs", x)
    t = 2.0 / (z + 2.0)
    y = t * 4.0 - 2.0
    d = dd = t * 0.0
    for coefficient in _ERFC[:0:-1]:
        d, dd = y * d - dd + coefficient, d
    tail = t * exp((y * d + _ERFC[0]) * 0.5 - dd - z * z)
    return where(z < 0.5, 1.0 - erf(x), where(x < 0, 2.0 - tail, tail))


@public(in_place="both", out=True, of="calque special")
def erfc(input: Tensor) -> Tensor:
    """Complementary error function `1 - erf(x)`, accurate in the tail: (*) -> (*). Source: W. Press et al., "Numerical Recipes", 3rd ed., 6.2.2."""
    x = _float(input)
    kind = x._layout.dtype
    return with_formula("ErfcBackward0", (x,), lambda: cast(_erfc_value(widened(x)), kind), lambda g: (g * exp(-x * x) * (-2 / math.sqrt(math.pi)),))


@public(in_place="both", out=True, of="calque special", steps=True)
def logit(input: Tensor, eps: float | None = None) -> Tensor:
    """`log(x / (1 - x))`: (*) -> (*). With `eps`, x is first clamped to [eps, 1 - eps]; without, values outside [0, 1] give
    NaN."""
    require_real("logit", input)
    x = _float(input)

    def value() -> Tensor:
        inside = x if eps is None else clamp(x, eps, 1.0 - eps)
        return log(inside / (1.0 - inside))

    def backward(g: Tensor) -> tuple[Tensor]:
        low = 0.0 if eps is None else eps
        return (where((x >= low) & (x <= 1.0 - low), g / (x * (1.0 - x)), math.nan if eps is None else 0.0),)

    return with_formula("LogitBackward0", (x,), value, backward)


@public(in_place="both", out=True, of="calque special", steps=True)
def sinc(input: Tensor) -> Tensor:
    """`sin(pi x) / (pi x)`, 1 at 0: (*) -> (*)."""
    given = _float(input)
    at_zero = (x := widened(given)) == 0
    scaled = where(at_zero, 1.0, x) * math.pi
    return cast(where(at_zero, 1.0, prim("sin", scaled) / scaled), given._layout.dtype)


def widened(x: Tensor) -> Tensor:
    """16-bit floats as float32, so that a composite rounds once; other types unchanged."""
    return cast(x, dt.float32) if x._layout.dtype.itemsize == 2 else x


@public(in_place="both", out=True)
def deg2rad(input: Tensor) -> Tensor:
    """Degrees to radians: (*) -> (*)."""
    require_real("deg2rad", input)
    return _float(input) * (math.pi / 180)


@public(in_place="both", out=True)
def rad2deg(input: Tensor) -> Tensor:
    """Radians to degrees: (*) -> (*)."""
    require_real("rad2deg", input)
    return _float(input) * (180 / math.pi)


@public(in_place="both", out="exact", steps=True)
def nan_to_num(input: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """NaN replaced by `nan`, infinities by `posinf` and `neginf` (default: the largest finite values): (*) -> (*).

    >>> import calque
    >>> calque.nan_to_num(calque.tensor([float("nan"), 1.0]))
    tensor([0., 1.])
    """
    dtype = input._layout.dtype
    if dtype.category == 3:
        return prim("complex", *[nan_to_num(part, nan, posinf, neginf) for part in (input.real, input.imag)])  # type: ignore[attr-defined]
    if dtype.category != 2:
        return prim("copy", input)
    limits = dt.FInfo(dtype)
    result = where(isnan(input), float(nan or 0.0), input)
    result = where(isposinf(input), limits.max if posinf is None else float(posinf), result)
    return where(isneginf(input), limits.min if neginf is None else float(neginf), result)


# ------------------------------------------------------------------------------------------------------------ binary


def _float_binary(name: str) -> Callable[[Any, Any], Any]:
    op = get(name)

    def fallback(a: Any, b: Any) -> Any:
        if not (is_tensor(a) or is_number(a)) or not (is_tensor(b) or is_number(b)):
            return NotImplemented
        require_real(name, a, b)
        return record_numbers(op, a, b, float_result(a, b))

    return binary(op, fallback, not_floating)


_atan2 = _float_binary("atan2")


@public("arctan2", in_place="method", out=True)
def atan2(input: Operand, other: Operand) -> Tensor:
    """Angle of the point (x=other, y=input) in [-pi, pi], broadcast: (*), (*) -> (*)."""
    require_tensors("atan2", input, other)
    return call("atan2", _atan2, input, other)




def _both_float(name: str, a: Any, b: Any, promote: bool = True) -> tuple[Any, Any]:
    """Both operands as Tensors of the common floating type."""
    require_some_tensor(name, a, b)
    common = result_dtype(a, b)
    require_real(name, a, b)
    if common.category != 2:
        if not promote:
            raise UnsupportedTypeError(f"[{name}] expected floating tensors, got a result of type {common!r}; convert with .float()")
        common = dt.get_default_dtype()
    return as_tensor_of(a, common), as_tensor_of(b, common)


def as_tensor_of(x: Any, dtype: dt.DType) -> Tensor:
    """x as a Tensor of `dtype`; a number becomes 0-d."""
    return cast(x, dtype) if is_tensor(x) else prim("full", (float(number(x)), dtype), ())


@public(in_place="method", out=True, steps=True)
def hypot(input: Operand, other: Operand) -> Tensor:
    """`sqrt(input**2 + other**2)` without overflow, broadcast: (*), (*) -> (*)."""
    a, b = _both_float("hypot", input, other, promote=False)
    kind = dt.promote(a._layout.dtype, b._layout.dtype)
    a, b = widened(a), widened(b)
    first, second = abs_(a.detach()), abs_(b.detach())
    scale = prim("maximum", first, second)
    infinite = (first == math.inf) | (second == math.inf)  # also beside NaN
    safe = where((scale == 0) | infinite, 1.0, scale)
    x, y = a / safe, b / safe
    return cast(where(infinite, math.inf, sqrt(x * x + y * y) * safe), kind)


@public(out=True, steps=True)
def logaddexp(input: Operand, other: Operand) -> Tensor:
    """`log(exp(input) + exp(other))` without overflow, broadcast: (*), (*) -> (*)."""
    if result_dtype(input, other).is_complex:
        require_tensors("logaddexp", input, other)
        behind = input.detach().real < other.detach().real  # type: ignore[attr-defined]
        top, low = where(behind, other, input), where(behind, input, other)
        return top + log1p(exp(low - top))  # type: ignore[no-any-return]
    a, b = _both_float("logaddexp", input, other, promote=False)
    return _log_of_sum(a, b, 1.0)


def _log_of_sum(a: Tensor, b: Tensor, scale: float) -> Tensor:
    """log(exp(scale a) + exp(scale b)) / scale."""
    dtype = a._layout.dtype
    a, b = widened(a), widened(b)

    def value() -> Tensor:
        gap = where(a == b, 0.0, abs_(a - b))  # the difference of equal infinities is NaN
        return prim("maximum", a, b) + log1p(exp(gap * -scale)) * (1.0 / scale)

    def backward(g: Tensor) -> tuple[Tensor, Tensor]:
        ahead = where(isinf(a) & (a == b), 0.0, a - b) * scale
        parts = g * sigmoid(ahead), g * sigmoid(-ahead)
        return sum_to_shape(parts[0], tuple(a._layout.shape)), sum_to_shape(parts[1], tuple(b._layout.shape))

    return cast(with_formula("LogaddexpBackward0", (a, b), value, backward), dtype)


@public(out=True, steps=True)
def logaddexp2(input: Operand, other: Operand) -> Tensor:
    """`log2(2**input + 2**other)` without overflow, broadcast: (*), (*) -> (*)."""
    a, b = _both_float("logaddexp2", input, other, promote=False)
    return _log_of_sum(a, b, math.log(2))


@public(in_place="both", out=True, of="calque special", steps=True)
def xlogy(input: Operand, other: Operand) -> Tensor:
    """`input * log(other)`, and 0 where input is 0 (unless other is NaN), broadcast: (*), (*) -> (*)."""
    x, y = _both_float("xlogy", input, other)

    def value() -> Tensor:
        vanishes = (x == 0) & (y == y)
        return where(vanishes, 0.0, x * log(where(vanishes, 1.0, y)))

    def backward(g: Tensor) -> tuple[Tensor, Tensor]:
        inner = where((x == 0) & (y <= 0), 0.0, xlogy(g, y))
        return sum_to_shape(inner, tuple(x._layout.shape)), sum_to_shape(g * x / y, tuple(y._layout.shape))

    return with_formula("XlogyBackward0", (x, y), value, backward)


@public(in_place="method", out="exact", steps=True)
def heaviside(input: Tensor, values: Tensor) -> Tensor:
    """0 below zero, 1 above, `values` at zero, broadcast: (*), (*) -> (*). Raises RuntimeError when a gradient comes here: it has no derivative."""
    dtype = input._layout.dtype
    if values._layout.dtype is not dtype:
        raise DTypeError(f"[heaviside] expected `values` of dtype {dtype!r}, got {values._layout.dtype!r}; convert with .to(dtype)")

    def backward(g: Tensor) -> tuple[Any, ...]:
        raise AutogradError("[heaviside] the derivative of heaviside is not implemented: expected operands without a gradient; detach() them")

    return with_formula("HeavisideBackward0", (input, values), lambda: pick(input == 0, values, cast(input > 0, dtype), dtype), backward)


@public(out="exact", steps=True)
def signbit(input: Tensor) -> Tensor:
    """Whether the sign bit is set (also of -0.0): (*) -> (*) bool."""
    if input._layout.dtype.category != 2:
        return input < 0 if input._layout.dtype is not dt.bool_ else prim("ne", input, input)
    x = input.detach()
    return (x < 0) | ((x == 0) & (prim("reciprocal", x) < 0))


@public(in_place="method", out=True, steps=True)
def copysign(input: Operand, other: Operand) -> Tensor:
    """Magnitude of `input` with the sign of `other`, broadcast: (*), (*) -> (*)."""
    require_tensors("copysign", input)
    x, y = _both_float("copysign", input, other)
    size = abs_(x)
    return linked(where(signbit(y), -size, size), y)


@public(in_place="both", out=True, steps=True)
def ldexp(input: Operand, other: Operand) -> Tensor:
    """`input * 2**other`, broadcast: (*), (*) -> (*). With an integer `other` a floating input keeps its type, and only the result is rounded."""
    require_tensors("ldexp", input)
    if is_tensor(other) and input._layout.dtype.category == 2 and other._layout.dtype.category < 2:
        require_numbers("ldexp", other)
        wide = cast(input, dt.float64)
        steps = 4 if input._layout.dtype is dt.float64 else 1  # a step is a number of float64, for other types the whole product is one, too
        exponent = clamp(cast(other, dt.int64), -550 * steps, 550 * steps)
        for step in range(steps):
            wide = mul(wide, exp2(cast((exponent + step) // steps, dt.float64)))
        return cast(wide, input._layout.dtype)
    if is_tensor(other) and other._requires_grad:
        input = kept_operand(input)  # PyTorch keeps the result for the gradient, here as well
    if is_tensor(other) and input._layout.dtype is not dt.float32 and (input._layout.dtype.is_complex or not other._layout.ndim):
        other = cast(other, dt.promote(input._layout.dtype, other._layout.dtype))  # as PyTorch, whose 2 has the type of `input` and no dims
    return mul(input, exp2(other))


@public(in_place="method", out="exact", steps=True)
def float_power(input: Operand, exponent: Operand) -> Tensor:
    """`input ** exponent` in float64 (complex128 of complex operands), broadcast: (*), (*) -> (*)."""
    require_some_tensor("float_power", input, exponent)
    return record_numbers(get("pow"), input, exponent, dt.complex128 if result_dtype(input, exponent).is_complex else dt.float64)


# --------------------------------------------------------------------------------------------------------- clamping


@public("clip", in_place="both", out=True, steps=True)
def clamp(input: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """Values limited to [min, max], each a number, a Tensor that broadcasts, or None: (*) -> (*). Where min > max, the result is
    max.

    >>> import calque
    >>> calque.clamp(calque.tensor([-2.0, 0.5, 3.0]), 0, 1)
    tensor([0.0000, 0.5000, 1.0000])
    """
    if min is None and max is None:
        raise ArgumentError("[clamp] At least one of 'min' or 'max' must not be None; use clone() for a copy")
    dtype = input._layout.dtype
    if dtype.category == 2 and min.__class__ in _PLAIN and max.__class__ in _PLAIN:
        return _clamp_numbers(input, min, max, dtype)
    require_real("clamp", input)
    for bound in (min, max):
        if bound is not None:
            if not is_tensor(bound) and not is_number(bound):
                raise DTypeError(f"[clamp] expected bounds that are numbers or Tensors, got {type_name(bound)}")
            if is_number(bound) and number(bound) != number(bound):
                return _all_nan(input)
    dtype = result_dtype(input, *[bound for bound in (min, max) if bound is not None])
    min, max = (fill_number(bound, dtype, "clamp") if is_number(bound) else bound for bound in (min, max))
    result = unless_nan(cast(input, dtype))
    min, max = (unless_nan(cast(bound, dtype)) if is_tensor(bound) else bound for bound in (min, max))
    if is_tensor(min) and min._requires_grad and max is not None:  # a lower bound that the upper one overrules, or equals, has no gradient
        min = where(min < max, min, wrap(min._storage, min._layout))
    if min is not None:
        result = pick(_compare("lt", result, min, dtype), min, result, dtype)
    if max is not None:
        result = pick(_compare("gt", result, max, dtype), max, result, dtype)
    return result


_PLAIN = (int, float, type(None))


def _all_nan(x: Tensor) -> Tensor:
    return linked(wrap(x._storage, x._layout) * math.nan, x)


def _clamp_numbers(x: Tensor, low: float | None, high: float | None, dtype: dt.DType) -> Tensor:
    """The common case: floating x, bounds that are plain numbers."""
    if low != low or high != high:
        return _all_nan(x)
    x = unless_nan(x)
    if low is not None:
        x = record(WHERE, (lt(x, low), (fill_number(low, dtype, "clamp"), dtype), x))
    if high is not None:
        x = record(WHERE, (gt(x, high), (fill_number(high, dtype, "clamp"), dtype), x))
    return x


def _compare(name: str, x: Tensor, bound: Any, dtype: dt.DType) -> Tensor:
    """Where the bound is the result: it is beyond, or NaN."""
    beyond = record(get(name), (x, operand("clamp", bound, dtype)))
    if is_tensor(bound) and bound._layout.dtype.category == 2:
        return record(get("add"), (beyond, record(get("ne"), (bound, bound))))
    return beyond


@public(in_place="both", out=True, steps=True)
def clamp_min(input: Tensor, min: Any) -> Tensor:
    """Values below `min` replaced by it: (*) -> (*)."""
    return clamp(input, min=min)


@public(in_place="both", out=True, steps=True)
def clamp_max(input: Tensor, max: Any) -> Tensor:
    """Values above `max` replaced by it: (*) -> (*)."""
    return clamp(input, max=max)


# -------------------------------------------------------------------------------------------------------- tests


@public()
def isnan(input: Tensor) -> Tensor:
    """Whether each element is NaN: (*) -> (*) bool."""
    require_tensors("isnan", input)
    return prim("ne", input, input)


def _computable(input: Tensor) -> Tensor:
    """A float8 tensor as float32: not every such type has an infinity."""
    return cast(input, dt.float32) if input._layout.dtype.stored == "float8" else input


@public()
def isinf(input: Tensor) -> Tensor:
    """Whether each element is an infinity: (*) -> (*) bool."""
    input = _computable(input)
    return prim("abs", input) == math.inf if input._layout.dtype.category >= 2 else prim("ne", input, input)


@public(out="exact")
def isposinf(input: Tensor) -> Tensor:
    """Whether each element is +infinity: (*) -> (*) bool."""
    require_real("isposinf", input)
    return input == math.inf if input._layout.dtype.category == 2 else prim("ne", input, input)


@public(out="exact")
def isneginf(input: Tensor) -> Tensor:
    """Whether each element is -infinity: (*) -> (*) bool."""
    require_real("isneginf", input)
    return input == -math.inf if input._layout.dtype.category == 2 else prim("ne", input, input)


@public()
def isfinite(input: Tensor) -> Tensor:
    """Whether each element is neither NaN nor an infinity: (*) -> (*) bool."""
    if input._layout.dtype.category == 3:
        return isfinite(input.real) & isfinite(input.imag)  # type: ignore[attr-defined,no-any-return]
    input = _computable(input)
    return prim("abs", input) < math.inf if input._layout.dtype.category == 2 else prim("eq", input, input)


@public(steps=True)
def isclose(input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Tensor:
    """Whether `|input - other| <= atol + rtol |other|`, broadcast: (*), (*) -> (*) bool. Equal infinities are close."""
    if input._layout.dtype is not other._layout.dtype:
        kinds = f"{input._layout.dtype!r} did not match {other._layout.dtype!r}"
        raise DTypeError(f"[isclose] {kinds}: expected equal dtypes; convert with .to(dtype)")
    if rtol < 0 or atol < 0:
        raise ArgumentError(f"[isclose] expected tolerances >= 0, got rtol={rtol} and atol={atol}")
    close = prim("eq", input, other)
    if equal_nan and input._layout.dtype.category >= 2:
        close = close | (isnan(input) & isnan(other))
    if rtol == 0 and atol == 0:
        return close
    wide = input._layout.dtype if input._layout.dtype.category >= 2 else dt.get_default_dtype()
    a, b = cast(input, wide), cast(other, wide)
    distance = prim("abs", a - b)
    return close | ((distance < math.inf) & (distance <= prim("abs", b) * float(rtol) + float(atol)))


@public()
def allclose(input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> bool:
    """Whether all elements are close (see `isclose`), as a Python bool. Reads the values.

    >>> import calque
    >>> calque.allclose(calque.tensor([1.0]), calque.tensor([1.0 + 1e-7]))
    True
    """
    close = isclose(input, other, rtol, atol, equal_nan)
    return bool(read(prim("all", close, tuple(range(close._layout.ndim)), False)))


@public()
def equal(input: Tensor, other: Tensor) -> bool:
    """Whether both tensors have the same shape and values, as a Python bool. Reads the values."""
    require_one_place("equal", (input, other))
    if input._layout.shape != other._layout.shape:
        return False
    if local.state.trace.eager and input._layout.dtype is other._layout.dtype and input._layout.device is other._layout.device:
        same = prim("eq", input, other)
        return bool(read(prim("all", same, tuple(range(same._layout.ndim)), False)))
    return bool(np.array_equal(read(input), read(other)))
