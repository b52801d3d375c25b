"""S3D, with torchvision's names and state dicts. Source: Xie et al. 2018, "Rethinking Spatiotemporal Feature Learning: Speed-Accuracy Trade-offs in
Video Classification"."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from calque import functional as T
from calque import nn
from calque.tensor import Tensor
from calque.vision.models.weights import maker

__all__ = ["S3D", "SepInceptionBlock3D", "TemporalSeparableConv", "s3d"]

Layers = Callable[..., nn.Module]

# Channels of the blocks' branches: alone; before and after 3x3 filters, twice; behind the pooling. Between them are poolings of (kernel, padding).
_BLOCKS: tuple[Any, ...] = (
    (64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64), (3, 1), (192, 96, 208, 16, 48, 64), (160, 112, 224, 24, 64, 64),
    (128, 128, 256, 24, 64, 64), (112, 144, 288, 32, 64, 64), (256, 160, 320, 32, 128, 128), (2, 0), (256, 160, 320, 32, 128, 128),
    (384, 192, 384, 48, 128, 128),
)  # fmt: skip


def _conv(before: int, out: int, norm_layer: Layers, kernel: Any = 1, stride: Any = 1, padding: Any = 0) -> nn.Sequential:
    return nn.Sequential(nn.Conv3d(before, out, kernel, stride, padding, bias=False), norm_layer(out), nn.ReLU(inplace=True))


class TemporalSeparableConv(nn.Sequential):
    """(N, in_planes, T, H, W) -> (N, out_planes, ...), sizes divided by the stride: filters of places, then filters of the time."""

    def __init__(self, in_planes: int, out_planes: int, kernel_size: int, stride: int, padding: int, norm_layer: Layers) -> None:
        super().__init__(
            _conv(in_planes, out_planes, norm_layer, (1, kernel_size, kernel_size), (1, stride, stride), (0, padding, padding)),
            _conv(out_planes, out_planes, norm_layer, (kernel_size, 1, 1), (stride, 1, 1), (padding, 0, 0)),
        )


class SepInceptionBlock3D(nn.Module):
    """(N, in_planes, T, H, W) -> (N, b0_out + b1_out + b2_out + b3_out, T, H, W): four branches side by side."""

    def __init__(
        self, in_planes: int, b0_out: int, b1_mid: int, b1_out: int, b2_mid: int, b2_out: int, b3_out: int, norm_layer: Layers
    ) -> None:
        super().__init__()
        self.branch0 = _conv(in_planes, b0_out, norm_layer)
        self.branch1 = nn.Sequential(_conv(in_planes, b1_mid, norm_layer), TemporalSeparableConv(b1_mid, b1_out, 3, 1, 1, norm_layer))
        self.branch2 = nn.Sequential(_conv(in_planes, b2_mid, norm_layer), TemporalSeparableConv(b2_mid, b2_out, 3, 1, 1, norm_layer))
        self.branch3 = nn.Sequential(nn.MaxPool3d(3, stride=1, padding=1), _conv(in_planes, b3_out, norm_layer))

    def forward(self, x: Tensor) -> Tensor:
        """The block's result."""
        return T.cat([self.branch0(x), self.branch1(x), self.branch2(x), self.branch3(x)], 1)  # type: ignore[no-any-return]


class S3D(nn.Module):
    """(N, 3, T, H, W) -> (N, num_classes); at least 14 frames of 224 pixels.

    norm_layer: makes the norms (default `nn.BatchNorm3d` with eps=0.001, momentum=0.001).

    >>> import calque
    >>> S3D(num_classes=5).classifier[1].weight.shape[0]
    5
    """

    def __init__(self, num_classes: int = 400, dropout: float = 0.2, norm_layer: Layers | None = None) -> None:
        super().__init__()
        norm = norm_layer or partial(nn.BatchNorm3d, eps=0.001, momentum=0.001)
        layers: list[nn.Module] = [
            TemporalSeparableConv(3, 64, 7, 2, 3, norm), nn.MaxPool3d((1, 3, 3), (1, 2, 2), (0, 1, 1)), _conv(64, 64, norm),
            TemporalSeparableConv(64, 192, 3, 1, 1, norm), nn.MaxPool3d((1, 3, 3), (1, 2, 2), (0, 1, 1)),
        ]  # fmt: skip
        channels = 192
        for row in _BLOCKS:
            if len(row) == 2:
                layers.append(nn.MaxPool3d(row[0], stride=2, padding=row[1]))
            else:
                layers.append(SepInceptionBlock3D(*(channels, *row, norm)))
                channels = row[0] + row[2] + row[4] + row[5]
        self.features, self.avgpool = nn.Sequential(*layers), nn.AvgPool3d((2, 7, 7), stride=1)
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Conv3d(channels, num_classes, 1))

    def forward(self, x: Tensor) -> Tensor:
        """The scores of the classes."""
        return self.classifier(self.avgpool(self.features(x))).mean((2, 3, 4))  # type: ignore[no-any-return]


s3d = maker("s3d", S3D, "S3D; options are those of `S3D`.")
