"""Leaves of a program and tensors made from nothing: input, scalar, constant, full, iota."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calque.base.dtypes import DType
from calque.base.errors import ShapeError
from calque.base.shapes import Shape
from calque.ops.batching import fill
from calque.ops.forward import linear
from calque.ops.opdef import Attrs, OpDef, Sample, Vjp, register


def _attr_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    return tuple(attrs[1])


def _last_attr(dtypes: Sequence[DType], attrs: Attrs) -> DType:
    result: DType = attrs[-1]
    return result


def _scalar_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    return ()


INPUT = register(
    OpDef(
        "input",
        "leaf",
        "The `index`-th argument of the program.",
        0,
        ("index", "shape", "dtype"),
        shape=_attr_shape,
        dtype=_last_attr,
        role="input",
    )
)

SCALAR = register(
    OpDef(
        "scalar",
        "leaf",
        "The `index`-th run-time number of the program, as a 0-d value.",
        0,
        ("index", "dtype"),
        shape=_scalar_shape,
        dtype=_last_attr,
        role="scalar",
    )
)

CONSTANT = register(
    OpDef(
        "constant",
        "leaf",
        "A number fixed in the program, as a 0-d value.",
        0,
        ("value", "dtype"),
        shape=_scalar_shape,
        dtype=_last_attr,
        role="constant",
    )
)


def _created_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    shape = tuple(attrs[0])
    if any(extent < 0 for extent in shape):
        raise ShapeError(f"[full] expected sizes >= 0, got shape {shape}; sizes cannot be negative")
    if shapes and shapes[0] != ():
        raise ShapeError(f"[full] expected a 0-d fill value, got shape {shapes[0]}; use expand() to repeat a tensor")
    return shape


def _full_ref(value: np.ndarray[Any, Any], shape: Shape) -> np.ndarray[Any, Any]:
    return np.full(shape, value)


def _iota_ref(shape: Shape, dtype: DType) -> np.ndarray[Any, Any]:
    return np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.int64).reshape(shape).astype(dtype.np)


FULL = register(
    OpDef(
        "full",
        "elementwise",
        "A 0-d value repeated over `shape`.",
        1,
        ("shape",),
        shape=_created_shape,
        body=lambda s, value, shape: value,
        vjp=(Vjp(lambda F, g, c: F.sum(g)),),
        batch=fill,
        jvp=linear,
        ref=_full_ref,
        samples=tuple(Sample(((),), (shape,)) for shape in ((2, 3), (), (0, 2))),
        dtypes=("float32", "float64", "int64", "bool"),
        complex="direct",
        stored="every",
        role="fill",
    )
)

IOTA = register(
    OpDef(
        "iota",
        "elementwise",
        "The row-major position 0, 1, 2, ... of every element.",
        0,
        ("shape", "dtype"),
        shape=_created_shape,
        dtype=_last_attr,
        body=lambda s, shape, dtype: s.cast(s.flat_index(), dtype),
        ref=_iota_ref,
    )
)
