"""Mask R-CNN, with torchvision's names and state dicts. Source: He et al. 2017, "Mask R-CNN"."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from calque import nn
from calque.base.errors import ArgumentError
from calque.vision.models.detection.faster_rcnn import FasterRCNN, check_backbone, check_kind, resnet50_pyramid, second_version
from calque.vision.models.detection.weights import detector
from calque.vision.ops.feature_pyramid_network import renamed
from calque.vision.ops.misc import Conv2dNormActivation
from calque.vision.ops.poolers import MultiScaleRoIAlign

__all__ = ["MaskRCNN", "MaskRCNNHeads", "MaskRCNNPredictor", "maskrcnn_resnet50_fpn", "maskrcnn_resnet50_fpn_v2"]


class MaskRCNNHeads(nn.Sequential):
    """(K, in_channels, M, M) -> (K, layers[-1], M, M): 3x3 convolutions of these widths."""

    _version = 2

    def __init__(self, in_channels: int, layers: Sequence[int], dilation: int, norm_layer: Callable[..., nn.Module] | None = None) -> None:
        options: dict[str, Any] = {"padding": dilation, "dilation": dilation, "norm_layer": norm_layer}
        widths = [in_channels, *layers]
        super().__init__(*[Conv2dNormActivation(before, after, 3, **options) for before, after in zip(widths, layers, strict=False)])
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def _upgrade_state_dict(self, entries: Any, prefix: str, version: int | None) -> None:
        if version is None or version < 2:
            renamed(entries, {f"{prefix}mask_fcn{k + 1}": f"{prefix}{k}.0" for k in range(len(self))})


class MaskRCNNPredictor(nn.Sequential):
    """(K, in_channels, M, M) -> scores (K, num_classes, 2 M, 2 M) of a mask of each class. dim_reduced: channels between both layers.

    >>> import calque
    >>> from calque.vision.models.detection.mask_rcnn import MaskRCNNPredictor
    >>> MaskRCNNPredictor(8, 4, num_classes=3)(calque.randn(5, 8, 14, 14)).shape
    torch.Size([5, 3, 28, 28])
    """

    def __init__(self, in_channels: int, dim_reduced: int, num_classes: int) -> None:
        super().__init__(
            OrderedDict(
                conv5_mask=nn.ConvTranspose2d(in_channels, dim_reduced, 2, 2, 0),
                relu=nn.ReLU(inplace=True),
                mask_fcn_logits=nn.Conv2d(dim_reduced, num_classes, 1, 1, 0),
            )
        )
        for name, parameter in self.named_parameters():
            if "weight" in name:
                nn.init.kaiming_normal_(parameter, mode="fan_out", nonlinearity="relu")


class MaskRCNN(FasterRCNN):
    """A `FasterRCNN` that also gives masks: targets have "masks" (N, H, W) of 0 and 1, and results "masks" (N, 1, H, W) from 0 to 1.

    backbone, num_classes and options: see `FasterRCNN`. mask_roi_pool, mask_head, mask_predictor: from features and boxes to scores (K, num_classes,
    M, M) of masks. Raises ValueError where `num_classes` is given with a `mask_predictor`.
    """

    def __init__(
        self, backbone: nn.Module, num_classes: int | None = None, *args: Any, mask_roi_pool: Any = None, mask_head: Any = None,
        mask_predictor: Any = None, **options: Any,
    ) -> None:  # fmt: skip
        check_backbone("MaskRCNN", backbone)
        check_kind("MaskRCNN", "mask_roi_pool", mask_roi_pool, MultiScaleRoIAlign)
        if (num_classes is None) == (mask_predictor is None):
            wrong = "None when mask_predictor is specified" if mask_predictor is not None else "not None when mask_predictor is not specified"
            raise ArgumentError(f"[MaskRCNN] num_classes should be {wrong}, got {num_classes}; give one of both")
        super().__init__(backbone, num_classes, *args, **options)
        channels: Any = backbone.out_channels
        self.roi_heads.mask_roi_pool = mask_roi_pool or MultiScaleRoIAlign(["0", "1", "2", "3"], output_size=14, sampling_ratio=2)
        self.roi_heads.mask_head = mask_head or MaskRCNNHeads(channels, (256,) * 4, 1)
        self.roi_heads.mask_predictor = mask_predictor or MaskRCNNPredictor(256, 256, num_classes or 0)


def _first(trained: bool, weights: Any, layers: int | None, num_classes: int, **options: Any) -> MaskRCNN:
    return MaskRCNN(resnet50_pyramid(trained, weights, layers), num_classes, **options)


def _second(trained: bool, weights: Any, layers: int | None, num_classes: int, **options: Any) -> MaskRCNN:
    head = MaskRCNNHeads(256, [256] * 4, 1, norm_layer=nn.BatchNorm2d)
    return MaskRCNN(**{**second_version(trained, weights, layers), "num_classes": num_classes, "mask_head": head, **options})


_TEXTS = (91, ', and "masks" (N, H, W) of 0 and 1', ', and "masks" (N, 1, H, W) from 0 to 1')
maskrcnn_resnet50_fpn = detector(
    "maskrcnn_resnet50_fpn", "MaskRCNN", _first, "Mask R-CNN with a pyramid of ResNet-50's features.", "IMAGENET1K_V1", *_TEXTS
)
maskrcnn_resnet50_fpn_v2 = detector(
    "maskrcnn_resnet50_fpn_v2", "MaskRCNN", _second, "Mask R-CNN with a pyramid of ResNet-50's features and convolutions in its heads.", None, *_TEXTS
)
