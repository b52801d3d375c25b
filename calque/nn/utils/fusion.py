"""Batch normalisation folded into the layer before it, for inference."""

from __future__ import annotations

import copy
from typing import Any

from calque import functional as T
from calque.nn.parameter import Parameter
from calque.tensor import Tensor

__all__ = ["fuse_conv_bn_eval", "fuse_conv_bn_weights", "fuse_linear_bn_eval", "fuse_linear_bn_weights"]


def _check(op: str, layer: Any, norm: Any) -> None:
    if layer.training or norm.training:
        raise AssertionError(f"[{op}] Fusion only for eval! Call .eval() of both modules first")
    if norm.running_mean is None or norm.running_var is None:
        raise AssertionError(f"[{op}] expected a batch normalisation with running statistics; set track_running_stats=True")


def _folded(weight: Any, bias: Any, mean: Any, variance: Any, eps: float, scale: Any, shift: Any, shape: tuple[int, ...]) -> tuple[Any, Any]:
    factor = T.rsqrt(variance + eps)
    factor = factor if scale is None else factor * scale
    moved = (0.0 if bias is None else bias) - mean
    moved = moved * factor if shift is None else moved * factor + shift
    kind, other = weight.dtype, weight.dtype if bias is None else bias.dtype
    trained = weight.requires_grad, False if bias is None else bias.requires_grad
    new = (weight * T.reshape(factor, shape)).detach().to(kind), moved.detach().to(other)
    return Parameter(new[0], trained[0]), Parameter(new[1], trained[1])


def fuse_conv_bn_weights(
    conv_w: Tensor, conv_b: Tensor | None, bn_rm: Tensor, bn_rv: Tensor, bn_eps: float, bn_w: Tensor | None, bn_b: Tensor | None,
    transpose: bool = False,
) -> tuple[Parameter, Parameter]:  # fmt: skip
    """Weight and bias of a convolution that does what a convolution and the batch normalisation behind it did.

    conv_w, conv_b: of the convolution (transpose: of a transposed one). bn_rm, bn_rv, bn_eps, bn_w, bn_b: running mean and variance, eps,
    weight and bias of the normalisation.

    >>> import calque
    >>> one = calque.ones(1)
    >>> w, b = calque.nn.utils.fuse_conv_bn_weights(calque.ones(1, 1, 1), None, one, one, 0.0, None, None)
    >>> w.item(), b.item()
    (1.0, -1.0)
    """
    shape = (1, -1) if transpose else (-1, 1)
    return _folded(conv_w, conv_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b, (*shape, *(1,) * (conv_w.ndim - 2)))


def fuse_linear_bn_weights(
    linear_w: Tensor, linear_b: Tensor | None, bn_rm: Tensor, bn_rv: Tensor, bn_eps: float, bn_w: Tensor | None, bn_b: Tensor | None
) -> tuple[Parameter, Parameter]:
    """Weight and bias of a linear layer that does what a linear layer and the batch normalisation behind it did; see `fuse_conv_bn_weights`.

    >>> import calque
    >>> one = calque.ones(2)
    >>> w, b = calque.nn.utils.fuse_linear_bn_weights(calque.eye(2), one, one, one, 0.0, 2 * one, one)
    >>> w.tolist(), b.tolist()
    ([[2.0, 0.0], [0.0, 2.0]], [1.0, 1.0])
    """
    return _folded(linear_w, linear_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b, (-1, 1))


def fuse_conv_bn_eval(conv: Any, bn: Any, transpose: bool = False) -> Any:
    """A copy of a convolution that does what it and the batch normalisation behind it did; both are to be in evaluation mode.

    >>> import calque
    >>> conv, norm = calque.nn.Conv2d(1, 2, 1).eval(), calque.nn.BatchNorm2d(2).eval()
    >>> x = calque.ones(1, 1, 2, 2)
    >>> calque.allclose(calque.nn.utils.fuse_conv_bn_eval(conv, norm)(x), norm(conv(x)), atol=1e-5)
    True
    """
    _check("fuse_conv_bn_eval", conv, bn)
    fused = copy.deepcopy(conv)
    fused.weight, fused.bias = fuse_conv_bn_weights(
        fused.weight, fused.bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias, transpose
    )  # fmt: skip
    return fused


def fuse_linear_bn_eval(linear: Any, bn: Any) -> Any:
    """A copy of a linear layer that does what it and the batch normalisation behind it did; both are to be in evaluation mode.

    >>> import calque
    >>> layer, norm = calque.nn.Linear(3, 2).eval(), calque.nn.BatchNorm1d(2).eval()
    >>> x = calque.ones(4, 3)
    >>> calque.allclose(calque.nn.utils.fuse_linear_bn_eval(layer, norm)(x), norm(layer(x)), atol=1e-5)
    True
    """
    _check("fuse_linear_bn_eval", linear, bn)
    if bn.num_features not in (1, linear.out_features):
        raise AssertionError(
            f"[fuse_linear_bn_eval] expected linear.out_features == bn.num_features or bn.num_features == 1, got {linear.out_features} and "
            f"{bn.num_features}"
        )
    fused = copy.deepcopy(linear)
    fused.weight, fused.bias = fuse_linear_bn_weights(fused.weight, fused.bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias)
    return fused
