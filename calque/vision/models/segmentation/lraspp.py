"""Lite R-ASPP, with torchvision's names and state dicts. Source: Howard et al. 2019, "Searching for MobileNetV3", section 6.4."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from calque import nn
from calque.nn import functional as F
from calque.tensor import Tensor
from calque.vision.models._utils import IntermediateLayerGetter
from calque.vision.models.segmentation._utils import mobilenet_features, segmenter

__all__ = ["LRASPP", "LRASPPHead", "lraspp_mobilenet_v3_large"]


class LRASPPHead(nn.Module):
    """{"low": (N, low_channels, h, w), "high": (N, high_channels, ., .)} -> (N, num_classes, h, w): coarse features, weighted by what the whole image
    says, and fine ones give scores each, which are added. inter_channels: between the coarse features and their scores."""

    def __init__(self, low_channels: int, high_channels: int, num_classes: int, inter_channels: int) -> None:
        super().__init__()
        conv = nn.Conv2d(high_channels, inter_channels, 1, bias=False)
        self.cbr = nn.Sequential(conv, nn.BatchNorm2d(inter_channels), nn.ReLU(inplace=True))
        self.scale = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(high_channels, inter_channels, 1, bias=False), nn.Sigmoid())
        self.low_classifier, self.high_classifier = nn.Conv2d(low_channels, num_classes, 1), nn.Conv2d(inter_channels, num_classes, 1)

    def forward(self, input: Mapping[str, Tensor]) -> Tensor:
        """The scores of the classes."""
        low, high = input["low"], input["high"]
        coarse = F.interpolate(self.cbr(high) * self.scale(high), size=low.shape[-2:], mode="bilinear", align_corners=False)
        return self.low_classifier(low) + self.high_classifier(coarse)  # type: ignore[no-any-return]


class LRASPP(nn.Module):
    """(N, 3, H, W) -> {"out": (N, num_classes, H, W)}.

    backbone: image -> {"low": fine features of `low_channels`, "high": coarse ones of `high_channels`}. inter_channels: of `LRASPPHead`.

    >>> import calque
    >>> from calque.vision.models import resnet18
    >>> from calque.vision.models._utils import IntermediateLayerGetter
    >>> net = LRASPP(IntermediateLayerGetter(resnet18(), {"layer2": "low", "layer4": "high"}), 128, 512, num_classes=5)
    >>> tuple(net(calque.zeros(1, 3, 64, 48))["out"].shape)
    (1, 5, 64, 48)
    """

    def __init__(self, backbone: nn.Module, low_channels: int, high_channels: int, num_classes: int, inter_channels: int = 128) -> None:
        super().__init__()
        self.backbone, self.classifier = backbone, LRASPPHead(low_channels, high_channels, num_classes, inter_channels)

    def forward(self, input: Tensor) -> Any:
        """The scores of the classes at each pixel."""
        out = self.classifier(self.backbone(input))
        return OrderedDict(out=F.interpolate(out, size=input.shape[-2:], mode="bilinear", align_corners=False))


def _build(num_classes: int, aux: bool, weights: Any) -> LRASPP:
    if aux:
        raise NotImplementedError("[lraspp_mobilenet_v3_large] This model does not use auxiliary loss, got aux_loss=True; leave it out")
    features, last, middle = mobilenet_features(weights)
    backbone = IntermediateLayerGetter(features, {middle: "low", last: "high"})
    return LRASPP(backbone, features[int(middle)].out_channels, features[int(last)].out_channels, num_classes)


lraspp_mobilenet_v3_large = segmenter(
    "lraspp_mobilenet_v3_large", _build, 'Lite R-ASPP on MobileNet V3, without a second head: (N, 3, H, W) -> {"out": (N, num_classes, H, W)}.'
)
