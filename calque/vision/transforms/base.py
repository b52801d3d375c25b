"""What transformations of images have in common: chance from the generator that `manual_seed` sets, settings and their text."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np

from calque import functional as T
from calque.base.errors import ArgumentError, DTypeError, ShapeError
from calque.base.text import shown, type_name
from calque.functional.common import is_tensor
from calque.functional.kinds import is_int
from calque.nn.module import Module
from calque.vision.images import InterpolationMode, is_pil
from calque.vision.transforms.boxes import size_of
from calque.vision.tv_tensors import Image, Mask, TVTensor


def chance() -> float:
    """A number between 0 and 1."""
    return float(T.rand(1).item())


def between(low: float, high: float) -> float:
    return low + (high - low) * chance()


def below(count: int) -> int:
    """A number from 0 to count - 1."""
    return int(T.randint(0, count, (1,)).item())


def pair(size: Any) -> tuple[int, int]:
    if is_int(size):
        return int(size), int(size)
    if not isinstance(size, (tuple, list)) or len(size) not in (1, 2) or not all(is_int(n) for n in size):
        raise ArgumentError(f"[transforms] expected a size as an int or as (height, width), got {shown(size)}")
    return int(size[0]), int(size[-1])


def limits(owner: str, name: str, value: Any) -> tuple[Any, Any]:
    """(lowest, highest) of a number that is drawn."""
    if isinstance(value, (int, float)):
        return value, value
    if not isinstance(value, (tuple, list)) or len(value) != 2 or not all(isinstance(v, (int, float)) for v in value):
        raise ArgumentError(f"[{owner}] expected {name} as a number or as (lowest, highest), got {shown(value)}")
    return value[0], value[1]


def _text(value: Any) -> str:
    """A setting as text: a way of interpolation by its name, numbers in four digits."""
    if isinstance(value, InterpolationMode):
        return str(value.value)
    if isinstance(value, tuple):
        return f"({', '.join(str(round(v, 4) if isinstance(v, (int, float)) else v) for v in value)})"
    return str(value)


class Transform(Module):
    """A transformation with settings, which its text shows.

    It takes an image, or a sample: images, boxes and masks (`tv_tensors`), and whatever else, in tuples, lists and dicts, or as several arguments.
    What chance decides is drawn once, by `make_params`; `transform` changes each image, mask and set of boxes by it, and all else stays. A tensor of
    no class of `tv_tensors` is an image if it is the first one and the sample has no other image, as in torchvision. Derived classes define the two.
    """

    shown: tuple[str, ...] = (
        "size", "mean", "std", "interpolation", "max_size", "scale", "ratio", "value", "inplace", "antialias", "p", "padding", "fill", "padding_mode",
        "num_output_channels", "bits", "threshold", "sharpness_factor", "distortion_scale", "translate", "shear", "brightness", "contrast",
        "saturation", "hue", "kernel_size", "sigma", "degrees", "expand",
    )  # fmt: skip
    pixels_only = False  # of pixels alone: boxes and masks stay
    arrays = False  # NumPy's arrays are images, too

    def extra_repr(self) -> str:
        """The settings."""
        return ", ".join(f"{key}={_text(value)}" for key, value in self.__dict__.items() if key in self.shown)

    def check_inputs(self, flat_inputs: list[Any]) -> None:
        """Raise an error for a sample that cannot be transformed."""

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        """What is drawn for a sample, of whose parts the given ones are transformed."""
        return {}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """A part of the sample, changed."""
        raise NotImplementedError(f"[{type(self).__name__}] expected a method transform(inpt, params), which derived classes define")

    def skipped(self) -> bool:
        """Whether chance leaves this sample as it is."""
        return False

    def forward(self, *inputs: Any) -> Any:
        """An image or a sample, changed."""
        sample = inputs[0] if len(inputs) == 1 else inputs
        parts = flattened(sample)
        self.check_inputs(parts)
        chosen = self._chosen(parts)
        if self.skipped():
            return sample
        params = self.make_params([part for part, one in zip(parts, chosen) if one])
        return rebuilt(sample, iter([self.transform(part, params) if one else part for part, one in zip(parts, chosen)]))

    def _chosen(self, parts: list[Any]) -> list[bool]:
        """Which parts of a sample are transformed."""
        images = [is_pil(part) or isinstance(part, Image) or (self.arrays and isinstance(part, np.ndarray)) for part in parts]
        others = [isinstance(part, TVTensor) and not image for part, image in zip(parts, images)]
        if not any(images):
            first = next((k for k, part in enumerate(parts) if is_tensor(part) and not isinstance(part, TVTensor)), None)
            if first is None and not any(others) and (len(parts) != 1 or is_tensor(parts[0])):
                kinds = ", ".join(dict.fromkeys(type_name(part) for part in parts)) or "nothing"
                raise DTypeError(f"[{type(self).__name__}] expected an image of Pillow's or a Tensor in the sample, got {kinds}; use to_tensor")
            images[first or 0] |= first is not None or not any(others)  # a single thing that is no image: the function that is called says so
        return images if self.pixels_only else [image or other for image, other in zip(images, others)]


class Sometimes(Transform):
    """Something that is done with a probability."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if isinstance(p, bool) or not isinstance(p, (int, float)) or not 0.0 <= p <= 1.0:
            raise ArgumentError(f"[{type(self).__name__}] expected p as a probability between 0 and 1, got {shown(p)}")
        self.p = p

    def skipped(self) -> bool:
        """Whether chance leaves this sample as it is."""
        return chance() >= self.p


def flattened(sample: Any) -> list[Any]:
    """What lies in tuples, lists and dicts, in order."""
    if isinstance(sample, (tuple, list)):
        return [part for item in sample for part in flattened(item)]
    if isinstance(sample, dict):
        return [part for item in sample.values() for part in flattened(item)]
    return [sample]


def rebuilt(sample: Any, parts: Iterator[Any]) -> Any:
    """The tuples, lists and dicts of `sample` with other parts."""
    if isinstance(sample, (tuple, list)):
        items = [rebuilt(item, parts) for item in sample]
        return type(sample)(*items) if hasattr(sample, "_fields") else type(sample)(items)
    if isinstance(sample, dict):
        made = copy.copy(sample)
        made.update({key: rebuilt(item, parts) for key, item in sample.items()})
        return made
    return next(parts)


def common_size(owner: str, parts: list[Any]) -> tuple[int, int]:
    """(height, width) of a sample, all parts of which must agree."""
    found = {size_of(part): type_name(part) for part in reversed(parts)}
    if len(found) > 1:
        listed = ", ".join(f"{kind} {size}" for size, kind in reversed(found.items()))
        raise ShapeError(f"[{owner}] Found multiple HxW dimensions in the sample: expected one height and width, got {listed}; resize before")
    return next(iter(found))


def fill_of(fill: Any, inpt: Any) -> Any:
    """What fills the outside of a part of a sample: dicts say it by class, with `"others"` for the rest; a colour is for images, masks get 0."""
    if isinstance(fill, dict):
        found = fill.get(type(inpt), fill.get("others"))
        return 0 if found is None else found
    return 0 if isinstance(inpt, Mask) and isinstance(fill, (tuple, list)) and len(fill) > 1 else fill
