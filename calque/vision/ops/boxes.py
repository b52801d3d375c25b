"""Boxes (N, 4) as left, top, right, bottom."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from calque import functional as T
from calque.base.errors import ShapeError
from calque.base.text import shown
from calque.tensor import Tensor

__all__ = [
    "batched_nms", "box_area", "box_convert", "box_iou", "clip_boxes_to_image", "complete_box_iou", "distance_box_iou", "generalized_box_iou",
    "masks_to_boxes", "nms", "remove_small_boxes",
]  # fmt: skip


def _corners(op: str, boxes: Tensor, fmt: str) -> Tensor:
    """Boxes as left, top, right, bottom."""
    if fmt not in ("xyxy", "xywh", "cxcywh"):
        raise ValueError(f"[{op}] Unsupported Bounding Box format: expected fmt as 'xyxy', 'xywh' or 'cxcywh', got {shown(fmt)}; use box_convert")
    return boxes if fmt == "xyxy" else box_convert(boxes, fmt, "xyxy")


def box_area(boxes: Tensor, fmt: str = "xyxy") -> Tensor:
    """(..., 4) -> (...,). fmt: as of `box_convert`.

    >>> import calque
    >>> calque.vision.ops.box_area(calque.tensor([[1.0, 1.0, 3.0, 2.0]]), fmt="xywh")
    tensor([6.])
    """
    corners = _corners("box_area", boxes, fmt)
    return (corners[..., 2] - corners[..., 0]) * (corners[..., 3] - corners[..., 1])


def _shared(boxes1: Tensor, boxes2: Tensor) -> tuple[Tensor, Tensor]:
    """Areas (N, M) of what pairs have in common, and of what they cover together."""
    low = T.maximum(boxes1[:, None, :2], boxes2[:, :2])
    high = T.minimum(boxes1[:, None, 2:], boxes2[:, 2:])
    size = (high - low).clamp(min=0)
    common = size[:, :, 0] * size[:, :, 1]
    return common, box_area(boxes1)[:, None] + box_area(boxes2) - common


def box_iou(boxes1: Tensor, boxes2: Tensor, fmt: str = "xyxy") -> Tensor:
    """(N, 4), (M, 4) -> (N, M): the common area as a part of the whole. fmt: as of `box_convert`.

    >>> import calque
    >>> calque.vision.ops.box_iou(calque.tensor([[0.0, 0.0, 2.0, 2.0]]), calque.tensor([[1.0, 0.0, 3.0, 2.0]]))
    tensor([[0.3333]])
    """
    common, union = _shared(_corners("box_iou", boxes1, fmt), _corners("box_iou", boxes2, fmt))
    return common / union


def generalized_box_iou(boxes1: Tensor, boxes2: Tensor) -> Tensor:
    """(N, 4), (M, 4) -> (N, M). Source: Rezatofighi et al. 2019, "Generalized Intersection over Union"."""
    common, union = _shared(boxes1, boxes2)
    size = T.maximum(boxes1[:, None, 2:], boxes2[:, 2:]) - T.minimum(boxes1[:, None, :2], boxes2[:, :2])
    hull = size.clamp(min=0).prod(-1)
    return common / union - (hull - union) / hull


def _check_boxes(name: str, boxes: Tensor, *others: Tensor) -> None:
    """Four numbers per box, and one score (and one class) for each."""
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise ShapeError(f"[{name}] expected boxes of shape (N, 4), got {tuple(boxes.shape)}")
    for other in others:
        if tuple(other.shape) != tuple(boxes.shape[:1]):
            raise ShapeError(f"[{name}] expected one number per box, shape ({boxes.shape[0]},), got {tuple(other.shape)}")


EPSILON = 1e-7


def distance_box_iou(boxes1: Tensor, boxes2: Tensor, eps: float = EPSILON) -> Tensor:
    """`box_iou` less the squared distance of the centres by that of the corners of the smallest box around both: (N, 4), (M, 4) -> (N, M).

    Source: Zheng et al. 2020, "Distance-IoU Loss".
    """
    a, b = boxes1[:, None].float(), boxes2[None].float()  # type: ignore[attr-defined]
    size = (T.maximum(a[..., 2:], b[..., 2:]) - T.minimum(a[..., :2], b[..., :2])).clamp(min=0)
    apart = ((a[..., :2] + a[..., 2:] - b[..., :2] - b[..., 2:]) / 2).square().sum(-1)
    return box_iou(boxes1, boxes2) - apart / (size.square().sum(-1) + eps)  # type: ignore[no-any-return]


def complete_box_iou(boxes1: Tensor, boxes2: Tensor, eps: float = EPSILON) -> Tensor:
    """`distance_box_iou` less how much the proportions of two boxes differ: (N, 4), (M, 4) -> (N, M). Source: as there."""
    a, b = boxes1[:, None].float(), boxes2[None].float()  # type: ignore[attr-defined]
    angle = T.atan((a[..., 2] - a[..., 0]) / (a[..., 3] - a[..., 1])) - T.atan((b[..., 2] - b[..., 0]) / (b[..., 3] - b[..., 1]))
    v = angle.square() * (4 / math.pi**2)
    alpha = (v / (1 - box_iou(boxes1, boxes2) + v + eps)).detach()
    return distance_box_iou(boxes1, boxes2, eps) - alpha * v  # type: ignore[no-any-return]


def masks_to_boxes(masks: Tensor) -> Tensor:
    """The smallest box around the elements of each mask that are not zero: (N, H, W) -> (N, 4) as (x1, y1, x2, y2); of an empty mask zeros."""
    if not masks.numel():  # type: ignore[attr-defined]
        return T.zeros((0, 4), device=masks.device)  # type: ignore[attr-defined, no-any-return]
    there = masks != 0
    ends = []
    for dim in (1, 2):
        line = there.any(dim)  # type: ignore[attr-defined]
        place = T.arange(line.shape[1], device=line.device)
        ends.append((T.where(line, place, line.shape[1]).amin(1), T.where(line, place, -1).amax(1)))
    (left, right), (top, bottom) = ends
    boxes = T.stack([left, top, right, bottom], 1).float()
    return T.where((right < 0)[:, None], 0.0, boxes)  # type: ignore[no-any-return]


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Indices of boxes, best first, without those that cover a better one by more than a part of `iou_threshold`. Waits for the values."""
    _check_boxes("nms", boxes, scores)
    corners, order = boxes.detach().cpu().double().numpy(), np.argsort(-scores.detach().cpu().double().numpy(), kind="stable")
    areas = (corners[:, 2] - corners[:, 0]) * (corners[:, 3] - corners[:, 1])
    kept = []
    while order.size:
        best, order = order[0], order[1:]
        kept.append(best)
        size = np.maximum(np.minimum(corners[best, 2:], corners[order, 2:]) - np.maximum(corners[best, :2], corners[order, :2]), 0)
        common = size[:, 0] * size[:, 1]
        order = order[~(common > iou_threshold * (areas[best] + areas[order] - common))]
    return T.tensor(np.array(kept, np.int64), device=boxes.device)


def batched_nms(boxes: Tensor, scores: Tensor, idxs: Tensor, iou_threshold: float) -> Tensor:
    """`nms` of each class by itself: boxes of different `idxs` never exclude each other."""
    if not boxes.numel():
        return T.tensor(np.empty(0, np.int64), device=boxes.device)
    _check_boxes("batched_nms", boxes, scores, idxs)
    apart = idxs.to(boxes.dtype) * (boxes.max() + 1)
    return nms(boxes + apart[:, None], scores, iou_threshold)


def clip_boxes_to_image(boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Boxes inside of an image of (height, width)."""
    height, width = size
    x, y = boxes[..., 0::2].clamp(0, width), boxes[..., 1::2].clamp(0, height)
    return T.stack((x, y), -1).reshape(boxes.shape)


def remove_small_boxes(boxes: Tensor, min_size: float) -> Tensor:
    """Indices of boxes with both sides of at least `min_size`."""
    sides = boxes[:, 2:] - boxes[:, :2]
    return T.where((sides >= min_size).all(1))[0]


def box_convert(boxes: Tensor, in_fmt: str, out_fmt: str) -> Tensor:
    """Boxes as "xyxy" (corners), "xywh" (corner and size) or "cxcywh" (centre and size)."""
    known = ("xyxy", "xywh", "cxcywh")
    if in_fmt not in known or out_fmt not in known:
        raise ValueError(f"[box_convert] Unsupported Bounding Box Conversions: expected two of {', '.join(known)}, got {shown((in_fmt, out_fmt))}")
    a, b, c, d = boxes.unbind(-1)
    if in_fmt == "xywh":
        a, b, c, d = a, b, a + c, b + d
    elif in_fmt == "cxcywh":
        a, b, c, d = a - 0.5 * c, b - 0.5 * d, a + 0.5 * c, b + 0.5 * d
    out: Any = (a, b, c, d)
    if out_fmt == "xywh":
        out = (a, b, c - a, d - b)
    elif out_fmt == "cxcywh":
        out = ((a + c) / 2, (b + d) / 2, c - a, d - b)
    return T.stack(out, -1)
