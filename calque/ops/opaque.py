"""Primitives that no map, reduction, contraction or index map expresses: argsort and running sums and products along a dim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calque.base.dtypes import DType, int64
from calque.base.errors import ShapeError
from calque.base.shapes import Shape
from calque.ops.opdef import Attrs, OpDef, Sample, ShapeRule, Vjp, register
from calque.ops.rules import Array, numeric, widen


def _along(name: str) -> ShapeRule:
    def rule(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
        shape, dim = shapes[0], attrs[0]
        if not 0 <= dim < max(len(shape), 1):
            raise ShapeError(f"[{name}] expected a dim of a {len(shape)}-d tensor, got {dim}; use 0..{max(len(shape) - 1, 0)}")
        return shape

    return rule


def _argsort_ref(x: Array, dim: int, descending: bool) -> Array:
    x = widen(x)
    if x.ndim == 0:
        return np.zeros((), np.int64)
    if not descending:
        return np.argsort(x, axis=dim, kind="stable").astype(np.int64)
    mirrored = np.argsort(np.flip(x, dim), axis=dim, kind="stable")  # twice mirrored: ties keep their order, NaN comes first
    return np.ascontiguousarray(x.shape[dim] - 1 - np.flip(mirrored, dim)).astype(np.int64)


def _running(function: Any) -> Any:
    def call(x: Array, dim: int) -> Array:
        x = widen(x)
        if x.ndim == 0:
            return x.copy()
        accumulator = np.float64 if x.dtype.kind not in "iub" else x.dtype
        return np.asarray(function(x, axis=dim, dtype=accumulator)).astype(x.dtype)

    return call


def _reverse_cumsum(F: Any, g: Any, c: Any) -> Any:
    if not c.shape(0):
        return g
    dim = c.attrs[0]
    return F.flip(F.prim("cumsum", F.flip(g, (dim,)), dim), (dim,))


def _earlier(F: Any, x: Any, dim: int, steps: int, fill: float) -> Any:
    """x moved towards the start of dim by `steps`; `fill` enters at the end."""
    extent = x.shape[dim]
    return F.cat([F.narrow(x, dim, steps, extent - steps), F.zeros_like(F.narrow(x, dim, 0, steps)) + fill], dim)


def _cumprod_gradient(F: Any, g: Any, c: Any) -> Any:
    """grad_k = (x_0 ... x_{k-1}) r_k with r_k = g_k + x_{k+1} r_{k+1}: a recurrence solved by doubling, exact where x is 0."""
    shape, dim = tuple(c.shape(0)), c.attrs[0]
    if not shape or 0 in shape:
        return g
    x, extent = c.x(0), shape[dim]
    before = F.cat([F.ones_like(F.narrow(x, dim, 0, 1)), F.narrow(c.out, dim, 0, extent - 1)], dim)
    factor, total = _earlier(F, x, dim, 1, 0.0), g
    steps = 1
    while steps < extent:
        total = total + factor * _earlier(F, total, dim, steps, 0.0)
        steps *= 2
        if steps < extent:
            factor = factor * _earlier(F, factor, dim, steps // 2, 0.0)
    return before * total


def _positions_dtype(dtypes: Sequence[DType], attrs: Attrs) -> DType:
    return int64


_SCANS = (Sample(((3, 4),), (0,)), Sample(((3, 5),), (1,)), Sample(((),), (0,)), Sample(((0, 3),), (0,)), Sample(((7,),), (0,)))

register(
    OpDef(
        "argsort",
        "opaque",
        "Positions that sort x along dim, stably; NaN counts as the largest.",
        attrs=("dim", "descending"),
        shape=_along("argsort"),
        dtype=_positions_dtype,
        ref=_argsort_ref,
        samples=tuple(
            Sample(s.shapes, (*s.attrs, descending), differentiable=False) for s in _SCANS for descending in (False, True)
        ),
        dtypes=("float32", "float64", "int64", "uint8", "bfloat16"),
    )
)
register(
    OpDef(
        "cumsum",
        "opaque",
        "Running sum along dim, in the operand's dtype.",
        attrs=("dim",),
        shape=_along("cumsum"),
        dtype=numeric("cumsum"),
        vjp=(Vjp(_reverse_cumsum),),
        ref=_running(np.cumsum),
        samples=_SCANS,
        dtypes=("float32", "float64", "int64", "bfloat16"),
    )
)
register(
    OpDef(
        "cumprod",
        "opaque",
        "Running product along dim, in the operand's dtype.",
        attrs=("dim",),
        shape=_along("cumprod"),
        dtype=numeric("cumprod"),
        vjp=(Vjp(_cumprod_gradient, (0, -1)),),
        ref=_running(np.cumprod),
        samples=_SCANS,
        dtypes=("float32", "float64", "int64", "bfloat16"),
    )
)
