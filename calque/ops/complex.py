"""Complex numbers: what makes them of real ones and takes them apart.

Kernels know real numbers only. `graph/hosted.py` turns every node that has to do with a complex one into `hosted`, which NumPy computes; see
docs/decisions/0062. In memory a complex number is its two parts side by side, so a tensor of either may look at the values of the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from calque.base.dtypes import DType, complex64, complex128, dtype_by_name, float32, float64
from calque.base.errors import DTypeError
from calque.base.shapes import Shape
from calque.ops.batching import elementwise, reinterpreted
from calque.ops.forward import elementwise as symmetric
from calque.ops.forward import linear
from calque.ops.movement import spread, strided
from calque.ops.opdef import Attrs, OpDef, Sample, Vjp, get, register
from calque.ops.rules import BINARY_SHAPES, UNARY_SHAPES, Array, broadcasting, listed, same_shape, widen


def _attribute(number: int) -> Any:
    def rule(values: Sequence[Any], attrs: Attrs) -> Any:
        return attrs[number]

    return rule


# --------------------------------------------------------------------------------------------- one memory, two element types


def typed(x: Array, dtype: DType) -> Array:
    """The bytes of a whole value as elements of another type; a rest that is too short for one is left out."""
    flat = np.ascontiguousarray(x).reshape(-1)
    if flat.dtype == dtype.np:
        return flat
    return flat[: flat.nbytes // dtype.itemsize * dtype.itemsize // flat.itemsize].view(dtype.np)


def _view_as_ref(x: Array, shape: Shape, strides: Shape, offset: int, dtype: DType) -> Array:
    return strided(typed(x, dtype), shape, strides, offset).copy()


def _update_as_ref(base: Array, value: Array, shape: Shape, strides: Shape, offset: int) -> Array:
    result = np.array(base, order="C")
    flat = result.reshape(-1)
    whole = flat[: flat.nbytes // value.itemsize * value.itemsize // flat.itemsize].view(value.dtype)
    strided(whole, shape, strides, offset)[...] = value
    return result


def _view_as_gradient(F: Any, g: Any, c: Any) -> Any:
    """g spread over a value of its own type, whose bytes are those of the operand's gradient."""
    (shape, strides, offset, dtype), base, own = c.attrs, tuple(c.shape(0)), c.dtype(0)
    count = -(-prod(base) * own.itemsize // dtype.itemsize)
    whole = spread(F, g, (count,), shape, strides, offset)
    steps = tuple(prod(base[d + 1 :]) for d in range(len(base)))
    return F.prim("view_as", whole, base, steps, 0, own)


def _hole(F: Any, g: Any, c: Any) -> Any:
    return F.prim("update_as", g, F.zeros(c.attrs[0], dtype=c.dtype(1), device=g.device), *c.attrs)


register(
    OpDef(
        "view_as",
        "opaque",
        "`view` of x's bytes as elements of `dtype`, which shape, strides and offset count.",
        1,
        ("shape", "strides", "offset", "dtype"),
        shape=_attribute(0),
        dtype=_attribute(3),
        vjp=(Vjp(_view_as_gradient),),
        ref=_view_as_ref,
        samples=(Sample(((3, 4),), ((2, 3), (4, 1), 1, float64)), Sample(((2,),), ((), (), 1, float64))),
        dtypes=("float64",),
        complex="direct",
        stored="every",
        batch=reinterpreted,
        jvp=linear,
    )
)
register(
    OpDef(
        "update_as",
        "opaque",
        "`update` of the base's bytes with a value of another type, whose elements shape, strides and offset count.",
        2,
        ("shape", "strides", "offset"),
        shape=same_shape,
        dtype=lambda dtypes, attrs: dtypes[0],
        vjp=(Vjp(_hole), Vjp(lambda F, g, c: F.prim("view_as", g, *c.attrs, c.dtype(1)))),
        ref=_update_as_ref,
        samples=(Sample(((3, 4), (2, 3)), ((2, 3), (4, 1), 1)),),
        dtypes=("float64",),
        complex="direct",
        stored="every",
        batch=reinterpreted,
        jvp=linear,
    )
)


# ------------------------------------------------------------------------------------------------------------ parts and whole


_SAMPLES = tuple(Sample((shape,), differentiable=False) for shape in UNARY_SHAPES)


def _complex_dtype(dtypes: Sequence[DType], attrs: Attrs) -> DType:
    if dtypes[0] is not dtypes[1] or dtypes[0] not in (float32, float64):
        raise DTypeError(
            f"[complex] expected both inputs to be Float or Double tensors of one dtype, got {listed(dtypes)}; convert one with .to(dtype)"
        )
    return dtypes[0].to_complex()


def _complex_ref(real: Array, imaginary: Array) -> Array:
    shape = np.broadcast_shapes(real.shape, imaginary.shape)
    result = np.empty(shape, complex64.np if real.dtype == float32.np else complex128.np)
    result.real, result.imag = real, imaginary
    return result


def _sgn_ref(x: Array) -> Array:
    size = np.abs(x)
    return np.where(size == 0, x.dtype.type(0), x / np.where(size == 0, 1, size)).astype(x.dtype)


def _sgn_gradient(F: Any, g: Any, c: Any) -> Any:
    """What of g is tangential to the circle, over the distance from its centre."""
    size, direction = F.abs(c.x(0)), c.out
    tangent = g - direction * F.real(F.conj(direction) * g)
    return F.where(size == 0, 0.0, tangent / F.where(size == 0, 1.0, size))


def _only_complex(name: str) -> Any:
    def rule(dtypes: Sequence[DType], attrs: Attrs) -> DType:
        if dtypes[0].category != 3:
            raise DTypeError(f"[{name}] expected a complex dtype, got {dtypes[0]!r}; convert with .to(calque.complex64)")
        return dtypes[0]

    return rule


register(
    OpDef(
        "complex",
        "opaque",
        "x + i y, broadcast.",
        2,
        shape=broadcasting("complex"),
        dtype=_complex_dtype,
        vjp=(
            Vjp(lambda F, g, c: F.sum_to_size(F.real(g), c.shape(0))),
            Vjp(lambda F, g, c: F.sum_to_size(F.imag(g), c.shape(1))),
        ),
        ref=_complex_ref,
        dtypes=("float64",),
        samples=tuple(Sample(shapes, differentiable=False) for shapes in BINARY_SHAPES),  # gradients: tests/functional/test_complex.py
        batch=elementwise,
        jvp=linear,
        ordered=True,
    )
)
register(
    OpDef(
        "conj", "opaque", "The conjugate of complex numbers.", shape=same_shape, dtype=_only_complex("conj"), vjp=(Vjp(lambda F, g, c: F.conj(g)),),
        ref=np.conjugate, samples=_SAMPLES, dtypes=("complex64", "complex128"), complex="direct", batch=elementwise, jvp=linear, ordered=True,
    )
)  # fmt: skip
register(
    OpDef(
        "sgn", "opaque", "z / |z|, and 0 where z = 0.", shape=same_shape, dtype=_only_complex("sgn"), vjp=(Vjp(_sgn_gradient, (0, -1)),),
        ref=_sgn_ref, samples=_SAMPLES, dtypes=("complex64", "complex128"), complex="direct", batch=elementwise, jvp=symmetric, ordered=True,
    )
)  # fmt: skip


# ------------------------------------------------------------------------------------------------------------------ on the host


def _hosted_ref(*given: Any) -> Array:
    name, attrs, operands, dtype, _ = given[-5:]
    op = get(name)
    arrays = [_as(np.asarray(x), dtype_by_name(kind)) for x, kind in zip(given[:-5], operands, strict=True)]
    if op.kind == "elementwise":
        arrays = [widen(x) for x in arrays]
    assert op.ref is not None
    return _as(np.asarray(op.ref(*arrays, *attrs)), dtype)


def _as(x: Array, dtype: DType) -> Array:
    return x if x.dtype == dtype.np else dtype.encode(x)


register(
    OpDef(
        "hosted",
        "opaque",
        "The primitive `name` with its attributes, on operands of types that kernels do not know, by its reference.",
        -1,
        ("name", "attrs", "operands", "dtype", "shape"),
        shape=_attribute(4),
        dtype=_attribute(3),
        ref=_hosted_ref,
        samples=(Sample(((3, 4),), ("neg", (), ("float64",), float64, (3, 4)), differentiable=False),),
        dtypes=("float64",),
        complex="direct",
        stored="every",
    )
)
