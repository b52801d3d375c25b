"""Images read at places of pixels, and flow at a higher resolution."""

from __future__ import annotations

from calque import functional as T
from calque.base import dtypes as dt
from calque.nn import functional as F
from calque.tensor import Tensor

__all__ = ["grid_sample", "make_coords_grid", "upsample_flow"]


def grid_sample(img: Tensor, absolute_grid: Tensor, mode: str = "bilinear", align_corners: bool | None = None) -> Tensor:
    """`grid_sample` at places (N, h, w, 2) of x and y in pixels, from 0 in the middle of the first one."""
    height, width = img.shape[-2:]
    x = 2 * absolute_grid[..., 0] / (width - 1) - 1
    y = 2 * absolute_grid[..., 1] / (height - 1) - 1 if height > 1 else absolute_grid[..., 1]  # a row alone has y as it is given
    return F.grid_sample(img, T.stack([x, y], -1), mode=mode, align_corners=align_corners)


def make_coords_grid(batch_size: int, h: int, w: int, device: object = "cpu") -> Tensor:
    """(batch_size, 2, h, w): x and y of each pixel.

    >>> make_coords_grid(1, 1, 3).tolist()
    [[[[0.0, 1.0, 2.0]], [[0.0, 0.0, 0.0]]]]
    """
    y, x = T.meshgrid(T.arange(h, dtype=dt.float32), T.arange(w, dtype=dt.float32), indexing="ij")
    return T.stack([x, y]).to(device).unsqueeze(0).repeat(batch_size, 1, 1, 1)  # type: ignore[no-any-return]


def upsample_flow(flow: Tensor, up_mask: Tensor | None = None, factor: int = 8) -> Tensor:
    """(N, 2, h, w) -> (N, 2, factor h, factor w), `factor` times as far.

    up_mask: (N, 9 factor factor, h, w), of which weights are made with which each new pixel takes the 9 old ones around it; None: interpolation.

    >>> import calque
    >>> float(upsample_flow(calque.ones(1, 2, 2, 2), factor=4)[0, 0, 7, 7])
    4.0
    """
    if up_mask is None:
        return factor * F.interpolate(flow, scale_factor=factor, mode="bilinear", align_corners=True)
    height, width = flow.shape[-2:]
    weights = up_mask.reshape(-1, 1, 9, factor, factor, height, width).softmax(2)
    around = F.unfold(factor * flow, 3, padding=1).reshape(flow.shape[0], -1, 9, 1, 1, height, width)
    return (weights * around).sum(2).permute(0, 1, 4, 2, 5, 3).flatten(4, 5).flatten(2, 3)  # type: ignore[no-any-return]
