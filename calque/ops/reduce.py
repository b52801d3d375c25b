"""Reductions over `dims` (sorted, non-negative): sum, prod, extremes and their positions, any, all.

Floating sums of float16 and bfloat16 accumulate in float32. The reference accumulates float32 in float64 and rounds once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from calque.base.dtypes import DType, int64
from calque.base.errors import ShapeError
from calque.base.shapes import Shape, reduced_shape
from calque.ops.forward import linear
from calque.ops.opdef import Attrs, DTypeRule, OpDef, Sample, ShapeRule, Vjp, register
from calque.ops.rules import Array, any_dtype, only_bool, widen

_SAMPLES: tuple[tuple[Shape, Attrs], ...] = (
    ((3, 4), ((0,), False)),
    ((3, 4), ((1,), True)),
    ((2, 3, 4), ((0, 2), False)),
    ((2, 3), ((0, 1), False)),
    ((), ((), False)),
    ((0, 3), ((1,), False)),
)


def _shape_rule(name: str, identity: bool) -> ShapeRule:
    def rule(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
        shape, (dims, keepdim) = shapes[0], attrs
        if tuple(sorted(set(dims))) != tuple(dims) or any(not 0 <= d < len(shape) for d in dims):
            raise ShapeError(
                f"[{name}] expected sorted distinct dims of a {len(shape)}-d tensor, got {tuple(dims)}; use 0..{len(shape) - 1}"
            )
        result = reduced_shape(shape, tuple(dims), keepdim)
        if (
            not identity
            and 0 in [shape[d] for d in dims]
            and 0 not in result[:] + tuple(shape[d] for d in range(len(shape)) if d not in dims)
        ):
            raise ShapeError(
                f"[{name}] expected a non-empty reduction, got shape {shape} over dims {tuple(dims)}; it has no identity"
            )
        return result

    return rule


def _kept(c: Any) -> Shape:
    """Shape of the result with the reduced dims as 1."""
    return reduced_shape(tuple(c.shape(0)), c.attrs[0], True)


def _restore(F: Any, value: Any, c: Any) -> Any:
    """A result-shaped tensor with the reduced dims back as size 1."""
    return value if c.attrs[1] else F.reshape(value, _kept(c))


def _sum_gradient(F: Any, g: Any, c: Any) -> Any:
    return F.expand(_restore(F, g, c), tuple(c.shape(0)))


def _prod_gradient(F: Any, g: Any, c: Any) -> Any:
    """g times (product of the elements before) times (product of those after): exact where elements are 0, at any order."""
    shape, dims = tuple(c.shape(0)), c.attrs[0]
    rest = tuple(d for d in range(len(shape)) if d not in dims)
    order = rest + dims
    count = prod(shape[d] for d in dims)
    g = _restore(F, g, c)
    if count == 0 or 0 in shape:
        return F.expand(g, shape)
    rows = F.reshape(F.permute(c.x(0), order), (*[shape[d] for d in rest], count))
    others = F.reshape(_exclusive(F, rows, False) * _exclusive(F, rows, True), tuple(shape[d] for d in order))
    inverse = tuple(order.index(d) for d in range(len(shape)))
    return g * F.permute(others, inverse)


def _exclusive(F: Any, rows: Any, backwards: bool) -> Any:
    """Products along the last dim of all elements before (after) each one."""
    last, count = rows.dim() - 1, rows.shape[-1]
    rows = F.flip(rows, (last,)) if backwards else rows
    running = F.prim("cumprod", rows, last)
    result = F.cat([F.ones_like(F.narrow(rows, last, 0, 1)), F.narrow(running, last, 0, count - 1)], last)
    return F.flip(result, (last,)) if backwards else result


def _extreme_gradient(F: Any, g: Any, c: Any) -> Any:
    """Elements equal to the extreme share the gradient evenly."""
    mask = F.cast(c.x(0) == _restore(F, c.out, c), c.dtype(0))
    share = _restore(F, g, c) / F.sum(mask, c.attrs[0], True) if c.attrs[0] else g
    return mask * share


def _accumulator(x: Array) -> Any:
    return np.complex128 if x.dtype.kind == "c" else np.float64 if x.dtype.kind not in "iub" else x.dtype


def _sum_ref(x: Array, dims: Shape, keepdim: bool) -> Array:
    wide = widen(x)
    return np.asarray(np.sum(wide, axis=dims, keepdims=keepdim, dtype=_accumulator(wide), initial=0)).astype(wide.dtype)


def _prod_ref(x: Array, dims: Shape, keepdim: bool) -> Array:
    wide = widen(x)
    return np.asarray(np.prod(wide, axis=dims, keepdims=keepdim, dtype=_accumulator(wide))).astype(wide.dtype)


def _axes(function: Any) -> Callable[..., Array]:
    def call(x: Array, dims: Shape, keepdim: bool) -> Array:
        return np.asarray(function(widen(x), axis=dims, keepdims=keepdim))

    return call


def _position(function: Any) -> Callable[..., Array]:
    """Index of the first extreme in the row-major flattening of the reduced dims; NumPy lets NaN win, as we want."""

    def call(x: Array, dims: Shape, keepdim: bool) -> Array:
        x = widen(x)
        rest = tuple(d for d in range(x.ndim) if d not in dims)
        lead = [x.shape[d] for d in rest]
        rows = x.transpose(rest + tuple(dims)).reshape(*lead, prod(x.shape[d] for d in dims))
        found = np.zeros(lead, np.int64) if 0 in lead else np.asarray(function(rows, axis=-1))
        return found.astype(np.int64).reshape(reduced_shape(x.shape, tuple(dims), keepdim))

    return call


def _position_dtype(dtypes: Sequence[DType], attrs: Attrs) -> DType:
    return int64


def _reduction(
    name: str,
    doc: str,
    combine: str,
    ref: Callable[..., Array],
    vjp: Vjp | None = None,
    dtype: DTypeRule | None = None,
    identity: bool = True,
    dtypes: tuple[str, ...] = ("float32", "float64", "int64"),
    **fields: Any,
) -> None:
    register(
        OpDef(
            name,
            "reduce",
            doc,
            attrs=("dims", "keepdim"),
            shape=_shape_rule(name, identity),
            dtype=dtype or any_dtype(name),
            combine=combine,
            vjp=(vjp,) if vjp else (),
            ref=ref,
            samples=tuple(Sample((shape,), attrs, differentiable=vjp is not None) for shape, attrs in _SAMPLES),
            dtypes=dtypes,
            **fields,
        )
    )


def _some_or_all(name: str) -> Callable[[tuple[int | None, ...]], str]:
    """The name of the node of a reduction, of which PyTorch has one over all dims and one over some."""
    return lambda ranks: f"{name}Backward{int(ranks[-1] != 0)}"


_reduction(
    "sum",
    "Sum over dims, in the operand's dtype.",
    "sum",
    _sum_ref,
    Vjp(_sum_gradient),
    dtypes=("float32", "float64", "int64", "float16", "bfloat16"),
    complex="direct",
    jvp=linear,
    joins="add",
    wraps=True,
    node=_some_or_all("Sum"),
)
_reduction(
    "prod", "Product over dims, in the operand's dtype.", "prod", _prod_ref, Vjp(_prod_gradient, (0,)), complex="holomorphic", wraps=True,
    node=_some_or_all("Prod"),
)  # fmt: skip
for _name, _doc, _combine, _find, _joins in (("amax", "Largest", "max", np.max, "maximum"), ("amin", "Smallest", "min", np.min, "minimum")):
    _reduction(
        _name, f"{_doc} element over dims; NaN wins. Ties share the gradient.", _combine, _axes(_find), Vjp(_extreme_gradient, (0, -1)),
        identity=False, joins=_joins,
    )  # fmt: skip
for _name, _doc, _found_by in (("argmax", "largest", np.argmax), ("argmin", "smallest", np.argmin)):
    _reduction(
        _name, f"Position of the first {_doc} element in the flattened dims; NaN wins.", _name, _position(_found_by), dtype=_position_dtype,
        identity=False,
    )  # fmt: skip
_reduction("any", "Whether any element over dims is True.", "max", _axes(np.any), dtype=only_bool("any"), dtypes=("bool",), joins="bitwise_or")
_reduction("all", "Whether all elements over dims are True.", "min", _axes(np.all), dtype=only_bool("all"), dtypes=("bool",), joins="bitwise_and")
