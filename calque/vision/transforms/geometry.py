"""Images turned, moved, sheared and seen from the side. Names as in `torchvision.transforms.functional`, whose documentation has the formulas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from calque import functional as T
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError
from calque.base.text import shown
from calque.nn import functional as F
from calque.tensor import Tensor
from calque.vision.images import PILLOW, InterpolationMode, get_dimensions, in_type, is_tensor_image, mode_of
from calque.vision.transforms.boxes import geometric, size_of, warped
from calque.vision.tv_tensors import BoundingBoxes

__all__ = ["affine", "perspective", "rotate"]

_MODES = ("nearest", "bilinear", "bicubic")


def _numbers(op: str, name: str, value: Any, count: int) -> list[float]:
    """So many finite numbers."""
    found = list(value) if isinstance(value, (tuple, list)) else [value]
    if len(found) != count or not all(isinstance(v, (int, float)) and math.isfinite(v) for v in found):
        raise ArgumentError(f"[{op}] expected {name} as {count} finite numbers, got {shown(value)}")
    return [float(v) for v in found]


def _mode(op: str, interpolation: Any) -> str:
    mode = interpolation if isinstance(interpolation, InterpolationMode) else mode_of(interpolation)
    if mode.value not in _MODES:
        raise ArgumentError(f"[{op}] expected nearest, bilinear or bicubic, got {mode.value}; the others are for resize")
    return mode.value


def _colour(op: str, fill: Any, bands: int) -> list[float]:
    """One number for each channel."""
    found = list(fill) if isinstance(fill, (tuple, list)) else [0 if fill is None else fill]
    if len(found) not in (1, bands) or not all(isinstance(v, (int, float)) for v in found):
        raise ArgumentError(f"[{op}] expected fill as one number or as {bands}, one for each channel, got {shown(fill)}")
    return [float(v) for v in found] * (bands // len(found))


def _pillows(op: str, img: Any, fill: Any) -> Any:
    """The colour of what lies outside, as Pillow wants it."""
    colour = _colour(op, fill, len(img.getbands()))
    values = tuple(colour) if img.mode == "F" else tuple(int(v) for v in colour)
    return values[0] if len(values) == 1 else values


def _sampled(op: str, img: Tensor, x: Any, y: Any, mode: str, fill: Any) -> Tensor:
    """The image at places: x and y `(H', W')` in pixels from its left and upper edge, in which a pixel's middle is at 0.5. What lies outside is
    `fill`, and mixes with what is inside by the share of the pixel."""
    channels, height, width = get_dimensions(img)
    colour = _colour(op, fill, channels)
    values = img.reshape(-1, channels, height, width)
    floating = values if values.dtype.is_floating_point else values.to(dt.float32)
    grid = T.tensor(np.stack([2 * x / width - 1, 2 * y / height - 1], -1)[None]).to(floating.dtype)
    grid = grid.expand(floating.shape[0], *grid.shape[1:])
    out = F.grid_sample(floating, grid, mode=mode, padding_mode="zeros", align_corners=False)
    if any(colour) or (fill is not None and mode != "nearest"):  # 0 and None are not the same: torchvision mixes the edge with the 0 again
        inside = F.grid_sample(T.ones_like(floating[:1, :1]), grid[:1], mode=mode, padding_mode="zeros", align_corners=False)
        outer = T.tensor(colour).to(floating.dtype).reshape(-1, 1, 1)
        out = T.where(inside < 0.5, outer, out) if mode == "nearest" else out * inside + (1.0 - inside) * outer
    if not img.dtype.is_floating_point:
        out = in_type(out, img.dtype)
    return out.reshape(*img.shape[:-2], *x.shape)


def _inverse(center: Sequence[float], angle: float, move: Sequence[float], scale: float, shear: Sequence[float]) -> Any:
    """(2, 3): where each pixel comes from, for turning by `angle` degrees clockwise, shearing, scaling about `center`, then moving. It is the inverse
    of T C R S C^-1."""
    turn, sx, sy = math.radians(angle), math.radians(shear[0]), math.radians(shear[1])
    turned = np.array([[math.cos(turn - sy), -math.sin(turn)], [math.sin(turn - sy), math.cos(turn)]])
    turned[:, 0] /= math.cos(sy)
    forward = np.stack([turned[:, 0], turned[:, 1] - turned[:, 0] * math.tan(sx)], 1) * scale
    if abs(np.linalg.det(forward)) < 1e-12:
        raise ArgumentError(f"[affine] expected shear below 90 degrees that leaves an area, got {shown(list(shear))}")
    back = np.linalg.inv(forward)
    middle = np.array(center, float)
    return np.concatenate([back, (middle - back @ (middle + np.array(move, float)))[:, None]], 1)


def _places(matrix: Any, height: int, width: int, left: float = 0.0, top: float = 0.0) -> tuple[Any, Any]:
    """Where the middles of the pixels of a picture of this size, which begins at (left, top), come from."""
    x, y = (np.arange(width) + 0.5 + left)[None, :], (np.arange(height) + 0.5 + top)[:, None]
    return tuple(np.broadcast_to(row[0] * x + row[1] * y + row[2], (height, width)) for row in matrix)  # type: ignore[return-value]


def _forward(matrix: Any, left: float = 0.0, top: float = 0.0) -> Any:
    """(3, 3): where each place goes, for a picture that begins at (left, top) and whose pixels come from `matrix` (2, 3) or (3, 3)."""
    whole = np.concatenate([matrix, [[0.0, 0.0, 1.0]]]) if len(matrix) == 2 else matrix
    back = np.array([[1.0, 0.0, -left], [0.0, 1.0, -top], [0.0, 0.0, 1.0]]) @ np.linalg.inv(whole)
    return back / back[2, 2]


def _turned_size(matrix: Any, height: int, width: int, quarters: int | None) -> tuple[int, int]:
    """(height, width) of the picture that holds all of an image whose pixels `matrix` (2, 3) turns, or that is turned by quarters of a circle."""
    if quarters is not None:
        return (width, height) if quarters % 2 else (height, width)
    corners = np.array([[0, 0], [width, 0], [0, height], [width, height]], float) - (width / 2, height / 2)
    found = (matrix[:, :2] @ corners.T).T + matrix @ (width / 2, height / 2, 1.0)
    wide, tall = (np.ceil(found.max(0) - 1e-4) - np.floor(found.min(0) + 1e-4)).tolist()  # so much beyond the edge is rounding, no pixel
    return round(tall), round(wide)


@geometric
def rotate(img: Any, angle: float, interpolation: Any = InterpolationMode.NEAREST, expand: bool = False, center: Any = None, fill: Any = None) -> Any:
    """Turned counter-clockwise by an angle in degrees.

    expand: the picture grows until all of the image is in it. center: (x, y) in pixels from the upper left corner; default: the middle. fill: what
    lies outside, one number or one for each channel.
    """
    mode, (turn,) = _mode("rotate", interpolation), _numbers("rotate", "angle", angle, 1)
    middle = None if center is None else _numbers("rotate", "center", center, 2)
    if not isinstance(img, BoundingBoxes) and not is_tensor_image("rotate", img):
        return img.rotate(turn, PILLOW[mode], expand, middle, fillcolor=_pillows("rotate", img, fill))
    height, width = size_of(img)
    matrix = _inverse(middle or (width / 2, height / 2), -turn, (0, 0), 1.0, (0, 0))
    quarters = int(turn % 360 / 90) if middle is None and turn % 90 == 0 else None
    rows, columns = _turned_size(matrix, height, width, quarters) if expand else (height, width)
    left, top = (width - columns) / 2, (height - rows) / 2
    if quarters is not None and not isinstance(img, BoundingBoxes) and (expand or quarters % 2 == 0 or rows == columns):
        return img.rot90(quarters, (-2, -1))  # each pixel as it is
    if isinstance(img, BoundingBoxes):
        return warped(img, _forward(matrix, left, top), (rows, columns))
    return _sampled("rotate", img, *_places(matrix, rows, columns, left, top), mode, fill)


@geometric
def affine(
    img: Any, angle: float, translate: Any, scale: float, shear: Any, interpolation: Any = InterpolationMode.NEAREST, fill: Any = None,
    center: Any = None,
) -> Any:  # fmt: skip
    """Turned clockwise by `angle`, sheared by `shear` (an angle in x, (x, y), or [both]), scaled, moved by `translate` pixels (x, y); in degrees."""
    mode, (turn,) = _mode("affine", interpolation), _numbers("affine", "angle", angle, 1)
    move, (size,) = _numbers("affine", "translate", translate, 2), _numbers("affine", "scale", scale, 1)
    if size <= 0:
        raise ValueError(f"[affine] Argument scale should be positive, got {size}; 1.0 keeps the size")
    several = isinstance(shear, (tuple, list))  # of one number alone, it is for both
    slant = _numbers("affine", "shear", list(shear) * (3 - len(shear)) if several else [shear, 0.0], 2)
    height, width = size_of(img)
    middle = (width / 2, height / 2) if center is None else _numbers("affine", "center", center, 2)
    matrix = _inverse(middle, turn, move, size, slant)
    if isinstance(img, BoundingBoxes):
        return warped(img, _forward(matrix), (height, width))
    if not is_tensor_image("affine", img):
        # Pillow asks 0 for the method of affine maps.
        return img.transform(img.size, 0, tuple(matrix.reshape(-1)), PILLOW[mode], fillcolor=_pillows("affine", img, fill))
    return _sampled("affine", img, *_places(matrix, height, width), mode, fill)


@geometric
def perspective(img: Any, startpoints: Any, endpoints: Any, interpolation: Any = InterpolationMode.BILINEAR, fill: Any = None) -> Any:
    """Four points of the image, (x, y) each, moved to four others, and the plane with them."""
    mode = _mode("perspective", interpolation)
    for name, points in (("startpoints", startpoints), ("endpoints", endpoints)):
        if not isinstance(points, (tuple, list)) or len(points) != 4:
            raise ArgumentError(f"[perspective] expected {name} as four points (x, y), got {shown(points)}")
    start, end = (np.array([_numbers("perspective", "a point", p, 2) for p in points]) for points in (startpoints, endpoints))
    ones, none = np.ones((4, 1)), np.zeros((4, 3))
    rows = [np.concatenate(part, 1) for part in ((end, ones, none, -end * start[:, :1]), (none, end, ones, -end * start[:, 1:]))]
    try:
        a, b, c, d, e, f, g, h = np.linalg.solve(np.concatenate(rows), np.concatenate([start[:, 0], start[:, 1]])).tolist()
    except np.linalg.LinAlgError:
        raise ArgumentError(f"[perspective] expected endpoints of which no three lie on a line, got {shown(endpoints)}") from None
    if isinstance(img, BoundingBoxes):
        return warped(img, _forward(np.array([[a, b, c], [d, e, f], [g, h, 1.0]])), img.canvas_size)
    if not is_tensor_image("perspective", img):
        # Pillow asks 2 for the method of perspectives.
        return img.transform(img.size, 2, (a, b, c, d, e, f, g, h), PILLOW[mode], fillcolor=_pillows("perspective", img, fill))
    _, height, width = get_dimensions(img)
    x, y = (np.arange(width) + 0.5)[None, :], (np.arange(height) + 0.5)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        far = g * x + h * y + 1
        places = [np.nan_to_num(row / far, nan=-1e6, posinf=1e6, neginf=-1e6) for row in (a * x + b * y + c, d * x + e * y + f)]
    return _sampled("perspective", img, places[0], places[1], mode, fill)
