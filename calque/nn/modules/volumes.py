"""Layers over volumes, unpooling and pooling over random windows; they load on first use."""

from __future__ import annotations

from typing import Any

from calque.base.errors import ArgumentError
from calque.nn import functional as F
from calque.nn.module import Module
from calque.nn.modules.conv import _Transposed
from calque.nn.modules.make import spread
from calque.nn.modules.pooling import _Adaptive, _AdaptiveMax, _AvgPool, _LPPool, _MaxPool
from calque.nn.modules.vision import _ConstantPad, _Pad, _ZeroPad
from calque.tensor import Tensor

__all__ = [
    "AdaptiveAvgPool3d", "AdaptiveMaxPool3d", "AvgPool3d", "CircularPad3d", "ConstantPad3d", "ConvTranspose3d", "FractionalMaxPool2d",
    "FractionalMaxPool3d", "LPPool3d", "MaxPool3d", "MaxUnpool1d", "MaxUnpool2d", "MaxUnpool3d", "ReflectionPad3d", "ReplicationPad3d",
    "ZeroPad3d",
]  # fmt: skip


class ConvTranspose3d(_Transposed):
    """Transposed 3-d convolution: (N, C_in, D, H, W) -> (N, C_out, D', H', W').

    in_channels, out_channels, kernel_size: as for `Conv3d`. stride: spreads the input. padding: is cut off the result. output_padding: added at one
    side of it, or say the `output_size` in the call.

    >>> import calque
    >>> layer = calque.nn.ConvTranspose3d(2, 4, 3, stride=2)
    >>> tuple(layer(calque.zeros(1, 2, 3, 3, 3)).shape), tuple(layer(calque.zeros(1, 2, 3, 3, 3), output_size=(8, 7, 7)).shape)
    ((1, 4, 7, 7, 7), (1, 4, 8, 7, 7))
    """

    dims = 3

    def forward(self, input: Tensor, output_size: Any = None) -> Tensor:
        extra = self._extra(input, output_size)
        return F.conv_transpose3d(input, self.weight, self.bias, self.stride, self.padding, extra, self.groups, self.dilation)


class MaxPool3d(_MaxPool):
    """Largest element of every window: (N, C, D, H, W) -> (N, C, D', H', W'); `return_indices` gives its flat position, too, for `MaxUnpool3d`.

    >>> import calque
    >>> calque.nn.MaxPool3d(2)(calque.arange(8.0).view(1, 1, 2, 2, 2)).item()
    7.0
    """

    def forward(self, input: Tensor) -> Any:
        return F.max_pool3d(input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices)


class AvgPool3d(_AvgPool):
    """Mean of every window: (N, C, D, H, W) -> (N, C, D', H', W').

    >>> import calque
    >>> calque.nn.AvgPool3d(2)(calque.arange(8.0).view(1, 1, 2, 2, 2)).item()
    3.5
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.avg_pool3d(input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad, self.divisor_override)


class LPPool3d(_LPPool):
    """p-norm of every window: (N, C, D, H, W) -> (N, C, D', H', W').

    >>> import calque
    >>> round(calque.nn.LPPool3d(2, 2)(calque.ones(1, 1, 2, 2, 2)).item(), 4)
    2.8284
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.lp_pool3d(input, float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode)


class AdaptiveAvgPool3d(_Adaptive):
    """Mean over windows that divide the volume: (N, C, D, H, W) -> (N, C, *output_size); None keeps a size.

    >>> import calque
    >>> tuple(calque.nn.AdaptiveAvgPool3d((1, None, 2))(calque.zeros(1, 2, 4, 4, 4)).shape)
    (1, 2, 1, 4, 2)
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.adaptive_avg_pool3d(input, self.output_size)


class AdaptiveMaxPool3d(_AdaptiveMax):
    """Maximum over windows that divide the volume: (N, C, D, H, W) -> (N, C, *output_size).

    >>> import calque
    >>> calque.nn.AdaptiveMaxPool3d(1)(calque.arange(8.0).view(1, 1, 2, 2, 2)).item()
    7.0
    """

    def forward(self, input: Tensor) -> Any:
        return F.adaptive_max_pool3d(input, self.output_size, self.return_indices)


class _MaxUnpool(Module):
    dims = 1

    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0) -> None:
        super().__init__()
        stride = kernel_size if stride is None else stride
        self.kernel_size, self.stride, self.padding = spread(type(self).__name__, self.dims, kernel_size=kernel_size, stride=stride, padding=padding)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxUnpool1d(_MaxUnpool):
    """Zeros, with the maxima of `MaxPool1d(return_indices=True)` at their places: (N, C, L'), indices -> (N, C, L).

    >>> import calque
    >>> y, places = calque.nn.MaxPool1d(2, return_indices=True)(calque.tensor([[[1.0, 3.0, 4.0, 2.0]]]))
    >>> calque.nn.MaxUnpool1d(2)(y, places).tolist()
    [[[0.0, 3.0, 4.0, 0.0]]]
    """

    def forward(self, input: Tensor, indices: Tensor, output_size: Any = None) -> Tensor:
        return F.max_unpool1d(input, indices, self.kernel_size, self.stride, self.padding, output_size)


class MaxUnpool2d(_MaxUnpool):
    """Zeros, with the maxima of `MaxPool2d(return_indices=True)` at their places: (N, C, H', W'), indices -> (N, C, H, W).

    >>> import calque
    >>> y, places = calque.nn.MaxPool2d(2, return_indices=True)(calque.arange(4.0).view(1, 1, 2, 2))
    >>> calque.nn.MaxUnpool2d(2)(y, places).tolist()
    [[[[0.0, 0.0], [0.0, 3.0]]]]
    """

    dims = 2

    def forward(self, input: Tensor, indices: Tensor, output_size: Any = None) -> Tensor:
        return F.max_unpool2d(input, indices, self.kernel_size, self.stride, self.padding, output_size)


class MaxUnpool3d(_MaxUnpool):
    """Zeros, with the maxima of `MaxPool3d(return_indices=True)` at their places: (N, C, D', H', W'), indices -> (N, C, D, H, W).

    >>> import calque
    >>> y, places = calque.nn.MaxPool3d(2, return_indices=True)(calque.arange(8.0).view(1, 1, 2, 2, 2))
    >>> calque.nn.MaxUnpool3d(2)(y, places).flatten().tolist()
    [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 7.0]
    """

    dims = 3

    def forward(self, input: Tensor, indices: Tensor, output_size: Any = None) -> Tensor:
        return F.max_unpool3d(input, indices, self.kernel_size, self.stride, self.padding, output_size)


class _FractionalMaxPool(Module):
    dims = 2

    def __init__(
        self, kernel_size: Any, output_size: Any = None, output_ratio: Any = None, return_indices: bool = False, _random_samples: Any = None
    ) -> None:
        super().__init__()
        name = type(self).__name__
        (self.kernel_size,) = spread(name, self.dims, kernel_size=kernel_size)
        self.return_indices = return_indices
        self.register_buffer("_random_samples", _random_samples)
        if (output_size is None) == (output_ratio is None):
            both = "only one of output_size and output_ratio may be specified" if output_size is not None else "expected output_size or output_ratio"
            raise ArgumentError(f"[{name}] {name} requires specifying either an output size, or a pooling ratio: {both}")
        self.output_size = None if output_size is None else spread(name, self.dims, output_size=output_size)[0]
        ratios = output_ratio if isinstance(output_ratio, (tuple, list)) or output_ratio is None else (output_ratio,) * self.dims
        self.output_ratio = None if ratios is None else tuple(ratios)
        if self.output_ratio is not None and not all(0 < r < 1 for r in self.output_ratio):
            raise ArgumentError(f"[{name}] output_ratio must be between 0 and 1 (got {output_ratio})")


class FractionalMaxPool2d(_FractionalMaxPool):
    """Maximum over windows whose places are random, so that any output size is possible (Graham 2014): (N, C, H, W) -> (N, C, H', W').

    Say the `output_size`, or an `output_ratio` between 0 and 1.

    >>> import calque
    >>> tuple(calque.nn.FractionalMaxPool2d(2, output_ratio=0.7)(calque.zeros(1, 3, 10, 10)).shape)
    (1, 3, 7, 7)
    """

    def forward(self, input: Tensor) -> Any:
        return F.fractional_max_pool2d(
            input, self.kernel_size, self.output_size, self.output_ratio, self.return_indices, _random_samples=self._random_samples
        )


class FractionalMaxPool3d(_FractionalMaxPool):
    """Maximum over windows whose places are random (see `FractionalMaxPool2d`): (N, C, D, H, W) -> (N, C, D', H', W').

    >>> import calque
    >>> tuple(calque.nn.FractionalMaxPool3d(2, output_size=3)(calque.zeros(1, 2, 6, 6, 6)).shape)
    (1, 2, 3, 3, 3)
    """

    dims = 3

    def forward(self, input: Tensor) -> Any:
        return F.fractional_max_pool3d(
            input, self.kernel_size, self.output_size, self.output_ratio, self.return_indices, _random_samples=self._random_samples
        )


class ConstantPad3d(_ConstantPad):
    """Add a constant border: (*, D, H, W) -> (*, D', H', W'); `padding` is one int or (left, right, top, bottom, front, back).

    >>> import calque
    >>> tuple(calque.nn.ConstantPad3d(1, 2.0)(calque.zeros(1, 1, 2, 2, 2)).shape)
    (1, 1, 4, 4, 4)
    """

    sides = 6


class ZeroPad3d(_ZeroPad, ConstantPad3d):
    """Add a border of zeros: (*, D, H, W) -> (*, D', H', W').

    >>> import calque
    >>> calque.nn.ZeroPad3d(1)(calque.ones(1, 1, 1, 1, 1)).sum().item()
    1.0
    """


class ReflectionPad3d(_Pad):
    """Add a reflected border: (*, D, H, W) -> (*, D', H', W').

    >>> import calque
    >>> tuple(calque.nn.ReflectionPad3d(1)(calque.ones(1, 1, 2, 2, 2)).shape)
    (1, 1, 4, 4, 4)
    """

    mode, sides = "reflect", 6


class ReplicationPad3d(_Pad):
    """Repeat the border: (*, D, H, W) -> (*, D', H', W').

    >>> import calque
    >>> calque.nn.ReplicationPad3d(1)(calque.ones(1, 1, 1, 1, 1)).sum().item()
    27.0
    """

    mode, sides = "replicate", 6


class CircularPad3d(_Pad):
    """Wrap around in all three dims: (*, D, H, W) -> (*, D', H', W').

    >>> import calque
    >>> tuple(calque.nn.CircularPad3d(1)(calque.ones(1, 1, 2, 2, 2)).shape)
    (1, 1, 4, 4, 4)
    """

    mode, sides = "circular", 6
