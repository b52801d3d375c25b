"""ONNX's operators on shapes and positions, as functions of ours, and what they do with known numbers."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from calque import functional as T
from calque.base.dtypes import bool_, float32, int64
from calque.exported.onnx.operators import along
from calque.exported.onnx.values import MOST_KNOWN, Call, Refused, dtype_of_kind, folded, operator, sizes, small, tensor_of
from calque.functional.common import cast
from calque.ir.symint import SymInt
from calque.nn import functional as F

_FAR = 1 << 40  # beyond any size: how ends of slices are written that have none


@operator("Shape")
def _shape(c: Call) -> Any:
    shape = c.value(0).shape
    return sizes(shape[slice(c.attr("start", 0), c.attrs.get("end"))])


@operator("Size")
def _size(c: Call) -> Any:
    found = sizes([prod(c.value(0).shape)])
    return found.reshape(())


@operator("Constant")
def _constant(c: Call) -> Any:
    kinds: dict[str, Any] = {"value_int": np.int64, "value_ints": np.int64, "value_float": np.float32, "value_floats": np.float32}
    for name, value in c.attrs.items():
        if name == "value" and isinstance(value, np.ndarray):
            return value
        if name in kinds:
            return np.asarray(value, kinds[name])
    raise Refused("a constant that is no tensor of numbers")


@operator("ConstantOfShape")
def _full(c: Call) -> Any:
    shape = c.ints(0, "the sizes")
    value = c.attrs.get("value", np.zeros(1, np.float32))
    if not isinstance(value, np.ndarray) or value.size != 1:
        raise Refused("a value that is not one number")
    if small(shape):
        return np.full(shape, value.reshape(())[()], value.dtype)
    return T.expand(tensor_of(value.reshape(())), tuple(shape))


@operator("Range")
def _range(c: Call) -> Any:
    start, limit, step = (c.known(k, "the ends").reshape(-1).tolist()[0] for k in range(3))
    dtype = c.value(0).dtype
    if not any(isinstance(x, SymInt) for x in (start, limit, step)):
        if not step:
            raise Refused("steps of zero")
        count = max(int(np.ceil((limit - start) / step)), 0)
        if count <= MOST_KNOWN:
            return (start + step * np.arange(count)).astype(dtype.np)
    return cast(T.arange(start, limit, step), dtype)


@operator("Reshape")
def _reshape(c: Call) -> Any:
    x = c.t(0)
    return T.reshape(x, _shape_of(c, tuple(x.shape)))


def _shape_of(c: Call, before: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a Reshape asks for: 0 is the size before, -1 what is left."""
    wanted = list(c.either("shape", 1, []))
    if not c.attr("allowzero", 0):
        for d, s in enumerate(wanted):
            if isinstance(s, int) and s == 0:
                if d >= len(before):
                    raise Refused(f"the shape {wanted} from {len(before)} sizes")
                wanted[d] = before[d]
    return tuple(wanted)


@operator("Flatten")
def _flatten(c: Call) -> Any:
    x = c.t(0)
    axis = c.attr("axis", 1)
    axis = axis if axis == x._layout.ndim else c.axis(axis, x._layout.ndim)
    return T.reshape(x, (prod(x.shape[:axis]), prod(x.shape[axis:])))


@operator("Expand")
def _expand(c: Call) -> Any:
    x, wanted = c.t(0), c.ints(1, "the sizes")
    shape = list(x.shape)
    count = max(len(shape), len(wanted))
    shape, wanted = [1] * (count - len(shape)) + shape, [1] * (count - len(wanted)) + wanted
    return T.expand(x, tuple(s if w == 1 else w for s, w in zip(shape, wanted, strict=True)))


@operator("Tile")
def _tile(c: Call) -> Any:
    return T.tile(c.t(0), tuple(c.ints(1, "how often it is repeated")))


@operator("Transpose")
def _transpose(c: Call) -> Any:
    rank = c.t(0)._layout.ndim
    return T.permute(c.t(0), c.axes(c.attrs.get("perm", range(rank)[::-1]), rank))


@operator("Squeeze")
def _squeeze(c: Call) -> Any:
    x, axes = c.t(0), c.either("axes", 1)
    gone = [d for d, s in enumerate(x.shape) if s == 1] if axes is None else c.axes(axes, x._layout.ndim)
    if any(x.shape[d] != 1 for d in gone):
        raise Refused(f"the removal of the dims {gone} of sizes {tuple(x.shape)}")
    return T.reshape(x, tuple(s for d, s in enumerate(x.shape) if d not in gone))


@operator("Unsqueeze")
def _unsqueeze(c: Call) -> Any:
    return T.reshape(c.t(0), _opened(c, tuple(c.t(0).shape)))


def _opened(c: Call, shape: tuple[Any, ...]) -> tuple[Any, ...]:
    axes = c.either("axes", 1, [])
    rank = len(shape) + len(axes)
    new, rest = c.axes(axes, rank), iter(shape)
    return tuple(1 if d in new else next(rest) for d in range(rank))


@operator("Concat")
def _concat(c: Call) -> Any:
    given = c.all()
    return T.cat(given, c.axis(c.attr("axis", 1), given[0]._layout.ndim))


@operator("Split")
def _split(c: Call) -> Any:
    x = c.t(0)
    axis = c.axis(c.attr("axis", 0), x._layout.ndim)
    parts = c.either("split", 1)
    if parts is None:
        count = c.attr("num_outputs", c.outputs)
        if not isinstance(count, int) or count < 1:
            raise Refused(f"{count} parts")
        each = -(-x.shape[axis] // count)
        parts = [each] * (count - 1) + [x.shape[axis] - each * (count - 1)]
    return tuple(T.split(x, list(parts), axis))


@operator("Slice")
def _slice(c: Call) -> Any:
    x = c.t(0)
    for axis, start, end, step in _cuts(c, x._layout.ndim):
        x = _cut(x, axis, start, end, step)
    return x if x is not c.t(0) else T.clone(x)


def _cuts(c: Call, rank: int) -> list[tuple[int, Any, Any, Any]]:
    starts, ends = list(c.either("starts", 1, [])), list(c.either("ends", 2, []))
    axes = c.axes(c.either("axes", 3, range(len(starts))), rank)
    steps = c.ints(4, "the steps") if c.has(4) else [1] * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or any(isinstance(s, SymInt) or not s for s in steps):
        raise Refused(f"slices from {starts} to {ends} in steps of {steps}")
    return list(zip(axes, starts, ends, steps, strict=True))


def _cut(x: Any, axis: int, start: Any, end: Any, step: int) -> Any:
    """x[start:end:step] along one dim."""
    size = x.shape[axis]
    if step < 0:  # what is left of the turned tensor
        start, end = (size + s if s < 0 else s for s in (start, end))
        start = 0 if start > size - 1 else size - 1 - start
        end = size if end < 0 else size - 1 - end
        x, step = T.flip(x, [axis]), -step
    if not isinstance(end, SymInt) and end >= _FAR:
        end = None
    if not isinstance(start, SymInt):
        start = max(min(start, _FAR), -_FAR)
    if end is not None and not isinstance(end, SymInt):
        end = max(end, -_FAR)
    return x[(slice(None),) * axis + (slice(start, end, step),)]


# ------------------------------------------------------------------------------------------------------------ positions


def positive(index: Any, size: Any) -> Any:
    """Positions counted from the first."""
    return T.where(index < 0, index + size, index)


@operator("Gather")
def _gather(c: Call) -> Any:
    x, at = c.t(0), c.value(1)
    axis = c.axis(c.attr("axis", 0), x._layout.ndim)
    size, where = x.shape[axis], at.known if at.folds else None
    if where is not None and where.ndim == 0:
        return T.select(x, axis, where.tolist())
    if where is not None and where.dtype != object and (not where.size or where.min() >= 0):
        index = at.tensor  # nothing is counted from the end
    else:
        index = positive(cast(at.tensor, int64), size)
    shape = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
    return T.reshape(T.index_select(x, axis, T.reshape(cast(index, int64), (-1,))), shape)


@operator("GatherElements")
def _gather_elements(c: Call) -> Any:
    x, index = c.t(0), cast(c.t(1), int64)
    axis = c.axis(c.attr("axis", 0), x._layout.ndim)
    return T.gather(x, axis, positive(index, x.shape[axis]))


def _rows(x: Any, index: Any, batch: int) -> tuple[Any, tuple[Any, ...], tuple[Any, ...]]:
    """(position of the first element's slice in x as one dim, the dims that positions go over, those of a slice)."""
    depth = index.shape[-1]
    if isinstance(depth, SymInt) or batch + depth > x._layout.ndim:
        raise Refused(f"positions with {depth} numbers in a tensor of {x._layout.ndim} dims")
    shape = tuple(x.shape)
    total = T.full((), 0, dtype=int64)
    for d in range(batch + depth):
        one = along(shape[d], d, index._layout.ndim - 1) if d < batch else positive(T.select(index, -1, d - batch), shape[d])
        total = total * shape[d] + one
    return total, shape[: batch + depth], shape[batch + depth :]


@operator("GatherND")
def _gather_nd(c: Call) -> Any:
    x, index = c.t(0), cast(c.t(1), int64)
    total, lead, rest = _rows(x, index, c.attr("batch_dims", 0))
    flat = T.index_select(T.reshape(x, (prod(lead), *rest)), 0, T.reshape(total, (-1,)))
    return T.reshape(flat, (*index.shape[:-1], *rest))


_WRITES = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _written(x: Any, axis: int, index: Any, source: Any, reduction: str) -> Any:
    if reduction == "none":
        return T.scatter(x, axis, index, source)
    if reduction == "add":
        return T.scatter_add(x, axis, index, source)
    return T.scatter_reduce(x, axis, index, source, _WRITES[reduction])


@operator("ScatterElements", "Scatter")
def _scatter(c: Call) -> Any:
    x, index, source = c.t(0), cast(c.t(1), int64), c.t(2)
    axis = c.axis(c.attr("axis", 0), x._layout.ndim)
    return _written(x, axis, positive(index, x.shape[axis]), source, c.text("reduction", "none", ("none", *_WRITES)))


@operator("ScatterND")
def _scatter_nd(c: Call) -> Any:
    x, index, source = c.t(0), cast(c.t(1), int64), c.t(2)
    total, lead, rest = _rows(x, index, 0)
    width = prod(rest)
    at = T.reshape(T.reshape(total, (-1, 1)) * width + T.reshape(T.arange(width), (1, -1)), (-1,))
    flat = _written(T.reshape(x, (-1,)), 0, at, T.reshape(source, (-1,)), c.text("reduction", "none", ("none", *_WRITES)))
    return T.reshape(flat, (*lead, *rest))


@operator("Compress")
def _compress(c: Call) -> Any:
    x, kept = c.t(0), np.nonzero(c.known(1, "what is kept").reshape(-1))[0]
    axis = c.attrs.get("axis")
    if axis is None:
        x, axis = T.reshape(x, (-1,)), 0
    return T.index_select(x, c.axis(axis, x._layout.ndim), tensor_of(kept.astype(np.int64)))


@operator("OneHot")
def _one_hot(c: Call) -> Any:
    index, depth, values = c.t(0), int(c.known(1, "how many classes there are").reshape(-1)[0]), c.t(2)
    rank = index._layout.ndim + 1
    axis = c.axis(c.attr("axis", -1), rank)
    hit = T.unsqueeze(positive(cast(index, int64), depth), axis) == along(depth, axis, rank)
    return T.where(hit, T.select(values, 0, 1), T.select(values, 0, 0))


@operator("EyeLike")
def _eye(c: Call) -> Any:
    rows, columns = c.value(0).shape
    dtype = dtype_of_kind(c.attrs["dtype"]) if "dtype" in c.attrs else c.value(0).dtype
    return cast(along(rows, 0, 2) + c.attr("k", 0) == along(columns, 1, 2), dtype)


@operator("Trilu")
def _triangle(c: Call) -> Any:
    x, diagonal = c.t(0), c.ints(1, "the diagonal")[0] if c.has(1) else 0
    across = along(x.shape[-1], 1, 2) - along(x.shape[-2], 0, 2)
    kept = across >= diagonal if c.attr("upper", 1) else across <= diagonal
    return x & kept if x._layout.dtype is bool_ else T.where(kept, x, T.full((), 0, dtype=x._layout.dtype))


@operator("ReverseSequence")
def _reversed(c: Call) -> Any:
    x, lengths = c.t(0), cast(c.t(1), int64)
    time, batch = c.attr("time_axis", 0), c.attr("batch_axis", 1)
    if sorted((time, batch)) != [0, 1]:
        raise Refused(f"a time axis {time} and a batch axis {batch}")
    at = along(x.shape[time], time, 2)
    limit = T.unsqueeze(lengths, time)
    index = T.where(at < limit, limit - 1 - at, at)
    for _ in range(x._layout.ndim - 2):
        index = T.unsqueeze(index, -1)
    return T.gather(x, time, T.expand(index, tuple(x.shape)))


@operator("DepthToSpace")
def _to_space(c: Call) -> Any:
    x, block = c.t(0), c.attr("blocksize", 1)
    n, channels, h, w = x.shape
    if c.text("mode", "DCR", ("DCR", "CRD")) == "DCR":
        x = T.permute(T.reshape(x, (n, block, block, channels // (block * block), h, w)), (0, 3, 4, 1, 5, 2))
    else:
        x = T.permute(T.reshape(x, (n, channels // (block * block), block, block, h, w)), (0, 1, 4, 2, 5, 3))
    return T.reshape(x, (n, channels // (block * block), h * block, w * block))


@operator("SpaceToDepth")
def _to_depth(c: Call) -> Any:
    x, block = c.t(0), c.attr("blocksize", 1)
    n, channels, h, w = x.shape
    parts = (h // block, w // block)
    order = (0, 3, 5, 1, 2, 4) if c.text("mode", "DCR", ("DCR", "CRD")) == "DCR" else (0, 1, 3, 5, 2, 4)
    x = T.permute(T.reshape(x, (n, channels, parts[0], block, parts[1], block)), order)
    return T.reshape(x, (n, channels * block * block, *parts))


@operator("Pad")
def _pad(c: Call) -> Any:
    x = c.t(0)
    rank = x._layout.ndim
    mode = c.text("mode", "constant", ("constant", "reflect", "edge", "wrap"))
    pads = c.either("pads", 1, c.attrs.get("paddings", []))
    axes = c.axes(c.ints(3, "the axes"), rank) if c.has(3) else list(range(rank))
    if len(pads) != 2 * len(axes):
        raise Refused(f"{len(pads)} numbers for {len(axes)} dims")
    around = {a: (pads[k], pads[k + len(axes)]) for k, a in enumerate(axes)}
    if mode != "constant":
        for a, (low, high) in around.items():
            if any(isinstance(p, SymInt) or p for p in (low, high)):
                x = _extended(x, a, low, high, mode)
        return x if x is not c.t(0) else T.clone(x)
    value = c.value(2).known if c.has(2) else np.array(c.attrs.get("value", 0.0))
    if value is not None:
        return padded(x, around, value.reshape(-1).tolist()[0] if value.size else 0)
    inside = padded(T.expand(T.full((), True, dtype=bool_), tuple(x.shape)), around, 0)
    return T.where(inside, padded(x, around, 0), T.reshape(c.t(2), ()))


def padded(x: Any, around: dict[int, tuple[Any, Any]], value: Any) -> Any:
    """x with so much around some dims, or, if it is negative, less of them."""
    if all(isinstance(p, int) and p == 0 for pair in around.values() for p in pair):
        return T.clone(x)
    amounts: list[Any] = []
    for d in range(x._layout.ndim)[::-1]:
        amounts += around.get(d, (0, 0))
    if x._layout.dtype is bool_:
        return cast(F.pad(cast(x, float32), amounts, value=float(value)), bool_)
    return F.pad(x, amounts, value=value)


def _extended(x: Any, axis: int, low: Any, high: Any, mode: str) -> Any:
    """x with what is in it repeated beyond the ends of a dim."""
    size = x.shape[axis]
    at = T.arange(size + low + high) - low
    if mode == "edge":
        at = T.clamp(at, 0, size - 1)
    elif mode == "wrap":
        at = T.remainder(at, size)
    elif not isinstance(size, SymInt) and size == 1:
        at = at * 0
    else:
        at = T.remainder(at, 2 * size - 2)
        at = T.minimum(at, 2 * size - 2 - at)
    return T.index_select(x, axis, at)


# --------------------------------------------------------------------------------------------------------- known numbers


@folded("Reshape")
def _known_reshape(c: Call) -> Any:
    array = c.value(0).known
    return array.reshape(_shape_of(c, array.shape)) if small(array.shape) else None


@folded("Unsqueeze")
def _known_unsqueeze(c: Call) -> Any:
    array = c.value(0).known
    return array.reshape(_opened(c, array.shape))


@folded("Squeeze")
def _known_squeeze(c: Call) -> Any:
    array, axes = c.value(0).known, c.either("axes", 1)
    return np.squeeze(array, None if axes is None else tuple(c.axes(axes, array.ndim)))


@folded("Gather")
def _known_gather(c: Call) -> Any:
    array, where = c.value(0).known, c.value(1).known
    if where.dtype == object or where.size * array.size > MOST_KNOWN:
        return None
    return np.take(array, where, axis=c.axis(c.attr("axis", 0), array.ndim))


@folded("Concat")
def _known_concat(c: Call) -> Any:
    given = [v.known for v in c.inputs if v is not None]
    return np.concatenate(given, axis=c.axis(c.attr("axis", 1), given[0].ndim))


@folded("Slice")
def _known_slice(c: Call) -> Any:
    array = c.value(0).known
    cuts = _cuts(c, array.ndim)
    if any(isinstance(x, SymInt) for cut in cuts for x in cut):
        return None
    for axis, start, end, step in cuts:
        stop = None if step < 0 and end < -array.shape[axis] else end
        array = array[(slice(None),) * axis + (slice(start, stop, step),)]
    return array


@folded("Transpose")
def _known_transpose(c: Call) -> Any:
    array = c.value(0).known
    return array.transpose(c.axes(c.attrs.get("perm", range(array.ndim)[::-1]), array.ndim))


@folded("Expand")
def _known_expand(c: Call) -> Any:
    array, shape = c.value(0).known, c.ints(1, "the sizes")
    if not small(shape) or array.size * prod(shape) > MOST_KNOWN:
        return None
    return np.broadcast_to(array, np.broadcast_shapes(array.shape, tuple(shape))).copy()


@folded("Tile")
def _known_tile(c: Call) -> Any:
    array, often = c.value(0).known, c.ints(1, "how often it is repeated")
    return np.tile(array, often) if small(often) and array.size * prod(often) <= MOST_KNOWN else None


@folded("Split")
def _known_split(c: Call) -> Any:
    array, parts = c.value(0).known, c.either("split", 1)
    axis = c.axis(c.attr("axis", 0), array.ndim)
    if parts is None or sum(parts) != array.shape[axis] or min(parts, default=0) < 0:
        return None
    return tuple(np.split(array, np.cumsum(parts)[:-1], axis=axis))
