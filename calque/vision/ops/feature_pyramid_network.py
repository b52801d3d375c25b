"""Features of several scales, each with what the coarser ones know. Names as in `torchvision.ops.feature_pyramid_network`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from calque import nn
from calque.base.errors import ArgumentError, DTypeError
from calque.base.text import type_name
from calque.nn import functional as F
from calque.tensor import Tensor
from calque.vision.ops.misc import Conv2dNormActivation

__all__ = ["ExtraFPNBlock", "FeaturePyramidNetwork", "LastLevelMaxPool", "LastLevelP6P7"]


def renamed(entries: Any, names: Mapping[str, str]) -> None:
    """Entries of a state dict under their new names; files of before 2022 have the old ones."""
    for old, new in names.items():
        for kind in ("weight", "bias"):
            if f"{old}.{kind}" in entries:
                entries[f"{new}.{kind}"] = entries.pop(f"{old}.{kind}")


class ExtraFPNBlock(nn.Module):
    """What adds levels to a pyramid: `forward(results, x, names)` gets its levels, the features that they come from and their names, and returns
    (levels, names) with more of them."""

    def forward(self, results: list[Tensor], x: list[Tensor], names: list[str]) -> tuple[list[Tensor], list[str]]:
        """The levels and their names; to be written by subclasses."""
        raise NotImplementedError(f"[{type(self).__name__}] expected a forward(results, x, names) of the subclass, got none; write one")


class LastLevelMaxPool(ExtraFPNBlock):
    """A level "pool" of every second element of the coarsest one."""

    def forward(self, results: list[Tensor], x: list[Tensor], names: list[str]) -> tuple[list[Tensor], list[str]]:
        """The levels and their names, and one more."""
        return [*results, F.max_pool2d(results[-1], 1, 2, 0)], [*names, "pool"]


class LastLevelP6P7(ExtraFPNBlock):
    """Levels "p6" and "p7", by convolutions of stride 2: of the coarsest level if `in_channels` is `out_channels`, else of the coarsest features."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.p6, self.p7 = nn.Conv2d(in_channels, out_channels, 3, 2, 1), nn.Conv2d(out_channels, out_channels, 3, 2, 1)
        for layer in (self.p6, self.p7):
            nn.init.kaiming_uniform_(layer.weight, a=1)
            nn.init.zeros_(layer.bias)
        self.use_P5 = in_channels == out_channels

    def forward(self, results: list[Tensor], x: list[Tensor], names: list[str]) -> tuple[list[Tensor], list[str]]:
        """The levels and their names, and two more."""
        sixth = self.p6((results if self.use_P5 else x)[-1])
        return [*results, sixth, self.p7(F.relu(sixth))], [*names, "p6", "p7"]


class FeaturePyramidNetwork(nn.Module):
    """A dict of features, finest first -> a dict of as many with `out_channels` channels each: each level is a 1x1 convolution of its features plus
    the coarser level made larger, smoothed by a 3x3 convolution.

    in_channels_list: channels of the features, in their order. extra_blocks: an `ExtraFPNBlock` that adds coarser levels. norm_layer: makes the layer
    behind each convolution of its number of channels (default none, and convolutions have biases). Raises ValueError for 0 channels, TypeError if
    `extra_blocks` is of another class. Source: Lin et al. 2017, "Feature Pyramid Networks for Object Detection".

    >>> import calque
    >>> pyramid = calque.vision.ops.FeaturePyramidNetwork([4, 8], 5)
    >>> found = pyramid({"fine": calque.randn(1, 4, 8, 8), "coarse": calque.randn(1, 8, 4, 4)})
    >>> [(name, tuple(level.shape)) for name, level in found.items()]
    [('fine', (1, 5, 8, 8)), ('coarse', (1, 5, 4, 4))]
    """

    _version = 2

    def __init__(
        self, in_channels_list: Sequence[int], out_channels: int, extra_blocks: ExtraFPNBlock | None = None,
        norm_layer: Callable[..., nn.Module] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if 0 in in_channels_list:
            raise ArgumentError(f"[FeaturePyramidNetwork] in_channels=0 is currently not supported, got {list(in_channels_list)}; leave it out")
        if extra_blocks is not None and not isinstance(extra_blocks, ExtraFPNBlock):
            raise DTypeError(
                f"[FeaturePyramidNetwork] extra_blocks should be of type ExtraFPNBlock, got {type_name(extra_blocks)}; derive it from ExtraFPNBlock"
            )
        options: dict[str, Any] = {"norm_layer": norm_layer, "activation_layer": None}
        self.inner_blocks = nn.ModuleList([Conv2dNormActivation(width, out_channels, 1, **options) for width in in_channels_list])
        self.layer_blocks = nn.ModuleList([Conv2dNormActivation(out_channels, out_channels, 3, **options) for _ in in_channels_list])
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_uniform_(layer.weight, a=1)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
        self.extra_blocks = extra_blocks

    def _upgrade_state_dict(self, entries: Any, prefix: str, version: int | None) -> None:
        if version is None or version < 2:
            blocks = [f"{prefix}{kind}.{k}" for kind in ("inner_blocks", "layer_blocks") for k in range(len(self.inner_blocks))]
            renamed(entries, {block: f"{block}.0" for block in blocks})

    def forward(self, x: Mapping[str, Tensor]) -> OrderedDict[str, Tensor]:
        """The levels under the names of the features, and of what `extra_blocks` adds."""
        names, features = list(x), list(x.values())
        inner: Any = None
        levels: list[Tensor] = []
        for k in reversed(range(len(features))):
            lateral = self.inner_blocks[k](features[k])
            inner = lateral if inner is None else lateral + F.interpolate(inner, size=tuple(lateral.shape[-2:]), mode="nearest")
            levels.insert(0, self.layer_blocks[k](inner))
        if self.extra_blocks is not None:
            levels, names = self.extra_blocks(levels, features, names)
        return OrderedDict(zip(names, levels, strict=True))
