"""Padding: constant by a write into a filled tensor, the others by index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calque import functional as T
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, ShapeError
from calque.base.shapes import contiguous_strides, whole
from calque.base.text import shown
from calque.functional.common import is_tensor, prim, require_numbers
from calque.functional.declared import public
from calque.functional.formats import owned
from calque.functional.options import filled
from calque.functional.precision import widened
from calque.ir.symint import any_free
from calque.nn.functional.rows import kinked
from calque.tensor import Tensor, upload_known


@public(of="nn.functional", steps=True)
def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """Add (or with negative numbers remove) elements: `pad` lists (before, after) of the last dim, then of the one before it, ...

    Modes: "constant" (with `value`), "reflect", "replicate", "circular".

    >>> import calque
    >>> calque.nn.functional.pad(calque.tensor([[1.0, 2.0]]), (1, 1))
    tensor([[0., 1., 2., 0.]])
    """
    sides = [p if any_free(p) else whole("pad", "pad", p) for p in pad]
    ndim = input._layout.ndim
    if len(sides) % 2 or len(sides) // 2 > ndim:
        raise ArgumentError(f"[pad] Padding length must be divisible by 2 and at most twice the number of dims ({ndim}), got {sides}")
    pairs = {ndim - 1 - i: (sides[2 * i], sides[2 * i + 1]) for i in range(len(sides) // 2)}
    if mode == "constant":
        return _constant(input, pairs, 0.0 if value is None else value)
    if mode not in _INDEX:
        raise NotImplementedError(f"[pad] Unrecognised padding mode {mode}; use constant, reflect, replicate or circular")
    if value:
        raise ArgumentError(f"[pad] Padding mode {shown(mode)} doesn't take in value argument, got {value}")
    _check_image(mode, tuple(input._layout.shape), sides)
    if mode != "circular":
        require_numbers("pad", input)
    padded = input if mode == "circular" else kinked(widened(input))
    for d, (before, after) in sorted(pairs.items(), reverse=True):
        if before or after:
            index = _INDEX[mode](padded._layout.shape[d], before, after)
            padded = prim("index_select", padded, index if is_tensor(index) else upload_known(index, dt.int64), d)
    return owned(padded, input)


def _check_image(mode: str, shape: tuple[int, ...], sides: list[int]) -> None:
    """One to three dims may be padded with values of their own, of one image or a batch, of which only the batch may be empty."""
    n = len(sides) // 2
    if n not in (1, 2, 3) or len(shape) - n not in (1, 2):
        raise NotImplementedError(
            f"[pad] Padding size {len(sides)} is not supported for {len(shape)}D input tensor: with mode {shown(mode)} expected 2 sizes of a 2D or "
            "3D input, 4 of 3D or 4D, 6 of 4D or 5D; reshape it"
        )
    if mode != "circular" and 0 in shape[len(shape) - n - 1 :]:
        raise ShapeError(
            f"[pad] Expected {n + 1}D or {n + 2}D (batch mode) tensor with possibly 0 batch size and other non-zero dimensions for input, but got: "
            f"{list(shape)}; only the batch may be empty"
        )


def _constant(x: Tensor, pairs: dict[int, tuple[int, int]], value: float) -> Tensor:
    for d, (before, after) in pairs.items():
        if before < 0 or after < 0:
            x = T.narrow(x, d, max(-before, 0), _left(x._layout.shape[d], min(before, 0), min(after, 0)))
    grown = {d: (max(b, 0), max(a, 0)) for d, (b, a) in pairs.items()}
    if not any(b or a for b, a in grown.values()):
        return T.clone(x)
    shape = tuple(x._layout.shape)
    target = tuple(n + sum(grown.get(d, (0, 0))) for d, n in enumerate(shape))
    strides = contiguous_strides(target)
    offset = sum(grown[d][0] * strides[d] for d in grown)
    kind = x._layout.dtype
    return prim("update", filled(target, value, kind, "pad"), x, shape, strides, offset)


def _reflect(n: int, before: int, after: int) -> Any:
    if before >= n or after >= n:
        raise ShapeError(
            f"[pad] Padding size should be less than the corresponding input dimension, but got padding ({before}, "
            f"{after}) at a dimension of size {n}"
        )
    if any_free(n, before, after):
        return n - 1 - T.abs(n - 1 - T.abs(_places(n, before, after)))  # type: ignore[operator]
    return _cropped(np.pad(np.arange(n), (max(before, 0), max(after, 0)), mode="reflect"), before, after)


def _replicate(n: int, before: int, after: int) -> Any:
    if n == 0:
        raise ShapeError("[pad] expected a non-empty dimension to replicate, got size 0")
    if any_free(n, before, after):
        return T.clamp(_places(n, before, after), 0, n - 1)
    return _cropped(np.pad(np.arange(n), (max(before, 0), max(after, 0)), mode="edge"), before, after)


def _circular(n: int, before: int, after: int) -> Any:
    if before > n or after > n:
        raise ShapeError(f"[pad] Padding value causes wrapping around more than once: ({before}, {after}) at a dimension of size {n}")
    if any_free(n, before, after):
        return T.remainder(_places(n, before, after), n)
    return _cropped(np.pad(np.arange(n), (max(before, 0), max(after, 0)), mode="wrap"), before, after)


def _places(n: int, before: int, after: int) -> Tensor:
    """Where the elements of a padded dim lie in what is padded, if that went on at both ends: what NumPy cannot make of a free size."""
    return prim("iota", (_left(n, before, after),), dt.int64) - before  # type: ignore[operator]


def _left(size: int, before: int, after: int) -> int:
    if size + before + after < 0:
        raise ShapeError(f"[pad] The input size {size}, plus negative padding {before} and {after}, is negative")
    return size + before + after


def _cropped(index: Any, before: int, after: int) -> Any:
    start = max(-before, 0)
    return np.ascontiguousarray(index[start : start + _left(len(index), min(before, 0), min(after, 0))])


_INDEX = {"reflect": _reflect, "replicate": _replicate, "circular": _circular}
