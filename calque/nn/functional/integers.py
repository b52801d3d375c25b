"""Convolutions of whole numbers, exact in their own type: windows as rows of a matrix product."""

from __future__ import annotations

from typing import Any

from calque import functional as T
from calque.base.shapes import contiguous_strides
from calque.functional.common import prim, row_major
from calque.nn.functional.padding import pad
from calque.tensor import Tensor

__all__: list[str] = []

Pair = Any  # two ints


def convolved(x: Tensor, w: Tensor, stride: Pair, padding: Pair, dilation: Pair, groups: int) -> Tensor:
    """(N, C, H, W), (O, C / groups, kH, kW) -> (N, O, H', W')."""
    x = pad(x, (padding[1], padding[1], padding[0], padding[0]), value=0)
    n, c, *size = x._layout.shape
    o, inner, *kernel = w._layout.shape
    out = [(size[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 for i in range(2)]
    a, b, h, v = contiguous_strides((n, c, *size))
    shape = (n, groups, inner, *out, *kernel)
    windows = prim("view", x, shape, (a, b * inner, b, h * stride[0], v * stride[1], h * dilation[0], v * dilation[1]), 0)
    depth = inner * kernel[0] * kernel[1]
    rows = T.reshape(T.permute(windows, (1, 0, 3, 4, 2, 5, 6)), (groups, n * out[0] * out[1], depth))
    columns = T.transpose(T.reshape(w, (groups, o // groups, depth)), 1, 2)
    found = T.reshape(T.matmul(rows, columns), (groups, n, *out, o // groups))
    return row_major(T.reshape(T.permute(found, (1, 0, 4, 2, 3)), (n, o, *out)))


def transposed(x: Tensor, w: Tensor, out: Pair, stride: Pair, padding: Pair, dilation: Pair, groups: int) -> Tensor:
    """(N, C, H, W), (C, O / groups, kH, kW) -> (N, O, *out): a convolution of the input with zeros in between by the turned kernel."""
    n, c, h, v = x._layout.shape
    inner, *kernel = w._layout.shape[1:]
    spaced = pad(T.reshape(x, (n, c, h, 1, v, 1)), (0, stride[1] - 1, 0, 0, 0, stride[0] - 1), value=0)
    spaced = T.reshape(spaced, (n, c, h * stride[0], v * stride[1]))
    first = [dilation[i] * (kernel[i] - 1) - padding[i] for i in range(2)]
    after = [out[i] + dilation[i] * (kernel[i] - 1) - first[i] - (h, v)[i] * stride[i] for i in range(2)]
    around = pad(spaced, (first[1], after[1], first[0], after[0]), value=0)
    turned = T.flip(T.reshape(w, (groups, c // groups, inner, *kernel)), (3, 4))
    turned = T.reshape(T.transpose(turned, 1, 2), (groups * inner, c // groups, *kernel))
    return convolved(around, turned, (1, 1), (0, 0), dilation, groups)
