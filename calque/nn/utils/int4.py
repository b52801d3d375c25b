"""Linear layers whose weights are kept as integers of four bits, two in a byte, with a scale for every group of successive ones: an eighth of the
memory, and of what decoding one token at a time has to read."""

from __future__ import annotations

from math import prod

from calque import functional as T
from calque.autograd.autocast import get_autocast_dtype, is_autocast_enabled
from calque.base.dtypes import float32, int8
from calque.base.errors import ArgumentError
from calque.base.text import shown
from calque.functional.common import prim
from calque.nn import functional as F
from calque.nn.module import Module
from calque.nn.modules.make import extents
from calque.nn.parameter import Parameter
from calque.tensor import Tensor

__all__ = ["Int4Linear"]

LOWEST, LARGEST = -8, 7
MANY = 32
"""Rows from which on all weights are converted to floats before the product, which is then one of floats. Where the number of rows is free in an
export they never are, as that would be two programs."""


def check_group_size(op: str, group_size: int) -> int:
    """An even number, as a byte holds two weights of a group."""
    if not isinstance(group_size, int) or isinstance(group_size, bool) or group_size < 2 or group_size % 2:
        raise ArgumentError(f"[{op}] expected group_size as an even integer from 2 on, got {shown(group_size)}; 32, 64 and 128 are usual")
    return group_size


class Int4Linear(Module):
    """x W^T + b: (*, in_features) -> (*, out_features) for a weight of integers from -8 to 7 in groups of `group_size` along a row.

    `weight_int4`, int8 (out_features, in_features / 2), has two of them in a byte: byte j of a group of 2 H has the weight j, plus 8, in its low bits
    and the weight j + H above. `weight_scale`, float32 (out_features, groups), is what those of a group are multiplied by; without `symmetric`
    `weight_shift`, of the same shape, is then added to them. A last group that is shorter is filled up with zeros.

    `quantize_(model, bits=4)` makes them; `Int4Linear(in_features, out_features)` has a weight of zeros, for `load_state_dict`. The weight is not
    trained; bias and input have gradients. `dequantize()` gives the weight as floats.

    bias: whether something is added (default: yes). group_size: weights that share a scale, an even number (default: 64). symmetric: whether groups
    have no shift (default: yes). Raises ArgumentError for sizes that are none.

    >>> import calque
    >>> layer = calque.nn.utils.quantize_(calque.nn.Linear(128, 2), bits=4)
    >>> layer
    Int4Linear(in_features=128, out_features=2, bias=True, group_size=64, symmetric=True)
    >>> tuple(layer.weight_int4.shape), tuple(layer.weight_scale.shape), tuple(layer(calque.ones(5, 128)).shape)
    ((2, 64), (2, 2), (5, 2))
    """

    in_features: int
    out_features: int
    group_size: int
    symmetric: bool
    weight_int4: Tensor
    weight_scale: Tensor
    weight_shift: Tensor | None

    def __init__(self, in_features: int, out_features: int, bias: bool = True, group_size: int = 64, symmetric: bool = True) -> None:
        super().__init__()
        extents("Int4Linear", in_features=in_features, out_features=out_features)
        self.in_features, self.out_features, self.symmetric = int(in_features), int(out_features), bool(symmetric)
        self.group_size = check_group_size("Int4Linear", group_size)
        groups = -(-self.in_features // group_size)
        self.register_buffer("weight_int4", T.full((self.out_features, groups * group_size // 2), -LOWEST, dtype=int8))
        self.register_buffer("weight_scale", T.ones((self.out_features, groups), dtype=float32))
        self.register_buffer("weight_shift", None if symmetric else T.zeros((self.out_features, groups), dtype=float32))
        self.register_parameter("bias", Parameter(T.zeros((self.out_features,))) if bias else None)

    def dequantize(self) -> Tensor:
        """The weight that the layer computes with, (out_features, in_features), as float32."""
        rows, groups = self.weight_scale.shape
        pairs = T.reshape(self.weight_int4, (rows, groups, self.group_size // 2))
        whole = T.cat([T.bitwise_and(pairs, 15) + LOWEST, T.bitwise_right_shift(pairs, 4)], -1)
        weight = whole.to(self.weight_scale.dtype) * T.unsqueeze(self.weight_scale, -1)
        if self.weight_shift is not None:
            weight = weight + T.unsqueeze(self.weight_shift, -1)
        return T.narrow(T.reshape(weight, (rows, groups * self.group_size)), 1, 0, self.in_features)

    def forward(self, input: Tensor) -> Tensor:
        kind = get_autocast_dtype("cpu") if is_autocast_enabled() else input.dtype
        fits = input.ndim > 0 and input.shape[-1] == self.in_features and input.dtype.is_floating_point
        count = prod(input.shape[:-1])
        if not fits or (type(count) is int and count >= MANY):
            out = F.linear(input, self.dequantize().to(input.dtype))
            return (out if self.bias is None else out + self.bias.to(out.dtype)).to(kind if fits else out.dtype)
        wide = float32 if input.dtype.itemsize < 4 else input.dtype
        rows = T.reshape(input, (count, self.in_features)).to(wide)
        groups = self.weight_scale.shape[1]
        missing = groups * self.group_size - self.in_features
        if missing:
            rows = F.pad(rows, (0, missing))
        out = prim("int4_matmul", rows, self.weight_int4, self.weight_scale.to(wide))
        if self.weight_shift is not None:
            sums = T.sum(T.reshape(rows, (count, groups, self.group_size)), -1)
            out = out + T.matmul(sums, T.t(self.weight_shift.to(wide)))
        out = T.reshape(out, (*input.shape[:-1], self.out_features))
        return (out if self.bias is None else out + self.bias.to(wide)).to(kind)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, group_size={self.group_size}, "
            f"symmetric={self.symmetric}"
        )


def packed_in_groups(weight: Tensor, group_size: int, symmetric: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """The buffers of an `Int4Linear` for a weight (N, K) of floats: bytes (N, K' / 2), scales and shifts (N, groups)."""
    wide = weight.to(float32)
    rows, groups = wide.shape[0], -(-wide.shape[1] // group_size)
    grouped = T.reshape(F.pad(wide, (0, groups * group_size - wide.shape[1])), (rows, groups, group_size))
    shift = None
    if symmetric:
        scale = T.amax(T.abs(grouped), -1) / ((LARGEST - LOWEST) / 2)  # the largest is half a step away from -8 or 7, as others may be from theirs
    else:
        low, high = T.amin(grouped, -1), T.amax(grouped, -1)
        scale = high / (LARGEST - LOWEST) - low / (LARGEST - LOWEST)  # their difference may be infinite
        shift = low - LOWEST * scale
        grouped = grouped - T.unsqueeze(shift, -1)
    scale = T.where(scale == 0, T.ones_like(scale), scale)
    whole = T.clamp(T.round(grouped / T.unsqueeze(scale, -1)), LOWEST, LARGEST).to(int8)
    half = group_size // 2
    pairs = T.narrow(whole, -1, half, half) * 16 + (T.narrow(whole, -1, 0, half) - LOWEST)
    return T.reshape(pairs, (rows, groups * half)), scale, shift
