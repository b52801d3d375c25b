"""What lies in proposed boxes: class, exact box, mask and key points, the second stage of two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from calque import functional as T
from calque import nn
from calque.autograd.modes import no_grad
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, DTypeError
from calque.nn import functional as F
from calque.tensor import Tensor
from calque.vision.models.detection import _utils as det_utils
from calque.vision.ops import boxes as box_ops
from calque.vision.ops.regions import roi_align

__all__ = [
    "RoIHeads", "expand_boxes", "fastrcnn_loss", "heatmaps_to_keypoints", "keypointrcnn_inference", "keypointrcnn_loss", "keypoints_to_heatmap",
    "maskrcnn_inference", "maskrcnn_loss", "paste_masks_in_image", "project_masks_on_boxes",
]  # fmt: skip

Target = Mapping[str, Tensor]


def fastrcnn_loss(
    class_logits: Tensor, box_regression: Tensor, labels: Sequence[Tensor], regression_targets: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Losses of scores (K, C) and of differences (K, 4 C) of boxes with labels (K,); those of background, 0, do not count in the second."""
    classes, wanted = T.cat(list(labels)), T.cat(list(regression_targets))
    positive = T.where(classes > 0)[0]
    found = box_regression.reshape(len(classes), box_regression.shape[1] // 4, 4)[positive, classes[positive]]
    boxes = F.smooth_l1_loss(found, wanted[positive], beta=1 / 9, reduction="sum") / classes.numel()
    return F.cross_entropy(class_logits, classes), boxes


# ------------------------------------------------------------------------------------------------------------------ masks


def maskrcnn_inference(x: Tensor, labels: Sequence[Tensor]) -> list[Tensor]:
    """Scores (K, C, M, M) of masks of all classes, and the labels of each image's boxes -> masks (L, 1, M, M) of each image, from 0 to 1."""
    classes = T.cat(list(labels))
    own = x.sigmoid()[T.arange(len(classes), device=x.device), classes][:, None]
    return list(own.split([len(one) for one in labels]))


def project_masks_on_boxes(gt_masks: Tensor, boxes: Tensor, matched_idxs: Tensor, M: int) -> Tensor:
    """What lies in boxes (L, 4) of masks (T, H, W), of which each box has one: (L, M, M)."""
    rows = T.cat([matched_idxs.to(boxes.dtype)[:, None], boxes], 1)
    masks = gt_masks[:, None].to(boxes.dtype)
    return T.minimum(roi_align(masks, rows, (M, M), 1.0)[:, 0], masks.amax())  # means of ones may be a little more by rounding


def maskrcnn_loss(
    mask_logits: Tensor, proposals: Sequence[Tensor], gt_masks: Sequence[Tensor], gt_labels: Sequence[Tensor], mask_matched_idxs: Sequence[Tensor]
) -> Tensor:  # fmt: skip
    """The loss of scores (K, C, M, M) of masks within boxes; only the mask of the box's class counts."""
    size = mask_logits.shape[-1]
    parts = [
        (labels[owner], project_masks_on_boxes(masks, boxes, owner, size))
        for masks, labels, boxes, owner in zip(gt_masks, gt_labels, proposals, mask_matched_idxs, strict=True) if len(owner)
    ]  # fmt: skip
    if not parts:
        return mask_logits.sum() * 0
    classes, wanted = T.cat([one for one, _ in parts]), T.cat([one for _, one in parts])
    return F.binary_cross_entropy_with_logits(mask_logits[T.arange(len(classes), device=classes.device), classes], wanted)


def expand_boxes(boxes: Tensor, scale: float) -> Tensor:
    """Boxes (N, 4) with sides `scale` times as long around the same centres."""
    centre, half = (boxes[:, 2:] + boxes[:, :2]) * 0.5, (boxes[:, 2:] - boxes[:, :2]) * 0.5 * scale
    return T.cat([centre - half, centre + half], 1)


def _shares(first: Tensor, last: Tensor, elements: int, size: int) -> Tensor:
    """(N, size, elements): what pixels of an image have of the elements of a row that is stretched from a pixel `first` to a pixel `last`."""
    extent = T.clamp(last - first + 1, min=1)[:, None].to(dt.float32)
    away = (T.arange(size, device=first.device) - first[:, None]).to(dt.float32)
    place = T.clamp((away + 0.5) * (elements / extent) - 0.5, 0.0, elements - 1.0)
    near = T.clamp(1.0 - T.abs(place[..., None] - T.arange(elements, device=first.device)), min=0.0)
    return near * ((away >= 0) & (away < extent))[..., None]


def paste_masks_in_image(masks: Tensor, boxes: Tensor, img_shape: tuple[int, int], padding: int = 1) -> Tensor:
    """Masks (N, 1, M, M) within boxes (N, 4) -> (N, 1, height, width), 0 outside of the boxes. padding: elements of 0 around each mask, so that its
    border fades."""
    elements = masks.shape[-1] + 2 * padding
    corners = expand_boxes(boxes, elements / masks.shape[-1]).to(dt.int64)
    if not len(masks):
        return T.zeros((0, 1, *img_shape), dtype=masks.dtype, device=masks.device)
    padded = F.pad(masks, [padding] * 4)[:, 0].to(dt.float32)
    down = _shares(corners[:, 1], corners[:, 3], elements, img_shape[0])
    across = _shares(corners[:, 0], corners[:, 2], elements, img_shape[1])
    return (down @ padded @ across.mT).to(masks.dtype)[:, None]


# ------------------------------------------------------------------------------------------------------------- key points


def keypoints_to_heatmap(keypoints: Tensor, rois: Tensor, heatmap_size: int) -> tuple[Tensor, Tensor]:
    """Points (L, P, 3) as x, y and whether they are seen -> (their places (L, P) in maps of `heatmap_size`² elements of the boxes (L, 4), counted row
    by row; 1 for points that are seen and lie inside, else 0)."""
    places = []
    for k in (0, 1):
        first, last, at = rois[:, k, None], rois[:, k + 2, None], keypoints[..., k]
        place = T.floor((at - first) * (heatmap_size / (last - first))).to(dt.int64)
        places.append(T.where(at == last, heatmap_size - 1, place))
    x, y = places
    inside = (x >= 0) & (y >= 0) & (x < heatmap_size) & (y < heatmap_size)
    valid = (inside & (keypoints[..., 2] > 0)).to(dt.int64)
    return (y * heatmap_size + x) * valid, valid


def _cubic_shares(size: int, elements: int) -> Any:
    """(size, elements): what the elements of a row that is stretched to `size` have of its own, by Keys' cubic with a = -0.75."""
    place = (np.arange(size) + 0.5) * (elements / size) - 0.5
    first = np.floor(place).astype(np.int64)
    found = np.zeros((size, elements))
    for step in range(-1, 3):
        d = np.abs(place - (first + step))
        near, far = (1.25 * d - 2.25) * d * d + 1, -0.75 * (((d - 5) * d + 8) * d - 4)
        np.add.at(found, (np.arange(size), np.clip(first + step, 0, elements - 1)), np.where(d <= 1, near, far))
    return found


@no_grad()
def heatmaps_to_keypoints(maps: Tensor, rois: Tensor) -> tuple[Tensor, Tensor]:
    """Maps (K, P, H, W) of P points in boxes (K, 4) -> (points (K, P, 3) as x, y and 1, their scores (K, P)). A map is stretched to the pixels of its
    box, and its largest element is the point. Waits for the values."""
    values, corners = maps.detach().cpu().numpy(), rois.detach().cpu().numpy()
    points, scores = np.ones((*values.shape[:2], 3), np.float32), np.zeros(values.shape[:2], np.float32)
    for k, (left, top, right, bottom) in enumerate(corners):
        width, height = max(right - left, 1.0), max(bottom - top, 1.0)
        columns, rows = int(np.ceil(width)), int(np.ceil(height))
        drawn = _cubic_shares(rows, values.shape[2]) @ values[k] @ _cubic_shares(columns, values.shape[3]).T
        best = drawn.reshape(len(drawn), -1).argmax(1)
        points[k, :, 0] = (best % columns + 0.5) * (width / columns) + left
        points[k, :, 1] = (best // columns + 0.5) * (height / rows) + top
        scores[k] = drawn.reshape(len(drawn), -1).max(1)
    return T.tensor(points, device=maps.device), T.tensor(scores, device=maps.device)


def keypointrcnn_loss(
    keypoint_logits: Tensor, proposals: Sequence[Tensor], gt_keypoints: Sequence[Tensor], keypoint_matched_idxs: Sequence[Tensor]
) -> Tensor:  # fmt: skip
    """The loss of maps (K, P, M, M) of points within boxes: where in its map a point lies is its class. Raises ValueError for maps that are not
    square."""
    count, points, height, width = keypoint_logits.shape
    if height != width:
        raise ArgumentError(
            f"[keypointrcnn_loss] keypoint_logits height and width should be equal, got H = {height} and W = {width}; make the maps square"
        )
    found = [
        keypoints_to_heatmap(given[owner], boxes, height)
        for boxes, given, owner in zip(proposals, gt_keypoints, keypoint_matched_idxs, strict=True) if len(owner)
    ]  # fmt: skip
    valid = T.where(T.cat([seen.reshape(-1) for _, seen in found]))[0] if found else ()
    if not len(valid):
        return keypoint_logits.sum() * 0
    places = T.cat([place.reshape(-1) for place, _ in found])
    return F.cross_entropy(keypoint_logits.reshape(count * points, height * width)[valid], places[valid])


def keypointrcnn_inference(x: Tensor, boxes: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """`heatmaps_to_keypoints` of each image."""
    parts = x.split([len(one) for one in boxes])
    found = [heatmaps_to_keypoints(maps, one) for maps, one in zip(parts, boxes, strict=True)]
    return [points for points, _ in found], [scores for _, scores in found]


class RoIHeads(nn.Module):
    """Features by name, boxes (L, 4) of each image, sizes of the images and, in training, targets -> (a dict for each image, losses by name): losses
    in training, and in evaluation "boxes", "labels" and "scores", and "masks" or "keypoints" where there are heads for them.

    box_roi_pool, box_head, box_predictor: from features and boxes to (scores, differences). fg_iou_thresh, bg_iou_thresh: a box that covers a target
    to the first part at least belongs to it, below the second it is background. batch_size_per_image, positive_fraction: boxes drawn for the losses.
    bbox_reg_weights: of the differences, by default (10, 10, 5, 5). score_thresh, nms_thresh, detections_per_img: the lowest score that is kept, to
    what part a box may cover a better one of its class, and how many are kept of an image. mask_*, keypoint_*: the same for masks and key points.
    """

    def __init__(
        self, box_roi_pool: Any, box_head: Any, box_predictor: Any, fg_iou_thresh: float, bg_iou_thresh: float, batch_size_per_image: int,
        positive_fraction: float, bbox_reg_weights: Any, score_thresh: float, nms_thresh: float, detections_per_img: int, mask_roi_pool: Any = None,
        mask_head: Any = None, mask_predictor: Any = None, keypoint_roi_pool: Any = None, keypoint_head: Any = None, keypoint_predictor: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.box_similarity = box_ops.box_iou
        self.proposal_matcher = det_utils.Matcher(fg_iou_thresh, bg_iou_thresh, allow_low_quality_matches=False)
        self.fg_bg_sampler = det_utils.BalancedPositiveNegativeSampler(batch_size_per_image, positive_fraction)
        self.box_coder = det_utils.BoxCoder((10.0, 10.0, 5.0, 5.0) if bbox_reg_weights is None else bbox_reg_weights)
        self.box_roi_pool, self.box_head, self.box_predictor = box_roi_pool, box_head, box_predictor
        self.score_thresh, self.nms_thresh, self.detections_per_img = score_thresh, nms_thresh, detections_per_img
        self.mask_roi_pool, self.mask_head, self.mask_predictor = mask_roi_pool, mask_head, mask_predictor
        self.keypoint_roi_pool, self.keypoint_head, self.keypoint_predictor = keypoint_roi_pool, keypoint_head, keypoint_predictor

    def has_mask(self) -> bool:
        """Whether there are heads for masks."""
        return None not in (self.mask_roi_pool, self.mask_head, self.mask_predictor)

    def has_keypoint(self) -> bool:
        """Whether there are heads for key points."""
        return None not in (self.keypoint_roi_pool, self.keypoint_head, self.keypoint_predictor)

    def assign_targets_to_proposals(
        self, proposals: Sequence[Tensor], gt_boxes: Sequence[Tensor], gt_labels: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:  # fmt: skip
        """Of each image the target of each box, and its label: 0 for background, -1 for boxes between both thresholds."""
        owners, labels = [], []
        for boxes, targets, classes in zip(proposals, gt_boxes, gt_labels, strict=True):
            if not targets.numel():
                owners.append(T.zeros(len(boxes), dtype=dt.int64, device=boxes.device))
                labels.append(T.zeros(len(boxes), dtype=dt.int64, device=boxes.device))
                continue
            owner = self.proposal_matcher(self.box_similarity(targets, boxes))
            undecided = T.where(owner == self.proposal_matcher.BETWEEN_THRESHOLDS, -1, 0)
            owners.append(owner.clamp(min=0))
            labels.append(T.where(owner >= 0, classes[owner.clamp(min=0)].to(dt.int64), undecided))
        return owners, labels

    def subsample(self, labels: Sequence[Tensor]) -> list[Tensor]:
        """Of each image the places of the boxes that are drawn."""
        positive, negative = self.fg_bg_sampler(labels)
        return [T.where(a | b)[0] for a, b in zip(positive, negative, strict=True)]

    def add_gt_proposals(self, proposals: Sequence[Tensor], gt_boxes: Sequence[Tensor]) -> list[Tensor]:
        """The boxes of each image, and behind them the targets themselves."""
        return [T.cat([boxes, targets]) for boxes, targets in zip(proposals, gt_boxes, strict=True)]

    def check_targets(self, targets: Any) -> None:
        """Raise ValueError where a target lacks something."""
        det_utils.check_targets("RoIHeads", targets)
        for key in ("boxes", "labels", *(("masks",) if self.has_mask() else ())):
            if not all(key in target for target in targets):
                given = [list(target) for target in targets]
                raise det_utils.TargetError(f"[RoIHeads] Every element of targets should have a {key} key, got {given}; add it")

    def select_training_samples(
        self, proposals: Sequence[Tensor], targets: Any
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor]]:  # fmt: skip
        """Of each image the drawn boxes, the target of each, its label, and the difference between both."""
        self.check_targets(targets)
        dtype = proposals[0].dtype
        gt_boxes, gt_labels = [target["boxes"].to(dtype) for target in targets], [target["labels"] for target in targets]
        boxes = self.add_gt_proposals(proposals, gt_boxes)
        owners, labels = self.assign_targets_to_proposals(boxes, gt_boxes, gt_labels)
        drawn = self.subsample(labels)
        boxes, owners, labels = ([one[place] for one, place in zip(row, drawn, strict=True)] for row in (boxes, owners, labels))
        some = [one if one.numel() else T.zeros((1, 4), dtype=dtype, device=one.device) for one in gt_boxes]
        matched = [one[owner] for one, owner in zip(some, owners, strict=True)]
        return boxes, owners, labels, self.box_coder.encode(matched, boxes)

    def postprocess_detections(
        self, class_logits: Tensor, box_regression: Tensor, proposals: Sequence[Tensor], image_shapes: Sequence[tuple[int, int]]
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:  # fmt: skip
        """Of each image boxes (L, 4), their scores and their labels, best first."""
        counts = [len(boxes) for boxes in proposals]
        decoded = self.box_coder.decode(box_regression, proposals).split(counts)
        likely = F.softmax(class_logits, -1).split(counts)
        found: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])
        for candidates, chances, shape in zip(decoded, likely, image_shapes, strict=True):
            classes = chances.shape[1] - 1  # without the background
            boxes = box_ops.clip_boxes_to_image(candidates, shape)[:, 1:].reshape(-1, 4)
            scores = chances[:, 1:].reshape(-1)
            keep = T.where((scores > self.score_thresh) & ((boxes[:, 2:] - boxes[:, :2]) >= 1e-2).all(1))[0]
            boxes, scores, labels = boxes[keep], scores[keep], keep % max(classes, 1) + 1
            keep = box_ops.batched_nms(boxes, scores, labels, self.nms_thresh)[: self.detections_per_img]
            for row, one in zip(found, (boxes, scores, labels), strict=True):
                row.append(one[keep])
        return found

    def _check_types(self, targets: Any) -> None:
        wanted = {"boxes": (dt.float32, dt.float64, dt.float16), "labels": (dt.int64,), "keypoints": (dt.float32,)}
        for target in targets:
            for key in ("boxes", "labels", *(("keypoints",) if self.has_keypoint() else ())):
                if target[key].dtype not in wanted[key]:
                    kind = "int64" if key == "labels" else "float"
                    raise DTypeError(f"[RoIHeads] target {key} must of {kind} type, instead got {target[key].dtype}; convert them with .to()")

    def _positive(self, boxes: Sequence[Tensor], owners: Sequence[Tensor], labels: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Of each image the drawn boxes that are not background, and their targets."""
        places = [T.where(one > 0)[0] for one in labels]
        return [one[p] for one, p in zip(boxes, places, strict=True)], [one[p] for one, p in zip(owners, places, strict=True)]

    def forward(
        self, features: Mapping[str, Tensor], proposals: Sequence[Tensor], image_shapes: Sequence[tuple[int, int]], targets: Any = None
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:  # fmt: skip
        """What was found in each image, and the losses."""
        boxes = list(proposals)
        owners: list[Tensor] = []
        labels: list[Tensor] = []
        wanted: list[Tensor] = []
        if self.training:
            self.check_targets(targets)
        if targets is not None:
            self._check_types(targets)
        if self.training:
            boxes, owners, labels, wanted = self.select_training_samples(proposals, targets)
        logits, codes = self.box_predictor(self.box_head(self.box_roi_pool(features, boxes, image_shapes)))
        result: list[dict[str, Tensor]] = []
        losses: dict[str, Tensor] = {}
        if self.training:
            losses["loss_classifier"], losses["loss_box_reg"] = fastrcnn_loss(logits, codes, labels, wanted)
            boxes, owners = self._positive(boxes, owners, labels)
        else:
            found = zip(*self.postprocess_detections(logits, codes, boxes, image_shapes), strict=True)
            result = [{"boxes": one, "labels": label, "scores": score} for one, score, label in found]
            boxes = [one["boxes"] for one in result]
        if self.has_mask():
            maps = self.mask_predictor(self.mask_head(self.mask_roi_pool(features, boxes, image_shapes)))
            if self.training:
                losses["loss_mask"] = maskrcnn_loss(maps, boxes, [t["masks"] for t in targets], [t["labels"] for t in targets], owners)
            else:
                for one, mask in zip(result, maskrcnn_inference(maps, [r["labels"] for r in result]), strict=True):
                    one["masks"] = mask
        if self.has_keypoint():
            maps = self.keypoint_predictor(self.keypoint_head(self.keypoint_roi_pool(features, boxes, image_shapes)))
            if self.training:
                losses["loss_keypoint"] = keypointrcnn_loss(maps, boxes, [t["keypoints"] for t in targets], owners)
            else:
                for one, points, scores in zip(result, *keypointrcnn_inference(maps, boxes), strict=True):
                    one["keypoints"], one["keypoints_scores"] = points, scores
        return result, losses
