"""Detectors of two stages: where there may be objects, and what they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from calque import nn
from calque.tensor import Tensor
from calque.vision.models.detection import _utils as det_utils

__all__ = ["GeneralizedRCNN"]


class GeneralizedRCNN(nn.Module):
    """Images and targets -> losses by name in training; images -> a dict for each in evaluation.

    backbone: images (N, C, H, W) -> features, or a dict of them. rpn: see `RegionProposalNetwork`. roi_heads: see `RoIHeads`. transform: see
    `GeneralizedRCNNTransform`.
    """

    def __init__(self, backbone: nn.Module, rpn: nn.Module, roi_heads: nn.Module, transform: nn.Module) -> None:
        super().__init__()
        self.transform, self.backbone, self.rpn, self.roi_heads = transform, backbone, rpn, roi_heads

    def forward(self, images: Sequence[Tensor], targets: Any = None) -> Any:
        """A list of images (C, H, W) and, in training, as many dicts with what is in them. Raises AssertionError, which is a ValueError, too, for
        targets that are missing or have boxes without an area."""
        batch, targets, sizes, features = det_utils.features_of(self, images, targets)
        proposals, losses = self.rpn(batch, features, targets)
        found, more = self.roi_heads(features, proposals, batch.image_sizes, targets)
        return {**more, **losses} if self.training else self.transform.postprocess(found, batch.image_sizes, sizes)
