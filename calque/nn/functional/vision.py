"""Resizing, shuffling and unfolding of images."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from calque import functional as T
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, ShapeError
from calque.base.shapes import contiguous_strides, listed, whole
from calque.base.text import shown
from calque.functional.common import cast, prim, require_dims, require_fractions, require_real, row_major
from calque.functional.declared import public
from calque.functional.formats import owned
from calque.functional.precision import as_given
from calque.ir.symint import any_free
from calque.nn.functional import freely
from calque.nn.functional.conv import sizes
from calque.nn.functional.current import current
from calque.nn.functional.padding import pad
from calque.nn.functional.pooling import adaptive_avg_pool1d, adaptive_avg_pool2d
from calque.nn.functional.rows import constant
from calque.nn.functional.volumes import adaptive_avg_pool3d
from calque.nn.gradient import not_of_integers
from calque.tensor import Tensor, upload_known

_DIMS = {
    "nearest": (1, 2, 3),
    "nearest-exact": (1, 2, 3),
    "linear": (1,),
    "bilinear": (2,),
    "bicubic": (2,),
    "trilinear": (3,),
    "area": (1, 2, 3),
}


def _centres(size: int, out: int, scale: float | None, align_corners: bool) -> Any:
    """Source coordinate of every output position."""
    i = np.arange(out, dtype=np.float64)
    if align_corners:
        return i * ((size - 1) / (out - 1)) if out > 1 else i * 0.0
    return (i + 0.5) * (1.0 / scale if scale else size / out) - 0.5


def _linear_weights(size: int, out: int, scale: float | None, align_corners: bool) -> Any:
    """Matrix (out, size) of linear interpolation."""
    x = np.clip(_centres(size, out, scale, align_corners), 0.0, size - 1)
    low = np.minimum(x.astype(np.int64), size - 1)
    high = np.minimum(low + 1, size - 1)
    table = np.zeros((out, size))
    np.add.at(table, (np.arange(out), low), 1.0 - (x - low))
    np.add.at(table, (np.arange(out), high), x - low)
    return table


def _cubic_weights(size: int, out: int, scale: float | None, align_corners: bool) -> Any:
    """Matrix (out, size) of cubic convolution with a = -0.75. Source: Keys, "Cubic Convolution Interpolation" (1981)."""
    a = -0.75
    x = _centres(size, out, scale, align_corners)
    low = np.floor(x).astype(np.int64)
    t = x - low
    near = lambda d: ((a + 2) * d - (a + 3)) * d * d + 1  # noqa: E731
    far = lambda d: ((a * d - 5 * a) * d + 8 * a) * d - 4 * a  # noqa: E731
    table = np.zeros((out, size))
    for offset, weight in ((-1, far(t + 1)), (0, near(t)), (1, near(1 - t)), (2, far(2 - t))):
        np.add.at(table, (np.arange(out), np.clip(low + offset, 0, size - 1)), weight)
    return table


def _filtered_weights(reach: int, size: int, out: int, scale: float | None, align_corners: bool) -> Any:
    """Matrix (out, size) of a filter as wide as an output pixel, if that is the larger one: a triangle, or with `reach` 2 a cubic (a = -0.5).
    Source: Pillow's resampling, which PyTorch's `antialias` follows."""
    step = ((size - 1) / (out - 1) if out > 1 else 0.0) if align_corners else 1.0 / scale if scale else size / out
    width = max(step, 1.0)
    centre = step * (np.arange(out)[:, None] + 0.5)
    low = np.maximum((centre - reach * width + 0.5).astype(np.int64), 0)
    high = np.minimum((centre + reach * width + 0.5).astype(np.int64), size)
    j = np.arange(size)[None, :]
    d = np.abs((j - centre + 0.5) / width)
    if reach == 1:
        table = np.maximum(1.0 - d, 0.0)
    else:
        table = np.where(d < 1, (1.5 * d - 2.5) * d * d + 1, np.where(d < 2, ((-0.5 * d + 2.5) * d - 4) * d + 2, 0.0))
    table = np.where((j >= low) & (j < high), table, 0.0)
    return table / table.sum(1, keepdims=True)


def _nearest_index(size: int, out: int, scale: float | None, exact: bool) -> Any:
    step = np.float32(1.0 / scale if scale else size / out)
    i = np.arange(out, dtype=np.float32)
    return np.minimum(np.floor((i + np.float32(0.5)) * step if exact else i * step).astype(np.int64), size - 1)


def _nearest(x: Tensor, out: list[int], scales: list[Any], exact: bool) -> Tensor:
    shape = tuple(x._layout.shape)
    free = any_free(*out, *shape[2:])
    if not any_free(*(o % n for o, n in zip(out, shape[2:], strict=True))) and all(o % n == 0 for o, n in zip(out, shape[2:], strict=True)) and all(
        s is None or s * n == o for s, n, o in zip(scales, shape[2:], out, strict=True)
    ):
        factors = [o // n for o, n in zip(out, shape[2:], strict=True)]
        spaced = (*shape[:2], *(v for n in shape[2:] for v in (n, 1)))
        target = (*shape[:2], *(v for n, f in zip(shape[2:], factors, strict=True) for v in (n, f)))
        return owned(T.reshape(T.expand(T.reshape(x, spaced), target), (*shape[:2], *out)), x)
    for d, (n, o, s) in enumerate(zip(shape[2:], out, scales, strict=True), start=2):
        index = freely.nearest_index(n, o, s, exact) if free else upload_known(_nearest_index(n, o, s, exact), dt.int64, s)
        x = prim("index_select", x, index, d)
    return x


@as_given
def _separable(x: Tensor, out: list[int], scales: list[Any], weights: Callable[..., Any], align_corners: bool) -> Tensor:
    """One interpolation matrix per spatial dim. Sums and weights of 16-bit floats are of float32, so that the result rounds once; bytes are rounded
    after each dim, the last of which is the first, as in PyTorch."""
    shape, given = tuple(x._layout.shape), x._layout.dtype
    of_bytes = given is dt.uint8
    kind = dt.float32 if of_bytes else given.compute
    x, each = cast(x, kind), list(enumerate(zip(shape[2:], out, scales, strict=True), start=2))
    for d, (n, o, s) in reversed(each) if of_bytes else each:
        if any_free(n, o) and weights in (_cubic_weights, _linear_weights):
            x = freely.resized(x, d, o, s, weights is _cubic_weights, align_corners)
            continue
        matrix = upload_known(weights(n, o, s, align_corners).astype(kind.np), kind, s)
        if d == len(shape) - 1:
            x = T.matmul(x, T.transpose(matrix, 0, 1))
        else:
            x = T.transpose(T.matmul(T.transpose(x, d, -1), T.transpose(matrix, 0, 1)), d, -1)
        if of_bytes:
            x = T.clamp(T.floor(x + 0.5), 0.0, 255.0)
    return cast(row_major(x), given)


def _output_sizes(hw: tuple[int, ...], size: Any, scale_factor: Any, recompute: bool) -> tuple[list[int], list[Any]]:
    n = len(hw)
    if (size is None) == (scale_factor is None):
        raise ArgumentError("[interpolate] expected exactly one of size and scale_factor: only one of size or scale_factor should be defined")
    if size is not None:
        wanted = listed("interpolate", "size", size)
        wanted = wanted if isinstance(size, (tuple, list)) else wanted * n
        scales: list[Any] = [None] * n
    else:
        several = isinstance(scale_factor, (tuple, list))
        scales = [float(s) for s in scale_factor] if several else [float(scale_factor)] * n
        if not all(math.isfinite(s) for s in scales):
            raise ArgumentError(f"[interpolate] expected a finite scale_factor, got {shown(scale_factor)}")
        if len(scales) != n:
            raise ArgumentError(f"[interpolate] expected one scale_factor or {n}, one for each spatial dim, got {shown(scale_factor)}")
        wanted = [math.floor(h * s) for h, s in zip(hw, scales, strict=True)]
    if len(wanted) != n:
        raise ArgumentError(f"[interpolate] Input and output must have the same number of spatial dimensions: expected {n} sizes, got {len(wanted)}")
    if min(wanted) < 1:
        raise ShapeError(f"[interpolate] Input and output sizes should be greater than 0, but got input {hw} and output {tuple(wanted)}")
    if max(wanted) >= 1 << 31:
        raise ShapeError(f"[interpolate] expected output sizes below 2**31, got {tuple(wanted)}; is size the number of pixels?")
    return wanted, [None] * n if recompute else scales


@public(of="nn.functional", steps=True)
def interpolate(
    input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None, antialias: bool = False,
) -> Tensor:  # fmt: skip
    """Resize: (N, C, *) -> (N, C, *size). Modes: nearest, nearest-exact, linear, bilinear, bicubic, trilinear, area.

    antialias: bilinear and bicubic, by a filter as wide as an output pixel where an image becomes smaller.

    >>> import calque
    >>> calque.nn.functional.interpolate(calque.tensor([[[1.0, 2.0]]]), scale_factor=2)
    tensor([[[1., 1., 2., 2.]]])
    """
    require_real("interpolate", input)
    spatial = input._layout.ndim - 2
    if mode not in _DIMS or spatial not in _DIMS[mode]:
        raise NotImplementedError(
            f"[interpolate] Got {input._layout.ndim}D input, but mode {shown(mode)} needs one of {sorted(_DIMS)} with matching dims "
            "(linear: 3D, bilinear and bicubic: 4D, trilinear: 5D)"
        )
    if antialias and mode not in ("bilinear", "bicubic"):
        raise ArgumentError(f"[interpolate] Anti-alias option is restricted to bilinear and bicubic modes, got {shown(mode)}")
    if align_corners is not None and mode in ("nearest", "nearest-exact", "area"):
        raise ArgumentError(
            "[interpolate] align_corners option can only be set with the interpolating modes: linear | bilinear | bicubic | trilinear"
        )
    if mode != "area" and 0 in input._layout.shape[1:]:
        raise ShapeError(
            f"[interpolate] Non-empty {spatial + 2}D data tensor expected but got a tensor with sizes {list(input._layout.shape)}; only the "
            "batch may be empty"
        )
    out, scales = _output_sizes(tuple(input._layout.shape[2:]), size, scale_factor, bool(recompute_scale_factor))
    if mode in ("nearest", "nearest-exact"):
        if input._layout.dtype is not dt.uint8:
            require_fractions("interpolate", input)
        return _nearest(input, out, scales, mode == "nearest-exact")
    if input._layout.dtype.category < 2 and (mode == "area" or input._layout.dtype is not dt.uint8):
        raise not_of_integers("interpolate", input)
    if mode == "area":
        return (adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d)[spatial - 1](input, out)
    weights = _cubic_weights if mode == "bicubic" else _linear_weights
    if antialias:
        weights = functools.partial(_filtered_weights, 2 if mode == "bicubic" else 1)
    return _separable(input, out, scales, weights, bool(align_corners))


@public(of="nn.functional")
def upsample(input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool | None = None) -> Tensor:
    """`interpolate`, under its old name."""
    return current("interpolate", interpolate)(input, size, scale_factor, mode, align_corners)


@public(of="nn.functional", steps=True)
def upsample_nearest(input: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    """`interpolate` with mode "nearest"."""
    return current("interpolate", interpolate)(input, size, scale_factor)


@public(of="nn.functional", steps=True)
def upsample_bilinear(input: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    """`interpolate` with mode "bilinear" and align_corners."""
    return current("interpolate", interpolate)(input, size, scale_factor, "bilinear", True)


@public(method=False, of="calque nn.functional", steps=True)
def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """Channels to pixels: (*, C r^2, H, W) -> (*, C, H r, W r). Source: Shi et al., "Sub-Pixel CNN" (2016)."""
    r = whole("pixel_shuffle", "upscale_factor", upscale_factor)
    require_dims("pixel_shuffle", input, 3)
    *lead, channels, height, width = input._layout.shape
    if r < 1 or channels % (r * r):
        raise ShapeError(
            "[pixel_shuffle] pixel_shuffle expects its input's 'channel' dimension to be divisible by the square of "
            "upscale_factor, "
            f"but input.size(-3)={channels} is not divisible by {r * r}"
        )
    n, c = len(lead), channels // (r * r)
    split = T.reshape(input, (*lead, c, r, r, height, width))
    moved = T.permute(split, (*range(n), n, n + 3, n + 1, n + 4, n + 2))
    return owned(T.reshape(moved, (*lead, c, height * r, width * r)), input)


@public(method=False, of="calque nn.functional", steps=True)
def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """Pixels to channels: (*, C, H r, W r) -> (*, C r^2, H, W)."""
    r = whole("pixel_unshuffle", "downscale_factor", downscale_factor)
    require_dims("pixel_unshuffle", input, 3)
    *lead, channels, height, width = input._layout.shape
    if r < 1 or height % r or width % r:
        raise ShapeError(f"[pixel_unshuffle] expects height to be divisible by downscale_factor, but {height} x {width} is not divisible by {r}")
    n = len(lead)
    split = T.reshape(input, (*lead, channels, height // r, r, width // r, r))
    moved = T.permute(split, (*range(n), n, n + 2, n + 4, n + 1, n + 3))
    return owned(T.reshape(moved, (*lead, channels * r * r, height // r, width // r)), input)


@public(method=False, of="calque nn.functional", steps=True)
def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """Interleave the channels of the groups: (N, C, *) -> the same. Source: Zhang et al., "ShuffleNet" (2017)."""
    if input._layout.ndim < 3:
        raise ShapeError(f"[channel_shuffle] expected an input (N, C, *) with at least 3 dims, got shape {tuple(input._layout.shape)}")
    batch, channels, *rest = input._layout.shape
    if groups < 1 or channels % groups:
        raise ShapeError(f"[channel_shuffle] Number of channels must be divisible by groups. Got {channels} channels and {groups} groups.")
    split = T.reshape(input, (batch, groups, channels // groups, *rest))
    return owned(T.reshape(T.transpose(split, 1, 2), (batch, channels, *rest)), input)


def _columns(op: str, hw: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> tuple[Any, ...]:
    k, d = sizes(op, "kernel_size", kernel, 2, 1), sizes(op, "dilation", dilation, 2, 1)
    p, s = sizes(op, "padding", padding, 2, 0), sizes(op, "stride", stride, 2, 1)
    padded = tuple(n + 2 * q for n, q in zip(hw, p, strict=True))
    out = tuple((n - e * (m - 1) - 1) // t + 1 for n, e, m, t in zip(padded, d, k, s, strict=True))
    if min(out) < 1:
        raise ShapeError(
            f"[{op}] expected a kernel that fits, got kernel {k} (dilation {d}) on padded size {padded}: calculated shape {out} is too small"
        )
    return k, d, p, s, padded, out


def _column_view(n: int, c: int, k: Any, d: Any, s: Any, padded: Any, out: Any) -> tuple[Any, Any]:
    a, b, h, w = contiguous_strides((n, c, *padded))
    return (n, c, *k, *out), (a, b, h * d[0], w * d[1], h * s[0], w * s[1])


@public(of="nn.functional", steps=True)
def unfold(input: Tensor, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Tensor:
    """Windows as columns: (N, C, H, W) -> (N, C kH kW, positions)."""
    require_dims("unfold", input, 3, 4)
    if input._layout.ndim == 3:
        return T.squeeze(unfold(T.unsqueeze(input, 0), kernel_size, dilation, padding, stride), 0)
    if input._layout.dtype.category == 1:
        require_fractions("unfold", input)
    n, c, *hw = input._layout.shape
    k, d, p, s, padded, out = _columns("unfold", hw, kernel_size, dilation, padding, stride)
    x = pad(input, (p[1], p[1], p[0], p[0])) if any(p) else input
    shape, strides = _column_view(n, c, k, d, s, padded, out)
    return T.reshape(prim("view", x, shape, strides, 0), (n, c * k[0] * k[1], out[0] * out[1]))


@public(of="nn.functional", steps=True)
def fold(input: Tensor, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Tensor:
    """Columns added up as windows of an image, the transpose of `unfold`: (N, C kH kW, positions) -> (N, C, *output_size)."""
    require_dims("fold", input, 2, 3)
    if input._layout.ndim == 2:
        return T.squeeze(fold(T.unsqueeze(input, 0), output_size, kernel_size, dilation, padding, stride), 0)
    if input._layout.dtype.category == 1:
        require_fractions("fold", input)
    hw = sizes("fold", "output_size", output_size, 2, 1)
    k, d, p, s, padded, out = _columns("fold", hw, kernel_size, dilation, padding, stride)
    n, columns, count = input._layout.shape
    if columns % (k[0] * k[1]) or count != out[0] * out[1]:
        raise ShapeError(
            f"[fold] Given output_size={hw}, kernel_size={k}, expected input (N, C * {k[0] * k[1]}, {out[0] * out[1]}), "
            f"got {tuple(input._layout.shape)}"
        )
    c = columns // (k[0] * k[1])
    shape, strides = _column_view(n, c, k, d, s, padded, out)
    image = prim("update_add", constant(0.0, input._layout.dtype, (n, c, *padded)), T.reshape(input, shape), shape, strides, 0)
    return T.narrow(T.narrow(image, 2, p[0], hw[0]), 3, p[1], hw[1]) if any(p) else image
