"""FCOS, with torchvision's names and state dicts. Source: Tian et al. 2019, "FCOS: Fully Convolutional One-Stage Object Detection"."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from calque import functional as T
from calque import nn
from calque.base.errors import ArgumentError
from calque.nn import functional as F
from calque.tensor import Tensor
from calque.vision.models.detection import _utils as det_utils
from calque.vision.models.detection.anchor_utils import AnchorGenerator
from calque.vision.models.detection.faster_rcnn import DEVIATION, MEAN, check_backbone, check_kind, resnet50_pyramid
from calque.vision.models.detection.single_stage import Outputs, SingleStage, best_of_level, rows_of, unmatched
from calque.vision.models.detection.transform import GeneralizedRCNNTransform
from calque.vision.models.detection.weights import detector
from calque.vision.ops import boxes as box_ops
from calque.vision.ops.feature_pyramid_network import LastLevelP6P7
from calque.vision.ops.losses import generalized_box_iou_loss
from calque.vision.ops.misc import sigmoid_focal_loss

__all__ = ["FCOS", "FCOSClassificationHead", "FCOSHead", "FCOSRegressionHead", "fcos_resnet50_fpn"]

Layers = Callable[..., nn.Module]


class _Branch(nn.Module):
    """Convolutions with normalisations, and one or two that give results."""

    def __init__(self, in_channels: int, num_convs: int, norm_layer: Layers | None) -> None:
        super().__init__()
        norm = norm_layer or partial(nn.GroupNorm, 32)
        layers: list[nn.Module] = []
        for _ in range(num_convs):
            layers += [self.result(in_channels, in_channels), norm(in_channels), nn.ReLU()]
        self.conv = nn.Sequential(*layers)

    @staticmethod
    def result(in_channels: int, channels: int, bias: float = 0.0) -> Any:
        """A 3x3 convolution that gives little more than `bias` before anything is learnt."""
        layer = nn.Conv2d(in_channels, channels, 3, padding=1)
        nn.init.normal_(layer.weight, std=0.01)
        nn.init.constant_(layer.bias, bias)
        return layer


class FCOSClassificationHead(_Branch):
    """Features (N, in_channels, H, W) of all levels -> scores (N, K, num_classes). prior_probability: of each class before anything is learnt."""

    def __init__(
        self, in_channels: int, num_anchors: int, num_classes: int, num_convs: int = 4, prior_probability: float = 0.01,
        norm_layer: Layers | None = None,
    ) -> None:  # fmt: skip
        super().__init__(in_channels, num_convs, norm_layer)
        self.num_classes, self.num_anchors = num_classes, num_anchors
        self.cls_logits = self.result(in_channels, num_anchors * num_classes, -math.log((1 - prior_probability) / prior_probability))

    def forward(self, x: Sequence[Tensor]) -> Tensor:
        """The scores of all positions."""
        return rows_of([self.cls_logits(self.conv(one)) for one in x], self.num_classes)


class FCOSRegressionHead(_Branch):
    """Features (N, in_channels, H, W) of all levels -> (distances (N, K, 4), scores (N, K, 1) of how central a position is)."""

    def __init__(self, in_channels: int, num_anchors: int, num_convs: int = 4, norm_layer: Layers | None = None) -> None:
        super().__init__(in_channels, num_convs, norm_layer)
        self.bbox_reg, self.bbox_ctrness = self.result(in_channels, 4 * num_anchors), self.result(in_channels, num_anchors)

    def forward(self, x: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """The distances and the scores of all positions."""
        found = [self.conv(one) for one in x]
        return rows_of([F.relu(self.bbox_reg(one)) for one in found], 4), rows_of([self.bbox_ctrness(one) for one in found], 1)


def _centrality(distances: Tensor) -> Tensor:
    """How central a position is in its box, from 0 to 1, of its distances (K, 4) from left, top, right and bottom."""
    across, down = distances[:, [0, 2]], distances[:, [1, 3]]
    return T.sqrt(across.amin(1) / across.amax(1) * (down.amin(1) / down.amax(1)))


class FCOSHead(nn.Module):
    """Features of all levels -> "cls_logits" (N, K, num_classes), "bbox_regression" (N, K, 4) and "bbox_ctrness" (N, K, 1)."""

    def __init__(self, in_channels: int, num_anchors: int, num_classes: int, num_convs: int = 4) -> None:
        super().__init__()
        self.box_coder = det_utils.BoxLinearCoder(normalize_by_size=True)
        self.classification_head = FCOSClassificationHead(in_channels, num_anchors, num_classes, num_convs)
        self.regression_head = FCOSRegressionHead(in_channels, num_anchors, num_convs)

    def compute_loss(
        self, targets: Any, head_outputs: Outputs, anchors: Sequence[Tensor], matched_idxs: Sequence[Tensor]
    ) -> dict[str, Tensor]:  # fmt: skip
        """The losses "classification", "bbox_regression" and "bbox_ctrness", by the number of positions that belong to a target."""
        logits, codes, central = (head_outputs[name] for name in ("cls_logits", "bbox_regression", "bbox_ctrness"))
        wanted, drawn, origins, found = [], [], [], []
        for k, (target, owner) in enumerate(zip(targets, matched_idxs, strict=True)):
            inside = T.where(owner >= 0)[0]
            classes = T.zeros_like(logits[k])
            if len(inside):
                classes[inside, target["labels"][owner[inside]]] = 1.0
                drawn.append(target["boxes"][owner[inside]])
                origins.append(anchors[k][inside])
                found.append(T.cat([codes[k][inside], central[k][inside]], 1))
            wanted.append(classes)
        loss = sigmoid_focal_loss(logits, T.stack(wanted), reduction="sum")
        if not found:
            return {"classification": loss, "bbox_regression": codes.sum() * 0, "bbox_ctrness": central.sum() * 0}
        boxes, origin, both = T.cat(drawn), T.cat(origins), T.cat(found)
        count = len(boxes)
        apart = generalized_box_iou_loss(self.box_coder.decode(both[:, :4], origin), boxes, reduction="sum")
        middle = F.binary_cross_entropy_with_logits(both[:, 4], _centrality(self.box_coder.encode(origin, boxes)), reduction="sum")
        return {"classification": loss / count, "bbox_regression": apart / count, "bbox_ctrness": middle / count}

    def forward(self, x: Sequence[Tensor]) -> dict[str, Tensor]:
        """Scores, distances and scores of the centre."""
        codes, central = self.regression_head(x)
        return {"cls_logits": self.classification_head(x), "bbox_regression": codes, "bbox_ctrness": central}


class FCOS(SingleStage):
    """Images and targets -> losses "classification", "bbox_regression" and "bbox_ctrness" in training; images -> a dict for each, with boxes, scores
    and labels.

    backbone: images -> features, or a dict of them; says its channels as `out_channels`. num_classes: with the background, which is never found.
    min_size, max_size, image_mean, image_std: see `GeneralizedRCNNTransform`. anchor_generator: gives one square for each position, by default of the
    pixels between two of them. center_sampling_radius: squares that a position may be away from the centre of its target. score_thresh,
    topk_candidates: the lowest score, and how many positions are looked at of each level. nms_thresh, detections_per_img: to what part a box may
    cover a better one of its class, and how many are kept of an image. Raises ValueError for more than one square.
    """

    def __init__(
        self, backbone: nn.Module, num_classes: int, min_size: Any = 800, max_size: int = 1333, image_mean: Any = None, image_std: Any = None,
        anchor_generator: Any = None, head: Any = None, center_sampling_radius: float = 1.5, score_thresh: float = 0.2, nms_thresh: float = 0.6,
        detections_per_img: int = 100, topk_candidates: int = 1000, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        check_backbone("FCOS", backbone)
        check_kind("FCOS", "anchor_generator", anchor_generator, AnchorGenerator)
        channels: Any = backbone.out_channels
        self.backbone = backbone
        self.anchor_generator = anchor_generator or AnchorGenerator(((8,), (16,), (32,), (64,), (128,)), ((1.0,),) * 5)
        around = self.anchor_generator.num_anchors_per_location()[0]
        if around != 1:
            raise ArgumentError(f"[FCOS] anchor_generator.num_anchors_per_location()[0] should be 1 instead of {around}; give one size and one ratio")
        self.head = head or FCOSHead(channels, around, num_classes)
        self.box_coder = det_utils.BoxLinearCoder(normalize_by_size=True)
        self.transform = GeneralizedRCNNTransform(min_size, max_size, image_mean or list(MEAN), image_std or list(DEVIATION), **kwargs)
        self.center_sampling_radius, self.score_thresh, self.nms_thresh = center_sampling_radius, score_thresh, nms_thresh
        self.detections_per_img, self.topk_candidates = detections_per_img, topk_candidates

    def _owner(self, anchors: Tensor, boxes: Tensor, counts: Sequence[int]) -> Tensor:
        """The target of each position (K,), or -1: the smallest that it lies in, near the centre of, and whose size its level is for."""
        centre, size = (anchors[:, :2] + anchors[:, 2:]) / 2, anchors[:, 2] - anchors[:, 0]
        near = (centre[:, None] - (boxes[:, :2] + boxes[:, 2:]) / 2).abs().amax(2) < self.center_sampling_radius * size[:, None]
        distances = T.cat([centre[:, None] - boxes[:, :2], boxes[:, 2:] - centre[:, None]], 2)
        reach = distances.amax(2)
        place = T.arange(len(anchors), device=anchors.device)
        low = T.where(place < counts[0], 0.0, size * 4)[:, None]
        high = T.where(place >= len(anchors) - counts[-1], math.inf, size * 8)[:, None]
        fits = near & (distances.amin(2) > 0) & (reach > low) & (reach < high)
        area = T.where(fits, box_ops.box_area(boxes), math.inf)
        return T.where(fits.any(1), area.argmin(1), -1)  # type: ignore[no-any-return]

    def compute_loss(
        self, targets: Any, head_outputs: Outputs, anchors: Sequence[Tensor], num_anchors_per_level: Sequence[int]
    ) -> dict[str, Tensor]:  # fmt: skip
        """The losses of the head, for the targets that positions belong to."""
        owners = [
            self._owner(boxes, target["boxes"], num_anchors_per_level) if target["boxes"].numel() else unmatched(boxes)
            for boxes, target in zip(anchors, targets, strict=True)
        ]
        return self.head.compute_loss(targets, head_outputs, anchors, owners)  # type: ignore[no-any-return]

    def losses_of(self, targets: Any, outputs: Outputs, anchors: Sequence[Tensor], counts: Sequence[int]) -> dict[str, Tensor]:
        """As of `SingleStage`."""
        return self.compute_loss(targets, outputs, anchors, counts)

    def detect(self, outputs: Outputs, anchors: Sequence[Tensor], sizes: Sequence[tuple[int, int]], counts: Sequence[int]) -> list[dict[str, Tensor]]:
        """As of `SingleStage`."""
        likely = T.sqrt(outputs["cls_logits"].sigmoid() * outputs["bbox_ctrness"].sigmoid())
        found = []
        for k, size in enumerate(sizes):
            levels = zip(*(one.split(list(counts)) for one in (likely[k], outputs["bbox_regression"][k], anchors[k])), strict=True)
            lots: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])
            for scores, codes, boxes in levels:
                best, place, label = best_of_level(scores, self.score_thresh, self.topk_candidates)
                box = box_ops.clip_boxes_to_image(self.box_coder.decode(codes[place], boxes[place]), size)
                for lot, one in zip(lots, (box, best, label), strict=True):
                    lot.append(one)
            found.append(self.kept(*lots))
        return found


def _build(trained: bool, weights: Any, layers: int | None, num_classes: int, **options: Any) -> FCOS:
    backbone = resnet50_pyramid(trained, weights, layers, returned_layers=[2, 3, 4], extra_blocks=LastLevelP6P7(256, 256))
    return FCOS(backbone, num_classes, **options)


fcos_resnet50_fpn = detector("fcos_resnet50_fpn", "FCOS", _build, "FCOS with a pyramid of ResNet-50's features.", "IMAGENET1K_V1")
