"""The closed scalar set on NumPy arrays: runs a `body` as it stands, to check it against `ref` or in place of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from calque.base.dtypes import DType, bool_, from_numpy_dtype
from calque.base.shapes import Shape
from calque.ops.elementwise import convert_array
from calque.ops.opdef import OpDef

Array = np.ndarray[Any, Any]

class NumpyBuilder:
    """A scalar builder whose values are arrays that broadcast to `shape`, the shape of the output."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    def dtype(self, x: Array) -> DType:
        """Element type of a value."""
        found = from_numpy_dtype(x.dtype)
        assert found is not None, x.dtype
        return found

    def const(self, value: bool | int | float, dtype: DType) -> Array:
        """A 0-d value."""
        return np.asarray(value, dtype.np)

    def index(self, dim: int) -> Array:
        """Position along output dimension `dim`."""
        rank = len(self.shape)
        return np.arange(self.shape[dim], dtype=np.int64).reshape((1,) * dim + (-1,) + (1,) * (rank - dim - 1))

    def flat_index(self) -> Array:
        """Row-major position in the output."""
        return np.arange(math.prod(self.shape), dtype=np.int64).reshape(self.shape)

    def cast(self, x: Array, dtype: DType) -> Array:
        """Conversion of values."""
        return np.asarray(convert_array(x, dtype))

    def bitcast(self, x: Array, dtype: DType) -> Array:
        """The same bits as another type of the same size."""
        return np.ascontiguousarray(x).view(dtype.np).reshape(x.shape)

    def select(self, condition: Array, yes: Array, no: Array) -> Array:
        """yes where the condition holds, else no."""
        return np.where(condition, yes, no)

    def fma(self, a: Array, b: Array, c: Array) -> Array:
        """a * b + c; one rounding for float32 (through float64), two for float64, which NumPy cannot avoid."""
        if a.dtype == np.float32:
            return np.asarray(a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(np.float32)
        return np.asarray(a * b + c)

    def erf(self, x: Array) -> Array:
        """Error function."""
        return np.fromiter(map(math.erf, x.ravel().tolist()), np.float64, x.size).reshape(x.shape).astype(x.dtype)

    def floordiv(self, x: Array, y: Array) -> Array:
        """Quotient rounded down; integers divided by zero give 0."""
        return _division(np.floor_divide, x, y)

    def mod(self, x: Array, y: Array) -> Array:
        """Remainder with the sign of y; integers divided by zero give 0."""
        return _division(np.mod, x, y)

    def __getattr__(self, name: str) -> Callable[..., Array]:
        """The instructions that are one NumPy function."""
        try:
            function = _FUNCTIONS[name]
        except KeyError:
            raise AttributeError(f"{name!r} is not in the closed scalar set") from None
        return lambda *operands: np.asarray(function(*operands))


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "neg": np.negative, "abs": np.abs, "not_": np.invert, "sqrt": np.sqrt, "exp": np.exp, "exp_shifted": np.exp, "log": np.log, "sin": np.sin,
    "cos": np.cos, "tanh": np.tanh, "atan": np.arctan, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc,
    "rint": np.rint, "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "pow": np.power,
    "min": np.minimum, "max": np.maximum, "and_": np.bitwise_and, "or_": np.bitwise_or, "xor": np.bitwise_xor,
    "shl": np.left_shift, "shr": np.right_shift, "lt": np.less, "le": np.less_equal, "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip


def _division(function: Callable[..., Any], x: Array, y: Array) -> Array:
    if x.dtype.kind not in "iu":
        return np.asarray(function(x, y))
    zero, one = np.zeros((), x.dtype), np.ones((), x.dtype)
    return np.where(y == 0, zero, function(x, np.where(y == 0, one, y)))


def run_body(op: OpDef, operands: Sequence[Array], attrs: Sequence[Any], shape: Shape, dtype: DType) -> Array:
    """The body of a primitive on whole arrays. 16-bit floats compute in float32 and round once, as in compiled kernels."""
    builder = NumpyBuilder(shape)
    wide = [x.astype(np.float32) if builder.dtype(x).compute is not builder.dtype(x) else x for x in operands]
    with np.errstate(all="ignore"):
        value = op.body(builder, *wide, *attrs)  # type: ignore[misc]  # only elementwise primitives come here
        if dtype is not bool_:
            value = np.asarray(value).astype(dtype.np)
    return np.array(np.broadcast_to(value, shape))
