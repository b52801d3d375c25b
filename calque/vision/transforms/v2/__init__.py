"""`torchvision.transforms.v2`: the transformations of images under its names, which move boxes and masks (`tv_tensors`) with their image."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calque.base import dtypes as dt
from calque.base.errors import DTypeError
from calque.base.text import described, shown, type_name
from calque.nn.modules.linear import Identity
from calque.vision import transforms as first
from calque.vision.transforms import *  # noqa: F403 - the same objects, where type checkers see them
from calque.vision.transforms.base import Transform
from calque.vision.transforms.mix import CutMix, MixUp
from calque.vision.transforms.v2 import detection, functional
from calque.vision.transforms.v2.detection import *  # noqa: F403
from calque.vision.tv_tensors import TVTensor

__all__ = ["CutMix", "Identity", "MixUp", "ToDtype", "ToImage", "Transform", "functional"]
__all__ += first.__all__
__all__ += detection.__all__
__all__.remove("ConvertImageDtype")  # an older name for ToDtype


class ToImage(Transform):
    """`functional.to_image`."""

    pixels_only = arrays = True

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """An image as a tensor (C, H, W) of the same numbers."""
        return functional.to_image(inpt)


class ToDtype(Transform):
    """`functional.to_dtype`. dtype: of images; or a dict from classes of `tv_tensors` to dtypes (None: as they are), with `"others"` for the rest."""

    def __init__(self, dtype: Any, scale: bool = False) -> None:
        super().__init__()
        if not isinstance(dtype, (dt.DType, dict)):
            raise DTypeError(f"[ToDtype] expected a dtype, or a dict from classes to dtypes, got {described(dtype)}; such as calque.float32")
        self.dtype, self.scale, self.pixels_only = dtype, scale, not isinstance(dtype, dict)

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """In the dtype."""
        kind: Any = self.dtype
        if isinstance(kind, dict):
            kind = kind.get(type(inpt) if isinstance(inpt, TVTensor) else dt.DType, kind.get("others"))
        return inpt if kind is None else functional.to_dtype(inpt, kind, self.scale)


class Lambda(Transform):  # type: ignore[no-redef]
    """A function of the user's, of every part of a sample that is one of `types`."""

    def __init__(self, lambd: Callable[[Any], Any], *types: type) -> None:
        super().__init__()
        if not callable(lambd):
            raise DTypeError(f"[Lambda] expected a function, got {type_name(lambd)}; pass the function itself")
        if wrong := [t for t in types if not isinstance(t, type)]:
            raise DTypeError(f"[Lambda] expected classes behind the function, got {shown(wrong[0])}")
        self.lambd, self.types = lambd, types or (object,)

    def _chosen(self, parts: list[Any]) -> list[bool]:
        return [isinstance(part, self.types) for part in parts]

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """What the function gives."""
        return self.lambd(inpt)
