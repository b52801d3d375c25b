"""Boxes at every position of features, from which detectors measure what they find."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from calque import functional as T
from calque import nn
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError
from calque.tensor import Tensor
from calque.vision.models.detection._utils import TargetError
from calque.vision.models.detection.image_list import ImageList

__all__ = ["AnchorGenerator", "DefaultBoxGenerator"]


class AnchorGenerator(nn.Module):
    """An `ImageList` and its feature maps -> for each image the boxes (K, 4) around all positions of all maps.

    sizes: for each map the roots of the areas of its boxes, in pixels; one number for a map means one size. aspect_ratios: for each map the heights
    by the widths of its boxes, or one row for all. A position has a box for each size and ratio. Raises AssertionError if there are not as many maps
    as rows. Source: Ren et al. 2015, "Faster R-CNN".

    >>> import calque
    >>> from calque.vision.models.detection.anchor_utils import AnchorGenerator
    >>> from calque.vision.models.detection.image_list import ImageList
    >>> images = ImageList(calque.zeros(1, 3, 32, 32), [(32, 32)])
    >>> AnchorGenerator(((16,),), ((0.25, 1.0),))(images, [calque.zeros(1, 8, 1, 2)])[0]
    tensor([[-16.,  -4.,  16.,   4.],
            [ -8.,  -8.,   8.,   8.],
            [  0.,  -4.,  32.,   4.],
            [  8.,  -8.,  24.,   8.]])
    """

    def __init__(self, sizes: Sequence[Any] = ((128, 256, 512),), aspect_ratios: Sequence[Any] = ((0.5, 1.0, 2.0),)) -> None:
        super().__init__()
        self.sizes = sizes if isinstance(sizes[0], (list, tuple)) else tuple((size,) for size in sizes)
        self.aspect_ratios = aspect_ratios if isinstance(aspect_ratios[0], (list, tuple)) else (aspect_ratios,) * len(self.sizes)
        self.cell_anchors = [self.generate_anchors(*row) for row in zip(self.sizes, self.aspect_ratios, strict=False)]

    def generate_anchors(self, scales: Any, aspect_ratios: Any, dtype: Any = dt.float32, device: Any = "cpu") -> Tensor:
        """The boxes around one position, (len(scales) len(aspect_ratios), 4), rounded to whole pixels."""
        root = T.sqrt(T.tensor(list(aspect_ratios), dtype=dtype, device=device))[:, None]
        size = T.tensor(list(scales), dtype=dtype, device=device)
        width, height = ((1 / root) * size).reshape(-1), (root * size).reshape(-1)
        return T.round(T.stack([-width, -height, width, height], 1) / 2)

    def num_anchors_per_location(self) -> list[int]:
        """Boxes around a position of each map."""
        return [len(sizes) * len(ratios) for sizes, ratios in zip(self.sizes, self.aspect_ratios, strict=False)]

    def grid_anchors(self, grid_sizes: Sequence[Any], strides: Sequence[Any]) -> list[Tensor]:
        """Maps of (rows, columns) whose positions are (down, across) pixels apart -> their boxes (rows columns boxes, 4)."""
        if not len(grid_sizes) == len(strides) == len(self.cell_anchors):
            raise TargetError(
                f"[AnchorGenerator] There needs to be a match between the number of feature maps passed and the number of sizes / aspect ratios: "
                f"expected {len(self.cell_anchors)} maps, got {len(grid_sizes)}; give a row of sizes for each map"
            )
        found = []
        for (rows, columns), (down, across), cell in zip(grid_sizes, strides, self.cell_anchors, strict=True):
            y = (T.arange(rows, device=cell.device) * int(down))[:, None].expand(rows, columns).reshape(-1)
            x = (T.arange(columns, device=cell.device) * int(across))[None].expand(rows, columns).reshape(-1)
            found.append((T.stack([x, y, x, y], 1)[:, None] + cell).reshape(-1, 4))
        return found

    def forward(self, image_list: ImageList, feature_maps: Sequence[Tensor]) -> list[Tensor]:
        """The boxes of each image; all have the same."""
        height, width = image_list.tensors.shape[-2:]
        grids = [tuple(one.shape[-2:]) for one in feature_maps]
        dtype, device = feature_maps[0].dtype, feature_maps[0].device
        self.cell_anchors = [cell.to(dtype=dtype, device=device) for cell in self.cell_anchors]
        found = T.cat(self.grid_anchors(grids, [(height // rows, width // columns) for rows, columns in grids]))
        return [found for _ in image_list.image_sizes]


class DefaultBoxGenerator(nn.Module):
    """An `ImageList` and its feature maps -> for each image the boxes (K, 4) around all positions of all maps, of sides that are parts of the
    image's.

    aspect_ratios: for each map the width by the height of boxes besides the square one and a larger square; each is used both ways. min_ratio,
    max_ratio: the side of the boxes of the first and of the last map, as parts of the image, if `scales` does not give all of them and one more.
    steps: pixels between two positions of each map, by default as many as fit. clip: sides of more than the image are cut to it. Source: Liu et al.
    2016, "SSD".

    >>> import calque
    >>> from calque.vision.models.detection.anchor_utils import DefaultBoxGenerator
    >>> from calque.vision.models.detection.image_list import ImageList
    >>> DefaultBoxGenerator([[]], 0.5, 0.5)(ImageList(calque.zeros(1, 3, 8, 8), [(8, 8)]), [calque.zeros(1, 4, 1, 1)])[0]
    tensor([[2., 2., 6., 6.],
            [2., 2., 6., 6.]])
    """

    def __init__(
        self, aspect_ratios: Sequence[Sequence[float]], min_ratio: float = 0.15, max_ratio: float = 0.9, scales: Sequence[float] | None = None,
        steps: Sequence[int] | None = None, clip: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        if steps is not None and len(aspect_ratios) != len(steps):
            raise ArgumentError(
                f"[DefaultBoxGenerator] aspect_ratios and steps should have the same length, got {len(aspect_ratios)} and {len(steps)}; "
                "give both for each map"
            )
        self.aspect_ratios, self.steps, self.clip = aspect_ratios, steps, clip
        count = len(aspect_ratios)
        spread = [min_ratio + (max_ratio - min_ratio) * k / (count - 1.0) for k in range(count)] if count > 1 else [min_ratio]
        self.scales = list(scales) if scales is not None else [*spread, 1.0 if count > 1 else max_ratio]
        self._wh_pairs = [T.tensor(self._sides(k), dtype=dt.float32) for k in range(count)]

    def _sides(self, level: int) -> list[list[float]]:
        """Width and height of the boxes around a position of a map."""
        side = self.scales[level]
        between = math.sqrt(side * self.scales[level + 1])
        found = [[side, side], [between, between]]
        for ratio in self.aspect_ratios[level]:
            root = math.sqrt(ratio)
            found += [[side * root, side / root], [side / root, side * root]]
        return found

    def num_anchors_per_location(self) -> list[int]:
        """Boxes around a position of each map."""
        return [2 + 2 * len(ratios) for ratios in self.aspect_ratios]

    def _level(self, level: int, grid: tuple[int, int], image: tuple[int, int]) -> Tensor:
        """Centres and sides of the boxes of a map, as parts of the image."""
        rows, columns = grid
        down, across = (side / self.steps[level] for side in image) if self.steps is not None else (rows, columns)
        sides = self._wh_pairs[level].clamp(0, 1) if self.clip else self._wh_pairs[level]
        y = ((T.arange(rows) + 0.5) / down)[:, None, None].expand(rows, columns, len(sides))
        x = ((T.arange(columns) + 0.5) / across)[None, :, None].expand(rows, columns, len(sides))
        return T.cat([T.stack([x, y], -1), sides.expand(rows, columns, len(sides), 2)], -1).reshape(-1, 4)

    def forward(self, image_list: ImageList, feature_maps: Sequence[Tensor]) -> list[Tensor]:
        """The boxes of each image; all have the same."""
        height, width = (int(side) for side in image_list.tensors.shape[-2:])
        parts = T.cat([self._level(k, tuple(one.shape[-2:]), (height, width)) for k, one in enumerate(feature_maps)])
        parts = parts.to(dtype=feature_maps[0].dtype, device=feature_maps[0].device)
        size = T.tensor([float(width), float(height)], dtype=parts.dtype, device=parts.device)
        found = T.cat([(parts[:, :2] - 0.5 * parts[:, 2:]) * size, (parts[:, :2] + 0.5 * parts[:, 2:]) * size], 1)
        return [found for _ in image_list.image_sizes]

    def extra_repr(self) -> str:
        """The settings."""
        return f"aspect_ratios={self.aspect_ratios}, clip={self.clip}, scales={self.scales}, steps={self.steps}"
