"""DenseNet, with torchvision's names and state dicts. Source: Huang et al. 2017, "Densely Connected Convolutional Networks"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from calque import functional as T
from calque import nn
from calque.autograd.checkpoint import checkpoint
from calque.nn import functional as F
from calque.tensor import Tensor
from calque.vision.models.weights import maker

__all__ = ["DenseNet", "densenet121", "densenet161", "densenet169", "densenet201"]

# Layers of the blocks, growth and first channels.
SIZES = {121: ((6, 12, 24, 16), 32, 64), 161: ((6, 12, 36, 24), 48, 96), 169: ((6, 12, 32, 32), 32, 64), 201: ((6, 12, 48, 32), 32, 64)}


class _DenseLayer(nn.Module):
    """All channels so far -> `growth_rate` new ones."""

    def __init__(self, num_input_features: int, growth_rate: int, bn_size: int, drop_rate: float, memory_efficient: bool = False) -> None:
        super().__init__()
        self.norm1, self.relu1 = nn.BatchNorm2d(num_input_features), nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(num_input_features, bn_size * growth_rate, 1, bias=False)
        self.norm2, self.relu2 = nn.BatchNorm2d(bn_size * growth_rate), nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(bn_size * growth_rate, growth_rate, 3, padding=1, bias=False)
        self.drop_rate, self.memory_efficient = float(drop_rate), memory_efficient

    def bn_function(self, inputs: Sequence[Tensor]) -> Tensor:
        """The first convolution, of all inputs together."""
        return self.conv1(self.relu1(self.norm1(T.cat(inputs, 1))))  # type: ignore[no-any-return]

    def forward(self, input: Any) -> Tensor:
        """A tensor, or a list of those so far."""
        inputs = [input] if isinstance(input, Tensor) else input
        if self.memory_efficient and any(x.requires_grad for x in inputs):
            narrow = checkpoint(lambda *xs: self.bn_function(xs), *inputs, use_reentrant=False)
        else:
            narrow = self.bn_function(inputs)
        new = self.conv2(self.relu2(self.norm2(narrow)))
        return F.dropout(new, self.drop_rate, self.training) if self.drop_rate > 0 else new  # type: ignore[no-any-return]


class _DenseBlock(nn.ModuleDict):
    """Layers each of which sees the results of all before it."""

    def __init__(
        self, num_layers: int, num_input_features: int, bn_size: int, growth_rate: int, drop_rate: float, memory_efficient: bool = False
    ) -> None:
        super().__init__()
        for k in range(num_layers):
            layer = _DenseLayer(num_input_features + k * growth_rate, growth_rate, bn_size, drop_rate, memory_efficient)
            self.add_module(f"denselayer{k + 1}", layer)

    def forward(self, init_features: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, C + layers growth, H, W)."""
        features = [init_features]
        for _, layer in self.items():
            features.append(layer(features))
        return T.cat(features, 1)  # type: ignore[no-any-return]


class _Transition(nn.Sequential):
    """Fewer channels, at half the resolution."""

    def __init__(self, num_input_features: int, num_output_features: int) -> None:
        super().__init__()
        self.norm, self.relu = nn.BatchNorm2d(num_input_features), nn.ReLU(inplace=True)
        self.conv = nn.Conv2d(num_input_features, num_output_features, 1, bias=False)
        self.pool = nn.AvgPool2d(2, 2)


class DenseNet(nn.Module):
    """(N, 3, H, W) -> (N, num_classes): dense blocks with transitions between them (`features`) and one linear layer (`classifier`)."""

    def __init__(
        self, growth_rate: int = 32, block_config: Sequence[int] = (6, 12, 24, 16), num_init_features: int = 64, bn_size: int = 4,
        drop_rate: float = 0, num_classes: int = 1000, memory_efficient: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.features: Any = nn.Sequential()
        for name, layer in {
            "conv0": nn.Conv2d(3, num_init_features, 7, 2, 3, bias=False), "norm0": nn.BatchNorm2d(num_init_features),
            "relu0": nn.ReLU(inplace=True), "pool0": nn.MaxPool2d(3, 2, 1),
        }.items():  # fmt: skip
            self.features.add_module(name, layer)
        channels = num_init_features
        for k, layers in enumerate(block_config, 1):
            self.features.add_module(f"denseblock{k}", _DenseBlock(layers, channels, bn_size, growth_rate, drop_rate, memory_efficient))
            channels += layers * growth_rate
            if k < len(block_config):
                self.features.add_module(f"transition{k}", _Transition(channels, channels // 2))
                channels //= 2
        self.features.add_module("norm5", nn.BatchNorm2d(channels))
        self.classifier = nn.Linear(channels, num_classes)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight)
            elif isinstance(m, nn.Linear):
                nn.init.zeros_(m.bias)

    def forward(self, x: Tensor) -> Tensor:
        """The scores of the classes."""
        found = F.relu(self.features(x), inplace=True)
        return self.classifier(F.adaptive_avg_pool2d(found, (1, 1)).flatten(1))  # type: ignore[no-any-return, attr-defined]


def _make(depth: int) -> Any:
    blocks, growth, first = SIZES[depth]
    text = f"DenseNet with {depth} layers; options are those of `DenseNet`."
    return maker(f"densenet{depth}", lambda **options: DenseNet(growth, blocks, first, **options), text)


densenet121, densenet161, densenet169, densenet201 = (_make(depth) for depth in SIZES)
