"""Images and volumes read at places that a grid names: `grid_sample` and the grids of affine maps."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from calque import functional as T
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, DTypeError, ShapeError
from calque.base.shapes import contiguous_strides, ints
from calque.base.text import shown
from calque.functional.common import cast, linked
from calque.functional.declared import public
from calque.functional.precision import full_precision
from calque.ir.symint import any_free
from calque.nn.functional import freely
from calque.observe.source import warn_user
from calque.tensor import Tensor, upload_known

MODES, PADDINGS = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")


def _unnormalised(x: Tensor, size: int, align_corners: bool) -> Tensor:
    """[-1, 1] as positions of elements: the ends are the centres of the outer elements (`align_corners`), or their outer edges."""
    return (x + 1.0) * ((size - 1) / 2) if align_corners else ((x + 1.0) * size - 1.0) / 2.0


def _clipped(x: Tensor, size: int) -> Tensor:
    """Positions limited to the image; no gradient at and beyond its borders."""
    return T.where(x <= 0, 0.0, T.where(x >= size - 1, (size - 1) * 1.0, x))  # type: ignore[no-any-return]


def _mirrored(x: Tensor, size: int, align_corners: bool) -> Tensor:
    """Positions reflected at the borders until they lie inside."""
    low, span = (0.0, (size - 1) * 1.0) if align_corners else (-0.5, size * 1.0)
    if span == 0:
        return x * 0.0
    away = T.abs(x - low)
    times = linked(T.floor(away.detach() / span), away)
    rest = away - times * span
    odd = T.remainder(times.detach(), 2.0) == 1.0
    return T.where(odd, span - rest, rest) + low  # type: ignore[no-any-return]


def _brought_inside(x: Tensor, size: int, padding_mode: str, align_corners: bool) -> Tensor:
    if padding_mode == "border":
        return _clipped(x, size)
    return _clipped(_mirrored(x, size, align_corners), size) if padding_mode == "reflection" else x


class Image:
    """An input (N, C, *spatial), read at whole positions: 0 outside."""

    def __init__(self, x: Tensor) -> None:
        self.batch, self.channels, *spatial = x._layout.shape
        self.spatial = tuple(int(s) for s in spatial)
        self.flat = T.reshape(x, (self.batch, self.channels, prod(self.spatial)))

    def at(self, places: list[Tensor]) -> Tensor:
        """Elements at (N, *out) positions per dim that hold whole numbers: (N, C, *out)."""
        shape = tuple(places[0]._layout.shape)
        index: Any = 0
        inside: Any = None
        for place, size, stride in zip(places, self.spatial, contiguous_strides(self.spatial), strict=True):
            here = (place >= 0) & (place <= size - 1)
            inside = here if inside is None else inside & here
            index = index + cast(T.where(here, place, 0.0), dt.int64) * stride
        count = prod(shape[1:])
        wanted = T.expand(T.reshape(index, (self.batch, 1, count)), (self.batch, self.channels, count))
        found = T.reshape(T.gather(self.flat, 2, wanted), (self.batch, self.channels, *shape[1:]))
        return T.where(T.unsqueeze(inside, 1), found, 0.0)  # type: ignore[no-any-return]


def interpolated(image: Image, places: list[Tensor]) -> Tensor:
    floors = [linked(T.floor(p.detach()), p) for p in places]
    parts = [p - f for p, f in zip(places, floors, strict=True)]
    total: Any = None
    for corner in itertools.product((0, 1), repeat=len(places)):
        weight: Any = None
        for side, part in zip(corner, parts, strict=True):
            factor = part if side else 1.0 - part
            weight = factor if weight is None else weight * factor
        value = image.at([f.detach() + float(side) for f, side in zip(floors, corner, strict=True)])
        term = value * T.unsqueeze(weight, 1)
        total = term if total is None else total + term
    return total  # type: ignore[no-any-return]


def _cubic_weights(t: Tensor) -> list[Tensor]:
    """Of the four elements around a position t behind the second, with a = -0.75. Source: Keys, "Cubic Convolution Interpolation" (1981)."""
    a = -0.75

    def near(d: Tensor) -> Tensor:
        return ((a + 2) * d - (a + 3)) * d * d + 1.0

    def far(d: Tensor) -> Tensor:
        return ((d * a - 5 * a) * d + 8 * a) * d - 4 * a

    return [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)]


def _cubic(image: Image, places: list[Tensor], inside: Callable[[int, Tensor], Tensor]) -> Tensor:
    floors = [linked(T.floor(p.detach()), p) for p in places]
    rows, columns = ([*_cubic_weights(p - f)] for p, f in zip(places, floors, strict=True))
    total: Any = None
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            place = [inside(0, floors[0].detach() + float(i - 1)), inside(1, floors[1].detach() + float(j - 1))]
            term = image.at(place) * T.unsqueeze(row * column, 1)
            total = term if total is None else total + term
    return total  # type: ignore[no-any-return]


def _check(input: Tensor, grid: Tensor, mode: str, padding_mode: str) -> None:
    op = "grid_sample"
    if mode not in MODES:
        raise ArgumentError(f"[{op}] nn.functional.grid_sample(): expected mode to be 'bilinear', 'nearest' or 'bicubic', but got: {shown(mode)}")
    if padding_mode not in PADDINGS:
        raise ArgumentError(f"[{op}] expected padding_mode to be 'zeros', 'border', or 'reflection', but got: {shown(padding_mode)}")
    n = input._layout.ndim - 2
    if n not in (2, 3) or grid._layout.ndim != n + 2 or grid._layout.shape[-1] != n or grid._layout.shape[0] != input._layout.shape[0]:
        raise ShapeError(
            f"[{op}] expected input (N, C, H, W) with grid (N, H', W', 2), or volumes with a 3 in the grid, got {tuple(input._layout.shape)} and "
            f"{tuple(grid._layout.shape)}: grid_sampler(): expected 4D or 5D input and grid with same number of dimensions"
        )
    if 0 in input._layout.shape[2:]:
        raise ShapeError(f"[{op}] expected input to have non-empty spatial dimensions, but input has sizes {list(input._layout.shape)}")
    if mode == "bicubic" and n == 3:
        raise ArgumentError(f"[{op}] bicubic only supports 4D input, got shape {tuple(input._layout.shape)}")
    if input._layout.dtype is not grid._layout.dtype:
        raise DTypeError(f"[{op}] expected input and grid to have same dtype, but got {input._layout.dtype!r} and {grid._layout.dtype!r}")


@public(of="nn.functional")
@full_precision
def grid_sample(
    input: Tensor, grid: Tensor, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool | None = None
) -> Tensor:
    """Elements of an image at the places (x, y) of a grid, where -1 and 1 are its edges: (N, C, H, W), (N, H', W', 2) -> (N, C, H', W'); of a volume
    at (x, y, z): (N, C, D, H, W), (N, D', H', W', 3) -> (N, C, D', H', W').

    mode: "bilinear", "nearest" or (images only) "bicubic". padding_mode: what lies outside is 0, the border, or a reflection.

    >>> import calque
    >>> image = calque.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    >>> calque.nn.functional.grid_sample(image, calque.zeros(1, 1, 1, 2), align_corners=True).item()
    2.5
    """
    _check(input, grid, mode, padding_mode)
    if align_corners is None:
        warn_user("Default grid_sample and affine_grid behavior has changed to align_corners=False since 1.3.0. Please specify align_corners=True if "
                  "the old behavior is desired.")  # fmt: skip
    corners = bool(align_corners)
    image = Image(input)
    n = len(image.spatial)
    places = [_unnormalised(T.select(grid, -1, n - 1 - i), image.spatial[i], corners) for i in range(n)]
    if mode == "bicubic":
        return _cubic(image, places, lambda i, p: _brought_inside(p, image.spatial[i], padding_mode, corners))
    places = [_brought_inside(p, size, padding_mode, corners) for p, size in zip(places, image.spatial, strict=True)]
    if mode == "nearest":
        return linked(image.at([T.round(p.detach()) for p in places]), grid)
    return interpolated(image, places)


def grid_sampler(input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Tensor:
    """`nn.functional.grid_sample` with its modes as numbers, in the order in which its documentation names them."""
    return grid_sample(input, grid, MODES[interpolation_mode], PADDINGS[padding_mode], align_corners)


grid_sampler_2d = grid_sampler_3d = grid_sampler


@public(of="nn.functional")
@full_precision
def affine_grid(theta: Tensor, size: Any, align_corners: bool | None = None) -> Tensor:
    """The places that affine maps give the elements of an output of `size`, for `grid_sample`: (N, 2, 3), (N, C, H, W) -> (N, H, W, 2), or
    (N, 3, 4), (N, C, D, H, W) -> (N, D, H, W, 3).

    >>> import calque
    >>> calque.nn.functional.affine_grid(calque.eye(2, 3)[None], (1, 1, 1, 2), align_corners=True)
    tensor([[[[-1.,  0.],
              [ 1.,  0.]]]])
    """
    sizes = ints("affine_grid", size)
    n = len(sizes) - 2
    if n not in (2, 3) or min(sizes) < 1:
        raise ArgumentError(f"[affine_grid] affine_grid only supports 4D and 5D sizes of positive ints, got size {sizes}")
    if theta._layout.dtype.category != 2:
        raise DTypeError(f"[affine_grid] Expected theta to have floating point type, but got {theta._layout.dtype!r}")
    if tuple(theta._layout.shape[1:]) != (n, n + 1) or theta._layout.ndim != 3:
        raise ShapeError(
            f"[affine_grid] Expected a batch of {n}D affine matrices of shape Nx{n}x{n + 1} for size {sizes}. Got {tuple(theta._layout.shape)}."
        )
    if align_corners is None:
        warn_user("Default grid_sample and affine_grid behavior has changed to align_corners=False since 1.3.0. Please specify align_corners=True if "
                  "the old behavior is desired.")  # fmt: skip
    if any_free(*sizes):
        return freely.affine_grid(theta, sizes, align_corners)
    axes = []
    for s in sizes[2:]:
        line = np.linspace(-1.0, 1.0, s) if s > 1 else np.zeros(1)
        axes.append(line if align_corners else line * (s - 1) / s)
    mesh = np.meshgrid(*axes, indexing="ij")[::-1]
    table = np.stack([*(m.ravel() for m in mesh), np.ones(prod(sizes[2:]))], -1).astype(theta._layout.dtype.np)
    base = upload_known(table, theta._layout.dtype, sizes)
    return T.reshape(T.matmul(base, T.transpose(theta, 1, 2)), (sizes[0], *sizes[2:], n))
