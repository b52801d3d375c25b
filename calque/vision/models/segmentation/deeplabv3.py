"""DeepLab V3, with torchvision's names and state dicts. Source: Chen et al. 2017, "Rethinking Atrous Convolution for Semantic Image Segmentation"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from calque import functional as T
from calque import nn
from calque.nn import functional as F
from calque.tensor import Tensor
from calque.vision.models.segmentation._utils import _SimpleSegmentationModel, layers_of, mobilenet_features, resnet_features, segmenter
from calque.vision.models.segmentation.fcn import FCNHead

__all__ = [
    "ASPP", "ASPPConv", "ASPPPooling", "DeepLabHead", "DeepLabV3", "deeplabv3_mobilenet_v3_large", "deeplabv3_resnet101", "deeplabv3_resnet50",
]  # fmt: skip


class DeepLabV3(_SimpleSegmentationModel):
    """(N, 3, H, W) -> {"out": (N, classes, H, W)}, with "aux" where there is an `aux_classifier`.

    backbone: image -> {"out": features, "aux": features from its middle}. classifier, aux_classifier: features -> scores, such as `DeepLabHead`.
    """


class ASPPConv(nn.Sequential):
    """(N, in_channels, H, W) -> (N, out_channels, H, W): a 3x3 convolution whose filters reach `dilation` places far."""

    def __init__(self, in_channels: int, out_channels: int, dilation: int) -> None:
        conv = nn.Conv2d(in_channels, out_channels, 3, padding=dilation, dilation=dilation, bias=False)
        super().__init__(conv, nn.BatchNorm2d(out_channels), nn.ReLU())


class ASPPPooling(nn.Sequential):
    """(N, in_channels, H, W) -> (N, out_channels, H, W): what the whole image says, at each place. In training N is at least 2, since a batch norm
    follows the mean over all places."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        conv = nn.Conv2d(in_channels, out_channels, 1, bias=False)
        super().__init__(nn.AdaptiveAvgPool2d(1), conv, nn.BatchNorm2d(out_channels), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        """The same values everywhere."""
        return F.interpolate(super().forward(x), size=x.shape[-2:], mode="bilinear", align_corners=False)  # type: ignore[no-any-return]


class ASPP(nn.Module):
    """(N, in_channels, H, W) -> (N, out_channels, H, W): filters of several reaches side by side, and the mean of the image.

    atrous_rates: the reaches of the 3x3 filters; a 1x1 filter is always there.

    >>> import calque
    >>> tuple(ASPP(8, [2, 4], out_channels=16).eval()(calque.zeros(1, 8, 10, 12)).shape)
    (1, 16, 10, 12)
    """

    def __init__(self, in_channels: int, atrous_rates: Sequence[int], out_channels: int = 256) -> None:
        super().__init__()
        one = nn.Sequential(nn.Conv2d(in_channels, out_channels, 1, bias=False), nn.BatchNorm2d(out_channels), nn.ReLU())
        wider = [ASPPConv(in_channels, out_channels, rate) for rate in atrous_rates]
        self.convs = nn.ModuleList([one, *wider, ASPPPooling(in_channels, out_channels)])
        joined = nn.Conv2d(len(self.convs) * out_channels, out_channels, 1, bias=False)
        self.project = nn.Sequential(joined, nn.BatchNorm2d(out_channels), nn.ReLU(), nn.Dropout(0.5))

    def forward(self, x: Tensor) -> Tensor:
        """The joined features."""
        return self.project(T.cat([conv(x) for conv in self.convs], 1))  # type: ignore[no-any-return]


class DeepLabHead(nn.Sequential):
    """(N, in_channels, H, W) -> (N, num_classes, H, W): `ASPP` and two convolutions. atrous_rates: its reaches."""

    def __init__(self, in_channels: int, num_classes: int, atrous_rates: Sequence[int] = (12, 24, 36)) -> None:
        conv = nn.Conv2d(256, 256, 3, padding=1, bias=False)
        super().__init__(ASPP(in_channels, atrous_rates), conv, nn.BatchNorm2d(256), nn.ReLU(), nn.Conv2d(256, num_classes, 1))


def _on_resnet(name: str) -> Any:
    def build(num_classes: int, aux: bool, weights: Any) -> DeepLabV3:
        backbone = layers_of(resnet_features(name, weights), "layer4", "layer3" if aux else None)
        return DeepLabV3(backbone, DeepLabHead(2048, num_classes), FCNHead(1024, num_classes) if aux else None)

    return build


def _on_mobilenet(num_classes: int, aux: bool, weights: Any) -> DeepLabV3:
    features, last, middle = mobilenet_features(weights)
    heads = DeepLabHead(features[int(last)].out_channels, num_classes), FCNHead(features[int(middle)].out_channels, num_classes) if aux else None
    return DeepLabV3(layers_of(features, last, middle if aux else None), *heads)


_TEXT = 'DeepLab V3 on {}: (N, 3, H, W) -> {{"out": (N, num_classes, H, W)}}.'
deeplabv3_resnet50, deeplabv3_resnet101 = (
    segmenter(f"deeplabv3_{name}", _on_resnet(name), _TEXT.format(name)) for name in ("resnet50", "resnet101")
)
deeplabv3_mobilenet_v3_large = segmenter("deeplabv3_mobilenet_v3_large", _on_mobilenet, _TEXT.format("MobileNet V3"))
