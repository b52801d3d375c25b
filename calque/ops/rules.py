"""Inference rules and small helpers that records of several families share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from calque.base.dtypes import DType, bool_, int64
from calque.base.errors import DTypeError, UnsupportedTypeError
from calque.base.shapes import Shape, broadcast_shapes
from calque.ops.opdef import Attrs, DTypeRule, OpDef, Reference, Sample, ShapeRule, Vjp, register

Array = np.ndarray[Any, Any]
Rule = Callable[..., Any]


def listed(dtypes: Sequence[DType]) -> str:
    """`torch.float32 and torch.int64`, for messages."""
    return " and ".join(repr(d) for d in dtypes)


def require_equal(name: str, dtypes: Sequence[DType]) -> DType:
    """The common dtype of the operands."""
    for dtype in dtypes:
        if dtype is not dtypes[0]:
            raise DTypeError(
                f"[{name}] expected operands of one dtype, got {listed(dtypes)}; convert one of them with .to(dtype)"
            )
    return dtypes[0]


def any_dtype(name: str) -> DTypeRule:
    """Operands of one dtype; the result has it too."""

    def rule(dtypes: Sequence[DType], attrs: Attrs) -> DType:
        return require_equal(name, dtypes)

    return rule


def floating(name: str) -> DTypeRule:
    """Floating operands of one dtype; the result has it too."""

    def rule(dtypes: Sequence[DType], attrs: Attrs) -> DType:
        dtype = require_equal(name, dtypes)
        if dtype.category < 2:
            raise UnsupportedTypeError(f"[{name}] expected a floating dtype, got {dtype!r}; convert with .float() or .double()")
        return dtype

    return rule


def numeric(name: str) -> DTypeRule:
    """Operands of one dtype other than bool; the result has it too."""

    def rule(dtypes: Sequence[DType], attrs: Attrs) -> DType:
        dtype = require_equal(name, dtypes)
        if dtype is bool_:
            raise UnsupportedTypeError(
                f"[{name}] expected a number dtype, got torch.bool; use ~x, logical_not(), bitwise_xor() or .to(dtype)"
            )
        return dtype

    return rule


def integral(name: str, allow_bool: bool = True) -> DTypeRule:
    """Integer (or bool) operands of one dtype; the result has it too."""

    def rule(dtypes: Sequence[DType], attrs: Attrs) -> DType:
        dtype = require_equal(name, dtypes)
        if dtype.category >= 2 or (dtype is bool_ and not allow_bool):
            raise UnsupportedTypeError(f"[{name}] expected an integer dtype, got {dtype!r}; convert with .long()")
        return dtype

    return rule


def comparison(name: str) -> DTypeRule:
    """Operands of one dtype; the result is bool."""

    def rule(dtypes: Sequence[DType], attrs: Attrs) -> DType:
        require_equal(name, dtypes)
        return bool_

    return rule


def only_bool(name: str) -> DTypeRule:
    """A bool operand, a bool result."""

    def rule(dtypes: Sequence[DType], attrs: Attrs) -> DType:
        if dtypes[0] is not bool_:
            raise UnsupportedTypeError(f"[{name}] expected torch.bool, got {dtypes[0]!r}; compare with 0 first")
        return bool_

    return rule


def check_index(name: str, dtype: DType) -> None:
    """Raise unless `dtype` is int64."""
    if dtype is not int64:
        raise DTypeError(f"[{name}] expected an index of dtype torch.int64, got {dtype!r}; convert it with .long()")


def broadcasting(name: str) -> ShapeRule:
    """NumPy's broadcasting of all operands; errors carry the op's name."""

    def rule(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
        return broadcast_shapes(*shapes, op=name)

    return rule


def same_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    """The shape of the first operand."""
    return shapes[0]


def widen(x: Array) -> Array:
    """Floats of 16 and of 8 bits as float32, everything else unchanged: the type in which references compute."""
    return x.astype(np.float32) if x.dtype.itemsize <= 2 and x.dtype.kind not in "iub" else x


class OperandRules(tuple[Vjp | None, ...]):
    """Gradient rules of a primitive with any number of operands: `rule_of(k)` makes operand k's on demand. They save nothing."""

    rule_of: Callable[[int], Vjp]

    def __new__(cls, rule_of: Callable[[int], Vjp]) -> "OperandRules":
        rules = super().__new__(cls)
        rules.rule_of = rule_of
        return rules

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, k: Any) -> Any:
        return self.rule_of(k)


UNARY_SHAPES: tuple[Shape, ...] = ((3, 4), (), (0, 3), (2, 1, 5))
BINARY_SHAPES: tuple[tuple[Shape, Shape], ...] = (((3, 4), (3, 4)), ((4, 1), (3,)), ((), (2, 2)), ((0, 3), (1, 3)), ((), ()))


def unary(
    name: str,
    doc: str,
    body: Rule,
    ref: Reference,
    vjp: Vjp | None = None,
    *,
    dtype: DTypeRule | None = None,
    low: float = -2.0,
    high: float = 2.0,
    dtypes: tuple[str, ...] = ("float32", "float64"),
    **fields: Any,
) -> OpDef:
    """Register an elementwise primitive of one operand, floating unless `dtype` says otherwise. `fields`: others of the record."""
    return register(
        OpDef(
            name,
            "elementwise",
            doc,
            shape=same_shape,
            dtype=dtype or floating(name),
            body=body,
            vjp=(vjp,) if vjp else (),
            ref=ref,
            samples=tuple(Sample((shape,), low=low, high=high, differentiable=vjp is not None) for shape in UNARY_SHAPES),
            dtypes=dtypes,
            **fields,
        )
    )


def binary(
    name: str,
    doc: str,
    body: Rule,
    ref: Reference,
    vjp: tuple[Vjp | None, ...] = (),
    *,
    dtype: DTypeRule | None = None,
    low: float = -2.0,
    high: float = 2.0,
    dtypes: tuple[str, ...] = ("float32", "float64", "int64"),
    **fields: Any,
) -> OpDef:
    """Register an elementwise primitive of two broadcasting operands of one dtype. `fields`: others of the record."""
    return register(
        OpDef(
            name,
            "elementwise",
            doc,
            arity=2,
            shape=broadcasting(name),
            dtype=dtype or any_dtype(name),
            body=body,
            vjp=vjp,
            ref=ref,
            samples=tuple(Sample(shapes, low=low, high=high, differentiable=bool(vjp)) for shapes in BINARY_SHAPES),
            dtypes=dtypes,
            **fields,
        )
    )
