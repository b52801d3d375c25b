"""Transformations of images as objects, to be composed and given to data sets. Names as in `torchvision.transforms`; chance comes from the generator
that `manual_seed` sets.

>>> import calque
>>> from calque.vision import transforms
>>> both = transforms.Compose([transforms.CenterCrop(2), transforms.Normalize([0.5], [0.5])])
>>> both(calque.ones(1, 4, 4)).shape
torch.Size([1, 2, 2])
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

from calque import functional as T
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, DTypeError
from calque.base.text import shown, type_name
from calque.functional.blame import publish as _publish
from calque.functional.common import is_tensor
from calque.vision.transforms import functional as F
from calque.vision.transforms.base import Sometimes, Transform, below, between, common_size, fill_of, limits, pair
from calque.vision.transforms.boxes import size_of
from calque.vision.transforms.functional import InterpolationMode
from calque.vision.transforms.policies import AugMix, AutoAugment, AutoAugmentPolicy, RandAugment, TrivialAugmentWide
from calque.vision.transforms.scenes import RandomLighting, RandomReflection
from calque.vision.transforms.warps import (
    RandomAdjustSharpness,
    RandomAffine,
    RandomAutocontrast,
    RandomEqualize,
    RandomPerspective,
    RandomPosterize,
    RandomSolarize,
)

__all__ = [
    "AugMix", "AutoAugment", "AutoAugmentPolicy", "CenterCrop", "ColorJitter", "Compose", "ConvertImageDtype", "FiveCrop", "GaussianBlur",
    "Grayscale", "InterpolationMode", "Lambda", "Normalize", "PILToTensor", "Pad", "RandAugment", "RandomAdjustSharpness", "RandomAffine",
    "RandomApply", "RandomAutocontrast", "RandomChoice", "RandomCrop", "RandomEqualize", "RandomErasing", "RandomGrayscale", "RandomHorizontalFlip",
    "RandomInvert", "RandomLighting", "RandomOrder", "RandomPerspective", "RandomPosterize", "RandomReflection", "RandomResizedCrop",
    "RandomRotation", "RandomSolarize", "RandomVerticalFlip", "Resize", "ToPILImage", "ToTensor", "TrivialAugmentWide",
]  # fmt: skip; without `functional`: v2, which has one of its own, takes these names


class Compose:
    """One transformation after the other, of an image or of a sample with its boxes and masks."""

    def __init__(self, transforms: Sequence[Callable[..., Any]]) -> None:
        self.transforms = transforms

    def __call__(self, *inputs: Any) -> Any:
        for transform in self.transforms:
            found = transform(*inputs)
            inputs = found if len(inputs) > 1 else (found,)
        return inputs if len(inputs) > 1 else inputs[0]

    def __repr__(self) -> str:
        return "\n".join([f"{type(self).__name__}(", *(f"    {t}" for t in self.transforms), ")"])


class ToTensor(Transform):
    """`functional.to_tensor`."""

    pixels_only = arrays = True

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """(C, H, W), from 0 to 1."""
        return F.to_tensor(inpt)


class PILToTensor(Transform):
    """`functional.pil_to_tensor`."""

    pixels_only = True

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """(C, H, W) of the same numbers."""
        return F.pil_to_tensor(inpt)


class ToPILImage(Transform):
    """`functional.to_pil_image`."""

    pixels_only = arrays = True

    def __init__(self, mode: str | None = None) -> None:
        super().__init__()
        self.mode = mode

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """An image of Pillow's."""
        return F.to_pil_image(inpt, self.mode)


class Lambda:
    """A function of the user's."""

    def __init__(self, lambd: Callable[[Any], Any]) -> None:
        if not callable(lambd):
            raise DTypeError(f"[Lambda] expected a function, got {type_name(lambd)}; pass the function itself")
        self.lambd = lambd

    def __call__(self, img: Any) -> Any:
        return self.lambd(img)


class ConvertImageDtype(Transform):
    """`functional.convert_image_dtype`."""

    pixels_only = True

    def __init__(self, dtype: dt.DType) -> None:
        super().__init__()
        self.dtype = dtype

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """(..., C, H, W) -> the same in the dtype."""
        return F.convert_image_dtype(inpt, self.dtype)


class Normalize(Transform):
    """`functional.normalize`."""

    shown = ("mean", "std")
    pixels_only = True

    def __init__(self, mean: Sequence[float], std: Sequence[float], inplace: bool = False) -> None:
        super().__init__()
        self.mean, self.std, self.inplace = mean, std, inplace

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """(..., C, H, W) -> the same."""
        return F.normalize(inpt, self.mean, self.std, self.inplace)


class Resize(Transform):
    """`functional.resize`."""

    def __init__(
        self, size: Any, interpolation: Any = InterpolationMode.BILINEAR, max_size: int | None = None, antialias: bool | None = True
    ) -> None:
        super().__init__()
        self.size, self.interpolation, self.max_size, self.antialias = size, interpolation, max_size, antialias

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """An image of the size."""
        return F.resize(inpt, self.size, self.interpolation, self.max_size, self.antialias)


class CenterCrop(Transform):
    """`functional.center_crop`."""

    def __init__(self, size: Any) -> None:
        super().__init__()
        self.size = pair(size)

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """An image of the size."""
        return F.center_crop(inpt, self.size)


class FiveCrop(CenterCrop):
    """`functional.five_crop`."""

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """Five images of the size."""
        return F.five_crop(inpt, self.size)


class Pad(Transform):
    """`functional.pad`."""

    def __init__(self, padding: Any, fill: Any = 0, padding_mode: str = "constant") -> None:
        super().__init__()
        self.padding, self.fill, self.padding_mode = padding, fill, padding_mode

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """A larger image."""
        return F.pad(inpt, self.padding, fill_of(self.fill, inpt), self.padding_mode)


class RandomCrop(Transform):
    """A part of a size, anywhere; padding: borders before, pad_if_needed: more where the image is too small."""

    shown = ("size", "padding")

    def __init__(self, size: Any, padding: Any = None, pad_if_needed: bool = False, fill: Any = 0, padding_mode: str = "constant") -> None:
        super().__init__()
        self.size, self.padding, self.pad_if_needed, self.fill, self.padding_mode = pair(size), padding, pad_if_needed, fill, padding_mode

    @staticmethod
    def get_params(img: Any, output_size: tuple[int, int]) -> tuple[int, int, int, int]:
        """(top, left, height, width) by chance."""
        return _place_for(size_of(img), output_size)

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        """(top, left, height, width) of the part, after the borders."""
        height, width = common_size("RandomCrop", flat_inputs)
        if self.padding is not None:
            left, top, right, bottom = F._borders(self.padding)
            height, width = height + top + bottom, width + left + right
        if self.pad_if_needed:
            width += 2 * max(self.size[1] - width, 0)
            height += 2 * max(self.size[0] - height, 0)
        return {"part": _place_for((height, width), self.size)}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """An image of the size."""
        fill = fill_of(self.fill, inpt)
        if self.padding is not None:
            inpt = F.pad(inpt, self.padding, fill, self.padding_mode)
        height, width = size_of(inpt)
        if self.pad_if_needed and width < self.size[1]:
            inpt = F.pad(inpt, [self.size[1] - width, 0], fill, self.padding_mode)
        if self.pad_if_needed and height < self.size[0]:
            inpt = F.pad(inpt, [0, self.size[0] - height], fill, self.padding_mode)
        return F.crop(inpt, *params["part"])


def _place_for(whole: tuple[int, int], part: tuple[int, int]) -> tuple[int, int, int, int]:
    (h, w), (height, width) = whole, part
    if h < height or w < width:
        raise ValueError(f"[RandomCrop] Required crop size {(height, width)} is larger than input image size {(h, w)}; pad it")
    return below(h - height + 1), below(w - width + 1), height, width


class RandomResizedCrop(Transform):
    """A part of a random area (scale) and form (ratio), in one size."""

    def __init__(
        self, size: Any, scale: Any = (0.08, 1.0), ratio: Any = (3 / 4, 4 / 3), interpolation: Any = InterpolationMode.BILINEAR,
        antialias: bool | None = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.size, self.scale, self.ratio, self.interpolation, self.antialias = pair(size), scale, ratio, interpolation, antialias

    @staticmethod
    def get_params(img: Any, scale: Any, ratio: Any) -> tuple[int, int, int, int]:
        """(top, left, height, width) by chance."""
        height, width = size_of(img)
        for _ in range(10):
            area = height * width * between(scale[0], scale[1])
            form = math.exp(between(math.log(ratio[0]), math.log(ratio[1])))
            w, h = round(math.sqrt(area * form)), round(math.sqrt(area / form))
            if 0 < w <= width and 0 < h <= height:
                return below(height - h + 1), below(width - w + 1), h, w
        w, h = width, height
        if width / height < min(ratio):
            h = round(w / min(ratio))
        elif width / height > max(ratio):
            w = round(h * max(ratio))
        return (height - h) // 2, (width - w) // 2, h, w

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        """(top, left, height, width) of the part."""
        common_size("RandomResizedCrop", flat_inputs)
        return {"part": self.get_params(flat_inputs[0], self.scale, self.ratio)}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """An image of the size."""
        return F.resized_crop(inpt, *params["part"], self.size, self.interpolation, self.antialias)


class RandomHorizontalFlip(Sometimes):
    """`functional.hflip` with a probability."""

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """What is done."""
        return F.hflip(inpt)


class RandomVerticalFlip(Sometimes):
    """`functional.vflip` with a probability."""

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """What is done."""
        return F.vflip(inpt)


class RandomInvert(Sometimes):
    """`functional.invert` with a probability."""

    pixels_only = True

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """What is done."""
        return F.invert(inpt)


class RandomGrayscale(Sometimes):
    """Grey values in as many channels with a probability."""

    pixels_only = True

    def __init__(self, p: float = 0.1) -> None:
        super().__init__(p)

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """What is done."""
        return F.rgb_to_grayscale(inpt, F.get_image_num_channels(inpt))


class Grayscale(Transform):
    """`functional.rgb_to_grayscale`."""

    pixels_only = True

    def __init__(self, num_output_channels: int = 1) -> None:
        super().__init__()
        self.num_output_channels = num_output_channels

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """Grey values."""
        return F.rgb_to_grayscale(inpt, self.num_output_channels)


class RandomApply(Sometimes):
    """Several transformations with a probability."""

    def __init__(self, transforms: Any, p: float = 0.5) -> None:
        super().__init__(p)
        self.transforms = transforms

    def forward(self, *inputs: Any) -> Any:
        """All of them, or none."""
        if not inputs:
            raise ArgumentError("[RandomApply] expected an image or a sample, got nothing")
        if self.skipped():
            return inputs if len(inputs) > 1 else inputs[0]
        return Compose(self.transforms)(*inputs)

    def __repr__(self) -> str:
        return "\n".join(["RandomApply(", f"    p={self.p}", *(f"    {t}" for t in self.transforms), ")"])


class RandomChoice:
    """One of several transformations; p: how likely each is."""

    def __init__(self, transforms: Sequence[Any], p: Sequence[float] | None = None) -> None:
        self.transforms, self.p = transforms, p

    def __call__(self, *inputs: Any) -> Any:
        weights = T.tensor([1.0] * len(self.transforms) if self.p is None else list(self.p))
        return self.transforms[int(T.multinomial(weights, 1).item())](*inputs)


class RandomOrder(Compose):
    """Several transformations in a random order."""

    def __call__(self, *inputs: Any) -> Any:
        return Compose([self.transforms[k] for k in T.randperm(len(self.transforms)).tolist()])(*inputs)


class ColorJitter(Transform):
    """Brightness, contrast, saturation and hue changed by chance, in a random order: a number is how far from 1 (hue: from 0), a pair the limits."""

    pixels_only = True

    def __init__(self, brightness: Any = 0, contrast: Any = 0, saturation: Any = 0, hue: Any = 0) -> None:
        super().__init__()
        self.brightness, self.contrast = self._limits("brightness", brightness), self._limits("contrast", contrast)
        self.saturation, self.hue = self._limits("saturation", saturation), self._limits("hue", hue, 0.0, (-0.5, 0.5))

    @staticmethod
    def _limits(name: str, value: Any, centre: float = 1.0, most: tuple[float, float] = (0.0, math.inf)) -> Any:
        if isinstance(value, (int, float)):
            if value < 0:
                raise ValueError(f"[ColorJitter] expected {name} of at least 0, got {value}; 0 changes nothing")
            value = (max(centre - value, most[0]) if centre else -value, centre + value)
        if not isinstance(value, (list, tuple)) or len(value) != 2 or not all(isinstance(v, (int, float)) for v in value):
            raise DTypeError(f"[ColorJitter] expected {name} as a number or two, got {shown(value)}")
        if not most[0] <= value[0] <= value[1] <= most[1]:
            raise ValueError(f"[ColorJitter] {name} values should be between {most}, got {shown(value)}; choose them inside")
        return None if value[0] == value[1] == centre else tuple(value)

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        """The changes, in their order, each with its strength."""
        changes = [(F.adjust_brightness, self.brightness), (F.adjust_contrast, self.contrast),
                   (F.adjust_saturation, self.saturation), (F.adjust_hue, self.hue)]  # fmt: skip
        order = [changes[k] for k in T.randperm(4).tolist()]
        return {"changes": [(change, between(*limits)) for change, limits in order if limits is not None]}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """The image with other colours."""
        for change, strength in params["changes"]:
            inpt = change(inpt, strength)
        return inpt


class RandomRotation(Transform):
    """`functional.rotate` by an angle between limits: a number d means (-d, d)."""

    def __init__(self, degrees: Any, interpolation: Any = InterpolationMode.NEAREST, expand: bool = False, center: Any = None, fill: Any = 0) -> None:
        super().__init__()
        self.degrees = (-degrees, degrees) if isinstance(degrees, (int, float)) else limits("RandomRotation", "degrees", degrees)
        self.interpolation, self.expand, self.center, self.fill = interpolation, expand, center, fill

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        """The angle."""
        if self.expand or self.center is None:
            common_size("RandomRotation", flat_inputs)
        return {"angle": between(*self.degrees)}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """The image, turned."""
        return F.rotate(inpt, params["angle"], self.interpolation, self.expand, self.center, fill_of(self.fill, inpt))


class GaussianBlur(Transform):
    """`functional.gaussian_blur` with a sigma between limits."""

    pixels_only = True

    def __init__(self, kernel_size: Any, sigma: Any = (0.1, 2.0)) -> None:
        super().__init__()
        self.kernel_size, self.sigma = pair(kernel_size), limits("GaussianBlur", "sigma", sigma)

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        """The sigma."""
        return {"sigma": between(*self.sigma)}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """The image, smoothed."""
        return F.gaussian_blur(inpt, self.kernel_size, params["sigma"])


class RandomErasing(Sometimes):
    """A random part of a tensor replaced by a value, one for each channel, or noise ("random"). Boxes and masks stay."""

    pixels_only = True

    def __init__(self, p: float = 0.5, scale: Any = (0.02, 0.33), ratio: Any = (0.3, 3.3), value: Any = 0, inplace: bool = False) -> None:
        super().__init__(p)
        self.scale, self.ratio, self.value, self.inplace = scale, ratio, value, inplace

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        """(top, left, height, width) of the part and what it becomes; nothing if no part fits."""
        img = flat_inputs[0]
        if not is_tensor(img):
            raise DTypeError(f"[RandomErasing] expected a Tensor, got {type_name(img)}; put it behind ToTensor()")
        height, width = common_size("RandomErasing", flat_inputs)
        for _ in range(10):
            area, form = height * width * between(*self.scale), math.exp(between(math.log(self.ratio[0]), math.log(self.ratio[1])))
            h, w = round(math.sqrt(area * form)), round(math.sqrt(area / form))
            if h < height and w < width:
                if self.value == "random":
                    value = T.randn(F.get_image_num_channels(img), h, w).to(img.dtype)
                else:
                    value = T.tensor(self.value if isinstance(self.value, (tuple, list)) else [self.value]).to(img.dtype).reshape(-1, 1, 1)
                return {"part": (below(height - h + 1), below(width - w + 1), h, w), "value": value}
        return {}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """What is done."""
        return F.erase(inpt, *params["part"], params["value"], self.inplace) if params else inpt


_publish(sys.modules[__name__])
