"""Trained weights under the names of `torchvision.models`, and what a model's `weights=` may be."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from typing import Any

from calque.base import dtypes as dt
from calque.functional.common import is_tensor
from calque.io import load
from calque.io.fetch import cached_url
from calque.io.weights import file_of, is_place, named_tensors, read_weights
from calque.vision.transforms import CenterCrop, Compose, ConvertImageDtype, InterpolationMode, Normalize, Resize
from calque.vision.transforms._presets import OpticalFlow, SemanticSegmentation, VideoClassification
from calque.vision.transforms.functional import pil_to_tensor

_PLACE = "https://download.pytorch.org/models/"

# Model, class of its weights, their name (* the default), their file with its hash, the pixels of the crop and of the shorter side before.
_TABLE = """
alexnet AlexNet IMAGENET1K_V1* alexnet-owt-7be5be79.pth 224 256
convnext_base ConvNeXt_Base IMAGENET1K_V1* convnext_base-6075fbad.pth 224 232
convnext_large ConvNeXt_Large IMAGENET1K_V1* convnext_large-ea097f82.pth 224 232
convnext_small ConvNeXt_Small IMAGENET1K_V1* convnext_small-0c510722.pth 224 230
convnext_tiny ConvNeXt_Tiny IMAGENET1K_V1* convnext_tiny-983f1562.pth 224 236
densenet121 DenseNet121 IMAGENET1K_V1* densenet121-a639ec97.pth 224 256
densenet161 DenseNet161 IMAGENET1K_V1* densenet161-8d451a50.pth 224 256
densenet169 DenseNet169 IMAGENET1K_V1* densenet169-b2777c0a.pth 224 256
densenet201 DenseNet201 IMAGENET1K_V1* densenet201-c1103571.pth 224 256
efficientnet_b0 EfficientNet_B0 IMAGENET1K_V1* efficientnet_b0_rwightman-7f5810bc.pth 224 256 bicubic
efficientnet_b1 EfficientNet_B1 IMAGENET1K_V1 efficientnet_b1_rwightman-bac287d4.pth 240 256 bicubic
efficientnet_b1 EfficientNet_B1 IMAGENET1K_V2* efficientnet_b1-c27df63c.pth 240 255
efficientnet_b2 EfficientNet_B2 IMAGENET1K_V1* efficientnet_b2_rwightman-c35c1473.pth 288 288 bicubic
efficientnet_b3 EfficientNet_B3 IMAGENET1K_V1* efficientnet_b3_rwightman-b3899882.pth 300 320 bicubic
efficientnet_b4 EfficientNet_B4 IMAGENET1K_V1* efficientnet_b4_rwightman-23ab8bcd.pth 380 384 bicubic
efficientnet_b5 EfficientNet_B5 IMAGENET1K_V1* efficientnet_b5_lukemelas-1a07897c.pth 456 456 bicubic
efficientnet_b6 EfficientNet_B6 IMAGENET1K_V1* efficientnet_b6_lukemelas-24a108a5.pth 528 528 bicubic
efficientnet_b7 EfficientNet_B7 IMAGENET1K_V1* efficientnet_b7_lukemelas-c5b4e57e.pth 600 600 bicubic
efficientnet_v2_l EfficientNet_V2_L IMAGENET1K_V1* efficientnet_v2_l-59c71312.pth 480 480 bicubic
efficientnet_v2_m EfficientNet_V2_M IMAGENET1K_V1* efficientnet_v2_m-dc08266a.pth 480 480
efficientnet_v2_s EfficientNet_V2_S IMAGENET1K_V1* efficientnet_v2_s-dd5fe13b.pth 384 384
googlenet GoogLeNet IMAGENET1K_V1* googlenet-1378be20.pth 224 256
inception_v3 Inception_V3 IMAGENET1K_V1* inception_v3_google-0cc3c7bd.pth 299 342
maxvit_t MaxVit_T IMAGENET1K_V1* maxvit_t-bc5ab103.pth 224 224 bicubic
mnasnet0_5 MNASNet0_5 IMAGENET1K_V1* mnasnet0.5_top1_67.823-3ffadce67e.pth 224 256
mnasnet0_75 MNASNet0_75 IMAGENET1K_V1* mnasnet0_75-7090bc5f.pth 224 232
mnasnet1_0 MNASNet1_0 IMAGENET1K_V1* mnasnet1.0_top1_73.512-f206786ef8.pth 224 256
mnasnet1_3 MNASNet1_3 IMAGENET1K_V1* mnasnet1_3-a4c69d6f.pth 224 232
mobilenet_v2 MobileNet_V2 IMAGENET1K_V1 mobilenet_v2-b0353104.pth 224 256
mobilenet_v2 MobileNet_V2 IMAGENET1K_V2* mobilenet_v2-7ebf99e0.pth 224 232
mobilenet_v3_large MobileNet_V3_Large IMAGENET1K_V1 mobilenet_v3_large-8738ca79.pth 224 256
mobilenet_v3_large MobileNet_V3_Large IMAGENET1K_V2* mobilenet_v3_large-5c1a4163.pth 224 232
mobilenet_v3_small MobileNet_V3_Small IMAGENET1K_V1* mobilenet_v3_small-047dcff4.pth 224 256
regnet_x_16gf RegNet_X_16GF IMAGENET1K_V1 regnet_x_16gf-2007eb11.pth 224 256
regnet_x_16gf RegNet_X_16GF IMAGENET1K_V2* regnet_x_16gf-ba3796d7.pth 224 232
regnet_x_1_6gf RegNet_X_1_6GF IMAGENET1K_V1 regnet_x_1_6gf-e3633e7f.pth 224 256
regnet_x_1_6gf RegNet_X_1_6GF IMAGENET1K_V2* regnet_x_1_6gf-a12f2b72.pth 224 232
regnet_x_32gf RegNet_X_32GF IMAGENET1K_V1 regnet_x_32gf-9d47f8d0.pth 224 256
regnet_x_32gf RegNet_X_32GF IMAGENET1K_V2* regnet_x_32gf-6eb8fdc6.pth 224 232
regnet_x_3_2gf RegNet_X_3_2GF IMAGENET1K_V1 regnet_x_3_2gf-f342aeae.pth 224 256
regnet_x_3_2gf RegNet_X_3_2GF IMAGENET1K_V2* regnet_x_3_2gf-7071aa85.pth 224 232
regnet_x_400mf RegNet_X_400MF IMAGENET1K_V1 regnet_x_400mf-adf1edd5.pth 224 256
regnet_x_400mf RegNet_X_400MF IMAGENET1K_V2* regnet_x_400mf-62229a5f.pth 224 232
regnet_x_800mf RegNet_X_800MF IMAGENET1K_V1 regnet_x_800mf-ad17e45c.pth 224 256
regnet_x_800mf RegNet_X_800MF IMAGENET1K_V2* regnet_x_800mf-94a99ebd.pth 224 232
regnet_x_8gf RegNet_X_8GF IMAGENET1K_V1 regnet_x_8gf-03ceed89.pth 224 256
regnet_x_8gf RegNet_X_8GF IMAGENET1K_V2* regnet_x_8gf-2b70d774.pth 224 232
regnet_y_128gf RegNet_Y_128GF IMAGENET1K_SWAG_E2E_V1* regnet_y_128gf_swag-c8ce3e52.pth 384 384 bicubic
regnet_y_128gf RegNet_Y_128GF IMAGENET1K_SWAG_LINEAR_V1 regnet_y_128gf_lc_swag-cbe8ce12.pth 224 224 bicubic
regnet_y_16gf RegNet_Y_16GF IMAGENET1K_V1 regnet_y_16gf-9e6ed7dd.pth 224 256
regnet_y_16gf RegNet_Y_16GF IMAGENET1K_V2* regnet_y_16gf-3e4a00f9.pth 224 232
regnet_y_16gf RegNet_Y_16GF IMAGENET1K_SWAG_E2E_V1 regnet_y_16gf_swag-43afe44d.pth 384 384 bicubic
regnet_y_16gf RegNet_Y_16GF IMAGENET1K_SWAG_LINEAR_V1 regnet_y_16gf_lc_swag-f3ec0043.pth 224 224 bicubic
regnet_y_1_6gf RegNet_Y_1_6GF IMAGENET1K_V1 regnet_y_1_6gf-b11a554e.pth 224 256
regnet_y_1_6gf RegNet_Y_1_6GF IMAGENET1K_V2* regnet_y_1_6gf-0d7bc02a.pth 224 232
regnet_y_32gf RegNet_Y_32GF IMAGENET1K_V1 regnet_y_32gf-4dee3f7a.pth 224 256
regnet_y_32gf RegNet_Y_32GF IMAGENET1K_V2* regnet_y_32gf-8db6d4b5.pth 224 232
regnet_y_32gf RegNet_Y_32GF IMAGENET1K_SWAG_E2E_V1 regnet_y_32gf_swag-04fdfa75.pth 384 384 bicubic
regnet_y_32gf RegNet_Y_32GF IMAGENET1K_SWAG_LINEAR_V1 regnet_y_32gf_lc_swag-e1583746.pth 224 224 bicubic
regnet_y_3_2gf RegNet_Y_3_2GF IMAGENET1K_V1 regnet_y_3_2gf-b5a9779c.pth 224 256
regnet_y_3_2gf RegNet_Y_3_2GF IMAGENET1K_V2* regnet_y_3_2gf-9180c971.pth 224 232
regnet_y_400mf RegNet_Y_400MF IMAGENET1K_V1 regnet_y_400mf-c65dace8.pth 224 256
regnet_y_400mf RegNet_Y_400MF IMAGENET1K_V2* regnet_y_400mf-e6988f5f.pth 224 232
regnet_y_800mf RegNet_Y_800MF IMAGENET1K_V1 regnet_y_800mf-1b27b58c.pth 224 256
regnet_y_800mf RegNet_Y_800MF IMAGENET1K_V2* regnet_y_800mf-58fc7688.pth 224 232
regnet_y_8gf RegNet_Y_8GF IMAGENET1K_V1 regnet_y_8gf-d0d0e4a8.pth 224 256
regnet_y_8gf RegNet_Y_8GF IMAGENET1K_V2* regnet_y_8gf-dc2b1b54.pth 224 232
resnet101 ResNet101 IMAGENET1K_V1 resnet101-63fe2227.pth 224 256
resnet101 ResNet101 IMAGENET1K_V2* resnet101-cd907fc2.pth 224 232
resnet152 ResNet152 IMAGENET1K_V1 resnet152-394f9c45.pth 224 256
resnet152 ResNet152 IMAGENET1K_V2* resnet152-f82ba261.pth 224 232
resnet18 ResNet18 IMAGENET1K_V1* resnet18-f37072fd.pth 224 256
resnet34 ResNet34 IMAGENET1K_V1* resnet34-b627a593.pth 224 256
resnet50 ResNet50 IMAGENET1K_V1 resnet50-0676ba61.pth 224 256
resnet50 ResNet50 IMAGENET1K_V2* resnet50-11ad3fa6.pth 224 232
resnext101_32x8d ResNeXt101_32X8D IMAGENET1K_V1 resnext101_32x8d-8ba56ff5.pth 224 256
resnext101_32x8d ResNeXt101_32X8D IMAGENET1K_V2* resnext101_32x8d-110c445d.pth 224 232
resnext101_64x4d ResNeXt101_64X4D IMAGENET1K_V1* resnext101_64x4d-173b62eb.pth 224 232
resnext50_32x4d ResNeXt50_32X4D IMAGENET1K_V1 resnext50_32x4d-7cdf4587.pth 224 256
resnext50_32x4d ResNeXt50_32X4D IMAGENET1K_V2* resnext50_32x4d-1a0047aa.pth 224 232
shufflenet_v2_x0_5 ShuffleNet_V2_X0_5 IMAGENET1K_V1* shufflenetv2_x0.5-f707e7126e.pth 224 256
shufflenet_v2_x1_0 ShuffleNet_V2_X1_0 IMAGENET1K_V1* shufflenetv2_x1-5666bf0f80.pth 224 256
shufflenet_v2_x1_5 ShuffleNet_V2_X1_5 IMAGENET1K_V1* shufflenetv2_x1_5-3c479a10.pth 224 232
shufflenet_v2_x2_0 ShuffleNet_V2_X2_0 IMAGENET1K_V1* shufflenetv2_x2_0-8be3c8ee.pth 224 232
squeezenet1_0 SqueezeNet1_0 IMAGENET1K_V1* squeezenet1_0-b66bff10.pth 224 256
squeezenet1_1 SqueezeNet1_1 IMAGENET1K_V1* squeezenet1_1-b8a52dc0.pth 224 256
swin_b Swin_B IMAGENET1K_V1* swin_b-68c6b09e.pth 224 238 bicubic
swin_s Swin_S IMAGENET1K_V1* swin_s-5e29d889.pth 224 246 bicubic
swin_t Swin_T IMAGENET1K_V1* swin_t-704ceda3.pth 224 232 bicubic
swin_v2_b Swin_V2_B IMAGENET1K_V1* swin_v2_b-781e5279.pth 256 272 bicubic
swin_v2_s Swin_V2_S IMAGENET1K_V1* swin_v2_s-637d8ceb.pth 256 260 bicubic
swin_v2_t Swin_V2_T IMAGENET1K_V1* swin_v2_t-b137f0e2.pth 256 260 bicubic
vgg11 VGG11 IMAGENET1K_V1* vgg11-8a719046.pth 224 256
vgg11_bn VGG11_BN IMAGENET1K_V1* vgg11_bn-6002323d.pth 224 256
vgg13 VGG13 IMAGENET1K_V1* vgg13-19584684.pth 224 256
vgg13_bn VGG13_BN IMAGENET1K_V1* vgg13_bn-abd245e5.pth 224 256
vgg16 VGG16 IMAGENET1K_V1* vgg16-397923af.pth 224 256
vgg16 VGG16 IMAGENET1K_FEATURES vgg16_features-amdegroot-88682ab5.pth 224 256
vgg16_bn VGG16_BN IMAGENET1K_V1* vgg16_bn-6c64b313.pth 224 256
vgg19 VGG19 IMAGENET1K_V1* vgg19-dcbb9e9d.pth 224 256
vgg19_bn VGG19_BN IMAGENET1K_V1* vgg19_bn-c79401a0.pth 224 256
vit_b_16 ViT_B_16 IMAGENET1K_V1* vit_b_16-c867db91.pth 224 256
vit_b_16 ViT_B_16 IMAGENET1K_SWAG_E2E_V1 vit_b_16_swag-9ac1b537.pth 384 384 bicubic
vit_b_16 ViT_B_16 IMAGENET1K_SWAG_LINEAR_V1 vit_b_16_lc_swag-4e70ced5.pth 224 224 bicubic
vit_b_32 ViT_B_32 IMAGENET1K_V1* vit_b_32-d86f8d99.pth 224 256
vit_h_14 ViT_H_14 IMAGENET1K_SWAG_E2E_V1* vit_h_14_swag-80465313.pth 518 518 bicubic
vit_h_14 ViT_H_14 IMAGENET1K_SWAG_LINEAR_V1 vit_h_14_lc_swag-c1eb923e.pth 224 224 bicubic
vit_l_16 ViT_L_16 IMAGENET1K_V1* vit_l_16-852ce7e3.pth 224 242
vit_l_16 ViT_L_16 IMAGENET1K_SWAG_E2E_V1 vit_l_16_swag-4f3808c9.pth 512 512 bicubic
vit_l_16 ViT_L_16 IMAGENET1K_SWAG_LINEAR_V1 vit_l_16_lc_swag-4d563306.pth 224 224 bicubic
vit_l_32 ViT_L_32 IMAGENET1K_V1* vit_l_32-c7638314.pth 224 256
wide_resnet101_2 Wide_ResNet101_2 IMAGENET1K_V1 wide_resnet101_2-32ee1156.pth 224 256
wide_resnet101_2 Wide_ResNet101_2 IMAGENET1K_V2* wide_resnet101_2-d733dc28.pth 224 232
wide_resnet50_2 Wide_ResNet50_2 IMAGENET1K_V1 wide_resnet50_2-95faca4d.pth 224 256
wide_resnet50_2 Wide_ResNet50_2 IMAGENET1K_V2* wide_resnet50_2-9ba9bcbe.pth 224 232
"""
# The same for other tasks, whose columns behind the file are the task and what its preset wants: the shorter side; the crop, the sides before and
# whose mean and deviation of colours; nothing.
_TASKS = """
deeplabv3_mobilenet_v3_large DeepLabV3_MobileNet_V3_Large COCO_WITH_VOC_LABELS_V1* deeplabv3_mobilenet_v3_large-fc3c493d.pth segmentation 520
deeplabv3_resnet101 DeepLabV3_ResNet101 COCO_WITH_VOC_LABELS_V1* deeplabv3_resnet101_coco-586e9e4e.pth segmentation 520
deeplabv3_resnet50 DeepLabV3_ResNet50 COCO_WITH_VOC_LABELS_V1* deeplabv3_resnet50_coco-cd0a2569.pth segmentation 520
fcn_resnet101 FCN_ResNet101 COCO_WITH_VOC_LABELS_V1* fcn_resnet101_coco-7ecb50ca.pth segmentation 520
fcn_resnet50 FCN_ResNet50 COCO_WITH_VOC_LABELS_V1* fcn_resnet50_coco-1167a1af.pth segmentation 520
lraspp_mobilenet_v3_large LRASPP_MobileNet_V3_Large COCO_WITH_VOC_LABELS_V1* lraspp_mobilenet_v3_large-d234d4ea.pth segmentation 520
mc3_18 MC3_18 KINETICS400_V1* mc3_18-a90a0ba3.pth video 112 128x171 kinetics
mvit_v1_b MViT_V1_B KINETICS400_V1* mvit_v1_b-dbeb1030.pth video 224 256 middle
mvit_v2_s MViT_V2_S KINETICS400_V1* mvit_v2_s-ae3be167.pth video 224 256 middle
r2plus1d_18 R2Plus1D_18 KINETICS400_V1* r2plus1d_18-91a641e6.pth video 112 128x171 kinetics
r3d_18 R3D_18 KINETICS400_V1* r3d_18-b3b3357e.pth video 112 128x171 kinetics
s3d S3D KINETICS400_V1* s3d-d76dad2f.pth video 224 256x256 kinetics
swin3d_b Swin3D_B KINETICS400_V1* swin3d_b_1k-24f7c7c6.pth video 224 256 imagenet
swin3d_b Swin3D_B KINETICS400_IMAGENET22K_V1 swin3d_b_22k-7c6ae6fa.pth video 224 256 imagenet
swin3d_s Swin3D_S KINETICS400_V1* swin3d_s-da41c237.pth video 224 256 imagenet
swin3d_t Swin3D_T KINETICS400_V1* swin3d_t-7615ae03.pth video 224 256 imagenet
raft_large Raft_Large C_T_V1 raft_large_C_T_V1-22a6c225.pth flow
raft_large Raft_Large C_T_V2 raft_large_C_T_V2-1bb1363a.pth flow
raft_large Raft_Large C_T_SKHT_V1 raft_large_C_T_SKHT_V1-0b8c9e55.pth flow
raft_large Raft_Large C_T_SKHT_V2* raft_large_C_T_SKHT_V2-ff5fadd5.pth flow
raft_large Raft_Large C_T_SKHT_K_V1 raft_large_C_T_SKHT_K_V1-4a6a5039.pth flow
raft_large Raft_Large C_T_SKHT_K_V2 raft_large_C_T_SKHT_K_V2-b5c70766.pth flow
raft_small Raft_Small C_T_V1 raft_small_C_T_V1-ad48884c.pth flow
raft_small Raft_Small C_T_V2* raft_small_C_T_V2-01064c6d.pth flow
"""
_COLOURS: dict[str, Any] = {
    "kinetics": {}, "middle": {"mean": (0.45, 0.45, 0.45), "std": (0.225, 0.225, 0.225)},
    "imagenet": {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)},
}  # fmt: skip


class Weights(enum.Enum):
    """Trained weights by name. A value is (file, crop, side, interpolation), or (file, task, what its preset wants)."""

    @property
    def url(self) -> str:
        """Where the file is."""
        return _PLACE + str(self.value[0])

    def get_state_dict(self, progress: bool = True, check_hash: bool = True) -> Any:
        """The named tensors, from the file that is kept here or by PyTorch, or else fetched. Its hash is always checked."""
        return load(cached_url(self.url), map_location="cpu")

    def transforms(self) -> Any:
        """What an image, of Pillow's or a tensor, becomes before the model sees it; or what a video or two images become."""
        task, *wanted = self.value[1:]
        if task == "segmentation":
            return SemanticSegmentation(resize_size=int(wanted[0]))
        if task == "video":
            crop, sides, colours = wanted
            return VideoClassification(crop_size=[int(crop)] * 2, resize_size=[int(side) for side in sides.split("x")], **_COLOURS[colours])
        if task == "flow":
            return OpticalFlow()
        crop, side, mode = self.value[1:]
        first: list[Any] = [Resize(side, InterpolationMode(mode)), CenterCrop(crop), _as_tensor, ConvertImageDtype(dt.float32)]
        return Compose([*first, Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])])


def _as_tensor(img: Any) -> Any:
    return img if is_tensor(img) else pil_to_tensor(img)


def _read() -> tuple[dict[str, Any], dict[str, Any]]:
    """(classes by their name, class by its model's name)."""
    members: dict[str, dict[str, Any]] = {}
    models: dict[str, str] = {}
    for line in (_TABLE + _TASKS).split("\n"):
        if not line:
            continue
        model, name, version, file, *wanted = line.split(" ")
        value: tuple[Any, ...] = (file, *wanted)
        if wanted[0].isdigit():
            value = file, int(wanted[0]), int(wanted[1]), wanted[2] if len(wanted) > 2 else "bilinear"
        found = members.setdefault(f"{name}_Weights", {})
        found[version.rstrip("*")] = value
        if version.endswith("*"):
            found["DEFAULT"] = value
        models[model] = f"{name}_Weights"
    classes = {name: Weights(name, found) for name, found in members.items()}  # type: ignore[call-arg, arg-type]
    return classes, {model: classes[name] for model, name in models.items()}


CLASSES, WEIGHTS_OF = _read()
MAKERS: dict[str, Callable[..., Any]] = {}  # by the names of the models


def state_of(model: str, weights: Any) -> dict[str, Any]:
    """Named tensors: of a member of the model's class of weights or its name ("DEFAULT"), or of what `calque.io.weights.file_of` takes."""
    kind = WEIGHTS_OF.get(model)
    member = getattr(kind, "__members__", {}).get(weights.rpartition(".")[2] if isinstance(weights, str) and not is_place(weights) else "")
    if kind is not None and isinstance(weights, kind):
        member = weights
    if member is not None:
        found = named_tensors(model, member.get_state_dict(), weights)
    else:
        found = read_weights(model, file_of(model, weights, ", ".join(getattr(kind, "__members__", {}))))
    if model.startswith("densenet"):  # files of before 2018 name norm.1 what is norm1 today
        found = {re.sub(r"(denselayer\d+\.(?:norm|conv))\.([12])\.", r"\1\2.", key): value for key, value in found.items()}
    return found


_WEIGHTS_TEXT = """

    weights: None; a name such as "DEFAULT" or a member of its class of weights, whose file is kept and its hash checked; a file, or a folder with
    `model.safetensors` or `pytorch_model.bin`; an address whose file's name ends in its hash; or owner/name of the Hugging Face Hub, fetched by its
    client before. Raises CheckpointNotFoundError, which says where the file has to be, where nothing can be fetched.
    """


def maker(name: str, build: Callable[..., Any], text: str, fit: Callable[[Any, Any], Any] | None = None) -> Any:
    """The function that makes a model by its name, with trained weights if they are asked for. fit: (options, state dict) -> the options of the model
    that these weights belong to; None: those that were given."""

    def make(*, weights: Any = None, pretrained: bool = False, progress: bool = True, **options: Any) -> Any:
        chosen = next(iter(WEIGHTS_OF[name])) if pretrained and weights is None and name in WEIGHTS_OF else weights
        if chosen is None:
            return build(**options)
        state = state_of(name, chosen)
        aux = options.get("aux_logits")
        if name in ("googlenet", "inception_v3"):
            options = {"transform_input": True, "init_weights": False, **options, "aux_logits": any(key.lower().startswith("aux") for key in state)}
        model = build(**(options if fit is None else fit(options, state)))
        model.load_state_dict(state)
        if name == "googlenet" and not aux:
            model.aux_logits, model.aux1, model.aux2 = False, None, None
        if name == "inception_v3" and aux is False:
            model.aux_logits, model.AuxLogits = False, None
        return model

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"{text}{_WEIGHTS_TEXT}"
    MAKERS[name] = make
    return make
