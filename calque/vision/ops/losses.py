"""Losses of pairs of boxes that also pull together boxes without a common area."""

from __future__ import annotations

import math
from typing import Any

from calque import functional as T
from calque.base.errors import ArgumentError, ShapeError
from calque.base.text import shown
from calque.tensor import Tensor

__all__ = ["complete_box_iou_loss", "distance_box_iou_loss", "generalized_box_iou_loss"]


def _reduced(op: str, loss: Tensor, reduction: str) -> Tensor:
    if reduction not in ("none", "mean", "sum"):
        raise ArgumentError(f"[{op}] Invalid Value for arg 'reduction': expected 'none', 'mean' or 'sum', got {shown(reduction)}; choose one")
    if reduction == "mean":
        return loss.mean() if loss.numel() else 0.0 * loss.sum()
    return loss.sum() if reduction == "sum" else loss


class _Pairs:
    """What the losses of pairs of boxes (..., 4) have in common."""

    def __init__(self, op: str, boxes1: Any, boxes2: Any, eps: float) -> None:
        if tuple(boxes1.shape) != tuple(boxes2.shape) or boxes1.shape[-1] != 4:
            raise ShapeError(f"[{op}] expected two tensors of boxes (..., 4) of one shape, got {tuple(boxes1.shape)} and {tuple(boxes2.shape)}")
        self.a, self.b = (boxes if boxes.dtype.itemsize >= 4 and boxes.is_floating_point() else boxes.float() for boxes in (boxes1, boxes2))
        low, high = T.maximum(self.a[..., :2], self.b[..., :2]), T.minimum(self.a[..., 2:], self.b[..., 2:])
        apart = (high <= low).any(-1)
        common = T.where(apart, 0.0, (high - low).prod(-1))
        self.sides = self.a[..., 2:] - self.a[..., :2], self.b[..., 2:] - self.b[..., :2]
        self.union = self.sides[0].prod(-1) + self.sides[1].prod(-1) - common
        self.iou = common / (self.union + eps)
        self.around = T.maximum(self.a[..., 2:], self.b[..., 2:]) - T.minimum(self.a[..., :2], self.b[..., :2])

    def distance(self, eps: float) -> Tensor:
        """1 less the common part, plus the squared distance of the centres by that of the corners of the box around both."""
        centres = (self.a[..., :2] + self.a[..., 2:] - self.b[..., :2] - self.b[..., 2:]) / 2
        return 1 - self.iou + centres.square().sum(-1) / (self.around.square().sum(-1) + eps)  # type: ignore[no-any-return]


def generalized_box_iou_loss(boxes1: Tensor, boxes2: Tensor, reduction: str = "none", eps: float = 1e-7) -> Tensor:
    """1 less the generalized part that pairs of boxes have in common: (N, 4), (N, 4) -> (N,), from 0 for equal boxes to 2 for distant ones.

    boxes1, boxes2: left, top, right, bottom, where left < right and top < bottom. reduction: "none", "mean" or "sum". eps: added to divisors. Raises
    ValueError for other reductions. Source: Rezatofighi et al. 2019, "Generalized Intersection over Union".

    >>> import calque
    >>> a, b = calque.tensor([[0.0, 0.0, 2.0, 2.0]]), calque.tensor([[1.0, 0.0, 3.0, 2.0]])
    >>> calque.vision.ops.generalized_box_iou_loss(a, b)
    tensor([0.6667])
    """
    pairs = _Pairs("generalized_box_iou_loss", boxes1, boxes2, eps)
    hull = pairs.around.prod(-1)
    return _reduced("generalized_box_iou_loss", 1 - (pairs.iou - (hull - pairs.union) / (hull + eps)), reduction)


def distance_box_iou_loss(boxes1: Tensor, boxes2: Tensor, reduction: str = "none", eps: float = 1e-7) -> Tensor:
    """1 less the part that pairs of boxes have in common, plus how far their centres are apart: (N, 4), (N, 4) -> (N,).

    Arguments as of `generalized_box_iou_loss`. Source: Zheng et al. 2020, "Distance-IoU Loss".

    >>> import calque
    >>> a, b = calque.tensor([[0.0, 0.0, 2.0, 2.0]]), calque.tensor([[1.0, 0.0, 3.0, 2.0]])
    >>> calque.vision.ops.distance_box_iou_loss(a, b, reduction="sum")
    tensor(0.7436)
    """
    return _reduced("distance_box_iou_loss", _Pairs("distance_box_iou_loss", boxes1, boxes2, eps).distance(eps), reduction)


def complete_box_iou_loss(boxes1: Tensor, boxes2: Tensor, reduction: str = "none", eps: float = 1e-7) -> Tensor:
    """`distance_box_iou_loss` plus how much the proportions of pairs of boxes differ: (N, 4), (N, 4) -> (N,).

    Arguments as of `generalized_box_iou_loss`. Source: Zheng et al. 2020, "Distance-IoU Loss".

    >>> import calque
    >>> a, b = calque.tensor([[0.0, 0.0, 2.0, 2.0]]), calque.tensor([[1.0, 0.0, 3.0, 2.0]])
    >>> calque.vision.ops.complete_box_iou_loss(a, b, reduction="mean")
    tensor(0.7436)
    """
    pairs = _Pairs("complete_box_iou_loss", boxes1, boxes2, 1e-7)
    slopes = [T.atan(side[..., 0] / side[..., 1]) for side in pairs.sides]
    unlike = (slopes[1] - slopes[0]).square() * (4 / math.pi**2)
    weight = (unlike / (1 - pairs.iou + unlike + eps)).detach()
    return _reduced("complete_box_iou_loss", pairs.distance(1e-7) + weight * unlike, reduction)
