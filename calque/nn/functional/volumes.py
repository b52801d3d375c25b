"""Layers over three spatial dims, made of the two-dimensional ones: depth is moved to the channels, or comes last as a sum or a choice of slabs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from calque import functional as T
from calque.base.errors import ArgumentError, ShapeError
from calque.base.shapes import listed
from calque.base.text import shown
from calque.functional.blame import signed
from calque.functional.common import cast
from calque.functional.declared import public
from calque.functional.precision import lower_precision
from calque.nn.functional.checks import check_norm, require_dtype, require_filled
from calque.nn.functional.conv import _check_bias, _check_ranks, _transpose, conv1d, sizes
from calque.nn.functional.current import current
from calque.nn.functional.padding import pad
from calque.nn.functional.pooling import (
    _adaptive_max,
    _averages,
    adaptive_avg_pool2d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    avg_pool2d,
    largest_norm,
    max_pool2d,
)
from calque.nn.functional.rows import kinked, wide
from calque.nn.functional.windows import lowest
from calque.tensor import Tensor, upload_known

Sizes = int | Sequence[int]


def _batched(op: str, x: Tensor) -> tuple[Tensor, bool]:
    """(N, C, D, H, W), and whether the input was one image."""
    if x._layout.ndim not in (4, 5):
        raise ShapeError(f"[{op}] expected a 4D or 5D input (C, D, H, W) or (N, C, D, H, W), got shape {tuple(x._layout.shape)}: non-empty 4D or 5D")
    return (T.unsqueeze(x, 0), True) if x._layout.ndim == 4 else (x, False)


def _flat(x: Tensor) -> Tensor:
    """Depth in the channels: (N, C, D, H, W) -> (N, C D, H, W)."""
    n, c, d, h, w = x._layout.shape
    return T.reshape(x, (n, c * d, h, w))


def _deep(x: Tensor, depth: int) -> Tensor:
    n, c, h, w = x._layout.shape
    return T.reshape(x, (n, c // depth, depth, h, w))


class _Depth:
    """Geometry of windows along the depth."""

    def __init__(self, op: str, size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> None:
        if 2 * padding > kernel:
            raise ArgumentError(f"[{op}] pad should be at most half of effective kernel size, but got pad={padding} and kernel_size={kernel}")
        span = size + 2 * padding - dilation * (kernel - 1) - 1
        self.out = span // stride + 1
        if ceil_mode:
            self.out = -(-span // stride) + 1
            if (self.out - 1) * stride >= size + padding:
                self.out -= 1
        if self.out < 1:
            raise ShapeError(f"[{op}] Calculated output size is too small: depth {size} with kernel {kernel} and padding {padding}; use more padding")
        self.size, self.kernel, self.stride, self.padding, self.dilation = size, kernel, stride, padding, dilation
        reach = (self.out - 1) * stride + dilation * (kernel - 1) + 1
        self.after = max(0, reach - size - padding)

    def slabs(self, x: Tensor, value: Any) -> list[Tensor]:
        """What each tap of the windows sees, (N, C, out, H, W) each."""
        if self.padding or self.after:
            x = pad(x, (0, 0, 0, 0, self.padding, self.after), value=value)
        last = (self.out - 1) * self.stride + 1
        return [x[:, :, t * self.dilation : t * self.dilation + last : self.stride] for t in range(self.kernel)]


def _settings(op: str, kernel: Any, stride: Any, padding: Any, dilation: Any) -> list[tuple[int, ...]]:
    k = sizes(op, "kernel_size", kernel, 3, 1)
    s = k if stride is None or isinstance(stride, (tuple, list)) and not stride else sizes(op, "stride", stride, 3, 1)
    return [k, s, sizes(op, "padding", padding, 3, 0), sizes(op, "dilation", dilation, 3, 1)]


# ---------------------------------------------------------------------------------------------------------------------- maximum


@public(of="nn.functional")
def max_pool3d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Largest element of every window: (N, C, D, H, W) -> (N, C, D', H', W'); with `return_indices` also their flat positions in (D, H, W).

    >>> import calque
    >>> calque.nn.functional.max_pool3d(calque.arange(8.0).view(1, 1, 2, 2, 2), 2).item()
    7.0
    """
    op = "max_pool3d"
    x, single = _batched(op, input)
    require_filled(op, input, 3)
    k, s, p, d = _settings(op, kernel_size, stride, padding, dilation)
    depth, height, width = x._layout.shape[2:]
    along = _Depth(op, depth, k[0], s[0], p[0], d[0], ceil_mode)
    found = max_pool2d(_flat(x), k[1:], s[1:], p[1:], d[1:], ceil_mode, return_indices)
    values = _deep(found[0] if return_indices else found, depth)
    stacked = T.stack(along.slabs(values, lowest(x._layout.dtype)), 2)
    best, tap = T.max(stacked, 2)
    if not return_indices:
        return T.squeeze(best, 0) if single else best
    places = T.stack(along.slabs(_deep(found[1], depth), 0), 2)
    inside = T.squeeze(T.gather(places, 2, T.unsqueeze(tap, 2)), 2)
    start = T.arange(along.out) * along.stride - along.padding
    indices = (T.reshape(start, (-1, 1, 1)) + tap * along.dilation) * (height * width) + inside
    return (T.squeeze(best, 0), T.squeeze(indices, 0)) if single else (best, indices)


@public(of="nn.functional")
def max_pool3d_with_indices(input: Tensor, *args: Any, **kwargs: Any) -> Any:
    """`max_pool3d` and the flat positions of the maxima."""
    return max_pool3d(input, *args, **{**kwargs, "return_indices": True})


# ------------------------------------------------------------------------------------------------------------------------- mean


def _inside(along: _Depth, include_pad: bool) -> Any:
    start = np.arange(along.out) * along.stride - along.padding
    stop = np.minimum(start + along.kernel, along.size + along.padding)
    if not include_pad:
        start, stop = np.maximum(start, 0), np.minimum(stop, along.size)
    return (stop - start).astype(np.float64)


@public(of="nn.functional", steps=True)
def avg_pool3d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """Mean of every window: (N, C, D, H, W) -> (N, C, D', H', W').

    >>> import calque
    >>> calque.nn.functional.avg_pool3d(calque.arange(8.0).view(1, 1, 2, 2, 2), 2).item()
    3.5
    """
    op = "avg_pool3d"
    x, single = _batched(op, input)
    require_filled(op, input, 3)
    if divisor_override == 0:
        raise ArgumentError(f"[{op}] divisor must be not zero: expected divisor_override as an int other than 0, got 0")
    k, s, p, _ = _settings(op, kernel_size, stride, padding, 1)
    depth = x._layout.shape[2]
    along = _Depth(op, depth, k[0], s[0], p[0], 1, ceil_mode)
    wide = cast(x, x._layout.dtype.compute)
    whole = x._layout.dtype.category == 1
    override = 1 if divisor_override is not None or whole else None
    flat = _deep(avg_pool2d(_flat(wide), k[1:], s[1:], p[1:], ceil_mode, count_include_pad, override), depth)
    slabs = along.slabs(flat, 0.0)
    total = slabs[0]
    for slab in slabs[1:]:
        total = total + slab
    if whole:
        planes = [_inside(_Depth(op, x._layout.shape[2 + i], k[i], s[i], p[i], 1, ceil_mode), count_include_pad) for i in range(3)]
        counts = planes[0].reshape(-1, 1, 1) * planes[1].reshape(-1, 1) * planes[2] if divisor_override is None else np.float64(divisor_override)
        total = T.div(total, upload_known(counts.astype(x._layout.dtype.np), x._layout.dtype), rounding_mode="trunc")
    elif divisor_override is not None:
        total = total / float(divisor_override)
    else:
        counts = _inside(along, count_include_pad).reshape(-1, 1, 1)
        total = total / upload_known(counts.astype(wide._layout.dtype.np), wide._layout.dtype)
    result = cast(total, x._layout.dtype)
    return T.squeeze(result, 0) if single else result


@public(of="nn.functional")
def lp_pool3d(input: Tensor, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False) -> Tensor:
    """(sum of x ** p) ** (1 / p) over every window: (N, C, D, H, W) -> (N, C, D', H', W')."""
    k = sizes("lp_pool3d", "kernel_size", kernel_size, 3, 1)
    check_norm("lp_pool3d", norm_type)
    if norm_type in (math.inf, -math.inf):
        return largest_norm(current("max_pool3d", max_pool3d), input, norm_type, kernel_size, stride, ceil_mode)
    means = current("avg_pool3d", avg_pool3d)(input ** float(norm_type), k, stride, 0, ceil_mode)
    return (T.sign(means) * current("relu", T.relu)(T.abs(means)) * float(k[0] * k[1] * k[2])) ** (1.0 / norm_type)


# ---------------------------------------------------------------------------------------------------------------------- adaptive


def _target(op: str, output_size: Any, shape: Sequence[int]) -> tuple[int, ...]:
    wanted = tuple(output_size) if isinstance(output_size, (tuple, list)) else (output_size,) * 3
    wanted = wanted * 3 if len(wanted) == 1 else wanted
    if len(wanted) != 3 or 0 in shape:
        raise ArgumentError(f"[{op}] expected output_size as an int or three, and no empty image, got {shown(output_size)} and shape {tuple(shape)}")
    return tuple(int(shape[i]) if n is None else listed(op, "output_size", n)[0] for i, n in enumerate(wanted))


@public(of="nn.functional")
def adaptive_avg_pool3d(input: Tensor, output_size: Any) -> Tensor:
    """Mean over windows that divide the volume into `output_size`: (N, C, D, H, W) -> (N, C, *output_size)."""
    x, single = _batched("adaptive_avg_pool3d", input)
    require_filled("adaptive_avg_pool3d", input, 3, True)
    depth = x._layout.shape[2]
    out = _target("adaptive_avg_pool3d", output_size, x._layout.shape[2:])
    wide = cast(x, x._layout.dtype.compute)
    flat = _deep(adaptive_avg_pool2d(_flat(wide), out[1:]), depth)
    n, c, d, h, w = flat._layout.shape
    if d != out[0]:
        rows = T.matmul(_averages(d, out[0], wide._layout.dtype), T.reshape(flat, (n, c, d, h * w)))
        flat = T.reshape(rows, (n, c, out[0], h, w))
    result = cast(flat, x._layout.dtype)
    return T.squeeze(result, 0) if single else result


@public(of="nn.functional")
def adaptive_max_pool3d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """Maximum over windows that divide the volume into `output_size`: (N, C, D, H, W) -> (N, C, *output_size)."""
    if (others := current("adaptive_max_pool3d_with_indices", adaptive_max_pool3d)) is not adaptive_max_pool3d and not return_indices:
        return others(input, output_size)[0]
    x, single = _batched("adaptive_max_pool3d", input)
    require_filled("adaptive_max_pool3d", input, 3, True)
    depth, height, width = x._layout.shape[2:]
    out = _target("adaptive_max_pool3d", output_size, (depth, height, width))
    flat, inside = _adaptive_max("adaptive_max_pool3d", _flat(kinked(x)), out[1:])
    flat, inside = _deep(flat, depth), _deep(inside, depth)
    values, indices = [], []
    for i in range(out[0]):
        top, bottom = i * depth // out[0], -(-(i + 1) * depth // out[0])
        value, place = T.max(flat[:, :, top:bottom], 2)
        values.append(value)
        indices.append((place + top) * (height * width) + T.squeeze(T.gather(inside[:, :, top:bottom], 2, T.unsqueeze(place, 2)), 2))
    best, places = T.stack(values, 2), T.stack(indices, 2)
    if single:
        best, places = T.squeeze(best, 0), T.squeeze(places, 0)
    return (best, places) if return_indices else best


@public(of="nn.functional")
def adaptive_max_pool3d_with_indices(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """`adaptive_max_pool3d` and the flat positions of the maxima."""
    return adaptive_max_pool3d(input, output_size, True)


@public(of="nn.functional")
def adaptive_max_pool2d_with_indices(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """`adaptive_max_pool2d` and the flat positions of the maxima."""
    return adaptive_max_pool2d(input, output_size, True)


@public("calque.adaptive_max_pool1d", of="nn.functional", method=False)
def adaptive_max_pool1d_with_indices(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """`adaptive_max_pool1d` and the positions of the maxima."""
    return adaptive_max_pool1d(input, output_size, True)


signed(max_pool3d_with_indices, max_pool3d)

# ------------------------------------------------------------------------------------------------------------------- convolutions


@public(of="nn.functional")
@lower_precision
def conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """Gradient of `conv3d` with respect to its input, as a layer: (N, C, D, H, W), (C, O / groups, kD, kH, kW) -> (N, O, D', H', W'), as kD
    two-dimensional ones added up."""
    op = "conv_transpose3d"
    _check_ranks(op, 3, input, weight)
    require_dtype(op, input, weight)
    if input._layout.ndim == 4:
        return T.squeeze(conv_transpose3d(T.unsqueeze(input, 0), weight, bias, stride, padding, output_padding, groups, dilation), 0)
    (ss, *s), (dd, *d) = sizes(op, "stride", stride, 3, 1), sizes(op, "dilation", dilation, 3, 1)
    (pp, *p), (oo, *o) = sizes(op, "padding", padding, 3, 0), sizes(op, "output_padding", output_padding, 3, 0)
    if oo >= max(ss, dd):
        raise ArgumentError(f"[{op}] output padding must be smaller than either stride or dilation, but got output_padding {(oo, *o)}")
    _check_bias(op, bias, weight._layout.shape[1] * groups)
    if bias is not None:
        require_dtype(op, input, bias)
    batch, channels, depth, height, width = input._layout.shape
    if 0 in (depth, height, width):
        raise ShapeError(f"[{op}] Only zero batch or zero channel inputs are supported, but got input shape: {list(input._layout.shape)}")
    taps = weight._layout.shape[2]
    images = T.reshape(T.permute(wide(input), (0, 2, 1, 3, 4)), (batch * depth, channels, height, width))
    whole = wide(weight)  # parts that were rounded might cancel each other
    reach = (depth - 1) * ss + dd * (taps - 1) + 1
    out_depth = reach - 2 * pp + oo
    if out_depth < 1:
        raise ShapeError(f"[{op}] expected a positive output size, got depth {out_depth} from input {tuple(input._layout.shape)}; use less padding")
    total: Any = None
    for tap in range(taps):
        part = _transpose("conv_transpose2d", 2, images, whole[:, :, tap], None, tuple(s), tuple(p), tuple(o), groups, tuple(d))
        part = T.permute(T.reshape(part, (batch, depth, *part._layout.shape[1:])), (0, 2, 1, 3, 4))
        if ss > 1:
            n, c, _, h, w = part._layout.shape
            spaced = pad(T.unsqueeze(part, 3), (0, 0, 0, 0, 0, ss - 1))
            part = T.narrow(T.reshape(spaced, (n, c, depth * ss, h, w)), 2, 0, (depth - 1) * ss + 1)
        start = tap * dd - pp
        placed = pad(part, (0, 0, 0, 0, start, out_depth - start - part._layout.shape[2]))
        total = placed if total is None else total + placed
    return cast(total if bias is None else total + T.reshape(wide(bias), (1, -1, 1, 1, 1)), input._layout.dtype)


@public(of="nn.functional")
def conv_tbc(input: Tensor, weight: Tensor, bias: Tensor, pad: int = 0) -> Tensor:
    """Convolution over time, where time comes first: (T, B, C), (k, C, O), (O) -> (T', B, O)."""
    if input._layout.ndim != 3 or weight._layout.ndim != 3:
        raise ShapeError(f"[conv_tbc] expected input (T, B, C) and weight (k, C, O), got {tuple(input._layout.shape)}, {tuple(weight._layout.shape)}")
    found = conv1d(T.permute(input, (1, 2, 0)), T.permute(weight, (2, 1, 0)), bias, padding=pad)
    return T.permute(found, (2, 0, 1))
