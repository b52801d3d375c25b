"""Where the windows of pooling lie, and how much of each is in the input."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from calque import functional as T
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, DTypeError, ShapeError
from calque.base.shapes import contiguous_strides
from calque.functional.common import prim
from calque.ir.symint import any_free
from calque.nn.functional.padding import pad
from calque.nn.functional.rows import choose, positions
from calque.tensor import Tensor

Pair = tuple[int, ...]
MAX_TAPS = 16  # windows that contain an element, up to which the gradient of overlapping windows is a gather
MAX_PIECES = 9  # parts of the output whose windows are cut off alike, up to which no padded input is made


def lowest(kind: dt.DType) -> Any:
    if kind is dt.bool_:
        raise DTypeError("[max_pool] expected an input of numbers, got torch.bool; convert it with .float()")
    return -math.inf if kind.category == 2 else int(np.iinfo(kind.np).min)


class Segment(NamedTuple):
    """Neighbouring positions of a window along one dim, and which of its taps lie inside the input there. `inner`: memory goes on at both ends
    of the rows in these windows."""

    first: int
    outputs: int
    tap: int
    taps: int
    inner: bool = False


def _segments(w: Windows, i: int) -> list[Segment]:
    found: list[Segment] = []
    size, stride, padding = w.shape[2 + i], w.stride[i], w.padding[i]
    for o in range(w.out[i]):
        tap = max(0, padding - o * stride)
        taps = min(w.kernel[i], size + padding - o * stride) - tap
        top = o * stride - padding + tap
        inner = i == 0 and (top > 0 or not w.padding[1]) and (top + taps < size or not w.after[1])
        if found and found[-1][2:] == (tap, taps, inner):
            found[-1] = found[-1]._replace(outputs=found[-1].outputs + 1)
        else:
            found.append(Segment(o, 1, tap, taps, inner))
    return found


class Windows:
    """Geometry of windows over the last two dims of (N, C, H, W)."""

    def __init__(self, op: str, shape: Pair, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, ceil_mode: bool) -> None:
        if any(2 * p > k for p, k in zip(padding, kernel, strict=True)):
            raise ArgumentError(f"[{op}] pad should be at most half of effective kernel size, but got pad={padding} and kernel_size={kernel}")
        self.op, self.shape, self.kernel, self.stride, self.padding, self.dilation = op, shape, kernel, stride, padding, dilation
        self.ceil_mode = ceil_mode
        hw = shape[2:]
        self.out = tuple(self._positions(hw[i], i, ceil_mode) for i in range(2))
        if min(self.out) < 1:
            raise ShapeError(
                f"[{op}] Given input size: {shape[1:]}. Calculated output size: {(shape[1], *self.out)}. Output size is "
                "too small; "
                f"kernel {kernel}, padding {padding}: use a smaller kernel or more padding"
            )
        reach = tuple((self.out[i] - 1) * stride[i] + dilation[i] * (kernel[i] - 1) + 1 for i in range(2))
        self.after = tuple(self._behind(reach[i], i, ceil_mode) for i in range(2))
        self.padded = tuple(hw[i] + padding[i] + self.after[i] for i in range(2))
        self.view_shape = (*shape[:2], *self.out, *kernel)
        n, c, h, w = contiguous_strides((*shape[:2], *self.padded))
        self.view_strides = (n, c, h * stride[0], w * stride[1], h * dilation[0], w * dilation[1])
        self.disjoint = all(s >= d * (k - 1) + 1 for s, k, d in zip(stride, kernel, dilation, strict=True))
        self.taps = tuple(-(-k // s) for k, s in zip(kernel, stride, strict=True))  # an element lies in at most taps[0] * taps[1] windows
        self.facts, self.held = (op, shape, kernel, stride, padding, dilation, ceil_mode), ()  # what gradients depend on, see `autograd.dependencies`
        self.pieces = self._pieces()

    def _pieces(self) -> tuple[tuple[Segment, Segment], ...]:
        """Parts of the output whose windows reach equally far into the padding, if there are few and the gradient is a gather; else none. Where
        memory goes on beside the rows, one part covers whole rows."""
        if any_free(*self.shape[2:]) or not (self.gathers() and any((*self.padding, *self.after))):
            return ()
        if max(self.padding[1], self.after[1]) > self.shape[3]:
            return ()
        rows, columns = _segments(self, 0), _segments(self, 1)
        whole = [Segment(0, self.out[1], 0, self.kernel[1])]
        found = tuple((a, b) for a in rows for b in (whole if a.inner else columns))
        return found if len(found) <= MAX_PIECES and all(t.taps > 0 for t in (*rows, *columns)) else ()

    def _positions(self, size: int, i: int, ceil_mode: bool) -> int:
        span = size + 2 * self.padding[i] - self.dilation[i] * (self.kernel[i] - 1) - 1
        if not ceil_mode:
            return span // self.stride[i] + 1
        count = -(-span // self.stride[i]) + 1
        if self.padding[i] + self.stride[i] <= self.dilation[i] * (self.kernel[i] - 1) + 1:
            return count  # no window begins behind the input
        return count - 1 if (count - 1) * self.stride[i] >= size + self.padding[i] else count

    def _behind(self, reach: int, i: int, ceil_mode: bool) -> int:
        """How many elements of padding are behind the input: for a free size, as many as there may ever be."""
        size, padding = self.shape[2 + i], self.padding[i]
        if any_free(size):
            return padding + self.stride[i] - 1 if ceil_mode else padding
        return max(0, reach - size - padding)

    def pad(self, x: Tensor, value: float) -> Tensor:
        sides = (self.padding[1], self.after[1], self.padding[0], self.after[0])
        return pad(x, sides, value=value) if any(sides) else x

    def view(self, x: Tensor) -> Tensor:
        """(N, C, oH, oW, kH, kW) of the padded input."""
        return prim("view", x, self.view_shape, self.view_strides, 0)

    def piece(self, x: Tensor, rows: Segment, columns: Segment) -> Tensor:
        """(N, C, oH', oW', kH', kW') of the input itself: the windows of a piece without what lies in the padding, or with the lowest value
        there."""
        n, c, h, w = contiguous_strides(self.shape)
        top = rows.first * self.stride[0] - self.padding[0] + rows.tap
        left = columns.first * self.stride[1] - self.padding[1] + columns.tap
        shape = (*self.shape[:2], rows.outputs, columns.outputs, rows.taps, columns.taps)
        windows = prim("view", x, shape, (n, c, h * self.stride[0], w * self.stride[1], h, w), top * h + left * w)
        if not rows.inner or not (self.padding[1] or self.after[1]):
            return windows
        place = T.reshape(positions((columns.outputs,), dt.int32) * self.stride[1], (-1, 1, 1)) + positions((columns.taps,), dt.int32)
        inside = T.ge(place, self.padding[1])
        if self.after[1]:
            inside = T.bitwise_and(inside, T.lt(place, self.padding[1] + self.shape[3]))
        return choose(inside, windows, lowest(x._layout.dtype), x._layout.dtype)

    def gathers(self) -> bool:
        """Windows overlap, but each element lies in few of them: the gradient is a gather."""
        plain = self.dilation == (1, 1) and all(k >= s for k, s in zip(self.kernel, self.stride, strict=True))
        return plain and not self.disjoint and self.taps[0] * self.taps[1] <= MAX_TAPS

    def exact(self) -> bool:
        """Windows tile the input: a reshape shows them."""
        tiled = all(self.out[i] * self.kernel[i] == self.shape[2 + i] for i in range(2))
        return tiled and self.stride == self.kernel and self.dilation == (1, 1) and not any(self.padding)


def divisors(w: Windows, include_pad: bool) -> Any:
    """Elements counted per window: an int where all are equal, else a constant (oH, oW)."""
    if any_free(*w.shape[2:]):
        return _free_divisors(w, include_pad)
    counts = []
    for i in range(2):
        start = np.arange(w.out[i]) * w.stride[i] - w.padding[i]
        stop = np.minimum(start + w.kernel[i], w.shape[2 + i] + w.padding[i])
        if not include_pad:
            start, stop = np.maximum(start, 0), np.minimum(stop, w.shape[2 + i])
        counts.append(stop - start)
    table = np.outer(counts[0], counts[1])
    return int(table[0, 0]) if (table == table[0, 0]).all() else table


def _free_divisors(w: Windows, include_pad: bool) -> Any:
    """The same where sizes are free: computed from them by operations."""
    counts: list[Any] = []
    for i in range(2):
        if not w.ceil_mode and (include_pad or not w.padding[i]):
            counts.append(w.kernel[i])
            continue
        start = positions((w.out[i],), dt.int64) * w.stride[i] - w.padding[i]  # type: ignore[operator]
        stop = T.clamp(start + w.kernel[i], max=w.shape[2 + i] + w.padding[i])
        if not include_pad:
            start, stop = T.clamp(start, min=0), T.clamp(stop, max=w.shape[2 + i])
        counts.append(T.reshape(stop - start, (-1, 1) if i == 0 else (1, -1)))
    return counts[0] * counts[1]
