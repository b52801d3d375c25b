"""Features of regions, and convolutions that read where they are told. Names as in `torchvision.ops`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

from calque import functional as T
from calque import nn
from calque.autograd.modes import no_grad
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, DTypeError, ShapeError
from calque.base.text import described
from calque.functional.common import is_tensor
from calque.nn.functional.conv import sizes
from calque.nn.functional.sampling import Image, interpolated
from calque.nn.modules.make import positive
from calque.tensor import Tensor

__all__ = ["DeformConv2d", "RoIAlign", "deform_conv2d", "roi_align"]


def by_image(op: str, input: Tensor, boxes: Any) -> list[tuple[int, Any, Tensor]]:
    """(image, places of its regions among all, their corners) for (K, 5) rows that begin with the image, or a list of (L, 4) for each image."""
    if input.ndim != 4:
        raise ShapeError(f"[{op}] expected input (N, C, H, W), got shape {tuple(input.shape)}")
    if not all(map(is_tensor, boxes if isinstance(boxes, (list, tuple)) else (boxes,))):
        raise DTypeError(f"[{op}] expected boxes as a Tensor (K, 5), or a list of Tensors (L, 4), got {described(boxes)}")
    if isinstance(boxes, (list, tuple)):
        if len(boxes) != input.shape[0] or any(b.ndim != 2 or b.shape[1] != 4 for b in boxes):
            raise ShapeError(f"[{op}] expected one Tensor (L, 4) for each of {input.shape[0]} images, got {[tuple(b.shape) for b in boxes]}")
        found, first = [], 0
        for image, corners in enumerate(boxes):
            found.append((image, range(first, first + len(corners)), corners))
            first += len(corners)
        return found
    if boxes.ndim != 2 or boxes.shape[1] != 5:
        raise ShapeError(f"[{op}] expected boxes (K, 5), an image and four corners in each row, got shape {tuple(boxes.shape)}")
    images = [int(image) for image in boxes[:, 0].tolist()]
    if images and not 0 <= min(images) <= max(images) < input.shape[0]:
        raise ArgumentError(f"[{op}] expected images in 0..{input.shape[0] - 1} in the first column of boxes, got {images}")
    rows = {image: [k for k, other in enumerate(images) if other == image] for image in dict.fromkeys(images)}
    return [(image, places, boxes[T.tensor(places, device=boxes.device)][:, 1:]) for image, places in rows.items()]


def _weights(first: Tensor, last: Tensor, bins: int, size: int, ratio: int, aligned: bool) -> Tensor:
    """(K, bins, size): the part that each element of a row has in each bin of each region. A bin is the mean of samples at equal distances,
    interpolated between two elements; samples more than one element outside are 0, others are moved to the border."""
    extent = last - first if aligned else T.clamp(last - first, min=1.0)
    step = extent / bins
    counts = T.full_like(step, float(ratio)) if ratio > 0 else T.ceil(step)
    most = ratio if ratio > 0 else max(1, int(counts.max().item()))
    sample = T.arange(most, dtype=first.dtype, device=first.device)
    width = step / T.clamp(counts, min=1.0)
    starts = first[:, None] + T.arange(bins, dtype=first.dtype, device=first.device) * step[:, None]
    at = starts[:, :, None] + (sample + 0.5) * width[:, None, None]
    counted = (sample < counts[:, None])[:, None] & (at >= -1.0) & (at <= size)
    at = T.clamp(at, 0.0, size - 1.0)
    near = T.clamp(1.0 - T.abs(at[..., None] - T.arange(size, dtype=first.dtype, device=first.device)), min=0.0)
    return (near * counted[..., None]).sum(2) / T.clamp(counts, min=1.0)[:, None, None]


def weighted(op: str, input: Tensor, boxes: Any, output_size: Any, parts: Callable[..., tuple[Tensor, Tensor]]) -> Tensor:
    """(K, C, *output_size): weighted sums of the rows and the columns of each region. `parts(corners, rows, columns, height, width)` gives the part
    that each row (K, rows, height) and each column (K, columns, width) of the input has in them."""
    rows, columns = sizes(op, "output_size", output_size, 2, 1)
    _, channels, height, width = input.shape if input.ndim == 4 else (0, 0, 0, 0)
    found, order = [], []
    for image, places, corners in by_image(op, input, boxes):
        if not len(places):
            continue
        with no_grad():
            down, across = parts(corners.detach().to(input.dtype), rows, columns, height, width)
        strips = down.reshape(-1, height) @ input[image].permute(1, 0, 2).reshape(height, channels * width)
        strips = strips.reshape(len(places), rows * channels, width) @ across.mT
        found.append(strips.reshape(len(places), rows, channels, columns).permute(0, 2, 1, 3))
        order += places
    if not found:
        return T.zeros(0, input.shape[1], rows, columns, dtype=input.dtype, device=input.device) * input.sum()
    return T.cat(found)[T.argsort(T.tensor(order, device=input.device))]


# Reading the four elements around a sample takes as long as this many multiplications: 0.24 s in place of 3.8 s for 256 regions of 7 x 7 bins of a
# map (256, 200, 336) on two cores, and as long as them for one of (64, 50, 84).
READ = 150


def _taps(first: Tensor, last: Tensor, samples: int, size: int, aligned: bool) -> list[tuple[Tensor, Tensor]]:
    """Both elements (K, samples) around each sample of a row, and their weights."""
    extent = last - first if aligned else T.clamp(last - first, min=1.0)
    at = first[:, None] + (T.arange(samples, dtype=first.dtype, device=first.device) + 0.5) * (extent / samples)[:, None]
    counted = ((at >= -1.0) & (at <= size)).to(first.dtype)
    at = T.clamp(at, 0.0, size - 1.0)
    low = T.floor(at)
    part, index = at - low, low.to(dt.int64)
    return [(index, (1.0 - part) * counted), (T.clamp(index + 1, max=size - 1), part * counted)]


def _read(input: Tensor, groups: Any, output_size: Any, scale: float, ratio: int, aligned: bool) -> Tensor:
    """`roi_align` of large maps: only the elements around samples are read."""
    rows, columns = sizes("roi_align", "output_size", output_size, 2, 1)
    count, channels, height, width = input.shape
    groups = [group for group in groups if len(group[1])]
    if not groups:
        return T.zeros(0, channels, rows, columns, dtype=input.dtype, device=input.device) * input.sum()
    with no_grad():
        image = T.tensor([k for k, places, _ in groups for _ in places], device=input.device)[:, None]
        corners = T.cat([group[2] for group in groups]).detach().to(input.dtype) * scale - (0.5 if aligned else 0.0)
        left, top, right, bottom = corners.unbind(1)
        down = _taps(top, bottom, rows * ratio, height, aligned)
        across = _taps(left, right, columns * ratio, width, aligned)
    elements = input.permute(0, 2, 3, 1).reshape(count * height * width, channels)
    total: Any = None
    for (y, upper), (x, lefter) in itertools.product(down, across):
        place = ((image * height + y) * width)[:, :, None] + x[:, None]
        read = elements[place.reshape(-1)].reshape(len(corners), rows * ratio, columns * ratio, channels)
        term = read * (upper[:, :, None] * lefter[:, None])[..., None]
        total = term if total is None else total + term
    bins = total.reshape(len(corners), rows, ratio, columns, ratio, channels).sum((2, 4)) / ratio**2
    order = T.argsort(T.tensor([place for _, places, _ in groups for place in places], device=input.device))
    return bins.permute(0, 3, 1, 2)[order]  # type: ignore[no-any-return]


def roi_align(
    input: Tensor, boxes: Any, output_size: Any, spatial_scale: float = 1.0, sampling_ratio: int = -1, aligned: bool = False
) -> Tensor:
    """Means of regions: (N, C, H, W) and K boxes -> (K, C, *output_size). No gradient for the boxes.

    boxes: (K, 5), image, left, top, right and bottom in each row, or a list of (L, 4), one for each image. spatial_scale: from their units to
    elements of the input. sampling_ratio: samples per bin and dim, as many as elements if it is not positive. aligned: elements are squares around
    their positions, so boxes are moved by half an element. Source: He et al. 2017, "Mask R-CNN".

    >>> import calque
    >>> x = calque.arange(16.0).reshape(1, 1, 4, 4)
    >>> calque.vision.ops.roi_align(x, [calque.tensor([[0.0, 0.0, 4.0, 4.0]])], 2, aligned=True)
    tensor([[[[ 2.5000,  4.5000],
              [10.5000, 12.5000]]]])
    """
    columns = sizes("roi_align", "output_size", output_size, 2, 1)[1]
    if input.ndim == 4 and sampling_ratio > 0 and READ * columns * sampling_ratio**2 < (input.shape[2] + columns) * input.shape[3]:
        return _read(input, by_image("roi_align", input, boxes), output_size, spatial_scale, sampling_ratio, aligned)

    def parts(corners: Tensor, rows: int, columns: int, height: int, width: int) -> tuple[Tensor, Tensor]:
        left, top, right, bottom = (corners * spatial_scale - (0.5 if aligned else 0.0)).unbind(1)
        down = _weights(top, bottom, rows, height, sampling_ratio, aligned)
        return down, _weights(left, right, columns, width, sampling_ratio, aligned)

    return weighted("roi_align", input, boxes, output_size, parts)


class RoIAlign(nn.Module):
    """See `roi_align`: (N, C, H, W) and K boxes -> (K, C, *output_size)."""

    def __init__(self, output_size: Any, spatial_scale: float, sampling_ratio: int, aligned: bool = False) -> None:
        super().__init__()
        self.output_size, self.spatial_scale, self.sampling_ratio, self.aligned = output_size, spatial_scale, sampling_ratio, aligned

    def forward(self, input: Tensor, rois: Any) -> Tensor:
        """The means of the regions."""
        return roi_align(input, rois, self.output_size, self.spatial_scale, self.sampling_ratio, self.aligned)

    def extra_repr(self) -> str:
        """The settings."""
        names = ("output_size", "spatial_scale", "sampling_ratio", "aligned")
        return ", ".join(f"{name}={getattr(self, name)}" for name in names)


def deform_conv2d(
    input: Tensor, offset: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """A convolution whose taps are moved: (N, C, H, W) -> (N, O, H', W').

    offset: (N, 2 G kH kW, H', W'), how far down and across each tap of each of G groups of channels is moved, in elements.
    mask: (N, G kH kW, H', W'), what it is multiplied by. weight: (O, C / groups, kH, kW). Outside of the input it reads 0.
    Source: Zhu et al. 2018, "Deformable ConvNets v2".

    >>> import calque
    >>> x, weight = calque.arange(9.0).reshape(1, 1, 3, 3), calque.ones(1, 1, 1, 1)
    >>> calque.vision.ops.deform_conv2d(x, calque.full((1, 2, 3, 3), 0.5), weight)[0, 0, 0]
    tensor([2.0000, 3.0000, 1.7500])
    """
    given = (("stride", stride, 2, 1), ("padding", padding, 2, 0), ("dilation", dilation, 2, 1))
    step, pad, spread = (sizes("deform_conv2d", *one) for one in given)
    if input.ndim != 4 or weight.ndim != 4 or not weight.shape[1] or input.shape[1] % weight.shape[1]:
        raise ShapeError(
            f"[deform_conv2d] expected input (N, C, H, W) and weight (O, C / groups, kH, kW), got {tuple(input.shape)} and {tuple(weight.shape)}"
        )
    batch, channels, *extents = input.shape
    out_channels, inner, *kernel = weight.shape
    taps = math.prod(kernel)
    out = [(extents[d] + 2 * pad[d] - spread[d] * (kernel[d] - 1) - 1) // step[d] + 1 for d in (0, 1)]
    shifts = offset.shape[1] // (2 * taps) if offset.ndim == 4 else 0
    if not shifts or tuple(offset.shape) != (batch, 2 * shifts * taps, *out) or channels % shifts:
        wanted = f"(N, 2 G kH kW, H', W') = ({batch}, {2 * taps} G, {out[0]}, {out[1]})"
        raise ShapeError(f"[deform_conv2d] expected offset {wanted}, where G groups share {channels} channels, got {tuple(offset.shape)}")
    if mask is not None and tuple(mask.shape) != (batch, shifts * taps, *out):
        raise ShapeError(f"[deform_conv2d] expected mask {(batch, shifts * taps, *out)}, got {tuple(mask.shape)}")
    moved = offset.reshape(batch * shifts, taps, 2, *out)
    places: list[Tensor] = []
    for d in (0, 1):
        tap = T.arange(kernel[d], dtype=offset.dtype) * spread[d] - pad[d]
        tap = tap.repeat_interleave(kernel[1]) if d == 0 else tap.repeat(kernel[0])
        row = T.arange(out[d], dtype=offset.dtype) * step[d]
        places.append(moved[:, :, d] + tap[:, None, None] + (row[:, None] if d == 0 else row))
    read = interpolated(Image(input.reshape(batch * shifts, channels // shifts, *extents)), places)
    if mask is not None:
        read = read * mask.reshape(batch * shifts, 1, taps, *out)
    groups = channels // inner
    columns = read.reshape(batch, groups, inner * taps, math.prod(out))
    result = (weight.reshape(groups, out_channels // groups, inner * taps) @ columns).reshape(batch, out_channels, *out)
    return result if bias is None else result + bias.reshape(1, -1, 1, 1)


class DeformConv2d(nn.Module):
    """See `deform_conv2d`: (N, C, H, W) -> (N, O, H', W')."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1,
        bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        positive("DeformConv2d", in_channels=in_channels, out_channels=out_channels, groups=groups)
        if in_channels % groups or out_channels % groups:
            raise ArgumentError(f"[DeformConv2d] expected groups that divide {in_channels} and {out_channels} channels, got {groups}")
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = sizes("DeformConv2d", "kernel_size", kernel_size, 2, 1)
        self.stride, self.padding, self.dilation = stride, padding, dilation
        self.weight = nn.Parameter(T.empty(out_channels, in_channels // groups, *self.kernel_size))
        self.bias = nn.Parameter(T.empty(out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weights and biases as of a convolution."""
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(self.weight[0].numel())
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, input: Tensor, offset: Tensor, mask: Tensor | None = None) -> Tensor:
        """The convolution with moved taps."""
        return deform_conv2d(input, offset, self.weight, self.bias, self.stride, self.padding, self.dilation, mask)

    def extra_repr(self) -> str:
        """The settings."""
        return f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}, groups={self.groups}"
