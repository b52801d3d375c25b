"""Trained weights of detectors, and the functions that make detectors by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calque.base import dtypes as dt
from calque.base.errors import ArgumentError
from calque.functional.common import is_tensor
from calque.vision.models.detection._utils import overwrite_eps
from calque.vision.models.weights import MAKERS, WEIGHTS_OF, Weights, state_of
from calque.vision.transforms import Compose, ConvertImageDtype
from calque.vision.transforms.functional import pil_to_tensor

# Model, class of its weights, their name (* the default), their file with its hash.
_TABLE = """
fasterrcnn_mobilenet_v3_large_320_fpn FasterRCNN_MobileNet_V3_Large_320_FPN COCO_V1* fasterrcnn_mobilenet_v3_large_320_fpn-907ea3f9.pth
fasterrcnn_mobilenet_v3_large_fpn FasterRCNN_MobileNet_V3_Large_FPN COCO_V1* fasterrcnn_mobilenet_v3_large_fpn-fb6a3cc7.pth
fasterrcnn_resnet50_fpn FasterRCNN_ResNet50_FPN COCO_V1* fasterrcnn_resnet50_fpn_coco-258fb6c6.pth
fasterrcnn_resnet50_fpn_v2 FasterRCNN_ResNet50_FPN_V2 COCO_V1* fasterrcnn_resnet50_fpn_v2_coco-dd69338a.pth
fcos_resnet50_fpn FCOS_ResNet50_FPN COCO_V1* fcos_resnet50_fpn_coco-99b0c9b7.pth
keypointrcnn_resnet50_fpn KeypointRCNN_ResNet50_FPN COCO_V1* keypointrcnn_resnet50_fpn_coco-fc266e95.pth
keypointrcnn_resnet50_fpn KeypointRCNN_ResNet50_FPN COCO_LEGACY keypointrcnn_resnet50_fpn_coco-9f466800.pth
maskrcnn_resnet50_fpn MaskRCNN_ResNet50_FPN COCO_V1* maskrcnn_resnet50_fpn_coco-bf2d0c1e.pth
maskrcnn_resnet50_fpn_v2 MaskRCNN_ResNet50_FPN_V2 COCO_V1* maskrcnn_resnet50_fpn_v2_coco-73cbd019.pth
retinanet_resnet50_fpn RetinaNet_ResNet50_FPN COCO_V1* retinanet_resnet50_fpn_coco-eeacb38b.pth
retinanet_resnet50_fpn_v2 RetinaNet_ResNet50_FPN_V2 COCO_V1* retinanet_resnet50_fpn_v2_coco-5905b1c5.pth
ssd300_vgg16 SSD300_VGG16 COCO_V1* ssd300_vgg16_coco-b556d3b4.pth
ssdlite320_mobilenet_v3_large SSDLite320_MobileNet_V3_Large COCO_V1* ssdlite320_mobilenet_v3_large_coco-a79551df.pth
"""
# These were made when normalisations that never change added nothing to the variance.
_WITHOUT_EPS = ("fasterrcnn_resnet50_fpn", "maskrcnn_resnet50_fpn", "keypointrcnn_resnet50_fpn", "retinanet_resnet50_fpn")


class DetectionWeights(Weights):
    """Trained weights of a detector by name. A value is (file,)."""

    def transforms(self) -> Any:
        """What an image, of Pillow's or a tensor, becomes before the model sees it: values from 0 to 1."""
        return Compose([lambda img: img if is_tensor(img) else pil_to_tensor(img), ConvertImageDtype(dt.float32)])


def _read() -> tuple[dict[str, Any], dict[str, Any]]:
    """(classes by their name, class by its model's name)."""
    members: dict[str, dict[str, Any]] = {}
    names: dict[str, str] = {}
    for model, name, version, file in (line.split(" ") for line in _TABLE.split("\n") if line):
        found = members.setdefault(f"{name}_Weights", {})
        found[version.rstrip("*")] = (file,)
        if version.endswith("*"):
            found["DEFAULT"] = (file,)
        names[model] = f"{name}_Weights"
    classes: dict[str, Any] = {name: DetectionWeights(name, found) for name, found in members.items()}  # type: ignore[call-arg, arg-type]
    return classes, {model: classes[name] for model, name in names.items()}


CLASSES, _OF_MODELS = _read()
WEIGHTS_OF.update(_OF_MODELS)

_WEIGHTS_TEXT = """

    weights: None; "DEFAULT" or a member of its class of weights, whose file is kept and its hash checked; or a file, a folder, an address or
    owner/name as of every model. num_classes: classes with the background, which is 0 (default {classes}, those of the trained weights).
    weights_backbone: the same for the part that gives features, unless there are `weights` (default {backbone}). trainable_backbone_layers: stages of
    a trained backbone that learn, from the last one. Other options are those of `{kind}`.

    Images are a list of tensors (C, H, W) of values from 0 to 1, of any sizes. In training a call takes targets, too: a dict for each image, with
    "boxes" (N, 4), left, top, right and bottom in pixels, and "labels" (N,) of int64{more}; it returns losses by name. In evaluation it returns a
    dict for each image, with "boxes", "labels" and "scores"{found}, best first. Raises CheckpointNotFoundError, which says where a file has to be,
    where nothing can be fetched; ValueError for a number of classes that trained weights do not have.
    """


def detector(
    name: str, kind: str, build: Callable[..., Any], text: str, backbone: str | None, classes: int = 91, more: str = "", found: str = ""
) -> Any:  # fmt: skip
    """The function that makes a detector by its name. `build(trained, weights_backbone, trainable_backbone_layers, num_classes, **options)`."""

    def make(
        *, weights: Any = None, progress: bool = True, num_classes: int | None = None, weights_backbone: Any = backbone,
        trainable_backbone_layers: int | None = None, pretrained: bool = False, pretrained_backbone: bool | None = None, **options: Any,
    ) -> Any:  # fmt: skip
        chosen = "DEFAULT" if pretrained and weights is None else weights
        if pretrained_backbone is not None:
            weights_backbone = (backbone or "IMAGENET1K_V1") if pretrained_backbone else None
        members = WEIGHTS_OF[name].__members__
        named = isinstance(chosen, WEIGHTS_OF[name]) or (isinstance(chosen, str) and chosen.rpartition(".")[2] in members)
        if named and num_classes not in (None, classes):
            raise ArgumentError(
                f"[{name}] The parameter 'num_classes' expected value {classes}, which the trained weights have, but got {num_classes}; "
                "make the model without it and replace its predictor"
            )
        model = build(
            chosen is not None or weights_backbone is not None, None if chosen is not None else weights_backbone, trainable_backbone_layers,
            classes if num_classes is None else num_classes, **options,
        )  # fmt: skip
        if chosen is not None:
            model.load_state_dict(state_of(name, chosen))
            latest = named and (chosen.rpartition(".")[2] if isinstance(chosen, str) else chosen.name) != "COCO_LEGACY"
            if latest and name in _WITHOUT_EPS:
                overwrite_eps(model, 0.0)
        return model

    make.__name__ = make.__qualname__ = name
    make.__doc__ = text + _WEIGHTS_TEXT.format(kind=kind, classes=classes, backbone="none" if backbone is None else backbone, more=more, found=found)
    MAKERS[name] = make
    return make
