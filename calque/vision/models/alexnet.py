"""AlexNet and SqueezeNet, with torchvision's names and state dicts. Sources: Krizhevsky 2014, "One weird trick for parallelizing convolutional neural
networks"; Iandola et al. 2016, "SqueezeNet"."""

from __future__ import annotations

from typing import Any

from calque import functional as T
from calque import nn
from calque.base.errors import ArgumentError
from calque.base.text import shown
from calque.tensor import Tensor
from calque.vision.models.weights import maker

__all__ = ["AlexNet", "SqueezeNet", "alexnet", "squeezenet1_0", "squeezenet1_1"]


class AlexNet(nn.Module):
    """(N, 3, H, W) -> (N, num_classes): five convolutions (`features`) and three linear layers (`classifier`); sides of at least 63."""

    def __init__(self, num_classes: int = 1000, dropout: float = 0.5) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 11, stride=4, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2),
            nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2),
            nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(inplace=True),
            nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2),
        )  # fmt: skip
        self.avgpool = nn.AdaptiveAvgPool2d((6, 6))
        self.classifier = nn.Sequential(
            nn.Dropout(dropout), nn.Linear(256 * 6 * 6, 4096), nn.ReLU(inplace=True), nn.Dropout(dropout), nn.Linear(4096, 4096),
            nn.ReLU(inplace=True), nn.Linear(4096, num_classes),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """The scores of the classes."""
        return self.classifier(self.avgpool(self.features(x)).flatten(1))  # type: ignore[no-any-return]


class Fire(nn.Module):
    """(N, C, H, W) -> (N, expand1x1_planes + expand3x3_planes, H, W): few channels, then more by 1x1 and 3x3 filters."""

    def __init__(self, inplanes: int, squeeze_planes: int, expand1x1_planes: int, expand3x3_planes: int) -> None:
        super().__init__()
        self.squeeze, self.squeeze_activation = nn.Conv2d(inplanes, squeeze_planes, 1), nn.ReLU(inplace=True)
        self.expand1x1, self.expand1x1_activation = nn.Conv2d(squeeze_planes, expand1x1_planes, 1), nn.ReLU(inplace=True)
        self.expand3x3, self.expand3x3_activation = nn.Conv2d(squeeze_planes, expand3x3_planes, 3, padding=1), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """The block's result."""
        x = self.squeeze_activation(self.squeeze(x))
        return T.cat([self.expand1x1_activation(self.expand1x1(x)), self.expand3x3_activation(self.expand3x3(x))], 1)  # type: ignore[no-any-return]


# Squeezed and expanded channels of the blocks, and before which of them a pooling stands.
_FIRES = ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256))
_POOLED = {"1_0": (0, 3, 7), "1_1": (0, 2, 4)}


class SqueezeNet(nn.Module):
    """(N, 3, H, W) -> (N, num_classes). version: "1_0", or "1_1", which takes less than half of its time."""

    def __init__(self, version: str = "1_0", num_classes: int = 1000, dropout: float = 0.5) -> None:
        super().__init__()
        if version not in _POOLED:
            raise ValueError(f"[SqueezeNet] Unsupported SqueezeNet version {version}: 1_0 or 1_1 expected, got {shown(version)}")
        channels = 96 if version == "1_0" else 64
        layers: list[nn.Module] = [nn.Conv2d(3, channels, 7 if version == "1_0" else 3, stride=2), nn.ReLU(inplace=True)]
        for k, (narrow, wide) in enumerate(_FIRES):
            layers += [nn.MaxPool2d(3, stride=2, ceil_mode=True)] if k in _POOLED[version] else []
            layers.append(Fire(channels, narrow, wide, wide))
            channels = 2 * wide
        self.features = nn.Sequential(*layers)
        last = nn.Conv2d(512, num_classes, 1)
        self.classifier = nn.Sequential(nn.Dropout(dropout), last, nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d((1, 1)))
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                if m is last:
                    nn.init.normal_(m.weight, mean=0.0, std=0.01)
                else:
                    nn.init.kaiming_uniform_(m.weight)
                nn.init.zeros_(m.bias)

    def forward(self, x: Tensor) -> Tensor:
        """The scores of the classes."""
        return self.classifier(self.features(x)).flatten(1)  # type: ignore[no-any-return]


def _squeezenet(version: str) -> Any:
    def build(**options: Any) -> SqueezeNet:
        if "version" in options:
            raise ArgumentError(f"[squeezenet{version}] expected no version, got {shown(options['version'])}; use SqueezeNet(version)")
        return SqueezeNet(version, **options)

    return build


alexnet = maker("alexnet", AlexNet, "AlexNet; options are those of `AlexNet`.")
squeezenet1_0, squeezenet1_1 = (
    maker(f"squeezenet{v}", _squeezenet(v), f"SqueezeNet {v.replace('_', '.')}; options are those of `SqueezeNet`.") for v in _POOLED
)
