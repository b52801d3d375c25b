"""Functions of images: of Pillow's, and of tensors (..., C, H, W) of uint8 (0 to 255) or floating types (0 to 1). Names as in
`torchvision.transforms.functional`.

Source of the formulas: torchvision documentation; ITU-R BT.601 for grey values.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from calque import functional as T
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, DTypeError, ShapeError
from calque.base.shapes import listed
from calque.base.text import shown, type_name
from calque.functional.blame import publish as _publish
from calque.functional.common import is_tensor
from calque.nn import functional as F
from calque.tensor import Tensor
from calque.vision.images import (
    FAR,
    PILLOW,
    InterpolationMode,
    blend,
    check_colours,
    check_factor,
    enhanced,
    get_dimensions,
    get_image_num_channels,
    get_image_size,
    image_like,
    in_type,
    is_tensor_image,
    mode_of,
    pil_to_tensor,
    pillow,
    pixels,
    span,
    to_pil_image,
    to_tensor,
)
from calque.vision.transforms.boxes import geometric, pictures, shifted, size_of
from calque.vision.transforms.geometry import affine, perspective, rotate
from calque.vision.transforms.tones import adjust_sharpness, autocontrast, equalize, invert, posterize, solarize
from calque.vision.tv_tensors import BoundingBoxes

__all__ = [
    "InterpolationMode", "adjust_brightness", "adjust_contrast", "adjust_hue", "adjust_saturation", "adjust_sharpness", "affine", "autocontrast",
    "center_crop", "convert_image_dtype", "crop", "equalize", "erase", "five_crop", "gaussian_blur", "get_dimensions", "get_image_num_channels",
    "get_image_size", "hflip", "invert", "normalize", "pad", "perspective", "pil_to_tensor", "posterize", "resize", "resized_crop",
    "rgb_to_grayscale", "rotate", "solarize", "to_grayscale", "to_pil_image", "to_tensor", "vflip",
]  # fmt: skip


@pictures
def convert_image_dtype(image: Tensor, dtype: dt.DType = dt.float32) -> Tensor:
    """Values of another type: integers span their type, floating values 0 to 1."""
    if image.dtype is dtype:
        return image
    if image.dtype.is_floating_point:
        if dtype.is_floating_point:
            return image.to(dtype)
        if dtype is dt.int64 or (dtype is dt.int32 and image.dtype is dt.float32):
            raise DTypeError(f"[convert_image_dtype] The cast from {image.dtype} to {dtype} cannot be performed safely; choose a smaller type")
        return (image * (span(dtype)[1] + 1.0 - 1e-3)).to(dtype)
    most = span(image.dtype)[1]
    if dtype.is_floating_point:
        return image.to(dtype) / most
    other = span(dtype)[1]
    if most > other:
        return (image // ((most + 1) // (other + 1))).to(dtype)
    return image.to(dtype) * ((other + 1) // (most + 1))


@pictures
def normalize(tensor: Tensor, mean: Sequence[float], std: Sequence[float], inplace: bool = False) -> Tensor:
    """(x - mean) / std, for each channel."""
    if not is_tensor(tensor) or not tensor.dtype.is_floating_point:
        raise DTypeError(f"[normalize] expected a floating Tensor, got {shown(tensor)}; use to_tensor first")
    if tensor.ndim < 3:
        raise ShapeError(f"[normalize] expected (..., C, H, W), got shape {tuple(tensor.shape)}; add dims with unsqueeze(...)")
    shift, scale = (T.as_tensor(v, dtype=tensor.dtype).reshape(-1, 1, 1) for v in (mean, std))
    if bool((scale == 0).any()):
        raise ValueError(f"[normalize] std evaluated to zero, leading to division by zero: got {shown(std)}; give the spread of each channel")
    out = tensor if inplace else tensor.clone()
    return out.sub_(shift).div_(scale)


def _numbers_of(op: str, name: str, value: Any, least: int) -> list[int]:
    """One or two numbers of pixels."""
    found = listed(op, name, value)
    if len(found) not in (1, 2) or min(found) < least or max(found) > FAR:
        raise ArgumentError(f"[{op}] expected {name} as one or two ints from {least} to {FAR}, got {shown(value)}; give (height, width)")
    return found


def _resized(height: int, width: int, size: Any, max_size: int | None) -> tuple[int, int]:
    """(height, width) that a size means: one number is the shorter side."""
    sizes = _numbers_of("resize", "size", size, 1)
    if not height or not width:
        raise ShapeError(f"[resize] expected an image with pixels, got {height} rows of {width}; nothing to enlarge")
    if len(sizes) == 2:
        return sizes[0], sizes[1]
    short, long = (width, height) if width <= height else (height, width)
    new_short, new_long = sizes[0], int(sizes[0] * long / short)
    if max_size is not None and new_long > max_size:
        if max_size <= sizes[0]:
            raise ValueError(f"[resize] expected max_size > size, got {max_size} and {sizes[0]}; leave it out")
        new_short, new_long = int(max_size * new_short / new_long), max_size
    return (new_long, new_short) if width <= height else (new_short, new_long)


@geometric
def resize(
    img: Any, size: int | Sequence[int], interpolation: Any = InterpolationMode.BILINEAR, max_size: int | None = None, antialias: bool | None = True
) -> Any:
    """An image of another size: (height, width), or one number for the shorter side."""
    mode = interpolation if isinstance(interpolation, InterpolationMode) else mode_of(interpolation)
    height, width = size_of(img)
    target = _resized(height, width, size, max_size)
    if target == (height, width):
        return img
    if isinstance(img, BoundingBoxes):
        return shifted(img, (target[1] / width, 0.0), (target[0] / height, 0.0), target, clamp=False)
    if not is_tensor_image("resize", img):
        return img.resize(target[::-1], PILLOW[mode.value])
    if mode.value not in ("nearest", "nearest-exact", "bilinear", "bicubic"):
        raise ArgumentError(f"[resize] expected nearest, bilinear or bicubic for a Tensor, got {mode.value}; use an image of Pillow's")
    smooth = mode.value in ("bilinear", "bicubic")
    whole = img.reshape(-1, *img.shape[-3:]) if img.ndim >= 3 else img[None, None]
    values = whole if whole.dtype.is_floating_point else whole.to(dt.float32)
    if smooth and antialias:
        rows, columns = (_weights(n, m, mode.value == "bicubic", values.dtype) for n, m in zip((height, width), target))
        out = rows @ values @ columns.t()
    else:
        out = F.interpolate(values, size=target, mode=mode.value, **({"align_corners": False} if smooth else {}))
    if not whole.dtype.is_floating_point:
        out = in_type(out, whole.dtype) if smooth else out.to(whole.dtype)
    return out.reshape(*img.shape[:-2], *target)


def _weights(count: int, new: int, cubic: bool, dtype: dt.DType) -> Tensor:
    """(new, count): what each old pixel of a line contributes to each new one. Where pixels become fewer, the window widens with the distance
    between them, so that none is left out. Source: Pillow's and PyTorch's resampling with antialias."""
    scale = count / new
    stretch = max(scale, 1.0)
    centre = scale * (np.arange(new) + 0.5)
    reach = (2.0 if cubic else 1.0) * stretch
    place = np.arange(count)[None, :]
    first, last = np.maximum((centre - reach + 0.5).astype(int), 0), np.minimum((centre + reach + 0.5).astype(int), count)
    x = np.abs((place - centre[:, None] + 0.5) / stretch)
    if cubic:
        near, far = (1.5 * x - 2.5) * x * x + 1, -0.5 * (((x - 5) * x + 8) * x - 4)
        weights = np.where(x < 1, near, np.where(x < 2, far, 0.0))
    else:
        weights = np.maximum(1.0 - x, 0.0)
    weights = np.where((place >= first[:, None]) & (place < last[:, None]), weights, 0.0)
    return T.tensor(weights / weights.sum(1, keepdims=True)).to(dtype)


def _borders(padding: Any) -> tuple[int, int, int, int]:
    """(left, top, right, bottom)."""
    values = listed("pad", "padding", padding)
    if len(values) not in (1, 2, 4):
        raise ValueError(f"[pad] expected 1, 2 or 4 numbers, got {shown(padding)}; give (left, top, right, bottom)")
    left, top, right, bottom = values * 4 if len(values) == 1 else values * 2 if len(values) == 2 else values
    return left, top, right, bottom


@geometric
def pad(img: Any, padding: int | Sequence[int], fill: float | Sequence[float] | None = 0, padding_mode: str = "constant") -> Any:
    """Borders: one number, (sides, top and bottom) or (left, top, right, bottom). padding_mode: constant, edge, reflect or symmetric."""
    left, top, right, bottom = _borders(padding)
    fill = 0 if fill is None else fill
    modes: dict[str, Any] = {"constant": "constant", "edge": "edge", "reflect": "reflect", "symmetric": "symmetric"}
    if padding_mode not in modes:
        raise ValueError(f"[pad] expected padding_mode as one of {', '.join(modes)}, got {shown(padding_mode)}; choose one")
    if isinstance(img, BoundingBoxes):
        if padding_mode != "constant":
            raise ValueError(f"[pad] Padding mode '{padding_mode}' is not supported with bounding boxes, got {padding_mode!r}; use constant")
        height, width = img.canvas_size
        return shifted(img, (1, left), (1, top), (height + top + bottom, width + left + right))
    if not is_tensor_image("pad", img):
        values = pixels(img)
        if min(left, top, right, bottom) < 0:
            raise ArgumentError(f"[pad] expected padding >= 0 for an image of Pillow's, got {shown(padding)}; use crop")
        if isinstance(fill, (tuple, list)) and len(fill) != values.shape[2]:
            raise ArgumentError(f"[pad] expected one number as fill, or {values.shape[2]}, got {shown(fill)}; one for each channel")
        widths = ((top, bottom), (left, right))
        if padding_mode == "constant":
            colours = fill if isinstance(fill, (tuple, list)) else [fill] * values.shape[2]
            planes = [np.pad(values[:, :, c], widths, constant_values=colours[c]) for c in range(values.shape[2])]
            out = np.stack(planes, 2)
        else:
            out = np.pad(values, (*widths, (0, 0)), mode=modes[padding_mode])
        return image_like(img, out)
    if padding_mode == "constant" and isinstance(fill, (tuple, list)):
        if len(set(fill)) != 1:
            raise ArgumentError("[pad] expected one number as fill for a Tensor, got several; use an image of Pillow's")
        fill = fill[0]
    if padding_mode == "constant":
        return F.pad(img, [left, right, top, bottom], value=float(fill) if img.dtype.is_floating_point else fill)  # type: ignore[arg-type]
    if min(left, top, right, bottom) < 0:
        raise ArgumentError(f"[pad] expected padding >= 0 where padding_mode is {padding_mode!r}, got {shown(padding)}; use crop")
    rows, columns = (
        T.tensor(np.pad(np.arange(n), w, mode=modes[padding_mode])) for n, w in ((img.shape[-2], (top, bottom)), (img.shape[-1], (left, right)))
    )
    return img.index_select(-2, rows).index_select(-1, columns)


@geometric
def crop(img: Any, top: int, left: int, height: int, width: int) -> Any:
    """The part from (top, left) on; what lies outside is 0."""
    if isinstance(img, BoundingBoxes):
        return shifted(img, (1, -left), (1, -top), (height, width))
    if not is_tensor_image("crop", img):
        return img.crop((left, top, left + width, top + height))
    _, h, w = get_dimensions(img)
    part = img[..., max(top, 0) : max(top + height, 0), max(left, 0) : max(left + width, 0)]
    if top >= 0 and left >= 0 and top + height <= h and left + width <= w:
        return part
    return pad(part, [max(min(-left, width), 0), max(min(-top, height), 0), width - part.shape[-1] - max(min(-left, width), 0),
                      height - part.shape[-2] - max(min(-top, height), 0)])  # fmt: skip


@geometric
def center_crop(img: Any, output_size: int | float | Sequence[int]) -> Any:
    """The middle; a smaller image gets borders of 0."""
    sizes = _numbers_of("center_crop", "output_size", int(output_size) if isinstance(output_size, float) else output_size, 0)
    height, width = sizes[0], sizes[-1]
    h, w = size_of(img)
    if width > w or height > h:
        sides = [(width - w) // 2 if width > w else 0, (height - h) // 2 if height > h else 0,
                 (width - w + 1) // 2 if width > w else 0, (height - h + 1) // 2 if height > h else 0]  # fmt: skip
        img = pad(img, sides)
        h, w = size_of(img)
        if (h, w) == (height, width):
            return img
    return crop(img, round((h - height) / 2.0), round((w - width) / 2.0), height, width)


@geometric
def resized_crop(
    img: Any, top: int, left: int, height: int, width: int, size: Any, interpolation: Any = InterpolationMode.BILINEAR, antialias: bool | None = True
) -> Any:
    """A part, in another size."""
    return resize(crop(img, top, left, height, width), size, interpolation, antialias=antialias)


@pictures
def five_crop(img: Any, size: int | Sequence[int]) -> tuple[Any, ...]:
    """The four corners and the middle."""
    sizes = _numbers_of("five_crop", "size", size, 0)
    height, width = sizes[0], sizes[-1]
    _, h, w = get_dimensions(img)
    if width > w or height > h:
        raise ValueError(f"[five_crop] expected a size of at most {(h, w)}, got {(height, width)}; choose a smaller one")
    corners = [(0, 0), (0, w - width), (h - height, 0), (h - height, w - width)]
    return (*(crop(img, top, left, height, width) for top, left in corners), center_crop(img, [height, width]))


@geometric
def hflip(img: Any) -> Any:
    """Left and right exchanged."""
    if isinstance(img, BoundingBoxes):
        return shifted(img, (-1, img.canvas_size[1]), (1, 0), img.canvas_size, clamp=False)
    return img.flip(-1) if is_tensor_image("hflip", img) else img.transpose(0)


@geometric
def vflip(img: Any) -> Any:
    """Top and bottom exchanged."""
    if isinstance(img, BoundingBoxes):
        return shifted(img, (1, 0), (-1, img.canvas_size[0]), img.canvas_size, clamp=False)
    return img.flip(-2) if is_tensor_image("vflip", img) else img.transpose(1)


@pictures
def rgb_to_grayscale(img: Any, num_output_channels: int = 1) -> Any:
    """Grey values, in 1 or 3 channels."""
    if num_output_channels not in (1, 3):
        raise ValueError(f"[rgb_to_grayscale] expected 1 or 3 channels, got {num_output_channels}; choose one of them")
    if not is_tensor_image("rgb_to_grayscale", img):
        grey = img.convert("L")
        return grey if num_output_channels == 1 else pillow("rgb_to_grayscale").merge("RGB", (grey, grey, grey))
    check_colours("rgb_to_grayscale", img)
    if img.shape[-3] == 1:
        grey = img
    else:
        r, g, b = img.unbind(-3)
        grey = (0.2989 * r + 0.587 * g + 0.114 * b).to(img.dtype).unsqueeze(-3)
    return grey.expand(*img.shape[:-3], num_output_channels, *img.shape[-2:]).clone() if num_output_channels == 3 else grey


@pictures
def to_grayscale(img: Any, num_output_channels: int = 1) -> Any:
    """Grey values of an image of Pillow's."""
    return rgb_to_grayscale(img, num_output_channels)


@pictures
def adjust_brightness(img: Any, brightness_factor: float) -> Any:
    """0 is black, 1 the image, 2 twice as bright."""
    check_factor("adjust_brightness", brightness_factor)
    return blend(img, 0.0, brightness_factor) if is_tensor_image("adjust_brightness", img) else enhanced("Brightness", img, brightness_factor)


@pictures
def adjust_contrast(img: Any, contrast_factor: float) -> Any:
    """0 is grey, 1 the image, 2 twice the contrast."""
    check_factor("adjust_contrast", contrast_factor)
    if not is_tensor_image("adjust_contrast", img):
        return enhanced("Contrast", img, contrast_factor)
    grey = rgb_to_grayscale(img) if img.shape[-3] == 3 else img
    mean = grey.to(dt.float32 if not img.dtype.is_floating_point else img.dtype).mean((-3, -2, -1), keepdim=True)
    return blend(img, mean, contrast_factor)


@pictures
def adjust_saturation(img: Any, saturation_factor: float) -> Any:
    """0 is black and white, 1 the image, 2 twice the colour."""
    check_factor("adjust_saturation", saturation_factor)
    if not is_tensor_image("adjust_saturation", img):
        return enhanced("Color", img, saturation_factor)
    check_colours("adjust_saturation", img)
    return img if img.shape[-3] == 1 else blend(img, rgb_to_grayscale(img), saturation_factor)


@pictures
def adjust_hue(img: Any, hue_factor: float) -> Any:
    """Colours turned by a part of the circle, from -0.5 to 0.5."""
    if not -0.5 <= hue_factor <= 0.5:
        raise ValueError(f"[adjust_hue] hue_factor ({hue_factor}) is not in [-0.5, 0.5], got {hue_factor}; 0 changes nothing")
    if not is_tensor_image("adjust_hue", img):
        if img.mode in ("L", "1", "I", "F"):
            return img
        h, s, v = img.convert("HSV").split()
        turned = (np.array(h, np.int32) + int(hue_factor * 255)).astype(np.uint8)
        image = pillow("adjust_hue")
        return image.merge("HSV", (image.fromarray(turned), s, v)).convert(img.mode)
    check_colours("adjust_hue", img)
    if img.shape[-3] == 1:
        return img
    kind = img.dtype
    rgb = convert_image_dtype(img, dt.float32) if not kind.is_floating_point else img
    h, s, v = _hsv(rgb)
    out = _rgb((h + hue_factor) % 1.0, s, v)
    return out if kind.is_floating_point else convert_image_dtype(out, kind)


def _hsv(img: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r, g, b = img.unbind(-3)
    high, low = img.amax(-3), img.amin(-3)
    spread = high - low
    grey = spread == 0
    divisor = T.where(grey, T.ones_like(spread), spread)
    rc, gc, bc = (high - r) / divisor, (high - g) / divisor, (high - b) / divisor
    hue = T.where(high == r, bc - gc, T.where(high == g, 2.0 + rc - bc, 4.0 + gc - rc))
    return (hue / 6.0 + 1.0) % 1.0, spread / T.where(grey, T.ones_like(high), high), high


def _rgb(h: Tensor, s: Tensor, v: Tensor) -> Tensor:
    sector = (h * 6.0).floor()
    f = h * 6.0 - sector
    index = sector.to(dt.int64) % 6
    p, q, t = ((v * (1.0 - x)).clamp(0.0, 1.0) for x in (s, s * f, s * (1.0 - f)))
    table = [(v, q, p, p, t, v), (t, v, v, q, p, p), (p, p, t, v, v, q)]
    return T.stack([T.stack(row, 0).gather(0, index.unsqueeze(0)).squeeze(0) for row in table], -3)


@pictures
def gaussian_blur(img: Any, kernel_size: int | Sequence[int], sigma: float | Sequence[float] | None = None) -> Any:
    """Smoothed by a Gaussian window of odd sizes; sigma: 0.3 * ((size - 1) / 2 - 1) + 0.8 if not given."""
    sizes = listed("gaussian_blur", "kernel_size", kernel_size)
    sizes = sizes * 2 if len(sizes) == 1 else sizes
    if len(sizes) != 2 or any(size % 2 == 0 or size < 1 for size in sizes):
        raise ValueError(f"[gaussian_blur] kernel_size should have odd and positive integers, got {shown(kernel_size)}; choose odd ones")
    widths = [size * 0.15 + 0.35 for size in sizes] if sigma is None else [sigma] * 2 if isinstance(sigma, (int, float)) else list(sigma)
    widths = widths * 2 if len(widths) == 1 else widths
    if len(widths) != 2 or not all(width > 0 for width in widths):
        raise ValueError(f"[gaussian_blur] expected sigma as one or two numbers above 0, got {shown(sigma)}; leave it out")
    if not is_tensor_image("gaussian_blur", img):
        values = T.tensor(np.ascontiguousarray(pixels(img).transpose(2, 0, 1)))
        return to_pil_image(gaussian_blur(values, sizes, widths), img.mode)
    kernels = []
    for size, width in zip(sizes, widths):
        x = np.linspace(-(size - 1) * 0.5, (size - 1) * 0.5, size)
        weights = np.exp(-0.5 * (x / width) ** 2)
        kernels.append(weights / weights.sum())
    kind = img.dtype if img.dtype.is_floating_point else dt.float32
    kernel = T.tensor(np.outer(kernels[1], kernels[0])).to(kind)
    values = img.to(kind).reshape(-1, 1, *img.shape[-2:])
    half = [size // 2 for size in sizes]
    padded = F.pad(values, [half[0], half[0], half[1], half[1]], mode="reflect")
    out = F.conv2d(padded, kernel[None, None]).reshape(img.shape)
    return out if img.dtype.is_floating_point else out.round().to(img.dtype)


@pictures
def erase(img: Any, i: int, j: int, h: int, w: int, v: Any, inplace: bool = False) -> Any:
    """The part from (i, j) on replaced by `v`."""
    if not is_tensor(img):
        raise DTypeError(f"[erase] expected a Tensor, got {type_name(img)}; use to_tensor first")
    out = img if inplace else img.clone()
    out[..., i : i + h, j : j + w] = v
    return out


_publish(sys.modules[__name__])
