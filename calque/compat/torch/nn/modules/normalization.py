"""`torch.nn.modules.normalization`: a layer of old networks."""

from __future__ import annotations

from calque import functional as T
from calque.base.errors import ShapeError
from calque.nn import functional as F
from calque.nn.modules.norm import LocalResponseNorm
from calque.tensor import Tensor

__all__ = ["CrossMapLRN2d"]


class CrossMapLRN2d(LocalResponseNorm):
    """x / (k + alpha / size sum of squares)^beta over neighbouring channels of (N, C, H, W), with PyTorch's windows: the square of channel 0 stays in
    the sum of all channels behind it. The gradient is the derivative of that, which PyTorch's is not everywhere."""

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim != 4:
            raise ShapeError(f"[CrossMapLRN2d] expected input to be 4D (N, C, H, W), got {input.ndim}D; use nn.LocalResponseNorm")
        reach, channels = int((self.size - 1) / 2 + 1) - 1, input.shape[1]
        squares = input * input
        padded = F.pad(squares, (0, 0, 0, 0, reach, reach))
        total = padded[:, :channels]
        for k in range(1, 2 * reach + 1):
            total = total + padded[:, k : k + channels]
        if channels > reach + 1:
            total = T.cat([total[:, : reach + 1], total[:, reach + 1 :] + squares[:, :1]], 1)
        return input * (self.k + self.alpha / self.size * total) ** -self.beta
