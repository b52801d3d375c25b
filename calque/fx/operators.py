"""Python's operators as steps of a graph."""

from __future__ import annotations

import operator
from typing import Any

INFIX: dict[Any, str] = {
    operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/", operator.floordiv: "//", operator.mod: "%", operator.pow: "**",
    operator.lshift: "<<", operator.rshift: ">>", operator.and_: "&", operator.or_: "|", operator.xor: "^", operator.matmul: "@",
    operator.eq: "==", operator.ne: "!=", operator.lt: "<", operator.gt: ">", operator.le: "<=", operator.ge: ">=",
}  # fmt: skip
PREFIX: dict[Any, str] = {operator.neg: "-", operator.invert: "~", operator.pos: "+"}

# The special method of a class -> the function that the operator is.
ORDINARY: dict[str, Any] = {f"__{name}__": getattr(operator, name) for name in (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift", "matmul", "eq", "ne", "lt", "gt", "le", "ge", "neg", "invert",
    "pos", "getitem", "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "ilshift", "irshift", "iand", "ior", "ixor", "imatmul",
)} | {"__and__": operator.and_, "__or__": operator.or_, "__xor__": operator.xor, "__abs__": operator.abs}  # fmt: skip
REFLECTED: dict[str, Any] = {f"__r{name}__": ORDINARY[f"__{name}__"] for name in (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift", "matmul", "and", "or", "xor",
)}  # fmt: skip
