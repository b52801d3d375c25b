"""Strided views and writes as reshape, slice, transpose, pad and dynamic slices; an index gather or scatter only where nothing else can say it.

A view reads elements at offset + sum(index * stride). It is decoded by laying the flat base out as a grid whose steps divide one another: each dim of
the view is then a (strided) slice of one axis of the grid.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod
from typing import Any

from calque.base.dataclass import dataclass
from calque.base.shapes import Shape, contiguous_strides, overlaps

UNROLLED = 64
"""Windows that overlap (pooling, unfold) are so many slices side by side at most; more are an index."""


@dataclass(frozen=True)
class Window:
    """A view as slices of a grid: `grid` is its shape, `starts`, `extents` and `steps` the slice of each axis, `dims` the dim of the view that
    an axis holds (-1: none). `shift` elements stand before the base: a window that begins left of its row (as padded pooling reads one) lies so in
    the rows of the grid."""

    grid: tuple[int, ...]
    starts: tuple[int, ...]
    extents: tuple[int, ...]
    steps: tuple[int, ...]
    dims: tuple[int, ...]
    shift: int = 0

    @property
    def order(self) -> tuple[int, ...]:
        """Live dims of the view, as the grid has them."""
        return tuple(d for d in self.dims if d >= 0)

    @property
    def plain(self) -> bool:
        """Whether all slices take neighbours."""
        return all(step == 1 for step in self.steps)

    @property
    def limits(self) -> tuple[int, ...]:
        """Ends of the slices."""
        return tuple(a + (n - 1) * k + 1 for a, n, k in zip(self.starts, self.extents, self.steps, strict=True))


def _chains(base: Shape, strides: Sequence[int]) -> Iterator[list[int]]:
    """Steps of grids worth trying, each list falling and ending with 1."""
    own = sorted({s for s in strides if s > 0} | {1}, reverse=True)
    yield own
    dense = sorted({s for n, s in zip(base, contiguous_strides(base), strict=True) if n > 1} | {1}, reverse=True)
    if dense != own:
        yield dense
    both = sorted({*own, *dense}, reverse=True)
    if both not in (own, dense):
        yield both


def decode(base: Shape, shape: Shape, strides: Shape, offset: int) -> Window | None:
    """The view as slices of a grid; None if no grid shows it. Strides are not negative, no size is 0."""
    live = [d for d in range(len(shape)) if shape[d] > 1 and strides[d] != 0]
    for steps in _chains(base, [strides[d] for d in live]):
        if any(a % b for a, b in pairwise(steps)):
            continue
        for shift in dict.fromkeys([0, *(-offset % step for step in reversed(steps[:-1]))]):
            found = _in_grid(steps, prod(base), shape, strides, offset, live, shift)
            if found is not None:
                return found
    return None


def _in_grid(steps: list[int], numel: int, shape: Shape, strides: Shape, offset: int, live: list[int], shift: int) -> Window | None:
    """The view as slices of the grid with these steps; None if it is none."""
    grid = [-(-(numel + shift) // steps[0]), *[a // b for a, b in pairwise(steps)]]
    starts, rest = [], offset + shift
    for step in steps:
        starts.append(rest // step)
        rest %= step
    extents, by, dims = [1] * len(grid), [1] * len(grid), [-1] * len(grid)
    for d in live:
        axis = next(a for a, step in enumerate(steps) if strides[d] % step == 0 and strides[d] >= step)
        if dims[axis] >= 0:
            return None
        dims[axis], extents[axis], by[axis] = d, shape[d], strides[d] // steps[axis]
    found = Window(tuple(grid), tuple(starts), tuple(extents), tuple(by), tuple(dims), shift)
    return found if all(end <= size for end, size in zip(found.limits, grid, strict=True)) else None


def unrolled(base: Shape, shape: Shape, strides: Shape, offset: int) -> tuple[int, ...] | None:
    """Dims of the view that have to be taken slice by slice so that every slice has a grid, few slices in all; None if that takes too many."""
    live = sorted((d for d in range(len(shape)) if shape[d] > 1 and strides[d] != 0), key=lambda d: shape[d])
    chosen: list[int] = []
    count = 1
    for d in live:
        count *= shape[d]
        if count > UNROLLED:
            return None
        chosen.append(d)
        kept = [1 if e in chosen else n for e, n in enumerate(shape)]
        last = offset + sum((shape[e] - 1) * strides[e] for e in chosen)
        if decode(base, tuple(kept), strides, offset) is not None and decode(base, tuple(kept), strides, last) is not None:
            return tuple(chosen)
    return None


class Windows:
    """Reads and writes of windows by the functions of JAX that it is given. `indexed` counts those that needed an index."""

    def __init__(self, jax: Any) -> None:
        self.jnp, self.lax = jax.numpy, jax.lax
        self.indexed = 0

    # -------------------------------------------------------------------------------------------------------------- reading

    def view(self, x: Any, shape: Shape, strides: Shape, offset: int) -> Any:
        """The elements of x's dense value at offset + sum(index * stride)."""
        jnp, lax = self.jnp, self.lax
        if 0 in shape:
            return jnp.zeros(shape, x.dtype)
        if offset == 0 and prod(shape) == x.size and tuple(strides) == contiguous_strides(shape):
            return x.reshape(shape)
        turned = [d for d in range(len(shape)) if strides[d] < 0 and shape[d] > 1]
        if turned:
            offset += sum((shape[d] - 1) * strides[d] for d in turned)
            strides = tuple(-s if d in turned else s for d, s in enumerate(strides))
        found = self._sliced(x, shape, strides, offset)
        if found is None:
            found = self._side_by_side(x, shape, strides, offset)
        if found is None:
            self.indexed += 1
            found = x.reshape(-1).at[self.places(shape, strides, offset)].get(mode="promise_in_bounds")
        return lax.rev(found, turned) if turned else found

    def _sliced(self, x: Any, shape: Shape, strides: Shape, offset: int) -> Any:
        found = decode(x.shape, shape, strides, offset)
        if found is None:
            return None
        grid = self.lax.slice(self.gridded(x, found), found.starts, found.limits, found.steps)
        order = found.order
        grid = grid.reshape([shape[d] for d in order]).transpose(sorted(range(len(order)), key=lambda k: order[k]))
        return self.jnp.broadcast_to(grid.reshape([shape[d] if d in order else 1 for d in range(len(shape))]), shape)

    def gridded(self, x: Any, window: Window) -> Any:
        """The base as a grid, with padding around it."""
        more = prod(window.grid) - x.size
        if not more:  # in one step, through which a partition over several devices is carried on
            return x.reshape(window.grid)
        around = [(window.shift, more - window.shift, 0)]
        return self.lax.pad(x.reshape(-1), self.jnp.zeros((), x.dtype), around).reshape(window.grid)

    def _side_by_side(self, x: Any, shape: Shape, strides: Shape, offset: int) -> Any:
        dims = unrolled(x.shape, shape, strides, offset)
        if dims is None:
            return None
        d, kept = dims[0], tuple(1 if e == dims[0] else n for e, n in enumerate(shape))
        parts = [self.view(x, kept, strides, offset + i * strides[d]) for i in range(shape[d])]
        return self.lax.concatenate(parts, d)

    def view_at(self, x: Any, offset: Any, shape: Shape, strides: Shape) -> Any:
        """The same with an offset that comes at run time: what lies from the first to the last element is taken out."""
        jnp = self.jnp
        if 0 in shape:
            return jnp.zeros(shape, x.dtype)
        low, extent = reach(shape, strides)
        region = self.lax.dynamic_slice(x.reshape(-1), (offset + low,), (extent,))
        return self.view(region, shape, strides, -low)

    def places(self, shape: Shape, strides: Shape, offset: Any) -> Any:
        """Positions of the elements of a view."""
        jnp, lax = self.jnp, self.lax
        found = jnp.full(shape, offset, jnp.int32)
        for d, stride in enumerate(strides):
            if shape[d] > 1 and stride:
                found = found + lax.broadcasted_iota(jnp.int32, shape, d) * jnp.int32(stride)
        return found

    # -------------------------------------------------------------------------------------------------------------- writing

    def update(self, base: Any, value: Any, shape: Shape, strides: Shape, offset: int, add: bool = False) -> Any:
        """The base with a value written through a view, or added."""
        if 0 in shape:
            return base
        turned = [d for d in range(len(shape)) if strides[d] < 0 and shape[d] > 1]
        if turned:
            value = self.lax.rev(value, turned)
            offset += sum((shape[d] - 1) * strides[d] for d in turned)
            strides = tuple(-s if d in turned else s for d, s in enumerate(strides))
        repeated = [d for d in range(len(shape)) if strides[d] == 0 and shape[d] > 1]
        if repeated:  # only where values are added: elements that are seen several times
            value = self.jnp.sum(value, axis=repeated, dtype=value.dtype, keepdims=True)
            shape = tuple(value.shape)
        found = decode(base.shape, shape, strides, offset)
        if found is not None:
            return self._placed(base, value, found, add)
        if add or not overlaps(shape, strides):
            dims = unrolled(base.shape, shape, strides, offset)
            if dims is not None:
                d = dims[0]
                kept = tuple(1 if e == d else n for e, n in enumerate(shape))
                for i in range(shape[d]):
                    part = self.lax.slice_in_dim(value, i, i + 1, axis=d)
                    base = self.update(base, part, kept, strides, offset + i * strides[d], add)
                return base
        self.indexed += 1
        places, flat = self.places(shape, strides, offset).reshape(-1), base.reshape(-1)
        at, rows = flat.at[places], value.reshape(-1)
        flat = at.add(rows, mode="promise_in_bounds") if add else at.set(rows, mode="promise_in_bounds", unique_indices=True)
        return flat.reshape(base.shape)

    def _placed(self, base: Any, value: Any, window: Window, add: bool) -> Any:
        """The base with a value written into a slice of its grid."""
        jnp, lax = self.jnp, self.lax
        order = window.order
        rows = value.reshape([value.shape[d] for d in sorted(order)])
        rows = rows.transpose([sorted(order).index(d) for d in order]).reshape(window.extents)
        if window.extents == window.grid and not add and prod(window.grid) == base.size:
            return rows.reshape(base.shape)
        grid = self.gridded(base, window)
        if window.plain and not add:
            grid = lax.dynamic_update_slice(grid, rows, [jnp.int32(a) for a in window.starts])
        else:
            around = [(a, g - e, k - 1) for a, e, k, g in zip(window.starts, window.limits, window.steps, window.grid, strict=True)]
            spread = lax.pad(rows, jnp.zeros((), rows.dtype), around)
            if add:
                grid = grid + spread
            else:
                grid = jnp.where(lax.pad(jnp.ones(rows.shape, bool), jnp.zeros((), bool), around), spread, grid)
        flat = grid.reshape(-1)
        return (lax.slice(flat, (window.shift,), (window.shift + base.size,)) if flat.size != base.size else flat).reshape(base.shape)

    def update_at(self, base: Any, value: Any, offset: Any, shape: Shape, strides: Shape) -> Any:
        """`update` with an offset that comes at run time."""
        if 0 in shape:
            return base
        low, extent = reach(shape, strides)
        flat, start = base.reshape(-1), offset + low
        if extent == prod(shape) and tuple(strides) == contiguous_strides(shape):
            region = value.reshape(-1)
        else:
            region = self.update(self.lax.dynamic_slice(flat, (start,), (extent,)), value, shape, strides, -low)
        return self.lax.dynamic_update_slice(flat, region, (start,)).reshape(base.shape)


def reach(shape: Shape, strides: Shape) -> tuple[int, int]:
    """The first element of a view, relative to its offset, and how many lie from there to the last one."""
    low = sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s < 0)
    high = sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s > 0)
    return low, high - low + 1
