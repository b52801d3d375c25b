"""Strided views in ONNX: reshapes, slices, transposes and expansions where the strides are those of a block, else positions that are gathered."""

from __future__ import annotations

from math import prod
from typing import Any

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
