"""Where an image may have objects: boxes that are scored and moved, the first stage of two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from calque import functional as T
from calque import nn
from calque.base import dtypes as dt
from calque.nn import functional as F
from calque.tensor import Tensor
from calque.vision.models.detection import _utils as det_utils
from calque.vision.models.detection.anchor_utils import AnchorGenerator
from calque.vision.models.detection.image_list import ImageList
from calque.vision.ops import boxes as box_ops
from calque.vision.ops.feature_pyramid_network import renamed
from calque.vision.ops.misc import Conv2dNormActivation

__all__ = ["AnchorGenerator", "RPNHead", "RegionProposalNetwork", "concat_box_prediction_layers", "permute_and_flatten"]


class RPNHead(nn.Module):
    """A list of features (N, in_channels, H, W) -> (scores (N, num_anchors, H, W) of each, differences (N, 4 num_anchors, H, W) of each). conv_depth:
    convolutions before the two that give them."""

    _version = 2

    def __init__(self, in_channels: int, num_anchors: int, conv_depth: int = 1) -> None:
        super().__init__()
        self.conv = nn.Sequential(*[Conv2dNormActivation(in_channels, in_channels, 3, norm_layer=None) for _ in range(conv_depth)])
        self.cls_logits, self.bbox_pred = nn.Conv2d(in_channels, num_anchors, 1), nn.Conv2d(in_channels, 4 * num_anchors, 1)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.normal_(layer.weight, std=0.01)
                nn.init.zeros_(layer.bias)

    def _upgrade_state_dict(self, entries: Any, prefix: str, version: int | None) -> None:
        if version is None or version < 2:
            renamed(entries, {f"{prefix}conv": f"{prefix}conv.0.0"})

    def forward(self, x: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Scores and differences of each level."""
        found = [self.conv(features) for features in x]
        return [self.cls_logits(one) for one in found], [self.bbox_pred(one) for one in found]


def permute_and_flatten(layer: Tensor, N: int, A: int, C: int, H: int, W: int) -> Tensor:
    """(N, A C, H, W) -> (N, H W A, C)."""
    return layer.reshape(N, A, C, H, W).permute(0, 3, 4, 1, 2).reshape(N, H * W * A, C)


def concat_box_prediction_layers(box_cls: Sequence[Tensor], box_regression: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Scores (N, A C, H, W) and differences (N, 4 A, H, W) of each level -> (K, C) and (K, 4), of all images, levels, positions and boxes."""
    scores, differences = [], []
    for score, difference in zip(box_cls, box_regression, strict=True):
        count, _, height, width = score.shape
        around = difference.shape[1] // 4
        scores.append(permute_and_flatten(score, count, around, score.shape[1] // around, height, width))
        differences.append(permute_and_flatten(difference, count, around, 4, height, width))
    return T.cat(scores, 1).flatten(0, -2), T.cat(differences, 1).reshape(-1, 4)


class RegionProposalNetwork(nn.Module):
    """An `ImageList`, features by name and, in training, targets -> (boxes (L, 4) of each image, losses by name; none in evaluation).

    anchor_generator, head: give boxes, and their scores and differences. fg_iou_thresh, bg_iou_thresh: a box that covers a target to the first part
    at least is positive, below the second negative. batch_size_per_image, positive_fraction: boxes drawn for the losses. pre_nms_top_n,
    post_nms_top_n: by "training" and "testing", boxes kept of each level before, and of all after those are removed that cover a better one to more
    than `nms_thresh`. score_thresh: the lowest score of a box. Source: Ren et al. 2015, "Faster R-CNN".
    """

    def __init__(
        self, anchor_generator: nn.Module, head: nn.Module, fg_iou_thresh: float, bg_iou_thresh: float, batch_size_per_image: int,
        positive_fraction: float, pre_nms_top_n: Mapping[str, int], post_nms_top_n: Mapping[str, int], nms_thresh: float, score_thresh: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.anchor_generator, self.head = anchor_generator, head
        self.box_coder = det_utils.BoxCoder(weights=(1.0, 1.0, 1.0, 1.0))
        self.box_similarity = box_ops.box_iou
        self.proposal_matcher = det_utils.Matcher(fg_iou_thresh, bg_iou_thresh, allow_low_quality_matches=True)
        self.fg_bg_sampler = det_utils.BalancedPositiveNegativeSampler(batch_size_per_image, positive_fraction)
        self._pre_nms_top_n, self._post_nms_top_n = pre_nms_top_n, post_nms_top_n
        self.nms_thresh, self.score_thresh, self.min_size = nms_thresh, score_thresh, 1e-3

    def pre_nms_top_n(self) -> int:
        """Boxes of a level that are looked at."""
        return self._pre_nms_top_n["training" if self.training else "testing"]

    def post_nms_top_n(self) -> int:
        """Boxes of an image that are proposed."""
        return self._post_nms_top_n["training" if self.training else "testing"]

    def assign_targets_to_anchors(self, anchors: Sequence[Tensor], targets: Sequence[Mapping[str, Tensor]]) -> tuple[list[Tensor], list[Tensor]]:
        """Of each image: 1 for a positive box, 0 for a negative one, -1 else (K,); and the target of each (K, 4)."""
        labels, matched = [], []
        for boxes, target in zip(anchors, targets, strict=True):
            if not target["boxes"].numel():
                labels.append(T.zeros(len(boxes), device=boxes.device))
                matched.append(T.zeros(tuple(boxes.shape), device=boxes.device))
                continue
            owner = self.proposal_matcher(self.box_similarity(target["boxes"], boxes))
            matched.append(target["boxes"][owner.clamp(min=0)])
            undecided = T.where(owner == self.proposal_matcher.BETWEEN_THRESHOLDS, -1.0, 0.0)
            labels.append(T.where(owner >= 0, 1.0, undecided))
        return labels, matched

    def _best_of_levels(self, objectness: Tensor, counts: Sequence[int]) -> Tensor:
        found, first = [], 0
        for scores in objectness.split(list(counts), 1):
            found.append(scores.topk(min(scores.shape[1], self.pre_nms_top_n()), 1)[1] + first)
            first += scores.shape[1]
        return T.cat(found, 1)

    def filter_proposals(
        self, proposals: Tensor, objectness: Tensor, image_shapes: Sequence[tuple[int, int]], num_anchors_per_level: Sequence[int]
    ) -> tuple[list[Tensor], list[Tensor]]:  # fmt: skip
        """Boxes (N, K, 4) and their scores -> of each image the best boxes (L, 4) and their scores from 0 to 1 (L,), best first."""
        count = proposals.shape[0]
        objectness = objectness.detach().reshape(count, -1)
        levels = T.cat([T.full((n,), k, dtype=dt.int64, device=proposals.device) for k, n in enumerate(num_anchors_per_level)])
        best = self._best_of_levels(objectness, num_anchors_per_level)
        image = T.arange(count, device=proposals.device)[:, None]
        likely, kept, level_of = objectness[image, best].sigmoid(), proposals[image, best], levels[best]
        found: tuple[list[Tensor], list[Tensor]] = ([], [])
        for k, shape in enumerate(image_shapes):
            boxes = box_ops.clip_boxes_to_image(kept[k], shape)
            good = ((boxes[:, 2:] - boxes[:, :2]) >= self.min_size).all(1) & (likely[k] >= self.score_thresh)
            keep = T.where(good)[0]
            boxes, scores, level = boxes[keep], likely[k][keep], level_of[k][keep]
            keep = box_ops.batched_nms(boxes, scores, level, self.nms_thresh)[: self.post_nms_top_n()]
            found[0].append(boxes[keep])
            found[1].append(scores[keep])
        return found

    def compute_loss(
        self, objectness: Tensor, pred_bbox_deltas: Tensor, labels: Sequence[Tensor], regression_targets: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Losses of the scores and of the differences, of drawn boxes."""
        positive, negative = (T.where(T.cat(masks))[0] for masks in self.fg_bg_sampler(labels))
        drawn = T.cat([positive, negative])
        wanted = T.cat(list(regression_targets))[positive]
        boxes = F.smooth_l1_loss(pred_bbox_deltas[positive], wanted, beta=1 / 9, reduction="sum") / max(len(drawn), 1)
        return F.binary_cross_entropy_with_logits(objectness.flatten()[drawn], T.cat(list(labels))[drawn]), boxes

    def forward(self, images: ImageList, features: Mapping[str, Tensor], targets: Any = None) -> tuple[list[Tensor], dict[str, Tensor]]:
        """The proposed boxes of each image and, in training, "loss_objectness" and "loss_rpn_box_reg"."""
        maps = list(features.values())
        objectness, differences = self.head(maps)
        anchors = self.anchor_generator(images, maps)
        counts = [one.shape[1] * one.shape[2] * one.shape[3] for one in objectness]
        scores, codes = concat_box_prediction_layers(objectness, differences)
        proposals = self.box_coder.decode(codes.detach(), anchors).reshape(len(anchors), -1, 4)
        boxes, _ = self.filter_proposals(proposals, scores, images.image_sizes, counts)
        if not self.training:
            return boxes, {}
        if targets is None:
            det_utils.check_targets("RegionProposalNetwork", targets)
        labels, matched = self.assign_targets_to_anchors(anchors, targets)
        loss, loss_boxes = self.compute_loss(scores, codes, labels, self.box_coder.encode(matched, anchors))
        return boxes, {"loss_objectness": loss, "loss_rpn_box_reg": loss_boxes}
