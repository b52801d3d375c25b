"""What detectors share: boxes as differences from others, which box is whose, samples of both, checks of what a user passes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from calque import functional as T
from calque import nn
from calque.autograd.modes import no_grad
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError
from calque.base.text import described
from calque.functional.common import is_tensor
from calque.nn import functional as F
from calque.tensor import Tensor
from calque.vision.ops.losses import complete_box_iou_loss, distance_box_iou_loss, generalized_box_iou_loss
from calque.vision.ops.misc import FrozenBatchNorm2d

__all__ = [
    "BalancedPositiveNegativeSampler", "BoxCoder", "BoxLinearCoder", "Matcher", "SSDMatcher", "TargetError", "overwrite_eps", "retrieve_out_channels",
]  # fmt: skip


class TargetError(ArgumentError, AssertionError):
    """Targets that a detector cannot learn from. Also an AssertionError, which torchvision raises."""


class BalancedPositiveNegativeSampler:
    """Draws from each image up to `batch_size_per_image` elements, of which up to `positive_fraction` are positive."""

    def __init__(self, batch_size_per_image: int, positive_fraction: float) -> None:
        self.batch_size_per_image, self.positive_fraction = batch_size_per_image, positive_fraction

    def __call__(self, matched_idxs: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Of each image values (N,): at least 1 is positive, 0 negative, less is left out -> masks (N,) of uint8, of the drawn positive ones and of
        the drawn negative ones."""
        chosen: tuple[list[Tensor], list[Tensor]] = ([], [])
        for values in matched_idxs:
            positive, negative = T.where(values >= 1)[0], T.where(values == 0)[0]
            count = min(len(positive), int(self.batch_size_per_image * self.positive_fraction))
            for masks, places, wanted in zip(chosen, (positive, negative), (count, self.batch_size_per_image - count), strict=True):
                mask = T.zeros(tuple(values.shape), dtype=dt.uint8, device=values.device)
                drawn = T.randperm(len(places))[: min(len(places), wanted)].to(values.device)
                mask[places[drawn]] = 1
                masks.append(mask)
        return chosen


class BoxCoder:
    """Boxes as differences from other boxes: of centres, as parts of the sides, and of the logarithms of the sides, times `weights`. Source: Girshick
    et al. 2014, "Rich Feature Hierarchies", appendix C. bbox_xform_clip: the largest logarithm that is decoded."""

    def __init__(self, weights: tuple[float, float, float, float], bbox_xform_clip: float = math.log(1000.0 / 16)) -> None:
        self.weights, self.bbox_xform_clip = weights, bbox_xform_clip

    def encode(self, reference_boxes: Sequence[Tensor], proposals: Sequence[Tensor]) -> list[Tensor]:
        """Of each image boxes (L, 4) and as many that they differ from -> differences (L, 4)."""
        found = self.encode_single(T.cat(list(reference_boxes)), T.cat(list(proposals)))
        return list(found.split([len(boxes) for boxes in reference_boxes]))

    def encode_single(self, reference_boxes: Tensor, proposals: Tensor) -> Tensor:
        """`encode` of one image."""
        size, from_size = reference_boxes[:, 2:] - reference_boxes[:, :2], proposals[:, 2:] - proposals[:, :2]
        centre, from_centre = reference_boxes[:, :2] + 0.5 * size, proposals[:, :2] + 0.5 * from_size
        weights = T.tensor(list(self.weights), dtype=reference_boxes.dtype, device=reference_boxes.device)
        return T.cat([(centre - from_centre) / from_size, T.log(size / from_size)], 1) * weights

    def decode(self, rel_codes: Tensor, boxes: Sequence[Tensor]) -> Tensor:
        """Differences (K, 4 C) from the boxes of all images, K together -> boxes (K, C, 4)."""
        together = T.cat(list(boxes))
        count = len(together)
        if count:
            rel_codes = rel_codes.reshape(count, -1)
        return self.decode_single(rel_codes, together).reshape(count, rel_codes.shape[1] // 4, 4)

    def decode_single(self, rel_codes: Tensor, boxes: Tensor) -> Tensor:
        """Differences (K, 4 C) from boxes (K, 4) -> boxes (K, 4 C)."""
        boxes = boxes.to(rel_codes.dtype)
        size = (boxes[:, 2:] - boxes[:, :2])[:, None]
        centre = boxes[:, None, :2] + 0.5 * size
        weights = T.tensor(list(self.weights), dtype=rel_codes.dtype, device=rel_codes.device)
        codes = rel_codes.reshape(len(boxes), rel_codes.shape[1] // 4, 4) / weights
        middle = codes[..., :2] * size + centre
        half = 0.5 * (T.exp(codes[..., 2:].clamp(max=self.bbox_xform_clip)) * size)
        return T.cat([middle - half, middle + half], -1).flatten(1)


class BoxLinearCoder:
    """Boxes as distances of their sides from the centre of another box, by the sides of that (`normalize_by_size`). Source: Tian et al. 2019,
    "FCOS"."""

    def __init__(self, normalize_by_size: bool = True) -> None:
        self.normalize_by_size = normalize_by_size

    def encode(self, reference_boxes: Tensor, proposals: Tensor) -> Tensor:
        """Boxes (..., 4) that are measured from, boxes (..., 4) -> distances (..., 4) to left, top, right, bottom."""
        centre = (reference_boxes[..., :2] + reference_boxes[..., 2:]) * 0.5
        found = T.cat([centre - proposals[..., :2], proposals[..., 2:] - centre], -1)
        return found / self._size(reference_boxes) if self.normalize_by_size else found

    def decode(self, rel_codes: Tensor, boxes: Tensor) -> Tensor:
        """Distances (..., 4) from the centres of boxes (..., 4) -> boxes (..., 4)."""
        boxes = boxes.to(rel_codes.dtype)
        centre = (boxes[..., :2] + boxes[..., 2:]) * 0.5
        away = rel_codes * self._size(boxes) if self.normalize_by_size else rel_codes
        return T.cat([centre - away[..., :2], centre + away[..., 2:]], -1)

    @staticmethod
    def _size(boxes: Tensor) -> Tensor:
        size = boxes[..., 2:] - boxes[..., :2]
        return T.cat([size, size], -1)


class Matcher:
    """Which target each box belongs to: the best one if its quality is at least `high_threshold`; -1 (none) below `low_threshold`, -2 (undecided)
    between both. allow_low_quality_matches: the boxes that are the best for a target belong to their own best one in any case."""

    BELOW_LOW_THRESHOLD = -1
    BETWEEN_THRESHOLDS = -2

    def __init__(self, high_threshold: float, low_threshold: float, allow_low_quality_matches: bool = False) -> None:
        if low_threshold > high_threshold:
            raise TargetError(f"[Matcher] low_threshold should be <= high_threshold, got {low_threshold} > {high_threshold}; exchange them")
        self.high_threshold, self.low_threshold = high_threshold, low_threshold
        self.allow_low_quality_matches = allow_low_quality_matches

    @no_grad()
    def __call__(self, match_quality_matrix: Tensor) -> Tensor:
        """(M targets, N boxes) -> (N,) of int64. Raises ValueError where there are no targets or no boxes."""
        if not match_quality_matrix.numel():
            what = "proposal" if match_quality_matrix.shape[0] else "ground-truth"
            raise ArgumentError(f"[Matcher] No {what} boxes available for one of the images during training; leave that image out")
        quality, best = match_quality_matrix.max(0)
        found = T.where(quality < self.high_threshold, self.BETWEEN_THRESHOLDS, best)
        found = T.where(quality < self.low_threshold, self.BELOW_LOW_THRESHOLD, found)
        if self.allow_low_quality_matches:
            ties = (match_quality_matrix == match_quality_matrix.amax(1, keepdim=True)).any(0)
            found = T.where(ties, best, found)
        return found  # type: ignore[no-any-return]


class SSDMatcher(Matcher):
    """A `Matcher` with one threshold that gives each target its best box, whatever its quality; where two want the same, the later one has it."""

    def __init__(self, threshold: float) -> None:
        super().__init__(threshold, threshold, allow_low_quality_matches=False)

    def __call__(self, match_quality_matrix: Tensor) -> Tensor:
        """As of `Matcher`."""
        found = super().__call__(match_quality_matrix)
        targets, boxes = match_quality_matrix.shape
        device = match_quality_matrix.device
        wanted = match_quality_matrix.detach().argmax(1)[:, None] == T.arange(boxes, device=device)
        owner = T.where(wanted, T.arange(targets, device=device)[:, None], -1).amax(0)
        return T.where(owner >= 0, owner, found)  # type: ignore[no-any-return]


def overwrite_eps(model: nn.Module, eps: float) -> None:
    """Another `eps` for each `FrozenBatchNorm2d` of a model: some trained weights were made without one."""
    for module in model.modules():
        if isinstance(module, FrozenBatchNorm2d):
            module.eps = eps


def retrieve_out_channels(model: nn.Module, size: tuple[int, int]) -> list[int]:
    """Channels of each of the features that a model computes of an image of (width, height); it is tried."""
    training = model.training
    model.eval()
    with no_grad():
        features = model(T.zeros((1, 3, size[1], size[0]), device=next(iter(model.parameters())).device))
    model.train(training)
    return [one.shape[1] for one in (features.values() if isinstance(features, Mapping) else (features,))]


def box_loss(kind: str, coder: BoxCoder, anchors: Tensor, targets: Tensor, codes: Tensor, settings: Mapping[str, float] | None = None) -> Tensor:
    """The sum of a loss of boxes (K, 4), given as differences `codes` from anchors. kind: of the differences "l1" or "smooth_l1", of the boxes
    "ciou", "diou" or "giou". settings: `beta` of the second, `eps` of the last three."""
    given = settings or {}
    if kind == "l1":
        return F.l1_loss(codes, coder.encode_single(targets, anchors), reduction="sum")
    if kind == "smooth_l1":
        return F.smooth_l1_loss(codes, coder.encode_single(targets, anchors), reduction="sum", beta=given.get("beta", 1.0))
    losses = {"ciou": complete_box_iou_loss, "diou": distance_box_iou_loss, "giou": generalized_box_iou_loss}
    if kind not in losses:
        raise TargetError(f"[box_loss] Unsupported loss: expected l1, smooth_l1, ciou, diou or giou, got {described(kind)}; choose one")
    return losses[kind](coder.decode_single(codes, anchors), targets, reduction="sum", eps=given.get("eps", 1e-7))


def check_targets(op: str, targets: Any) -> None:
    """Raise where a detector that trains has no boxes (N, 4) for an image."""
    if targets is None:
        raise TargetError(f"[{op}] targets should not be none when in training mode; pass model(images, targets), or call model.eval() to detect")
    for k, target in enumerate(targets):
        boxes = target["boxes"]
        if not is_tensor(boxes):
            raise TargetError(f"[{op}] Expected target boxes to be of type Tensor, got {described(boxes)} for target at index {k}; make it one")
        if boxes.ndim != 2 or boxes.shape[1] != 4:
            raise TargetError(
                f"[{op}] Expected target boxes to be a tensor of shape [N, 4], got {tuple(boxes.shape)} for target at index {k}; "
                "an image without objects has zeros(0, 4)"
            )


def check_areas(op: str, targets: Any) -> None:
    """Raise where a box has no area: its logarithm would be learnt."""
    for k, target in enumerate(targets or ()):
        boxes = target["boxes"]
        flat = (boxes[:, 2:] <= boxes[:, :2]).any(1)
        if flat.any():
            worst = boxes[int(T.where(flat)[0][0].item())].tolist()
            raise TargetError(
                f"[{op}] All bounding boxes should have positive height and width. Found invalid box {worst} for target at index {k}; "
                "remove it (v2.SanitizeBoundingBoxes), and give corners as left, top, right, bottom"
            )


def features_of(detector: Any, images: Sequence[Tensor], targets: Any) -> tuple[Any, Any, list[tuple[int, int]], Mapping[str, Tensor]]:
    """What a detector's `forward` begins with: (the images as one `ImageList`, the targets that fit it, the images' own sizes, the features of the
    backbone by name)."""
    name = type(detector).__name__
    if detector.training:
        check_targets(name, targets)
    sizes = image_sizes(images)
    batch, targets = detector.transform(images, targets)
    check_areas(name, targets)
    features = detector.backbone(batch.tensors)
    return batch, targets, sizes, features if isinstance(features, Mapping) else {"0": features}


def image_sizes(images: Any) -> list[tuple[int, int]]:
    """(height, width) of each image."""
    return [(int(image.shape[-2]), int(image.shape[-1])) for image in images]
