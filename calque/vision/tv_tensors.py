"""Tensors that say what they are of an image, so that `transforms.v2` moves all parts of a sample alike. Names as in `torchvision.tv_tensors`.

What operations give is an ordinary tensor; `clone`, `detach`, `to`, copies, pickles and worker processes of a DataLoader keep the class. `wrap` gives
a result the class and the facts of another tensor.
"""

from __future__ import annotations

import enum
from typing import Any, TypeVar

from calque import functional as T
from calque.base.errors import ArgumentError, DTypeError, ShapeError
from calque.base.text import described, shown
from calque.functional.common import is_tensor
from calque.functional.kinds import is_int
from calque.functional.subclasses import disabled
from calque.tensor import Tensor, register_type
from calque.vision.images import is_pil, pil_to_tensor

__all__ = ["BoundingBoxFormat", "BoundingBoxes", "Image", "Mask", "TVTensor", "wrap"]

Own = TypeVar("Own", bound="TVTensor")


class TVTensor(Tensor):
    """What the classes here have in common. `facts`: the attributes that a copy takes over."""

    __slots__ = ()
    __torch_function__ = disabled
    facts: tuple[str, ...] = ()

    def __new__(cls, data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool | None = None, **facts: Any) -> Any:
        tensor = T.as_tensor(data, dtype=dtype, device=device)
        tensor = tensor.as_subclass(Tensor) if type(tensor) is not Tensor else tensor
        made = _made(cls, tensor, facts)
        return made if requires_grad is None else made.requires_grad_(requires_grad)

    def __init__(self, *_: Any, **__: Any) -> None:  # `__new__` has done all
        pass

    def check(self) -> None:
        """Raise an error if the values cannot be what the class says."""

    def clone(self: Own, *args: Any, **keywords: Any) -> Own:
        """A copy of the same class."""
        return wrap(super().clone(*args, **keywords), like=self)

    def detach(self: Own) -> Own:
        """The same values without history, of the same class."""
        return wrap(super().detach(), like=self)

    def to(self: Own, *args: Any, **keywords: Any) -> Own:
        """In another dtype or on another device, of the same class."""
        return wrap(super().to(*args, **keywords), like=self)

    def __deepcopy__(self: Own, memo: dict[int, Any]) -> Own:
        if id(self) not in memo:
            memo[id(self)] = self._again(T.clone(T.detach(self)))
        found: Own = memo[id(self)]
        return found

    def __copy__(self: Own) -> Own:
        return self._again(T.detach(self))

    def _again(self: Own, values: Tensor) -> Own:
        made = wrap(values, like=self)
        made.requires_grad_(self.requires_grad)
        return made

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _made, (type(self), self.as_subclass(Tensor), {name: getattr(self, name) for name in self.facts})

    def __repr__(self, **options: Any) -> str:
        text = Tensor.__repr__(self.as_subclass(Tensor), **options)
        facts = "".join(f", {name}={getattr(self, name)}" for name in self.facts)
        return f"{type(self).__name__}{text.removeprefix('tensor')[:-1]}{facts})"

    __str__ = __repr__


def _made(cls: type[Own], tensor: Tensor, facts: dict[str, Any]) -> Own:
    made: Own = tensor.as_subclass(cls)  # type: ignore[attr-defined]
    made.__dict__.update(facts)
    made.check()
    return made


def wrap(wrappee: Tensor, *, like: Own, **kwargs: Any) -> Own:
    """A tensor as the class of `like`, with its facts, or those given (`format=`, `canvas_size=`, `clamping_mode=`)."""
    if not isinstance(like, TVTensor):
        raise DTypeError(f"[wrap] expected like= as one of the classes of tv_tensors, got {described(like)}")
    facts = {name: kwargs.pop(name, getattr(like, name)) for name in like.facts}
    if kwargs:
        raise ArgumentError(f"[wrap] expected facts of {type(like).__name__} ({', '.join(like.facts) or 'none'}), got {shown(list(kwargs))}")
    return _made(type(like), wrappee, facts)


@register_type
class Image(TVTensor):
    """One or several images `(..., C, H, W)`; `(H, W)` becomes `(1, H, W)`.

    >>> from calque.vision import tv_tensors
    >>> tv_tensors.Image(calque.zeros(4, 5)).shape
    torch.Size([1, 4, 5])
    """

    def __new__(cls, data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool | None = None) -> Any:
        values = _of_pillow(data)
        if is_tensor(values) and values.ndim == 2:
            values = values.unsqueeze(0)
        return super().__new__(cls, values, dtype=dtype, device=device, requires_grad=requires_grad)

    def check(self) -> None:
        """Raise an error if there are no rows and columns."""
        if self.ndim < 2:
            raise ShapeError(f"[Image] expected (..., C, H, W), got shape {tuple(self.shape)}; boxes are BoundingBoxes")


@register_type
class Mask(TVTensor):
    """Which class, or whether an object, each pixel belongs to: `(..., H, W)`. It is resized and turned by nearest values, and its tones stay.

    >>> from calque.vision import tv_tensors
    >>> tv_tensors.Mask([[0, 1], [0, 1]]).shape
    torch.Size([2, 2])
    """

    def __new__(cls, data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool | None = None) -> Any:
        return super().__new__(cls, _of_pillow(data), dtype=dtype, device=device, requires_grad=requires_grad)

    def check(self) -> None:
        """Raise an error if there are no rows and columns."""
        if self.ndim < 2:
            raise ShapeError(f"[Mask] expected (..., H, W), got shape {tuple(self.shape)}; one number for each pixel")


def _of_pillow(data: Any) -> Any:
    """The numbers of an image of Pillow's; all else as it is."""
    if is_pil(data):
        return pil_to_tensor(data)
    return data if is_tensor(data) else T.as_tensor(data)


class BoundingBoxFormat(enum.Enum):
    """What the four numbers of a box are: two corners; a corner, width and height; or the middle, width and height."""

    XYXY = "XYXY"
    XYWH = "XYWH"
    CXCYWH = "CXCYWH"


@register_type
class BoundingBoxes(TVTensor):
    """Boxes `(N, 4)` on an image of a size.

    format: `"XYXY"`, `"XYWH"` or `"CXCYWH"`, x to the right and y down, in pixels from the upper left corner. canvas_size: (height, width) of the
    image. clamping_mode: `"soft"` or `"hard"` (the same for boxes that are not rotated): what is moved is cut off at the edges of the image; None:
    it is not.

    >>> from calque.vision import tv_tensors
    >>> from calque.vision.transforms import v2
    >>> boxes = tv_tensors.BoundingBoxes([[1.0, 2, 3, 5]], format="XYXY", canvas_size=(8, 10))
    >>> v2.functional.horizontal_flip(boxes).tolist()
    [[7.0, 2.0, 9.0, 5.0]]
    """

    facts = ("format", "canvas_size", "clamping_mode")
    format: BoundingBoxFormat
    canvas_size: tuple[int, int]
    clamping_mode: str | None

    def __new__(
        cls, data: Any, *, format: BoundingBoxFormat | str, canvas_size: tuple[int, int], clamping_mode: str | None = "soft", dtype: Any = None,
        device: Any = None, requires_grad: bool | None = None,
    ) -> Any:  # fmt: skip
        values = data if is_tensor(data) else T.as_tensor(data, dtype=dtype)
        values = values.reshape(0, 4) if values.numel() == 0 and values.ndim < 2 else values.unsqueeze(0) if values.ndim == 1 else values
        facts = {"format": format, "canvas_size": canvas_size, "clamping_mode": clamping_mode}
        return super().__new__(cls, values, dtype=dtype, device=device, requires_grad=requires_grad, **facts)

    def check(self) -> None:
        """Raise an error if these cannot be boxes."""
        if isinstance(self.format, str) and self.format.upper() in BoundingBoxFormat.__members__:
            self.format = BoundingBoxFormat[self.format.upper()]
        if not isinstance(self.format, BoundingBoxFormat):
            raise ArgumentError(f"[BoundingBoxes] expected format as XYXY, XYWH or CXCYWH, got {shown(self.format)}; rotated boxes are not supported")
        size = self.canvas_size
        if not isinstance(size, (tuple, list)) or len(size) != 2 or not all(is_int(n) and n >= 0 for n in size):
            raise ArgumentError(f"[BoundingBoxes] expected canvas_size as (height, width) of the image, got {shown(size)}")
        self.canvas_size = (int(size[0]), int(size[1]))
        if self.clamping_mode not in ("soft", "hard", None):
            raise ValueError(f"[BoundingBoxes] expected clamping_mode as 'soft', 'hard' or None, got {shown(self.clamping_mode)}")
        if self.ndim < 2 or self.shape[-1] != 4:
            raise ShapeError(f"[BoundingBoxes] expected (N, 4), got shape {tuple(self.shape)}; four numbers for each box")
