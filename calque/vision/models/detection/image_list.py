"""Images of several sizes in one tensor."""

from __future__ import annotations

from typing import Any

from calque.tensor import Tensor

__all__ = ["ImageList"]


class ImageList:
    """A batch (N, C, H, W) of images that lie in its upper left corners, and their (height, width)."""

    def __init__(self, tensors: Tensor, image_sizes: list[tuple[int, int]]) -> None:
        self.tensors, self.image_sizes = tensors, image_sizes

    def to(self, device: Any) -> ImageList:
        """The same images on a device."""
        return ImageList(self.tensors.to(device), self.image_sizes)
