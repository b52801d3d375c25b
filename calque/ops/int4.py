"""Products with weights of four bits, two in a byte, that have a scale for every group of successive ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calque.base.dtypes import DType, int8
from calque.base.errors import DTypeError, ShapeError
from calque.base.shapes import Shape
from calque.ops import routines
from calque.ops.batching import per_slice
from calque.ops.forward import multilinear
from calque.ops.opdef import Attrs, OpDef, Routine, Sample, Vjp, register
from calque.ops.rules import Array, listed, widen


def _shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    x, packed, scale = shapes
    fits = len(x) == len(packed) == len(scale) == 2 and packed[0] == scale[0] and 2 * packed[1] == x[1]
    if not fits or not scale[1] or x[1] % (2 * scale[1]):
        raise ShapeError(
            f"[int4_matmul] expected rows (R, K), packed weights (N, K / 2) and scales (N, groups) with groups of an even number of weights, got "
            f"{x}, {packed} and {scale}; pad K with zeros"
        )
    return (x[0], packed[0])


def _dtype(dtypes: Sequence[DType], attrs: Attrs) -> DType:
    x, packed, scale = dtypes
    if not x.is_floating_point or packed is not int8 or scale is not x:
        raise DTypeError(f"[int4_matmul] expected a floating dtype, int8, and the first again, got {listed(dtypes)}; convert them with .to(...)")
    return x


def _ref(x: Array, packed: Array, scale: Array) -> Array:
    x, scale = widen(x), widen(scale)
    grouped = packed.reshape(*scale.shape, packed.shape[1] // scale.shape[1])
    whole = np.concatenate([(grouped & 15) - 8, grouped >> 4], -1)
    weight = (whole.astype(x.dtype) * scale[..., None]).reshape(len(packed), -1)
    return np.asarray(np.matmul(x, weight.T) + 0)


def _integers(F: Any, packed: Any, scale: Any) -> Any:
    """The weights without their scales, (N, groups, weights of a group), in the type of these."""
    rows, groups = scale.shape
    grouped = F.reshape(packed, (rows, groups, packed.shape[1] // groups))
    whole = F.cat([F.bitwise_and(grouped, 15) - 8, F.bitwise_right_shift(grouped, 4)], -1)
    return F.cast(whole, scale.dtype)


def _of_rows(F: Any, g: Any, c: Any) -> Any:
    weight = _integers(F, c.x(1), c.x(2)) * F.unsqueeze(c.x(2), -1)
    return F.matmul(g, F.reshape(weight, (c.shape(1)[0], c.shape(0)[1])))


def _of_scales(F: Any, g: Any, c: Any) -> Any:
    whole = _integers(F, c.x(1), c.x(2))
    return F.sum(F.reshape(F.matmul(F.transpose(g, 0, 1), c.x(0)), tuple(whole.shape)) * whole, -1)


def _batch(F: Any, op: OpDef, operands: Any, mapped: Any, attrs: Attrs, size: int) -> Any:
    """Rows of many slices are the rows of one product; other weights in each slice are other products."""
    if any(mapped[1:]):
        return per_slice(F, op, operands, mapped, attrs, size)
    x, packed, scale = operands
    out = F.prim(op.name, F.reshape(x, (size * x.shape[1], x.shape[2])), packed, scale)
    return F.reshape(out, (size, x.shape[1], packed.shape[0]))


register(
    OpDef(
        "int4_matmul",
        "contract",
        "Rows times the transpose of weights of four bits: byte j of a group of 2 H has weight j, plus 8, in its low bits and weight j + H above.",
        3,
        shape=_shape,
        dtype=_dtype,
        vjp=(Vjp(_of_rows, (1, 2)), None, Vjp(_of_scales, (0, 1, 2))),
        batch=_batch,
        jvp=multilinear,
        ref=_ref,
        widens=True,
        samples=tuple(
            Sample(((rows, groups * size), (columns, groups * size // 2), (columns, groups)), low=-0.25, high=0.25, bytes=(1,))
            for rows, columns, groups, size in ((1, 5, 2, 32), (3, 4, 3, 2), (2, 1, 1, 10), (0, 3, 1, 4), (6, 9, 2, 36))
        ),
        routine=Routine(routines.int4_product, routines.product_flops, rows=(0, 1, 2)),
    )
)
