"""What a room does to a picture: the light's colour and strength, and its reflection on what lies before the camera."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from calque import functional as T
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, DTypeError
from calque.base.text import shown
from calque.functional.common import is_tensor
from calque.tensor import Tensor
from calque.vision.images import check_colours, is_tensor_image
from calque.vision.transforms import functional as F
from calque.vision.transforms.base import Sometimes, between, common_size, limits
from calque.vision.tv_tensors import Image, wrap

__all__ = ["RandomLighting", "RandomReflection"]

# CIE XYZ to linear sRGB (IEC 61966-2-1).
_TO_RGB = np.array([[3.2406, -1.5372, -0.4986], [-0.9689, 1.8758, 0.0415], [0.0557, -0.2040, 1.0570]])
_COLDEST, _WARMEST = 25000.0, 1700.0


def _range(owner: str, name: str, value: Any, low: float, high: float) -> tuple[float, float]:
    found = limits(owner, name, value)
    if not low <= found[0] <= found[1] <= high:
        raise ArgumentError(f"[{owner}] expected {name} between {low:g} and {high:g}, the lowest first, got {shown(value)}")
    return float(found[0]), float(found[1])


def _white(kelvin: float) -> Any:
    """Linear red, green and blue of a black body of a temperature, of luminance 1. Source: Kim et al. 2002, US patent 7024034 (cubic splines of the
    Planckian locus)."""
    u = 1000.0 / kelvin
    warm, cold = (-0.2661239, -0.2343589, 0.8776956, 0.179910), (-3.0258469, 2.1070379, 0.2226347, 0.240390)
    x = np.polyval(warm if kelvin <= 4000 else cold, u)
    if kelvin <= 2222:
        y = ((-1.1063814 * x - 1.34811020) * x + 2.18555832) * x - 0.20219683
    elif kelvin <= 4000:
        y = ((-0.9549476 * x - 1.37418593) * x + 2.09137015) * x - 0.16748867
    else:
        y = ((3.0817580 * x - 5.87338670) * x + 3.75112997) * x - 0.37001483
    return np.maximum(_TO_RGB @ np.array([x / y, 1.0, (1 - x - y) / y]), 1e-3)


def _gains(kelvin: float) -> Any:
    """By what red, green and blue are multiplied where light of 6500 K turns into light of a temperature, at the same luminance."""
    gains = _white(kelvin) / _white(6500.0)
    return gains / (gains @ np.array([0.2126, 0.7152, 0.0722]))


def _with_colours(op: str, img: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """An image after a change of its linear red, green and blue (..., 3, H, W), or grey; the kind of image stays."""
    if not is_tensor_image(op, img) and img.mode not in ("1", "L", "P", "RGB", "CMYK", "YCbCr", "HSV", "LAB"):
        raise DTypeError(  # Pillow would cut values off at 255, or drop how transparent they are
            f"[{op}] expected an image of Pillow's with colours of 8 bits and nothing transparent, got mode {img.mode}; use to_tensor, or "
            "convert('RGB')"
        )
    tensor = img if is_tensor_image(op, img) else F.pil_to_tensor(img if img.mode in ("L", "RGB") else img.convert("RGB"))
    check_colours(op, tensor)
    if not tensor.dtype.is_floating_point and tensor.dtype is not dt.uint8:
        raise DTypeError(f"[{op}] expected uint8 or floating values, got {tensor.dtype}; use convert_image_dtype")
    values = tensor if tensor.dtype.is_floating_point else tensor.to(dt.float32) / 255
    linear = T.where(values <= 0.04045, values / 12.92, ((values.clamp(min=0.0) + 0.055) / 1.055) ** 2.4)
    found = change(linear).clamp(0.0, 1.0)
    out = T.where(found <= 0.0031308, found * 12.92, 1.055 * found.clamp(min=0.0031308) ** (1 / 2.4) - 0.055)
    out = out if tensor.dtype.is_floating_point else (out * 255).round().to(tensor.dtype)
    if not is_tensor(img):
        return F.to_pil_image(out)
    return wrap(out, like=img) if isinstance(img, Image) else out


class RandomLighting(Sometimes):
    """The picture as under another lamp: its colour temperature and its brightness are drawn, and light that comes from one side.

    temperature: between these, in kelvin (2700: a bulb, 4000: a neutral tube, 6500: day, 10000: blue sky), each as likely per mired, as the eye sees
    it; grey images have no colour to change. brightness: factors of the light, each as likely per stop. slope: by how much the light grows or
    falls from one side to the other, at most, as a share. p: how often.

    Images of Pillow's, or tensors (..., 1 or 3, H, W) of uint8 or floating values from 0 to 1; all of a batch change alike.

    >>> from calque.vision import transforms
    >>> warm = transforms.RandomLighting(temperature=3000, brightness=1.0, slope=0.0, p=1.0)(calque.full((3, 1, 1), 0.5))
    >>> bool(warm[0] > 0.5 > warm[2])
    True
    """

    pixels_only = True
    shown = ("temperature", "brightness", "slope", "p")

    def __init__(self, temperature: Any = (2700, 10000), brightness: Any = (0.6, 1.5), slope: float = 0.3, p: float = 0.5) -> None:
        super().__init__(p)
        self.temperature = _range("RandomLighting", "temperature", temperature, _WARMEST, _COLDEST)
        self.brightness = _range("RandomLighting", "brightness", brightness, 0.01, 100.0)
        self.slope = _range("RandomLighting", "slope", slope, 0.0, 1.0)[1]

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        """The temperature, and the light `(height, width)`."""
        kelvin = 1.0 / between(1.0 / self.temperature[1], 1.0 / self.temperature[0])
        light = math.exp(between(*map(math.log, self.brightness)))
        angle, slope = between(0.0, 2 * math.pi), between(0.0, self.slope)
        height, width = common_size("RandomLighting", flat_inputs)
        x, y = np.linspace(-0.5, 0.5, width)[None, :], np.linspace(-0.5, 0.5, height)[:, None]
        return {"kelvin": kelvin, "light": light * (1.0 + slope * (math.cos(angle) * x + math.sin(angle) * y))}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """What is done."""

        def lit(colours: Tensor) -> Tensor:
            gains = _gains(params["kelvin"]).reshape(3, 1, 1) if colours.shape[-3] == 3 else 1.0
            return colours * T.tensor(gains * params["light"]).to(colours.dtype)

        return _with_colours("RandomLighting", inpt, lit)


class RandomReflection(Sometimes):
    """Glare, as of a lamp or a window on a polished table: one to `count` bright spots with soft edges, which cover what lies below.

    strength: how much of the light of a white surface a spot adds in its middle, between these: 1 leaves nothing else to see. size: half the length
    of a spot as a share of the longer side, between these; it is up to four times as long as it is wide. p: how often.

    Images of Pillow's, or tensors (..., 1 or 3, H, W) of uint8 or floating values from 0 to 1; all of a batch change alike.

    >>> from calque.vision import transforms
    >>> shiny = transforms.RandomReflection(strength=1.0, p=1.0)(calque.zeros(3, 16, 16))
    >>> bool(shiny.min() >= 0), bool(shiny.max() > 0.5)
    (True, True)
    """

    pixels_only = True
    shown = ("strength", "size", "count", "p")

    def __init__(self, strength: Any = (0.3, 0.9), size: Any = (0.05, 0.35), count: int = 2, p: float = 0.5) -> None:
        super().__init__(p)
        self.strength = _range("RandomReflection", "strength", strength, 0.0, 1.0)
        self.size = _range("RandomReflection", "size", size, 0.001, 10.0)
        self.count = int(_range("RandomReflection", "count", count, 1, 100)[1])

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        """The share `(height, width)` of the surface's own light that is left."""
        height, width = common_size("RandomReflection", flat_inputs)
        x, y = (np.arange(width) + 0.5)[None, :], (np.arange(height) + 0.5)[:, None]
        left = np.ones((height, width))  # the share of the surface's own light
        for _ in range(1 + int(between(0.0, self.count)) if self.count > 1 else 1):
            across, down, angle = between(0.0, width) - x, between(0.0, height) - y, between(0.0, math.pi)
            long = between(*self.size) * max(height, width)
            wide = long * between(0.25, 1.0)
            along, beside = across * math.cos(angle) + down * math.sin(angle), down * math.cos(angle) - across * math.sin(angle)
            far = (along / long) ** 2 + (beside / wide) ** 2
            left *= 1.0 - between(*self.strength) * np.exp(-(far**2))  # flat in the middle, with an edge that is soft
        return {"left": left}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """What is done."""
        left = T.tensor(params["left"])
        return _with_colours("RandomReflection", inpt, lambda colours: 1.0 - (1.0 - colours) * left.to(colours.dtype))
