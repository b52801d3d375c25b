"""Models that give scores for each pixel. Names as in `torchvision.models.segmentation`."""

from calque.vision.models.segmentation.deeplabv3 import DeepLabV3, deeplabv3_mobilenet_v3_large, deeplabv3_resnet50, deeplabv3_resnet101
from calque.vision.models.segmentation.fcn import FCN, fcn_resnet50, fcn_resnet101
from calque.vision.models.segmentation.lraspp import LRASPP, lraspp_mobilenet_v3_large

__all__ = [
    "FCN", "LRASPP", "DeepLabV3", "deeplabv3_mobilenet_v3_large", "deeplabv3_resnet101", "deeplabv3_resnet50", "fcn_resnet101", "fcn_resnet50",
    "lraspp_mobilenet_v3_large",
]  # fmt: skip
