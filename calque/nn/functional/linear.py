"""Linear and bilinear maps."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from calque import functional as T
from calque.base.cache import Cache
from calque.base.errors import ShapeError
from calque.functional.common import require_dims, require_numbers, require_one_dtype, require_tensors
from calque.functional.declared import public
from calque.functional.precision import as_given, lower_precision
from calque.functional.views import reshaped
from calque.nn.functional.checks import require_dtype
from calque.ops.opdef import get
from calque.tensor import Tensor, record

MATMUL, ADDMM = get("matmul"), get("addmm")


def _check_linear(input: Tensor, weight: Tensor, bias: Any) -> None:
    require_dtype("linear", input, weight)
    require_numbers("linear", weight)
    x, w = input._layout, weight._layout
    if w.ndim not in (1, 2):
        raise ShapeError(f"[linear] expected a weight (out, in), got shape {tuple(w.shape)}")
    if x.ndim == 0 or x.shape[-1] != w.shape[-1]:
        flat = x.ndim > 2 and prod(x.shape[1:]) == w.shape[-1]
        hint = "flatten the input first, with nn.Flatten() or .flatten(1)" if flat else "transpose or reshape the input, or change in_features"
        raise ShapeError(
            f"[linear] expected last dim {w.shape[-1]} (weight {tuple(w.shape)}), got shape {tuple(x.shape)}; {hint} "
            "(mat1 and mat2 shapes cannot be multiplied)"
        )
    if bias is not None:
        if tuple(bias._layout.shape) not in ((w.shape[0],) if w.ndim == 2 else (), (1,)):
            raise ShapeError(f"[linear] expected a bias of shape ({w.shape[0]},) for weight {tuple(w.shape)}, got {tuple(bias._layout.shape)}")
        require_dtype("linear", bias, weight)


_FITTING = Cache("operands of linear", 600, 1 / 128)  # layouts of operands that were checked already -> what computes their map


def _fit(input: Tensor, weight: Tensor, bias: Any) -> Callable[..., Tensor]:
    """What computes the map of operands like these."""
    _check_linear(input, weight, bias)
    shape, kind = tuple(input._layout.shape), weight._layout.dtype
    rows, whole = (None, None) if len(shape) == 2 else ((prod(shape[:-1]), shape[-1]), (*shape[:-1], *weight._layout.shape[:1]))
    narrow = kind.compute is not kind

    def product(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        operands = input if rows is None else reshaped(input, rows), T.t(weight)
        if bias is not None and narrow:
            y = record(ADDMM, (*operands, bias), (1.0, 1.0))  # floats of 16 bits are rounded once
        else:
            y = record(MATMUL, operands)  # one matrix product, bias fused into it
            if bias is not None:
                y = y + bias
        return y if whole is None else reshaped(y, whole)

    def vector(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y = T.matmul(input, weight) if narrow else T.sum(input * weight, -1)
        return y if bias is None else y + bias

    return vector if weight._layout.ndim == 1 else product


@public(of="nn.functional", steps=True)
@lower_precision
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b: (*, in), (out, in), (out) -> (*, out).

    >>> import calque
    >>> tuple(calque.nn.functional.linear(calque.ones(2, 3), calque.ones(4, 3)).shape)
    (2, 4)
    """
    key = (input._layout, weight._layout, None if bias is None else bias._layout)
    fit = _FITTING.get(key) or _FITTING.keep(key, _fit(input, weight, bias))
    return fit(input, weight, bias)


@public(method=False, of="calque nn.functional", steps=True)
@as_given
def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x1^T W_k x2 + b_k for every output k: (*, in1), (*, in2), (out, in1, in2) -> (*, out)."""
    if bias is not None:
        require_tensors("bilinear", bias)
    require_dims("bilinear", weight, 3, 3, "weight")
    require_dims("bilinear", input1, 1, name="input1")
    require_one_dtype("bilinear", weight, input1, input2, bias)
    out, in1, in2 = weight._layout.shape
    lead = tuple(input1._layout.shape[:-1])
    if tuple(input2._layout.shape[:-1]) != lead or input1._layout.shape[-1] != in1 or input2._layout.shape[-1] != in2:
        raise ShapeError(
            f"[bilinear] expected inputs (*, {in1}) and (*, {in2}) with equal leading dims, got "
            f"{tuple(input1._layout.shape)} and "
            f"{tuple(input2._layout.shape)}"
        )
    a, b = T.reshape(input1, (-1, in1)), T.reshape(input2, (-1, in2))
    left = T.reshape(T.matmul(a, T.reshape(T.permute(weight, (1, 0, 2)), (in1, out * in2))), (-1, out, in2))
    y = T.reshape(T.sum(left * T.unsqueeze(b, 1), -1, dtype=weight._layout.dtype), (*lead, out))
    return y if bias is None else y + bias
