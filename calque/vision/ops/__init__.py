"""Operations on boxes, and layers of vision models. Names as in `torchvision.ops`.

>>> import calque
>>> boxes = calque.tensor([[0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 2.0, 1.9], [3.0, 3.0, 4.0, 4.0]])
>>> calque.vision.ops.nms(boxes, calque.tensor([0.9, 0.8, 0.7]), 0.5)
tensor([0, 2])
"""

import sys

from calque.functional.blame import publish as _publish
from calque.vision.ops import boxes, feature_pyramid_network, misc, poolers
from calque.vision.ops.boxes import (
    batched_nms,
    box_area,
    box_convert,
    box_iou,
    clip_boxes_to_image,
    complete_box_iou,
    distance_box_iou,
    generalized_box_iou,
    masks_to_boxes,
    nms,
    remove_small_boxes,
)
from calque.vision.ops.drop_block import DropBlock2d, DropBlock3d, drop_block2d, drop_block3d
from calque.vision.ops.feature_pyramid_network import FeaturePyramidNetwork
from calque.vision.ops.losses import complete_box_iou_loss, distance_box_iou_loss, generalized_box_iou_loss
from calque.vision.ops.misc import (
    MLP,
    Conv2dNormActivation,
    Conv3dNormActivation,
    FrozenBatchNorm2d,
    Permute,
    SqueezeExcitation,
    StochasticDepth,
    sigmoid_focal_loss,
    stochastic_depth,
)
from calque.vision.ops.poolers import MultiScaleRoIAlign
from calque.vision.ops.pooling import PSRoIAlign, PSRoIPool, RoIPool, ps_roi_align, ps_roi_pool, roi_pool
from calque.vision.ops.regions import DeformConv2d, RoIAlign, deform_conv2d, roi_align

__all__ = [
    "Conv3dNormActivation", "DropBlock2d", "DropBlock3d", "FeaturePyramidNetwork", "MultiScaleRoIAlign", "PSRoIAlign", "PSRoIPool", "RoIPool",
    "complete_box_iou_loss", "distance_box_iou_loss", "drop_block2d", "drop_block3d", "feature_pyramid_network", "generalized_box_iou_loss",
    "poolers", "ps_roi_align", "ps_roi_pool", "roi_pool",
    "DeformConv2d", "RoIAlign", "deform_conv2d", "roi_align",
    "MLP", "Conv2dNormActivation", "FrozenBatchNorm2d", "Permute", "SqueezeExcitation", "StochasticDepth", "batched_nms", "box_area", "box_convert",
    "box_iou", "boxes", "clip_boxes_to_image", "complete_box_iou", "distance_box_iou", "generalized_box_iou", "masks_to_boxes", "misc", "nms",
    "remove_small_boxes", "sigmoid_focal_loss", "stochastic_depth",
]  # fmt: skip

_publish(sys.modules[__name__])
