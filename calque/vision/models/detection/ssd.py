"""SSD, with torchvision's names and state dicts. Source: Liu et al. 2016, "SSD: Single Shot MultiBox Detector"."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from calque import functional as T
from calque import nn
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError
from calque.nn import functional as F
from calque.observe.source import warn_user
from calque.tensor import Tensor
from calque.vision.models.detection import _utils as det_utils
from calque.vision.models.detection.anchor_utils import DefaultBoxGenerator
from calque.vision.models.detection.backbone_utils import trainable
from calque.vision.models.detection.faster_rcnn import DEVIATION, MEAN
from calque.vision.models.detection.single_stage import Outputs, SingleStage, rows_of, unmatched
from calque.vision.models.detection.transform import GeneralizedRCNNTransform
from calque.vision.models.detection.weights import detector
from calque.vision.models.vgg import vgg16
from calque.vision.ops import boxes as box_ops

__all__ = ["SSD", "SSDClassificationHead", "SSDFeatureExtractorVGG", "SSDHead", "SSDRegressionHead", "SSDScoringHead", "ssd300_vgg16"]


def initialise(module: nn.Module, weights: Callable[[Any], object]) -> None:
    """Weights of convolutions by a function, biases 0."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            weights(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


class SSDScoringHead(nn.Module):
    """Features of all levels, each through the layer of its level -> (N, K, num_columns)."""

    def __init__(self, module_list: nn.ModuleList, num_columns: int) -> None:
        super().__init__()
        self.module_list, self.num_columns = module_list, num_columns

    def forward(self, x: Sequence[Tensor]) -> Tensor:
        """The rows of all positions and boxes."""
        return rows_of([layer(one) for layer, one in zip(self.module_list, x, strict=True)], self.num_columns)


def _convolutions(in_channels: Sequence[int], num_anchors: Sequence[int], columns: int) -> nn.ModuleList:
    layers = nn.ModuleList([nn.Conv2d(width, columns * around, 3, padding=1) for width, around in zip(in_channels, num_anchors, strict=True)])
    initialise(layers, nn.init.xavier_uniform_)
    return layers


class SSDClassificationHead(SSDScoringHead):
    """Features of all levels -> scores (N, K, num_classes)."""

    def __init__(self, in_channels: Sequence[int], num_anchors: Sequence[int], num_classes: int) -> None:
        super().__init__(_convolutions(in_channels, num_anchors, num_classes), num_classes)


class SSDRegressionHead(SSDScoringHead):
    """Features of all levels -> differences (N, K, 4)."""

    def __init__(self, in_channels: Sequence[int], num_anchors: Sequence[int]) -> None:
        super().__init__(_convolutions(in_channels, num_anchors, 4), 4)


class SSDHead(nn.Module):
    """Features of all levels -> "bbox_regression" (N, K, 4) and "cls_logits" (N, K, num_classes)."""

    def __init__(self, in_channels: Sequence[int], num_anchors: Sequence[int], num_classes: int) -> None:
        super().__init__()
        self.classification_head = SSDClassificationHead(in_channels, num_anchors, num_classes)
        self.regression_head = SSDRegressionHead(in_channels, num_anchors)

    def forward(self, x: Sequence[Tensor]) -> dict[str, Tensor]:
        """Differences and scores."""
        return {"bbox_regression": self.regression_head(x), "cls_logits": self.classification_head(x)}


class SSD(SingleStage):
    """Images and targets -> losses "bbox_regression" and "classification" in training; images -> a dict for each, with boxes, scores and labels.

    backbone: images -> a dict of features; says its channels as `out_channels`, or is tried. anchor_generator: see `DefaultBoxGenerator`. size:
    (width, height) that images are brought to. num_classes: with the background, 0. image_mean, image_std: see `GeneralizedRCNNTransform`. head:
    gives differences and scores. score_thresh, topk_candidates: the lowest score of a box, and how many are looked at of each class. nms_thresh,
    detections_per_img: to what part a box may cover a better one of its class, and how many are kept of an image. iou_thresh: a box that covers a
    target to this part belongs to it. positive_fraction: of the boxes that count in the loss; those of the background are the worst ones. Raises
    ValueError where backbone and boxes have different numbers of levels.
    """

    def __init__(
        self, backbone: nn.Module, anchor_generator: DefaultBoxGenerator, size: tuple[int, int], num_classes: int, image_mean: Any = None,
        image_std: Any = None, head: nn.Module | None = None, score_thresh: float = 0.01, nms_thresh: float = 0.45, detections_per_img: int = 200,
        iou_thresh: float = 0.5, topk_candidates: int = 400, positive_fraction: float = 0.25, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        self.backbone, self.anchor_generator = backbone, anchor_generator
        self.box_coder = det_utils.BoxCoder(weights=(10.0, 10.0, 5.0, 5.0))
        if head is None:
            channels: Any = backbone.out_channels if hasattr(backbone, "out_channels") else det_utils.retrieve_out_channels(backbone, size)
            check_levels("SSD", channels, anchor_generator)
            head = SSDHead(channels, anchor_generator.num_anchors_per_location(), num_classes)
        self.head, self.proposal_matcher = head, det_utils.SSDMatcher(iou_thresh)
        options: dict[str, Any] = {"size_divisible": 1, "fixed_size": size, **kwargs}
        self.transform = GeneralizedRCNNTransform(min(size), max(size), image_mean or list(MEAN), image_std or list(DEVIATION), **options)
        self.score_thresh, self.nms_thresh = score_thresh, nms_thresh
        self.detections_per_img, self.topk_candidates = detections_per_img, topk_candidates
        self.neg_to_pos_ratio = (1.0 - positive_fraction) / positive_fraction

    def compute_loss(
        self, targets: Any, head_outputs: Outputs, anchors: Sequence[Tensor], matched_idxs: Sequence[Tensor]
    ) -> dict[str, Tensor]:  # fmt: skip
        """Both losses by the number of boxes that belong to a target; of the others only the worst count, some for each of them."""
        codes, logits = head_outputs["bbox_regression"], head_outputs["cls_logits"]
        boxes, wanted, count = [], [], 0
        for k, (target, owner) in enumerate(zip(targets, matched_idxs, strict=True)):
            inside = T.where(owner >= 0)[0]
            count += len(inside)
            drawn = self.box_coder.encode_single(target["boxes"][owner[inside]], anchors[k][inside])
            boxes.append(F.smooth_l1_loss(codes[k][inside], drawn, reduction="sum"))
            classes = T.zeros(len(owner), dtype=target["labels"].dtype, device=owner.device)
            classes[inside] = target["labels"][owner[inside]]
            wanted.append(classes)
        labels = T.stack(wanted)
        loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), reduction="none").reshape(labels.shape)
        positive = labels > 0
        hard = T.where(positive, -float("inf"), loss.detach())
        rank = hard.argsort(1, descending=True).argsort(1)
        counted = positive | (rank < self.neg_to_pos_ratio * positive.sum(1, keepdim=True))
        total = max(1, count)
        return {"bbox_regression": T.stack(boxes).sum() / total, "classification": T.where(counted, loss, 0.0).sum() / total}

    def losses_of(self, targets: Any, outputs: Outputs, anchors: Sequence[Tensor], counts: Sequence[int]) -> dict[str, Tensor]:
        """As of `SingleStage`."""
        owners = [
            self.proposal_matcher(box_ops.box_iou(target["boxes"], boxes)) if target["boxes"].numel() else unmatched(boxes)
            for boxes, target in zip(anchors, targets, strict=True)
        ]
        return self.compute_loss(targets, outputs, anchors, owners)

    def detect(self, outputs: Outputs, anchors: Sequence[Tensor], sizes: Sequence[tuple[int, int]], counts: Sequence[int]) -> list[dict[str, Tensor]]:
        """As of `SingleStage`."""
        likely = F.softmax(outputs["cls_logits"], -1)
        found = []
        for k, size in enumerate(sizes):
            boxes = box_ops.clip_boxes_to_image(self.box_coder.decode_single(outputs["bbox_regression"][k], anchors[k]), size)
            best, place = likely[k][:, 1:].topk(min(len(boxes), self.topk_candidates), 0)  # of each class, without the background
            label = T.arange(1, best.shape[1] + 1, device=best.device).expand(best.shape)
            keep = T.where((best > self.score_thresh).T.reshape(-1))[0]
            best, place, label = (one.T.reshape(-1)[keep] for one in (best, place, label))
            found.append(self.kept([boxes[place]], [best], [label.to(dt.int64)]))
        return found


def check_levels(op: str, channels: Sequence[int], boxes: DefaultBoxGenerator) -> None:
    """Raise ValueError where features and boxes have different numbers of levels."""
    if len(channels) != len(boxes.aspect_ratios):
        raise ArgumentError(
            f"[{op}] The length of the output channels from the backbone ({len(channels)}) do not match the length of the anchor generator aspect "
            f"ratios ({len(boxes.aspect_ratios)}); give a row of ratios for each map"
        )


def _reduced(before: int, inner: int, after: int, kernel: int, **options: Any) -> nn.Module:
    """Fewer channels, and a convolution that makes the image smaller."""
    return nn.Sequential(nn.Conv2d(before, inner, 1), nn.ReLU(inplace=True), nn.Conv2d(inner, after, kernel, **options), nn.ReLU(inplace=True))


class SSDFeatureExtractorVGG(nn.Module):
    """Images (N, 3, H, W) -> a dict of six features, or seven if `highres`, each about half as large as the one before.

    backbone: the convolutions of a VGG. Those before its fourth pooling give the first features, scaled to a length that is learnt; the rest, with a
    wide convolution in the place of linear layers, the second.
    """

    def __init__(self, backbone: Any, highres: bool) -> None:
        super().__init__()
        pools = [k for k, layer in enumerate(backbone) if isinstance(layer, nn.MaxPool2d)]
        backbone[pools[2]].ceil_mode = True  # 75 elements become 38, as in the paper
        self.scale_weight = nn.Parameter(T.ones(512) * 20)
        self.features = nn.Sequential(*list(backbone)[: pools[3]])
        extra = [
            _reduced(1024, 256, 512, 3, padding=1, stride=2), _reduced(512, 128, 256, 3, padding=1, stride=2), _reduced(256, 128, 256, 3),
            _reduced(256, 128, 256, 3), *([_reduced(256, 128, 256, 4)] if highres else []),
        ]  # fmt: skip
        wide = nn.Sequential(
            nn.MaxPool2d(3, 1, 1), nn.Conv2d(512, 1024, 3, padding=6, dilation=6), nn.ReLU(inplace=True), nn.Conv2d(1024, 1024, 1),
            nn.ReLU(inplace=True),
        )  # fmt: skip
        for part in (*extra, wide):
            initialise(part, nn.init.xavier_uniform_)
        self.extra = nn.ModuleList([nn.Sequential(*list(backbone)[pools[3] : -1], wide), *extra])

    def forward(self, x: Tensor) -> OrderedDict[str, Tensor]:
        """The features by their numbers."""
        x = self.features(x)
        found = [self.scale_weight.reshape(1, -1, 1, 1) * F.normalize(x)]
        for block in self.extra:
            x = block(x)
            found.append(x)
        return OrderedDict((str(k), one) for k, one in enumerate(found))


def vgg_features(model: Any, highres: bool, trainable_layers: int) -> SSDFeatureExtractorVGG:
    """The features of a VGG, of whose stages all but the last `trainable_layers` are told not to learn."""
    features = model.features
    stages = [0, *[k for k, layer in enumerate(features) if isinstance(layer, nn.MaxPool2d)][:-1]]
    for layer in list(features)[: len(features) if trainable_layers == 0 else stages[len(stages) - trainable_layers]]:
        layer.requires_grad_(False)
    return SSDFeatureExtractorVGG(features, highres)


def without_size(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Options of a model of a fixed size."""
    if "size" in options:
        warn_user(f"[{name}] The size of the model is already fixed; ignoring the parameter.")
    return {key: value for key, value in options.items() if key != "size"}


def _build(trained: bool, weights: Any, layers: int | None, num_classes: int, **options: Any) -> SSD:
    backbone = vgg_features(vgg16(weights=weights), False, trainable(trained, layers, 5, 4))
    boxes = DefaultBoxGenerator(
        [[2], [2, 3], [2, 3], [2, 3], [2], [2]], scales=[0.07, 0.15, 0.33, 0.51, 0.69, 0.87, 1.05], steps=[8, 16, 32, 64, 100, 300]
    )
    usual = {"image_mean": [0.48235, 0.45882, 0.40784], "image_std": [1.0 / 255.0] * 3}  # the backbone was trained with values up to 255
    return SSD(backbone, boxes, (300, 300), num_classes, **{**usual, **without_size("ssd300_vgg16", options)})


ssd300_vgg16 = detector("ssd300_vgg16", "SSD", _build, "SSD of images of 300 x 300 with VGG-16's features.", "IMAGENET1K_FEATURES")
