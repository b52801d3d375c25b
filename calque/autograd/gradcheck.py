"""Comparison of gradients with central differences, in float64. A complex number counts as its two parts: the gradient of a real function of
z = x + iy is d/dx + i d/dy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from calque.autograd.api import grad
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, AutogradError
from calque.base.layout import Layout
from calque.tensor import Tensor, read, upload

__all__ = ["GradcheckError", "gradcheck", "gradgradcheck"]

Array = np.ndarray[Any, Any]


class GradcheckError(AutogradError):
    """Analytical and numerical gradients differ."""


def _tuple(x: Any) -> tuple[Any, ...]:
    return tuple(x) if isinstance(x, (tuple, list)) else (x,)


def _differentiable(outputs: Any) -> list[Tensor]:
    return [out for out in _tuple(outputs) if isinstance(out, Tensor) and out._requires_grad]


def _values(x: Tensor) -> Array:
    """The values in a row, as real numbers."""
    values = np.array(read(x)).reshape(-1)
    return values.astype(np.complex128).view(np.float64) if x._layout.dtype.is_complex else values.astype(np.float64)


def _tensor(values: Array, view: Layout) -> Tensor:
    """A tensor of the shape and dtype of `view` from such a row."""
    return upload((values.view(np.complex128) if view.dtype.is_complex else values).reshape(view.shape), view.dtype)


def _call(function: Callable[..., Any], inputs: Sequence[Any], position: int, values: Array) -> list[Array]:
    """Values of the outputs with input `position` replaced."""
    fresh = _tensor(values, inputs[position]._layout)
    fresh._requires_grad = True
    arguments = [fresh if k == position else x for k, x in enumerate(inputs)]
    return [_values(out) for out in _differentiable(function(*arguments))]


def _numerical(function: Callable[..., Any], inputs: Sequence[Any], position: int, eps: float) -> list[Array]:
    """Per output the matrix d(output)/d(input), (input elements, output elements), by central differences."""
    base = _values(inputs[position])
    rows: list[list[Array]] = []
    for element in range(base.size):
        sides = []
        for sign in (eps, -eps):
            moved = base.copy()
            moved[element] += sign
            sides.append(_call(function, inputs, position, moved))
        rows.append([(high - low) / (2 * eps) for high, low in zip(*sides, strict=True)])
    return [np.stack(column) for column in zip(*rows, strict=True)] if rows else []


def _analytical(output: Tensor, x: Tensor) -> Array:
    """The same matrix from backward, one output element at a time."""
    columns, size = [], x._layout.numel * (1 + x._layout.dtype.is_complex)
    ones = np.eye(output._layout.numel * (1 + output._layout.dtype.is_complex))
    for one in ones:
        (g,) = grad(output, x, _tensor(one, output._layout), retain_graph=True, allow_unused=True)
        columns.append(np.zeros(size) if g is None else _values(g))
    return np.stack(columns, axis=1) if columns else np.zeros((size, 0))


def _compare(function: Callable[..., Any], inputs: Sequence[Any], eps: float, atol: float, rtol: float) -> str:
    """ "" or a description of the first difference."""
    outputs = _differentiable(function(*inputs))
    if not outputs:
        return ""
    for position, x in enumerate(inputs):
        if not (isinstance(x, Tensor) and x._requires_grad) or x._layout.numel == 0:
            continue
        numerical = _numerical(function, inputs, position, eps)
        for number, out in enumerate(outputs):
            analytical = _analytical(out, x)
            if not np.allclose(analytical, numerical[number], rtol=rtol, atol=atol, equal_nan=True):
                worst = np.unravel_index(np.argmax(np.abs(analytical - numerical[number])), analytical.shape)
                return (
                    f"[gradcheck] Jacobian mismatch for output {number} with respect to input {position} (shape "
                    f"{tuple(x._layout.shape)}), worst at "
                    f"input element {worst[0]}, output element {worst[1]}: numerical {numerical[number][worst]:.8g}, analytical "
                    f"{analytical[worst]:.8g}\nnumerical:\n{numerical[number]}\nanalytical:\n{analytical}"
                )
    return ""


def _only_backward(op: str, *wanted: bool | None) -> None:
    if any(wanted):
        raise ArgumentError(f"[{op}] expected checks of backward passes, got others: there is no forward mode, no vmap, no masked layout")


def gradcheck(
    func: Callable[..., Any],
    inputs: Any,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_batched_forward_grad: bool = False,
    check_forward_ad: bool = False,
    check_backward_ad: bool = True,
    fast_mode: bool = False,
    masked: bool | None = None,
) -> bool:
    """Whether the gradients of `func` agree with central differences for every differentiable input and output.

    inputs: a tensor or a tuple of arguments; those that require gradients must be float64 or complex128. Every element is checked,
    whatever `fast_mode` says; gradients repeat bit by bit, so `nondet_tol` allows for nothing, and an undefined gradient is a gradient of zeros.

    >>> import calque
    >>> x = calque.tensor([0.5, 1.5], dtype=calque.float64, requires_grad=True)
    >>> calque.autograd.gradcheck(lambda t: t.sin() * t, (x,))
    True
    """
    _only_backward("gradcheck", check_batched_grad, check_batched_forward_grad, check_forward_ad, masked)
    if not check_backward_ad:
        raise ArgumentError("[gradcheck] expected check_backward_ad=True, got False; there is nothing else to check")
    arguments = _tuple(inputs)
    checked = [x for x in arguments if isinstance(x, Tensor) and x._requires_grad]
    if not checked:
        raise ValueError(
            "[gradcheck] expects at least one input tensor to require gradient, got none; set requires_grad=True on one"
        )
    for x in checked:
        if x._layout.dtype not in (dt.float64, dt.complex128) and eps < 1e-4:
            raise ValueError(
                f"[gradcheck] expected float64 or complex128 inputs for central differences, got {x._layout.dtype!r}; convert with .double()"
            )
    message = _compare(func, arguments, eps, atol, rtol)
    if message and raise_exception:
        raise GradcheckError(message)
    return not message


def gradgradcheck(
    func: Callable[..., Any],
    inputs: Any,
    grad_outputs: Any = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    gen_non_contig_grad_outputs: bool = False,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_fwd_over_rev: bool = False,
    check_rev_over_rev: bool = True,
    fast_mode: bool = False,
    masked: bool = False,
) -> bool:
    """As `gradcheck`, for the gradients of the gradients; `grad_outputs` default to random numbers."""
    _only_backward("gradgradcheck", check_batched_grad, check_fwd_over_rev, not check_rev_over_rev, masked)
    arguments = _tuple(inputs)
    outputs = _differentiable(func(*arguments))
    if grad_outputs is None:
        generator = np.random.default_rng(0)
        given = []
        for out in outputs:
            g = _tensor(generator.standard_normal(out._layout.numel * (1 + out._layout.dtype.is_complex)), out._layout)
            g._requires_grad = True
            given.append(g)
    else:
        given = list(_tuple(grad_outputs))
    wanted = [k for k, x in enumerate(arguments) if isinstance(x, Tensor) and x._requires_grad]

    def first_order(*all_arguments: Any) -> tuple[Any, ...]:
        own = all_arguments[: len(arguments)]
        found = _differentiable(func(*own))
        gradients = grad(
            found, [own[k] for k in wanted], list(all_arguments[len(arguments) :]), create_graph=True, allow_unused=True
        )
        return tuple(g for g in gradients if g is not None)

    return gradcheck(first_order, (*arguments, *given), eps=eps, atol=atol, rtol=rtol, raise_exception=raise_exception)
