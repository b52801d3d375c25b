"""Layers that find their number of inputs at the first call, and are ordinary layers from then on."""

from __future__ import annotations

from typing import Any

from calque.base.errors import ArgumentError, ShapeError
from calque.nn.modules.conv import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d
from calque.nn.modules.norm import BatchNorm1d, BatchNorm2d, BatchNorm3d, InstanceNorm1d, InstanceNorm2d, InstanceNorm3d
from calque.nn.modules.volumes import ConvTranspose3d
from calque.nn.parameter import UninitializedBuffer, UninitializedParameter, is_lazy, make_real
from calque.tensor import Tensor

__all__ = [
    "LazyBatchNorm1d", "LazyBatchNorm2d", "LazyBatchNorm3d", "LazyConv1d", "LazyConv2d", "LazyConv3d", "LazyConvTranspose1d",
    "LazyConvTranspose2d", "LazyConvTranspose3d", "LazyInstanceNorm1d", "LazyInstanceNorm2d", "LazyInstanceNorm3d", "LazyModuleMixin",
]  # fmt: skip


class LazyModuleMixin:
    """For lazy layers of one's own: `initialize_parameters(*args)` is called before the first forward, then the class becomes `cls_to_become`.

    The parameters that are not known yet are `UninitializedParameter`s (`UninitializedBuffer`s), which `materialize(shape)` makes real.

    >>> import calque
    >>> from calque import nn
    >>> class LazyScale(nn.modules.lazy.LazyModuleMixin, nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.weight = nn.UninitializedParameter()
    ...     def initialize_parameters(self, x):
    ...         self.weight.materialize((x.shape[-1],))
    ...         nn.init.ones_(self.weight)
    ...     def forward(self, x):
    ...         return x * self.weight
    >>> layer = LazyScale()
    >>> layer.has_uninitialized_params(), layer(calque.ones(2, 3)).sum().item(), layer.has_uninitialized_params()
    (True, 6.0, False)
    """

    cls_to_become: Any = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        own: Any = self
        self._initialize_hook = own.register_forward_pre_hook(self._infer_parameters, with_kwargs=True)

    def initialize_parameters(self, *args: Any, **kwargs: Any) -> None:
        """Make the parameters real, from the arguments of the first call."""
        raise NotImplementedError(f"initialize_parameters is not implemented for {type(self).__name__}")

    def has_uninitialized_params(self) -> bool:
        """Whether a parameter or buffer has no shape yet."""
        own: Any = self
        return any(is_lazy(value) for value in (*own._parameters.values(), *own._buffers.values()))

    def _infer_parameters(self, module: Any, args: Any, kwargs: Any = None) -> None:
        make_real(self, lambda: self.initialize_parameters(*args, **(kwargs or {})))
        if self.has_uninitialized_params():
            raise ArgumentError(f"[{type(self).__name__}] module {type(self).__name__} has not been fully initialized by initialize_parameters()")
        self._initialize_hook.remove()
        del self._initialize_hook
        if self.cls_to_become is not None:
            self.__class__ = self.cls_to_become


class _LazyConv(LazyModuleMixin):
    """A convolution without input channels; its class comes after this one."""

    transposed = False
    dims = 2

    def _forget_sizes(self, bias: bool) -> None:
        own: Any = self
        kind = own.weight.dtype
        own.weight = UninitializedParameter(dtype=kind)
        if bias:
            own.bias = UninitializedParameter(dtype=kind)

    def initialize_parameters(self, input: Tensor, *args: Any, **kwargs: Any) -> None:
        """Give the parameters the shapes that the input asks for."""
        own: Any = self
        if not self.has_uninitialized_params():  # a state dict has brought them
            shape = own.weight.shape
            own.in_channels = own.in_channels or int(shape[0] if self.transposed else shape[1] * own.groups)
            return
        name, ndim = type(self).__name__, input._layout.ndim
        if ndim not in (self.dims + 1, self.dims + 2):
            raise ShapeError(f"[{name}] Expected {self.dims + 1}D or {self.dims + 2}D input to {name}, but got input of shape {tuple(input.shape)}")
        channels = int(input.shape[ndim - self.dims - 1])
        if channels % own.groups:
            raise ArgumentError(f"[{name}] in_channels must be divisible by groups, got in_channels={channels} and groups={own.groups}")
        own.in_channels = channels
        first, second = (channels, own.out_channels) if self.transposed else (own.out_channels, channels)
        own.weight.materialize((first, second // own.groups, *own.kernel_size))
        if own.bias is not None:
            own.bias.materialize((own.out_channels,))
        own.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values, once there is something to draw."""
        own: Any = self
        if "bias" in own._parameters and not self.has_uninitialized_params() and own.in_channels:
            super().reset_parameters()  # type: ignore[misc]


class _LazyForward(_LazyConv):
    def __init__(
        self, out_channels: int, kernel_size: Any, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1, bias: bool = True,
        padding_mode: str = "zeros", device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(0, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, device, dtype)
        self._forget_sizes(bias)


class _LazyTransposed(_LazyConv):
    transposed = True

    def __init__(
        self, out_channels: int, kernel_size: Any, stride: Any = 1, padding: Any = 0, output_padding: Any = 0, groups: int = 1, bias: bool = True,
        dilation: Any = 1, padding_mode: str = "zeros", device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(0, out_channels, kernel_size, stride, padding, output_padding, groups, bias, dilation, padding_mode, device, dtype)
        self._forget_sizes(bias)


class _LazyNorm(LazyModuleMixin):
    """A normalisation without channels; its class comes after this one."""

    def __init__(
        self, eps: float = 1e-5, momentum: Any = 0.1, affine: bool = True, track_running_stats: bool = True, device: Any = None, dtype: Any = None,
        *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(0, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)
        own: Any = self
        if affine:
            kind = own.weight.dtype
            own.weight = UninitializedParameter(dtype=kind)
            if bias:
                own.bias = UninitializedParameter(dtype=kind)
        if track_running_stats:
            for name in ("running_mean", "running_var"):
                own.register_buffer(name, UninitializedBuffer(dtype=own._buffers[name].dtype))

    def reset_parameters(self) -> None:
        """Scale 1 and shift 0, once there are some."""
        own: Any = self
        if own.num_features and not self.has_uninitialized_params():
            super().reset_parameters()  # type: ignore[misc]

    def initialize_parameters(self, input: Tensor) -> None:
        """Give parameters and statistics the shape that the input asks for."""
        own: Any = self
        if not self.has_uninitialized_params():  # a state dict has brought them
            own.num_features = own.num_features or next((v.numel() for v in (own.weight, own.running_mean) if v is not None), 0)
            return
        own._check_input_dim(input)
        instance = isinstance(self, (InstanceNorm1d, InstanceNorm2d, InstanceNorm3d))
        own.num_features = int(input.shape[0 if instance and input._layout.ndim == own.ranks[0] else 1])
        for value in (*own._parameters.values(), own._buffers["running_mean"], own._buffers["running_var"]):
            if value is not None:
                value.materialize((own.num_features,))
        own.reset_parameters()


class LazyConv1d(_LazyForward, Conv1d):
    """`Conv1d` that finds `in_channels` at its first call; arguments as there, without them.

    >>> import calque
    >>> layer = calque.nn.LazyConv1d(4, 3)
    >>> tuple(layer(calque.zeros(1, 2, 5)).shape), layer
    ((1, 4, 3), Conv1d(2, 4, kernel_size=(3,), stride=(1,)))
    """

    cls_to_become = Conv1d
    dims = 1


class LazyConv2d(_LazyForward, Conv2d):
    """`Conv2d` that finds `in_channels` at its first call; arguments as there, without them.

    >>> import calque
    >>> layer = calque.nn.LazyConv2d(4, 3, padding=1)
    >>> layer.has_uninitialized_params(), tuple(layer(calque.zeros(1, 3, 5, 5)).shape), tuple(layer.weight.shape)
    (True, (1, 4, 5, 5), (4, 3, 3, 3))
    """

    cls_to_become = Conv2d


class LazyConv3d(_LazyForward, Conv3d):
    """`Conv3d` that finds `in_channels` at its first call; arguments as there, without them.

    >>> import calque
    >>> tuple(calque.nn.LazyConv3d(4, 1)(calque.zeros(1, 2, 3, 3, 3)).shape)
    (1, 4, 3, 3, 3)
    """

    cls_to_become = Conv3d
    dims = 3


class LazyConvTranspose1d(_LazyTransposed, ConvTranspose1d):
    """`ConvTranspose1d` that finds `in_channels` at its first call.

    >>> import calque
    >>> tuple(calque.nn.LazyConvTranspose1d(4, 3)(calque.zeros(1, 2, 5)).shape)
    (1, 4, 7)
    """

    cls_to_become = ConvTranspose1d
    dims = 1


class LazyConvTranspose2d(_LazyTransposed, ConvTranspose2d):
    """`ConvTranspose2d` that finds `in_channels` at its first call.

    >>> import calque
    >>> tuple(calque.nn.LazyConvTranspose2d(4, 3)(calque.zeros(1, 2, 5, 5)).shape)
    (1, 4, 7, 7)
    """

    cls_to_become = ConvTranspose2d


class LazyConvTranspose3d(_LazyTransposed, ConvTranspose3d):
    """`ConvTranspose3d` that finds `in_channels` at its first call.

    >>> import calque
    >>> tuple(calque.nn.LazyConvTranspose3d(4, 2)(calque.zeros(1, 2, 3, 3, 3)).shape)
    (1, 4, 4, 4, 4)
    """

    cls_to_become = ConvTranspose3d
    dims = 3


class LazyBatchNorm1d(_LazyNorm, BatchNorm1d):
    """`BatchNorm1d` that finds `num_features` at its first call.

    >>> import calque
    >>> layer = calque.nn.LazyBatchNorm1d()
    >>> tuple(layer(calque.ones(4, 3)).shape), layer.num_features
    ((4, 3), 3)
    """

    cls_to_become = BatchNorm1d


class LazyBatchNorm2d(_LazyNorm, BatchNorm2d):
    """`BatchNorm2d` that finds `num_features` at its first call.

    >>> import calque
    >>> layer = calque.nn.LazyBatchNorm2d()
    >>> tuple(layer(calque.ones(4, 3, 2, 2)).shape), tuple(layer.running_mean.shape)
    ((4, 3, 2, 2), (3,))
    """

    cls_to_become = BatchNorm2d


class LazyBatchNorm3d(_LazyNorm, BatchNorm3d):
    """`BatchNorm3d` that finds `num_features` at its first call.

    >>> import calque
    >>> tuple(calque.nn.LazyBatchNorm3d()(calque.ones(4, 3, 2, 2, 2)).shape)
    (4, 3, 2, 2, 2)
    """

    cls_to_become = BatchNorm3d


class LazyInstanceNorm1d(_LazyNorm, InstanceNorm1d):
    """`InstanceNorm1d` that finds `num_features` at its first call.

    >>> import calque
    >>> tuple(calque.nn.LazyInstanceNorm1d()(calque.ones(4, 3, 2)).shape)
    (4, 3, 2)
    """

    cls_to_become = InstanceNorm1d


class LazyInstanceNorm2d(_LazyNorm, InstanceNorm2d):
    """`InstanceNorm2d` that finds `num_features` at its first call.

    >>> import calque
    >>> tuple(calque.nn.LazyInstanceNorm2d()(calque.ones(4, 3, 2, 2)).shape)
    (4, 3, 2, 2)
    """

    cls_to_become = InstanceNorm2d


class LazyInstanceNorm3d(_LazyNorm, InstanceNorm3d):
    """`InstanceNorm3d` that finds `num_features` at its first call.

    >>> import calque
    >>> tuple(calque.nn.LazyInstanceNorm3d()(calque.ones(4, 3, 2, 2, 2)).shape)
    (4, 3, 2, 2, 2)
    """

    cls_to_become = InstanceNorm3d
