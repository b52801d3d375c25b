"""Reading and writing at run-time indices: int64 in 0..size-1 (the functional layer checks them), clamped for memory safety."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from calque.base.dtypes import DType, int64
from calque.base.errors import ShapeError
from calque.base.shapes import Shape
from calque.ops.batching import aligned_index, picked, put
from calque.ops.forward import linear
from calque.ops.opdef import Attrs, Complex, OpDef, Sample, Vjp, register
from calque.ops.rules import Array, any_dtype, check_index, require_equal, widen


def _check_dim(name: str, shape: Shape, dim: int, picked: Shape) -> None:
    if not 0 <= dim < len(shape):
        raise ShapeError(f"[{name}] expected a dim of a {len(shape)}-d tensor, got {dim}; use 0..{len(shape) - 1}")
    if shape[dim] == 0 and 0 not in picked:
        raise ShapeError(f"[{name}] expected elements in dim {dim}, got shape {shape}; nothing can be indexed there")


def _select_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    x, i = shapes
    dim = attrs[0]
    _check_dim("index_select", x, dim, i)
    return (*x[:dim], *i, *x[dim + 1 :])


def _gather_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    x, i = shapes
    _check_aligned("gather", x, i, attrs[0])
    return i


def _check_aligned(name: str, x: Shape, i: Shape, dim: int) -> None:
    if len(x) != len(i):
        raise ShapeError(
            f"[{name}] expected an index with {len(x)} dims like the tensor {x}, got shape {i}; add dims with unsqueeze()"
        )
    _check_dim(name, x, dim, i)
    for d, (size, wanted) in enumerate(zip(x, i, strict=True)):
        if d != dim and wanted > size:
            raise ShapeError(
                f"[{name}] expected an index no larger than {x} outside dim {dim}, got {i}: {wanted} > {size} in dim {d}"
            )


def _put_shape_rule(name: str) -> Any:
    def rule(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
        base, i, source = shapes
        dim = attrs[0]
        _check_dim(name, base, dim, i)
        expected = (*base[:dim], *i, *base[dim + 1 :])
        if source != expected:
            raise ShapeError(f"[{name}] expected a source of shape {expected}, got {source}; expand it first")
        return base

    return rule


def _scatter_shape_rule(name: str) -> Any:
    def rule(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
        base, i, source = shapes
        _check_aligned(name, base, i, attrs[0])
        if source != i:
            raise ShapeError(f"[{name}] expected a source of the index's shape {i}, got {source}; narrow or expand it first")
        return base

    return rule


def _read_dtype(name: str) -> Any:
    def rule(dtypes: Sequence[DType], attrs: Attrs) -> DType:
        check_index(name, dtypes[1])
        return dtypes[0]

    return rule


def _write_dtype(name: str) -> Any:
    def rule(dtypes: Sequence[DType], attrs: Attrs) -> DType:
        check_index(name, dtypes[1])
        return require_equal(name, (dtypes[0], dtypes[2]))

    return rule


# ------------------------------------------------------------------------------------------------------------------ references


def _clamp(i: Array, size: int) -> Array:
    return np.clip(i, 0, max(size - 1, 0))


def _select_ref(x: Array, i: Array, dim: int) -> Array:
    if 0 in i.shape:
        return np.empty((*x.shape[:dim], *i.shape, *x.shape[dim + 1 :]), x.dtype)
    return np.take(x, _clamp(i, x.shape[dim]), axis=dim)


def _aligned_grid(shape: Shape, i: Array, dim: int) -> tuple[Array, ...]:
    """Open index grid of `i.shape` with i itself at `dim`."""
    grid = [np.arange(n).reshape((-1,) + (1,) * (len(i.shape) - d - 1)) for d, n in enumerate(i.shape)]
    grid[dim] = _clamp(i, shape[dim])
    return tuple(grid)


def _gather_ref(x: Array, i: Array, dim: int) -> Array:
    return np.asarray(x[_aligned_grid(x.shape, i, dim)]) if i.size else np.empty(i.shape, x.dtype)


def _rows(base: Array, i: Array, source: Array, dim: int) -> tuple[Array, Array, Array]:
    """Copy of base with `dim` in front, flat indices, and the source as rows."""
    moved = np.moveaxis(base, dim, 0).copy()
    lead, count = source.shape[:dim], prod(i.shape)
    rows = np.moveaxis(source.reshape(*lead, count, *base.shape[dim + 1 :]), dim, 0)
    return moved, _clamp(i.reshape(-1), base.shape[dim]), rows


def _put_ref(base: Array, i: Array, source: Array, dim: int) -> Array:
    moved, where, rows = _rows(base, i, source, dim)
    if i.size:
        last = {int(position): k for k, position in enumerate(where)}  # the last write wins
        moved[list(last)] = rows[list(last.values())]
    return np.ascontiguousarray(np.moveaxis(moved, 0, dim))


def _add_ref(base: Array, i: Array, source: Array, dim: int) -> Array:
    moved, where, rows = _rows(widen(base), i, widen(source), dim)
    if i.size:
        np.add.at(moved, where, rows)
    return np.ascontiguousarray(np.moveaxis(moved, 0, dim))


def _flat_positions(base: Array, i: Array, dim: int) -> Array:
    """Row-major positions in `base` that an aligned index names, in iteration order."""
    positions = np.arange(base.size).reshape(base.shape)
    return positions[_aligned_grid(base.shape, i, dim)].reshape(-1)


def _scatter_ref(base: Array, i: Array, source: Array, dim: int) -> Array:
    flat = np.array(base).reshape(-1)
    if i.size:
        positions = _flat_positions(base, i, dim)[::-1]
        where, first = np.unique(positions, return_index=True)  # first of the reversed order: the last write wins
        flat[where] = source.reshape(-1)[::-1][first]
    return flat.reshape(base.shape)


def _scatter_add_ref(base: Array, i: Array, source: Array, dim: int) -> Array:
    flat = np.array(widen(base)).reshape(-1)
    if i.size:
        np.add.at(flat, _flat_positions(base, i, dim), widen(source).reshape(-1))
    return flat.reshape(base.shape)


def _scatter_combined(function: Any) -> Any:
    def call(base: Array, i: Array, source: Array, dim: int) -> Array:
        flat = np.array(widen(base)).reshape(-1)
        if not i.size:
            return flat.reshape(base.shape)
        values, places = widen(source).reshape(-1), _flat_positions(base, i, dim)
        with np.errstate(all="ignore"):  # NumPy warns of NaN, and of products that leave the range
            function.at(flat, places, values)
        if function is not np.multiply and flat.dtype.kind == "f":  # of zeros with other signs the first stays
            zeros = np.flatnonzero((values == 0) & (flat[places] == 0))
            where, first = np.unique(places[zeros], return_index=True)
            flat[where] = values[zeros[first]]
            before = np.array(widen(base)).reshape(-1)
            flat = np.where((before == 0) & (flat == 0), before, flat)
        return flat.reshape(base.shape)

    return call


# ------------------------------------------------------------------------------------------------------------- gradients


def _shares(F: Any, g: Any, c: Any) -> tuple[Any, Any, Any]:
    """Which elements of base and source are the extreme, and what each of them gets. Where it is NaN none does: 0 / 0."""
    base, index, source, dim = c.x(0), c.x(1), c.x(2), c.attrs[0]
    own, theirs = F.cast(base == c.out, g.dtype), F.cast(source == F.prim("gather", c.out, index, dim), g.dtype)
    return own, theirs, g / F.prim("scatter_add", own, index, theirs, dim)


def _extreme_base(F: Any, g: Any, c: Any) -> Any:
    own, _, share = _shares(F, g, c)
    return own * share


def _extreme_source(F: Any, g: Any, c: Any) -> Any:
    _, theirs, share = _shares(F, g, c)
    return theirs * F.prim("gather", share, c.x(1), c.attrs[0])


def _product_base(F: Any, g: Any, c: Any) -> Any:
    ones = F.zeros_like(c.x(0)) + 1
    return g * F.prim("scatter_prod", ones, c.x(1), c.x(2), c.attrs[0])


def _product_source(F: Any, g: Any, c: Any) -> Any:
    """The result divided by the element, or the product without it where it is the only zero."""
    base, index, source, dim = c.x(0), c.x(1), c.x(2), c.attrs[0]
    zero = source == 0
    count = F.prim("scatter_add", F.zeros_like(base), index, F.cast(zero, source.dtype), dim)
    alone = zero & (F.prim("gather", count, index, dim) == 1)
    without = F.prim("scatter_prod", base, index, F.where(alone, 1.0, source), dim)
    divided = F.prim("gather", g * c.out, index, dim) / F.where(zero, 1.0, source)
    return F.where(alone, F.prim("gather", g * without, index, dim), divided)


# --------------------------------------------------------------------------------------------------------------------- records


def _zeros(F: Any, g: Any, shape: Shape) -> Any:
    return F.zeros(tuple(shape), dtype=g.dtype, device=g.device)


_TYPES = ("float32", "float64", "int64", "bool", "bfloat16")
_ADDED = ("float32", "float64", "int64", "bfloat16")
_SELECT = (
    Sample(((5, 3), (4,)), (0,), integers=((1, 5),)),
    Sample(((2, 5, 3), (2, 3)), (1,), integers=((1, 5),)),
    Sample(((4,), ()), (0,), integers=((1, 4),)),
    Sample(((4, 2), (0,)), (0,), integers=((1, 4),)),
)
_ALIGNED = (
    Sample(((5, 3), (4, 3)), (0,), integers=((1, 5),)),
    Sample(((2, 5, 3), (2, 7, 2)), (1,), integers=((1, 5),)),
    Sample(((4,), (6,)), (0,), integers=((1, 4),)),
    Sample(((4, 2), (0, 2)), (0,), integers=((1, 4),)),
)


def _put_samples() -> tuple[Sample, ...]:
    found = []
    for sample in _SELECT:
        (base, i), dim = sample.shapes, sample.attrs[0]
        found.append(Sample((base, i, (*base[:dim], *i, *base[dim + 1 :])), sample.attrs, integers=sample.integers))
    return tuple(found)


def _scatter_samples() -> tuple[Sample, ...]:
    return tuple(Sample((*sample.shapes, sample.shapes[1]), sample.attrs, integers=sample.integers) for sample in _ALIGNED)


def _at_positions(name: str, doc: str, arity: int, **fields: Any) -> None:
    """A record of what reads or writes at positions along a dim."""
    register(OpDef(name, "index", doc, arity, ("dim",), jvp=linear, complex="direct", stored="every", **fields))


_at_positions(
    "index_select", "Slices of x along dim at the positions i, an index of any shape: x.shape[:dim] + i.shape + x.shape[dim+1:].", 2,
    shape=_select_shape, dtype=_read_dtype("index_select"), batch=picked, ref=_select_ref, samples=_SELECT, dtypes=_TYPES, role="lookup",
    vjp=(Vjp(lambda F, g, c: F.prim("index_add", _zeros(F, g, c.shape(0)), c.x(1), g, c.attrs[0]), (1,)), None),
)  # fmt: skip
_at_positions(
    "gather", "Element by element along dim: out[a, b] = x[i[a, b], b] for dim 0.", 2,
    shape=_gather_shape, dtype=_read_dtype("gather"), batch=aligned_index, ref=_gather_ref, samples=_ALIGNED, dtypes=_TYPES, role="lookup",
    aligned=True, vjp=(Vjp(lambda F, g, c: F.prim("scatter_add", _zeros(F, g, c.shape(0)), c.x(1), g, c.attrs[0]), (1,)), None),
)  # fmt: skip
_at_positions(
    "index_put", "base with the slices at positions i along dim replaced by those of the source; the last write wins.", 3,
    shape=_put_shape_rule("index_put"), dtype=_write_dtype("index_put"), batch=put, ref=_put_ref, samples=_put_samples(), dtypes=_TYPES,
    role="accumulate",
    vjp=(
        Vjp(lambda F, g, c: F.prim("index_put", g, c.x(1), _zeros(F, g, c.shape(2)), c.attrs[0]), (1,)),
        None,
        Vjp(lambda F, g, c: F.prim("index_select", g, c.x(1), c.attrs[0]), (1,)),
    ),
)  # fmt: skip
_at_positions(
    "index_add", "base with the slices of the source added at positions i along dim.", 3,
    shape=_put_shape_rule("index_add"), dtype=_write_dtype("index_add"), batch=put, ref=_add_ref, samples=_put_samples(), dtypes=_ADDED,
    role="accumulate", combine="sum", widens=True,
    vjp=(Vjp(lambda F, g, c: g), None, Vjp(lambda F, g, c: F.prim("index_select", g, c.x(1), c.attrs[0]), (1,))),
)  # fmt: skip
_at_positions(
    "scatter", "base with out[i[a, b], b] = source[a, b] for dim 0; the last write wins.", 3,
    shape=_scatter_shape_rule("scatter"), dtype=_write_dtype("scatter"), batch=aligned_index, ref=_scatter_ref, samples=_scatter_samples(),
    dtypes=_TYPES, role="accumulate", aligned=True,
    vjp=(
        Vjp(lambda F, g, c: F.prim("scatter", g, c.x(1), _zeros(F, g, c.shape(2)), c.attrs[0]), (1,)),
        None,
        Vjp(lambda F, g, c: F.prim("gather", g, c.x(1), c.attrs[0]), (1,)),
    ),
)  # fmt: skip
_at_positions(
    "scatter_add", "base with out[i[a, b], b] += source[a, b] for dim 0.", 3,
    shape=_scatter_shape_rule("scatter_add"), dtype=_write_dtype("scatter_add"), batch=aligned_index, ref=_scatter_add_ref,
    samples=_scatter_samples(), dtypes=_ADDED, role="accumulate", combine="sum", aligned=True, widens=True,
    vjp=(Vjp(lambda F, g, c: g), None, Vjp(lambda F, g, c: F.prim("gather", g, c.x(1), c.attrs[0]), (1,))),
)  # fmt: skip

_JOINED: tuple[tuple[str, str, Any, str, Complex], ...] = (
    ("scatter_prod", "prod", np.multiply, "multiplied by", "holomorphic"),
    ("scatter_max", "max", np.maximum, "no less than", ""),
    ("scatter_min", "min", np.minimum, "no larger than", ""),
)
for _name, _combine, _function, _doc, _complex in _JOINED:
    register(
        OpDef(
            _name,
            "index",
            f"base with out[i[a, b], b] {_doc} source[a, b] for dim 0{'' if _complex else '; NaN comes before all, and of equals what was there'}.",
            3,
            ("dim",),
            shape=_scatter_shape_rule(_name),
            dtype=_write_dtype(_name),
            vjp=(
                Vjp(_product_base if _complex else _extreme_base, (1, 2) if _complex else (0, 1, 2, -1)),
                None,
                Vjp(_product_source if _complex else _extreme_source, (0, 1, 2, -1)),
            ),
            combine=_combine,
            batch=aligned_index,
            ref=_scatter_combined(_function),
            samples=_scatter_samples(),
            dtypes=_ADDED if _complex else _TYPES,
            complex=_complex,
            role="accumulate",
            aligned=True,
            widens=bool(_complex),
            wraps=bool(_complex),
            ordering=not _complex,
        )
    )


# ------------------------------------------------------------------------------------------------------------------ checking

_LAST, _LOW, _HIGH = (1 << 31) - 1, -(1 << 31), (1 << 31) - 1


def _outside(s: Any, index: Any, place: Any, size: int, skip: int | None) -> Any:
    def number(value: int) -> Any:
        return s.const(value, int64)

    wrong = s.or_(s.lt(index, number(0)), s.le(number(size), index))
    if skip is not None:
        wrong = s.and_(wrong, s.ne(index, number(skip)))
    near = s.sub(s.min(s.max(index, number(_LOW)), number(_HIGH)), number(_LOW))
    return s.select(wrong, s.add(s.mul(s.sub(number(_LAST), place), number(1 << 32)), near), number(-1))


def _outside_ref(index: Array, place: Array, size: int, skip: int | None) -> Array:
    wrong = (index < 0) | (index >= size)
    if skip is not None:
        wrong &= index != skip
    return np.where(wrong, ((_LAST - place) << 32) + (np.clip(index, _LOW, _HIGH) - _LOW), -1)


def outside_code(code: int) -> tuple[int, int]:
    """(place, index) of a code of `outside`."""
    return _LAST - (code >> 32), (code & 0xFFFFFFFF) + _LOW


register(
    OpDef(
        "outside",
        "elementwise",
        "A code, larger for an earlier place, of an index that is neither in 0..size-1 nor `skip`; -1 for all others.",
        arity=2,
        attrs=("size", "skip"),
        dtype=any_dtype("outside"),
        body=_outside,
        ref=_outside_ref,
        samples=(
            Sample(((3, 4), (3, 4)), (4, None), low=-3.0, high=9.0, differentiable=False),
            Sample(((6,), (6,)), (3, 5), low=-3.0, high=9.0, differentiable=False),
        ),
        dtypes=("int64",),
    )
)
