"""Models under torchvision's names; their state dicts fit torchvision's."""

import sys

from calque.functional.blame import publish as _publish
from calque.vision.models.densenet import DenseNet, densenet121, densenet161, densenet169, densenet201
from calque.vision.models.mobilenet import MobileNetV2, mobilenet_v2
from calque.vision.models.resnet import BasicBlock, Bottleneck, ResNet, resnet18, resnet34, resnet50, resnet101, resnet152
from calque.vision.models.vgg import VGG, vgg11, vgg11_bn, vgg13, vgg13_bn, vgg16, vgg16_bn, vgg19, vgg19_bn
from calque.vision.models.weights import (
    MobileNet_V2_Weights,
    ResNet18_Weights,
    ResNet34_Weights,
    ResNet50_Weights,
    ResNet101_Weights,
    ResNet152_Weights,
    VGG11_Weights,
    VGG13_Weights,
    VGG16_Weights,
    VGG19_Weights,
)

__all__ = [
    "MobileNetV2", "mobilenet_v2", "MobileNet_V2_Weights",
    "DenseNet", "densenet121", "densenet161", "densenet169", "densenet201",
    "BasicBlock", "Bottleneck", "ResNet", "resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "VGG", "vgg11", "vgg11_bn", "vgg13",
    "vgg13_bn", "vgg16", "vgg16_bn", "vgg19", "vgg19_bn", "ResNet18_Weights", "ResNet34_Weights", "ResNet50_Weights",
    "ResNet101_Weights", "ResNet152_Weights", "VGG11_Weights", "VGG13_Weights", "VGG16_Weights", "VGG19_Weights",
]  # fmt: skip

_publish(sys.modules[__name__])
