"""VGG, with torchvision's names and state dicts. Source: Simonyan and Zisserman 2014, "Very Deep Convolutional Networks"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from calque import nn
from calque.tensor import Tensor
from calque.vision.models.weights import maker

__all__ = ["VGG", "make_layers", "vgg11", "vgg11_bn", "vgg13", "vgg13_bn", "vgg16", "vgg16_bn", "vgg19", "vgg19_bn"]

# Channels of the convolutions between two poolings.
BLOCKS = {
    11: ((64,), (128,), (256,) * 2, (512,) * 2, (512,) * 2),
    13: ((64,) * 2, (128,) * 2, (256,) * 2, (512,) * 2, (512,) * 2),
    16: ((64,) * 2, (128,) * 2, (256,) * 3, (512,) * 3, (512,) * 3),
    19: ((64,) * 2, (128,) * 2, (256,) * 4, (512,) * 4, (512,) * 4),
}


class VGG(nn.Module):
    """(N, 3, H, W) -> (N, num_classes): convolutions (`features`) and three linear layers (`classifier`)."""

    def __init__(self, features: nn.Module, num_classes: int = 1000, init_weights: bool = True, dropout: float = 0.5) -> None:
        super().__init__()
        self.features, self.avgpool = features, nn.AdaptiveAvgPool2d((7, 7))
        self.classifier = nn.Sequential(
            nn.Linear(512 * 7 * 7, 4096), nn.ReLU(True), nn.Dropout(dropout), nn.Linear(4096, 4096), nn.ReLU(True), nn.Dropout(dropout),
            nn.Linear(4096, num_classes),
        )  # fmt: skip
        if init_weights:
            for m in self.modules():
                if isinstance(m, nn.Conv2d):
                    nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
                elif isinstance(m, nn.Linear):
                    nn.init.normal_(m.weight, 0, 0.01)
                if isinstance(m, (nn.Conv2d, nn.Linear)) and m.bias is not None:
                    nn.init.zeros_(m.bias)

    def forward(self, x: Tensor) -> Tensor:
        """The scores of the classes."""
        return self.classifier(self.avgpool(self.features(x)).flatten(1))  # type: ignore[no-any-return]


def make_layers(cfg: Sequence[int | str], batch_norm: bool = False) -> nn.Sequential:
    """The convolutions of a list of their channels, in which "M" is a pooling; each with a ReLU, and batch normalisation in between if asked for."""
    layers: list[Any] = []
    channels = 3
    for width in cfg:
        if width == "M":
            layers.append(nn.MaxPool2d(2, 2))
        else:
            channels, before = int(width), channels
            layers += [nn.Conv2d(before, channels, 3, padding=1), *([nn.BatchNorm2d(channels)] if batch_norm else []), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


def _features(depth: int, norm: bool) -> nn.Module:
    layers: list[int | str] = []
    for block in BLOCKS[depth]:
        layers += [*block, "M"]
    return make_layers(layers, norm)


def _make(depth: int, norm: bool) -> Any:
    name = f"vgg{depth}{'_bn' if norm else ''}"
    text = f"VGG with {depth} layers{' and batch norm' if norm else ''}; options are those of `VGG`."
    return maker(name, lambda **options: VGG(_features(depth, norm), **options), text)


vgg11, vgg13, vgg16, vgg19 = (_make(depth, False) for depth in BLOCKS)
vgg11_bn, vgg13_bn, vgg16_bn, vgg19_bn = (_make(depth, True) for depth in BLOCKS)
