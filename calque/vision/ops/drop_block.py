"""Dropout of whole squares and cubes: neighbours tell what a single dropped element was."""

from __future__ import annotations

import math

from calque import functional as T
from calque import nn
from calque.base.errors import ArgumentError
from calque.nn import functional as F
from calque.tensor import Tensor

__all__ = ["DropBlock2d", "DropBlock3d", "drop_block2d", "drop_block3d"]


def _dropped(op: str, dims: int, input: Tensor, p: float, block_size: int, inplace: bool, eps: float, training: bool) -> Tensor:
    if not 0.0 <= p <= 1.0:
        raise ArgumentError(f"[{op}] drop probability has to be between 0 and 1, but got {p}; choose one inside")
    if input.ndim != dims + 2:
        raise ArgumentError(f"[{op}] input should be {dims + 2} dimensional, got shape {tuple(input.shape)}; pass a batch (N, C, ...)")
    if not training or p == 0.0:
        return input
    sizes = tuple(input.shape[2:])
    block = min(block_size, *sizes)
    if block % 2 == 0:
        raise ArgumentError(f"[{op}] block size should be odd, got {block} which is even; take one less")
    starts = [size - block + 1 for size in sizes]
    chance = p * math.prod(sizes) / (block**dims * math.prod(starts))
    centres = (T.rand((*input.shape[:2], *starts), device=input.device) < chance).to(input.dtype)
    padded = F.pad(centres, [block // 2] * 2 * dims)
    pool = F.max_pool2d if dims == 2 else F.max_pool3d
    keep = 1 - pool(padded, block, stride=1, padding=block // 2)
    scale = keep.numel() / (eps + keep.sum())
    return input.mul_(keep).mul_(scale) if inplace else input * keep * scale


def drop_block2d(input: Tensor, p: float, block_size: int, inplace: bool = False, eps: float = 1e-6, training: bool = True) -> Tensor:
    """Zeros in squares of `block_size`, about a part `p` of all elements; the others are scaled to the same mean: (N, C, H, W) -> the same.

    inplace: the input itself. eps: added to the number of elements that are left. training: else the input as it is. Raises ValueError for `p`
    outside 0 to 1, an even `block_size` and other shapes. Source: Ghiasi et al. 2018, "DropBlock".

    >>> import calque
    >>> calque.vision.ops.drop_block2d(calque.ones(1, 1, 2, 2), p=0.0, block_size=1).sum()
    tensor(4.)
    """
    return _dropped("drop_block2d", 2, input, p, block_size, inplace, eps, training)


def drop_block3d(input: Tensor, p: float, block_size: int, inplace: bool = False, eps: float = 1e-6, training: bool = True) -> Tensor:
    """`drop_block2d` in cubes: (N, C, D, H, W) -> the same.

    >>> import calque
    >>> calque.vision.ops.drop_block3d(calque.ones(1, 1, 2, 2, 2), p=0.5, block_size=1, training=False).sum()
    tensor(8.)
    """
    return _dropped("drop_block3d", 3, input, p, block_size, inplace, eps, training)


class DropBlock2d(nn.Module):
    """`drop_block2d` as a layer."""

    def __init__(self, p: float, block_size: int, inplace: bool = False, eps: float = 1e-6) -> None:
        super().__init__()
        self.p, self.block_size, self.inplace, self.eps = p, block_size, inplace, eps

    def forward(self, input: Tensor) -> Tensor:
        """The input with zeros in squares."""
        return drop_block2d(input, self.p, self.block_size, self.inplace, self.eps, self.training)

    def extra_repr(self) -> str:
        """The settings."""
        return f"p={self.p}, block_size={self.block_size}, inplace={self.inplace}"


class DropBlock3d(DropBlock2d):
    """`drop_block3d` as a layer."""

    def forward(self, input: Tensor) -> Tensor:
        """The input with zeros in cubes."""
        return drop_block3d(input, self.p, self.block_size, self.inplace, self.eps, self.training)
