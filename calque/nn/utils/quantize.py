"""Linear layers whose weights are kept as int8: a quarter of the memory, and of what decoding one token at a time has to read. Activations stay
floats, or are rounded to int8 row by row, so that products are of integers."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from calque import functional as T
from calque.autograd.autocast import get_autocast_dtype, is_autocast_enabled
from calque.base.dtypes import FInfo, float32, int8, int32
from calque.base.errors import ArgumentError
from calque.base.text import described, shown
from calque.functional.common import prim
from calque.functional.math import with_formula
from calque.nn import functional as F
from calque.nn.module import Module
from calque.nn.modules.linear import Linear
from calque.nn.modules.make import extents
from calque.nn.parameter import Parameter, is_lazy
from calque.nn.utils.int4 import Int4Linear, check_group_size, packed_in_groups
from calque.tensor import Tensor

__all__ = ["Int8Linear", "quantize_"]

LARGEST = 127


class Int8Linear(Module):
    """x W^T + b: (*, in_features) -> (*, out_features) for a weight of int8, the buffer `weight_int8`, and one float per row, the buffer
    `weight_scale`, that it is multiplied by.

    `quantize_` makes them; `Int8Linear(in_features, out_features)` has a weight of zeros, for `load_state_dict`. The weight is not trained; bias
    and input have gradients. `dequantize()` gives the weight as floats.

    dynamic: whether inputs are rounded to int8, too: each row to its largest absolute value / 127 times integers. The product is then one of
    integers, whose sums are exact (int32), so that a row gives the same numbers alone as among others and on every processor. Its gradient is that
    of the layer that does not round its input. A row that is not finite gives NaN.

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
    dynamic: bool

    def __init__(self, in_features: int, out_features: int, bias: bool = True, dynamic: bool = False) -> None:
        super().__init__()
        extents("Int8Linear", in_features=in_features, out_features=out_features)
        self.in_features, self.out_features, self.dynamic = int(in_features), int(out_features), bool(dynamic)
        self.register_buffer("weight_int8", T.zeros((out_features, in_features), dtype=int8))
        self.register_buffer("weight_scale", T.ones((out_features,)))
        self.register_parameter("bias", Parameter(T.zeros((out_features,))) if bias else None)

    def dequantize(self) -> Tensor:
        """The weight that the layer computes with, (out_features, in_features), as floats."""
        return self.weight_int8.to(self.weight_scale.dtype) * T.unsqueeze(self.weight_scale, -1)

    def forward(self, input: Tensor) -> Tensor:
        fits = input.ndim > 0 and input.shape[-1] == self.in_features
        if self.dynamic and fits and input.dtype.is_floating_point:
            out = self._of_integers(input)
            kind = get_autocast_dtype("cpu") if is_autocast_enabled() else out.dtype
            return (out if self.bias is None else out + self.bias).to(kind)
        if fits and prod(input.shape[:-1]) == 1 and not is_autocast_enabled():
            # One loop converts each weight where it multiplies it. That pays for up to four rows, but then an export whose sizes are free has a
            # program for each way in which these are small.
            wide = float32 if input.dtype.itemsize < 4 else input.dtype
            out = T.sum(T.unsqueeze(input.to(wide), -2) * self.weight_int8.to(wide), -1)
            out = out * self.weight_scale.to(wide)
            return (out if self.bias is None else out + self.bias).to(input.dtype)
        out = F.linear(input, self.weight_int8.to(input.dtype))
        out = out * self.weight_scale.to(out.dtype)
        return out if self.bias is None else out + self.bias.to(out.dtype)

    def _of_integers(self, input: Tensor) -> Tensor:
        """The product for inputs that are rounded row by row. Its sums are integers, so it is the same for one row, where they are a loop over the
        weights as they lie, and for many."""
        weight, factor = self.weight_int8, self.weight_scale

        def value() -> Tensor:
            count, wide = prod(input.shape[:-1]), input.dtype if input.dtype.itemsize > factor.dtype.itemsize else factor.dtype
            rows = T.reshape(input, (count, self.in_features)).to(wide)
            scale = T.clamp(T.amax(T.abs(rows), -1, keepdim=True) / LARGEST, FInfo(wide).tiny)  # its inverse is finite
            whole = T.round(rows * (1 / scale)).to(int8)
            if count == 1:
                sums = T.sum(T.unsqueeze(whole.to(int32), -2) * weight.to(int32), -1, dtype=int32)
            else:
                sums = prim("int8_matmul", whole, T.t(weight))
            out = sums.to(wide) * (scale * factor)
            return T.reshape(out, (*input.shape[:-1], self.out_features)).to(input.dtype)

        def backward(g: Any) -> tuple[Tensor]:
            return (T.matmul(g * factor.to(g.dtype), weight.to(g.dtype)),)

        return with_formula("Int8LinearBackward0", (input,), value, backward, straight=True)

    def extra_repr(self) -> str:
        dynamic = ", dynamic=True" if self.dynamic else ""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}{dynamic}"


def quantize_(
    model: Module, filter_fn: Callable[[Module, str], bool] | None = None, *, dynamic: bool = False, bits: int = 8, group_size: int = 64,
    symmetric: bool = True,
) -> Module:  # fmt: skip
    """Make every `Linear` of a model an `Int8Linear` or `Int4Linear`, in place, and return the model: weights become integers of 8 or 4 bits.

    model: any module; itself, if it is a `Linear`. filter_fn: called with a `Linear` and its name in the model; those for which it is false keep
    their weights. By default all are converted, but for subclasses of `Linear` (such as the last layer of `MultiheadAttention`) and layers whose
    weight is parametrized. dynamic: whether activations are rounded to int8 as well, each row when it is there (for 8 bits). bits: 8 (default) or 4.
    group_size, symmetric: with 4 bits, how many successive weights of an output feature share a scale, an even number (default: 64), and whether
    their range is around zero (default) or its own.

    With 8 bits the weight of an output feature is its largest absolute value / 127 times integers from -127 to 127, rounded to the nearest. With 4
    bits that of a group is its largest absolute value / 7.5 times integers from -8 to 7; without `symmetric` it is the range of the group in fifteen
    steps. A weight that is shared with another layer stays what it is there. Optimizers that were made before hold the old parameters.

    Raises `ArgumentError` if there is no such layer, or a weight is not there yet (lazy layers), is no float, or is not finite, and for numbers that
    are not possible; then nothing has changed.

    Source: torchao's `quantize_(model, Int8WeightOnlyConfig())`; with dynamic=True `Int8DynamicActivationInt8WeightConfig()`; with bits=4
    `Int4WeightOnlyConfig(group_size)`, whose bytes are others.

    >>> import calque
    >>> model = calque.nn.Sequential(calque.nn.Linear(64, 64), calque.nn.ReLU(), calque.nn.Linear(64, 10))
    >>> x = calque.randn(8, 64)
    >>> before = model(x)
    >>> model = calque.nn.utils.quantize_(model, lambda layer, name: name != "2")
    >>> [type(layer).__name__ for layer in model], bool((model(x) - before).abs().max() < 0.05)
    (['Int8Linear', 'ReLU', 'Linear'], True)
    """
    if bits not in (4, 8) or isinstance(bits, bool):
        raise ArgumentError(f"[quantize_] expected bits=8 or bits=4, got {shown(bits)}")
    if bits == 4 and dynamic:
        raise ArgumentError("[quantize_] expected dynamic=True with bits=8, got bits=4, whose activations stay floats; leave one of them out")
    check_group_size("quantize_", group_size)
    if not isinstance(model, Module):
        raise ArgumentError(f"[quantize_] expected a Module, got {described(model)}; pass the model, not its function or its weights")
    found = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, Linear) and "weight" in layer._parameters]
    if any(is_lazy(layer.weight) for _, layer in found):
        raise ArgumentError("[quantize_] expected layers whose weights are there, got a LazyLinear; call the model once before")
    chosen = [(name, layer) for name, layer in found if type(layer) is Linear and (filter_fn is None or filter_fn(layer, name))]
    if not chosen:
        raise ArgumentError(f"[quantize_] expected a model with Linear layers, got {type(model).__name__} in which none is chosen; see filter_fn")
    weights = [_finite(name, layer.weight.detach()) for name, layer in chosen]
    made = [_quantized(weight) if bits == 8 else packed_in_groups(weight, group_size, symmetric) for weight in weights]
    for (_, layer), (whole, scale, *shift) in zip(chosen, made, strict=True):
        del layer.weight
        layer.__class__ = Int8Linear if bits == 8 else Int4Linear  # type: ignore[assignment]
        if bits == 8:
            layer.dynamic = bool(dynamic)
        else:
            layer.group_size, layer.symmetric = group_size, bool(symmetric)
            layer.register_buffer("weight_shift", shift[0])
        layer.register_buffer(f"weight_int{bits}", whole)
        layer.register_buffer("weight_scale", scale)
    return model


def _finite(name: str, weight: Any) -> Any:
    """A weight that can be rounded."""
    if not weight.dtype.is_floating_point or not bool(T.isfinite(weight).all()):
        what = "values that are not finite" if weight.dtype.is_floating_point else repr(weight.dtype)
        raise ArgumentError(f"[quantize_] expected weights of finite floats, got {what} in {name or 'the layer'}.weight; exclude it with filter_fn")
    return weight


def _quantized(weight: Any) -> tuple[Tensor, Tensor]:
    """Integers, and what a row of them is multiplied by."""
    wide = weight.to(float32) if weight.dtype.itemsize < 4 else weight
    scale = T.amax(T.abs(wide), -1) / LARGEST
    scale = T.where(scale == 0, T.ones_like(scale), scale)
    return T.clamp(T.round(wide / T.unsqueeze(scale, -1)), -LARGEST, LARGEST).to(int8), scale
