"""Pooling whose windows are drawn at random, and the way back from positions of maxima."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from calque import functional as T
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, OutOfRangeError, ShapeError
from calque.base.text import shown
from calque.functional.blame import signed
from calque.functional.common import require_real
from calque.functional.declared import public
from calque.functional.random import rand
from calque.nn.functional.checks import require_filled
from calque.nn.functional.conv import sizes
from calque.nn.functional.current import current
from calque.nn.functional.rows import kinked
from calque.tensor import Tensor, read, read_number, upload


def _unpooled(op: str, n: int, x: Tensor, indices: Tensor, kernel: Any, stride: Any, padding: Any, output_size: Any) -> Tensor:
    require_real(op, x)
    if indices._layout.dtype is not dt.int64:
        raise ArgumentError(f"[{op}] elements in indices should be type int64 but got: {indices._layout.dtype!r}; use those of max_pool{n}d")
    if x._layout.shape != indices._layout.shape or x._layout.ndim not in (n + 1, n + 2):
        raise ShapeError(
            f"[{op}] Expected shape of indices to be same as that of the input tensor ({tuple(x._layout.shape)}), with {n + 1} or {n + 2} dims, "
            f"but got indices tensor with shape: {tuple(indices._layout.shape)}"
        )
    k = sizes(op, "kernel_size", kernel, n, 1)
    s = k if stride is None or isinstance(stride, (tuple, list)) and not stride else sizes(op, "stride", stride, n, 1)
    p = sizes(op, "padding", padding, n, 0)
    lead, spatial = tuple(x._layout.shape[:-n]), tuple(x._layout.shape[-n:])
    default = tuple((spatial[i] - 1) * s[i] + k[i] - 2 * p[i] for i in range(n))
    out = default if output_size is None else tuple(int(v) for v in tuple(output_size)[-n:])
    if len(out) != n or output_size is not None and any(not default[i] - s[i] < out[i] < default[i] + s[i] for i in range(n)):
        low, high = [a - b for a, b in zip(default, s, strict=True)], [a + b for a, b in zip(default, s, strict=True)]
        raise ArgumentError(f"[{op}] invalid output_size {shown(output_size)} (dim 0..{n - 1} must be between {low} and {high})")
    count = prod(out)
    flat = T.reshape(indices, (*lead, prod(spatial)))
    if flat._layout.numel:
        worst = read_number(flat, op, lambda v: int(v.min()) if v.min() < 0 else int(v.max()))
        if not 0 <= worst < count:
            raise OutOfRangeError(f"[{op}] Found an invalid max index: {worst} (output volumes are of size {out}); use those of max_pool{n}d")
    start = T.zeros((*lead, count), dtype=x._layout.dtype)
    return T.reshape(T.scatter(start, -1, flat, T.reshape(x, (*lead, prod(spatial)))), (*lead, *out))


@public(of="nn.functional")
def max_unpool1d(input: Tensor, indices: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, output_size: Any = None) -> Tensor:
    """Maxima put back where `max_pool1d` found them, zeros elsewhere: (N, C, L) -> (N, C, L').

    >>> import calque
    >>> x, places = calque.nn.functional.max_pool1d(calque.tensor([[[1.0, 3.0, 2.0, 0.0]]]), 2, return_indices=True)
    >>> calque.nn.functional.max_unpool1d(x, places, 2)
    tensor([[[0., 3., 2., 0.]]])
    """
    return _unpooled("max_unpool1d", 1, input, indices, kernel_size, stride, padding, output_size)


@public(of="nn.functional")
def max_unpool2d(input: Tensor, indices: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, output_size: Any = None) -> Tensor:
    """Maxima put back where `max_pool2d` found them, zeros elsewhere: (N, C, H, W) -> (N, C, H', W')."""
    return _unpooled("max_unpool2d", 2, input, indices, kernel_size, stride, padding, output_size)


@public(of="nn.functional")
def max_unpool3d(input: Tensor, indices: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, output_size: Any = None) -> Tensor:
    """Maxima put back where `max_pool3d` found them, zeros elsewhere: (N, C, D, H, W) -> (N, C, D', H', W')."""
    return _unpooled("max_unpool3d", 3, input, indices, kernel_size, stride, padding, output_size)


# ---------------------------------------------------------------------------------------------------------------------- fractional


def _starts(samples: Any, size: int, out: int, pool: int) -> Any:
    """First element of each window along a dim, (N, C, out): steps of nearly equal length, shifted by a number in [0, 1)."""
    found = np.zeros((*samples.shape, out), np.int64)
    if out > 1:
        alpha = samples.dtype.type((size - pool) / (out - 1))
        steps = np.arange(out - 1).astype(samples.dtype)
        found[..., :-1] = np.floor((steps + samples[..., None]) * alpha).astype(np.int64) - np.floor(samples * alpha)[..., None].astype(np.int64)
    found[..., -1] = size - pool
    return found


def _fractional(op: str, n: int, input: Tensor, kernel_size: Any, output_size: Any, output_ratio: Any, samples: Any) -> tuple[Tensor, Tensor]:
    if (output_size is None) == (output_ratio is None):
        raise ArgumentError(f"[{op}] {op} requires specifying either an output_size or an output_ratio: expected one of them")
    single = input._layout.ndim == n + 1
    if input._layout.ndim not in (n + 1, n + 2):
        raise ShapeError(f"[{op}] Expected {n + 1}D or {n + 2}D tensor for input, but got shape {tuple(input._layout.shape)}")
    x = T.unsqueeze(input, 0) if single else input
    require_filled(op, input, n, True)
    batch, channels, *spatial = x._layout.shape
    k = sizes(op, "kernel_size", kernel_size, n, 1)
    if output_size is None:
        ratios = tuple(output_ratio) if isinstance(output_ratio, (tuple, list)) else (output_ratio,) * n
        if len(ratios) != n:
            raise ArgumentError(f"[{op}] {op} requires output_ratio to either be a single number or a tuple of {n}, got {shown(output_ratio)}")
        if any(not 0 < r < 1 for r in ratios):
            raise ArgumentError(f"[{op}] output_ratio must be between 0 and 1 (got {shown(output_ratio)})")
        out = tuple(int(spatial[i] * ratios[i]) for i in range(n))
    else:
        out = sizes(op, "output_size", output_size, n, 1)
    if any(out[i] + k[i] - 1 > spatial[i] for i in range(n)):
        raise ShapeError(f"[{op}] pool {k} too large relative to input {tuple(spatial)}: expected output + pool - 1 <= input, got output {out}")
    chosen = rand(batch, channels, n, dtype=x._layout.dtype) if samples is None else samples
    numbers = read(chosen, op)
    order = range(n)[::-1] if n == 2 else range(n)  # of two numbers the first is for the columns
    places: Any = 0
    for i in range(n):
        start = _starts(numbers[..., order[i]], spatial[i], out[i], k[i])
        along = start[..., :, None] + np.arange(k[i])  # (N, C, out, k)
        shape = [batch, channels, *[1] * (2 * n)]
        shape[2 + i], shape[2 + n + i] = out[i], k[i]
        places = places * spatial[i] + along.reshape(shape)
    table = upload(np.ascontiguousarray(places.reshape(batch, channels, prod(out) * prod(k))), dt.int64)
    windows = T.gather(T.reshape(kinked(x), (batch, channels, prod(spatial))), 2, table)
    best, tap = T.max(T.reshape(windows, (batch, channels, prod(out), prod(k))), 3)
    inside = T.gather(T.reshape(table, (batch, channels, prod(out), prod(k))), 3, T.unsqueeze(tap, 3))
    values, indices = T.reshape(best, (batch, channels, *out)), T.reshape(inside, (batch, channels, *out))
    return (T.squeeze(values, 0), T.squeeze(indices, 0)) if single else (values, indices)


@public(of="nn.functional")
def fractional_max_pool2d(
    input: Tensor,
    kernel_size: Any,
    output_size: Any = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    _random_samples: Tensor | None = None,
) -> Any:
    """Maximum over windows of `kernel_size` that begin at random steps, `output_size` (or `output_ratio` times as) many:
    (N, C, H, W) -> (N, C, H', W'). Source: B. Graham, "Fractional max-pooling" (2014)."""
    name = "fractional_max_pool2d_with_indices"
    if (others := current(name, fractional_max_pool2d)) is not fractional_max_pool2d and not return_indices:
        return others(input, kernel_size, output_size, output_ratio, _random_samples=_random_samples)[0]
    values, indices = _fractional("fractional_max_pool2d", 2, input, kernel_size, output_size, output_ratio, _random_samples)
    return (values, indices) if return_indices else values


@public(of="nn.functional")
def fractional_max_pool3d(
    input: Tensor,
    kernel_size: Any,
    output_size: Any = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    _random_samples: Tensor | None = None,
) -> Any:
    """`fractional_max_pool2d` of volumes: (N, C, D, H, W) -> (N, C, D', H', W')."""
    name = "fractional_max_pool3d_with_indices"
    if (others := current(name, fractional_max_pool3d)) is not fractional_max_pool3d and not return_indices:
        return others(input, kernel_size, output_size, output_ratio, _random_samples=_random_samples)[0]
    values, indices = _fractional("fractional_max_pool3d", 3, input, kernel_size, output_size, output_ratio, _random_samples)
    return (values, indices) if return_indices else values


@public(of="nn.functional")
def fractional_max_pool2d_with_indices(input: Tensor, *args: Any, **kwargs: Any) -> Any:
    """`fractional_max_pool2d` and the flat positions of the maxima."""
    return fractional_max_pool2d(input, *args, **{**kwargs, "return_indices": True})


@public(of="nn.functional")
def fractional_max_pool3d_with_indices(input: Tensor, *args: Any, **kwargs: Any) -> Any:
    """`fractional_max_pool3d` and the flat positions of the maxima."""
    return fractional_max_pool3d(input, *args, **{**kwargs, "return_indices": True})


signed(fractional_max_pool2d_with_indices, fractional_max_pool2d)
signed(fractional_max_pool3d_with_indices, fractional_max_pool3d)
