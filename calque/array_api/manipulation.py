"""Shapes, indices, searching, sets and sorting."""

from __future__ import annotations

from typing import Any, NamedTuple

import calque
from calque.array_api.helpers import Axis, dims, one_axis, require, together
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, DTypeError
from calque.base.text import shown
from calque.tensor import Tensor

__all__ = [
    "argmax", "argmin", "argsort", "broadcast_arrays", "broadcast_to", "concat", "count_nonzero", "expand_dims", "flip", "moveaxis", "nonzero",
    "permute_dims", "repeat", "reshape", "roll", "searchsorted", "sort", "squeeze", "stack", "take", "take_along_axis", "tile", "unique_all",
    "unique_counts", "unique_inverse", "unique_values", "unstack", "where",
]  # fmt: skip


def broadcast_arrays(*arrays: Tensor) -> list[Tensor]:
    """The arrays in the shape that they have together."""
    return list(calque.broadcast_tensors(*arrays)) if arrays else []


def broadcast_to(x: Tensor, /, shape: tuple[int, ...]) -> Tensor:
    """The array repeated to a shape, without a copy."""
    return calque.broadcast_to(require("broadcast_to", x), tuple(shape))


def concat(arrays: Any, /, *, axis: int | None = 0) -> Tensor:
    """The arrays one behind the other along an axis; flattened first for None."""
    found = together("concat", *arrays)
    if axis is None:
        return calque.cat([x.reshape(-1) for x in found])  # type: ignore[attr-defined]
    return calque.cat(found, one_axis("concat", axis, found[0].ndim))


def expand_dims(x: Tensor, /, axis: int = 0) -> Tensor:
    """The array with an axis of length 1 more."""
    return calque.unsqueeze(require("expand_dims", x), one_axis("expand_dims", axis, x.ndim + 1))


def flip(x: Tensor, /, *, axis: Axis = None) -> Tensor:
    """The array backwards along axes."""
    return calque.flip(require("flip", x), dims("flip", x, axis))


def moveaxis(x: Tensor, source: Any, destination: Any, /) -> Tensor:
    """The array with axes at other places."""
    return calque.movedim(require("moveaxis", x), source, destination)


def permute_dims(x: Tensor, /, axes: tuple[int, ...]) -> Tensor:
    """The array with its axes in another order."""
    return calque.permute(require("permute_dims", x), tuple(axes))


def repeat(x: Tensor, repeats: Any, /, *, axis: int | None = None) -> Tensor:
    """Each element so many times; of the flattened array for no axis."""
    source = require("repeat", x) if axis is not None else x.reshape(-1)  # type: ignore[attr-defined]
    if not isinstance(repeats, int):
        repeats = repeats.to(dt.int64).reshape(-1)
        repeats = repeats.expand(source.shape[axis or 0]) if repeats.numel() == 1 else repeats
    return calque.repeat_interleave(source, repeats, axis or 0)


def reshape(x: Tensor, /, shape: tuple[int, ...], *, copy: bool | None = None) -> Tensor:
    """The elements in another shape. `copy`: True for memory of its own, False for a view or an error."""
    size = (shape,) if isinstance(shape, int) else tuple(shape)
    if copy is False:
        try:
            return require("reshape", x).view(size)  # type: ignore[attr-defined, no-any-return]
        except RuntimeError as error:
            raise ArgumentError(f"[reshape] expected strides that allow a view for copy=False: {error}") from None
    made: Tensor = calque.reshape(require("reshape", x), size)
    return made.clone() if copy else made  # type: ignore[attr-defined, no-any-return]


def roll(x: Tensor, /, shift: Any, *, axis: Axis = None) -> Tensor:
    """The elements moved along axes, around the end."""
    if axis is None:
        return calque.roll(require("roll", x), shift)
    axes = axis if isinstance(axis, tuple) else (axis,)
    shifts = shift if isinstance(shift, tuple) else (shift,) * len(axes)
    return calque.roll(x, shifts, tuple(axes))


def squeeze(x: Tensor, /, axis: Any) -> Tensor:
    """The array without axes of length 1; others are refused."""
    found = dims("squeeze", require("squeeze", x), axis)
    if any(x.shape[d] != 1 for d in found):
        raise ArgumentError(f"[squeeze] expected axes of length 1, got {axis} of shape {tuple(x.shape)}")
    return calque.squeeze(x, tuple(found))


def stack(arrays: Any, /, *, axis: int = 0) -> Tensor:
    """The arrays along a new axis."""
    found = together("stack", *arrays)
    return calque.stack(found, one_axis("stack", axis, found[0].ndim + 1))


def tile(x: Tensor, repetitions: tuple[int, ...], /) -> Tensor:
    """The array so many times along each axis."""
    return calque.tile(require("tile", x), tuple(repetitions))


def unstack(x: Tensor, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """The parts along an axis."""
    return tuple(calque.unbind(require("unstack", x), one_axis("unstack", axis, x.ndim)))


# ---------------------------------------------------------------------------------------------------------------- indices


def take(x: Tensor, indices: Tensor, /, *, axis: int | None = None) -> Tensor:
    """The parts at positions along an axis."""
    if axis is None:
        if require("take", x).ndim != 1:
            raise ArgumentError(f"[take] expected an axis for an array of {x.ndim} dims; give axis=")
        axis = 0
    d = one_axis("take", axis, x.ndim)
    found = calque.index_select(x, d, _positions(indices.reshape(-1), x.shape[d]))  # type: ignore[attr-defined]
    return found.reshape((*x.shape[:d], *indices.shape, *x.shape[d + 1 :]))  # type: ignore[attr-defined, no-any-return]


def take_along_axis(x: Tensor, indices: Tensor, /, *, axis: int = -1) -> Tensor:
    """The elements at positions along an axis, of its own for each of the other ones."""
    d = one_axis("take_along_axis", axis, require("take_along_axis", x).ndim)
    return calque.take_along_dim(x, _positions(indices, x.shape[d]), d)


def _positions(indices: Tensor, size: int) -> Tensor:
    """Positions from 0, as int64."""
    whole = indices.to(dt.int64)  # type: ignore[attr-defined]
    return calque.where(whole < 0, whole + size, whole)


# -------------------------------------------------------------------------------------------------------------- searching


def _extreme(name: str) -> Any:
    function = getattr(calque, name)

    def apply(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
        found = function(require(name, x), axis, keepdims and axis is not None)
        return found.reshape((1,) * x.ndim) if keepdims and axis is None else found  # type: ignore[no-any-return]

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"`calque.{name}` along an axis, or in the flattened array."
    return apply


argmax, argmin = _extreme("argmax"), _extreme("argmin")


def count_nonzero(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """How many elements along axes are not 0."""
    axes = dims("count_nonzero", require("count_nonzero", x), axis)
    found = (x != 0).to(dt.int64)  # type: ignore[attr-defined]
    return calque.sum(found, axes, keepdims) if axes else found


def nonzero(x: Tensor, /) -> tuple[Tensor, ...]:
    """Positions of the elements that are not 0, for each axis."""
    if require("nonzero", x).ndim == 0:
        raise ArgumentError("[nonzero] expected an array with axes, got one of no dims; use reshape(x, (1,))")
    return tuple(calque.nonzero(x, as_tuple=True))


def searchsorted(x1: Tensor, x2: Any, /, *, side: str = "left", sorter: Tensor | None = None) -> Tensor:
    """Where elements of x2 belong in the sorted x1."""
    a, b = together("searchsorted", x1, x2)
    return calque.searchsorted(a, b.contiguous(), side=side, sorter=sorter)  # type: ignore[attr-defined]


def where(condition: Tensor, x1: Any, x2: Any, /) -> Tensor:
    """x1 where the condition holds, else x2."""
    if require("where", condition)._layout.dtype is not dt.bool_:
        raise DTypeError(f"[where] expected a condition of dtype bool, got {condition._layout.dtype!r}; compare it with something first")
    return calque.where(condition, *together("where", x1, x2))


# ------------------------------------------------------------------------------------------------------------------- sets


class UniqueAll(NamedTuple):
    """Different values, where each comes first, which of them each element is, and how often each comes."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """Different values and how often each comes."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """Different values and which of them each element is."""

    values: Tensor
    inverse_indices: Tensor


def unique_all(x: Tensor, /) -> UniqueAll:
    """The different elements; each NaN is another one."""
    flat = require("unique_all", x).reshape(-1)  # type: ignore[attr-defined]
    order = calque.argsort(flat, stable=True)
    ordered = flat[order]
    first = calque.cat([calque.ones(min(1, flat.numel()), dtype=dt.bool_), ordered[1:] != ordered[:-1]])
    starts = calque.nonzero(first, as_tuple=True)[0]
    counts = calque.diff(starts, append=calque.tensor([flat.numel()]))
    which = calque.cumsum(first.to(dt.int64), 0) - 1
    inverse = calque.empty(flat.numel(), dtype=dt.int64).scatter_(0, order, which)  # type: ignore[attr-defined]
    return UniqueAll(ordered[starts], order[starts], inverse.reshape(tuple(x.shape)), counts)


def unique_counts(x: Tensor, /) -> UniqueCounts:
    """The different elements and how often each comes."""
    found = unique_all(x)
    return UniqueCounts(found.values, found.counts)


def unique_inverse(x: Tensor, /) -> UniqueInverse:
    """The different elements and which of them each one is."""
    found = unique_all(x)
    return UniqueInverse(found.values, found.inverse_indices)


def unique_values(x: Tensor, /) -> Tensor:
    """The different elements."""
    return unique_all(x).values


def argsort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """Positions that sort along an axis."""
    return calque.sort(require("argsort", x), one_axis("argsort", axis, x.ndim), descending, stable=True).indices  # type: ignore[no-any-return]


def sort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The elements sorted along an axis."""
    if not isinstance(descending, bool):
        raise TypeError(f"[sort] expected descending as a bool, got {shown(descending)}")
    return calque.sort(require("sort", x), one_axis("sort", axis, x.ndim), descending, stable=True).values  # type: ignore[no-any-return]
