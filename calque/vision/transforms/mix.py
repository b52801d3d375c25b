"""Batches in which every image is mixed with another one, and its label with that one's. Names and arguments as in `torchvision.transforms.v2`.

Sources: Zhang et al., "mixup: Beyond Empirical Risk Minimization" (2018); Yun et al., "CutMix: Regularization Strategy to Train Strong Classifiers
with Localizable Features" (2019).
"""

from __future__ import annotations

import math
from typing import Any

from calque import functional as T
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, DTypeError, ShapeError
from calque.base.text import described, shown
from calque.distributions import Beta
from calque.functional.common import is_tensor
from calque.functional.kinds import is_int
from calque.nn import functional as N
from calque.tensor import Tensor
from calque.vision.transforms.base import Transform, below


class _Mixed(Transform):
    """Images `(N, C, H, W)` and labels `(N,)`, or shares of classes `(N, num_classes)`; the labels come back as shares."""

    shown = ("alpha", "num_classes")

    def __init__(self, *, alpha: float = 1.0, num_classes: int | None = None) -> None:
        super().__init__()
        if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not 0 < alpha < math.inf:
            raise ArgumentError(f"[{type(self).__name__}] expected alpha above 0, got {shown(alpha)}; 1.0 mixes evenly")
        if num_classes is not None and (not is_int(num_classes) or num_classes < 1):
            raise ArgumentError(f"[{type(self).__name__}] expected num_classes to be an int above 0, got {shown(num_classes)}")
        self.alpha, self.num_classes = float(alpha), num_classes

    def mix(self, images: Tensor, share: float) -> tuple[Tensor, float]:
        """The images, each with a part of the one before it, and the share that is its own."""
        raise NotImplementedError

    def forward(self, images: Any, labels: Any) -> tuple[Tensor, Tensor]:
        """Mix a batch: the first image with the last one, every other with the one before it."""
        name = type(self).__name__
        if not is_tensor(images) or images.ndim != 4:
            raise ShapeError(f"[{name}] expected a batch of images (N, C, H, W), got {described(images)}; apply it behind the DataLoader")
        if not is_tensor(labels) or labels.ndim not in (1, 2) or len(labels) != len(images):
            raise ShapeError(f"[{name}] expected labels ({len(images)},) or shares of classes ({len(images)}, C), got {described(labels)}")
        if labels.ndim == 1:
            if self.num_classes is None:
                raise ArgumentError(f"[{name}] expected num_classes for labels that are numbers, got None; pass num_classes=")
            labels = N.one_hot(labels.long(), self.num_classes).to(images.dtype if images.dtype.is_floating_point else dt.float32)
        elif not labels.dtype.is_floating_point:
            raise DTypeError(f"[{name}] expected shares of classes as floating numbers, got {labels.dtype}; call float()")
        mixed, share = self.mix(images, float(Beta(self.alpha, self.alpha).sample().item()))
        return mixed, labels * share + labels.roll(1, 0) * (1 - share)


def _check_share(name: str, share: Any) -> None:
    if not isinstance(share, int | float) or not 0 <= share <= 1:
        raise ArgumentError(f"[{name}] expected the share of an image between 0 and 1, got {shown(share)}; forward draws one")


class MixUp(_Mixed):
    """Each image plus the one before it, in shares that are drawn for the batch from Beta(alpha, alpha); the labels in the same shares.

    >>> from calque.vision.transforms import v2
    >>> images, labels = v2.MixUp(num_classes=3)(calque.rand(4, 3, 8, 8), calque.tensor([0, 1, 2, 0]))
    >>> images.shape, labels.shape, bool((labels.sum(1) - 1).abs().max() < 1e-6)
    (torch.Size([4, 3, 8, 8]), torch.Size([4, 3]), True)
    """

    def mix(self, images: Tensor, share: float) -> tuple[Tensor, float]:
        """`share` of each image and 1 - `share` of the one before it."""
        _check_share("MixUp", share)
        if not images.dtype.is_floating_point:
            raise DTypeError(f"[MixUp] expected floating images, got {images.dtype}; divide them by 255")
        return images * share + images.roll(1, 0) * (1 - share), share


class CutMix(_Mixed):
    """A rectangle of the image before it in each image; its area is 1 - the share drawn from Beta(alpha, alpha), and labels are mixed by areas.

    >>> from calque.vision.transforms import v2
    >>> images, labels = v2.CutMix(num_classes=2)(calque.arange(2.0).reshape(2, 1, 1, 1).expand(2, 3, 8, 8), calque.tensor([0, 1]))
    >>> bool((images[0, 0].mean() - labels[0, 1]).abs() < 1e-6)
    True
    """

    def mix(self, images: Tensor, share: float) -> tuple[Tensor, float]:
        """A rectangle with its middle anywhere, as far as it lies inside."""
        _check_share("CutMix", share)
        height, width = images.shape[-2:]
        x, y, half = below(width), below(height), 0.5 * math.sqrt(1 - share)
        wide, high = int(half * width), int(half * height)
        left, right, top, bottom = max(x - wide, 0), min(x + wide, width), max(y - high, 0), min(y + high, height)
        mixed = T.clone(images)
        mixed[..., top:bottom, left:right] = images.roll(1, 0)[..., top:bottom, left:right]
        return mixed, 1 - (right - left) * (bottom - top) / (width * height)
