"""Layers and losses of vision models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from calque import functional as T
from calque import nn
from calque.nn import functional as F
from calque.tensor import Tensor

__all__ = [
    "MLP", "Conv2dNormActivation", "Conv3dNormActivation", "FrozenBatchNorm2d", "Permute", "SqueezeExcitation", "StochasticDepth",
    "sigmoid_focal_loss", "stochastic_depth",
]  # fmt: skip


class FrozenBatchNorm2d(nn.Module):
    """(N, C, H, W) -> the same: batch norm whose statistics and parameters are buffers, and never change."""

    def __init__(self, num_features: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        for name, value in (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0)):
            self.register_buffer(name, T.full((num_features,), value))

    def _upgrade_state_dict(self, entries: Any, prefix: str, version: int | None) -> None:
        entries.pop(f"{prefix}num_batches_tracked", None)  # of a batch norm that was trained

    def forward(self, x: Tensor) -> Tensor:
        """(x - mean) / sqrt(variance + eps) * weight + bias."""
        weight, bias, mean, variance = (getattr(self, n).reshape(1, -1, 1, 1) for n in ("weight", "bias", "running_mean", "running_var"))
        scale = weight * (variance + self.eps).rsqrt()
        return x * scale + (bias - mean * scale)

    def extra_repr(self) -> str:
        """The settings."""
        return f"{self.weight.shape[0]}, eps={self.eps}"


def _convolution(conv: Callable[..., nn.Module], in_channels: int, out_channels: int, kernel_size: Any, stride: Any, padding: Any, groups: int,
                 norm_layer: Callable[..., nn.Module] | None, activation_layer: Callable[..., nn.Module] | None, dilation: Any,
                 inplace: bool | None, bias: bool | None) -> list[nn.Module]:  # fmt: skip
    """A convolution with its normalisation and activation, where there are any. One size stands for all dims."""
    if padding is None and isinstance(kernel_size, int) and isinstance(dilation, int):
        padding = (kernel_size - 1) // 2 * dilation
    elif padding is None:
        dims = len(kernel_size if isinstance(kernel_size, Sequence) else dilation)
        kernel_size, dilation = ((size,) * dims if isinstance(size, int) else tuple(size) for size in (kernel_size, dilation))
        padding = tuple((size - 1) // 2 * spread for size, spread in zip(kernel_size, dilation, strict=True))
    bias = norm_layer is None if bias is None else bias
    layers = [conv(in_channels, out_channels, kernel_size, stride, padding, dilation=dilation, groups=groups, bias=bias)]
    if norm_layer is not None:
        layers.append(norm_layer(out_channels))
    if activation_layer is not None:
        layers.append(activation_layer(**({} if inplace is None else {"inplace": inplace})))
    return layers


class Conv2dNormActivation(nn.Sequential):
    """A convolution with `padding` for the same size, a normalisation and an activation."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any = 3, stride: Any = 1, padding: Any = None, groups: int = 1,
        norm_layer: Callable[..., nn.Module] | None = nn.BatchNorm2d, activation_layer: Callable[..., nn.Module] | None = nn.ReLU,
        dilation: Any = 1, inplace: bool | None = True, bias: bool | None = None,
    ) -> None:  # fmt: skip
        shared = (kernel_size, stride, padding, groups, norm_layer, activation_layer, dilation, inplace, bias)
        super().__init__(*_convolution(nn.Conv2d, in_channels, out_channels, *shared))
        self.out_channels = out_channels


class Conv3dNormActivation(nn.Sequential):
    """`Conv2dNormActivation` of volumes: (N, in_channels, D, H, W) -> (N, out_channels, D / stride, H / stride, W / stride).

    kernel_size, stride, padding, dilation: one number or three; padding None keeps the size, but for the stride. norm_layer, activation_layer: make
    the layers behind the convolution, None leaves them out. inplace: given to the activation unless it is None. bias: of the convolution, by default
    where there is no normalisation.

    >>> import calque
    >>> calque.vision.ops.Conv3dNormActivation(2, 4, (3, 1, 1), stride=2)(calque.randn(2, 2, 6, 6, 6)).shape
    torch.Size([2, 4, 3, 3, 3])
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any = 3, stride: Any = 1, padding: Any = None, groups: int = 1,
        norm_layer: Callable[..., nn.Module] | None = nn.BatchNorm3d, activation_layer: Callable[..., nn.Module] | None = nn.ReLU,
        dilation: Any = 1, inplace: bool | None = True, bias: bool | None = None,
    ) -> None:  # fmt: skip
        shared = (kernel_size, stride, padding, groups, norm_layer, activation_layer, dilation, inplace, bias)
        super().__init__(*_convolution(nn.Conv3d, in_channels, out_channels, *shared))
        self.out_channels = out_channels


class SqueezeExcitation(nn.Module):
    """Channels weighted by what the whole image says. Source: Hu et al. 2018, "Squeeze-and-Excitation Networks"."""

    def __init__(
        self, input_channels: int, squeeze_channels: int, activation: Callable[..., nn.Module] = nn.ReLU,
        scale_activation: Callable[..., nn.Module] = nn.Sigmoid,
    ) -> None:  # fmt: skip
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1, self.fc2 = nn.Conv2d(input_channels, squeeze_channels, 1), nn.Conv2d(squeeze_channels, input_channels, 1)
        self.activation, self.scale_activation = activation(), scale_activation()

    def forward(self, input: Tensor) -> Tensor:
        """(N, C, H, W) -> the same."""
        return self.scale_activation(self.fc2(self.activation(self.fc1(self.avgpool(input))))) * input  # type: ignore[no-any-return]


class MLP(nn.Sequential):
    """Linear layers with an activation, and dropout, between them."""

    def __init__(
        self, in_channels: int, hidden_channels: Sequence[int], norm_layer: Callable[..., nn.Module] | None = None,
        activation_layer: Callable[..., nn.Module] | None = nn.ReLU, inplace: bool | None = None, bias: bool = True, dropout: float = 0.0,
    ) -> None:  # fmt: skip
        options = {} if inplace is None else {"inplace": inplace}
        layers: list[Any] = []
        for k, width in enumerate(hidden_channels):
            layers.append(nn.Linear(in_channels, width, bias=bias))
            if k < len(hidden_channels) - 1:
                layers += [] if norm_layer is None else [norm_layer(width)]
                layers += [] if activation_layer is None else [activation_layer(**options)]
            layers.append(nn.Dropout(dropout, **options))
            in_channels = width
        super().__init__(*layers)


class Permute(nn.Module):
    """`permute` as a layer."""

    def __init__(self, dims: Sequence[int]) -> None:
        super().__init__()
        self.dims = list(dims)

    def forward(self, x: Tensor) -> Tensor:
        """The dims in another order."""
        return x.permute(*self.dims)


def stochastic_depth(input: Tensor, p: float, mode: str, training: bool = True) -> Tensor:
    """Zeros in the place of whole samples (mode "row") or of the whole batch ("batch") with probability p; the others are divided by 1 - p."""
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"[stochastic_depth] drop probability has to be between 0 and 1, but got {p}; choose one inside")
    if mode not in ("batch", "row"):
        raise ValueError(f"[stochastic_depth] mode has to be either 'batch' or 'row', but got {mode!r}; choose one")
    if not training or p == 0.0:
        return input
    shape = [input.shape[0] if mode == "row" else 1, *[1] * (input.ndim - 1)]
    keep = (T.rand(shape) >= p).to(input.dtype)
    return input * (keep / (1.0 - p) if p < 1.0 else keep)


class StochasticDepth(nn.Module):
    """`stochastic_depth` as a layer."""

    def __init__(self, p: float, mode: str) -> None:
        super().__init__()
        self.p, self.mode = p, mode

    def forward(self, input: Tensor) -> Tensor:
        """The input, or zeros."""
        return stochastic_depth(input, self.p, self.mode, self.training)


def sigmoid_focal_loss(inputs: Tensor, targets: Tensor, alpha: float = 0.25, gamma: float = 2, reduction: str = "none") -> Tensor:
    """Binary cross entropy that counts what is easy less. Source: Lin et al. 2017, "Focal Loss for Dense Object Detection"."""
    p = inputs.sigmoid()
    loss = F.binary_cross_entropy_with_logits(inputs, targets, reduction="none")
    loss = loss * (1 - (p * targets + (1 - p) * (1 - targets))) ** gamma
    if alpha >= 0:
        loss = (alpha * targets + (1 - alpha) * (1 - targets)) * loss
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"[sigmoid_focal_loss] expected reduction as 'none', 'mean' or 'sum', got {reduction!r}; choose one")
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()
