"""Affine index arithmetic: how the coordinates and addresses of values depend on the iteration dims of a kernel.

A `Form` is `offset + sum(coef * i_dim)`, canonical: sorted by dim, no zero coefficients, no dims of extent 1. `Coords` has one
form per dim of a value's shape. A dense value at coords c has the address `flatten(c, row-major strides)`; `unflatten` is the
inverse and exists when no carry between digits can happen.
"""

from __future__ import annotations

from collections.abc import Sequence

from calque.base.cache import memoised
from calque.base.shapes import Shape, contiguous_strides

Form = tuple[int, tuple[tuple[int, int], ...]]
Coords = tuple[Form, ...]
ZERO: Form = (0, ())


class NeedsSplit(Exception):
    """Iteration dim `dim` must be split into (outer, `inner`) before the index can be written down."""

    def __init__(self, dim: int, inner: int) -> None:
        super().__init__(dim, inner)
        self.dim = dim
        self.inner = inner


def canonical(shape: Shape) -> tuple[list[int], Coords]:
    """Fresh iteration dims for a value of this shape, and its coordinates: one dim per non-unit extent."""
    extents: list[int] = []
    coords: list[Form] = []
    for extent in shape:
        if extent == 1:
            coords.append(ZERO)
        else:
            coords.append((0, ((len(extents), 1),)))
            extents.append(extent)
    return extents, tuple(coords)


@memoised("addresses", 600, 1 / 128)
def flatten(coords: Coords, strides: Shape, offset: int = 0) -> Form:
    """`offset + sum(stride * coord)`."""
    total: dict[int, int] = {}
    for (shift, terms), stride in zip(coords, strides, strict=True):
        if stride:
            offset += stride * shift
            for dim, coef in terms:
                total[dim] = total.get(dim, 0) + coef * stride
    return offset, tuple(sorted((d, c) for d, c in total.items() if c))


def dense(coords: Coords, shape: Shape) -> Form:
    """Address in a dense value of this shape."""
    return flatten(coords, contiguous_strides(shape))


@memoised("coordinates", 800, 1 / 128)
def unflatten(form: Form, extents: tuple[int, ...], shape: Shape, strides: Shape) -> Coords | None:
    """Coordinates c in `shape` with `flatten(c, strides) == form` for all iterations, or None; raises `NeedsSplit` when splitting a
    dim helps.

    `strides` must be positive and hierarchical (a permutation of row-major), so that digits are unique.
    """
    order = sorted((k for k, e in enumerate(shape) if e != 1), key=lambda k: -strides[k])
    rest, terms = form
    digits = [0] * len(shape)
    for k in order:
        digits[k], rest = divmod(rest, strides[k])
    if rest or not order and terms:
        return None
    parts: list[list[tuple[int, int]]] = [[] for _ in shape]
    low = list(digits)
    high = list(digits)
    for dim, coef in terms:
        k = _digit(coef, order, strides)
        if k < 0:
            return None
        step = coef // strides[k]
        reach = step * (extents[dim] - 1)
        if abs(reach) >= shape[k]:
            inner, odd = divmod(shape[k], abs(step))
            if step > 0 and not odd and 1 < inner < extents[dim] and extents[dim] % inner == 0:
                raise NeedsSplit(dim, inner)
            return None
        parts[k].append((dim, step))
        low[k] += min(reach, 0)
        high[k] += max(reach, 0)
    for k in order:
        if low[k] < 0 or high[k] >= shape[k]:
            return None
    return tuple((digits[k], tuple(sorted(parts[k]))) for k in range(len(shape)))


def _digit(coef: int, order: Sequence[int], strides: Shape) -> int:
    """The most significant digit whose weight divides `coef`."""
    for k in order:
        if strides[k] <= abs(coef):
            return k if coef % strides[k] == 0 else -1
    return -1


def split_form(form: Form, dim: int, inner: int, fresh: int) -> Form:
    """The form after dim became (dim, fresh) with `inner` iterations of `fresh`."""
    offset, terms = form
    for d, coef in terms:
        if d == dim:
            rest = [t for t in terms if t[0] != dim]
            return offset, tuple(sorted([*rest, (dim, coef * inner), (fresh, coef)]))
    return form


def split_coords(coords: Coords, dim: int, inner: int, fresh: int) -> Coords:
    """`split_form` on every coordinate."""
    return tuple(split_form(f, dim, inner, fresh) for f in coords)


def broadcast(coords: Coords, shape: Shape) -> Coords:
    """Coordinates of an operand of `shape` in a result at `coords` under NumPy's broadcasting."""
    lead = len(coords) - len(shape)
    own = coords[lead:] if lead else coords
    if 1 in shape:
        return tuple(ZERO if e == 1 else f for f, e in zip(own, shape, strict=True))
    return own


def dims_of(coords: Coords) -> set[int]:
    """Iteration dims that a value's coordinates depend on."""
    return {d for _, terms in coords for d, _ in terms}


def is_hierarchical(shape: Shape, strides: Shape) -> bool:
    """Whether the strides are a permutation of the row-major strides of some order of the same extents (a bijective view)."""
    step = 1
    for stride, extent in sorted((st, e) for st, e in zip(strides, shape, strict=True) if e != 1):
        if stride != step:
            return False
        step *= extent
    return True
