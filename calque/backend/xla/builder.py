"""The closed scalar set on JAX arrays: runs the `body` of a primitive while a program is traced."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from calque.base.dtypes import DType, bool_, from_numpy_dtype
from calque.base.shapes import Shape
from calque.ops.opdef import OpDef

Value = Any
Hidden = dict[tuple[str, int], Value]

_FUNCTIONS = {
    "neg": "negative", "abs": "abs", "not_": "invert", "sqrt": "sqrt", "exp": "exp", "exp_shifted": "exp", "log": "log", "sin": "sin", "cos": "cos",
    "tanh": "tanh", "atan": "arctan", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "rint": "rint",
    "mul": "multiply", "pow": "power", "min": "minimum", "max": "maximum", "and_": "bitwise_and", "or_": "bitwise_or",
    "xor": "bitwise_xor", "shl": "left_shift", "shr": "right_shift", "lt": "less", "le": "less_equal", "eq": "equal", "ne": "not_equal",
}  # fmt: skip


class JaxBuilder:
    """A scalar builder whose values are JAX arrays that broadcast to `shape`, the shape of the output. `hidden`: what XLA
    must not look into where such an operation comes again, by the operation and its id, of the whole program."""

    def __init__(self, jax: Any, shape: Shape, hidden: Hidden) -> None:
        self.jnp, self.lax, self.shape, self.hidden = jax.numpy, jax.lax, tuple(shape), hidden

    def dtype(self, x: Value) -> DType:
        """Element type of a value."""
        found = from_numpy_dtype(np.dtype(x.dtype))
        assert found is not None, x.dtype
        return found

    def const(self, value: bool | int | float, dtype: DType) -> Value:
        """A 0-d value."""
        return self.jnp.asarray(np.asarray(value, dtype.np))

    def index(self, dim: int) -> Value:
        """Position along output dimension `dim`."""
        return self.lax.broadcasted_iota(np.int64, self.shape, dim)

    def flat_index(self) -> Value:
        """Row-major position in the output."""
        return self.lax.iota(np.int64, math.prod(self.shape)).reshape(self.shape)

    def cast(self, x: Value, dtype: DType) -> Value:
        """Conversion of values, as `ops.elementwise.convert_array` defines it: floats reach narrow integers through int32. XLA makes a choice between
        x and 0 of a converted bool times x, and so 0 of what is NaN: an infinity, or NaN, that is masked. It leaves a choice of 1 and 0 alone."""
        if dtype is bool_:
            return x != 0
        if x.dtype == bool and dtype.category == 2:
            return self.jnp.where(x, np.ones((), dtype.np), np.zeros((), dtype.np))
        if self.jnp.issubdtype(x.dtype, self.jnp.floating) and dtype.category == 1:
            return _whole(self.jnp, x, dtype)
        return x.astype(dtype.np)

    def bitcast(self, x: Value, dtype: DType) -> Value:
        """The same bits as another type of the same size."""
        return self.lax.bitcast_convert_type(x, dtype.np)

    def select(self, condition: Value, yes: Value, no: Value) -> Value:
        """yes where the condition holds, else no."""
        return self.jnp.where(condition, yes, no)

    def add(self, a: Value, b: Value) -> Value:
        """a + b."""
        return self._sum(self.jnp.add, a, b)

    def sub(self, a: Value, b: Value) -> Value:
        """a - b."""
        return self._sum(self.jnp.subtract, a, b)

    def _sum(self, function: Callable[..., Value], a: Value, b: Value) -> Value:
        """XLA makes a + (1 - 1) of (a + 1) - 1, and so loses what the first sum is rounded by, which the logarithm near 1 asks for: a number beside
        a sum with a number is one that it cannot see. (A barrier costs nothing: it is gone before operations are fused.)"""
        if (a.ndim and b.ndim) or not self.jnp.issubdtype(a.dtype, self.jnp.floating):
            return function(a, b)
        if any(("sum", id(x)) in self.hidden for x in (a, b)):
            a, b = (self.lax.optimization_barrier(x) if x.ndim == 0 else x for x in (a, b))
        return self._hide("sum", function(a, b))

    def div(self, a: Value, b: Value) -> Value:
        """a / b. XLA makes a * c / b of a / (b / c), which overflows where the quotients do not."""
        a, b = (self.lax.optimization_barrier(x) if ("div", id(x)) in self.hidden else x for x in (a, b))
        return self._hide("div", self.jnp.divide(a, b))

    def _hide(self, kind: str, x: Value) -> Value:
        self.hidden[kind, id(x)] = x  # alive, so that no other value has its id
        return x

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c; one rounding for float32 (through float64), two for float64."""
        if a.dtype == np.float32:
            wide = np.float64
            return (a.astype(wide) * b.astype(wide) + c.astype(wide)).astype(np.float32)
        return a * b + c

    def erf(self, x: Value) -> Value:
        """Error function."""
        return self.lax.erf(x)

    def floordiv(self, x: Value, y: Value) -> Value:
        """Quotient rounded down; integers divided by zero give 0."""
        return self._division(self.jnp.floor_divide, x, y)

    def mod(self, x: Value, y: Value) -> Value:
        """Remainder with the sign of y; integers divided by zero give 0."""
        return self._division(self.jnp.mod, x, y)

    def _division(self, function: Callable[..., Value], x: Value, y: Value) -> Value:
        if not self.jnp.issubdtype(x.dtype, self.jnp.integer):
            return function(x, y)
        zero, one = self.jnp.zeros((), x.dtype), self.jnp.ones((), x.dtype)
        return self.jnp.where(y == 0, zero, function(x, self.jnp.where(y == 0, one, y)))

    def __getattr__(self, name: str) -> Callable[..., Value]:
        """The instructions that are one function of JAX."""
        try:
            function: Callable[..., Value] = getattr(self.jnp, _FUNCTIONS[name])
        except KeyError:
            raise AttributeError(f"{name!r} is not in the closed scalar set") from None
        return function


def _whole(jnp: Any, x: Value, dtype: DType) -> Value:
    """Floats as integers: towards zero, and what does not fit as processors do it, which XLA would clamp."""
    least = np.int32 if dtype.itemsize < 8 and dtype.is_signed else np.int64
    bits = 8 * np.dtype(least).itemsize
    wide = x.astype(np.float64)
    fits = (wide >= -(2.0 ** (bits - 1))) & (wide < 2.0 ** (bits - 1))
    lowest = jnp.asarray(np.iinfo(least).min, least)
    return jnp.where(fits, jnp.where(fits, wide, 0.0).astype(least), lowest).astype(dtype.np)


def run_body(
    jax: Any, op: OpDef, operands: Sequence[Value], attrs: Sequence[Any], shape: Shape, dtype: DType, hidden: Hidden
) -> Value:
    """The body of a primitive on whole arrays. 16-bit floats compute in float32 and round once, as on the CPU. `hidden`: see `JaxBuilder`."""
    builder = JaxBuilder(jax, shape, hidden)
    wide = [x.astype(np.float32) if x.dtype.itemsize == 2 and jax.numpy.issubdtype(x.dtype, jax.numpy.floating) else x for x in operands]
    value = op.body(builder, *wide, *attrs)  # type: ignore[misc]  # only elementwise primitives come here
    if value.dtype != dtype.np:
        value = builder.cast(value, dtype) if dtype.category == 1 else value.astype(dtype.np)
    found = jax.numpy.broadcast_to(value, shape)
    for kind in ("sum", "div"):
        if (kind, id(value)) in hidden:
            hidden[kind, id(found)] = found
    return found
