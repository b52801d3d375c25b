"""Every Python operator of `Tensor`, also reflected and in place.

The common ones are the recording functions themselves, with no frame in between.
"""

from __future__ import annotations

from typing import Any

from calque.base.asked import LOCAL
from calque.base.errors import OverlapError
from calque.functional import arithmetic as ops
from calque.functional.arithmetic import OPERATORS, Binary
from calque.functional.common import called, method
from calque.functional.subclasses import ask, of_operator, overriding
from calque.functional.writing import old_value, own_result, write_back
from calque.ops.opdef import get
from calque.record.live import LiveFloat
from calque.tensor import Tensor, record

RECIPROCAL = get("reciprocal")
ORDINARY = (Tensor, int, float)  # operands whose classes need not be looked at


def reflected(function: Binary, name: str, operator: str) -> Binary:
    """`b - a` for an operator method called as `a.__rsub__(b)`. `name`: of the primitive."""
    op = get(name)

    def apply(a: Any, b: Any) -> Any:
        kind = b.__class__
        if (kind is float or kind is int) and a._layout.dtype.category == 2:
            return record(op, ((float(b), a._layout.dtype), a))
        return function(b, a)

    return called(apply, f"__r{operator}__")


def divided(a: Any, b: Any) -> Any:
    """`b / a` for an operator method called as `a.__rtruediv__(b)`: a number times the reciprocal, which is all that the gradient needs."""
    kind = b.__class__
    if (kind is float or kind is int or kind is LiveFloat) and a._layout.dtype.category == 2:
        inverse = record(RECIPROCAL, (a,))
        return own_result(inverse) if kind is not LiveFloat and b == 1 else ops._mul(inverse, b)
    return OPERATORS[ops._div](b, a)


def in_place(name: str, function: Binary) -> Binary:
    """The in-place operator of `function`, e.g. `+=`."""

    def apply(a: Any, b: Any) -> Any:
        if b.__class__ not in ORDINARY and (not isinstance(b, Tensor) or hasattr(b, "_meaning")) and not LOCAL.off and (found := overriding((b,))):
            return ask(of_operator(f"__i{name}__"), found, (a, b), {})
        value = function(old_value(a, b), b)
        try:
            return value if value is NotImplemented else write_back(name, a, value)
        except OverlapError as error:
            return error.again(name, function, apply, (a, b), {})

    return called(apply, f"__i{name}__")


def _attach_operators() -> None:
    table: dict[str, tuple[Binary, str]] = {  # with the primitive's name where the order of operands matters
        "add": (ops._add, ""), "sub": (ops._sub, "sub"), "mul": (ops._mul, ""), "truediv": (ops._div, ""),
        "floordiv": (ops._floor_divide, "floor_divide"),
        "mod": (ops._remainder, "remainder"), "pow": (ops.power, "pow"), "and": (ops._and, ""), "or": (ops._or, ""),
        "xor": (ops._xor, ""),
        "lshift": (ops._lshift, "shift_left"), "rshift": (ops._rshift, "shift_right"),
    }  # fmt: skip
    method("__rdiv__")(called(divided, "__rdiv__"))
    for name, (plain, primitive) in table.items():
        function = OPERATORS.get(plain, plain)
        method(f"__{name}__")(function)
        method(f"__r{name}__")(divided if name == "truediv" else reflected(function, primitive, name) if primitive else function)
        method(f"__i{name}__")(in_place(name, function))
    for name in ("floordiv", "and", "or", "xor", "lshift", "rshift"):  # which PyTorch has no other name for, where classes are asked
        called(OPERATORS[table[name][0]], f"__{name}__")
    called(ops.power, "pow")
    for name, function in (("lt", ops._lt), ("le", ops._le), ("gt", ops._gt), ("ge", ops._ge), ("eq", ops._eq), ("ne", ops._ne)):
        method(f"__{name}__")(OPERATORS[function])
    called(OPERATORS[ops._eq], "__eq__")
    method("__neg__")(ops._negate)
    method("__pos__")(ops.positive)


_attach_operators()
