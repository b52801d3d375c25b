"""What models for each pixel share: a backbone, a head on its last features and one on features from its middle."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from calque import nn
from calque.base.errors import ArgumentError
from calque.nn import functional as F
from calque.tensor import Tensor
from calque.vision.models import efficientnet, resnet
from calque.vision.models._utils import IntermediateLayerGetter
from calque.vision.models.weights import maker

_BACKBONES = {"resnet50": resnet.resnet50, "resnet101": resnet.resnet101, "mobilenet_v3_large": efficientnet.mobilenet_v3_large}

_OPTIONS = """

    num_classes: of a pixel, with the background (default 21). aux_loss: whether there is a second head, on features from the middle, whose scores are
    "aux" in the results; for a further loss in training. weights_backbone: trained weights of the backbone alone, as of `weights`, fetched unless it
    is None (default ImageNet's) or `weights` are given."""


class _SimpleSegmentationModel(nn.Module):
    """(N, 3, H, W) -> {"out": (N, classes, H, W)}, with "aux" where there is an `aux_classifier`.

    backbone: image -> {"out": features, "aux": features from its middle}. classifier, aux_classifier: features -> scores, which are interpolated to
    the size of the image.
    """

    def __init__(self, backbone: nn.Module, classifier: nn.Module, aux_classifier: nn.Module | None = None) -> None:
        super().__init__()
        self.backbone, self.classifier, self.aux_classifier = backbone, classifier, aux_classifier

    def forward(self, x: Tensor) -> Any:
        """The scores of the classes at each pixel."""
        features, size = self.backbone(x), x.shape[-2:]
        found: OrderedDict[str, Tensor] = OrderedDict()
        for name, head in (("out", self.classifier), ("aux", self.aux_classifier)):
            if head is not None:
                found[name] = F.interpolate(head(features[name]), size=size, mode="bilinear", align_corners=False)
        return found


def layers_of(model: nn.Module, last: str, middle: str | None) -> IntermediateLayerGetter:
    """The backbone: the model up to the child `last`, whose result is "out"; that of `middle` is "aux"."""
    return IntermediateLayerGetter(model, {last: "out", **({} if middle is None else {middle: "aux"})})


def resnet_features(name: str, weights: Any) -> nn.Module:
    """A residual network whose last two stages have wider filters instead of half the resolution."""
    return _BACKBONES[name](weights=weights, replace_stride_with_dilation=[False, True, True])  # type: ignore[no-any-return]


def mobilenet_features(weights: Any) -> tuple[Any, str, str]:
    """(blocks of MobileNet V3, name of the last one, name of the one that begins the third stage, where the image has an eighth of its sides)."""
    features = _BACKBONES["mobilenet_v3_large"](weights=weights, dilated=True).features
    begins = [0, *(k for k, block in enumerate(features) if getattr(block, "_is_cn", False)), len(features) - 1]
    return features, str(begins[-1]), str(begins[-4])


def _fitted(options: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
    """With trained weights the backbone needs none of its own, and the second head is there if they have it."""
    aux = any(name.startswith("aux_classifier.") for name in state)
    given = options.get("aux_loss")
    if given is not None and bool(given) != aux:
        raise ArgumentError(f"[segmentation] The parameter 'aux_loss' expected value {aux} for these weights but got {given} instead; leave it out")
    options = {name: value for name, value in options.items() if name not in ("weights_backbone", "pretrained_backbone")}
    return {**options, "weights_backbone": None, **({"aux_loss": True} if aux else {})}


def segmenter(name: str, build: Callable[[int, bool, Any], nn.Module], text: str) -> Any:
    """The function that makes a model. build: (number of classes, second head?, weights of the backbone) -> model."""

    def make(
        num_classes: int | None = None, aux_loss: bool | None = None, weights_backbone: Any = "IMAGENET1K_V1", pretrained_backbone: bool | None = None
    ) -> nn.Module:
        weights = None if pretrained_backbone is False else weights_backbone
        return build(21 if num_classes is None else num_classes, bool(aux_loss), weights)

    return maker(name, make, text + _OPTIONS, _fitted)
