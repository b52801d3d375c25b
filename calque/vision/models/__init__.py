"""Models under torchvision's names; their state dicts fit torchvision's."""

import sys

from calque.functional.blame import publish as _publish
from calque.vision.models import detection, feature_extraction, optical_flow, segmentation, video
from calque.vision.models.alexnet import AlexNet, SqueezeNet, alexnet, squeezenet1_0, squeezenet1_1
from calque.vision.models.densenet import DenseNet, densenet121, densenet161, densenet169, densenet201
from calque.vision.models.efficientnet import (
    EfficientNet,
    MobileNetV3,
    efficientnet_b0,
    efficientnet_b1,
    efficientnet_b2,
    efficientnet_b3,
    efficientnet_b4,
    efficientnet_b5,
    efficientnet_b6,
    efficientnet_b7,
    efficientnet_v2_l,
    efficientnet_v2_m,
    efficientnet_v2_s,
    mobilenet_v3_large,
    mobilenet_v3_small,
)
from calque.vision.models.inception import GoogLeNet, GoogLeNetOutputs, Inception3, InceptionOutputs, googlenet, inception_v3
from calque.vision.models.maxvit import MaxVit, maxvit_t
from calque.vision.models.mnasnet import MNASNet, mnasnet0_5, mnasnet0_75, mnasnet1_0, mnasnet1_3
from calque.vision.models.mobilenet import MobileNetV2, mobilenet_v2
from calque.vision.models.registry import get_model, get_model_builder, get_model_weights, get_weight, give_weights_to_modules, list_models
from calque.vision.models.regnet import (
    RegNet,
    regnet_x_1_6gf,
    regnet_x_3_2gf,
    regnet_x_8gf,
    regnet_x_16gf,
    regnet_x_32gf,
    regnet_x_400mf,
    regnet_x_800mf,
    regnet_y_1_6gf,
    regnet_y_3_2gf,
    regnet_y_8gf,
    regnet_y_16gf,
    regnet_y_32gf,
    regnet_y_128gf,
    regnet_y_400mf,
    regnet_y_800mf,
)
from calque.vision.models.resnet import (
    BasicBlock,
    Bottleneck,
    ResNet,
    resnet18,
    resnet34,
    resnet50,
    resnet101,
    resnet152,
    resnext50_32x4d,
    resnext101_32x8d,
    resnext101_64x4d,
    wide_resnet50_2,
    wide_resnet101_2,
)
from calque.vision.models.shufflenetv2 import ShuffleNetV2, shufflenet_v2_x0_5, shufflenet_v2_x1_0, shufflenet_v2_x1_5, shufflenet_v2_x2_0
from calque.vision.models.swin_transformer import SwinTransformer, swin_b, swin_s, swin_t, swin_v2_b, swin_v2_s, swin_v2_t
from calque.vision.models.transformer import (
    ConvNeXt,
    VisionTransformer,
    convnext_base,
    convnext_large,
    convnext_small,
    convnext_tiny,
    vit_b_16,
    vit_b_32,
    vit_h_14,
    vit_l_16,
    vit_l_32,
)
from calque.vision.models.unet import UNet, unet
from calque.vision.models.vgg import VGG, vgg11, vgg11_bn, vgg13, vgg13_bn, vgg16, vgg16_bn, vgg19, vgg19_bn
from calque.vision.models.weights import WEIGHTS_OF

_CLASSES = {kind.__name__: kind for name, kind in WEIGHTS_OF.items() if name in globals()}  # those of packages are in these

__all__ = [
    "AlexNet", "BasicBlock", "Bottleneck", "ConvNeXt", "DenseNet", "EfficientNet", "GoogLeNet", "GoogLeNetOutputs", "Inception3",
    "InceptionOutputs", "MobileNetV2", "MobileNetV3", "ResNet", "SqueezeNet", "UNet", "VGG", "VisionTransformer", "alexnet", "convnext_base",
    "convnext_large", "convnext_small", "convnext_tiny", "densenet121", "densenet161", "densenet169", "densenet201", "detection", "efficientnet_b0",
    "efficientnet_b1", "efficientnet_b2", "efficientnet_b3", "efficientnet_b4", "efficientnet_b5", "efficientnet_b6", "efficientnet_b7",
    "efficientnet_v2_l", "efficientnet_v2_m", "efficientnet_v2_s", "feature_extraction", "get_model", "get_model_builder", "get_model_weights",
    "get_weight", "googlenet", "inception_v3", "list_models", "mobilenet_v2", "mobilenet_v3_large", "mobilenet_v3_small", "resnet101",
    "resnet152", "resnet18", "resnet34", "resnet50", "resnext101_32x8d", "resnext101_64x4d", "resnext50_32x4d", "squeezenet1_0", "squeezenet1_1",
    "unet", "vgg11", "vgg11_bn", "vgg13", "vgg13_bn", "vgg16", "vgg16_bn", "vgg19", "vgg19_bn", "vit_b_16", "vit_b_32", "vit_h_14", "vit_l_16",
    "vit_l_32", "wide_resnet101_2", "wide_resnet50_2", "MNASNet", "mnasnet0_5",
    "mnasnet0_75", "mnasnet1_0", "mnasnet1_3", "RegNet", "regnet_x_16gf", "regnet_x_1_6gf", "regnet_x_32gf", "regnet_x_3_2gf", "regnet_x_400mf",
    "regnet_x_800mf", "regnet_x_8gf", "regnet_y_128gf", "regnet_y_16gf", "regnet_y_1_6gf", "regnet_y_32gf", "regnet_y_3_2gf", "regnet_y_400mf",
    "regnet_y_800mf", "regnet_y_8gf", "ShuffleNetV2", "shufflenet_v2_x0_5", "shufflenet_v2_x1_0", "shufflenet_v2_x1_5", "shufflenet_v2_x2_0",
    "MaxVit", "maxvit_t", "SwinTransformer", "swin_b", "swin_s", "swin_t", "swin_v2_b", "swin_v2_s", "swin_v2_t", "optical_flow",
    "segmentation", "video", *_CLASSES,
]  # fmt: skip

globals().update(_CLASSES)
give_weights_to_modules()

for _package in (segmentation, video, optical_flow, sys.modules[__name__]):
    _publish(_package)
