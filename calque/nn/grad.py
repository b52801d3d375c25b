"""Gradients of convolutions by themselves, as functions: `conv2d_input`, `conv2d_weight`, and those of other dims."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calque import functional as T
from calque.autograd.api import grad
from calque.autograd.modes import enable_grad
from calque.nn import functional as F
from calque.tensor import Tensor

__all__ = ["conv1d_input", "conv1d_weight", "conv2d_input", "conv2d_weight", "conv3d_input", "conv3d_weight"]


def _of_input(conv: Callable[..., Tensor], size: Any, weight: Tensor, gradient: Tensor, settings: tuple[Any, ...]) -> Tensor:
    with enable_grad():
        x = T.zeros(tuple(size), dtype=weight.dtype, device=weight.device, requires_grad=True)
        return grad(conv(x, weight, None, *settings), x, gradient)[0]  # type: ignore[return-value]


def _of_weight(conv: Callable[..., Tensor], input: Tensor, size: Any, gradient: Tensor, settings: tuple[Any, ...]) -> Tensor:
    with enable_grad():
        w = T.zeros(tuple(size), dtype=input.dtype, device=input.device, requires_grad=True)
        return grad(conv(input, w, None, *settings), w, gradient)[0]  # type: ignore[return-value]


def conv1d_input(
    input_size: Any, weight: Tensor, grad_output: Tensor, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Tensor:
    """The gradient of `conv1d` with respect to an input of this size; arguments as in `conv2d_input`.

    >>> import calque
    >>> calque.nn.grad.conv1d_input((1, 1, 3), calque.ones(1, 1, 2), calque.ones(1, 1, 2)).tolist()
    [[[1.0, 2.0, 1.0]]]
    """
    return _of_input(F.conv1d, input_size, weight, grad_output, (stride, padding, dilation, groups))


def conv2d_input(
    input_size: Any, weight: Tensor, grad_output: Tensor, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Tensor:
    """The gradient of `conv2d` with respect to an input of this size: (O, C / groups, kH, kW), (N, O, H', W') -> input_size.

    stride, padding, dilation, groups: of the convolution.

    >>> import calque
    >>> calque.nn.grad.conv2d_input((1, 1, 2, 2), calque.full((1, 1, 2, 2), 3.0), calque.ones(1, 1, 1, 1)).sum().item()
    12.0
    """
    return _of_input(F.conv2d, input_size, weight, grad_output, (stride, padding, dilation, groups))


def conv3d_input(
    input_size: Any, weight: Tensor, grad_output: Tensor, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Tensor:
    """The gradient of `conv3d` with respect to an input of this size; arguments as in `conv2d_input`.

    >>> import calque
    >>> tuple(calque.nn.grad.conv3d_input((1, 1, 2, 2, 2), calque.ones(1, 1, 1, 1, 1), calque.ones(1, 1, 2, 2, 2)).shape)
    (1, 1, 2, 2, 2)
    """
    return _of_input(F.conv3d, input_size, weight, grad_output, (stride, padding, dilation, groups))


def conv1d_weight(
    input: Tensor, weight_size: Any, grad_output: Tensor, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Tensor:
    """The gradient of `conv1d` with respect to a weight of this size; arguments as in `conv2d_weight`.

    >>> import calque
    >>> calque.nn.grad.conv1d_weight(calque.ones(1, 1, 3), (1, 1, 2), calque.ones(1, 1, 2)).tolist()
    [[[2.0, 2.0]]]
    """
    return _of_weight(F.conv1d, input, weight_size, grad_output, (stride, padding, dilation, groups))


def conv2d_weight(
    input: Tensor, weight_size: Any, grad_output: Tensor, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Tensor:
    """The gradient of `conv2d` with respect to a weight of this size: (N, C, H, W), (N, O, H', W') -> weight_size.

    stride, padding, dilation, groups: of the convolution.

    >>> import calque
    >>> calque.nn.grad.conv2d_weight(calque.ones(1, 1, 2, 2), (1, 1, 1, 1), calque.ones(1, 1, 2, 2)).item()
    4.0
    """
    return _of_weight(F.conv2d, input, weight_size, grad_output, (stride, padding, dilation, groups))


def conv3d_weight(
    input: Tensor, weight_size: Any, grad_output: Tensor, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Tensor:
    """The gradient of `conv3d` with respect to a weight of this size; arguments as in `conv2d_weight`.

    >>> import calque
    >>> calque.nn.grad.conv3d_weight(calque.ones(1, 1, 2, 2, 2), (1, 1, 1, 1, 1), calque.ones(1, 1, 2, 2, 2)).item()
    8.0
    """
    return _of_weight(F.conv3d, input, weight_size, grad_output, (stride, padding, dilation, groups))
