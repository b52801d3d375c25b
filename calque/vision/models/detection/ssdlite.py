"""SSDlite, with torchvision's names and state dicts. Source: Sandler et al. 2018, "MobileNetV2"; Howard et al. 2019, "Searching for MobileNetV3"."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from calque import nn
from calque.base.errors import ArgumentError
from calque.tensor import Tensor
from calque.vision.models.detection import _utils as det_utils
from calque.vision.models.detection.anchor_utils import DefaultBoxGenerator
from calque.vision.models.detection.backbone_utils import freeze_stages, trainable
from calque.vision.models.detection.ssd import SSD, SSDScoringHead, check_levels, initialise, without_size
from calque.vision.models.detection.weights import detector
from calque.vision.models.efficientnet import mobilenet_v3_large
from calque.vision.ops.misc import Conv2dNormActivation

__all__ = [
    "SSDLiteClassificationHead", "SSDLiteFeatureExtractorMobileNet", "SSDLiteHead", "SSDLiteRegressionHead", "ssdlite320_mobilenet_v3_large",
]  # fmt: skip

Layers = Callable[..., nn.Module]
_small_weights = partial(nn.init.normal_, mean=0.0, std=0.03)


def _predictors(in_channels: Sequence[int], num_anchors: Sequence[int], columns: int, norm_layer: Layers) -> nn.ModuleList:
    """For each level one filter for each channel, and a layer that gives results."""
    layers = nn.ModuleList([
        nn.Sequential(
            Conv2dNormActivation(width, width, 3, groups=width, norm_layer=norm_layer, activation_layer=nn.ReLU6),
            nn.Conv2d(width, columns * around, 1),
        )
        for width, around in zip(in_channels, num_anchors, strict=True)
    ])  # fmt: skip
    initialise(layers, _small_weights)
    return layers


class SSDLiteClassificationHead(SSDScoringHead):
    """Features of all levels -> scores (N, K, num_classes)."""

    def __init__(self, in_channels: Sequence[int], num_anchors: Sequence[int], num_classes: int, norm_layer: Layers) -> None:
        super().__init__(_predictors(in_channels, num_anchors, num_classes, norm_layer), num_classes)


class SSDLiteRegressionHead(SSDScoringHead):
    """Features of all levels -> differences (N, K, 4)."""

    def __init__(self, in_channels: Sequence[int], num_anchors: Sequence[int], norm_layer: Layers) -> None:
        super().__init__(_predictors(in_channels, num_anchors, 4, norm_layer), 4)


class SSDLiteHead(nn.Module):
    """Features of all levels -> "bbox_regression" (N, K, 4) and "cls_logits" (N, K, num_classes)."""

    def __init__(self, in_channels: Sequence[int], num_anchors: Sequence[int], num_classes: int, norm_layer: Layers) -> None:
        super().__init__()
        self.classification_head = SSDLiteClassificationHead(in_channels, num_anchors, num_classes, norm_layer)
        self.regression_head = SSDLiteRegressionHead(in_channels, num_anchors, norm_layer)

    def forward(self, x: Sequence[Tensor]) -> dict[str, Tensor]:
        """Differences and scores."""
        return {"bbox_regression": self.regression_head(x), "cls_logits": self.classification_head(x)}


def _smaller(before: int, after: int, norm_layer: Layers) -> nn.Module:
    """Half the channels of the result, one filter of stride 2 for each, and the result."""
    conv = partial(Conv2dNormActivation, norm_layer=norm_layer, activation_layer=nn.ReLU6)
    inner = after // 2
    return nn.Sequential(conv(before, inner, 1), conv(inner, inner, 3, 2, groups=inner), conv(inner, after, 1))


class SSDLiteFeatureExtractorMobileNet(nn.Module):
    """Images (N, 3, H, W) -> a dict of six features, each half as large as the one before.

    backbone: the blocks of a MobileNet V3; the first features are what the block at `c4_pos` makes of its input before it becomes smaller.
    width_mult, min_depth: times as many channels of the others, and at least how many. Raises ValueError if that block has a shortcut.
    """

    def __init__(self, backbone: Any, c4_pos: int, norm_layer: Layers, width_mult: float = 1.0, min_depth: int = 16) -> None:
        super().__init__()
        blocks = list(backbone)
        split = blocks[c4_pos]
        if split.use_res_connect:
            raise ArgumentError(f"[SSDLite] backbone[c4_pos].use_res_connect should be False, got a shortcut at {c4_pos}; split where a stage begins")
        self.features = nn.Sequential(
            nn.Sequential(*blocks[:c4_pos], split.block[0]), nn.Sequential(split.block[1:], *blocks[c4_pos + 1 :])
        )
        widths = [blocks[-1].out_channels, *[max(min_depth, int(width * width_mult)) for width in (512, 256, 256, 128)]]
        self.extra = nn.ModuleList([_smaller(before, after, norm_layer) for before, after in pairwise(widths)])
        initialise(self.extra, _small_weights)

    def forward(self, x: Tensor) -> OrderedDict[str, Tensor]:
        """The features by their numbers."""
        found: OrderedDict[str, Tensor] = OrderedDict()
        for block in (*self.features, *self.extra):
            x = block(x)
            found[str(len(found))] = x
        return found


def _build(
    trained: bool, weights: Any, layers: int | None, num_classes: int, *, norm_layer: Layers | None = None, **options: Any
) -> SSD:  # fmt: skip
    norm = norm_layer or partial(nn.BatchNorm2d, eps=0.001, momentum=0.03)
    model = mobilenet_v3_large(weights=weights, norm_layer=norm, reduced_tail=weights is None)
    if weights is None:
        initialise(model, _small_weights)
    stages = freeze_stages(model.features, trainable(trained, layers, 6, 6))
    backbone = SSDLiteFeatureExtractorMobileNet(model.features, stages[-2], norm)
    boxes = DefaultBoxGenerator([[2, 3] for _ in range(6)], min_ratio=0.2, max_ratio=0.95)
    channels = det_utils.retrieve_out_channels(backbone, (320, 320))
    check_levels("ssdlite320_mobilenet_v3_large", channels, boxes)
    usual = {
        "score_thresh": 0.001, "nms_thresh": 0.55, "detections_per_img": 300, "topk_candidates": 300, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
        "head": SSDLiteHead(channels, boxes.num_anchors_per_location(), num_classes, norm),
    }  # fmt: skip
    return SSD(backbone, boxes, (320, 320), num_classes, **{**usual, **without_size("ssdlite320_mobilenet_v3_large", options)})


ssdlite320_mobilenet_v3_large = detector(
    "ssdlite320_mobilenet_v3_large", "SSD", _build, "SSDlite of images of 320 x 320 with MobileNet V3's features.", "IMAGENET1K_V1"
)
