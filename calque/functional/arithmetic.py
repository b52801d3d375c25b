"""Arithmetic, comparisons, logic and bits on two operands.

Operands are Tensors or numbers; shapes broadcast, dtypes follow PyTorch's promotion. Integer division by zero raises
`ZeroDivisionError`: at once for a number, when the result is computed for a Tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, DTypeError, IntegerOverflowError, NotDense, UnsupportedTypeError, how_to_pass
from calque.base.text import described, shown, type_name
from calque.functional.common import (
    Operand,
    cast,
    is_number,
    is_scalar,
    is_tensor,
    linked,
    method,
    number,
    operand,
    prim,
    require_real,
    require_some_tensor,
    require_tensors,
    result_dtype,
)
from calque.functional.declared import public
from calque.functional.options import factor
from calque.functional.subclasses import ask, of_operator, others, public_function
from calque.functional.writing import own_result
from calque.observe.source import user_line
from calque.ops.opdef import OpDef, get
from calque.record.live import LiveFloat
from calque.record.outputs import stored
from calque.record.recorder import add_check, local
from calque.tensor import TENSOR_TYPES, Tensor, binary, record, slot_of, unary, upload_known, wrap

Binary = Callable[[Any, Any], Any]


# ------------------------------------------------------------------------------------------------------------- operands


def as_operand(x: Any) -> Any:
    """A Tensor or number unchanged, a NumPy array as a Tensor, anything else as NotImplemented."""
    if is_tensor(x) or is_scalar(x):
        return x
    if isinstance(x, np.ndarray):
        dtype = dt.from_numpy_dtype(x.dtype)
        if dtype is not None:
            return upload_known(x, dtype)
    if type_name(x) in ("torch.Tensor", "torch.Parameter"):  # Python would say "for 'Tensor' and 'Tensor'"
        raise DTypeError(f"[operator] expected a Tensor or a number, got {type_name(x)}; {how_to_pass(x)}")
    return NotImplemented


def record_numbers(op: OpDef, a: Any, b: Any, dtype: dt.DType) -> Tensor:
    """Record `op` on two operands converted to `dtype`; two numbers give a 0-d tensor."""
    if not is_tensor(a) and not is_tensor(b):
        a = operand(op.name, a, dtype) if dtype.is_complex else prim("full", (number(a), dtype), ())
    return record(op, (operand(op.name, a, dtype), operand(op.name, b, dtype)))


def _general(name: str, rule: Callable[[Any, Any], dt.DType], check: Callable[..., None] | None, arrays: bool, numbers: bool) -> Binary:
    """The general path of a binary operation. `rule` gives the operand type; `check(name, a, b, dtype)` may refuse. `arrays`: NumPy arrays are
    operands, too. `numbers`: PyTorch computes it of two numbers, too."""
    op = get(name)

    def fallback(a: Any, b: Any) -> Any:
        if arrays:
            given = a, b
            a, b = as_operand(a), as_operand(b)
            if (a is NotImplemented or b is NotImplemented) and (found := others(given)):
                return ask(of_operator(name), found, given, {})
            if op.commutative and is_scalar(a):  # of `Tensor.__radd__(1, x)`: an operator itself has its tensor in front
                require_tensors(f"__{name}__", a)
        if not (is_tensor(a) or is_scalar(a)) or not (is_tensor(b) or is_scalar(b)):
            return NotImplemented
        if not numbers:
            require_some_tensor(name, a, b)
        try:
            dtype = rule(a, b)
        except NotDense as asked:
            return asked.meaning(name, (a, b), {})
        if dtype.category == 1:
            a, b, dtype = _in_range(name, a, b, dtype)
        if check is not None:
            check(name, a, b, dtype)
        if dtype.compute is not dtype and 1 in op.wide and is_tensor(b) and not b._layout.ndim:  # it is taken as a number
            return cast(record_numbers(op, a, b, dtype.compute), dtype)
        return record_numbers(op, a, b, dtype)

    return fallback


COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


def _in_range(name: str, a: Any, b: Any, dtype: dt.DType) -> tuple[Any, Any, dt.DType]:
    """An integer beyond the Tensor's type wraps around as PyTorch's does, if it has no more than 64 bits; a comparison with it is made in int64."""
    low, high = (-(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1) if dtype.is_signed else (0, (1 << dtype.bits) - 1)
    for x in (a, b):
        if not is_tensor(x) and not low <= x <= high:
            compared = name in COMPARISONS
            if not -(1 << 63) <= x < (1 << 63 if compared else 1 << 64):
                raise IntegerOverflowError(f"[{name}] expected an integer of 64 bits, got {shown(x)}; int too big to convert")
            if compared:
                return a, b, dt.int64
            if name == "pow" and x is b:
                if x > high:
                    raise ArgumentError(f"[pow] value cannot be converted to type {dtype.name} without overflow: expected at most {high}, got {x}")
                continue  # a negative exponent is refused by its own check
            wrapped = (int(x) - low) % (1 << dtype.bits) + low
            a, b = (wrapped if a is x else a), (wrapped if b is x else b)
    return a, b, dtype


def float_result(a: Any, b: Any) -> dt.DType:
    """The promoted type, or the default floating type if that is an integer type."""
    dtype = result_dtype(a, b)
    return dtype if dtype.category >= 2 else dt.get_default_dtype()


def not_floating(a: Tensor, b: Tensor) -> bool:
    """Whether two Tensors of one dtype hold integers or bool."""
    return a._layout.dtype.category < 2


def _are_bool(a: Tensor, b: Tensor) -> bool:
    return a._layout.dtype is dt.bool_


def _no_bool_minus(name: str, a: Any, b: Any, dtype: dt.DType) -> None:
    for x in (a, b):
        if isinstance(x, bool) or (is_tensor(x) and x._layout.dtype is dt.bool_):
            raise DTypeError(
                "[sub] Subtraction, the `-` operator, with a bool tensor is not supported: expected numbers, got torch.bool; "
                "use the `^` or `logical_xor()` operator, or `~` to invert a mask"
            )


def _integer_power(name: str, a: Any, b: Any, dtype: dt.DType) -> None:
    if dtype.category >= 2:
        return
    if is_number(b) and b < 0:
        raise ArgumentError(f"[{name}] Integers to negative integer powers are not allowed, got exponent {b}; convert with .float()")


def _no_bool(name: str, a: Any, b: Any, dtype: dt.DType) -> None:
    if dtype is dt.bool_:
        raise UnsupportedTypeError(f"[{name}] expected numbers, got torch.bool; convert one operand with .to(dtype)")


def _zero_divisor(name: str, a: Any, b: Any, dtype: dt.DType) -> None:
    """Refuse a zero divisor of an integer division: at once if it is a number, else by a check when the value is computed."""
    _no_bool(name, a, b, dtype)
    if dtype.category >= 2 or dtype.stored:  # complex and stored types the operation refuses, whatever the divisor is
        return
    if is_number(b):
        if b == 0 and (not is_tensor(a) or a._layout.numel):
            raise ZeroDivisionError(f"[{name}] integer division by zero: expected a divisor other than 0, got {b}, first at position 0")
        return
    view = b._layout
    if not view.numel or (is_tensor(a) and not a._layout.numel):
        return
    line, shape = user_line(), tuple(view.shape)
    detached = b.detach() if b._requires_grad else b
    where_zero = prim("where", _eq(detached, 0), prim("iota", shape, dt.int64), (view.numel, dt.int64))
    first = prim("amin", where_zero, tuple(range(len(shape))), False) if shape else where_zero
    bad = prim("where", prim("eq", first, (view.numel, dt.int64)), (-1, dt.int64), first)
    slot = slot_of(local.state.trace, bad)

    def error(position: int) -> Exception:
        index = tuple(int(i) for i in np.unravel_index(position, shape)) if shape else ()
        return ZeroDivisionError(
            f"[{name}] integer division by zero: the divisor of shape {shape} is 0 first at position {index} (recorded at "
            f"{line}); "
            "replace zeros first or divide as floating point"
        )

    add_check(slot, error)


# -------------------------------------------------------------------------------------- recorded functions (fast paths)


OPERATORS: dict[Binary, Binary] = {}


def _build(
    name: str, rule: Callable[[Any, Any], dt.DType] = result_dtype, check: Any = None, unusual: Any = None, numbers: bool = False
) -> Binary:  # fmt: skip
    """The function, which takes Tensors and numbers; `OPERATORS` holds the operator, which takes NumPy arrays as well. `numbers`: see `_general`."""
    function = binary(get(name), _general(name, rule, check, False, numbers), unusual)
    OPERATORS[function] = binary(get(name), _general(name, rule, check, True, numbers), unusual)
    return function


_add = _build("add", numbers=True)
_sub = _build("sub", check=_no_bool_minus, unusual=_are_bool, numbers=True)
_mul = _build("mul", numbers=True)
_div = _build("div", float_result, unusual=not_floating, numbers=True)
_floor_divide = _build("floor_divide", check=_zero_divisor, unusual=not_floating, numbers=True)
_remainder = _build("remainder", check=_zero_divisor, unusual=not_floating)
_fmod = _build("fmod", check=_zero_divisor, unusual=not_floating)
_pow = _build("pow", check=_integer_power, unusual=not_floating)
_maximum = _build("maximum")
_minimum = _build("minimum")
_lt, _le, _gt, _ge = _build("lt"), _build("le"), _build("gt"), _build("ge")
_eq, _ne = _build("eq"), _build("ne")
_and, _or, _xor = _build("bitwise_and"), _build("bitwise_or"), _build("bitwise_xor")
_lshift, _rshift = _build("shift_left"), _build("shift_right")


def call(name: str, function: Binary, a: Any, b: Any, given: Any = None) -> Any:
    """Apply an operator function, raising TypeError where it declines its operands. `given`: the operands in the order in which the program gave
    them, if that is another."""
    try:
        result = function(a, b)
    except NotDense as asked:
        return asked.meaning(name, given or (a, b), {})
    if result is NotImplemented:
        if found := others((a, b)):
            return ask(public_function(name), found, given or (a, b), {})
        raise DTypeError(
            f"[{name}] expected Tensors or numbers, got {type_name(a)} and {type_name(b)}; "
            f"{how_to_pass(a if not is_tensor(a) and not is_number(a) else b)}"
        )
    return result


def _of_tensor(name: str, function: Binary, a: Any, b: Any, both: bool = False) -> Any:
    """`call` of a function whose first operand, or of which both, may be no number."""
    if a.__class__ not in TENSOR_TYPES or both and b.__class__ not in TENSOR_TYPES:
        require_tensors(name, *(a, b)[: 1 + both])
    return call(name, function, a, b)


# ----------------------------------------------------------------------------------------------------------- arithmetic


def _scaled(name: str, function: Binary, a: Any, b: Any, alpha: Any) -> Any:
    """a + alpha b (or a - alpha b), where a and b alone decide the dtype; 16-bit floats are rounded once."""
    given = (b, a) if name == "rsub" else (a, b)
    if alpha.__class__ is int and alpha == 1:
        return call(name, function, a, b, given)
    if not is_scalar(alpha) and not is_tensor(alpha):
        raise DTypeError(f"[{name}] expected alpha as a number, got {described(alpha)}; multiply by other values yourself")
    alpha = number(alpha)
    if not (is_tensor(a) or is_tensor(b)) or not (is_tensor(a) or is_scalar(a)) or not (is_tensor(b) or is_scalar(b)):
        if found := others(given):
            return ask(public_function(name), found, given, {"alpha": alpha})
        return call(name, function, a, call(name, _mul, b, alpha))
    common = result_dtype(a, b)
    if function is _sub:
        _no_bool_minus(name, a, b, common)
    if common.category == 2 and is_tensor(b) and b._layout.dtype is common is common.compute and alpha.__class__ in (int, float):
        if function is _sub:  # as PyTorch, which subtracts by adding: the sign of a zero shows it
            function, alpha = _add, -alpha
        return call(name, function, a, _mul(b, alpha))
    alpha = factor(name, alpha, common)
    if common.category == 1:
        a, b, _ = _in_range(name, a, b, common)
    alpha = cast(alpha, common.compute) if is_tensor(alpha) else alpha  # the negative of an unsigned one is another number
    scaled = record_numbers(get("mul"), b, -alpha if function is _sub else alpha, common.compute)
    return cast(record_numbers(get("add"), a, scaled, common.compute), common)


@public(in_place="method", out=True)
def add(input: Operand, other: Operand, _: Any = None, *, alpha: Any = 1, out: Tensor | None = None) -> Tensor:
    """`input + alpha * other`, broadcast: (*), (*) -> (*). Logical or on bool.

    >>> import calque
    >>> calque.add(calque.tensor([1, 2]), 10)
    tensor([11, 12])
    """
    if _ is not None:  # the old order: add(x, alpha, y)
        other, alpha = _, other
    if out is not None:
        return stored("add", add, (input, other), {"alpha": alpha}, out)  # type: ignore[no-any-return]
    try:
        return _scaled("add", _add, input, other, alpha)
    except NotDense as asked:
        return asked.meaning("add", (input, other), {"alpha": alpha})  # type: ignore[no-any-return]


@public("subtract", in_place="method", out=True)
def sub(input: Operand, other: Operand, _: Any = None, *, alpha: Any = 1, out: Tensor | None = None) -> Tensor:
    """`input - alpha * other`, broadcast: (*), (*) -> (*). Refuses bool."""
    if _ is not None:
        other, alpha = _, other
    if out is not None:
        return stored("sub", sub, (input, other), {"alpha": alpha}, out)  # type: ignore[no-any-return]
    try:
        return _scaled("sub", _sub, input, other, alpha)
    except NotDense as asked:
        return asked.meaning("sub", (input, other), {"alpha": alpha})  # type: ignore[no-any-return]


@public()
def rsub(input: Operand, other: Operand, *, alpha: Any = 1) -> Tensor:
    """`other - alpha * input`, broadcast."""
    require_tensors("rsub", input)
    try:
        return _scaled("rsub", _sub, other, input, alpha)
    except NotDense as asked:
        return asked.meaning("rsub", (input, other), {"alpha": alpha})  # type: ignore[no-any-return]


@public("multiply", in_place="method", out=True)
def mul(input: Operand, other: Operand, _: Any = None, out: Tensor | None = None) -> Tensor:
    """Elementwise product, broadcast: (*), (*) -> (*). Logical and on bool."""
    if out is not _:
        return stored("mul", mul, (input, other), {}, out, _)  # type: ignore[no-any-return]
    return call("mul", _mul, input, other)


@public("divide", in_place="method", out=True, steps=True)
def div(input: Operand, other: Operand, *, rounding_mode: str | None = None, out: Tensor | None = None) -> Tensor:
    """Elementwise quotient, broadcast. Integers give the default floating type unless rounded.

    rounding_mode: None, "trunc" (towards zero) or "floor".

    >>> import calque
    >>> calque.div(calque.tensor([-7, 7]), 2, rounding_mode="trunc")
    tensor([-3,  3])
    """
    if out is not None:
        return stored("div", div, (input, other), {"rounding_mode": rounding_mode}, out)  # type: ignore[no-any-return]
    if rounding_mode is None:
        return call("div", _div, input, other)
    if found := others((input, other)):
        return ask(public_function("div"), found, (input, other), {"rounding_mode": rounding_mode})
    try:
        return _rounded_quotient(input, other, rounding_mode)
    except NotDense as asked:
        return asked.meaning("div", (input, other), {"rounding_mode": rounding_mode})  # type: ignore[no-any-return]


def _rounded_quotient(input: Operand, other: Operand, rounding_mode: str) -> Tensor:
    if not isinstance(rounding_mode, str) or rounding_mode not in ("floor", "trunc"):
        raise ArgumentError(f"[div] expected rounding_mode None, 'trunc' or 'floor', got {shown(rounding_mode)}")
    require_real(f"div with rounding_mode={rounding_mode!r}", input, other)
    if rounding_mode == "floor":
        plain = [x.detach() if is_tensor(x) else x for x in (input, other)]
        return linked(call("div", _floor_divide, *plain), input, other)  # flat, which `floor_divide` is not: it has no derivative
    quotient, a, b = call("div", _div, input, other), input, other
    common = result_dtype(a, b)
    if common.category == 2:
        return linked(prim("trunc", wrap(quotient._storage, quotient._layout)), a, b)  # flat, also beside a division by zero
    a, b = (cast(x, common) if is_tensor(x) else int(x) for x in (a, b))
    return call("div", _floor_divide, call("div", _sub, a, call("div", _fmod, a, b)), b)  # exact: the remainder is gone


@public(in_place="method", out=True)
def true_divide(input: Operand, other: Operand) -> Tensor:
    """`input / other`; integers give the default floating type."""
    return call("true_divide", _div, input, other)


@public(in_place="method", out=True)
def floor_divide(input: Operand, other: Operand) -> Tensor:
    """`floor(input / other)`, broadcast; raises ZeroDivisionError for an integer divided by zero, and RuntimeError when a gradient
    comes here (`div(..., rounding_mode="floor")` has one, of zeros).

    >>> import calque
    >>> calque.floor_divide(calque.tensor([7, -7]), 2)
    tensor([ 3, -4])
    """
    return call("floor_divide", _floor_divide, input, other)


@public(in_place="method", out=True)
def remainder(input: Operand, other: Operand) -> Tensor:
    """Remainder with the divisor's sign (Python's `%`), broadcast; ZeroDivisionError for an integer modulo zero."""
    return call("remainder", _remainder, input, other)


@public(in_place="method", out=True)
def fmod(input: Operand, other: Operand) -> Tensor:
    """Remainder with the dividend's sign (C's `fmod`), broadcast; ZeroDivisionError for an integer modulo zero."""
    return _of_tensor("fmod", _fmod, input, other)


def power(input: Any, exponent: Any, general: Binary = OPERATORS[_pow]) -> Any:
    """`input ** exponent`: the operator. Small integer exponents become multiplications."""
    kind = exponent.__class__
    if kind is LiveFloat:  # which way it goes depends on the value
        exponent, kind = float(exponent), float
    if (kind is int or kind is float) and is_tensor(input):
        floating = input._layout.dtype.category >= 2
        if floating or kind is int and input._layout.dtype.category == 1:
            if exponent == 2:
                return _mul(input, input)
            if exponent == 3:
                wide = cast(input, input._layout.dtype.compute)  # rounded once
                return cast(_mul(_mul(wide, wide), wide), input._layout.dtype)
        if floating:
            if exponent == 1:
                return prim("kink", input)  # its gradient is that of a power
            if exponent == 0.5:
                return own_result(prim("sqrt", input))  # the gradient of a power is that of its operand: the result may be written
            if exponent == -1:
                return own_result(prim("reciprocal", input))
    return general(input, exponent)


def _power(input: Any, exponent: Any) -> Any:
    return power(input, exponent, _pow)


@public(in_place="method", out=True)
def pow(input: Operand, exponent: Operand) -> Tensor:
    """`input ** exponent`, broadcast: (*), (*) -> (*).

    >>> import calque
    >>> calque.pow(calque.tensor([1.0, 2.0, 3.0]), 2)
    tensor([1., 4., 9.])
    """
    return call("pow", _power, input, exponent)


_neg = unary(get("neg"))
_abs = unary(get("abs"))


def _negate(input: Tensor) -> Tensor:
    if input._layout.dtype is dt.bool_:
        raise DTypeError(
            "[neg] Negation, the `-` operator, on a bool tensor is not supported: expected numbers, got torch.bool; "
            "use the `~` or `logical_not()` operator to invert a mask"
        )
    return _neg(input)


@public("negative", in_place="both", out="exact")
def neg(input: Tensor) -> Tensor:
    """`-input`: (*) -> (*). Refuses bool."""
    return _negate(input)


@public()
def positive(input: Tensor) -> Tensor:
    """`+input`: the tensor itself. Refuses bool."""
    if input._layout.dtype is dt.bool_:
        raise DTypeError("[positive] The `+` operator, on a bool tensor is not supported: expected numbers, got torch.bool")
    return input


@public("absolute", own=False, in_place="method", out="real")
@public(in_place="both", out="real")
@method("__abs__")
def abs(input: Tensor) -> Tensor:
    """Absolute value: (*) -> (*). The gradient at 0 is 0. Of complex numbers: their real distance from 0."""
    if input._layout.dtype is dt.bool_:
        raise UnsupportedTypeError("[abs] expected numbers, got torch.bool; a mask has no absolute value")
    return _abs(input)


# ---------------------------------------------------------------------------------------------------------- comparisons


@public("less", in_place="method", out=True)
def lt(input: Operand, other: Operand) -> Tensor:
    """`input < other` as bool, broadcast."""
    return _of_tensor("lt", _lt, input, other)


@public("less_equal", in_place="method", out=True)
def le(input: Operand, other: Operand) -> Tensor:
    """`input <= other` as bool, broadcast."""
    return _of_tensor("le", _le, input, other)


@public("greater", in_place="method", out=True)
def gt(input: Operand, other: Operand) -> Tensor:
    """`input > other` as bool, broadcast."""
    return _of_tensor("gt", _gt, input, other)


@public("greater_equal", in_place="method", out=True)
def ge(input: Operand, other: Operand) -> Tensor:
    """`input >= other` as bool, broadcast."""
    return _of_tensor("ge", _ge, input, other)


@public(in_place="method", out=True)
def eq(input: Operand, other: Operand) -> Tensor:
    """`input == other` as bool, broadcast.

    >>> import calque
    >>> calque.eq(calque.tensor([1, 2]), 2)
    tensor([False,  True])
    """
    return _of_tensor("eq", _eq, input, other)


@public("not_equal", in_place="method", out=True)
def ne(input: Operand, other: Operand) -> Tensor:
    """`input != other` as bool, broadcast."""
    return _of_tensor("ne", _ne, input, other)


@public(out=True)
def maximum(input: Operand, other: Operand) -> Tensor:
    """Larger of two, broadcast; NaN if either is NaN. Equal operands share the gradient.

    >>> import calque
    >>> calque.maximum(calque.tensor([1, 5]), calque.tensor([3, 2]))
    tensor([3, 5])
    """
    return _of_tensor("maximum", _maximum, input, other, both=True)


@public(out=True)
def minimum(input: Operand, other: Operand) -> Tensor:
    """Smaller of two, broadcast; NaN if either is NaN. Equal operands share the gradient."""
    return _of_tensor("minimum", _minimum, input, other, both=True)


# ------------------------------------------------------------------------------------------------------- logic and bits


def truth(x: Any) -> Any:
    """x as a bool tensor or Python bool: whether each element is not zero. What is neither a Tensor nor a number stays as it is."""
    if is_tensor(x):
        return cast(x, dt.bool_)
    return bool(x) if is_number(x) else x


@public(in_place="method", out=True)
def logical_and(input: Operand, other: Operand) -> Tensor:
    """Whether both are non-zero, broadcast; any dtype -> bool."""
    return _of_tensor("logical_and", _and, truth(input), truth(other), both=True)


@public(in_place="method", out=True)
def logical_or(input: Operand, other: Operand) -> Tensor:
    """Whether either is non-zero, broadcast; any dtype -> bool."""
    return _of_tensor("logical_or", _or, truth(input), truth(other), both=True)


@public(in_place="method", out=True)
def logical_xor(input: Operand, other: Operand) -> Tensor:
    """Whether exactly one is non-zero, broadcast; any dtype -> bool."""
    return _of_tensor("logical_xor", _xor, truth(input), truth(other), both=True)


@public(in_place="method", out=True)
def logical_not(input: Tensor) -> Tensor:
    """Whether each element is zero; any dtype -> bool."""
    require_tensors("logical_not", input)
    return prim("logical_not", input)


@public(in_place="method", out=True)
def bitwise_and(input: Operand, other: Operand) -> Tensor:
    """Bits set in both, broadcast; integers and bool."""
    return call("bitwise_and", _and, input, other)


@public(in_place="method", out=True)
def bitwise_or(input: Operand, other: Operand) -> Tensor:
    """Bits set in either, broadcast; integers and bool."""
    return call("bitwise_or", _or, input, other)


@public(in_place="method", out=True)
def bitwise_xor(input: Operand, other: Operand) -> Tensor:
    """Bits set in exactly one, broadcast; integers and bool."""
    return call("bitwise_xor", _xor, input, other)


@public(in_place="method", out="exact")
@method("__invert__")
def bitwise_not(input: Tensor) -> Tensor:
    """All bits flipped; logical not on bool."""
    return prim("bitwise_not", input)


@public(in_place="method", out=True)
def bitwise_left_shift(input: Operand, other: Operand) -> Tensor:
    """`input * 2**other` for integers, broadcast."""
    return call("bitwise_left_shift", _lshift, input, other)


@public(in_place="method", out=True)
def bitwise_right_shift(input: Operand, other: Operand) -> Tensor:
    """`floor(input / 2**other)` for integers, broadcast."""
    return call("bitwise_right_shift", _rshift, input, other)
