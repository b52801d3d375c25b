"""Detectors under torchvision's names: boxes, masks and key points of what is in an image; their state dicts fit torchvision's.

>>> import calque
>>> from calque.vision.models import detection
>>> model = detection.fasterrcnn_mobilenet_v3_large_320_fpn(num_classes=3, weights_backbone=None, min_size=64).eval()
>>> sorted(model([calque.rand(3, 48, 64)])[0])
['boxes', 'labels', 'scores']
"""

import sys

from calque.functional.blame import publish as _publish
from calque.vision.models.detection import anchor_utils, backbone_utils, generalized_rcnn, image_list, roi_heads, rpn, transform
from calque.vision.models.detection.faster_rcnn import (
    FasterRCNN,
    fasterrcnn_mobilenet_v3_large_320_fpn,
    fasterrcnn_mobilenet_v3_large_fpn,
    fasterrcnn_resnet50_fpn,
    fasterrcnn_resnet50_fpn_v2,
)
from calque.vision.models.detection.fcos import FCOS, fcos_resnet50_fpn
from calque.vision.models.detection.keypoint_rcnn import KeypointRCNN, keypointrcnn_resnet50_fpn
from calque.vision.models.detection.mask_rcnn import MaskRCNN, maskrcnn_resnet50_fpn, maskrcnn_resnet50_fpn_v2
from calque.vision.models.detection.retinanet import RetinaNet, retinanet_resnet50_fpn, retinanet_resnet50_fpn_v2
from calque.vision.models.detection.ssd import ssd300_vgg16
from calque.vision.models.detection.ssdlite import ssdlite320_mobilenet_v3_large
from calque.vision.models.detection.weights import CLASSES

__all__ = [
    "FCOS", "FasterRCNN", "KeypointRCNN", "MaskRCNN", "RetinaNet", "anchor_utils", "backbone_utils", "fasterrcnn_mobilenet_v3_large_320_fpn",
    "fasterrcnn_mobilenet_v3_large_fpn", "fasterrcnn_resnet50_fpn", "fasterrcnn_resnet50_fpn_v2", "fcos_resnet50_fpn",
    "generalized_rcnn", "image_list",
    "keypointrcnn_resnet50_fpn", "maskrcnn_resnet50_fpn", "maskrcnn_resnet50_fpn_v2", "retinanet_resnet50_fpn",
    "retinanet_resnet50_fpn_v2", "roi_heads", "rpn", "ssd300_vgg16", "ssdlite320_mobilenet_v3_large", "transform", *CLASSES,
]  # fmt: skip

globals().update(CLASSES)

_publish(sys.modules[__name__])
