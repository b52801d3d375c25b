"""Products of 16-bit floats to which something is added before they are rounded: linear layers with a bias, `addmm` and its like.

A product that is a value of its own is rounded, and so is its sum with a bias: twice. PyTorch's kernels keep sums in float32 until the bias is added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calque.base.errors import ShapeError
from calque.base.shapes import Shape, broadcast_shapes
from calque.ops import routines
from calque.ops.batching import added_product
from calque.ops.contract import MATMUL, matmul_left, matmul_right, matmul_shape
from calque.ops.opdef import Attrs, OpDef, Routine, Sample, Vjp, register
from calque.ops.rules import Array, floating, widen


def _shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    a, b, added = shapes
    out = matmul_shape((a, b), ())
    if len(added) > len(out) or tuple(broadcast_shapes(added, out, op="addmm")) != tuple(out):
        raise ShapeError(f"[addmm] expected an input that broadcasts to {out}, got shape {added}; The expanded size must match")
    return out


def _scaled(x: Any, factor: float) -> Any:
    return x if factor == 1 else x * factor


def _ref(a: Array, b: Array, added: Array, alpha: float, beta: float) -> Array:
    """Factors are numbers of the type that is computed in, as in the kernel."""
    found, more = MATMUL.ref(a, b), widen(added)  # type: ignore[misc]
    return np.asarray(found.dtype.type(alpha) * found + more.dtype.type(beta) * more)


register(
    OpDef(
        "addmm",
        "contract",
        "alpha times the matrix product of two operands plus beta times a third one, which broadcasts; floats of 16 bits are rounded once.",
        3,
        ("alpha", "beta"),
        shape=_shape,
        dtype=floating("addmm"),
        vjp=(
            Vjp(lambda F, g, c: _scaled(matmul_left(F, g, c), c.attrs[0]), (1,)),
            Vjp(lambda F, g, c: _scaled(matmul_right(F, g, c), c.attrs[0]), (0,)),
            Vjp(lambda F, g, c: F.sum_to_size(_scaled(g, c.attrs[1]), tuple(c.shape(2)))),
        ),
        batch=added_product,
        ref=_ref,
        samples=tuple(
            Sample(shapes, factors)
            for shapes, factors in (
                (((2, 3), (3, 4), (4,)), (1.0, 1.0)),
                (((5, 2, 3), (3, 4), (2, 4)), (0.5, -2.0)),
                (((2, 3), (5, 3, 4), (5, 1, 4)), (1.0, 0.25)),
                (((3, 2, 3), (3, 3, 1), (3, 2, 1)), (-1.5, 1.0)),
                (((7, 3), (3, 1), ()), (1.0, 1.0)),
                (((0, 3), (3, 2), (2,)), (1.0, 1.0)),
                (((2, 0), (0, 3), (2, 1)), (3.0, 2.0)),
            )
        ),
        dtypes=("float32", "float64", "float16", "bfloat16"),
        widens=True,
        node=lambda ranks: "Addmm" if ranks[-1] == 2 else "Baddbmm",
        narrow="always",
        routine=Routine(routines.added_product, routines.product_flops),
    )
)
