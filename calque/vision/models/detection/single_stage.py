"""Detectors of one stage: every position of the features says what is around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from calque import functional as T
from calque import nn
from calque.base import dtypes as dt
from calque.tensor import Tensor
from calque.vision.models.detection import _utils as det_utils
from calque.vision.ops import boxes as box_ops

__all__ = ["SingleStage"]

Outputs = Mapping[str, Tensor]


def rows_of(found: Sequence[Tensor], columns: int) -> Tensor:
    """Maps (N, A columns, H, W) of all levels -> (N, K, columns), of all levels, positions and boxes."""
    rows = []
    for one in found:
        count, channels, height, width = one.shape
        split = one.reshape(count, channels // columns, columns, height, width).permute(0, 3, 4, 1, 2)
        rows.append(split.reshape(count, height * width * (channels // columns), columns))
    return T.cat(rows, 1)


def unmatched(boxes: Tensor) -> Tensor:
    """Boxes (K, 4) of an image without objects: none belongs to any."""
    return T.full((len(boxes),), -1, dtype=dt.int64, device=boxes.device)


class SingleStage(nn.Module):
    """Images and targets -> losses by name in training; images -> a dict for each, with boxes, scores and labels, in evaluation.

    A subclass sets `backbone`, `head`, `anchor_generator`, `transform`, `nms_thresh` and `detections_per_img`, and has `losses_of` and `detect`.
    """

    nms_thresh: float
    detections_per_img: int

    def losses_of(self, targets: Any, outputs: Outputs, anchors: Sequence[Tensor], counts: Sequence[int]) -> dict[str, Tensor]:
        """Losses by name. counts: boxes of each level."""
        raise NotImplementedError(f"[{type(self).__name__}] expected losses_of of the subclass, got none; write it")

    def detect(self, outputs: Outputs, anchors: Sequence[Tensor], sizes: Sequence[tuple[int, int]], counts: Sequence[int]) -> list[dict[str, Tensor]]:
        """What is in images of these (height, width)."""
        raise NotImplementedError(f"[{type(self).__name__}] expected detect of the subclass, got none; write it")

    def kept(self, boxes: Sequence[Tensor], scores: Sequence[Tensor], labels: Sequence[Tensor]) -> dict[str, Tensor]:
        """The best boxes of an image, without those that cover a better one of their class, of several lots of them."""
        box, score, label = T.cat(list(boxes)), T.cat(list(scores)), T.cat(list(labels))
        keep = box_ops.batched_nms(box, score, label, self.nms_thresh)[: self.detections_per_img]
        return {"boxes": box[keep], "scores": score[keep], "labels": label[keep]}

    def forward(self, images: Sequence[Tensor], targets: Any = None) -> Any:
        """A list of images (C, H, W) and, in training, as many dicts with what is in them. Raises AssertionError, which is a ValueError, too, for
        targets that are missing or have boxes without an area."""
        batch, targets, sizes, features = det_utils.features_of(self, images, targets)
        maps = list(features.values())
        outputs = self.head(maps)
        anchors = self.anchor_generator(batch, maps)
        positions = [int(one.shape[2] * one.shape[3]) for one in maps]
        counts = [count * (len(anchors[0]) // max(sum(positions), 1)) for count in positions]
        if self.training:
            return self.losses_of(targets, outputs, anchors, counts)
        return self.transform.postprocess(self.detect(outputs, anchors, batch.image_sizes, counts), batch.image_sizes, sizes)


def best_of_level(scores: Tensor, threshold: float, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Scores (K, classes) -> (up to `most` of them above a threshold, best first; the box of each; its class)."""
    classes = scores.shape[1]
    flat = scores.flatten()
    place = T.where(flat > threshold)[0]
    best, order = flat[place].topk(min(len(place), most))
    place = place[order]
    return best, place // classes, place % classes
