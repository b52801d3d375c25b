"""Images of Pillow's and tensors of pixels: what they are, and how one becomes the other. `functional` has the public names."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np

from calque import functional as T
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, DTypeError, ShapeError
from calque.base.extras import need
from calque.base.text import described, type_name
from calque.functional.common import is_tensor
from calque.tensor import Tensor


class InterpolationMode(enum.Enum):
    """How values between pixels are found."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


_SPACES = {3: ("YCbCr", "HSV"), 4: ("CMYK", "RGBX")}  # other meanings of three and of four channels than RGB and RGBA
FAR = (1 << 31) - 1  # the most pixels of a side that Pillow counts

PILLOW = {"nearest": 0, "nearest-exact": 0, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5, "lanczos": 1}  # Pillow's numbers of its filters


def pillow(what: str) -> Any:
    """Pillow's module `PIL.Image`."""
    return need("PIL.Image", "pillow", "vision", what)


def is_pil(img: Any) -> bool:
    """Whether an image is one of Pillow's."""
    return any(kind.__module__.startswith("PIL.") for kind in type(img).__mro__)


def is_tensor_image(op: str, img: Any) -> bool:
    """True for a tensor, False for an image of Pillow's; else `DTypeError`."""
    if is_tensor(img):
        return True
    if not is_pil(img):
        raise DTypeError(f"[{op}] expected an image of Pillow's or a Tensor, got {type_name(img)}; use to_tensor")
    return False


def get_dimensions(img: Any) -> list[int]:
    """[channels, height, width]."""
    if is_tensor_image("get_dimensions", img):
        return [1 if img.ndim == 2 else img.shape[-3], img.shape[-2], img.shape[-1]]
    return [len(img.getbands()), img.height, img.width]


def get_image_size(img: Any) -> list[int]:
    """[width, height]."""
    return get_dimensions(img)[:0:-1]


def get_image_num_channels(img: Any) -> int:
    """The number of channels."""
    return get_dimensions(img)[0]


def to_tensor(pic: Any) -> Tensor:
    """An image of Pillow's, or an array (H, W) or (H, W, C), as a tensor (C, H, W); values of uint8 become float32 from 0 to 1."""
    if isinstance(pic, np.ndarray):
        if pic.ndim not in (2, 3):
            raise ShapeError(f"[to_tensor] expected an array with 2 or 3 dims, got shape {pic.shape}; give one image")
        values = pic[:, :, None] if pic.ndim == 2 else pic
    elif is_pil(pic):
        values = pixels(pic)
    else:
        raise DTypeError(f"[to_tensor] expected an image of Pillow's or an array, got {type_name(pic)}; tensors stay as they are")
    found = T.tensor(np.ascontiguousarray(values.transpose(2, 0, 1)))
    return found.to(dt.get_default_dtype()) / 255 if values.dtype == np.uint8 else found


def pixels(pic: Any) -> Any:
    """The pixels (H, W, C) of an image of Pillow's."""
    kind = {"I": np.int32, "I;16": np.uint16, "F": np.float32}.get(pic.mode)
    values = np.array(pic, kind, copy=True) if kind is not None else np.array(pic.convert("L") if pic.mode == "1" else pic, copy=True)
    if pic.mode == "1":
        values = 255 * (values > 0).astype(np.uint8)
    if values.dtype == np.uint16:
        values = values.astype(np.int32)
    return values[:, :, None] if values.ndim == 2 else values


def image_like(pic: Any, values: Any) -> Any:
    """Pixels (H, W, C), as `pixels` gives them, as an image of Pillow's of the mode of another one, and with its palette."""
    made = pillow("pad")
    if pic.mode == "1":
        return made.fromarray(255 * (values[:, :, 0] > 0).astype(np.uint8)).convert("1")
    kind = np.uint16 if pic.mode.startswith("I;16") else values.dtype
    planes = [made.fromarray(np.ascontiguousarray(values[:, :, c]).astype(kind)) for c in range(values.shape[2])]
    found = planes[0] if len(planes) == 1 else made.merge(pic.mode, planes)
    if pic.mode == "P":
        found.putpalette(pic.getpalette())
    return found


def pil_to_tensor(pic: Any) -> Tensor:
    """An image of Pillow's as a tensor (C, H, W) of the same numbers."""
    if not is_pil(pic):
        raise DTypeError(f"[pil_to_tensor] expected an image of Pillow's, got {type_name(pic)}; arrays are for to_tensor")
    values = np.array(pic) if pic.mode in ("1", "I;16") else pixels(pic)  # bool, and uint16, whose range is that of the image
    return T.tensor(np.ascontiguousarray((values[:, :, None] if values.ndim == 2 else values).transpose(2, 0, 1)))


def to_pil_image(pic: Any, mode: str | None = None) -> Any:
    """A tensor (C, H, W) or (H, W), or an array (H, W, C), as an image of Pillow's. Floating values from 0 to 1 become 0 to 255."""
    if not is_tensor(pic) and not isinstance(pic, np.ndarray):
        raise DTypeError(f"[to_pil_image] expected a Tensor or an array, got {described(pic)}; an image of Pillow's is one already")
    if pic.ndim not in (2, 3):
        raise ShapeError(f"[to_pil_image] expected 2 or 3 dims, got shape {tuple(pic.shape)}; give one image")
    if is_tensor(pic):
        values = (pic if pic.ndim == 3 else pic.unsqueeze(0)).detach().cpu()
        floating = values.dtype.is_floating_point and mode != "F"
        array = (values * 255).to(dt.uint8).numpy() if floating else values.numpy()
        array = array.transpose(1, 2, 0)
    else:
        array = pic if pic.ndim == 3 else pic[:, :, None]
    if array.shape[2] not in (1, 2, 3, 4):
        raise ShapeError(f"[to_pil_image] expected 1 to 4 channels, got {array.shape[2]}; choose some")
    image = pillow("to_pil_image")
    if array.dtype == np.uint8 and mode in _SPACES.get(array.shape[2], ()):  # what the channels are, not what they should become
        return image.frombytes(mode, array.shape[1::-1], array.tobytes())
    array = array[:, :, 0] if array.shape[2] == 1 else array
    made = image.fromarray(np.ascontiguousarray(array))
    return made if mode is None or mode == made.mode else made.convert(mode)


def mode_of(number: int) -> InterpolationMode:
    """What a number of Pillow's means."""
    if number not in range(6):
        raise ArgumentError(f"[InterpolationMode] expected an InterpolationMode, or one of Pillow's numbers 0 to 5, got {described(number)}")
    return {0: InterpolationMode.NEAREST, 1: InterpolationMode.LANCZOS, 2: InterpolationMode.BILINEAR, 3: InterpolationMode.BICUBIC,
            4: InterpolationMode.BOX, 5: InterpolationMode.HAMMING}[number]  # fmt: skip


def span(dtype: dt.DType) -> tuple[int, int]:
    """The least and the most value of an integer type, or of bool."""
    return (0, 1) if dtype is dt.bool_ else (dt.IInfo(dtype).min, dt.IInfo(dtype).max)


def in_type(values: Tensor, dtype: dt.DType) -> Tensor:
    """Floating values as an integer type, rounded, within its range; as bool, what is not 0, as in torchvision."""
    return values.to(dtype) if dtype is dt.bool_ else values.clamp(*span(dtype)).round().to(dtype)


def most(img: Tensor) -> float:
    return 1.0 if img.dtype.is_floating_point else float(span(img.dtype)[1])


def blend(first: Tensor, second: Any, ratio: float) -> Tensor:
    """ratio * first + (1 - ratio) * second, within the range of the type."""
    ratio = float(ratio)  # an integer times uint8 is uint8, and wraps
    return (ratio * first + (1.0 - ratio) * second).clamp(0, most(first)).to(first.dtype)


def enhanced(name: str, img: Any, factor: float) -> Any:
    return getattr(need("PIL.ImageEnhance", "pillow", "vision", name), name)(img).enhance(factor)


def check_factor(op: str, factor: float) -> None:
    if factor < 0:
        raise ValueError(f"[{op}] expected a factor of at least 0 (factor ({factor}) is not non-negative), got {factor}; 1 changes nothing")


def check_colours(op: str, img: Tensor) -> None:
    if img.ndim < 3 or img.shape[-3] not in (1, 3):
        raise ShapeError(f"[{op}] expected (..., 1 or 3, H, W), got shape {tuple(img.shape)}; its channels are grey, or red, green and blue")
