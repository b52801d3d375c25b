"""`torchvision.transforms.v2`: the transformations of images under its names. Boxes and masks beside an image are not transformed with it."""

from __future__ import annotations

from typing import Any

from calque.base import dtypes as dt
from calque.nn.modules.linear import Identity
from calque.tensor import Tensor
from calque.vision import transforms as first
from calque.vision.transforms.base import Transform
from calque.vision.transforms.mix import CutMix, MixUp
from calque.vision.transforms.v2 import functional

__all__ = [
    *(name for name in first.__all__ if name not in ("functional", "ConvertImageDtype")), "CutMix", "Identity", "MixUp", "ToDtype", "ToImage",
    "functional",
]  # fmt: skip

globals().update({name: getattr(first, name) for name in first.__all__ if name != "functional"})


class ToImage(Transform):
    """`functional.to_image`."""

    def forward(self, img: Any) -> Any:
        """An image as a tensor (C, H, W) of the same numbers."""
        return functional.to_image(img)


class ToDtype(Transform):
    """`functional.to_dtype`."""

    def __init__(self, dtype: dt.DType, scale: bool = False) -> None:
        super().__init__()
        self.dtype, self.scale = dtype, scale

    def forward(self, img: Tensor) -> Any:
        """The image in the dtype."""
        return functional.to_dtype(img, self.dtype, self.scale)
