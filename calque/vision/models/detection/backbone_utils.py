"""Models that classify as givers of features. Names as in `torchvision.models.detection.backbone_utils`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from calque import nn
from calque.base.errors import ArgumentError
from calque.base.text import shown
from calque.observe.source import warn_user
from calque.tensor import Tensor
from calque.vision.models import efficientnet, mobilenet, resnet
from calque.vision.models._utils import IntermediateLayerGetter
from calque.vision.ops.feature_pyramid_network import ExtraFPNBlock, FeaturePyramidNetwork, LastLevelMaxPool
from calque.vision.ops.misc import FrozenBatchNorm2d

__all__ = ["BackboneWithFPN", "mobilenet_backbone", "resnet_fpn_backbone"]

Layers = Callable[..., nn.Module]


class BackboneWithFPN(nn.Module):
    """Images (N, 3, H, W) -> a dict of features with `out_channels` channels each, finest first.

    backbone: see `IntermediateLayerGetter`, as return_layers. in_channels_list: channels of the wanted results. extra_blocks: adds levels (default a
    `LastLevelMaxPool`). norm_layer: of the pyramid (default none).
    """

    def __init__(
        self, backbone: nn.Module, return_layers: Mapping[str, str], in_channels_list: Sequence[int], out_channels: int,
        extra_blocks: ExtraFPNBlock | None = None, norm_layer: Layers | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.body = IntermediateLayerGetter(backbone, return_layers)
        self.fpn = FeaturePyramidNetwork(in_channels_list, out_channels, extra_blocks or LastLevelMaxPool(), norm_layer)
        self.out_channels = out_channels

    def forward(self, x: Tensor) -> OrderedDict[str, Tensor]:
        """The features by name."""
        return self.fpn(self.body(x))  # type: ignore[no-any-return]


def _check_range(what: str, value: Any, low: int, high: int) -> None:
    for one in value if isinstance(value, (list, tuple)) else [value]:
        if not isinstance(one, int) or not low <= one <= high:
            raise ArgumentError(f"[backbone] {what} should be in the range [{low},{high}], got {shown(value)}; choose from there")


def resnet_pyramid(
    backbone: Any, trainable_layers: int, returned_layers: Sequence[int] | None = None, extra_blocks: ExtraFPNBlock | None = None,
    norm_layer: Layers | None = None,
) -> BackboneWithFPN:  # fmt: skip
    """A residual network as the giver of a pyramid; see `resnet_fpn_backbone`."""
    _check_range("Trainable layers", trainable_layers, 0, 5)
    learning = ("layer4", "layer3", "layer2", "layer1", "conv1", "bn1")[: 6 if trainable_layers == 5 else trainable_layers]
    for name, parameter in backbone.named_parameters():
        if not name.startswith(learning):
            parameter.requires_grad_(False)
    returned = [1, 2, 3, 4] if returned_layers is None else list(returned_layers)
    _check_range("Each returned layer", returned, 1, 4)
    widths = [backbone.inplanes // 8 * 2 ** (k - 1) for k in returned]
    layers = {f"layer{k}": str(place) for place, k in enumerate(returned)}
    return BackboneWithFPN(backbone, layers, widths, 256, extra_blocks, norm_layer)


def resnet_fpn_backbone(
    *, backbone_name: str, weights: Any, norm_layer: Layers = FrozenBatchNorm2d, trainable_layers: int = 3,
    returned_layers: Sequence[int] | None = None, extra_blocks: ExtraFPNBlock | None = None,
) -> BackboneWithFPN:  # fmt: skip
    """A residual network with a pyramid of 256 channels.

    backbone_name: "resnet18" to "resnet152", or another of that module. weights: as of that model. norm_layer: makes normalisations (default one that
    never changes). trainable_layers: from 0 to 5 stages from the last one that learn. returned_layers: stages from 1 to 4 (default all).
    extra_blocks: adds levels (default "pool", a coarser one). Raises ValueError for other numbers.

    >>> import calque
    >>> from calque.vision.models.detection.backbone_utils import resnet_fpn_backbone
    >>> body = resnet_fpn_backbone(backbone_name="resnet18", weights=None, returned_layers=[3, 4])
    >>> [(name, tuple(found.shape)) for name, found in body(calque.randn(1, 3, 64, 64)).items()]
    [('0', (1, 256, 4, 4)), ('1', (1, 256, 2, 2)), ('pool', (1, 256, 1, 1))]
    """
    model = getattr(resnet, backbone_name)(weights=weights, norm_layer=norm_layer)
    return resnet_pyramid(model, trainable_layers, returned_layers, extra_blocks)


def freeze_stages(features: Any, trainable_layers: int) -> list[int]:
    """Where the stages of a MobileNet begin, after all but the last `trainable_layers` of them have been told not to learn."""
    stages = [0, *[k for k, block in enumerate(features) if getattr(block, "_is_cn", False)], len(features) - 1]
    _check_range("Trainable layers", trainable_layers, 0, len(stages))
    for block in features[: len(features) if trainable_layers == 0 else stages[len(stages) - trainable_layers]]:
        block.requires_grad_(False)
    return stages


def mobilenet_features(
    backbone: Any, fpn: bool, trainable_layers: int, returned_layers: Sequence[int] | None = None, extra_blocks: ExtraFPNBlock | None = None,
    norm_layer: Layers | None = None,
) -> Any:  # fmt: skip
    """A MobileNet as the giver of features; see `mobilenet_backbone`."""
    features = backbone.features
    stages = freeze_stages(features, trainable_layers)
    if not fpn:
        model: Any = nn.Sequential(features, nn.Conv2d(features[-1].out_channels, 256, 1))
        model.out_channels = 256
        return model
    returned = [len(stages) - 2, len(stages) - 1] if returned_layers is None else list(returned_layers)
    _check_range("Each returned layer", returned, 0, len(stages) - 1)
    layers = {str(stages[k]): str(place) for place, k in enumerate(returned)}
    return BackboneWithFPN(features, layers, [features[stages[k]].out_channels for k in returned], 256, extra_blocks, norm_layer)


def mobilenet_backbone(
    *, backbone_name: str, weights: Any, fpn: bool, norm_layer: Layers = FrozenBatchNorm2d, trainable_layers: int = 2,
    returned_layers: Sequence[int] | None = None, extra_blocks: ExtraFPNBlock | None = None,
) -> Any:  # fmt: skip
    """A MobileNet with 256 channels of features, in a pyramid (`fpn`) or as one map.

    backbone_name: "mobilenet_v2", "mobilenet_v3_large" or "mobilenet_v3_small". weights: as of that model. norm_layer: makes normalisations (default
    one that never changes). trainable_layers: stages from the last one that learn. returned_layers: stages of the pyramid (default the last two).
    extra_blocks: adds levels (default "pool", a coarser one). Raises ValueError for stages that there are not.
    """
    module = mobilenet if hasattr(mobilenet, backbone_name) else efficientnet
    model = getattr(module, backbone_name)(weights=weights, norm_layer=norm_layer)
    return mobilenet_features(model, fpn, trainable_layers, returned_layers, extra_blocks)


def trainable(trained: bool, layers: int | None, most: int, usual: int) -> int:
    """How many stages learn: all of them where nothing was trained before."""
    if not trained:
        if layers is not None:
            warn_user(
                "Changing trainable_backbone_layers has no effect if neither weights nor weights_backbone are given, "
                f"falling back to trainable_backbone_layers={most} so that all layers are trainable"
            )
        return most
    found = usual if layers is None else layers
    _check_range("Trainable backbone layers", found, 0, most)
    return found
