"""Movement of elements: strided views, writes through them, `cat`. Strides and offsets count elements of the dense base."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from calque.base.dtypes import DType, int64
from calque.base.errors import DTypeError, ShapeError
from calque.base.shapes import Shape, contiguous_strides, overlaps, view_bounds
from calque.ops.batching import joined, windowed, written
from calque.ops.forward import linear
from calque.ops.opdef import REGISTRY, Attrs, OpDef, Sample, Vjp, register
from calque.ops.rules import Array, OperandRules, any_dtype, require_equal

# ------------------------------------------------------------------------------------------------------------------ inference


def check_view(name: str, base: Shape, shape: Shape, strides: Shape, offset: int | None) -> None:
    """The view lies inside the base; with `offset=None` some offset makes it so."""
    if len(shape) != len(strides) or any(extent < 0 for extent in shape):
        raise ShapeError(f"[{name}] expected one stride per size and sizes >= 0, got shape {shape} and strides {strides}")
    if 0 in shape:
        return
    low, high = view_bounds(shape, strides, offset or 0)
    numel = prod(base)
    fits = high - low < numel if offset is None else low >= 0 and high < numel
    if not fits:
        raise ShapeError(
            f"[{name}] expected a view inside the {numel} elements of shape {base}, got shape {shape}, strides {strides} and "
            f"offset {'any' if offset is None else offset}, which reach elements {low} to {high}; out of bounds for the storage"
        )


def _check_write(name: str, value: Shape, shape: Shape, strides: Shape) -> None:
    if value != shape:
        raise ShapeError(f"[{name}] expected a value of shape {shape}, got {value}; expand or reshape it first")
    if not REGISTRY[name].combine and 0 not in shape and overlaps(shape, strides):
        raise ShapeError(
            f"[{name}] expected a view whose elements are distinct, got shape {shape} with strides {strides}; "
            "write to a clone() (more than one element refers to a single memory location)"
        )


def _view_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    shape, strides, offset = attrs
    check_view("view", shapes[0], shape, strides, offset)
    return tuple(shape)


def _view_at_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    shape, strides = attrs
    check_view("view_at", shapes[0], shape, strides, None)
    _check_offset_shape("view_at", shapes[1])
    return tuple(shape)


def _check_offset_shape(name: str, shape: Shape) -> None:
    if shape != ():
        raise ShapeError(f"[{name}] expected a 0-d offset, got shape {shape}; use one offset per view")


def _update_shape_rule(name: str) -> Any:
    def rule(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
        shape, strides = attrs[:2]
        check_view(name, shapes[0], shape, strides, attrs[2] if len(attrs) > 2 else None)
        _check_write(name, shapes[1], tuple(shape), tuple(strides))
        if len(shapes) > 2:
            _check_offset_shape(name, shapes[2])
        return shapes[0]

    return rule


def _offset_dtype_rule(name: str) -> Any:
    def rule(dtypes: Sequence[DType], attrs: Attrs) -> DType:
        if dtypes[-1] is not int64:
            raise DTypeError(f"[{name}] expected an offset of dtype torch.int64, got {dtypes[-1]!r}; convert with .long()")
        return require_equal(name, dtypes[:-1])

    return rule


# ------------------------------------------------------------------------------------------------------------------ references


def window(flat: Array, shape: Shape, strides: Shape, writeable: bool = True) -> Array:
    """A view of a flat array with strides in bytes."""
    if flat.itemsize == 1:  # NumPy does not know its own name of one of the types of eight bits
        return np.lib.stride_tricks.as_strided(flat.view(np.uint8), shape, strides, writeable=writeable).view(flat.dtype)
    return np.lib.stride_tricks.as_strided(flat, shape, strides, writeable=writeable)


def strided(flat: Array, shape: Shape, strides: Shape, offset: int) -> Array:
    """A window of a flat array; `offset` is moved inside when the view would leave the array (memory safety)."""
    if 0 in shape:
        return np.empty(shape, flat.dtype)
    low, high = view_bounds(shape, strides, 0)
    offset = min(max(offset, -low), flat.size - 1 - high)
    size = flat.dtype.itemsize
    return window(flat[offset:], shape, tuple(st * size for st in strides))


def _dense(x: Array) -> Array:
    return np.ascontiguousarray(x).reshape(-1)


def _view_ref(x: Array, shape: Shape, strides: Shape, offset: int) -> Array:
    return strided(_dense(x), shape, strides, offset).copy()


def _view_at_ref(x: Array, offset: Any, shape: Shape, strides: Shape) -> Array:
    return strided(_dense(x), shape, strides, int(offset)).copy()


def _update_ref(base: Array, value: Array, shape: Shape, strides: Shape, offset: int) -> Array:
    flat = _dense(base).copy()
    strided(flat, shape, strides, offset)[...] = value
    return flat.reshape(base.shape)


def _update_at_ref(base: Array, value: Array, offset: Any, shape: Shape, strides: Shape) -> Array:
    return _update_ref(base, value, shape, strides, int(offset))


def _update_add_ref(base: Array, value: Array, shape: Shape, strides: Shape, offset: int) -> Array:
    flat = _dense(base).copy()
    positions = strided(np.arange(flat.size), shape, strides, offset)
    np.add.at(flat, positions, value)
    return flat.reshape(base.shape)


# ------------------------------------------------------------------------------------------------------------------- gradients


def _sum_repeats(F: Any, g: Any, shape: Shape, strides: Shape) -> tuple[Any, Shape, Shape]:
    """Sum g over the dims of stride 0, which show one element several times."""
    repeated = tuple(d for d, (extent, stride) in enumerate(zip(shape, strides, strict=True)) if stride == 0 and extent > 1)
    if not repeated:
        return g, shape, strides
    rest = [d for d in range(len(shape)) if d not in repeated]
    return F.sum(g, repeated), tuple(shape[d] for d in rest), tuple(strides[d] for d in rest)


def _rearranged(F: Any, g: Any, base: Shape, shape: Shape, strides: Shape) -> Any:
    """Adjoint of a view that only permutes and flips all elements of the base, or None when it does not."""
    order = sorted((d for d in range(len(shape)) if shape[d] > 1), key=lambda d: -abs(strides[d]))
    step = 1
    for d in reversed(order):
        if abs(strides[d]) != step:
            return None
        step *= shape[d]
    if step != prod(base):
        return None
    dense = contiguous_strides(shape)
    if order == sorted(order) and all(strides[d] > 0 for d in order):
        return F.reshape(g, base)
    inverse = tuple(dense[d] if strides[d] > 0 else -dense[d] for d in order)
    start = sum(dense[d] * (shape[d] - 1) for d in order if strides[d] < 0)
    return F.reshape(F.prim("view", g, tuple(shape[d] for d in order), inverse, start), base)


def _zeros(F: Any, g: Any, shape: Shape) -> Any:
    return F.zeros(shape, dtype=g.dtype, device=g.device)


def spread(F: Any, g: Any, base: Shape, shape: Shape, strides: Shape, offset: int) -> Any:
    """Adjoint of `view`: a tensor of shape `base` that holds g where the view looked, added up where it looked twice."""
    if 0 in shape:
        return _zeros(F, g, base)
    g, shape, strides = _sum_repeats(F, g, shape, strides)
    moved = _rearranged(F, g, base, shape, strides)
    if moved is not None:
        return moved
    name = "update_add" if overlaps(shape, strides) else "update"
    return F.prim(name, _zeros(F, g, base), g, shape, strides, offset)


def _view_gradient(F: Any, g: Any, c: Any) -> Any:
    return spread(F, g, tuple(c.shape(0)), *c.attrs)


def _offset(c: Any, i: int) -> Any:
    """Operand i, an offset, in the form `F.prim` takes: a tensor or a (number, dtype) pair."""
    x = c.x(i)
    return (x, int64) if isinstance(x, int) else x


def _view_at_gradient(F: Any, g: Any, c: Any) -> Any:
    base = tuple(c.shape(0))
    shape, strides = c.attrs
    if 0 in shape:
        return _zeros(F, g, base)
    g, shape, strides = _sum_repeats(F, g, shape, strides)
    if not overlaps(shape, strides):
        return F.prim("update_at", _zeros(F, g, base), g, _offset(c, 1), shape, strides)
    positions = F.prim("view_at", F.prim("iota", (prod(base),), int64), _offset(c, 1), shape, strides)
    added = F.prim(
        "index_add", _zeros(F, g, (prod(base),)), F.reshape(positions, (prod(shape),)), F.reshape(g, (prod(shape),)), 0
    )
    return F.reshape(added, base)


def _hole(F: Any, g: Any, c: Any) -> Any:
    """Gradient of an update's base: nothing flows back from the overwritten elements."""
    return F.prim("update", g, _zeros(F, g, c.attrs[0]), *c.attrs)


def _seen(F: Any, g: Any, c: Any) -> Any:
    return F.prim("view", g, *c.attrs)


def _cat_gradient(k: int) -> Vjp:
    """Gradient of operand k: its piece of g."""

    def rule(F: Any, g: Any, c: Any) -> Any:
        dim = c.attrs[0]
        return F.narrow(g, dim, c.start(k, dim), c.shape(k)[dim])

    return Vjp(rule)


# --------------------------------------------------------------------------------------------------------------------- records

_WINDOWS = (
    Sample(((3, 4),), ((4, 3), (1, 4), 0)),
    Sample(((3, 4),), ((3, 4), (-4, -1), 11)),
    Sample(((3, 4),), ((2, 2), (4, 2), 1)),
    Sample(((3, 4),), ((2, 3, 4), (0, 4, 1), 0)),
    Sample(((8,),), ((3, 4), (2, 1), 0)),
    Sample(((2, 3),), ((), (), 4)),
    Sample(((),), ((2, 2), (0, 0), 0)),
    Sample(((2, 0),), ((0, 3), (3, 1), 0)),
)
_NAMES = ("shape", "strides", "offset")
_TYPES = ("float32", "float64", "int64", "bool")


def _with_value(sample: Sample) -> Sample:
    return Sample((sample.shapes[0], sample.attrs[0]), sample.attrs)


def _is_injective(sample: Sample) -> bool:
    return 0 in sample.attrs[0] or not overlaps(sample.attrs[0], sample.attrs[1])


def _move(name: str, doc: str, arity: int, attrs: tuple[str, ...], **fields: Any) -> None:
    """A record of what moves elements and computes nothing: it takes every type and is its own derivative."""
    register(OpDef(name, "movement", doc, arity, attrs, jvp=linear, complex="direct", stored="every", **fields))


_move(
    "view", "The elements of x's dense value at offset + sum(index * stride).", 1, _NAMES,
    shape=_view_shape,
    dtype=any_dtype("view"),
    vjp=(Vjp(_view_gradient),),
    batch=windowed,
    ref=_view_ref,
    samples=_WINDOWS,
    dtypes=_TYPES,
    role="view",
)
_move(
    "view_at", "`view` with the offset given at run time (an int64 0-d operand).", 2, _NAMES[:2],
    shape=_view_at_shape,
    dtype=_offset_dtype_rule("view_at"),
    vjp=(Vjp(_view_at_gradient, (1,)), None),
    batch=windowed,
    ref=_view_at_ref,
    samples=(
        Sample(((4, 3), ()), ((3,), (1,)), integers=((1, 9),)),
        Sample(((4, 3), ()), ((2, 2), (3, 1)), integers=((1, 5),)),
        Sample(((9,), ()), ((2, 3), (2, 1)), integers=((1, 4),)),
        Sample(((4,), ()), ((3, 2), (0, 1)), integers=((1, 3),)),
    ),
    dtypes=_TYPES,
    role="view_at",
)
_move(
    "update", "base with value written through a view of distinct elements.", 2, _NAMES,
    shape=_update_shape_rule("update"),
    dtype=any_dtype("update"),
    vjp=(Vjp(_hole), Vjp(_seen)),
    batch=written,
    ref=_update_ref,
    samples=tuple(_with_value(sample) for sample in _WINDOWS if _is_injective(sample)),
    dtypes=_TYPES,
    role="update",
)
_move(
    "update_at", "`update` with the offset given at run time (an int64 0-d operand).", 3, _NAMES[:2],
    shape=_update_shape_rule("update_at"),
    dtype=_offset_dtype_rule("update_at"),
    vjp=(
        Vjp(lambda F, g, c: F.prim("update_at", g, _zeros(F, g, c.attrs[0]), _offset(c, 2), *c.attrs), (2,)),
        Vjp(lambda F, g, c: F.prim("view_at", g, _offset(c, 2), *c.attrs), (2,)),
        None,
    ),
    batch=written,
    ref=_update_at_ref,
    samples=(
        Sample(((4, 3), (3,), ()), ((3,), (1,)), integers=((2, 9),)),
        Sample(((4, 3), (2, 2), ()), ((2, 2), (3, 1)), integers=((2, 5),)),
    ),
    dtypes=_TYPES,
    role="update_at",
)
_move(
    "update_add", "base with value added through a view; elements seen several times accumulate.", 2, _NAMES,
    shape=_update_shape_rule("update_add"),
    dtype=any_dtype("update_add"),
    vjp=(Vjp(lambda F, g, c: g), Vjp(_seen)),
    batch=written,
    ref=_update_add_ref,
    samples=tuple(_with_value(sample) for sample in _WINDOWS),
    role="accumulate",
    combine="sum",
    widens=True,
)


def _cat_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    dim = attrs[0]
    if not shapes:
        raise ShapeError("[cat] expected at least one tensor, got none; pass a non-empty list")
    first = shapes[0]
    if not 0 <= dim < len(first):
        raise ShapeError(f"[cat] expected a dim of {len(first)}-d tensors, got {dim}; 0-d tensors need stack()")
    for i, shape in enumerate(shapes):
        if len(shape) != len(first) or any(a != b for d, (a, b) in enumerate(zip(shape, first, strict=True)) if d != dim):
            raise ShapeError(
                f"[cat] expected equal sizes except in dim {dim}, got {first} and {shape} (tensor {i}); "
                "sizes of tensors must match"
            )
    return (*first[:dim], sum(shape[dim] for shape in shapes), *first[dim + 1 :])


_move(
    "cat", "Operands joined along dim.", -1, ("dim",),
    shape=_cat_shape,
    dtype=any_dtype("cat"),
    vjp=OperandRules(_cat_gradient),
    batch=joined,
    ref=lambda *operands: np.concatenate(operands[:-1], axis=operands[-1]),
    samples=(
        Sample(((2, 3), (4, 3)), (0,)),
        Sample(((2, 3), (2, 1), (2, 2)), (1,)),
        Sample(((3,),), (0,)),
        Sample(((0, 3), (2, 3)), (0,)),
    ),
    dtypes=_TYPES,
    role="join",
)
