"""Transformations of samples with boxes: their formats, sizes and parts. Names and arguments as in `torchvision.transforms.v2`.

Sources: Liu et al., "SSD: Single Shot MultiBox Detector" (2016), for RandomIoUCrop and RandomZoomOut; Ghiasi et al., "Simple Copy-Paste" (2021), for
ScaleJitter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, ShapeError
from calque.base.text import described, shown
from calque.functional.common import is_tensor
from calque.functional.kinds import is_int
from calque.vision.images import InterpolationMode
from calque.vision.ops.boxes import box_iou
from calque.vision.transforms import functional as F
from calque.vision.transforms.base import Sometimes, Transform, below, between, common_size, fill_of, flattened, rebuilt
from calque.vision.transforms.boxes import clamp_bounding_boxes, convert_bounding_box_format, corners, plain
from calque.vision.tv_tensors import BoundingBoxes, BoundingBoxFormat, Mask, TVTensor, wrap

__all__ = [
    "ClampBoundingBoxes", "ConvertBoundingBoxFormat", "RandomIoUCrop", "RandomResize", "RandomShortestSize", "RandomZoomOut", "SanitizeBoundingBoxes",
    "ScaleJitter", "ToPureTensor",
]  # fmt: skip


class ConvertBoundingBoxFormat(Transform):
    """`functional.convert_bounding_box_format` of the boxes of a sample."""

    def __init__(self, format: BoundingBoxFormat | str) -> None:
        super().__init__()
        self.format = format

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """Boxes in another format."""
        return convert_bounding_box_format(inpt, new_format=self.format) if isinstance(inpt, BoundingBoxes) else inpt


class ClampBoundingBoxes(Transform):
    """`functional.clamp_bounding_boxes` of the boxes of a sample."""

    def __init__(self, clamping_mode: str | None = "auto") -> None:
        super().__init__()
        self.clamping_mode = clamping_mode

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """Boxes cut off at the edges of their image."""
        return clamp_bounding_boxes(inpt, clamping_mode=self.clamping_mode) if isinstance(inpt, BoundingBoxes) else inpt


class ToPureTensor(Transform):
    """Images, masks and boxes as ordinary tensors."""

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """An ordinary tensor."""
        return plain(inpt)


def _boxes_of(owner: str, parts: list[Any]) -> BoundingBoxes:
    found = [part for part in parts if isinstance(part, BoundingBoxes)]
    if len(found) != 1:
        raise ArgumentError(f"[{owner}] No bounding boxes were found in the sample: expected one BoundingBoxes, got {len(found)}; put all in one")
    return found[0]


class SanitizeBoundingBoxes(Transform):
    """Boxes that are smaller than `min_size` or `min_area`, or not inside their image, are taken out; with their labels, and their masks `(N, H, W)`.

    labels_getter: `"default"` looks for a key `"labels"`, or one with "label" in it, in the sample or in its second part; a function of the sample
    gives the labels, or several tensors with an entry for each box; None: there are none.

    >>> from calque.vision import tv_tensors
    >>> from calque.vision.transforms import v2
    >>> boxes = tv_tensors.BoundingBoxes([[0.0, 0, 4, 4], [3, 3, 3, 9]], format="XYXY", canvas_size=(10, 10))
    >>> sample = v2.SanitizeBoundingBoxes()({"boxes": boxes, "labels": calque.tensor([1, 2])})
    >>> sample["boxes"].tolist(), sample["labels"].tolist()
    ([[0.0, 0.0, 4.0, 4.0]], [1])
    """

    def __init__(self, min_size: float = 1.0, min_area: float = 1.0, labels_getter: Any = "default") -> None:
        super().__init__()
        for name, value in (("min_size", min_size), ("min_area", min_area)):
            if not isinstance(value, (int, float)) or value < 1:
                raise ValueError(f"[SanitizeBoundingBoxes] expected {name} to be >= 1, got {shown(value)}")
        if labels_getter not in ("default", None) and not callable(labels_getter):
            raise ValueError(f"[SanitizeBoundingBoxes] expected labels_getter as 'default', a function or None, got {shown(labels_getter)}")
        self.min_size, self.min_area, self.labels_getter = min_size, min_area, labels_getter

    def forward(self, *inputs: Any) -> Any:
        """The sample without those boxes."""
        sample = inputs[0] if len(inputs) == 1 else inputs
        parts = flattened(sample)
        boxes = _boxes_of("SanitizeBoundingBoxes", parts)
        labels = self._labels(sample, len(boxes))
        left, top, right, bottom = corners(plain(boxes), boxes.format)
        height, width = boxes.canvas_size
        wide, tall = right - left, bottom - top
        kept = (wide >= self.min_size) & (tall >= self.min_size) & (wide * tall >= self.min_area)
        kept &= (left >= 0) & (top >= 0) & (right >= 0) & (bottom >= 0)
        kept &= (left <= width) & (right <= width) & (top <= height) & (bottom <= height)

        def left_over(part: Any) -> Any:
            if part is boxes or (isinstance(part, Mask) and part.ndim >= 3 and len(part) == len(boxes)):
                return wrap(plain(part)[kept], like=part)
            return plain(part)[kept] if any(part is one for one in labels) else part

        return rebuilt(sample, iter([left_over(part) for part in parts]))

    def _labels(self, sample: Any, count: int) -> list[Any]:
        if self.labels_getter is None:
            return []
        found = _default_labels(sample) if self.labels_getter == "default" else self.labels_getter(sample)
        labels = [] if found is None else list(found) if isinstance(found, (tuple, list)) else [found]
        for one in labels:
            if not is_tensor(one):
                raise ValueError(f"[SanitizeBoundingBoxes] The labels in the input must be a tensor or None, got {described(one)} instead")
            if one.ndim < 1 or len(one) != count:
                raise ShapeError(f"[SanitizeBoundingBoxes] expected one label for each of {count} boxes, got labels of shape {tuple(one.shape)}")
        return labels


def _default_labels(sample: Any) -> Any:
    second = sample[1] if isinstance(sample, (tuple, list)) and len(sample) > 1 else sample
    if is_tensor(second) and not isinstance(second, TVTensor):
        return second
    names = [key for key in second if isinstance(key, str)] if isinstance(second, dict) else []
    for found in ([key for key in names if key.lower() == "labels"], [key for key in names if "label" in key.lower()]):
        if found:
            return second[found[0]]
    raise ValueError(f"[SanitizeBoundingBoxes] Could not infer where the labels are in the sample, got {described(sample)}; pass labels_getter=")


def _numbers(values: Any, count: int = 0) -> bool:
    """Whether these are several numbers (so many, if that is said)."""
    return isinstance(values, (list, tuple)) and len(values) == (count or len(values)) > 0 and all(isinstance(x, (int, float)) for x in values)


class RandomIoUCrop(Transform):
    """A random part that covers at least one box by a share that is drawn from `sampler_options`, or the whole sample. Boxes whose middle is
    outside become 0: put `SanitizeBoundingBoxes` behind it.
    """

    def __init__(
        self, min_scale: float = 0.3, max_scale: float = 1.0, min_aspect_ratio: float = 0.5, max_aspect_ratio: float = 2.0,
        sampler_options: Sequence[float] | None = None, trials: int = 40,
    ) -> None:  # fmt: skip
        super().__init__()
        if sampler_options is not None and not _numbers(sampler_options):
            raise ArgumentError(f"[RandomIoUCrop] expected sampler_options as numbers, got {shown(sampler_options)}")
        if not _numbers((min_scale, max_scale, min_aspect_ratio, max_aspect_ratio), 4) or not is_int(trials):
            raise ArgumentError(f"[RandomIoUCrop] expected scales and ratios as numbers and trials as an int, got trials={shown(trials)}")
        self.min_scale, self.max_scale, self.min_aspect_ratio, self.max_aspect_ratio = min_scale, max_scale, min_aspect_ratio, max_aspect_ratio
        self.options, self.trials = list(sampler_options or [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0]), trials
        if not any(option >= 1.0 for option in self.options):  # an image without boxes would never be done
            raise ArgumentError(f"[RandomIoUCrop] expected one of sampler_options to be 1.0 (the whole image), got {shown(self.options)}")

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        """The part, and which boxes have their middle in it; nothing: the whole."""
        height, width = common_size("RandomIoUCrop", flat_inputs)
        boxes = _boxes_of("RandomIoUCrop", flat_inputs)
        xyxy = convert_bounding_box_format(plain(boxes), boxes.format, "XYXY").to(boxes.dtype if boxes.dtype.is_floating_point else dt.float32)
        x, y = (xyxy[:, 0] + xyxy[:, 2]) / 2, (xyxy[:, 1] + xyxy[:, 3]) / 2
        while True:
            least = self.options[below(len(self.options))]
            if least >= 1.0:
                return {}
            for _ in range(self.trials):
                w, h = int(width * between(self.min_scale, self.max_scale)), int(height * between(self.min_scale, self.max_scale))
                if not w or not h or not self.min_aspect_ratio <= w / h <= self.max_aspect_ratio:
                    continue
                left, top = int((width - w) * between(0.0, 1.0)), int((height - h) * between(0.0, 1.0))
                inside = (left < x) & (x < left + w) & (top < y) & (y < top + h)
                if not bool(inside.any()):
                    continue
                part = xyxy.new_tensor([[left, top, left + w, top + h]])
                if float(box_iou(xyxy[inside], part).max()) >= least:
                    return {"part": (top, left, h, w), "inside": inside}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """The part."""
        if not params:
            return inpt
        found = F.crop(inpt, *params["part"])
        if not isinstance(found, BoundingBoxes):
            return found
        return wrap(plain(found) * params["inside"].to(found.dtype).unsqueeze(-1), like=found)


class RandomZoomOut(Sometimes):
    """The sample on a larger canvas, of up to `side_range[1]` times its sides."""

    def __init__(self, fill: Any = 0, side_range: Sequence[float] = (1.0, 4.0), p: float = 0.5) -> None:
        super().__init__(p)
        if not _numbers(side_range, 2) or not 1.0 <= side_range[0] <= side_range[1]:
            raise ArgumentError(f"[RandomZoomOut] Invalid side range: expected two numbers of at least 1, the lowest first, got {shown(side_range)}")
        self.fill, self.side_range = fill, side_range

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        """The borders."""
        height, width = common_size("RandomZoomOut", flat_inputs)
        factor = between(*self.side_range)
        wide, tall = int(width * factor) - width, int(height * factor) - height
        left, top = int(wide * between(0.0, 1.0)), int(tall * between(0.0, 1.0))
        return {"padding": [left, top, wide - left, tall - top]}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """The larger one."""
        return F.pad(inpt, params["padding"], fill_of(self.fill, inpt))


class _ToDrawnSize(Transform):
    """What is resized to a size that is drawn."""

    def __init__(self, interpolation: Any, antialias: bool | None) -> None:
        super().__init__()
        self.interpolation, self.antialias = interpolation, antialias

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """In the size."""
        return F.resize(inpt, params["size"], self.interpolation, antialias=self.antialias)


class ScaleJitter(_ToDrawnSize):
    """Resized so that it fits into `target_size`, times a factor drawn from `scale_range`."""

    def __init__(
        self, target_size: tuple[int, int], scale_range: tuple[float, float] = (0.1, 2.0), interpolation: Any = InterpolationMode.BILINEAR,
        antialias: bool | None = True,
    ) -> None:  # fmt: skip
        super().__init__(interpolation, antialias)
        if not _numbers(target_size, 2) or not _numbers(scale_range, 2):
            raise ArgumentError(
                f"[ScaleJitter] expected target_size and scale_range as two numbers each, got {shown(target_size)} and {shown(scale_range)}"
            )
        self.target_size, self.scale_range = target_size, scale_range

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        """The size."""
        height, width = common_size("ScaleJitter", flat_inputs)
        factor = min(self.target_size[1] / height, self.target_size[0] / width) * between(*self.scale_range)
        return {"size": (max(int(height * factor), 1), max(int(width * factor), 1))}


class RandomShortestSize(_ToDrawnSize):
    """Resized so that the shorter side is one of `min_size`, and the longer one at most `max_size`."""

    def __init__(
        self, min_size: int | Sequence[int], max_size: int | None = None, interpolation: Any = InterpolationMode.BILINEAR,
        antialias: bool | None = True,
    ) -> None:  # fmt: skip
        super().__init__(interpolation, antialias)
        sizes: Any = [min_size] if is_int(min_size) else min_size
        if not isinstance(sizes, (list, tuple)) or not sizes or not all(is_int(size) and size > 0 for size in sizes):
            raise ArgumentError(f"[RandomShortestSize] expected min_size as a positive int or several, got {shown(min_size)}")
        if max_size is not None and not (is_int(max_size) and max_size > 0):
            raise ArgumentError(f"[RandomShortestSize] expected max_size as a positive int or None, got {shown(max_size)}")
        self.min_size, self.max_size = list(sizes), max_size

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        """The size."""
        height, width = common_size("RandomShortestSize", flat_inputs)
        factor = self.min_size[below(len(self.min_size))] / min(height, width)
        if self.max_size is not None:
            factor = min(factor, self.max_size / max(height, width))
        return {"size": (int(height * factor), int(width * factor))}


class RandomResize(_ToDrawnSize):
    """Resized so that the shorter side is a number from `min_size` to `max_size` - 1."""

    def __init__(self, min_size: int, max_size: int, interpolation: Any = InterpolationMode.BILINEAR, antialias: bool | None = True) -> None:
        super().__init__(interpolation, antialias)
        if not is_int(min_size) or not is_int(max_size) or not 0 < min_size < max_size:
            raise ArgumentError(f"[RandomResize] expected 0 < min_size < max_size, got {shown(min_size)} and {shown(max_size)}")
        self.min_size, self.max_size = min_size, max_size

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        """The size."""
        return {"size": [self.min_size + below(self.max_size - self.min_size)]}
