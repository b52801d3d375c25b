"""MobileNet V3 and EfficientNet, with torchvision's names and state dicts. Sources: Howard et al. 2019, "Searching for MobileNetV3"; Tan and Le 2019,
"EfficientNet", and 2021, "EfficientNetV2"."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from calque import nn
from calque.base.errors import ArgumentError
from calque.base.text import shown
from calque.tensor import Tensor
from calque.vision.models.mobilenet import divisible
from calque.vision.models.weights import maker
from calque.vision.ops.misc import Conv2dNormActivation, SqueezeExcitation, StochasticDepth

Layers = Callable[..., nn.Module]

# (channels in, kernel, inner channels, channels out, squeezed?, activation, stride, dilated?)
_V3 = {
    "large": (
        (16, 3, 16, 16, False, "RE", 1, False), (16, 3, 64, 24, False, "RE", 2, False), (24, 3, 72, 24, False, "RE", 1, False),
        (24, 5, 72, 40, True, "RE", 2, False), (40, 5, 120, 40, True, "RE", 1, False), (40, 5, 120, 40, True, "RE", 1, False),
        (40, 3, 240, 80, False, "HS", 2, False), (80, 3, 200, 80, False, "HS", 1, False), (80, 3, 184, 80, False, "HS", 1, False),
        (80, 3, 184, 80, False, "HS", 1, False), (80, 3, 480, 112, True, "HS", 1, False), (112, 3, 672, 112, True, "HS", 1, False),
        (112, 5, 672, 160, True, "HS", 2, True), (160, 5, 960, 160, True, "HS", 1, True), (160, 5, 960, 160, True, "HS", 1, True),
    ),
    "small": (
        (16, 3, 16, 16, True, "RE", 2, False), (16, 3, 72, 24, False, "RE", 2, False), (24, 3, 88, 24, False, "RE", 1, False),
        (24, 5, 96, 40, True, "HS", 2, False), (40, 5, 240, 40, True, "HS", 1, False), (40, 5, 240, 40, True, "HS", 1, False),
        (40, 5, 120, 48, True, "HS", 1, False), (48, 5, 144, 48, True, "HS", 1, False), (48, 5, 288, 96, True, "HS", 2, True),
        (96, 5, 576, 96, True, "HS", 1, True), (96, 5, 576, 96, True, "HS", 1, True),
    ),
}  # fmt: skip
_V3_LAST = {"large": 1280, "small": 1024}


def _initialise(model: nn.Module, linear: Callable[[Any], object]) -> None:
    for m in model.modules():
        if isinstance(m, nn.Conv2d):
            nn.init.kaiming_normal_(m.weight, mode="fan_out")
        elif isinstance(m, nn.Linear):
            linear(m)
        if isinstance(m, (nn.Conv2d, nn.Linear)) and m.bias is not None:
            nn.init.zeros_(m.bias)


class _Inverted(nn.Module):
    """A block of MobileNet V3: more channels, one filter for each, their weights by what the image says, fewer; plus the input of that size."""

    def __init__(self, row: Sequence[Any], width: float, norm: Layers) -> None:
        super().__init__()
        before, kernel, inner, out, squeezed, kind, stride, dilated = row
        before, inner, out = (divisible(n * width, 8) for n in (before, inner, out))
        activation: Layers = nn.Hardswish if kind == "HS" else nn.ReLU
        self.use_res_connect, self.out_channels = stride == 1 and before == out, out
        self._is_cn = stride > 1  # torchvision's mark of a block that begins a stage, by which backbones are cut
        layers: list[nn.Module] = []
        if inner != before:
            layers.append(Conv2dNormActivation(before, inner, 1, norm_layer=norm, activation_layer=activation))
        layers.append(
            Conv2dNormActivation(inner, inner, kernel, 1 if dilated else stride, groups=inner, norm_layer=norm, activation_layer=activation,
                                 dilation=2 if dilated else 1)
        )  # fmt: skip
        if squeezed:
            layers.append(SqueezeExcitation(inner, divisible(inner // 4, 8), scale_activation=nn.Hardsigmoid))
        layers.append(Conv2dNormActivation(inner, out, 1, norm_layer=norm, activation_layer=None))
        self.block = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """The block's result."""
        return x + self.block(x) if self.use_res_connect else self.block(x)  # type: ignore[no-any-return]


class MobileNetV3(nn.Module):
    """(N, 3, H, W) -> (N, num_classes). kind: "large" or "small". width_mult: times as many channels. reduced_tail: half the channels of the last
    stage; dilated: its filters wider instead of its resolution halved."""

    def __init__(
        self, kind: str = "large", num_classes: int = 1000, dropout: float = 0.2, width_mult: float = 1.0, reduced_tail: bool = False,
        dilated: bool = False, norm_layer: Layers | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if kind not in _V3:
            raise ArgumentError(f"[MobileNetV3] expected kind as 'large' or 'small', got {shown(kind)}")
        norm = norm_layer or partial(nn.BatchNorm2d, eps=0.001, momentum=0.01)
        cut = 2 if reduced_tail else 1
        rows = []
        tail = next(k for k, row in enumerate(_V3[kind]) if row[-1])  # where the last stage begins
        for k, (before, kernel, inner, out, squeezed, name, stride, last) in enumerate(_V3[kind]):
            before, inner = before // cut if k > tail else before, inner // cut if k > tail else inner
            rows.append((before, kernel, inner, out // cut if last else out, squeezed, name, stride, last and dilated))
        first = divisible(rows[0][0] * width_mult, 8)
        blocks = [_Inverted(row, width_mult, norm) for row in rows]
        narrow, last_channel = blocks[-1].out_channels, divisible(_V3_LAST[kind] // cut * width_mult, 8)
        self.features = nn.Sequential(
            Conv2dNormActivation(3, first, stride=2, norm_layer=norm, activation_layer=nn.Hardswish), *blocks,
            Conv2dNormActivation(narrow, 6 * narrow, 1, norm_layer=norm, activation_layer=nn.Hardswish),
        )  # fmt: skip
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(
            nn.Linear(6 * narrow, last_channel), nn.Hardswish(inplace=True), nn.Dropout(dropout, inplace=True), nn.Linear(last_channel, num_classes)
        )
        _initialise(self, lambda m: nn.init.normal_(m.weight, 0, 0.01))

    def forward(self, x: Tensor) -> Tensor:
        """The scores of the classes."""
        return self.classifier(self.avgpool(self.features(x)).flatten(1))  # type: ignore[no-any-return]


# (joined?, expansion, kernel, stride, channels in, channels out, blocks); joined: one 3x3 convolution for the expansion and the filters.
_B0 = ((False, 1, 3, 1, 32, 16, 1), (False, 6, 3, 2, 16, 24, 2), (False, 6, 5, 2, 24, 40, 2), (False, 6, 3, 2, 40, 80, 3),
       (False, 6, 5, 1, 80, 112, 3), (False, 6, 5, 2, 112, 192, 4), (False, 6, 3, 1, 192, 320, 1))  # fmt: skip
_V2 = {
    "s": ((True, 1, 3, 1, 24, 24, 2), (True, 4, 3, 2, 24, 48, 4), (True, 4, 3, 2, 48, 64, 4), (False, 4, 3, 2, 64, 128, 6),
          (False, 6, 3, 1, 128, 160, 9), (False, 6, 3, 2, 160, 256, 15)),
    "m": ((True, 1, 3, 1, 24, 24, 3), (True, 4, 3, 2, 24, 48, 5), (True, 4, 3, 2, 48, 80, 5), (False, 4, 3, 2, 80, 160, 7),
          (False, 6, 3, 1, 160, 176, 14), (False, 6, 3, 2, 176, 304, 18), (False, 6, 3, 1, 304, 512, 5)),
    "l": ((True, 1, 3, 1, 32, 32, 4), (True, 4, 3, 2, 32, 64, 7), (True, 4, 3, 2, 64, 96, 7), (False, 4, 3, 2, 96, 192, 10),
          (False, 6, 3, 1, 192, 224, 19), (False, 6, 3, 2, 224, 384, 25), (False, 6, 3, 1, 384, 640, 7)),
}  # fmt: skip
# Width, depth and dropout.
_SCALES = {"b0": (1.0, 1.0, 0.2), "b1": (1.0, 1.1, 0.2), "b2": (1.1, 1.2, 0.3), "b3": (1.2, 1.4, 0.3), "b4": (1.4, 1.8, 0.4), "b5": (1.6, 2.2, 0.4),
           "b6": (1.8, 2.6, 0.5), "b7": (2.0, 3.1, 0.5)}  # fmt: skip
_V2_DROPOUT = {"s": 0.2, "m": 0.3, "l": 0.4}


class _MBConv(nn.Module):
    """A block of EfficientNet, left out by chance in training."""

    def __init__(self, joined: bool, expansion: int, kernel: int, stride: int, before: int, out: int, chance: float, norm: Layers) -> None:
        super().__init__()
        inner = divisible(before * expansion, 8)
        conv = partial(Conv2dNormActivation, norm_layer=norm, activation_layer=nn.SiLU)
        layers: list[nn.Module] = []
        if joined:
            layers.append(conv(before, inner if expansion != 1 else out, kernel, stride))
        else:
            layers += [conv(before, inner, 1)] if inner != before else []
            layers += [conv(inner, inner, kernel, stride, groups=inner),
                       SqueezeExcitation(inner, max(1, before // 4), activation=partial(nn.SiLU, inplace=True))]  # fmt: skip
        if not joined or expansion != 1:
            layers.append(Conv2dNormActivation(inner, out, 1, norm_layer=norm, activation_layer=None))
        self.block, self.use_res_connect, self.out_channels = nn.Sequential(*layers), stride == 1 and before == out, out
        self.stochastic_depth = StochasticDepth(chance, "row")

    def forward(self, x: Tensor) -> Tensor:
        """The block's result."""
        return self.stochastic_depth(self.block(x)) + x if self.use_res_connect else self.block(x)  # type: ignore[no-any-return]


class EfficientNet(nn.Module):
    """(N, 3, H, W) -> (N, num_classes). kind: "b0" to "b7", or "v2_s", "v2_m", "v2_l". stochastic_depth_prob: how often the last block is left out in
    training, the others less."""

    def __init__(
        self, kind: str = "b0", num_classes: int = 1000, dropout: float | None = None, stochastic_depth_prob: float = 0.2,
        norm_layer: Layers | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        second = kind[3:] if kind.startswith("v2_") else ""
        if kind not in _SCALES and second not in _V2:
            raise ArgumentError(f"[EfficientNet] expected kind as one of {', '.join([*_SCALES, *(f'v2_{n}' for n in _V2)])}, got {shown(kind)}")
        wide, deep, least = (1.0, 1.0, _V2_DROPOUT[second]) if second else _SCALES[kind]
        norm = norm_layer or {True: partial(nn.BatchNorm2d, eps=1e-3), False: partial(nn.BatchNorm2d, eps=1e-3, momentum=0.01)}[bool(second)]
        if norm_layer is None and kind in ("b0", "b1", "b2", "b3", "b4"):
            norm = nn.BatchNorm2d
        rows = _V2[second] if second else _B0
        counts = [row[6] if second else math.ceil(row[6] * deep) for row in rows]
        total, made = sum(counts), 0
        channels = divisible(rows[0][4] * wide, 8)
        features: list[nn.Module] = [Conv2dNormActivation(3, channels, stride=2, norm_layer=norm, activation_layer=nn.SiLU)]
        for (joined, expansion, kernel, stride, _, width, _), count in zip(rows, counts):
            out, stage = divisible(width * wide, 8), []
            for k in range(count):
                chance = stochastic_depth_prob * made / total
                stage.append(_MBConv(joined, expansion, kernel, stride if k == 0 else 1, channels, out, chance, norm))
                channels, made = out, made + 1
            features.append(nn.Sequential(*stage))
        last = 1280 if second else 4 * channels
        features.append(Conv2dNormActivation(channels, last, 1, norm_layer=norm, activation_layer=nn.SiLU))
        self.features, self.avgpool = nn.Sequential(*features), nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Dropout(least if dropout is None else dropout, inplace=True), nn.Linear(last, num_classes))
        _initialise(self, lambda m: nn.init.uniform_(m.weight, -1.0 / math.sqrt(m.out_features), 1.0 / math.sqrt(m.out_features)))

    def forward(self, x: Tensor) -> Tensor:
        """The scores of the classes."""
        return self.classifier(self.avgpool(self.features(x)).flatten(1))  # type: ignore[no-any-return]


mobilenet_v3_large, mobilenet_v3_small = (
    maker(f"mobilenet_v3_{k}", partial(MobileNetV3, k), f"MobileNet V3, {k}; options are those of `MobileNetV3`.") for k in _V3
)
(efficientnet_b0, efficientnet_b1, efficientnet_b2, efficientnet_b3, efficientnet_b4, efficientnet_b5, efficientnet_b6, efficientnet_b7,
 efficientnet_v2_s, efficientnet_v2_m, efficientnet_v2_l) = (
    maker(f"efficientnet_{k}", partial(EfficientNet, k), f"EfficientNet {k.upper()}; options are those of `EfficientNet`.")
    for k in [*_SCALES, *(f"v2_{n}" for n in _V2)]
)  # fmt: skip
