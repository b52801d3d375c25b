"""What transformations of images have in common: chance from the generator that `manual_seed` sets, settings and their text."""

from __future__ import annotations

from typing import Any

from calque import functional as T
from calque.base.errors import ArgumentError
from calque.base.text import shown
from calque.functional.kinds import is_int
from calque.nn.module import Module
from calque.vision.transforms.images import InterpolationMode


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
    """A transformation with settings, which its text shows."""

    shown: tuple[str, ...] = (
        "size", "mean", "std", "interpolation", "max_size", "scale", "ratio", "value", "inplace", "antialias", "p", "padding", "fill", "padding_mode",
        "num_output_channels", "bits", "threshold", "sharpness_factor", "distortion_scale", "translate", "shear", "brightness", "contrast",
        "saturation", "hue", "kernel_size", "sigma", "degrees", "expand",
    )  # fmt: skip

    def extra_repr(self) -> str:
        """The settings."""
        return ", ".join(f"{key}={_text(value)}" for key, value in self.__dict__.items() if key in self.shown)


class Sometimes(Transform):
    """Something that is done with a probability."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = p

    def change(self, img: Any) -> Any:
        """What is done."""
        raise NotImplementedError

    def forward(self, img: Any) -> Any:
        """The image, changed or not."""
        return self.change(img) if chance() < self.p else img
