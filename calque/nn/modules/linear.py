"""Linear layers, identity, flattening."""

from __future__ import annotations

import math
from typing import Any

from calque import functional as T
from calque.base.errors import ArgumentError, ShapeError
from calque.base.text import described, shown
from calque.functional.common import require_dims
from calque.nn import functional as F
from calque.nn import init
from calque.nn.module import Module
from calque.nn.modules.make import extents, fresh
from calque.nn.parameter import UninitializedParameter, is_lazy, make_real
from calque.tensor import Tensor

__all__ = ["Bilinear", "Dense", "Flatten", "Identity", "LazyLinear", "Linear", "Unflatten"]


class Identity(Module):
    """Returns its input; accepts and ignores any arguments."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        return input


class Linear(Module):
    """x W^T + b: (*, in_features) -> (*, out_features). Weights start uniform in +-1 / sqrt(in_features).

    >>> import calque
    >>> layer = calque.nn.Linear(3, 2)
    >>> layer
    Linear(in_features=3, out_features=2, bias=True)
    >>> tuple(layer(calque.ones(5, 3)).shape)
    (5, 2)
    """

    in_features: int
    out_features: int

    def __init__(self, in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        extents("Linear", in_features=in_features, out_features=out_features)
        self.in_features = int(in_features)
        self.out_features = int(out_features)
        self.weight = fresh((out_features, in_features), device, dtype)
        self.register_parameter("bias", fresh((out_features,), device, dtype) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values."""
        _reset_linear(self.weight, self.bias)

    def forward(self, input: Tensor) -> Tensor:
        parameters = self._parameters
        try:
            weight, bias = parameters["weight"], parameters["bias"]
        except KeyError:  # what is parametrized, or computed by a hook, is no parameter
            weight, bias = self.weight, self.bias
        return F.linear(input, weight, bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


def _reset_linear(weight: Any, bias: Any) -> None:
    if 0 not in weight._layout.shape:
        init.kaiming_uniform_(weight, a=math.sqrt(5))
    if bias is not None:
        fan_in = weight._layout.shape[1]
        bound = 1 / math.sqrt(fan_in) if fan_in > 0 else 0
        init.uniform_(bias, -bound, bound)


class LazyLinear(Linear):
    """`Linear` that finds `in_features` at its first call and is a `Linear` from then on."""

    def __init__(self, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__(0, 0, False, device, dtype)
        self.out_features = out_features
        self.weight = UninitializedParameter(dtype=dtype)
        if bias:
            self.bias = UninitializedParameter(dtype=dtype)

    def has_uninitialized_params(self) -> bool:
        """Whether a parameter has no shape yet."""
        return any(map(is_lazy, self._parameters.values()))

    def initialize_parameters(self, input: Tensor) -> None:
        """Give the parameters the shapes that the input asks for."""
        if not is_lazy(self.weight):
            return
        require_dims(type(self).__name__, input, 1)
        self.in_features = int(input._layout.shape[-1])
        weight: Any = self.weight
        bias: Any = self.bias
        kind = weight._layout.dtype
        weight.materialize(T.zeros((self.out_features, self.in_features), dtype=kind))
        if bias is not None:
            bias.materialize(T.zeros((self.out_features,), dtype=kind))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if "weight" in self._parameters and not is_lazy(self.weight) and self.in_features:
            super().reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        if is_lazy(self.weight):
            make_real(self, lambda: self.initialize_parameters(input))
        if type(self) is LazyLinear:
            self.__class__ = Linear  # type: ignore[assignment]
        return Linear.forward(self, input)


class Dense(LazyLinear):
    """Fully connected layer with an optional activation ("relu", "sigmoid", "tanh", "softrelu", or a function), whose input size is
    inferred at the first call: (N, *) -> (N, units). `flatten=False` keeps the leading dims: (*, in) -> (*, units).

    >>> import calque
    >>> layer = calque.nn.Dense(4, activation="relu")
    >>> tuple(layer(calque.ones(2, 3, 5)).shape), tuple(layer.weight.shape)
    ((2, 4), (4, 15))
    """

    _ACTIVATIONS = {"softrelu": F.softplus, "softsign": F.softsign, "swish": F.silu}

    def __init__(
        self,
        units: int,
        activation: Any = None,
        use_bias: bool = True,
        flatten: bool = True,
        in_units: int = 0,
        dtype: Any = None,
    ) -> None:
        super().__init__(units, use_bias, dtype=dtype)
        known = isinstance(activation, str) and (activation in self._ACTIVATIONS or hasattr(F, activation))
        if activation is not None and not known:
            raise ArgumentError(f"[Dense] expected the name of an activation such as 'relu', 'sigmoid' or 'tanh', got {shown(activation)}")
        self.activation = activation
        self.flatten = flatten
        if in_units:
            self.initialize_parameters(T.zeros((1, in_units)))

    def forward(self, input: Tensor) -> Tensor:
        if self.flatten and input._layout.ndim > 2:
            input = T.flatten(input, 1)
        y = super().forward(input)
        if self.activation is None:
            return y
        if callable(self.activation):
            return self.activation(y)  # type: ignore[no-any-return]
        function = self._ACTIVATIONS.get(self.activation) or getattr(F, self.activation)
        return function(y)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        size = None if is_lazy(self.weight) else self.in_features
        return f"{size} -> {self.out_features}, {'linear' if self.activation is None else self.activation}"


class Bilinear(Module):
    """x1^T W x2 + b: (*, in1_features), (*, in2_features) -> (*, out_features)."""

    def __init__(self, in1_features: int, in2_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        if in1_features <= 0:
            raise ArgumentError(f"[Bilinear] in1_features must be > 0, but got {in1_features}")
        self.in1_features, self.in2_features, self.out_features = in1_features, in2_features, out_features
        self.weight = fresh((out_features, in1_features, in2_features), device, dtype)
        self.register_parameter("bias", fresh((out_features,), device, dtype) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values."""
        bound = 1 / math.sqrt(self.in1_features)
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        return F.bilinear(input1, input2, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"in1_features={self.in1_features}, in2_features={self.in2_features}, out_features={self.out_features}, bias={self.bias is not None}"


class Flatten(Module):
    """Merge dims start_dim .. end_dim: (N, C, H, W) -> (N, C H W) by default."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, input: Tensor) -> Tensor:
        return T.flatten(input, self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """Split one dim: (N, A B) -> (N, A, B) for dim=1, unflattened_size=(A, B)."""

    def __init__(self, dim: int, unflattened_size: Any) -> None:
        super().__init__()
        if not isinstance(dim, int) or isinstance(dim, bool):
            raise TypeError(f"[Unflatten] unflattened_size and dim must be ints, but found dim {shown(dim)}")
        if not isinstance(unflattened_size, (tuple, list)) or any(not isinstance(n, int) for n in unflattened_size):
            raise ShapeError(f"[Unflatten] unflattened_size must be tuple of ints, got {described(unflattened_size)}")
        self.dim, self.unflattened_size = dim, tuple(unflattened_size)

    def forward(self, input: Tensor) -> Tensor:
        return T.unflatten(input, self.dim, self.unflattened_size)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"
