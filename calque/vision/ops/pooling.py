"""Regions whose features are largest values, or come from channels of their own. Names as in `torchvision.ops`."""

from __future__ import annotations

from typing import Any

from calque import functional as T
from calque import nn
from calque.autograd.modes import no_grad
from calque.base import dtypes as dt
from calque.base.errors import ShapeError
from calque.nn.functional.conv import sizes
from calque.tensor import Tensor
from calque.vision.ops.regions import by_image, roi_align, weighted

__all__ = ["PSRoIAlign", "PSRoIPool", "RoIPool", "ps_roi_align", "ps_roi_pool", "roi_pool"]


def _rounded(x: Tensor) -> Tensor:
    """The nearest whole number; halves go up, as in C."""
    return T.floor(x + 0.5)


def _windows(first: Tensor, last: Tensor, bins: int, size: int) -> tuple[Tensor, Tensor]:
    """Where the bins (K, bins) of regions begin and end within 0 to `size`, as int64."""
    step = T.clamp(last - first, min=1.0)[:, None] / bins
    bin = T.arange(bins, dtype=first.dtype, device=first.device)
    begin, end = T.floor(bin * step + first[:, None]), T.ceil((bin + 1) * step + first[:, None])
    return begin.clamp(0, size).to(dt.int64), end.clamp(0, size).to(dt.int64)


def roi_pool(input: Tensor, boxes: Any, output_size: Any, spatial_scale: float = 1.0) -> Tensor:
    """The largest elements of regions: (N, C, H, W) and K boxes -> (K, C, *output_size). No gradient for the boxes.

    boxes: (K, 5), image, left, top, right and bottom in each row, or a list of (L, 4), one for each image. spatial_scale: from their units to
    elements of the input; corners are rounded. Bins without elements are 0. Raises RuntimeError for other shapes. Source: Girshick 2015, "Fast
    R-CNN".

    >>> import calque
    >>> x = calque.arange(16.0).reshape(1, 1, 4, 4)
    >>> calque.vision.ops.roi_pool(x, [calque.tensor([[0.0, 0.0, 3.0, 3.0]])], 2)
    tensor([[[[ 5.,  7.],
              [13., 15.]]]])
    """
    rows, columns = sizes("roi_pool", "output_size", output_size, 2, 1)
    found, order = [], []
    for image, places, corners in by_image("roi_pool", input, boxes):
        if not len(places):
            continue
        with no_grad():
            left, top, right, bottom = _rounded(corners.detach().to(input.dtype) * spatial_scale).unbind(1)
            spans = []
            for first, last, bins, size in ((top, bottom, rows, input.shape[2]), (left, right, columns, input.shape[3])):
                begin, end = _windows(first, T.maximum(last, first) + 1, bins, size)
                most = max(1, int((end - begin).max().item()))
                index = begin[..., None] + T.arange(most, device=begin.device)
                spans.append((T.minimum(index, T.clamp(end - 1, min=0)[..., None]).clamp(0, size - 1), begin >= end))
            (down, no_rows), (across, no_columns) = spans
            empty = no_rows[:, :, None] | no_columns[:, None]
        read = input[image].permute(1, 2, 0)[down[:, :, None, :, None], across[:, None, :, None]]
        found.append(T.where(empty[..., None], 0.0, read.amax((3, 4))).permute(0, 3, 1, 2))
        order += places
    if not found:
        return T.zeros(0, input.shape[1], rows, columns, dtype=input.dtype, device=input.device) * input.sum()
    return T.cat(found)[T.argsort(T.tensor(order, device=input.device))]


def _own_channels(op: str, pooled: Tensor) -> Tensor:
    """(K, C R S, R, S) -> (K, C, R, S): each bin from the channels that are its own."""
    count, channels, rows, columns = pooled.shape
    if channels % (rows * columns):
        raise ShapeError(f"[{op}] expected a number of channels that {rows} x {columns} bins divide, got {channels}; give each bin its own")
    own = pooled.reshape(count, channels // (rows * columns), rows * columns, rows * columns).diagonal(dim1=2, dim2=3)
    return own.reshape(count, channels // (rows * columns), rows, columns)


def ps_roi_align(input: Tensor, boxes: Any, output_size: Any, spatial_scale: float = 1.0, sampling_ratio: int = -1) -> Tensor:
    """`roi_align` whose bins have channels of their own: (N, C R S, H, W) and K boxes -> (K, C, R, S), where (R, S) is `output_size`.

    Arguments as of `roi_align`, with `aligned=True`. Raises RuntimeError if R S does not divide the channels. Source: Li et al. 2017, "Light-Head
    R-CNN".

    >>> import calque
    >>> x = calque.arange(4.0).reshape(1, 4, 1, 1).expand(1, 4, 5, 5)
    >>> calque.vision.ops.ps_roi_align(x, [calque.tensor([[1.0, 1.0, 4.0, 4.0]])], 2)
    tensor([[[[0., 1.],
              [2., 3.]]]])
    """
    return _own_channels("ps_roi_align", roi_align(input, boxes, output_size, spatial_scale, sampling_ratio, aligned=True))


def ps_roi_pool(input: Tensor, boxes: Any, output_size: Any, spatial_scale: float = 1.0) -> Tensor:
    """Means of regions whose bins have channels of their own: (N, C R S, H, W) and K boxes -> (K, C, R, S), where (R, S) is `output_size`.

    Arguments as of `roi_pool`. Raises RuntimeError if R S does not divide the channels. Source: Dai et al. 2016, "R-FCN".

    >>> import calque
    >>> x = calque.arange(4.0).reshape(1, 4, 1, 1).expand(1, 4, 5, 5)
    >>> calque.vision.ops.ps_roi_pool(x, [calque.tensor([[1.0, 1.0, 4.0, 4.0]])], 2)
    tensor([[[[0., 1.],
              [2., 3.]]]])
    """

    def parts(corners: Tensor, rows: int, columns: int, height: int, width: int) -> tuple[Tensor, Tensor]:
        left, top, right, bottom = _rounded(corners * spatial_scale).unbind(1)
        shares = []
        for first, last, bins, size in ((top, bottom, rows, height), (left, right, columns, width)):
            begin, end = _windows(first, last, bins, size)
            place = T.arange(size, device=begin.device)
            inside = ((place >= begin[..., None]) & (place < end[..., None])).to(corners.dtype)
            shares.append(inside / T.clamp(end - begin, min=1)[..., None])
        return shares[0], shares[1]

    return _own_channels("ps_roi_pool", weighted("ps_roi_pool", input, boxes, output_size, parts))


class RoIPool(nn.Module):
    """See `roi_pool`: (N, C, H, W) and K boxes -> (K, C, *output_size)."""

    def __init__(self, output_size: Any, spatial_scale: float) -> None:
        super().__init__()
        self.output_size, self.spatial_scale = output_size, spatial_scale

    def forward(self, input: Tensor, rois: Any) -> Tensor:
        """The largest elements of the regions."""
        return roi_pool(input, rois, self.output_size, self.spatial_scale)

    def extra_repr(self) -> str:
        """The settings."""
        return f"output_size={self.output_size}, spatial_scale={self.spatial_scale}"


class PSRoIPool(RoIPool):
    """See `ps_roi_pool`: (N, C R S, H, W) and K boxes -> (K, C, R, S)."""

    def forward(self, input: Tensor, rois: Any) -> Tensor:
        """The means of the regions."""
        return ps_roi_pool(input, rois, self.output_size, self.spatial_scale)


class PSRoIAlign(RoIPool):
    """See `ps_roi_align`: (N, C R S, H, W) and K boxes -> (K, C, R, S)."""

    def __init__(self, output_size: Any, spatial_scale: float, sampling_ratio: int) -> None:
        super().__init__(output_size, spatial_scale)
        self.sampling_ratio = sampling_ratio

    def forward(self, input: Tensor, rois: Any) -> Tensor:
        """The means of the regions."""
        return ps_roi_align(input, rois, self.output_size, self.spatial_scale, self.sampling_ratio)

    def extra_repr(self) -> str:
        """The settings."""
        return f"{super().extra_repr()}, sampling_ratio={self.sampling_ratio}"
