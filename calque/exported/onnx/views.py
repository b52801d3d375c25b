"""Strided views in ONNX: reshapes, slices, transposes and expansions where the strides are those of a block, else positions that are gathered."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from calque.base.dtypes import DType, bool_, int8, int16, int32, int64, uint8
from calque.base.shapes import contiguous_strides
from calque.exported.onnx.builder import Builder

Shape = tuple[Any, ...]


def view(b: Builder, x: str, base: Shape, shape: Shape, strides: Shape, offset: Any) -> str:
    """The window of a dense value of shape `base`."""
    if _same(shape, base) and _same(strides, contiguous_strides(base)) and _zero(offset):
        return x
    if _zero(offset) and _same(strides, contiguous_strides(shape)) and _equal(prod(shape), prod(base)):
        return b.reshape(x, shape)
    found = _block(b, x, base, shape, strides, offset)
    if found is None:
        found = b.add("Gather", b.reshape(x, (prod(base),)), positions(b, shape, strides, offset), axis=0)
    return found


def updated(b: Builder, x: str, base: Shape, value: str, window: tuple[Any, ...], reduction: str) -> str:
    """A dense value with another one written (or added) through a window, (shape, strides, offset)."""
    shape, strides, offset = window
    where = b.add("Reshape", positions(b, shape, strides, offset), b.constant([-1]))
    flat = b.add("Reshape", value, b.constant([-1]))
    return b.reshape(b.add("ScatterElements", b.reshape(x, (prod(base),)), where, flat, axis=0, reduction=reduction), base)


def positions(b: Builder, shape: Shape, strides: Shape, offset: Any) -> str:
    """Where the elements of a window lie."""
    total = b.reshape(b.size(offset), ())
    for d, (extent, stride) in enumerate(zip(shape, strides, strict=True)):
        along = b.add("Mul", b.range(extent), b.size(stride))
        lined = [1] * len(shape)
        lined[d] = extent
        total = b.add("Add", total, b.reshape(along, tuple(lined)))
    return total


def _block(b: Builder, x: str, base: Shape, shape: Shape, strides: Shape, offset: Any) -> str | None:
    """A view that is a part of a block, in another order and perhaps repeated; None if it is not."""
    real = [d for d in range(len(shape)) if not _one(shape[d]) and not _zero(strides[d])]
    try:
        order = sorted(real, key=lambda d: strides[d], reverse=True)
        factors, starts, rest, above = [], [], offset, prod(base)
        for d in order:
            if _zero(above) or not _zero(above % strides[d]):
                return None
            factors.append(above // strides[d])
            starts.append(rest // strides[d])
            rest, above = rest % strides[d], strides[d]
        if any(not bool(start >= 0) or not bool(start + shape[d] <= f) for d, f, start in zip(order, factors, starts, strict=True)):
            return None
    except ZeroDivisionError:
        return None
    x = b.reshape(x, (*factors, above))
    cut = [(k, start, start + shape[d]) for k, (d, f, start) in enumerate(zip(order, factors, starts, strict=True)) if not _same((shape[d],), (f,))]
    if not _one(above):
        cut.append((len(order), rest, rest + 1))
    if cut:
        x = b.add("Slice", x, b.sizes(c[1] for c in cut), b.sizes(c[2] for c in cut), b.constant([c[0] for c in cut]))
    x = b.reshape(x, tuple(shape[d] for d in order))
    place = {d: k for k, d in enumerate(order)}
    if [place[d] for d in real] != list(range(len(real))):
        x = b.add("Transpose", x, perm=[place[d] for d in real])
    whole = tuple(shape[d] if d in place else 1 for d in range(len(shape)))
    if len(whole) != len(real):
        x = b.reshape(x, whole)
    return x if _same(whole, shape) else b.expand(x, whole, shape)


def _plain(x: Any) -> bool:
    return type(x) is int


def _equal(a: Any, b: Any) -> bool:
    difference = a - b
    return _plain(difference) and difference == 0


def _same(a: Shape, b: Shape) -> bool:
    return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))


def _one(x: Any) -> bool:
    return _equal(x, 1)


def _zero(x: Any) -> bool:
    return _equal(x, 0)


# ------------------------------------------------------------------------------------------------------------------ other types

BITS_FROM = 26  # the opset that has BitCast
_SIGNED = {1: int8, 2: int16, 4: int32, 8: int64}


def seen_as(b: Builder, x: str, base: Shape, kind: DType, dtype: DType) -> tuple[str, Shape]:
    """The bytes of a dense value as elements of another type, and their shape: those of one element, or the number of the larger ones. Parts of
    elements are numbers of int64 from 0 on, as operators on integers without a sign are not everywhere."""
    if b.opset < BITS_FROM:
        raise b.refused(f"looks at bits, for which ONNX has an operator from opset {BITS_FROM} on (pass opset={BITS_FROM})")
    old, new = kind.itemsize, dtype.itemsize
    if old == new:
        x = b.add("Cast", x, to=b.kind(uint8)) if kind is bool_ else x
        return (b.add("Cast", x, to=b.kind(dtype)) if dtype is bool_ else b.add("BitCast", x, to=b.kind(dtype))), base
    x = x if kind is uint8 else b.add("Cast", x, to=b.kind(uint8)) if kind is bool_ else b.add("BitCast", x, to=b.kind(_SIGNED[old]))
    x, bits = b.add("Cast", x, to=b.kind(int64)), 8 * min(old, new)
    parts, shape = max(old, new) // min(old, new), (*base, old // new)
    if old > new:
        steps = [2 ** (bits * k) for k in range(parts)]
        whole = b.add("BitwiseAnd", b.reshape(x, (*base, 1)), b.constant([-step for step in steps]))
        x = _part(b, b.add("Div", whole, b.constant(steps)), bits)
        x = x if dtype in (uint8, bool_) else _with_sign(b, x, bits)
    else:
        shape = (prod(base) // parts,)
        if not _equal(shape[0] * parts, prod(base)):
            raise b.refused("looks at bytes as elements of a type that does not divide them")
        x = b.reshape(_part(b, x, bits), (*shape, parts))
        one_by_one = [b.add("Gather", x, b.constant(np.asarray(k)), axis=1) for k in range(parts)]
        x = _with_sign(b, one_by_one.pop(), bits)
        for part in reversed(one_by_one):  # ONNX Runtime's sums of a dim are sums of doubles
            x = b.add("Add", b.add("Mul", x, b.scalar(2**bits, int64)), part)
    if dtype in (uint8, bool_):
        return b.add("Cast", x, to=b.kind(dtype)), shape
    x = b.add("Cast", x, to=b.kind(_SIGNED[new]))
    return (x if dtype is _SIGNED[new] else b.add("BitCast", x, to=b.kind(dtype))), shape


def _part(b: Builder, x: str, bits: int) -> str:
    return b.add("BitwiseAnd", x, b.scalar(2**bits - 1, int64))  # type: ignore[no-any-return]


def _with_sign(b: Builder, x: str, bits: int) -> str:
    """Numbers of so many bits as those with a sign that have these bits."""
    below = b.add("Less", x, b.scalar(2 ** (bits - 1), int64))
    return b.add("Where", below, x, b.add("Sub", x, b.scalar(2**bits, int64)))  # type: ignore[no-any-return]
