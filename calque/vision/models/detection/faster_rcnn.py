"""Faster R-CNN, with torchvision's names and state dicts. Source: Ren et al. 2015, "Faster R-CNN"; with a pyramid, Lin et al. 2017, "Feature Pyramid
Networks for Object Detection"; the second version, Li et al. 2021, "Benchmarking Detection Transfer Learning with Vision Transformers"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from calque import nn
from calque.base.errors import ArgumentError, DTypeError
from calque.base.text import type_name
from calque.nn import functional as F
from calque.tensor import Tensor
from calque.vision.models.detection._utils import TargetError
from calque.vision.models.detection.anchor_utils import AnchorGenerator
from calque.vision.models.detection.backbone_utils import mobilenet_features, resnet_pyramid, trainable
from calque.vision.models.detection.generalized_rcnn import GeneralizedRCNN
from calque.vision.models.detection.roi_heads import RoIHeads
from calque.vision.models.detection.rpn import RegionProposalNetwork, RPNHead
from calque.vision.models.detection.transform import GeneralizedRCNNTransform
from calque.vision.models.detection.weights import detector
from calque.vision.models.efficientnet import mobilenet_v3_large
from calque.vision.models.resnet import resnet50
from calque.vision.ops.misc import Conv2dNormActivation, FrozenBatchNorm2d
from calque.vision.ops.poolers import MultiScaleRoIAlign

__all__ = [
    "FastRCNNConvFCHead", "FastRCNNPredictor", "FasterRCNN", "TwoMLPHead", "fasterrcnn_mobilenet_v3_large_320_fpn",
    "fasterrcnn_mobilenet_v3_large_fpn", "fasterrcnn_resnet50_fpn", "fasterrcnn_resnet50_fpn_v2",
]  # fmt: skip

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of the images that backbones were trained with


def pyramid_anchors() -> AnchorGenerator:
    """One size of boxes for each of five levels, in three proportions."""
    return AnchorGenerator(((32,), (64,), (128,), (256,), (512,)), ((0.5, 1.0, 2.0),) * 5)


def check_kind(op: str, name: str, value: Any, kind: type) -> None:
    """Raise TypeError unless a part is left out or of its class."""
    if value is not None and not isinstance(value, kind):
        raise DTypeError(f"[{op}] {name} should be of type {kind.__name__} or None instead of {type_name(value)}; derive yours from {kind.__name__}")


def check_backbone(op: str, backbone: Any) -> None:
    """Raise ValueError where a backbone does not say its channels."""
    if not hasattr(backbone, "out_channels"):
        raise ArgumentError(
            f"[{op}] backbone should contain an attribute out_channels specifying the number of output channels, got {type_name(backbone)}; "
            "set backbone.out_channels"
        )


class TwoMLPHead(nn.Module):
    """Features (K, ...) of `in_channels` numbers -> (K, representation_size)."""

    def __init__(self, in_channels: int, representation_size: int) -> None:
        super().__init__()
        self.fc6, self.fc7 = nn.Linear(in_channels, representation_size), nn.Linear(representation_size, representation_size)

    def forward(self, x: Tensor) -> Tensor:
        """What is known of each box."""
        return F.relu(self.fc7(F.relu(self.fc6(x.flatten(1)))))


class FastRCNNConvFCHead(nn.Sequential):
    """Features (K, C, H, W) of `input_size` (C, H, W) -> (K, fc_layers[-1]). conv_layers, fc_layers: widths of convolutions, then of linear
    layers."""

    def __init__(
        self, input_size: Sequence[int], conv_layers: Sequence[int], fc_layers: Sequence[int], norm_layer: Callable[..., nn.Module] | None = None
    ) -> None:  # fmt: skip
        channels, height, width = input_size
        layers: list[nn.Module] = []
        for wide in conv_layers:
            layers.append(Conv2dNormActivation(channels, wide, norm_layer=norm_layer))
            channels = wide
        layers.append(nn.Flatten())
        channels *= height * width
        for wide in fc_layers:
            layers += [nn.Linear(channels, wide), nn.ReLU(inplace=True)]
            channels = wide
        super().__init__(*layers)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)


class FastRCNNPredictor(nn.Module):
    """(K, in_channels) -> (scores (K, num_classes), differences (K, 4 num_classes)). num_classes: with the background.

    >>> import calque
    >>> from calque.vision.models.detection.faster_rcnn import FastRCNNPredictor
    >>> scores, differences = FastRCNNPredictor(8, num_classes=3)(calque.randn(5, 8))
    >>> scores.shape, differences.shape
    (torch.Size([5, 3]), torch.Size([5, 12]))
    """

    def __init__(self, in_channels: int, num_classes: int) -> None:
        super().__init__()
        self.cls_score, self.bbox_pred = nn.Linear(in_channels, num_classes), nn.Linear(in_channels, 4 * num_classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Scores and differences. Raises AssertionError for features that have more than one position."""
        if x.ndim == 4 and tuple(x.shape[2:]) != (1, 1):
            raise TargetError(
                f"[FastRCNNPredictor] x has the wrong shape, expecting the last two dimensions to be [1,1] instead of {list(x.shape[2:])}; "
                "pool it first"
            )
        x = x.flatten(1)
        return self.cls_score(x), self.bbox_pred(x)


class FasterRCNN(GeneralizedRCNN):
    """Images and targets -> losses by name in training; images -> a dict for each, with boxes, labels and scores, in evaluation.

    backbone: images -> features, or a dict of them; says its channels as `out_channels`. num_classes: with the background; None if there is a
    `box_predictor`. min_size, max_size, image_mean, image_std: see `GeneralizedRCNNTransform`. rpn_*: see `RegionProposalNetwork`, top_n in training
    and in evaluation. box_*, bbox_reg_weights: see `RoIHeads`. Raises ValueError where `num_classes` or `out_channels` is missing, TypeError for
    parts of other classes.

    >>> import calque
    >>> from calque.vision.models.detection import FasterRCNN
    >>> backbone = calque.nn.Sequential(calque.nn.Conv2d(3, 8, 3, stride=16, padding=1), calque.nn.ReLU())
    >>> backbone.out_channels = 8
    >>> anchors = calque.vision.models.detection.rpn.AnchorGenerator(((16, 32),), ((1.0,),))
    >>> pool = calque.vision.ops.MultiScaleRoIAlign(["0"], output_size=3, sampling_ratio=2)
    >>> model = FasterRCNN(backbone, 2, min_size=64, rpn_anchor_generator=anchors, box_roi_pool=pool)
    >>> target = {"boxes": calque.tensor([[4.0, 8.0, 30.0, 40.0]]), "labels": calque.tensor([1])}
    >>> sorted(model([calque.rand(3, 64, 64)], [target]))
    ['loss_box_reg', 'loss_classifier', 'loss_objectness', 'loss_rpn_box_reg']
    """

    def __init__(
        self, backbone: nn.Module, num_classes: int | None = None, min_size: Any = 800, max_size: int = 1333, image_mean: Any = None,
        image_std: Any = None, rpn_anchor_generator: Any = None, rpn_head: Any = None, rpn_pre_nms_top_n_train: int = 2000,
        rpn_pre_nms_top_n_test: int = 1000, rpn_post_nms_top_n_train: int = 2000, rpn_post_nms_top_n_test: int = 1000, rpn_nms_thresh: float = 0.7,
        rpn_fg_iou_thresh: float = 0.7, rpn_bg_iou_thresh: float = 0.3, rpn_batch_size_per_image: int = 256, rpn_positive_fraction: float = 0.5,
        rpn_score_thresh: float = 0.0, box_roi_pool: Any = None, box_head: Any = None, box_predictor: Any = None, box_score_thresh: float = 0.05,
        box_nms_thresh: float = 0.5, box_detections_per_img: int = 100, box_fg_iou_thresh: float = 0.5, box_bg_iou_thresh: float = 0.5,
        box_batch_size_per_image: int = 512, box_positive_fraction: float = 0.25, bbox_reg_weights: Any = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        name = type(self).__name__
        check_backbone(name, backbone)
        check_kind(name, "rpn_anchor_generator", rpn_anchor_generator, AnchorGenerator)
        check_kind(name, "box_roi_pool", box_roi_pool, MultiScaleRoIAlign)
        if (num_classes is None) == (box_predictor is None):
            wrong = "None when box_predictor is specified" if box_predictor is not None else "not None when box_predictor is not specified"
            raise ArgumentError(f"[{name}] num_classes should be {wrong}, got {num_classes}; give one of both")
        channels: Any = backbone.out_channels
        anchors = rpn_anchor_generator or pyramid_anchors()
        rpn = RegionProposalNetwork(
            anchors, rpn_head or RPNHead(channels, anchors.num_anchors_per_location()[0]), rpn_fg_iou_thresh, rpn_bg_iou_thresh,
            rpn_batch_size_per_image, rpn_positive_fraction, {"training": rpn_pre_nms_top_n_train, "testing": rpn_pre_nms_top_n_test},
            {"training": rpn_post_nms_top_n_train, "testing": rpn_post_nms_top_n_test}, rpn_nms_thresh, rpn_score_thresh,
        )  # fmt: skip
        pool = box_roi_pool or MultiScaleRoIAlign(["0", "1", "2", "3"], output_size=7, sampling_ratio=2)
        roi_heads = RoIHeads(
            pool, box_head or TwoMLPHead(channels * pool.output_size[0] ** 2, 1024), box_predictor or FastRCNNPredictor(1024, num_classes or 0),
            box_fg_iou_thresh, box_bg_iou_thresh, box_batch_size_per_image, box_positive_fraction, bbox_reg_weights, box_score_thresh,
            box_nms_thresh, box_detections_per_img,
        )  # fmt: skip
        transform = GeneralizedRCNNTransform(min_size, max_size, image_mean or list(MEAN), image_std or list(DEVIATION), **kwargs)
        super().__init__(backbone, rpn, roi_heads, transform)


def resnet50_pyramid(trained: bool, weights: Any, layers: int | None, **options: Any) -> Any:
    """ResNet-50 with a pyramid, with normalisations that never change if it was trained."""
    model = resnet50(weights=weights, norm_layer=FrozenBatchNorm2d if trained else nn.BatchNorm2d)
    return resnet_pyramid(model, trainable(trained, layers, 5, 3), **options)


def second_version(trained: bool, weights: Any, layers: int | None) -> dict[str, Any]:
    """The parts of the second version: normalisations that learn, two convolutions before proposals, four before classes."""
    backbone = resnet_pyramid(resnet50(weights=weights), trainable(trained, layers, 5, 3), norm_layer=nn.BatchNorm2d)
    anchors = pyramid_anchors()
    return {
        "backbone": backbone, "rpn_anchor_generator": anchors, "rpn_head": RPNHead(256, anchors.num_anchors_per_location()[0], conv_depth=2),
        "box_head": FastRCNNConvFCHead((256, 7, 7), [256] * 4, [1024], norm_layer=nn.BatchNorm2d),
    }  # fmt: skip


def _first(trained: bool, weights: Any, layers: int | None, num_classes: int, **options: Any) -> FasterRCNN:
    return FasterRCNN(resnet50_pyramid(trained, weights, layers), num_classes, **options)


def _second(trained: bool, weights: Any, layers: int | None, num_classes: int, **options: Any) -> FasterRCNN:
    return FasterRCNN(**{**second_version(trained, weights, layers), "num_classes": num_classes, **options})


def _mobile(trained: bool, weights: Any, layers: int | None, num_classes: int, **options: Any) -> FasterRCNN:
    model = mobilenet_v3_large(weights=weights, norm_layer=FrozenBatchNorm2d if trained else nn.BatchNorm2d)
    backbone = mobilenet_features(model, True, trainable(trained, layers, 6, 3))
    anchors = AnchorGenerator(((32, 64, 128, 256, 512),) * 3, ((0.5, 1.0, 2.0),) * 3)
    return FasterRCNN(backbone, num_classes, **{"rpn_anchor_generator": anchors, "rpn_score_thresh": 0.05, **options})


def _small(trained: bool, weights: Any, layers: int | None, num_classes: int, **options: Any) -> FasterRCNN:
    usual = {"min_size": 320, "max_size": 640, "rpn_pre_nms_top_n_test": 150, "rpn_post_nms_top_n_test": 150}
    return _mobile(trained, weights, layers, num_classes, **{**usual, **options})


_KIND = "FasterRCNN"
fasterrcnn_resnet50_fpn = detector(
    "fasterrcnn_resnet50_fpn", _KIND, _first, "Faster R-CNN with a pyramid of ResNet-50's features.", "IMAGENET1K_V1"
)
fasterrcnn_resnet50_fpn_v2 = detector(
    "fasterrcnn_resnet50_fpn_v2", _KIND, _second, "Faster R-CNN with a pyramid of ResNet-50's features and convolutions in its heads.", None
)
fasterrcnn_mobilenet_v3_large_fpn = detector(
    "fasterrcnn_mobilenet_v3_large_fpn", _KIND, _mobile, "Faster R-CNN with a pyramid of MobileNet V3's features.", "IMAGENET1K_V1"
)
fasterrcnn_mobilenet_v3_large_320_fpn = detector(
    "fasterrcnn_mobilenet_v3_large_320_fpn", _KIND, _small, "Faster R-CNN of small images with a pyramid of MobileNet V3's features.",
    "IMAGENET1K_V1",
)  # fmt: skip
