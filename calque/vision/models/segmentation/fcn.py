"""Fully convolutional networks, with torchvision's names and state dicts. Source: Long et al. 2015, "Fully Convolutional Networks for Semantic
Segmentation"; the backbones are dilated residual networks, as in torchvision."""

from __future__ import annotations

from typing import Any

from calque import nn
from calque.vision.models.segmentation._utils import _SimpleSegmentationModel, layers_of, resnet_features, segmenter

__all__ = ["FCN", "FCNHead", "fcn_resnet101", "fcn_resnet50"]


class FCN(_SimpleSegmentationModel):
    """(N, 3, H, W) -> {"out": (N, classes, H, W)}, with "aux" where there is an `aux_classifier`.

    backbone: image -> {"out": features, "aux": features from its middle}. classifier, aux_classifier: features -> scores, such as `FCNHead`.

    >>> import calque
    >>> from calque.vision.models._utils import IntermediateLayerGetter
    >>> from calque.vision.models import resnet18
    >>> net = FCN(IntermediateLayerGetter(resnet18(), {"layer4": "out"}), FCNHead(512, 5))
    >>> tuple(net(calque.zeros(1, 3, 64, 48))["out"].shape)
    (1, 5, 64, 48)
    """


class FCNHead(nn.Sequential):
    """(N, in_channels, H, W) -> (N, channels, H, W): a 3x3 convolution to a quarter of the channels, dropout, and a 1x1 convolution to the scores."""

    def __init__(self, in_channels: int, channels: int) -> None:
        inner = in_channels // 4
        conv = nn.Conv2d(in_channels, inner, 3, padding=1, bias=False)
        super().__init__(conv, nn.BatchNorm2d(inner), nn.ReLU(), nn.Dropout(0.1), nn.Conv2d(inner, channels, 1))


def _make(name: str) -> Any:
    def build(num_classes: int, aux: bool, weights: Any) -> FCN:
        backbone = layers_of(resnet_features(name, weights), "layer4", "layer3" if aux else None)
        return FCN(backbone, FCNHead(2048, num_classes), FCNHead(1024, num_classes) if aux else None)

    return segmenter(f"fcn_{name}", build, f"A fully convolutional network on {name}: (N, 3, H, W) -> {{\"out\": (N, num_classes, H, W)}}.")


fcn_resnet50, fcn_resnet101 = _make("resnet50"), _make("resnet101")
