"""What images and videos become before trained models see them. Names as in `torchvision.transforms._presets`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from calque import nn
from calque.base import dtypes as dt
from calque.base.errors import ShapeError
from calque.functional.common import is_tensor
from calque.tensor import Tensor
from calque.vision.transforms import functional as F
from calque.vision.transforms.functional import InterpolationMode

__all__ = ["OpticalFlow", "SemanticSegmentation", "VideoClassification"]


def _floating(img: Any) -> Tensor:
    """Values from 0 to 1, of an image of Pillow's or a tensor."""
    return F.convert_image_dtype(img if is_tensor(img) else F.pil_to_tensor(img), dt.float32)  # type: ignore[no-any-return]


class SemanticSegmentation(nn.Module):
    """An image of Pillow's, or a tensor (..., 3, H, W) -> a normalised tensor of float32.

    resize_size: pixels of the shorter side; None: as it is. mean, std: of the colours (defaults: ImageNet's).

    >>> import calque
    >>> tuple(SemanticSegmentation(resize_size=20)(calque.zeros(3, 30, 60, dtype=calque.uint8)).shape)
    (3, 20, 40)
    """

    def __init__(
        self, *, resize_size: int | None, mean: Sequence[float] = (0.485, 0.456, 0.406), std: Sequence[float] = (0.229, 0.224, 0.225),
        interpolation: InterpolationMode = InterpolationMode.BILINEAR, antialias: bool | None = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.resize_size = None if resize_size is None else [resize_size]
        self.mean, self.std, self.interpolation, self.antialias = list(mean), list(std), interpolation, antialias

    def forward(self, img: Any) -> Tensor:
        """The image as the model wants it."""
        if self.resize_size is not None:
            img = F.resize(img, self.resize_size, self.interpolation, antialias=self.antialias)
        return F.normalize(_floating(img), self.mean, self.std)


class VideoClassification(nn.Module):
    """Frames (T, 3, H, W), or videos (N, T, 3, H, W) -> (3, T, height, width), or with N before it, normalised and of float32.

    crop_size: (height, width) of the middle that is kept. resize_size: what frames become before, (height, width) or the shorter side alone, in a
    list. mean, std: of the colours (defaults: those of Kinetics-400). Raises ShapeError for tensors of other numbers of dims.

    >>> import calque
    >>> tuple(VideoClassification(crop_size=(16, 16), resize_size=(20,))(calque.zeros(4, 3, 30, 60, dtype=calque.uint8)).shape)
    (3, 4, 16, 16)
    """

    def __init__(
        self, *, crop_size: Sequence[int], resize_size: Sequence[int], mean: Sequence[float] = (0.43216, 0.394666, 0.37645),
        std: Sequence[float] = (0.22803, 0.22145, 0.216989), interpolation: InterpolationMode = InterpolationMode.BILINEAR,
    ) -> None:  # fmt: skip
        super().__init__()
        self.crop_size, self.resize_size, self.interpolation = list(crop_size), list(resize_size), interpolation
        self.mean, self.std = list(mean), list(std)

    def forward(self, vid: Tensor) -> Tensor:
        """The video as the model wants it."""
        if vid.ndim not in (4, 5):
            raise ShapeError(f"[VideoClassification] expected frames (T, 3, H, W) or videos (N, T, 3, H, W), got {tuple(vid.shape)}")
        # The published weights were trained on frames that were made smaller without smoothing.
        frames = F.resize(vid.flatten(0, -4), self.resize_size, self.interpolation, antialias=False)
        frames = F.normalize(F.convert_image_dtype(F.center_crop(frames, self.crop_size), dt.float32), self.mean, self.std)
        return frames.reshape(*vid.shape[:-2], *self.crop_size).transpose(-4, -3)


class OpticalFlow(nn.Module):
    """Two images, of Pillow's or tensors -> two tensors of float32, from -1 to 1.

    >>> import calque
    >>> [float(x.min()) for x in OpticalFlow()(calque.zeros(3, 8, 8), calque.ones(3, 8, 8))]
    [-1.0, 1.0]
    """

    def forward(self, img1: Any, img2: Any) -> tuple[Tensor, Tensor]:
        """The images as the model wants them."""
        middle = [0.5, 0.5, 0.5]
        return F.normalize(_floating(img1), middle, middle), F.normalize(_floating(img2), middle, middle)
