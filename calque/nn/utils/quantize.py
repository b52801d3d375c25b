"""Linear layers whose weights are kept as int8: a quarter of the memory, and of what decoding one token at a time has to read."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from calque import functional as T
from calque.autograd.autocast import is_autocast_enabled
from calque.base.dtypes import float32, int8
from calque.base.errors import ArgumentError
from calque.base.text import described
from calque.nn import functional as F
from calque.nn.module import Module
from calque.nn.modules.linear import Linear
from calque.nn.modules.make import extents
from calque.nn.parameter import Parameter, is_lazy
from calque.tensor import Tensor

__all__ = ["Int8Linear", "quantize_"]

LARGEST = 127


class Int8Linear(Module):
    """x W^T + b: (*, in_features) -> (*, out_features) for a weight of int8, the buffer `weight_int8`, and one float per row, the buffer
    `weight_scale`, that it is multiplied by.

    `quantize_` makes them; `Int8Linear(in_features, out_features)` has a weight of zeros, for `load_state_dict`. The weight is not trained; bias
    and input have gradients. `dequantize()` gives the weight as floats.

    >>> import calque
    >>> layer = calque.nn.utils.quantize_(calque.nn.Linear(3, 2))
    >>> layer
    Int8Linear(in_features=3, out_features=2, bias=True)
    >>> layer.weight_int8.dtype is calque.int8, tuple(layer(calque.ones(5, 3)).shape)
    (True, (5, 2))
    """

    in_features: int
    out_features: int
    weight_int8: Tensor
    weight_scale: Tensor

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        extents("Int8Linear", in_features=in_features, out_features=out_features)
        self.in_features, self.out_features = int(in_features), int(out_features)
        self.register_buffer("weight_int8", T.zeros((out_features, in_features), dtype=int8))
        self.register_buffer("weight_scale", T.ones((out_features,)))
        self.register_parameter("bias", Parameter(T.zeros((out_features,))) if bias else None)

    def dequantize(self) -> Tensor:
        """The weight that the layer computes with, (out_features, in_features), as floats."""
        return self.weight_int8.to(self.weight_scale.dtype) * T.unsqueeze(self.weight_scale, -1)

    def forward(self, input: Tensor) -> Tensor:
        if prod(input.shape[:-1]) == 1 and input.shape[-1] == self.in_features and not is_autocast_enabled():
            # One loop converts each weight where it multiplies it. That pays for up to four rows, but then an export whose sizes are free has a
            # program for each way in which these are small.
            wide = float32 if input.dtype.itemsize < 4 else input.dtype
            out = T.sum(T.unsqueeze(input.to(wide), -2) * self.weight_int8.to(wide), -1)
            out = out * self.weight_scale.to(wide)
            return (out if self.bias is None else out + self.bias).to(input.dtype)
        out = F.linear(input, self.weight_int8.to(input.dtype))
        out = out * self.weight_scale.to(out.dtype)
        return out if self.bias is None else out + self.bias.to(out.dtype)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


def quantize_(model: Module, filter_fn: Callable[[Module, str], bool] | None = None) -> Module:
    """Make every `Linear` of a model an `Int8Linear`, in place, and return the model: weights become int8, activations stay what they are.

    model: any module; itself, if it is a `Linear`. filter_fn: called with a `Linear` and its name in the model; those for which it is false keep
    their weights. By default all are converted, but for subclasses of `Linear` (such as the last layer of `MultiheadAttention`) and layers whose
    weight is parametrized.

    The weight of an output feature is its largest absolute value / 127 times integers from -127 to 127, rounded to the nearest. A weight that is
    shared with another layer stays what it is there. Optimizers that were made before hold the old parameters.

    Raises `ArgumentError` if there is no such layer, or a weight is not there yet (lazy layers), is no float, or is not finite; then nothing has
    changed.

    Source: torchao's `quantize_(model, Int8WeightOnlyConfig())`.

    >>> import calque
    >>> model = calque.nn.Sequential(calque.nn.Linear(64, 64), calque.nn.ReLU(), calque.nn.Linear(64, 10))
    >>> x = calque.randn(8, 64)
    >>> before = model(x)
    >>> model = calque.nn.utils.quantize_(model, lambda layer, name: name != "2")
    >>> [type(layer).__name__ for layer in model], bool((model(x) - before).abs().max() < 0.05)
    (['Int8Linear', 'ReLU', 'Linear'], True)
    """
    if not isinstance(model, Module):
        raise ArgumentError(f"[quantize_] expected a Module, got {described(model)}; pass the model, not its function or its weights")
    found = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, Linear) and "weight" in layer._parameters]
    if any(is_lazy(layer.weight) for _, layer in found):
        raise ArgumentError("[quantize_] expected layers whose weights are there, got a LazyLinear; call the model once before")
    chosen = [(name, layer) for name, layer in found if type(layer) is Linear and (filter_fn is None or filter_fn(layer, name))]
    if not chosen:
        raise ArgumentError(f"[quantize_] expected a model with Linear layers, got {type(model).__name__} in which none is chosen; see filter_fn")
    made = [_quantized(name, layer.weight.detach()) for name, layer in chosen]
    for (_, layer), (whole, scale) in zip(chosen, made, strict=True):
        del layer.weight
        layer.__class__ = Int8Linear  # type: ignore[assignment]
        layer.register_buffer("weight_int8", whole)
        layer.register_buffer("weight_scale", scale)
    return model


def _quantized(name: str, weight: Any) -> tuple[Tensor, Tensor]:
    """Integers, and what a row of them is multiplied by."""
    if not weight.dtype.is_floating_point or not bool(T.isfinite(weight).all()):
        what = "values that are not finite" if weight.dtype.is_floating_point else repr(weight.dtype)
        raise ArgumentError(f"[quantize_] expected weights of finite floats, got {what} in {name or 'the layer'}.weight; exclude it with filter_fn")
    wide = weight.to(float32) if weight.dtype.itemsize < 4 else weight
    scale = T.amax(T.abs(wide), -1) / LARGEST
    scale = T.where(scale == 0, T.ones_like(scale), scale)
    return T.clamp(T.round(wide / T.unsqueeze(scale, -1)), -LARGEST, LARGEST).to(int8), scale
