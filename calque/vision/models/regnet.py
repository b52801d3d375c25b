"""RegNet, with torchvision's names and state dicts. Source: Radosavovic et al. 2020, "Designing Network Design Spaces"."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from calque import nn
from calque.base.dataclass import dataclass
from calque.base.errors import ArgumentError
from calque.tensor import Tensor
from calque.vision.models.mobilenet import divisible
from calque.vision.models.weights import maker
from calque.vision.ops.misc import Conv2dNormActivation, SqueezeExcitation

Layers = Callable[..., nn.Module]

# Of each model: depth, first width, slope, step, channels of a group.
_Y = {"400mf": (16, 48, 27.89, 2.09, 8), "800mf": (14, 56, 38.84, 2.4, 16), "1_6gf": (27, 48, 20.71, 2.65, 24), "3_2gf": (21, 80, 42.63, 2.66, 24),
      "8gf": (17, 192, 76.82, 2.19, 56), "16gf": (18, 200, 106.23, 2.48, 112), "32gf": (20, 232, 115.89, 2.53, 232),
      "128gf": (27, 456, 160.83, 2.52, 264)}  # fmt: skip
_X = {"400mf": (22, 24, 24.48, 2.54, 16), "800mf": (16, 56, 35.73, 2.28, 16), "1_6gf": (18, 80, 34.01, 2.25, 24), "3_2gf": (25, 88, 26.31, 2.25, 48),
      "8gf": (23, 80, 49.56, 2.88, 120), "16gf": (22, 216, 55.59, 2.1, 128), "32gf": (23, 320, 69.86, 2.0, 168)}  # fmt: skip


@dataclass
class BlockParams:
    """Of each stage: blocks, channels, channels of a group, channels inside a block as a multiple, stride of its first block. se_ratio: squeezed
    channels as a share of those that come in; None: no squeezing.

    >>> BlockParams.from_init_params(depth=16, w_0=48, w_a=27.89, w_m=2.09, group_width=8).widths
    [48, 104, 208, 440]
    """

    depths: Sequence[int]
    widths: Sequence[int]
    group_widths: Sequence[int]
    bottleneck_multipliers: Sequence[float]
    strides: Sequence[int]
    se_ratio: float | None = None

    @classmethod
    def from_init_params(
        cls, depth: int, w_0: int, w_a: float, w_m: float, group_width: int, bottleneck_multiplier: float = 1.0, se_ratio: float | None = None,
        **kwargs: Any,
    ) -> BlockParams:  # fmt: skip
        """The stages of `depth` blocks whose widths lie near the line w_0 + w_a k, each the w_m-fold of w_0 to some power, and a multiple of 8.

        Blocks of one width are a stage; its width is made a multiple of that of a group. Raises ArgumentError for a line that falls or begins
        below 1, for w_0 that is no multiple of 8, and for w_m of at most 1.
        """
        if w_a < 0 or w_0 <= 0 or w_m <= 1 or w_0 % 8:
            raise ArgumentError(f"[BlockParams] Invalid RegNet settings: expected w_a >= 0, w_0 a multiple of 8, w_m > 1, got {w_a}, {w_0}, {w_m}")
        powers = np.round(np.log((np.arange(depth) * w_a + w_0) / w_0) / math.log(w_m))
        blocks = [int(width) for width in np.round(w_0 * w_m**powers / 8) * 8]
        stages = [(width, len(list(same))) for width, same in groupby(blocks)]
        inner = [int(width * bottleneck_multiplier) for width, _ in stages]
        groups = [min(group_width, width) for width in inner]
        widths = [int(divisible(width, group) / bottleneck_multiplier) for width, group in zip(inner, groups)]
        count = len(stages)
        return cls([n for _, n in stages], widths, groups, [bottleneck_multiplier] * count, [2] * count, se_ratio)


class SimpleStemIN(Conv2dNormActivation):
    """(N, width_in, H, W) -> (N, width_out, H / 2, W / 2): one 3x3 convolution."""

    def __init__(self, width_in: int, width_out: int, norm_layer: Layers, activation_layer: Layers) -> None:
        super().__init__(width_in, width_out, 3, 2, norm_layer=norm_layer, activation_layer=activation_layer)


class BottleneckTransform(nn.Sequential):
    """1x1, 3x3 in groups and 1x1 convolutions, with a `SqueezeExcitation` before the last one: (N, width_in, H, W) -> (N, width_out, H / stride,
    W / stride)."""

    def __init__(
        self, width_in: int, width_out: int, stride: int, norm_layer: Layers, activation_layer: Layers, group_width: int,
        bottleneck_multiplier: float, se_ratio: float | None,
    ) -> None:  # fmt: skip
        inner = round(width_out * bottleneck_multiplier)
        options: dict[str, Any] = {"norm_layer": norm_layer, "activation_layer": activation_layer}
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        layers["a"] = Conv2dNormActivation(width_in, inner, 1, **options)
        layers["b"] = Conv2dNormActivation(inner, inner, 3, stride, groups=inner // group_width, **options)
        if se_ratio:
            layers["se"] = SqueezeExcitation(inner, round(se_ratio * width_in), activation=activation_layer)
        layers["c"] = Conv2dNormActivation(inner, width_out, 1, norm_layer=norm_layer, activation_layer=None)
        super().__init__(layers)


class ResBottleneckBlock(nn.Module):
    """A `BottleneckTransform` and a shortcut, which is a 1x1 convolution where sizes change."""

    def __init__(
        self, width_in: int, width_out: int, stride: int, norm_layer: Layers, activation_layer: Layers, group_width: int = 1,
        bottleneck_multiplier: float = 1.0, se_ratio: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.proj = None
        if width_in != width_out or stride != 1:
            self.proj = Conv2dNormActivation(width_in, width_out, 1, stride, norm_layer=norm_layer, activation_layer=None)
        self.f = BottleneckTransform(width_in, width_out, stride, norm_layer, activation_layer, group_width, bottleneck_multiplier, se_ratio)
        self.activation = activation_layer(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """The block's result."""
        return self.activation((x if self.proj is None else self.proj(x)) + self.f(x))  # type: ignore[no-any-return]


class AnyStage(nn.Sequential):
    """Blocks of one width, under the names "block1-0", "block1-1" and so on; the first has the stride."""

    def __init__(
        self, width_in: int, width_out: int, stride: int, depth: int, block_constructor: Layers, norm_layer: Layers, activation_layer: Layers,
        group_width: int, bottleneck_multiplier: float, se_ratio: float | None = None, stage_index: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        shared = (norm_layer, activation_layer, group_width, bottleneck_multiplier, se_ratio)
        for k in range(depth):
            self.add_module(f"block{stage_index}-{k}", block_constructor(width_out if k else width_in, width_out, 1 if k else stride, *shared))


class RegNet(nn.Module):
    """(N, 3, H, W) -> (N, num_classes).

    block_params: the stages. stem_width: channels before them. stem_type, block_type, norm_layer, activation: make the layers (defaults
    `SimpleStemIN`, `ResBottleneckBlock`, `nn.BatchNorm2d`, `nn.ReLU`).

    >>> import calque
    >>> stages = BlockParams.from_init_params(depth=4, w_0=16, w_a=8.0, w_m=2.0, group_width=8)
    >>> tuple(RegNet(stages, num_classes=5)(calque.zeros(2, 3, 32, 32)).shape)
    (2, 5)
    """

    def __init__(
        self, block_params: BlockParams, num_classes: int = 1000, stem_width: int = 32, stem_type: Layers | None = None,
        block_type: Layers | None = None, norm_layer: Layers | None = None, activation: Layers | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        norm, act, block = norm_layer or nn.BatchNorm2d, activation or nn.ReLU, block_type or ResBottleneckBlock
        self.stem = (stem_type or SimpleStemIN)(3, stem_width, norm, act)
        found, p, width = OrderedDict(), block_params, stem_width
        rows = zip(p.widths, p.strides, p.depths, p.group_widths, p.bottleneck_multipliers)
        for k, (out, stride, depth, group, multiplier) in enumerate(rows, 1):
            found[f"block{k}"] = AnyStage(width, out, stride, depth, block, norm, act, group, multiplier, p.se_ratio, k)
            width = out
        self.trunk_output = nn.Sequential(found)
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(width, num_classes)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):  # the spread does not count groups, as in the paper's own program
                nn.init.normal_(m.weight, std=math.sqrt(2.0 / (m.kernel_size[0] * m.kernel_size[1] * m.out_channels)))
            elif isinstance(m, nn.Linear):
                nn.init.normal_(m.weight, std=0.01)
                nn.init.zeros_(m.bias)

    def forward(self, x: Tensor) -> Tensor:
        """The scores of the classes."""
        return self.fc(self.avgpool(self.trunk_output(self.stem(x))).flatten(1))  # type: ignore[no-any-return]


def _make(kind: str, size: str, row: Sequence[Any]) -> Any:
    depth, w_0, w_a, w_m, group_width = row

    def build(**options: Any) -> RegNet:
        stages = BlockParams.from_init_params(depth, w_0, w_a, w_m, group_width, se_ratio=0.25 if kind == "y" else None)
        return RegNet(stages, **options)

    return maker(f"regnet_{kind}_{size}", build, f"RegNet {kind.upper()} {size.replace('_', '.').upper()}; options are those of `RegNet`.")


(regnet_y_400mf, regnet_y_800mf, regnet_y_1_6gf, regnet_y_3_2gf, regnet_y_8gf, regnet_y_16gf, regnet_y_32gf, regnet_y_128gf) = (
    _make("y", size, row) for size, row in _Y.items()
)
(regnet_x_400mf, regnet_x_800mf, regnet_x_1_6gf, regnet_x_3_2gf, regnet_x_8gf, regnet_x_16gf, regnet_x_32gf) = (
    _make("x", size, row) for size, row in _X.items()
)
