"""Convolution layers."""

from __future__ import annotations

import math
from typing import Any

from calque.base.errors import ArgumentError, DTypeError
from calque.base.text import described, shown
from calque.functional.kinds import is_int
from calque.nn import functional as F
from calque.nn import init
from calque.nn.module import Module
from calque.nn.modules.make import extents, fresh, positive, spread
from calque.tensor import Tensor

__all__ = ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d"]


class _Conv(Module):
    """Settings, parameters and text of all convolutions over `dims` dims."""

    dims = 2
    transposed = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any,
        padding: Any,
        output_padding: Any,
        dilation: Any,
        groups: int,
        bias: bool,
        padding_mode: str,
        device: Any,
        dtype: Any,
    ) -> None:
        super().__init__()
        name, n = type(self).__name__, self.dims
        positive(name, groups=groups)
        extents(name, in_channels=in_channels, out_channels=out_channels)
        if in_channels % groups:
            raise ArgumentError(f"[{name}] in_channels must be divisible by groups, got in_channels={in_channels} and groups={groups}")
        if out_channels % groups:
            raise ArgumentError(f"[{name}] out_channels must be divisible by groups, got out_channels={out_channels} and groups={groups}")
        self.kernel_size, self.stride, self.dilation, self.output_padding = spread(
            name, n, kernel_size=kernel_size, stride=stride, dilation=dilation, output_padding=output_padding
        )
        if isinstance(padding, str):
            if padding not in ("same", "valid"):
                raise ArgumentError(f"[{name}] Invalid padding string {shown(padding)}, should be one of {{'valid', 'same'}}")
            if padding == "same" and any(s != 1 for s in self.stride):
                raise ArgumentError(f"[{name}] padding='same' is not supported for strided convolutions")
        if padding_mode not in ("zeros", "reflect", "replicate", "circular"):
            raise ArgumentError(
                f"[{name}] padding_mode must be one of {{'zeros', 'reflect', 'replicate', 'circular'}}, but got padding_mode='{padding_mode}'"
            )
        self.in_channels, self.out_channels, self.groups, self.padding_mode = in_channels, out_channels, groups, padding_mode
        self.padding: Any = padding if isinstance(padding, str) else spread(name, n, padding=padding)[0]
        if any(k < 1 for k in self.kernel_size) or any(s < 1 for s in self.stride):
            raise ArgumentError(f"[{name}] expected kernel_size and stride >= 1, got {self.kernel_size} and {self.stride}")
        first, second = (in_channels, out_channels) if self.transposed else (out_channels, in_channels)
        self.weight = fresh((first, second // groups, *self.kernel_size), device, dtype)
        self.register_parameter("bias", fresh((out_channels,), device, dtype) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            fan_in = math.prod(self.weight._layout.shape[1:])
            if fan_in:
                init.uniform_(self.bias, -1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in))

    def _padded(self, x: Tensor) -> Tensor:
        """The input with reflected, replicated or circular padding."""
        if self.padding == "same":
            spans = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size, strict=True)]
            pairs = [(s // 2, s - s // 2) for s in spans]
        elif self.padding == "valid":
            pairs = [(0, 0)] * self.dims
        else:
            pairs = [(p, p) for p in self.padding]
        return F.pad(x, [side for pair in reversed(pairs) for side in pair], mode=self.padding_mode)

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        zero, one = (0,) * self.dims, (1,) * self.dims
        if self.padding != zero:
            text += f", padding={self.padding}"
        if self.dilation != one:
            text += f", dilation={self.dilation}"
        if self.output_padding != zero:
            text += f", output_padding={self.output_padding}"
        if self.groups != 1:
            text += f", groups={self.groups}"
        if self.bias is None:
            text += ", bias=False"
        if self.padding_mode != "zeros":
            text += f", padding_mode={self.padding_mode}"
        return text


class _Forward(_Conv):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, 0, dilation, groups, bias, padding_mode, device, dtype)

    def _function(self) -> Any:
        raise NotImplementedError

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Any) -> Tensor:
        """The convolution with these parameters: subclasses written for PyTorch define it, or call it from their forward."""
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            input, padding = self._padded(input), 0
        return self._function()(input, weight, bias, self.stride, padding, self.dilation, self.groups)  # type: ignore[no-any-return]

    def forward(self, input: Tensor) -> Tensor:
        parameters = self._parameters
        try:
            weight, bias = parameters["weight"], parameters["bias"]
        except KeyError:  # what is parametrized, or computed by a hook, is no parameter
            weight, bias = self.weight, self.bias
        return self._conv_forward(input, weight, bias)


class Conv1d(_Forward):
    """1-d cross-correlation: (N, C_in, L) -> (N, C_out, L')."""

    dims = 1

    def _function(self) -> Any:
        return F.conv1d


class Conv2d(_Forward):
    """2-d cross-correlation: (N, C_in, H, W) -> (N, C_out, H', W') with H' = (H + 2 padding - dilation (kernel - 1) - 1) // stride + 1.

    >>> import calque
    >>> layer = calque.nn.Conv2d(3, 8, 3, padding=1)
    >>> layer
    Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))
    >>> tuple(layer(calque.zeros(2, 3, 5, 5)).shape)
    (2, 8, 5, 5)
    """

    dims = 2

    def _function(self) -> Any:
        return F.conv2d


class Conv3d(_Forward):
    """3-d cross-correlation: (N, C_in, D, H, W) -> (N, C_out, D', H', W')."""

    dims = 3

    def _function(self) -> Any:
        return F.conv3d


class _Transposed(_Conv):
    transposed = True

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
        groups: int = 1, bias: bool = True, dilation: Any = 1, padding_mode: str = "zeros", device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        if padding_mode != "zeros":
            raise ArgumentError(f'[{type(self).__name__}] Only "zeros" padding mode is supported for {type(self).__name__}')
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            output_padding,
            dilation,
            groups,
            bias,
            padding_mode,
            device,
            dtype,
        )

    def _extra(self, input: Tensor, output_size: Any) -> Any:
        """output_padding that gives the wanted output size."""
        if output_size is None:
            return self.output_padding
        n = self.dims
        if not isinstance(output_size, (tuple, list)) or not all(is_int(s) for s in output_size):
            raise DTypeError(f"[{type(self).__name__}] expected output_size as a list of {n} ints, got {described(output_size)}")
        if len(output_size) not in (n, n + 2):
            raise ArgumentError(f"[{type(self).__name__}] output_size must have {n} or {n + 2} elements, got {shown(output_size)}")
        wanted = [int(s) for s in output_size][-n:]
        least = [
            (input._layout.shape[i - n] - 1) * self.stride[i] - 2 * self.padding[i] + self.dilation[i] * (self.kernel_size[i] - 1) + 1
            for i in range(n)
        ]
        if any(not low <= w < low + s for low, w, s in zip(least, wanted, self.stride, strict=True)):
            most = [low + s - 1 for low, s in zip(least, self.stride, strict=True)]
            raise ArgumentError(f"[{type(self).__name__}] requested an output size of {wanted}, but valid sizes range from {least} to {most}")
        return tuple(w - low for w, low in zip(wanted, least, strict=True))


class ConvTranspose1d(_Transposed):
    """Transposed 1-d convolution: (N, C_in, L) -> (N, C_out, L')."""

    dims = 1

    def forward(self, input: Tensor, output_size: Any = None) -> Tensor:
        extra = self._extra(input, output_size)
        return F.conv_transpose1d(input, self.weight, self.bias, self.stride, self.padding, extra, self.groups, self.dilation)


class ConvTranspose2d(_Transposed):
    """Transposed 2-d convolution: (N, C_in, H, W) -> (N, C_out, H', W')."""

    dims = 2

    def forward(self, input: Tensor, output_size: Any = None) -> Tensor:
        extra = self._extra(input, output_size)
        return F.conv_transpose2d(input, self.weight, self.bias, self.stride, self.padding, extra, self.groups, self.dilation)
