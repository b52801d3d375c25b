"""Where boxes are when their image has moved. Semantics of `torchvision.transforms.v2.functional`: a box becomes the smallest upright box around what
it was, cut off at the edges of the image unless its `clamping_mode` is None; whole numbers are cut off towards zero.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from calque import functional as T
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, DTypeError
from calque.base.text import described, shown, type_name
from calque.functional.common import is_tensor
from calque.tensor import Tensor
from calque.vision.images import InterpolationMode, get_dimensions
from calque.vision.tv_tensors import BoundingBoxes, BoundingBoxFormat, Image, Mask, TVTensor, wrap

_NOISE = 1e-6  # more than float64 arithmetic on pixels errs: what is so near to a whole number is that number
Function = Callable[..., Any]


def plain(x: Any) -> Any:
    """The values of a tensor of `tv_tensors` as an ordinary one."""
    return x.as_subclass(Tensor) if isinstance(x, TVTensor) else x


def _same_kind(like: TVTensor, found: Any) -> Any:
    return tuple(wrap(one, like=like) for one in found) if isinstance(found, tuple) else wrap(found, like=like)


def _first(args: tuple[Any, ...], keywords: dict[str, Any], name: str) -> Any:
    return args[0] if args else keywords.get(name)


def pictures(function: Function) -> Function:
    """A function of pixel values: an `Image` gives an `Image`; boxes and masks are refused, whose numbers are no pixels."""
    name = next(iter(inspect.signature(function).parameters))

    @wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        first = _first(args, keywords, name)
        if not isinstance(first, TVTensor):
            return function(*args, **keywords)
        if not isinstance(first, Image):
            raise DTypeError(f"[{function.__name__}] expected an image, got {type_name(first)}; only what moves pixels moves boxes and masks")
        rest = args[1:] if args else ()
        return _same_kind(first, function(plain(first), *rest, **{k: v for k, v in keywords.items() if k != name or args}))

    return call


def geometric(function: Function) -> Function:
    """A function that moves pixels: an `Image` gives an `Image`; a `Mask` is moved by its nearest values; boxes the function moves itself."""
    signature = inspect.signature(function)
    name = next(iter(signature.parameters))

    @wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        first = _first(args, keywords, name)
        if not isinstance(first, TVTensor) or isinstance(first, BoundingBoxes):
            return function(*args, **keywords)
        bound = signature.bind(*args, **keywords)
        bound.arguments[name] = plain(first)
        if isinstance(first, Mask) and "interpolation" in signature.parameters:
            given = bound.arguments.get("interpolation")
            exact = given is InterpolationMode.NEAREST_EXACT and function.__name__.startswith("resize")
            bound.arguments["interpolation"] = given if exact else InterpolationMode.NEAREST
        return _same_kind(first, function(*bound.args, **bound.kwargs))

    return call


def size_of(x: Any) -> tuple[int, int]:
    """(height, width) of an image or a mask, or of the image that boxes lie on."""
    if isinstance(x, BoundingBoxes):
        return x.canvas_size
    _, height, width = get_dimensions(x)
    return height, width


# ---------------------------------------------------------------------------------------------------------------- formats


def _format(op: str, value: Any) -> BoundingBoxFormat:
    if isinstance(value, str) and value.upper() in BoundingBoxFormat.__members__:
        return BoundingBoxFormat[value.upper()]
    if not isinstance(value, BoundingBoxFormat):
        raise ArgumentError(f"[{op}] expected a format as XYXY, XYWH or CXCYWH, got {shown(value)}")
    return value


def corners(values: Tensor, old: BoundingBoxFormat) -> list[Tensor]:
    """[left, top, right, bottom] `(...)` of boxes `(..., 4)`. Source: `torchvision`, also where numbers are whole."""
    a, b, c, d = values.unbind(-1)
    if old is BoundingBoxFormat.XYXY:
        return [a, b, c, d]
    if old is BoundingBoxFormat.XYWH:
        return [a, b, a + c, b + d]
    kind = values.dtype if values.dtype.is_floating_point else dt.float64
    a, b, c, d = (x.to(kind) for x in (a, b, c, d))
    left, top = a - c / 2, b - d / 2
    return [x.to(values.dtype) for x in (left, top, left + c, top + d)]


def from_corners(left: Tensor, top: Tensor, right: Tensor, bottom: Tensor, new: BoundingBoxFormat) -> Tensor:
    """Boxes `(..., 4)` in a format."""
    if new is BoundingBoxFormat.XYXY:
        return T.stack([left, top, right, bottom], -1)
    wide, tall = right - left, bottom - top
    if new is BoundingBoxFormat.XYWH:
        return T.stack([left, top, wide, tall], -1)
    whole = None if wide.dtype.is_floating_point else "floor"
    return T.stack([*(T.div(2 * low + far, 2, rounding_mode=whole) for low, far in ((left, wide), (top, tall))), wide, tall], -1)


def convert_bounding_box_format(inpt: Any, old_format: Any = None, new_format: Any = None, inplace: bool = False) -> Any:
    """Boxes `(..., 4)` in another format. A plain tensor needs `old_format`; BoundingBoxes know theirs."""
    op = "convert_bounding_box_format"
    if not is_tensor(inpt):
        raise DTypeError(f"[{op}] expected boxes as a Tensor, got {described(inpt)}")
    own = inpt.format if isinstance(inpt, BoundingBoxes) else None
    if (own is None) == (old_format is None):
        raise ArgumentError(f"[{op}] expected old_format for a plain tensor, and not for BoundingBoxes, got {shown(old_format)}")
    old, new = own or _format(op, old_format), _format(op, new_format)
    values = plain(inpt)
    left, top, right, bottom = corners(values, old)
    found = values if old is new else from_corners(left, top, right, bottom, new)
    if inplace:
        found = values.copy_(found) if old is not new else values
    return wrap(found, like=inpt, format=new) if isinstance(inpt, BoundingBoxes) else found


def _clamped(values: Tensor, kind: BoundingBoxFormat, canvas: tuple[int, int], mode: str | None) -> Tensor:
    if mode is None:
        return values
    work = values if values.dtype.is_floating_point else values.to(dt.float64)
    left, top, right, bottom = corners(work, kind)
    height, width = canvas
    return from_corners(left.clamp(0, width), top.clamp(0, height), right.clamp(0, width), bottom.clamp(0, height), kind).to(values.dtype)


def clamp_bounding_boxes(inpt: Any, format: Any = None, canvas_size: Any = None, clamping_mode: str | None = "auto") -> Any:
    """Boxes `(..., 4)` cut off at the edges of their image. A plain tensor needs `format` and `canvas_size`; BoundingBoxes know theirs."""
    op = "clamp_bounding_boxes"
    if clamping_mode not in ("soft", "hard", "auto", None):
        raise ValueError(f"[{op}] expected clamping_mode as soft, hard, auto or None, got {shown(clamping_mode)}")
    if isinstance(inpt, BoundingBoxes):
        if format is not None or canvas_size is not None:
            raise ValueError(f"[{op}] For bounding box tv_tensor inputs, `format` and `canvas_size` must not be passed, got {shown(format)}")
        mode = inpt.clamping_mode if clamping_mode == "auto" else clamping_mode
        return wrap(_clamped(plain(inpt), inpt.format, inpt.canvas_size, mode), like=inpt)
    if not is_tensor(inpt) or format is None or canvas_size is None or clamping_mode == "auto":
        raise ValueError(f"[{op}] expected BoundingBoxes, or a tensor with format=, canvas_size= and clamping_mode=, got {described(inpt)}")
    return _clamped(inpt, _format(op, format), (int(canvas_size[0]), int(canvas_size[1])), clamping_mode)


# ------------------------------------------------------------------------------------------------------------------ moves


def _whole(values: Tensor, kind: dt.DType) -> Tensor:
    """In a dtype; to whole numbers by cutting off."""
    return values.to(kind) if kind.is_floating_point else (values + values.sign() * _NOISE).to(kind)


def shifted(
    boxes: BoundingBoxes, x: tuple[float, float], y: tuple[float, float], canvas: tuple[int, int], clamp: bool = True
) -> BoundingBoxes:
    """Where every x of the image becomes `x[0] * x + x[1]`, every y `y[0] * y + y[1]`, on a canvas (height, width)."""
    values = plain(boxes)
    work = values if values.dtype.is_floating_point else values.to(dt.float64)
    sides = []
    for (near, far), (scale, move) in zip((work[..., 0::2].unbind(-1), work[..., 1::2].unbind(-1)), (x, y)):
        if boxes.format is BoundingBoxFormat.XYXY:
            ends = (near, far) if scale >= 0 else (far, near)
            sides.append((ends[0] * scale + move, ends[1] * scale + move))
        else:
            first = near + far if scale < 0 and boxes.format is BoundingBoxFormat.XYWH else near
            sides.append((first * scale + move, far * abs(scale)))
    (a, c), (b, d) = sides
    found = _whole(T.stack([a, b, c, d], -1), values.dtype)
    found = _clamped(found, boxes.format, canvas, boxes.clamping_mode) if clamp else found
    return wrap(found, like=boxes, canvas_size=canvas)


def warped(boxes: BoundingBoxes, matrix: Any, canvas: tuple[int, int]) -> BoundingBoxes:
    """Where every point (x, y, 1) of the image becomes matrix @ (x, y, 1), divided by its last number, on a canvas (height, width)."""
    values = plain(boxes)
    work = values if values.dtype.is_floating_point else values.to(dt.float64)
    left, top, right, bottom = corners(work, boxes.format)
    x, y = T.stack([left, right, right, left], -1), T.stack([top, top, bottom, bottom], -1)
    rows = [[float(v) for v in row] for row in matrix]
    wide, tall, far = (row[0] * x + row[1] * y + row[2] for row in rows)
    if rows[2] != [0.0, 0.0, 1.0]:
        wide, tall = wide / far, tall / far
    found = from_corners(wide.amin(-1), tall.amin(-1), wide.amax(-1), tall.amax(-1), boxes.format)
    return wrap(_whole(_clamped(found, boxes.format, canvas, boxes.clamping_mode), values.dtype), like=boxes, canvas_size=canvas)
