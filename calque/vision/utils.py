"""Images side by side and in files, and pictures of what was found in them. Names as in `torchvision.utils`.

>>> import calque
>>> calque.vision.utils.make_grid(calque.zeros(4, 3, 8, 8), nrow=2).shape
torch.Size([3, 22, 22])
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

from calque import functional as T
from calque.autograd.modes import no_grad
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, DTypeError
from calque.base.extras import need
from calque.base.text import described, type_name
from calque.functional.blame import publish as _publish
from calque.functional.common import is_tensor
from calque.observe.source import warn_user
from calque.tensor import Tensor
from calque.vision.io import pillow_speaks
from calque.vision.transforms.functional import convert_image_dtype, pil_to_tensor, to_pil_image

__all__ = ["draw_bounding_boxes", "draw_keypoints", "draw_segmentation_masks", "flow_to_image", "make_grid", "save_image"]


def _scaled(x: Tensor, limits: Any) -> Tensor:
    low, high = limits if limits is not None else (float(x.min().item()), float(x.max().item()))
    return (x.clamp(low, high) - low) / max(high - low, 1e-5)


@no_grad()
def make_grid(
    tensor: Any, nrow: int = 8, padding: int = 2, normalize: bool = False, value_range: tuple[float, float] | None = None, scale_each: bool = False,
    pad_value: float = 0.0,
) -> Tensor:  # fmt: skip
    """(N, C, H, W), or a list of images, as one image of `nrow` columns. normalize: from `value_range` (or what is there) to 0 to 1."""
    if not is_tensor(tensor) and not (isinstance(tensor, list) and all(is_tensor(t) for t in tensor)):
        raise DTypeError(f"[make_grid] expected a Tensor or a list of Tensors, got {type_name(tensor)}; stack the images")
    images = T.stack(tensor, 0) if isinstance(tensor, list) else tensor
    while images.ndim < 4:
        images = images.unsqueeze(0)
    if images.shape[1] == 1:
        images = images.expand(-1, 3, -1, -1)
    if normalize:
        images = T.stack([_scaled(x, value_range) for x in images.unbind(0)]) if scale_each else _scaled(images, value_range)
    if images.shape[0] == 1:
        return images.squeeze(0)
    count, channels, height, width = images.shape
    columns = min(nrow, count)
    rows = math.ceil(count / columns)
    grid = T.full((channels, (height + padding) * rows + padding, (width + padding) * columns + padding), pad_value, dtype=images.dtype)
    for k in range(count):
        y, x = (k // columns) * (height + padding) + padding, (k % columns) * (width + padding) + padding
        grid[:, y : y + height, x : x + width] = images[k]
    return grid


@no_grad()
def save_image(tensor: Any, fp: Any, format: str | None = None, **kwargs: Any) -> None:
    """Write `make_grid(tensor, **kwargs)`, values from 0 to 1, to a file."""
    values = (make_grid(tensor, **kwargs) * 255).add(0.5).clamp(0, 255).to(dt.uint8)
    with pillow_speaks("save_image"):
        to_pil_image(values).save(fp, format=format)


# ----------------------------------------------------------------------------------------------------------- what was found


def _check_picture(op: str, image: Any, channels: tuple[int, ...]) -> None:
    """One image (C, H, W) of uint8 or floating values."""
    if not is_tensor(image):
        raise DTypeError(f"[{op}] expected the image as a Tensor, got {type_name(image)}; use pil_to_tensor")
    if image.dtype is not dt.uint8 and not image.is_floating_point():
        raise ArgumentError(f"[{op}] The image dtype must be uint8 or float, got {image.dtype}; use convert_image_dtype")
    if image.ndim != 3:
        raise ArgumentError(f"[{op}] Pass individual images, not batches: expected (C, H, W), got {tuple(image.shape)}; draw them one by one")
    if image.shape[0] not in channels:
        raise ArgumentError(f"[{op}] expected an image of {' or '.join(map(str, channels))} channels, got {image.shape[0]}; draw on an RGB image")


def _colours(op: str, colors: Any, count: int) -> list[tuple[int, ...]]:
    """Red, green and blue of each object: those given, one for all, or by its number."""
    if colors is None:
        return [tuple(k * step % 255 for step in (2**25 - 1, 2**15 - 1, 2**21 - 1)) for k in range(count)]
    if isinstance(colors, list) and len(colors) < count:
        raise ArgumentError(
            f"[{op}] Number of colors must be equal or larger than the number of objects, but got {len(colors)} < {count}; give one color for all"
        )
    if not isinstance(colors, (list, tuple, str)) or (isinstance(colors, tuple) and len(colors) != 3):
        raise ArgumentError(f"[{op}] expected colors as a name, an RGB triplet or a list of these, got {described(colors)}; use 'red' or (255, 0, 0)")
    listed = colors if isinstance(colors, list) else [colors] * count
    names = need("PIL.ImageColor", "pillow", "vision", op)
    return [names.getrgb(one) if isinstance(one, str) else tuple(one) for one in listed]


def _canvas(op: str, image: Tensor, mode: str | None = None) -> tuple[Any, Any]:
    """An image of Pillow's, and what draws on it."""
    shown = to_pil_image(convert_image_dtype(image.expand(3, -1, -1), dt.uint8))
    return shown, need("PIL.ImageDraw", "pillow", "vision", op).Draw(shown, mode)


@no_grad()
def draw_bounding_boxes(
    image: Tensor, boxes: Tensor, labels: Sequence[str | None] | None = None, colors: Any = None, fill: bool = False, width: int = 1,
    font: str | None = None, font_size: int | None = None, label_colors: Any = None, label_background_colors: Any = None, fill_labels: bool = False,
) -> Tensor:  # fmt: skip
    """A copy of an image (1 or 3, H, W) with boxes (N, 4), left, top, right, bottom in pixels, drawn on it: (3, H, W) of the same type.

    labels: a text for each box, or None. colors: a name, an RGB triplet, or a list of these (default by the number of the box). fill: the boxes, too,
    so that the image shines through. width: of the lines, in pixels. font, font_size: a file with a TrueType font, and its size (default 10).
    label_colors, label_background_colors, fill_labels: of the texts and of rectangles behind them. Raises TypeError for what is not a Tensor,
    ValueError for other shapes, element types and corners, or too few labels or colors.

    >>> import calque
    >>> drawn = calque.vision.utils.draw_bounding_boxes(calque.zeros(3, 8, 8), calque.tensor([[1, 1, 6, 6]]), colors="red")
    >>> drawn[:, 1, 3]
    tensor([1., 0., 0.])
    """
    op = "draw_bounding_boxes"
    _check_picture(op, image, (1, 3))
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise ArgumentError(f"[{op}] expected boxes of shape (N, 4), got {tuple(boxes.shape)}; boxes that are turned cannot be drawn")
    count = boxes.shape[0]
    if not count:
        warn_user("boxes doesn't contain any box. No box was drawn")
        return image
    if (boxes[:, :2] > boxes[:, 2:]).any():
        raise ArgumentError(f"[{op}] Boxes need to be in (xmin, ymin, xmax, ymax) format, got a corner before the first; use ops.box_convert")
    if labels is not None and len(labels) != count:
        raise ArgumentError(f"[{op}] Number of boxes ({count}) and labels ({len(labels)}) mismatch. Please specify labels for each box.")
    lines = _colours(op, colors, count)
    inks = _colours(op, label_colors or "black", count) if label_colors or fill_labels else lines
    grounds = _colours(op, label_background_colors, count) if fill_labels and label_background_colors else lines
    fonts = need("PIL.ImageFont", "pillow", "vision", op)
    if font is None and font_size is not None:
        warn_user("Argument 'font_size' will be ignored since 'font' is not set.")
    letters = fonts.load_default() if font is None else fonts.truetype(font=font, size=font_size or 10)
    shown, draw = _canvas(op, image, "RGBA" if fill else None)
    for k, box in enumerate(boxes.to(dt.int64).tolist()):
        draw.rectangle(box, width=width, outline=lines[k], fill=(*lines[k], 100) if fill else None)
        label = None if labels is None else labels[k]
        if label is None:
            continue
        place = box[0] + width + 1, box[1] + width + 1
        if fill_labels:
            left, top, right, bottom = draw.textbbox(place, label, font=letters)
            draw.rectangle((left - 1, top - 1, right + 1, bottom + 1), fill=grounds[k])
        draw.text(place, label, fill=inks[k], font=letters)
    return convert_image_dtype(pil_to_tensor(shown), image.dtype)  # type: ignore[no-any-return]


@no_grad()
def draw_segmentation_masks(image: Tensor, masks: Tensor, alpha: float = 0.8, colors: Any = None) -> Tensor:
    """A copy of an image (3, H, W) with masks (N, H, W), or one (H, W), of bool laid over it; where several meet it becomes dark.

    alpha: from 0, the image, to 1, the colors. colors: as of `draw_bounding_boxes`. Raises TypeError for what is not a Tensor, ValueError for other
    shapes and element types.

    >>> import calque
    >>> image, mask = calque.zeros(3, 2, 2, dtype=calque.uint8), calque.tensor([[True, False], [False, False]])
    >>> calque.vision.utils.draw_segmentation_masks(image, mask, alpha=0.5, colors="red")[0]
    tensor([[127,   0],
            [  0,   0]], dtype=torch.uint8)
    """
    op = "draw_segmentation_masks"
    _check_picture(op, image, (3,))
    masks = masks[None] if masks.ndim == 2 else masks
    if masks.ndim != 3 or masks.dtype is not dt.bool_ or tuple(masks.shape[1:]) != tuple(image.shape[1:]):
        raise ArgumentError(
            f"[{op}] expected masks of bool and the same height and width as the image, (N, {image.shape[1]}, {image.shape[2]}), "
            f"got {masks.dtype} {tuple(masks.shape)}; use masks > 0.5"
        )
    if not masks.shape[0]:
        warn_user("masks doesn't contain any mask. No mask was drawn")
        return image
    most = 255 if image.is_floating_point() else 1
    over = image
    for mask, colour in zip(masks.unbind(0), _colours(op, colors, masks.shape[0]), strict=False):
        over = T.where(mask, T.tensor([part / most for part in colour], device=image.device).to(image.dtype)[:, None, None], over)
    over = T.where(masks.sum(0) > 1, T.zeros_like(over), over)
    return (image * (1 - alpha) + over * alpha).to(image.dtype)


@no_grad()
def draw_keypoints(
    image: Tensor, keypoints: Tensor, connectivity: Sequence[tuple[int, int]] | None = None, colors: Any = None, radius: int = 2, width: int = 3,
    visibility: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """A copy of an image (3, H, W) with points (N, P, 2), x and y in pixels, of N objects drawn on it.

    connectivity: pairs of points that lines join. colors: of the points, a name or an RGB triplet (default white, as lines are). radius: of the
    points. width: of the lines. visibility: (N, P), which points are drawn, with their lines. Raises TypeError for what is not a Tensor, ValueError
    for other shapes and element types.

    >>> import calque
    >>> image, points = calque.zeros(3, 8, 8, dtype=calque.uint8), calque.tensor([[[3, 4]]])
    >>> calque.vision.utils.draw_keypoints(image, points, colors="blue", radius=1)[2, 4]
    tensor([  0,   0, 255, 255, 255,   0,   0,   0], dtype=torch.uint8)
    """
    op = "draw_keypoints"
    _check_picture(op, image, (3,))
    if keypoints.ndim != 3:
        raise ArgumentError(f"[{op}] keypoints must be of shape (num_instances, K, 2), got {tuple(keypoints.shape)}; add a dim for one object")
    seen = T.ones(tuple(keypoints.shape[:2]), dtype=dt.bool_) if visibility is None else visibility
    seen = seen.squeeze(-1) if seen.ndim == 3 else seen
    if tuple(seen.shape) != tuple(keypoints.shape[:2]):
        raise ArgumentError(f"[{op}] expected visibility {tuple(keypoints.shape[:2])}, as the keypoints, got {tuple(seen.shape)}; give one per point")
    shown, draw = _canvas(op, image)
    for points, there in zip(keypoints.to(dt.int64).tolist(), seen.to(dt.bool_).tolist(), strict=True):
        for (x, y, *_), one in zip(points, there, strict=True):
            if one:
                draw.ellipse([x - radius, y - radius, x + radius, y + radius], fill=colors, outline=None, width=0)
        for first, last in connectivity or ():
            if there[first] and there[last]:
                draw.line((tuple(points[first][:2]), tuple(points[last][:2])), width=width)
    return convert_image_dtype(pil_to_tensor(shown), image.dtype)  # type: ignore[no-any-return]


def _wheel() -> list[tuple[int, int, int]]:
    """Colours around a circle, red, yellow, green, cyan, blue, magenta, with more of them where eyes tell more apart."""
    found = []
    sides = ((15, 1, 1), (6, 0, -1), (4, 2, 1), (11, 1, -1), (13, 0, 1), (6, 2, -1))  # colours, the part that changes, and how
    now = [255, 0, 0]
    for count, part, way in sides:
        for k in range(count):
            step = 255 * k // count
            now[part] = step if way > 0 else 255 - step
            found.append((now[0], now[1], now[2]))
        now[part] = 255 if way > 0 else 0
    return found


@no_grad()
def flow_to_image(flow: Tensor) -> Tensor:
    """Motion (2, H, W) or (N, 2, H, W), how far pixels go across and down, as colours of uint8, (3, H, W) or (N, 3, H, W): the hue is the direction,
    and white no motion; the fastest pixel of all has a full colour. Raises ValueError for other shapes and for what is not float32. Source: Baker et
    al. 2011, "A Database and Evaluation Methodology for Optical Flow".

    >>> import calque
    >>> calque.vision.utils.flow_to_image(calque.tensor([[[0.0, 1.0]], [[0.0, 0.0]]]))[:, 0]
    tensor([[255, 255],
            [255,   0],
            [255,   0]], dtype=torch.uint8)
    """
    if flow.dtype is not dt.float32:
        raise ArgumentError(f"[flow_to_image] Flow should be of dtype float32, got {flow.dtype}; use flow.float()")
    if flow.ndim not in (3, 4) or flow.shape[-3] != 2:
        raise ArgumentError(f"[flow_to_image] Input flow should have shape (2, H, W) or (N, 2, H, W), got {tuple(flow.shape)}; permute the dims")
    flow = flow / (flow.square().sum(-3).sqrt().max() + 2.0**-23)
    speed, wheel = flow.square().sum(-3, keepdim=True).sqrt(), T.tensor(_wheel(), dtype=dt.float32, device=flow.device) / 255.0
    across, down = flow.unbind(-3)
    at = (T.atan2(-down, -across) / math.pi + 1) / 2 * (len(wheel) - 1)
    first = T.floor(at)
    part, index = (at - first)[..., None], first.to(dt.int64)
    colour = (1 - part) * wheel[index] + part * wheel[(index + 1) % len(wheel)]
    return T.floor(255 * (1 - speed * (1 - colour.movedim(-1, -3)))).to(dt.uint8)


_publish(sys.modules[__name__])
