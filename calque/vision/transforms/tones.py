"""Images with other tones: fewer, inverted, spread, sharper. Names as in `torchvision.transforms.functional`."""

from __future__ import annotations

from typing import Any

from calque import functional as T
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, DTypeError, ShapeError
from calque.base.extras import need
from calque.base.text import shown
from calque.functional.kinds import is_int
from calque.nn import functional as F
from calque.tensor import Tensor
from calque.vision.images import blend, check_colours, check_factor, enhanced, is_tensor_image, most, span
from calque.vision.transforms.boxes import pictures

__all__ = ["adjust_sharpness", "autocontrast", "equalize", "invert", "posterize", "solarize"]


def _ops(what: str) -> Any:
    """Pillow's module `PIL.ImageOps`."""
    return need("PIL.ImageOps", "pillow", "vision", what)


@pictures
def invert(img: Any) -> Any:
    """White is black."""
    if not is_tensor_image("invert", img):
        return _ops("invert").invert(img)
    if img.dtype is dt.bool_:
        return ~img
    return 1.0 - img if img.dtype.is_floating_point else span(img.dtype)[1] - img


@pictures
def posterize(img: Any, bits: int) -> Any:
    """Values of only so many bits, 0 to 8; of floating values as many levels."""
    if not is_int(bits) or not 0 <= bits <= 8:
        raise ArgumentError(f"[posterize] expected bits from 0 to 8, got {shown(bits)}; 8 changes nothing")
    if not is_tensor_image("posterize", img):
        return img.point([0] * 256 * len(img.getbands())) if bits == 0 else _ops("posterize").posterize(img, int(bits))
    if img.dtype.is_floating_point:
        levels = 1 << bits
        return (img * levels).floor().clamp(0, levels - 1) / levels
    if img.dtype is not dt.uint8:
        raise DTypeError(f"[posterize] Only torch.uint8 image tensors are supported, and floating ones, but found {img.dtype}; use to(uint8)")
    return img & (256 - (1 << (8 - bits))) if bits else T.zeros_like(img)


@pictures
def solarize(img: Any, threshold: float) -> Any:
    """Values from the threshold on inverted."""
    if not is_tensor_image("solarize", img):
        return _ops("solarize").solarize(img, threshold)
    if threshold > most(img):
        raise DTypeError(f"[solarize] Threshold should be less than bound of img: expected at most {most(img):g}, got {shown(threshold)}")
    return T.where(img >= threshold, invert(img), img)


@pictures
def autocontrast(img: Any) -> Any:
    """The values of each channel spread from its lowest at 0 to its highest at the top; a channel of one value stays as it is."""
    if not is_tensor_image("autocontrast", img):
        return _ops("autocontrast").autocontrast(img)
    check_colours("autocontrast", img)
    values = img if img.dtype.is_floating_point else img.to(dt.float32)
    low, high = values.amin((-2, -1), keepdim=True), values.amax((-2, -1), keepdim=True)
    flat = high == low
    scale = most(img) / T.where(flat, T.ones_like(high), high - low)
    out = ((values - low) * scale).clamp(0, most(img))
    return T.where(flat, values, out).to(img.dtype)


@pictures
def equalize(img: Any) -> Any:
    """The values of each channel moved so that all are as frequent; floating ones in 256 steps."""
    if not is_tensor_image("equalize", img):
        return _ops("equalize").equalize(img)
    check_colours("equalize", img)
    if img.dtype.is_floating_point:
        return equalize((img.clamp(0, 1) * 255.999).to(dt.uint8)).to(img.dtype) / 255
    if img.dtype is not dt.uint8:
        raise DTypeError(f"[equalize] Only torch.uint8 image tensors are supported, and floating ones, but found {img.dtype}; use to(uint8)")
    if not img.numel():
        raise ShapeError(f"[equalize] expected an image with pixels, got shape {tuple(img.shape)}")
    values = img.reshape(-1, img.shape[-2] * img.shape[-1]).to(dt.int64)
    ones = T.ones_like(values)
    counts = T.zeros(values.shape[0], 256, dtype=dt.int64).scatter_add(1, values, ones)
    total = values.shape[1]
    last = counts.gather(1, values.amax(1, keepdim=True))  # of the highest value that is there
    step = (total - last) // 255
    before = counts.cumsum(1) - counts
    table = ((before + step // 2) // step.clamp(min=1)).clamp(0, 255)
    out = T.where(step == 0, values, table.gather(1, values))
    return out.to(dt.uint8).reshape(img.shape)


@pictures
def adjust_sharpness(img: Any, sharpness_factor: float) -> Any:
    """0 is smoothed, 1 the image, 2 sharper."""
    check_factor("adjust_sharpness", sharpness_factor)
    if not is_tensor_image("adjust_sharpness", img):
        return enhanced("Sharpness", img, sharpness_factor)
    check_colours("adjust_sharpness", img)
    if img.shape[-1] <= 2 or img.shape[-2] <= 2:
        return img
    kind = img.dtype if img.dtype.is_floating_point else dt.float32
    kernel = T.ones(1, 1, 3, 3, dtype=kind)
    kernel[0, 0, 1, 1] = 5.0  # Pillow's SMOOTH
    inner = F.conv2d(img.to(kind).reshape(-1, 1, *img.shape[-2:]), kernel / 13.0)
    inner = inner.reshape(*img.shape[:-2], *inner.shape[-2:])
    smooth: Tensor = img.clone()
    smooth[..., 1:-1, 1:-1] = (inner if img.dtype.is_floating_point else inner.round()).to(img.dtype)
    return blend(img, smooth, sharpness_factor)
