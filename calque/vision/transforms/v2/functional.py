"""`torchvision.transforms.v2.functional`: the functions of images under its names."""

from __future__ import annotations

from typing import Any

from calque import functional as T
from calque.base import dtypes as dt
from calque.functional.common import is_tensor
from calque.vision.transforms import functional as first
from calque.vision.transforms.images import is_pil

__all__ = [
    *(name for name in first.__all__), "get_num_channels", "get_size", "grayscale_to_rgb", "horizontal_flip", "to_dtype", "to_image", "vertical_flip",
]  # fmt: skip

globals().update({name: getattr(first, name) for name in first.__all__})
horizontal_flip, vertical_flip, get_num_channels = first.hflip, first.vflip, first.get_image_num_channels


def get_size(inpt: Any) -> list[int]:
    """[height, width]."""
    return first.get_dimensions(inpt)[1:]


def to_image(inpt: Any) -> Any:
    """An image of Pillow's, an array (H, W, C) or a tensor as a tensor (C, H, W) of the same numbers."""
    if is_tensor(inpt):
        return inpt
    if is_pil(inpt):
        return first.pil_to_tensor(inpt)
    found = T.tensor(inpt)
    return found.unsqueeze(0) if found.ndim == 2 else found.permute(2, 0, 1)


def to_dtype(inpt: Any, dtype: dt.DType = dt.float32, scale: bool = False) -> Any:
    """Another dtype; scale: integers span their type, floating values 0 to 1."""
    return first.convert_image_dtype(inpt, dtype) if scale else inpt.to(dtype)


def grayscale_to_rgb(image: Any) -> Any:
    """One channel as three."""
    if not is_tensor(image):
        return image.convert("RGB")
    return image if image.shape[-3] >= 3 else first.rgb_to_grayscale(image, 3)
