"""Normalisation layers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from calque import functional as T
from calque.base import dtypes as dt
from calque.base.device import DEFAULT
from calque.base.errors import ArgumentError, DTypeError, ShapeError
from calque.base.text import described
from calque.nn import functional as F
from calque.nn import init
from calque.nn.module import Module
from calque.nn.modules.make import extents, fresh
from calque.record.recorder import local
from calque.tensor import Tensor

__all__ = [
    "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "GroupNorm", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "LayerNorm",
    "LocalResponseNorm", "RMSNorm",
]  # fmt: skip


class _Running(Module):
    """Scale, shift and running statistics of `num_features` channels."""

    _version = 2
    ranks: tuple[int, ...] = ()

    def __init__(
        self,
        num_features: int,
        eps: float,
        momentum: Any,
        affine: bool,
        track_running_stats: bool,
        device: Any,
        dtype: Any,
        bias: bool,
    ) -> None:
        super().__init__()
        extents(type(self).__name__, num_features=num_features)
        num_features = int(num_features)
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        shape = (num_features,)
        self.register_parameter("weight", fresh(shape, device, dtype) if affine else None)
        self.register_parameter("bias", fresh(shape, device, dtype) if affine and bias else None)
        track = track_running_stats
        place = DEFAULT.device if device is None else device
        self.register_buffer("running_mean", T.zeros(shape, dtype=dtype, device=place) if track else None)
        self.register_buffer("running_var", T.ones(shape, dtype=dtype, device=place) if track else None)
        self.register_buffer("num_batches_tracked", T.zeros((), dtype=dt.int64, device=place) if track else None)
        self.reset_parameters()

    def reset_running_stats(self) -> None:
        """Back to mean 0 and variance 1."""
        if self.track_running_stats:
            self.running_mean.zero_()
            self.running_var.fill_(1)
            self.num_batches_tracked.zero_()

    def reset_parameters(self) -> None:
        """Scale 1, shift 0, fresh statistics."""
        self.reset_running_stats()
        if self.affine:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def _check_input_dim(self, input: Tensor) -> None:
        if input._layout.ndim not in self.ranks:
            wanted = " or ".join(f"{r}D" for r in self.ranks)
            raise ShapeError(
                f"[{type(self).__name__}] expected {wanted} input (got {input._layout.ndim}D input), shape {tuple(input._layout.shape)}; "
                "reshape the input, or use the layer for that number of dims"
            )

    def _upgrade_state_dict(self, entries: Any, prefix: str, version: int | None) -> None:
        """State dicts from before version 2 do not count batches."""
        key = prefix + "num_batches_tracked"
        if (version is None or version < 2) and self.track_running_stats and key not in entries and prefix + "running_mean" in entries:
            entries[key] = self.num_batches_tracked.detach()

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, bias={self.bias is not None}, "
            f"track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(_Running):
    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias)

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        buffers, parameters = self._buffers, self._parameters
        try:
            weight, bias = parameters["weight"], parameters["bias"]
        except KeyError:  # what is parametrized, or computed by a hook, is no parameter
            weight, bias = self.weight, self.bias
        mean, variance = buffers["running_mean"], buffers["running_var"]
        training = self.training or mean is None
        momentum: Any = 0.0 if self.momentum is None else self.momentum
        update = self.training and self.track_running_stats
        if update:
            count = buffers["num_batches_tracked"]
            state = local.state
            if self.momentum is None:
                with_count = count + 1
                momentum = T.reciprocal(with_count.to(mean.dtype))
            y = F.batch_norm(input, mean, variance, weight, bias, training, momentum, self.eps)
            before, state.grad = state.grad, False
            try:
                count.add_(1)
            finally:
                state.grad = before
            return y
        keep = not self.training or self.track_running_stats
        return F.batch_norm(
            input,
            mean if keep else None,
            variance if keep else None,
            weight,
            bias,
            training,
            momentum,
            self.eps,
        )


class BatchNorm1d(_BatchNorm):
    """Batch normalisation of (N, C) or (N, C, L)."""

    ranks = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Batch normalisation of (N, C, H, W), per channel over batch and positions.

    >>> import calque
    >>> layer = calque.nn.BatchNorm2d(3)
    >>> layer
    BatchNorm2d(3, eps=1e-05, momentum=0.1, affine=True, bias=True, track_running_stats=True)
    >>> tuple(layer(calque.ones(2, 3, 4, 4)).shape), layer.num_batches_tracked.item()
    ((2, 3, 4, 4), 1)
    """

    ranks = (4,)


class BatchNorm3d(_BatchNorm):
    """Batch normalisation of (N, C, D, H, W)."""

    ranks = (5,)


class _InstanceNorm(_Running):
    single_rank = 0

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias)

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        if input._layout.ndim == self.ranks[0]:
            return T.squeeze(self._normalise(T.unsqueeze(input, 0)), 0)
        return self._normalise(input)

    def _normalise(self, x: Tensor) -> Tensor:
        own = self.training or not self.track_running_stats
        return F.instance_norm(x, self.running_mean, self.running_var, self.weight, self.bias, own, self.momentum, self.eps)


class InstanceNorm1d(_InstanceNorm):
    """Normalisation of each channel of each sample: (N, C, L) or (C, L)."""

    ranks = (2, 3)


class InstanceNorm2d(_InstanceNorm):
    """Normalisation of each channel of each sample: (N, C, H, W) or (C, H, W)."""

    ranks = (3, 4)


class InstanceNorm3d(_InstanceNorm):
    """Normalisation of each channel of each sample: (N, C, D, H, W) or (C, D, H, W)."""

    ranks = (4, 5)


def _last_dims(layer: str, shape: Any) -> tuple[int, ...]:
    """Sizes of the last dims, given as one or several."""
    if not isinstance(shape, (int, np.integer, str, float, Iterable)):
        raise DTypeError(f"[{layer}] expected normalized_shape as an int or a tuple of ints, got {described(shape)}; pass the sizes of the last dims")
    sizes = (shape,) if isinstance(shape, (int, np.integer, str, float)) else tuple(shape)
    for size in sizes:
        extents(layer, normalized_shape=size)
    return tuple([int(size) for size in sizes])


class LayerNorm(Module):
    """Normalisation over the last dims: (*, normalized_shape) -> the same.

    >>> import calque
    >>> calque.nn.LayerNorm(4)
    LayerNorm((4,), eps=1e-05, elementwise_affine=True, bias=True)
    """

    def __init__(
        self,
        normalized_shape: Any,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = _last_dims(type(self).__name__, normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        self.register_parameter("weight", fresh(self.normalized_shape, device, dtype) if elementwise_affine else None)
        self.register_parameter("bias", fresh(self.normalized_shape, device, dtype) if elementwise_affine and bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Scale 1, shift 0."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        parameters = self._parameters
        try:
            weight, bias = parameters["weight"], parameters["bias"]
        except KeyError:  # what is parametrized, or computed by a hook, is no parameter
            weight, bias = self.weight, self.bias
        return F.layer_norm(input, self.normalized_shape, weight, bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}, bias={self.bias is not None}"


class RMSNorm(Module):
    """Division by the root mean square over the last dims: (*, normalized_shape) -> the same."""

    def __init__(
        self,
        normalized_shape: Any,
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = _last_dims(type(self).__name__, normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        self.register_parameter("weight", fresh(self.normalized_shape, device, dtype) if elementwise_affine else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Scale 1."""
        if self.weight is not None:
            init.ones_(self.weight)

    def forward(self, input: Tensor) -> Tensor:
        return F.rms_norm(input, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class GroupNorm(Module):
    """Normalisation over groups of channels: (N, C, *) -> the same."""

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if num_groups < 1 or num_channels % num_groups:
            raise ArgumentError(f"[GroupNorm] num_channels ({num_channels}) must be divisible by num_groups ({num_groups})")
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        self.register_parameter("weight", fresh((num_channels,), device, dtype) if affine else None)
        self.register_parameter("bias", fresh((num_channels,), device, dtype) if affine and bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Scale 1, shift 0."""
        if self.affine:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, bias={self.bias is not None}"


class LocalResponseNorm(Module):
    """Normalisation over neighbouring channels: (N, C, *) -> the same."""

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, input: Tensor) -> Tensor:
        return F.local_response_norm(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"
