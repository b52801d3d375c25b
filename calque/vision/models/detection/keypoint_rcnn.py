"""Keypoint R-CNN, with torchvision's names and state dicts. Source: He et al. 2017, "Mask R-CNN"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from calque import nn
from calque.base.errors import ArgumentError
from calque.nn import functional as F
from calque.tensor import Tensor
from calque.vision.models.detection.faster_rcnn import FasterRCNN, check_backbone, check_kind, resnet50_pyramid
from calque.vision.models.detection.weights import detector
from calque.vision.ops.poolers import MultiScaleRoIAlign

__all__ = ["KeypointRCNN", "KeypointRCNNHeads", "KeypointRCNNPredictor", "keypointrcnn_resnet50_fpn"]


class KeypointRCNNHeads(nn.Sequential):
    """(K, in_channels, M, M) -> (K, layers[-1], M, M): 3x3 convolutions of these widths."""

    def __init__(self, in_channels: int, layers: Sequence[int]) -> None:
        found: list[nn.Module] = []
        for width in layers:
            conv = nn.Conv2d(in_channels, width, 3, padding=1)
            nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(conv.bias)
            found += [conv, nn.ReLU(inplace=True)]
            in_channels = width
        super().__init__(*found)


class KeypointRCNNPredictor(nn.Module):
    """(K, in_channels, M, M) -> scores (K, num_keypoints, 4 M, 4 M): where in its box each point lies."""

    def __init__(self, in_channels: int, num_keypoints: int) -> None:
        super().__init__()
        self.kps_score_lowres = nn.ConvTranspose2d(in_channels, num_keypoints, 4, stride=2, padding=1)
        nn.init.kaiming_normal_(self.kps_score_lowres.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.kps_score_lowres.bias)
        self.up_scale, self.out_channels = 2, num_keypoints

    def forward(self, x: Tensor) -> Tensor:
        """The scores."""
        return F.interpolate(self.kps_score_lowres(x), scale_factor=float(self.up_scale), mode="bilinear", align_corners=False)  # type: ignore[no-any-return]


class KeypointRCNN(FasterRCNN):
    """A `FasterRCNN` that also gives points: targets have "keypoints" (N, P, 3), x, y and whether they are seen, and results have "keypoints", too,
    and their scores "keypoints_scores" (N, P).

    backbone, num_classes and options: see `FasterRCNN`; min_size is by default one of six sizes, drawn. keypoint_roi_pool, keypoint_head,
    keypoint_predictor: from features and boxes to scores (K, num_keypoints, M, M). num_keypoints: of each box (default 17, those of a person). Raises
    ValueError where it is given with a `keypoint_predictor`.
    """

    def __init__(
        self, backbone: nn.Module, num_classes: int | None = None, min_size: Any = None, *args: Any, keypoint_roi_pool: Any = None,
        keypoint_head: Any = None, keypoint_predictor: Any = None, num_keypoints: int | None = None, **options: Any,
    ) -> None:  # fmt: skip
        check_backbone("KeypointRCNN", backbone)
        check_kind("KeypointRCNN", "keypoint_roi_pool", keypoint_roi_pool, MultiScaleRoIAlign)
        if num_keypoints is not None and keypoint_predictor is not None:
            raise ArgumentError(
                f"[KeypointRCNN] num_keypoints should be None when keypoint_predictor is specified, got {num_keypoints}; the predictor knows it"
            )
        super().__init__(backbone, num_classes, (640, 672, 704, 736, 768, 800) if min_size is None else min_size, *args, **options)
        channels: Any = backbone.out_channels
        self.roi_heads.keypoint_roi_pool = keypoint_roi_pool or MultiScaleRoIAlign(["0", "1", "2", "3"], output_size=14, sampling_ratio=2)
        self.roi_heads.keypoint_head = keypoint_head or KeypointRCNNHeads(channels, (512,) * 8)
        self.roi_heads.keypoint_predictor = keypoint_predictor or KeypointRCNNPredictor(512, num_keypoints or 17)


def _build(trained: bool, weights: Any, layers: int | None, num_classes: int, **options: Any) -> KeypointRCNN:
    return KeypointRCNN(resnet50_pyramid(trained, weights, layers), num_classes, **options)


keypointrcnn_resnet50_fpn = detector(
    "keypointrcnn_resnet50_fpn", "KeypointRCNN", _build, "Keypoint R-CNN with a pyramid of ResNet-50's features.", "IMAGENET1K_V1", 2,
    ', and "keypoints" (N, P, 3), x, y and whether they are seen', ', and "keypoints" and "keypoints_scores"',
)  # fmt: skip
