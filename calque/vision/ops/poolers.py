"""Features of regions from the level of a pyramid that fits their size. Names as in `torchvision.ops.poolers`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from calque import functional as T
from calque import nn
from calque.autograd.modes import no_grad
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError
from calque.tensor import Tensor
from calque.vision.ops.boxes import box_area
from calque.vision.ops.regions import roi_align

__all__ = ["LevelMapper", "MultiScaleRoIAlign"]


class LevelMapper:
    """Which level of a pyramid a box is read from: `canonical_level` for a box of the area `canonical_scale`², one more for each doubling of its
    sides; from `k_min` to `k_max`, counted from the former."""

    def __init__(self, k_min: int, k_max: int, canonical_scale: int = 224, canonical_level: int = 4, eps: float = 1e-6) -> None:
        self.k_min, self.k_max, self.s0, self.lvl0, self.eps = k_min, k_max, canonical_scale, canonical_level, eps

    def __call__(self, boxlists: Sequence[Tensor]) -> Tensor:
        """Tensors (L, 4), one for each image -> (K,) of int64."""
        side = T.sqrt(T.cat([box_area(boxes) for boxes in boxlists]))
        level = T.floor(self.lvl0 + T.log2(side / self.s0) + self.eps)
        return level.clamp(self.k_min, self.k_max).to(dt.int64) - self.k_min


def _scale(feature: Tensor, height: int) -> float:
    """How many elements of a feature map lie on one of the image: a power of 2, since each level halves."""
    return 2.0 ** round(math.log2(feature.shape[-2] / height))


class MultiScaleRoIAlign(nn.Module):
    """`roi_align` from several feature maps: each box is read from the level that fits its size.

    featmap_names: the names of the maps to read from, finest first. output_size: rows and columns of a result, or one number for both.
    sampling_ratio: as of `roi_align`. canonical_scale, canonical_level: a box of that side is read from the level that is 2^canonical_level times
    smaller than the image. Scales are taken from the first call. Source: Lin et al. 2017, "Feature Pyramid Networks", equation 1.

    >>> import calque
    >>> pool = calque.vision.ops.MultiScaleRoIAlign(["0", "1"], 3, 2)
    >>> maps = {"0": calque.randn(1, 5, 16, 16), "1": calque.randn(1, 5, 8, 8)}
    >>> pool(maps, [calque.tensor([[4.0, 4.0, 20.0, 30.0]])], [(64, 64)]).shape
    torch.Size([1, 5, 3, 3])
    """

    def __init__(
        self, featmap_names: Sequence[str], output_size: Any, sampling_ratio: int, *, canonical_scale: int = 224, canonical_level: int = 4
    ) -> None:  # fmt: skip
        super().__init__()
        self.featmap_names, self.sampling_ratio = list(featmap_names), sampling_ratio
        self.output_size = (output_size, output_size) if isinstance(output_size, int) else tuple(output_size)
        self.canonical_scale, self.canonical_level = canonical_scale, canonical_level
        self.scales: list[float] | None = None
        self.map_levels: LevelMapper | None = None

    def _measure(self, maps: list[Tensor], image_shapes: Sequence[tuple[int, int]]) -> None:
        if not image_shapes:
            raise ArgumentError("[MultiScaleRoIAlign] images list should not be empty, got no image_shapes; pass (height, width) of each image")
        height = max(shape[0] for shape in image_shapes)
        self.scales = [_scale(one, height) for one in maps]
        ends = (int(-math.log2(self.scales[0])), int(-math.log2(self.scales[-1])))
        self.map_levels = LevelMapper(*ends, self.canonical_scale, self.canonical_level)

    def forward(self, x: Mapping[str, Tensor], boxes: Sequence[Tensor], image_shapes: Sequence[tuple[int, int]]) -> Tensor:
        """Maps (N, C, H, W) by name and boxes (L, 4) of each image, in pixels of images of `image_shapes` -> (K, C, *output_size)."""
        maps = [value for name, value in x.items() if name in self.featmap_names]
        if self.scales is None or self.map_levels is None:
            self._measure(maps, image_shapes)
        assert self.scales is not None and self.map_levels is not None
        corners = T.cat(list(boxes))
        image = T.cat([T.full((len(one), 1), float(k), dtype=corners.dtype, device=corners.device) for k, one in enumerate(boxes)])
        regions = T.cat([image, corners], 1)
        if len(maps) == 1:
            return roi_align(maps[0], regions, self.output_size, self.scales[0], self.sampling_ratio)
        with no_grad():
            levels = self.map_levels(boxes)
        places = [T.where(levels == k)[0] for k in range(len(maps))]
        found = [
            roi_align(one, regions[place], self.output_size, scale, self.sampling_ratio)
            for one, place, scale in zip(maps, places, self.scales, strict=True) if len(place)
        ]  # fmt: skip
        if not found:
            return roi_align(maps[0], regions, self.output_size, self.scales[0], self.sampling_ratio)
        return T.cat(found)[T.argsort(T.cat(places))]

    def extra_repr(self) -> str:
        """The settings."""
        return f"featmap_names={self.featmap_names}, output_size={self.output_size}, sampling_ratio={self.sampling_ratio}"
