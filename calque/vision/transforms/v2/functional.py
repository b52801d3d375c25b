"""`torchvision.transforms.v2.functional`: the functions of images under its names."""

from __future__ import annotations

from typing import Any

from calque import functional as T
from calque.base import dtypes as dt
from calque.functional.common import is_tensor
from calque.vision.images import is_pil
from calque.vision.transforms import functional as first
from calque.vision.transforms.boxes import clamp_bounding_boxes, convert_bounding_box_format, pictures, size_of
from calque.vision.transforms.boxes import plain as pure
from calque.vision.transforms.functional import *  # noqa: F403 - the same objects, where type checkers see them
from calque.vision.tv_tensors import BoundingBoxes, Image, Mask

__all__ = [
    "clamp_bounding_boxes", "convert_bounding_box_format", "get_num_channels", "get_size", "grayscale_to_rgb", "horizontal_flip", "to_dtype",
    "to_image", "vertical_flip",
]  # fmt: skip
__all__ += first.__all__
horizontal_flip, vertical_flip, get_num_channels = first.hflip, first.vflip, first.get_image_num_channels


def get_size(inpt: Any) -> list[int]:
    """[height, width], of boxes that of their image."""
    return list(size_of(inpt))


def to_image(inpt: Any) -> Image:
    """An image of Pillow's, an array (H, W, C) or a tensor as an `Image` (C, H, W) of the same numbers."""
    if is_tensor(inpt):
        return inpt if isinstance(inpt, Image) else Image(pure(inpt))
    if is_pil(inpt):
        return Image(first.pil_to_tensor(inpt))
    found = T.tensor(inpt)
    return Image(found.unsqueeze(0) if found.ndim == 2 else found.permute(2, 0, 1))


def to_dtype(inpt: Any, dtype: dt.DType = dt.float32, scale: bool = False) -> Any:
    """Another dtype; scale: integers span their type, floating values 0 to 1. Boxes and masks are never scaled."""
    return first.convert_image_dtype(inpt, dtype) if scale and not isinstance(inpt, (BoundingBoxes, Mask)) else inpt.to(dtype)


@pictures
def grayscale_to_rgb(image: Any) -> Any:
    """One channel as three."""
    if not is_tensor(image):
        return image.convert("RGB")
    return image if image.shape[-3] >= 3 else first.rgb_to_grayscale(image, 3)
