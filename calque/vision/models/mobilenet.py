"""MobileNet V2, with torchvision's names and state dicts. Source: Sandler et al. 2018, "MobileNetV2: Inverted Residuals and Linear Bottlenecks"."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from calque import nn
from calque.base.errors import ArgumentError
from calque.base.text import shown
from calque.tensor import Tensor
from calque.vision.models.weights import maker
from calque.vision.ops.misc import Conv2dNormActivation

__all__ = ["InvertedResidual", "MobileNetV2", "mobilenet_v2"]

# (times as many channels inside, channels, blocks, stride of the first)
SETTINGS = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def divisible(channels: float, by: int, least: int | None = None) -> int:
    """The nearest multiple of `by` that is not below nine tenths of `channels`, nor below `least` (`by`)."""
    found = max(by if least is None else least, int(channels + by / 2) // by * by)
    return found + by if found < 0.9 * channels else found


class InvertedResidual(nn.Module):
    """(N, inp, H, W) -> (N, oup, H / stride, W / stride): more channels, one filter for each, fewer; added to the input where that has their size."""

    def __init__(self, inp: int, oup: int, stride: int, expand_ratio: float, norm_layer: Callable[..., nn.Module] | None = None) -> None:
        super().__init__()
        if stride not in (1, 2):
            raise ArgumentError(f"[InvertedResidual] stride should be 1 or 2 instead of {stride}")
        norm = norm_layer or nn.BatchNorm2d
        hidden = round(inp * expand_ratio)
        self.stride, self.out_channels, self.use_res_connect = stride, oup, stride == 1 and inp == oup
        self._is_cn = stride > 1  # where a stage ends, for detectors
        layers: list[nn.Module] = []
        if expand_ratio != 1:
            layers.append(Conv2dNormActivation(inp, hidden, 1, norm_layer=norm, activation_layer=nn.ReLU6))
        layers.append(Conv2dNormActivation(hidden, hidden, stride=stride, groups=hidden, norm_layer=norm, activation_layer=nn.ReLU6))
        self.conv = nn.Sequential(*layers, nn.Conv2d(hidden, oup, 1, bias=False), norm(oup))

    def forward(self, x: Tensor) -> Tensor:
        """The block's result."""
        return x + self.conv(x) if self.use_res_connect else self.conv(x)  # type: ignore[no-any-return]


class MobileNetV2(nn.Module):
    """(N, 3, H, W) -> (N, num_classes). width_mult: times as many channels. inverted_residual_setting: rows of (expansion, channels, blocks, stride).
    round_nearest: channels are multiples of it."""

    def __init__(
        self, num_classes: int = 1000, width_mult: float = 1.0, inverted_residual_setting: Sequence[Sequence[int]] | None = None,
        round_nearest: int = 8, block: Callable[..., nn.Module] | None = None, norm_layer: Callable[..., nn.Module] | None = None,
        dropout: float = 0.2,
    ) -> None:  # fmt: skip
        super().__init__()
        rows = SETTINGS if inverted_residual_setting is None else inverted_residual_setting
        if not rows or any(len(row) != 4 for row in rows):
            raise ArgumentError(f"[MobileNetV2] inverted_residual_setting should be non-empty or a 4-element list, got {shown(rows)}")
        norm, made = norm_layer or nn.BatchNorm2d, block or InvertedResidual
        channels = divisible(32 * width_mult, round_nearest)
        self.last_channel = divisible(1280 * max(1.0, width_mult), round_nearest)
        features: list[nn.Module] = [Conv2dNormActivation(3, channels, stride=2, norm_layer=norm, activation_layer=nn.ReLU6)]
        for expansion, width, blocks, stride in rows:
            out = divisible(width * width_mult, round_nearest)
            for k in range(blocks):
                features.append(made(channels, out, stride if k == 0 else 1, expand_ratio=expansion, norm_layer=norm))
                channels = out
        features.append(Conv2dNormActivation(channels, self.last_channel, 1, norm_layer=norm, activation_layer=nn.ReLU6))
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(self.last_channel, num_classes))
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out")
            elif isinstance(m, nn.Linear):
                nn.init.normal_(m.weight, 0, 0.01)
            if isinstance(m, (nn.Conv2d, nn.Linear)) and m.bias is not None:
                nn.init.zeros_(m.bias)

    def forward(self, x: Tensor) -> Tensor:
        """The scores of the classes."""
        return self.classifier(self.features(x).mean((2, 3)))  # type: ignore[no-any-return]


mobilenet_v2 = maker("mobilenet_v2", MobileNetV2, "MobileNet V2; options are those of `MobileNetV2`.")
