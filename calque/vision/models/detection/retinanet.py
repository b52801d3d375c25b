"""RetinaNet, with torchvision's names and state dicts. Source: Lin et al. 2017, "Focal Loss for Dense Object Detection"; the second version, Zhang et
al. 2020, "Bridging the Gap Between Anchor-based and Anchor-free Detection"."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from calque import functional as T
from calque import nn
from calque.tensor import Tensor
from calque.vision.models.detection import _utils as det_utils
from calque.vision.models.detection.anchor_utils import AnchorGenerator
from calque.vision.models.detection.backbone_utils import resnet_pyramid, trainable
from calque.vision.models.detection.faster_rcnn import DEVIATION, MEAN, check_backbone, check_kind, resnet50_pyramid
from calque.vision.models.detection.single_stage import Outputs, SingleStage, best_of_level, rows_of, unmatched
from calque.vision.models.detection.transform import GeneralizedRCNNTransform
from calque.vision.models.detection.weights import detector
from calque.vision.models.resnet import resnet50
from calque.vision.ops import boxes as box_ops
from calque.vision.ops.feature_pyramid_network import LastLevelP6P7, renamed
from calque.vision.ops.misc import Conv2dNormActivation, sigmoid_focal_loss

__all__ = [
    "RetinaNet", "RetinaNetClassificationHead", "RetinaNetHead", "RetinaNetRegressionHead", "retinanet_resnet50_fpn", "retinanet_resnet50_fpn_v2",
]  # fmt: skip

Layers = Callable[..., nn.Module]


def _three_sizes() -> AnchorGenerator:
    """Three sizes of boxes for each of five levels, in three proportions."""
    sizes = tuple(tuple(int(side * 2 ** (k / 3)) for k in range(3)) for side in (32, 64, 128, 256, 512))
    return AnchorGenerator(sizes, ((0.5, 1.0, 2.0),) * len(sizes))


class _Branch(nn.Module):
    """Four convolutions, and one that gives results."""

    _version = 2

    def __init__(self, in_channels: int, norm_layer: Layers | None) -> None:
        super().__init__()
        self.conv = nn.Sequential(*[Conv2dNormActivation(in_channels, in_channels, norm_layer=norm_layer) for _ in range(4)])
        for layer in self.conv.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.normal_(layer.weight, std=0.01)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def _upgrade_state_dict(self, entries: Any, prefix: str, version: int | None) -> None:
        if version is None or version < 2:
            renamed(entries, {f"{prefix}conv.{2 * k}": f"{prefix}conv.{k}.0" for k in range(4)})


class RetinaNetClassificationHead(_Branch):
    """Features (N, in_channels, H, W) of all levels -> scores (N, K, num_classes). prior_probability: of each class before anything is learnt."""

    def __init__(
        self, in_channels: int, num_anchors: int, num_classes: int, prior_probability: float = 0.01, norm_layer: Layers | None = None
    ) -> None:  # fmt: skip
        super().__init__(in_channels, norm_layer)
        self.cls_logits = nn.Conv2d(in_channels, num_anchors * num_classes, 3, padding=1)
        nn.init.normal_(self.cls_logits.weight, std=0.01)
        nn.init.constant_(self.cls_logits.bias, -math.log((1 - prior_probability) / prior_probability))
        self.num_classes, self.num_anchors = num_classes, num_anchors

    def compute_loss(self, targets: Any, head_outputs: Outputs, matched_idxs: Sequence[Tensor]) -> Tensor:
        """The focal loss by the number of boxes that belong to a target, the mean of all images."""
        losses = []
        for target, logits, owner in zip(targets, head_outputs["cls_logits"].unbind(0), matched_idxs, strict=True):
            inside, decided = T.where(owner >= 0)[0], T.where(owner != det_utils.Matcher.BETWEEN_THRESHOLDS)[0]
            wanted = T.zeros_like(logits)
            wanted[inside, target["labels"][owner[inside]]] = 1.0
            losses.append(sigmoid_focal_loss(logits[decided], wanted[decided], reduction="sum") / max(1, len(inside)))
        return T.stack(losses).mean()

    def forward(self, x: Sequence[Tensor]) -> Tensor:
        """The scores of all positions and boxes."""
        return rows_of([self.cls_logits(self.conv(one)) for one in x], self.num_classes)


class RetinaNetRegressionHead(_Branch):
    """Features (N, in_channels, H, W) of all levels -> differences (N, K, 4)."""

    def __init__(self, in_channels: int, num_anchors: int, norm_layer: Layers | None = None) -> None:
        super().__init__(in_channels, norm_layer)
        self.bbox_reg = nn.Conv2d(in_channels, 4 * num_anchors, 3, padding=1)
        nn.init.normal_(self.bbox_reg.weight, std=0.01)
        nn.init.zeros_(self.bbox_reg.bias)
        self.box_coder = det_utils.BoxCoder(weights=(1.0, 1.0, 1.0, 1.0))
        self._loss_type = "l1"

    def compute_loss(self, targets: Any, head_outputs: Outputs, anchors: Sequence[Tensor], matched_idxs: Sequence[Tensor]) -> Tensor:
        """The loss of the boxes that belong to a target by their number, the mean of all images."""
        losses = []
        for target, codes, boxes, owner in zip(targets, head_outputs["bbox_regression"].unbind(0), anchors, matched_idxs, strict=True):
            inside = T.where(owner >= 0)[0]
            wanted = target["boxes"][owner[inside]]
            losses.append(det_utils.box_loss(self._loss_type, self.box_coder, boxes[inside], wanted, codes[inside]) / max(1, len(inside)))
        return T.stack(losses).mean()

    def forward(self, x: Sequence[Tensor]) -> Tensor:
        """The differences of all positions and boxes."""
        return rows_of([self.bbox_reg(self.conv(one)) for one in x], 4)


class RetinaNetHead(nn.Module):
    """Features of all levels -> "cls_logits" (N, K, num_classes) and "bbox_regression" (N, K, 4)."""

    def __init__(self, in_channels: int, num_anchors: int, num_classes: int, norm_layer: Layers | None = None) -> None:
        super().__init__()
        self.classification_head = RetinaNetClassificationHead(in_channels, num_anchors, num_classes, norm_layer=norm_layer)
        self.regression_head = RetinaNetRegressionHead(in_channels, num_anchors, norm_layer=norm_layer)

    def compute_loss(self, targets: Any, head_outputs: Outputs, anchors: Sequence[Tensor], matched_idxs: Sequence[Tensor]) -> dict[str, Tensor]:
        """The losses "classification" and "bbox_regression"."""
        return {
            "classification": self.classification_head.compute_loss(targets, head_outputs, matched_idxs),
            "bbox_regression": self.regression_head.compute_loss(targets, head_outputs, anchors, matched_idxs),
        }

    def forward(self, x: Sequence[Tensor]) -> dict[str, Tensor]:
        """Scores and differences."""
        return {"cls_logits": self.classification_head(x), "bbox_regression": self.regression_head(x)}


class RetinaNet(SingleStage):
    """Images and targets -> losses "classification" and "bbox_regression" in training; images -> a dict for each, with boxes, scores and labels.

    backbone: images -> features, or a dict of them; says its channels as `out_channels`. num_classes: with the background, which is never found.
    min_size, max_size, image_mean, image_std: see `GeneralizedRCNNTransform`. anchor_generator, head: give boxes, and their scores and differences.
    proposal_matcher: which box belongs to which target, or `fg_iou_thresh` and `bg_iou_thresh` of a `Matcher`. score_thresh, topk_candidates: the
    lowest score of a box, and how many are looked at of each level. nms_thresh, detections_per_img: to what part a box may cover a better one of its
    class, and how many are kept of an image. Raises ValueError if the backbone does not say its channels.
    """

    def __init__(
        self, backbone: nn.Module, num_classes: int, min_size: Any = 800, max_size: int = 1333, image_mean: Any = None, image_std: Any = None,
        anchor_generator: Any = None, head: Any = None, proposal_matcher: Any = None, score_thresh: float = 0.05, nms_thresh: float = 0.5,
        detections_per_img: int = 300, fg_iou_thresh: float = 0.5, bg_iou_thresh: float = 0.4, topk_candidates: int = 1000, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        check_backbone("RetinaNet", backbone)
        check_kind("RetinaNet", "anchor_generator", anchor_generator, AnchorGenerator)
        channels: Any = backbone.out_channels
        self.backbone, self.anchor_generator = backbone, anchor_generator or _three_sizes()
        self.head = head or RetinaNetHead(channels, self.anchor_generator.num_anchors_per_location()[0], num_classes)
        self.proposal_matcher = proposal_matcher or det_utils.Matcher(fg_iou_thresh, bg_iou_thresh, allow_low_quality_matches=True)
        self.box_coder = det_utils.BoxCoder(weights=(1.0, 1.0, 1.0, 1.0))
        self.transform = GeneralizedRCNNTransform(min_size, max_size, image_mean or list(MEAN), image_std or list(DEVIATION), **kwargs)
        self.score_thresh, self.nms_thresh = score_thresh, nms_thresh
        self.detections_per_img, self.topk_candidates = detections_per_img, topk_candidates

    def compute_loss(self, targets: Any, head_outputs: Outputs, anchors: Sequence[Tensor]) -> dict[str, Tensor]:
        """The losses of the head, for the targets that boxes belong to."""
        owners = [
            self.proposal_matcher(box_ops.box_iou(target["boxes"], boxes)) if target["boxes"].numel() else unmatched(boxes)
            for boxes, target in zip(anchors, targets, strict=True)
        ]
        return self.head.compute_loss(targets, head_outputs, anchors, owners)  # type: ignore[no-any-return]

    def losses_of(self, targets: Any, outputs: Outputs, anchors: Sequence[Tensor], counts: Sequence[int]) -> dict[str, Tensor]:
        """As of `SingleStage`."""
        return self.compute_loss(targets, outputs, anchors)

    def detect(self, outputs: Outputs, anchors: Sequence[Tensor], sizes: Sequence[tuple[int, int]], counts: Sequence[int]) -> list[dict[str, Tensor]]:
        """As of `SingleStage`."""
        found = []
        for k, size in enumerate(sizes):
            parts = (outputs["cls_logits"][k].sigmoid(), outputs["bbox_regression"][k], anchors[k])
            levels = zip(*(one.split(list(counts)) for one in parts), strict=True)
            lots: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])
            for scores, codes, boxes in levels:
                best, place, label = best_of_level(scores, self.score_thresh, self.topk_candidates)
                box = box_ops.clip_boxes_to_image(self.box_coder.decode_single(codes[place], boxes[place]), size)
                for lot, one in zip(lots, (box, best, label), strict=True):
                    lot.append(one)
            found.append(self.kept(*lots))
        return found


def _first(trained: bool, weights: Any, layers: int | None, num_classes: int, **options: Any) -> RetinaNet:
    backbone = resnet50_pyramid(trained, weights, layers, returned_layers=[2, 3, 4], extra_blocks=LastLevelP6P7(256, 256))
    return RetinaNet(backbone, num_classes, **options)


def _second(trained: bool, weights: Any, layers: int | None, num_classes: int, **options: Any) -> RetinaNet:
    model = resnet50(weights=weights)
    backbone = resnet_pyramid(model, trainable(trained, layers, 5, 3), returned_layers=[2, 3, 4], extra_blocks=LastLevelP6P7(2048, 256))
    anchors = _three_sizes()
    head = RetinaNetHead(256, anchors.num_anchors_per_location()[0], num_classes, norm_layer=partial(nn.GroupNorm, 32))
    head.regression_head._loss_type = "giou"
    return RetinaNet(backbone, num_classes, **{"anchor_generator": anchors, "head": head, **options})


retinanet_resnet50_fpn = detector(
    "retinanet_resnet50_fpn", "RetinaNet", _first, "RetinaNet with a pyramid of ResNet-50's features.", "IMAGENET1K_V1"
)
retinanet_resnet50_fpn_v2 = detector(
    "retinanet_resnet50_fpn_v2", "RetinaNet", _second, "RetinaNet with a pyramid of ResNet-50's features, and normalisations in its head.", None
)
