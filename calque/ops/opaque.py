"""Primitives that no map, reduction, contraction or index map expresses: sorting and selecting, running sums and products along a dim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calque.base.dtypes import DType, int64
from calque.base.errors import ShapeError
from calque.base.shapes import Shape
from calque.ops import routines
from calque.ops.batching import along
from calque.ops.forward import linear
from calque.ops.opdef import Attrs, OpDef, Routine, Sample, ShapeRule, Vjp, register
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


def _ranked_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    shape, (dim, start, stop, _) = shapes[0], attrs
    if not 0 <= dim < len(shape) or not 0 <= start <= stop <= shape[dim]:
        raise ShapeError(f"[ranked] expected a dim of {shape} and ranks 0 <= start <= stop <= its size, got {attrs[:3]}; use those of the operand")
    return (*shape[:dim], stop - start, *shape[dim + 1 :])


def _ranked_ref(x: Array, dim: int, start: int, stop: int, descending: bool) -> Array:
    rows, size = np.moveaxis(widen(x), dim, -1), x.shape[dim]
    first = _first(rows.reshape(-1, size), stop, descending) if rows.size else None
    if first is not None:
        found = first[:, start:].reshape(*rows.shape[:-1], stop - start)
    elif descending:  # mirrored as in `argsort`
        found = size - 1 - _selected(np.ascontiguousarray(rows[..., ::-1]), size - stop, size - start)[..., ::-1]
    else:
        found = _selected(np.ascontiguousarray(rows), start, stop)
    return np.ascontiguousarray(np.moveaxis(found, -1, dim))


_BLOCKS = 8  # what a row has of them for each element that is looked for, and elements in one: fewer leave too much


def _first(rows: Array, count: int, descending: bool) -> Array | None:
    """Positions of the `count` smallest (largest) elements of each row, in order, ties and NaN as in `argsort`; None where sorting more is as good.
    Elements beyond the `count`-th best of the best ones of blocks are not looked at again: most of it is a minimum and a comparison."""
    columns = max(_BLOCKS * count, 64)
    depth = rows.shape[-1] // columns if count else 0
    if depth < _BLOCKS or rows.dtype.kind not in "iuf":
        return None
    blocks = rows[:, : depth * columns].reshape(len(rows), depth, columns)
    best = blocks.max(1) if descending else np.fmin.reduce(blocks, 1)  # NaN is the largest of all
    place = columns - count if descending else count - 1
    limit = np.partition(best, place, axis=-1)[:, place : place + 1]
    if np.isnan(limit).any():
        return None
    kept = ~(rows < limit) if descending else rows <= limit
    counts = np.count_nonzero(kept, axis=-1)
    width = int(counts.max())
    if width * len(rows) * _BLOCKS > rows.size:
        return None
    row, column = np.divmod(np.flatnonzero(kept), rows.shape[-1])
    slot = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    low, high = (-np.inf, np.inf) if rows.dtype.kind == "f" else (np.iinfo(rows.dtype).min, np.iinfo(rows.dtype).max)
    values = np.full((len(rows), width), low if descending else high, rows.dtype)
    values[row, slot] = rows[row, column]
    positions = np.zeros((len(rows), width), np.int64)
    positions[row, slot] = column
    if descending:  # what fills the rows comes behind its equals, as it does in ascending order
        order = width - 1 - np.argsort(values[:, ::-1], axis=-1, kind="stable")[:, ::-1]
    else:
        order = np.argsort(values, axis=-1, kind="stable")
    return np.take_along_axis(positions, order[:, :count], -1)


def _selected(rows: Array, start: int, stop: int) -> Array:
    """Positions of the elements of ranks start..stop in each row, in order, without sorting the others; ties and NaN as in `argsort`."""
    if 2 * (stop - start) >= rows.shape[-1] or not rows.size:
        return np.argsort(rows, axis=-1, kind="stable")[..., start:stop].astype(np.int64)
    if start == stop:
        return np.zeros((*rows.shape[:-1], 0), np.int64)
    flat = rows.reshape(-1, rows.shape[-1])
    found, first = np.argpartition(flat, stop - 1 if start == 0 else start, axis=-1), 0
    if 0 < start < stop - 1:  # by two partitions, as NumPy takes ten times as long for two ranks at once
        found, first = found[:, start:], start
        rest = np.argpartition(np.take_along_axis(flat, found, -1), stop - 1 - start, axis=-1)
        found = np.take_along_axis(found, rest, -1)
    found = np.sort(found[:, start - first : stop - first].astype(np.int64), axis=-1)
    chosen = np.take_along_axis(flat, found, -1)
    ends = np.take_along_axis(chosen, np.argsort(chosen, axis=-1, kind="stable"), -1)[:, [0, -1]]
    # Which of several equal elements a partition leaves outside depends on the processor: there the first ones are chosen, as by sorting.
    unclear = np.zeros(len(flat), bool)
    for end, cut in ((ends[:, :1], start > 0), (ends[:, 1:], stop < rows.shape[-1])):
        if cut:
            unclear |= _count(flat, end) != _count(chosen, end)
    if unclear.any():
        found[unclear] = _with_ties(flat[unclear], ends[unclear], start, stop)
        chosen = np.take_along_axis(flat, found, -1)
    found = np.take_along_axis(found, np.argsort(chosen, axis=-1, kind="stable"), -1)
    return found.reshape(*rows.shape[:-1], stop - start)


def _equal(x: Array, y: Array) -> Array:
    same: Array = (x == y) | ((x != x) & (y != y))
    return same


def _count(rows: Array, ends: Array) -> Array:
    """How often the end of each row occurs in it."""
    equal = rows == ends if np.all(ends == ends) else _equal(rows, ends)
    return np.asarray(np.count_nonzero(equal, axis=-1))


def _below(x: Array, y: Array) -> Array:
    smaller: Array = (x < y) | ((x == x) & (y != y))
    return smaller


def _with_ties(rows: Array, ends: Array, start: int, stop: int) -> Array:
    """The same positions in increasing order, given the smallest and the largest value of each row that has these ranks."""
    low, high = ends[:, :1], ends[:, 1:]
    mask = _below(low, rows) & _below(rows, high)
    for end in (low, high):
        equal = _equal(rows, end)
        rank = np.cumsum(equal, axis=-1) - 1 + _below(rows, end).sum(-1, keepdims=True)
        mask |= equal & (rank >= start) & (rank < stop)
    return np.nonzero(mask)[1].reshape(len(rows), stop - start)


def _running(function: Any) -> Any:
    def call(x: Array, dim: int) -> Array:
        x = widen(x)
        if x.ndim == 0:
            return x.copy()
        accumulator = np.complex128 if x.dtype.kind == "c" else np.float64 if x.dtype.kind not in "iub" else x.dtype
        found = np.asarray(function(x, axis=dim, dtype=accumulator))
        if function is np.cumsum:
            found += found.dtype.type(0)  # from 0.0 on: a sum of negative zeros is 0.0
        return found.astype(x.dtype)

    return call


def _running_place(function: Any) -> Any:
    def call(x: Array, dim: int) -> Array:
        x = widen(x)
        if not x.size or x.ndim == 0:
            return np.zeros(x.shape, np.int64)
        best = function.accumulate(x, axis=dim)
        positions = np.arange(x.shape[dim]).reshape([-1 if d == dim else 1 for d in range(x.ndim)])
        # An element is the extreme so far if it equals it; behind a NaN no number does.
        return np.asarray(np.maximum.accumulate(np.where((x == best) | (x != x), positions, 0), axis=dim), np.int64)

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
        batch=along,
        ref=_argsort_ref,
        samples=tuple(
            Sample(s.shapes, (*s.attrs, descending), differentiable=False) for s in _SCANS for descending in (False, True)
        ),
        dtypes=("float32", "float64", "int64", "uint8", "bfloat16"),
        stored="unsigned",
        ordering=True,
    )
)
register(
    OpDef(
        "ranked",
        "opaque",
        "Positions of the elements that sorting x along dim, stably, would put at start..stop; NaN counts as the largest.",
        attrs=("dim", "start", "stop", "descending"),
        shape=_ranked_shape,
        dtype=_positions_dtype,
        batch=along,
        ref=_ranked_ref,
        samples=tuple(
            Sample((shape,), (dim, *ranks, descending), differentiable=False)
            for shape, dim, ranks in (((3, 9), 1, (0, 2)), ((9, 2), 0, (3, 6)), ((7,), 0, (6, 7)), ((0, 3), 0, (0, 0)), ((2, 5), 1, (0, 5)))
            for descending in (False, True)
        ),
        dtypes=("float32", "float64", "int64", "uint8", "bfloat16"),
        stored="unsigned",
        ordering=True,
    )
)


def _scan(name: str, doc: str, **fields: Any) -> None:
    """A record of what runs along a dim."""
    routine = Routine(routines.scan, routines.scan_flops)
    register(OpDef(name, "opaque", doc, attrs=("dim",), shape=_along(name), batch=along, stored="unsigned", routine=routine, **fields))


_SUMMED = ("float32", "float64", "int64", "bfloat16")
_scan(
    "cumsum", "Running sum along dim, in the operand's dtype.", dtype=numeric("cumsum"), vjp=(Vjp(_reverse_cumsum),), jvp=linear,
    ref=_running(np.cumsum), samples=_SCANS, dtypes=_SUMMED, complex="direct", wraps=True,
)  # fmt: skip
_scan(
    "cumprod", "Running product along dim, in the operand's dtype.", dtype=numeric("cumprod"), vjp=(Vjp(_cumprod_gradient, (0, -1)),),
    ref=_running(np.cumprod), samples=_SCANS, dtypes=_SUMMED, complex="holomorphic", wraps=True,
)  # fmt: skip
for _name, _function, _doc in (("cumargmax", np.maximum, "largest"), ("cumargmin", np.minimum, "smallest")):
    _scan(
        _name, f"Positions of the {_doc} elements so far along dim, the last of several; NaN comes before all.", dtype=_positions_dtype,
        ref=_running_place(_function), samples=tuple(Sample(s.shapes, s.attrs, differentiable=False) for s in _SCANS),
        dtypes=("float32", "float64", "int64", "uint8", "bfloat16"), ordering=True,
    )  # fmt: skip
