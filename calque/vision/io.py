"""Images in files, by Pillow. Names as in `torchvision.io`.

>>> import calque
>>> calque.vision.io.decode_image(calque.vision.io.encode_png(calque.ones(3, 2, 2, dtype=calque.uint8))).sum()
tensor(12)
"""

from __future__ import annotations

import enum
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from calque import functional as T
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, CalqueError, DataError, DTypeError
from calque.base.extras import need
from calque.base.text import described, shown, type_name
from calque.functional.blame import publish as _publish
from calque.functional.common import is_tensor
from calque.tensor import Tensor
from calque.vision.transforms.functional import pil_to_tensor, pillow, to_pil_image

__all__ = ["ImageReadMode", "decode_image", "encode_jpeg", "encode_png", "read_file", "read_image", "write_file", "write_jpeg", "write_png"]


class ImageReadMode(enum.Enum):
    """Which channels an image is read with."""

    UNCHANGED = 0
    GRAY = 1
    GRAY_ALPHA = 2
    RGB = 3
    RGB_ALPHA = 4


_MODES = {"GRAY": "L", "GRAY_ALPHA": "LA", "RGB": "RGB", "RGB_ALPHA": "RGBA"}


@contextmanager
def pillow_speaks(name: str) -> Iterator[None]:
    """What Pillow refuses is said in words of ours; errors of the system, such as a missing file, stay what they are."""
    try:
        yield
    except (CalqueError, FileNotFoundError):
        raise
    except (AttributeError, KeyError, OSError, SystemError, TypeError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise DataError(f"[{name}] expected an image and a format that Pillow takes, got an error of Pillow's: {shown(str(error), 200)}") from error


def read_file(path: str) -> Tensor:
    """The bytes of a file, as a tensor of uint8."""
    with open(path, "rb") as file:
        return T.frombuffer(bytearray(file.read()), dtype=dt.uint8)


def decode_image(input: Any, mode: Any = ImageReadMode.UNCHANGED, apply_exif_orientation: bool = False) -> Tensor:
    """An image (C, H, W) of uint8 from the bytes of a file (a tensor of uint8) or from its path. mode: an `ImageReadMode`, or its name."""
    source = io.BytesIO(input.numpy().tobytes()) if is_tensor(input) else input
    with pillow_speaks("decode_image"):
        found = pillow("decode_image").open(source)
        if apply_exif_orientation:
            found = need("PIL.ImageOps", "pillow", "vision", "decode_image").exif_transpose(found)
        found.load()
    name = mode.upper() if isinstance(mode, str) else getattr(mode, "name", "")
    if name not in ImageReadMode.__members__:
        raise ArgumentError(f"[decode_image] expected mode as one of {', '.join(ImageReadMode.__members__)}, got {described(mode)}")
    return pil_to_tensor(found.convert(_MODES[name]) if name in _MODES else found.convert("RGB") if found.mode == "P" else found)


def read_image(path: str, mode: Any = ImageReadMode.UNCHANGED, apply_exif_orientation: bool = False) -> Tensor:
    """`decode_image` of a file."""
    return decode_image(path, mode, apply_exif_orientation)


def _encoded(input: Tensor, format: str, **options: Any) -> Tensor:
    if not is_tensor(input) or input.element_size() != 1:
        raise DTypeError(f"[encode_{format}] expected a Tensor (C, H, W) of uint8, got {type_name(input)}; use convert_image_dtype")
    out = io.BytesIO()
    with pillow_speaks(f"encode_{format}"):
        to_pil_image(input).save(out, format=format, **options)
    return T.frombuffer(bytearray(out.getvalue()), dtype=input.dtype)


def encode_png(input: Tensor, compression_level: int = 6) -> Tensor:
    """The bytes of a PNG file of an image (C, H, W) of uint8."""
    return _encoded(input, "png", compress_level=compression_level)


def encode_jpeg(input: Tensor, quality: int = 75) -> Tensor:
    """The bytes of a JPEG file of an image (C, H, W) of uint8."""
    return _encoded(input, "jpeg", quality=quality)


def write_file(filename: str, data: Tensor) -> None:
    """Write bytes to a file."""
    with open(filename, "wb") as file:
        file.write(data.numpy().tobytes())


def write_png(input: Tensor, filename: str, compression_level: int = 6) -> None:
    """Write a PNG file."""
    write_file(filename, encode_png(input, compression_level))


def write_jpeg(input: Tensor, filename: str, quality: int = 75) -> None:
    """Write a JPEG file."""
    write_file(filename, encode_jpeg(input, quality))


_publish(sys.modules[__name__])
