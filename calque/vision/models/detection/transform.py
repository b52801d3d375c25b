"""What comes before and after a detector: images of one size and range, and results in the pixels of the images that were passed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from calque import functional as T
from calque import nn
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, DTypeError
from calque.nn import functional as F
from calque.tensor import Tensor
from calque.vision.models.detection.image_list import ImageList
from calque.vision.models.detection.roi_heads import paste_masks_in_image

__all__ = ["GeneralizedRCNNTransform", "resize_boxes", "resize_keypoints"]

Sizes = Sequence[int]


def _ratios(original_size: Sizes, new_size: Sizes) -> tuple[float, float]:
    """By how much (height, width) become larger."""
    return float(new_size[0]) / float(original_size[0]), float(new_size[1]) / float(original_size[1])


def resize_boxes(boxes: Tensor, original_size: Sizes, new_size: Sizes) -> Tensor:
    """Boxes (N, 4) of an image of (height, width) in another size of it."""
    down, across = _ratios(original_size, new_size)
    return boxes * T.tensor([across, down, across, down], dtype=boxes.dtype, device=boxes.device)


def resize_keypoints(keypoints: Tensor, original_size: Sizes, new_size: Sizes) -> Tensor:
    """Points (..., 3) as x, y and whether they are seen, of an image of (height, width), in another size of it."""
    down, across = _ratios(original_size, new_size)
    return keypoints * T.tensor([across, down, 1.0], dtype=keypoints.dtype, device=keypoints.device)


class GeneralizedRCNNTransform(nn.Module):
    """A list of images (C, H, W) of values from 0 to 1 and, if there are any, targets -> (an `ImageList` of equal range and size, targets that fit).

    min_size: pixels of the shorter side, or several of which each image in training draws one and takes the last in evaluation. max_size: pixels that
    the longer side does not exceed. image_mean, image_std: subtracted from channels, and what they are divided by. size_divisible: the sides of the
    batch are multiples of it, filled up with 0. fixed_size: (width, height) of all images instead. Raises ValueError for images of other dims,
    TypeError for images that are not floating.
    """

    def __init__(
        self, min_size: Any, max_size: int, image_mean: Sequence[float], image_std: Sequence[float], size_divisible: int = 32,
        fixed_size: tuple[int, int] | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        self._skip_resize = kwargs.pop("_skip_resize", False)
        if kwargs:
            raise DTypeError(f"[GeneralizedRCNNTransform] expected arguments of a detector or of its images, got {', '.join(kwargs)}; remove them")
        self.min_size = tuple(min_size) if isinstance(min_size, (list, tuple)) else (min_size,)
        self.max_size, self.image_mean, self.image_std = max_size, image_mean, image_std
        self.size_divisible, self.fixed_size = size_divisible, fixed_size

    def forward(self, images: Sequence[Tensor], targets: Any = None) -> tuple[ImageList, Any]:
        """The batch and the targets; neither changes what was passed."""
        given = [None] * len(images) if targets is None else [dict(target) for target in targets]
        resized, moved = [], []
        for image, target in zip(images, given, strict=True):
            if image.ndim != 3:
                raise ArgumentError(
                    f"[GeneralizedRCNNTransform] images is expected to be a list of 3d tensors of shape [C, H, W], got {tuple(image.shape)}; "
                    "pass list(batch)"
                )
            image, target = self.resize(self.normalize(image), target)
            resized.append(image)
            moved.append(target)
        sizes = [(int(image.shape[-2]), int(image.shape[-1])) for image in resized]
        return ImageList(self.batch_images(resized, self.size_divisible), sizes), None if targets is None else moved

    def normalize(self, image: Tensor) -> Tensor:
        """Less the mean of each channel, by its deviation."""
        if not image.is_floating_point():
            raise DTypeError(
                f"[GeneralizedRCNNTransform] Expected input images to be of floating type (in range [0, 1]), got {image.dtype}; use image / 255"
            )
        mean, deviation = (T.tensor(list(row), dtype=image.dtype, device=image.device) for row in (self.image_mean, self.image_std))
        return (image - mean[:, None, None]) / deviation[:, None, None]

    def torch_choice(self, k: Sequence[int]) -> int:
        """One of these numbers, drawn."""
        return k[int(T.rand(1).item() * len(k))] if len(k) > 1 else k[0]

    def _new_size(self, height: int, width: int) -> tuple[int, int]:
        if self.fixed_size is not None:
            return self.fixed_size[1], self.fixed_size[0]
        side = self.torch_choice(self.min_size) if self.training else self.min_size[-1]
        scale = min(side / min(height, width), self.max_size / max(height, width))
        return int(height * scale), int(width * scale)

    def resize(self, image: Tensor, target: Any = None) -> tuple[Tensor, Any]:
        """An image (C, H, W) and its target in their new size."""
        before = int(image.shape[-2]), int(image.shape[-1])
        if self.training and self._skip_resize:
            return image, target
        after = self._new_size(*before)
        image = F.interpolate(image[None], size=after, mode="bilinear", align_corners=False)[0]
        if target is None:
            return image, target
        if "masks" in target:
            masks = target["masks"]
            target["masks"] = F.interpolate(masks[:, None].float(), size=after)[:, 0].to(dt.uint8) if len(masks) else masks.new_zeros((0, *after))
        target["boxes"] = resize_boxes(target["boxes"], before, after)
        if "keypoints" in target:
            target["keypoints"] = resize_keypoints(target["keypoints"], before, after)
        return image, target

    def max_by_axis(self, the_list: Sequence[Sequence[int]]) -> list[int]:
        """The largest number in each place."""
        return [max(row) for row in zip(*the_list, strict=True)]

    def batch_images(self, images: Sequence[Tensor], size_divisible: int = 32) -> Tensor:
        """Images (C, H, W) of several sizes -> (N, C, H', W'), whose sides are multiples of `size_divisible`."""
        _, *sides = self.max_by_axis([list(image.shape) for image in images])
        height, width = (math.ceil(side / size_divisible) * size_divisible for side in sides)
        return T.stack([F.pad(image, [0, width - image.shape[2], 0, height - image.shape[1]]) for image in images])

    def postprocess(
        self, result: list[dict[str, Tensor]], image_shapes: Sequence[tuple[int, int]], original_image_sizes: Sequence[tuple[int, int]]
    ) -> list[dict[str, Tensor]]:  # fmt: skip
        """Boxes, masks and key points in the pixels of the images that were passed."""
        if self.training:
            return result
        for found, before, after in zip(result, image_shapes, original_image_sizes, strict=True):
            found["boxes"] = resize_boxes(found["boxes"], before, after)
            if "masks" in found:
                found["masks"] = paste_masks_in_image(found["masks"], found["boxes"], after)
            if "keypoints" in found:
                found["keypoints"] = resize_keypoints(found["keypoints"], before, after)
        return result

    def __repr__(self) -> str:
        resize = f"Resize(min_size={self.min_size}, max_size={self.max_size}, mode='bilinear')"
        return f"{type(self).__name__}(\n    Normalize(mean={self.image_mean}, std={self.image_std})\n    {resize}\n)"

