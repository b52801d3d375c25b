"""Augmentations that choose among many changes. Names, arguments and strengths as in `torchvision.transforms`; chance comes from `manual_seed`.

Sources: Cubuk et al., "AutoAugment: Learning Augmentation Strategies from Data" (2019) with its tables of policies, and "RandAugment" (2020); Müller
and Hutter, "TrivialAugment" (2021); Hendrycks et al., "AugMix" (2020).
"""

from __future__ import annotations

import enum
import math
from typing import Any

from calque import functional as T
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, DTypeError
from calque.base.text import shown, type_name
from calque.distributions import Dirichlet
from calque.functional.common import is_tensor
from calque.functional.kinds import is_int
from calque.vision.images import InterpolationMode, is_pil, most
from calque.vision.transforms import functional as F
from calque.vision.transforms.base import Transform, below, chance
from calque.vision.transforms.boxes import plain
from calque.vision.tv_tensors import BoundingBoxes, Image, Mask, TVTensor, wrap

__all__ = ["AugMix", "AutoAugment", "AutoAugmentPolicy", "RandAugment", "TrivialAugmentWide"]


class AutoAugmentPolicy(enum.Enum):
    """The data on which a policy was found."""

    IMAGENET = "imagenet"
    CIFAR10 = "cifar10"
    SVHN = "svhn"


# Each policy has 25 pairs of (change, probability, strength of 0 to 9): the tables of the paper's appendix.
_TABLES = {
    "imagenet": (
        "Posterize 0.4 8 Rotate 0.6 9; Solarize 0.6 5 AutoContrast 0.6 0; Equalize 0.8 0 Equalize 0.6 0; "
        "Posterize 0.6 7 Posterize 0.6 6; Equalize 0.4 0 Solarize 0.2 4; Equalize 0.4 0 Rotate 0.8 8; "
        "Solarize 0.6 3 Equalize 0.6 0; Posterize 0.8 5 Equalize 1 0; Rotate 0.2 3 Solarize 0.6 8; "
        "Equalize 0.6 0 Posterize 0.4 6; Rotate 0.8 8 Color 0.4 0; Rotate 0.4 9 Equalize 0.6 0; Equalize 0 0 Equalize 0.8 0; "
        "Invert 0.6 0 Equalize 1 0; Color 0.6 4 Contrast 1 8; Rotate 0.8 8 Color 1 2; Color 0.8 8 Solarize 0.8 7; "
        "Sharpness 0.4 7 Invert 0.6 0; ShearX 0.6 5 Equalize 1 0; Color 0.4 0 Equalize 0.6 0; Equalize 0.4 0 Solarize 0.2 4; "
        "Solarize 0.6 5 AutoContrast 0.6 0; Invert 0.6 0 Equalize 1 0; Color 0.6 4 Contrast 1 8; Equalize 0.8 0 Equalize 0.6 0"
    ),
    "cifar10": (
        "Invert 0.1 0 Contrast 0.2 6; Rotate 0.7 2 TranslateX 0.3 9; Sharpness 0.8 1 Sharpness 0.9 3; "
        "ShearY 0.5 8 TranslateY 0.7 9; AutoContrast 0.5 0 Equalize 0.9 0; ShearY 0.2 7 Posterize 0.3 7; "
        "Color 0.4 3 Brightness 0.6 7; Sharpness 0.3 9 Brightness 0.7 9; Equalize 0.6 0 Equalize 0.5 0; "
        "Contrast 0.6 7 Sharpness 0.6 5; Color 0.7 7 TranslateX 0.5 8; Equalize 0.3 0 AutoContrast 0.4 0; "
        "TranslateY 0.4 3 Sharpness 0.2 6; Brightness 0.9 6 Color 0.2 8; Solarize 0.5 2 Invert 0 0; "
        "Equalize 0.2 0 AutoContrast 0.6 0; Equalize 0.2 0 Equalize 0.6 0; Color 0.9 9 Equalize 0.6 0; "
        "AutoContrast 0.8 0 Solarize 0.2 8; Brightness 0.1 3 Color 0.7 0; Solarize 0.4 5 AutoContrast 0.9 0; "
        "TranslateY 0.9 9 TranslateY 0.7 9; AutoContrast 0.9 0 Solarize 0.8 3; Equalize 0.8 0 Invert 0.1 0; "
        "TranslateY 0.7 9 AutoContrast 0.9 0"
    ),
    "svhn": (
        "ShearX 0.9 4 Invert 0.2 0; ShearY 0.9 8 Invert 0.7 0; Equalize 0.6 0 Solarize 0.6 6; Invert 0.9 0 Equalize 0.6 0; "
        "Equalize 0.6 0 Rotate 0.9 3; ShearX 0.9 4 AutoContrast 0.8 0; ShearY 0.9 8 Invert 0.4 0; ShearY 0.9 5 Solarize 0.2 6; "
        "Invert 0.9 0 AutoContrast 0.8 0; Equalize 0.6 0 Rotate 0.9 3; ShearX 0.9 4 Solarize 0.3 3; ShearY 0.8 8 Invert 0.7 0; "
        "Equalize 0.9 0 TranslateY 0.6 6; Invert 0.9 0 Equalize 0.6 0; Contrast 0.3 3 Rotate 0.8 4; Invert 0.8 0 TranslateY 0 2; "
        "ShearY 0.7 6 Solarize 0.4 8; Invert 0.6 0 Rotate 0.8 4; ShearY 0.3 7 TranslateX 0.9 3; ShearX 0.1 6 Invert 0.6 0; "
        "Solarize 0.7 2 TranslateY 0.6 7; ShearY 0.8 4 Invert 0.8 0; ShearX 0.7 9 TranslateY 0.8 3; "
        "ShearY 0.8 5 AutoContrast 0.7 0; ShearX 0.7 2 Invert 0.1 0"
    ),
}

_PLAIN = {"Identity", "AutoContrast", "Equalize", "Invert"}  # have no strength
_SIGNED = {"ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast", "Sharpness"}


def _pairs(policy: AutoAugmentPolicy) -> list[list[tuple[str, float, int]]]:
    found = []
    for line in _TABLES[policy.value].split(";"):
        words = line.split()
        found.append([(words[k], float(words[k + 1]), int(words[k + 2])) for k in (0, 3)])
    return found


def _applied(img: Any, name: str, size: float, interpolation: Any, fill: Any) -> Any:
    """An image after one change of a strength. Shears are tangents, about the upper left corner; a threshold counts to 255."""
    if name in ("ShearX", "ShearY"):
        angle = math.degrees(math.atan(size))
        return F.affine(img, 0.0, [0, 0], 1.0, [angle, 0.0] if name == "ShearX" else [0.0, angle], interpolation, fill, [0, 0])
    if name in ("TranslateX", "TranslateY"):
        return F.affine(img, 0.0, [int(size), 0] if name == "TranslateX" else [0, int(size)], 1.0, [0.0, 0.0], interpolation, fill)
    if name == "Rotate":
        return F.rotate(img, size, interpolation, fill=fill)
    if name == "Posterize":
        return F.posterize(img, int(size))
    if name == "Solarize":
        return F.solarize(img, size * most(img) / 255 if is_tensor(img) and img.dtype.is_floating_point else size)
    if name == "Identity":
        return img
    if name in _PLAIN:
        return {"AutoContrast": F.autocontrast, "Equalize": F.equalize, "Invert": F.invert}[name](img)
    change = {"Brightness": F.adjust_brightness, "Color": F.adjust_saturation, "Contrast": F.adjust_contrast, "Sharpness": F.adjust_sharpness}[name]
    return change(img, 1.0 + size)


class _Policy(Transform):
    """Images of Pillow's (L or RGB), or tensors (..., 1 or 3, H, W) of uint8 or floating values from 0 to 1; all of a batch change alike."""

    pixels_only = True
    bins = 31
    tones = ("Brightness", "Color", "Contrast", "Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize")
    moves = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
    names: tuple[str, ...] = ("Identity", *moves, *tones)
    most_shear, most_angle, most_tone, most_bits, least_bits = 0.3, 30.0, 0.9, 8, 4

    def __init__(self, interpolation: Any = InterpolationMode.NEAREST, fill: Any = None) -> None:
        super().__init__()
        self.interpolation, self.fill = interpolation, fill

    def extra_repr(self) -> str:
        """The settings."""
        return ", ".join(f"{key}={getattr(self, key)}" for key in self.shown)

    def check_inputs(self, flat_inputs: list[Any]) -> None:
        """Some changes move pixels and are drawn one by one, so a sample must not have boxes, masks or a second image."""
        found = [type_name(x) for x in flat_inputs if is_pil(x) or isinstance(x, TVTensor)]
        if any(isinstance(x, (BoundingBoxes, Mask)) for x in flat_inputs) or len(found) > 1:
            name = type(self).__name__
            raise DTypeError(f"[{name}] expected one image, got {', '.join(found)}, which {name} does not support; use RandomAffine and ColorJitter")

    def farthest(self, side: int) -> float:
        """By how many pixels of a side an image moves at most."""
        return 150.0 / 331.0 * side

    def strength(self, name: str, step: int, bins: int, img: Any) -> float:
        """The strength of a change at a step of `bins`."""
        if name in _PLAIN:
            return 0.0
        share = step / (bins - 1) if bins > 1 else 0.0
        _, height, width = F.get_dimensions(img)
        if name == "Posterize":
            return self.most_bits - round(share * (self.most_bits - self.least_bits))
        if name == "Solarize":
            return 255.0 * (1.0 - share)
        ends = {"ShearX": self.most_shear, "ShearY": self.most_shear, "Rotate": self.most_angle, "TranslateX": self.farthest(width),
                "TranslateY": self.farthest(height)}  # fmt: skip
        return share * ends.get(name, self.most_tone)

    def _one(self, img: Any, name: str, size: float, negative: bool) -> Any:
        """The image after a change."""
        return _applied(img, name, -size if negative and name in _SIGNED else size, self.interpolation, self.fill)


def _count(owner: str, name: str, value: Any, least: int) -> int:
    if not is_int(value) or value < least:
        raise ArgumentError(f"[{owner}] expected {name} as an int of at least {least}, got {shown(value)}")
    return int(value)


class AutoAugment(_Policy):
    """One of 25 pairs of changes, each with its own probability and strength, that were found to help on a data set.

    >>> from calque.vision import transforms
    >>> transforms.AutoAugment(transforms.AutoAugmentPolicy.CIFAR10)(calque.zeros(3, 8, 8, dtype=calque.uint8)).shape
    torch.Size([3, 8, 8])
    """

    shown = ("policy", "fill")

    def __init__(
        self, policy: AutoAugmentPolicy = AutoAugmentPolicy.IMAGENET, interpolation: Any = InterpolationMode.NEAREST, fill: Any = None
    ) -> None:
        super().__init__(interpolation, fill)
        if not isinstance(policy, AutoAugmentPolicy):
            raise ArgumentError(f"[AutoAugment] The provided policy {shown(policy)} is not recognized; try AutoAugmentPolicy.IMAGENET")
        self.policy, self.policies = policy, _pairs(policy)

    def transform(self, img: Any, params: dict[str, Any]) -> Any:
        """The image after two changes at most."""
        for name, share, step in self.policies[below(len(self.policies))]:
            drawn, negative = chance(), below(2) == 0
            if drawn <= share:
                img = self._one(img, name, self.strength(name, step, 10, img), negative)
        return img


class RandAugment(_Policy):
    """`num_ops` changes drawn from 14, all of one strength: `magnitude` of `num_magnitude_bins`."""

    shown = ("num_ops", "magnitude", "num_magnitude_bins", "interpolation", "fill")

    def __init__(
        self, num_ops: int = 2, magnitude: int = 9, num_magnitude_bins: int = 31, interpolation: Any = InterpolationMode.NEAREST, fill: Any = None
    ) -> None:
        super().__init__(interpolation, fill)
        self.num_ops = _count("RandAugment", "num_ops", num_ops, 0)
        self.num_magnitude_bins = _count("RandAugment", "num_magnitude_bins", num_magnitude_bins, 2)
        if not is_int(magnitude) or not 0 <= magnitude < num_magnitude_bins:
            last = num_magnitude_bins - 1
            raise ArgumentError(f"[RandAugment] expected magnitude from 0 to {last}, got {shown(magnitude)}; raise num_magnitude_bins")
        self.magnitude = magnitude

    def transform(self, img: Any, params: dict[str, Any]) -> Any:
        """The image after the changes."""
        for _ in range(self.num_ops):
            name = self.names[below(len(self.names))]
            img = self._one(img, name, self.strength(name, self.magnitude, self.num_magnitude_bins, img), below(2) == 0)
        return img


class TrivialAugmentWide(_Policy):
    """One change drawn from 14, of a strength that is drawn, too, from a wide range. There is nothing to tune."""

    shown = ("num_magnitude_bins", "interpolation", "fill")
    most_shear, most_angle, most_tone, least_bits = 0.99, 135.0, 0.99, 2

    def __init__(self, num_magnitude_bins: int = 31, interpolation: Any = InterpolationMode.NEAREST, fill: Any = None) -> None:
        super().__init__(interpolation, fill)
        self.num_magnitude_bins = _count("TrivialAugmentWide", "num_magnitude_bins", num_magnitude_bins, 2)

    def farthest(self, side: int) -> float:
        """By how many pixels an image moves at most."""
        return 32.0

    def transform(self, img: Any, params: dict[str, Any]) -> Any:
        """The image after the change."""
        name, step = self.names[below(len(self.names))], below(self.num_magnitude_bins)
        return self._one(img, name, self.strength(name, step, self.num_magnitude_bins, img), below(2) == 0)


class AugMix(_Policy):
    """The image mixed with `mixture_width` others that each went through 1 to 3 (or `chain_depth`) changes, in shares drawn from a Dirichlet
    distribution of `alpha`.

    severity: from 1 to 10, the largest strength. all_ops: also brightness, colour, contrast and sharpness, which the tests of ImageNet-C hold.
    """

    shown = ("severity", "mixture_width", "chain_depth", "alpha", "all_ops", "interpolation", "fill")
    most_bits, least_bits = 4, 0

    def __init__(
        self, severity: int = 3, mixture_width: int = 3, chain_depth: int = -1, alpha: float = 1.0, all_ops: bool = True,
        interpolation: Any = InterpolationMode.BILINEAR, fill: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(interpolation, fill)
        if not is_int(severity) or not 1 <= severity <= 10:
            raise ValueError(f"[AugMix] The severity must be between [1, 10]. Got {shown(severity)} instead.")
        if not isinstance(alpha, (int, float)) or not 0 < alpha < math.inf:
            raise ArgumentError(f"[AugMix] expected alpha above 0, got {shown(alpha)}; 1.0 mixes evenly")
        self.severity, self.mixture_width, self.alpha = severity, _count("AugMix", "mixture_width", mixture_width, 1), float(alpha)
        self.chain_depth, self.all_ops = _count("AugMix", "chain_depth", chain_depth, -1), all_ops
        rest = ("Posterize", "Solarize", "AutoContrast", "Equalize")
        self.names = (*self.moves, *rest, *(self.tones[:4] if all_ops else ()))

    def farthest(self, side: int) -> float:
        """By how many pixels of a side an image moves at most."""
        return side / 3.0

    def transform(self, img: Any, params: dict[str, Any]) -> Any:
        """The mixture."""
        first = plain(img) if is_tensor(img) else F.pil_to_tensor(img)
        kind = first.dtype if first.dtype.is_floating_point else dt.float32
        samples = first.shape[0] if first.ndim > 3 else 1
        form = (samples, *[1] * (max(first.ndim, 4) - 1))
        batch = first if first.ndim > 3 else first[None] if first.ndim == 3 else first[None, None]
        own = Dirichlet(T.full((samples, 2), self.alpha)).sample().to(kind)
        shares = T.ones(samples, 1, dtype=kind)
        if self.mixture_width > 1:
            shares = Dirichlet(T.full((samples, self.mixture_width), self.alpha)).sample().to(kind)
        mixed = own[:, 0].reshape(form) * batch
        for k in range(self.mixture_width):
            other = batch
            for _ in range(self.chain_depth if self.chain_depth > 0 else 1 + below(3)):
                name = self.names[below(len(self.names))]
                size = self.strength(name, below(self.severity), 10, img)
                other = self._one(other, name, size, below(2) == 0)
            mixed = mixed + (shares[:, k] * own[:, 1]).reshape(form) * other
        out = mixed.reshape(first.shape)
        if not first.dtype.is_floating_point:
            out = out.clamp(0, most(first)).to(first.dtype)
        if not is_tensor(img):
            return F.to_pil_image(out, img.mode)
        return wrap(out, like=img) if isinstance(img, Image) else out
