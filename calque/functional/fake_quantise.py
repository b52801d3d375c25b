"""Rounding to the values that a quantised tensor can have, with a gradient that goes straight through: training for quantised inference."""

from __future__ import annotations

from typing import Any

import numpy as np

from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, DTypeError, ShapeError, UnsupportedTypeError
from calque.base.shapes import normalize_dim
from calque.functional.arithmetic import add, div, ge, le, logical_and, mul, sub
from calque.functional.common import cast, is_tensor, linked, require_tensors
from calque.functional.declared import public
from calque.functional.math import clamp, isnan, round, where, with_formula
from calque.functional.views import reshape
from calque.tensor import Tensor, read


@public(method=False)
def fake_quantize_per_tensor_affine(input: Tensor, scale: Any, zero_point: Any, quant_min: int, quant_max: int) -> Tensor:
    """`(clamp(round(input / scale) + zero_point, quant_min, quant_max) - zero_point) * scale`: any shape, floating, to the same.

    scale: a number, or a Tensor of one element without history. zero_point: an integer from quant_min to quant_max, or an int32 Tensor of one.
    The gradient is 1 where the rounded value lies from quant_min to quant_max, else 0. NaN becomes the lowest value. Raises RuntimeError where
    quant_min > quant_max, for a zero_point outside of them and for a scale that requires a gradient.
    Source: Jacob et al. 2018, "Quantization and training of neural networks for efficient integer-arithmetic-only inference", sections 2 and 3.

    >>> import calque
    >>> calque.fake_quantize_per_tensor_affine(calque.tensor([-20.0, -0.34, 0.26]), 0.1, 0, -128, 127)
    tensor([-12.8000, -0.3000, 0.3000])
    """
    op = "fake_quantize_per_tensor_affine"
    factor, zero = (float(_one(op, x, name)) for x, name in ((scale, "scale"), (zero_point, "zero_point")))
    small = np.float32(factor)
    with np.errstate(divide="ignore"):
        return _rounded(op, input, float(small), float(np.float32(1) / small), zero, quant_min, quant_max)


@public(method=False)
def fake_quantize_per_channel_affine(input: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int) -> Tensor:
    """`fake_quantize_per_tensor_affine` with a scale and a zero point for each slice along `axis`.

    scale: (C,) float32 or bfloat16; zero_point: (C,) int32, or float32 or float16 (added before rounding). Raises RuntimeError for other types and
    sizes, and as the other function does.

    >>> import calque
    >>> zero = calque.zeros(2, dtype=calque.int32)
    >>> calque.fake_quantize_per_channel_affine(calque.tensor([[0.26, 0.26]]), calque.tensor([0.1, 0.2]), zero, 1, -128, 127)
    tensor([[0.3000, 0.2000]])
    """
    op = "fake_quantize_per_channel_affine"
    require_tensors(op, input, scale, zero_point)
    if scale._layout.dtype not in (dt.float32, dt.bfloat16):
        raise DTypeError(f"[{op}] Scale must be Float or BFloat16, found {scale._layout.dtype!r}; convert it with .float()")
    if zero_point._layout.dtype not in (dt.int32, dt.float32, dt.float16):
        raise DTypeError(f"[{op}] Zero-point must be Int32, Float or Half, found {zero_point._layout.dtype!r}; convert it with .int()")
    place = normalize_dim(axis, input._layout.ndim, op)
    shape = input._layout.shape
    if scale._layout.shape != (shape[place],) or zero_point._layout.shape != (shape[place],):
        raise ShapeError(
            f"[{op}] expected a scale and a zero point for each of {shape[place]} slices, got shapes {tuple(scale._layout.shape)} and "
            f"{tuple(zero_point._layout.shape)}: dimensions of scale and zero-point are not consistent with input tensor"
        )
    if scale._requires_grad:
        raise ArgumentError(_LEARNED.format(op))
    along = [shape[k] if k == place else 1 for k in range(len(shape))]
    factor = reshape(cast(scale, dt.float32), along)
    return _rounded(op, input, factor, div(1.0, factor), reshape(cast(zero_point, dt.float32), along), quant_min, quant_max)


_LEARNED = "[{}] expected a scale without a gradient, got one that requires it: the function is not differentiable with respect to argument 'scale'"


def _one(op: str, x: Any, name: str) -> Any:
    if not is_tensor(x):
        return x
    if x._layout.numel != 1:
        count = x._layout.numel
        raise ArgumentError(f"[{op}] expected one {name}, got {count}: a Tensor with {count} elements cannot be converted to Scalar")
    if x._requires_grad:
        raise ArgumentError(_LEARNED.format(op))
    return read(x).reshape(-1)[0]


def _rounded(op: str, x: Tensor, scale: Any, inverse: Any, zero: Any, low: int, high: int) -> Tensor:
    require_tensors(op, x)
    kind = x._layout.dtype
    if kind.category != 2:
        raise UnsupportedTypeError(f"[{op}] expected floating numbers, got {kind!r}: not implemented; convert with .float()")
    if low > high:
        raise ArgumentError(f"[{op}] `quant_min` should be less than or equal to `quant_max`: expected that, got {low} and {high}")
    unknown = is_tensor(zero) and zero._layout.device.type == "meta"  # shapes alone
    values = np.empty(0) if unknown else np.asarray(read(zero) if is_tensor(zero) else zero)
    whole = bool((values == np.floor(values)).all())  # else it is added before rounding
    if whole and values.size and (values.min() < low or values.max() > high):
        got = values.reshape(-1)[:8].tolist()
        raise ArgumentError(f"[{op}] `zero_point` must be between `quant_min` and `quant_max`, {low} and {high}, got {got}")

    def steps() -> Tensor:
        scaled = mul(cast(x, kind.compute), inverse)
        return add(round(scaled), zero) if whole else round(add(scaled, zero))

    def value() -> Tensor:
        q = steps()
        q = where(isnan(q), float(low), clamp(q, low, high))
        return cast(mul(cast(sub(q, zero), kind.compute if is_tensor(scale) else dt.float32), scale), kind)  # as PyTorch, per channel or not

    def backward(g: Any) -> tuple[Any]:
        q = steps()
        return (linked(where(logical_and(ge(q, low), le(q, high)), g, 0.0), x),)

    return with_formula("FakeQuantizeBackward0", (x,), value, backward, straight=True)
