"""Comparison of gradients with central differences, in float64. A complex number counts as its two parts: the gradient of a real function of
z = x + iy is d/dx + i d/dy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from calque.autograd.api import grad
from calque.autograd.functional import transforms
from calque.autograd.leaves import RuleNamespace
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
    """Values of the outputs where input `position` shows other values. It is the same object: a function may look at it without its arguments, as one
    that calls a module does at parameters."""
    x = inputs[position]
    fresh, kept = _tensor(values, x._layout), (x._storage, x._layout, x._cache)
    x._storage, x._layout, x._cache = fresh._storage, fresh._layout, None
    try:
        return [_values(out) for out in _differentiable(function(*inputs))]
    finally:
        x._storage, x._layout, x._cache = kept


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


def _forward(function: Callable[..., Any], inputs: Sequence[Any], position: int, batched: bool) -> list[Array]:
    """The same matrices, one for each output, from forward mode: one input element at a time, or all by `vmap`."""
    x = inputs[position]
    wanted = [isinstance(out, Tensor) and out._requires_grad for out in _tuple(function(*inputs))]
    fixed = [k.detach().requires_grad_(k._requires_grad) if isinstance(k, Tensor) else k for k in inputs]  # type: ignore[attr-defined]

    def own(t: Tensor) -> tuple[Any, ...]:
        arguments = [t if k == position else given for k, given in enumerate(fixed)]
        return tuple(out for out, kept in zip(_tuple(function(*arguments)), wanted, strict=True) if kept)

    def tangents(t: Tensor) -> tuple[Any, ...]:
        return tuple(transforms().jvp(own, (fixed[position],), (t,))[1])

    ones = np.eye(x._layout.numel * (1 + x._layout.dtype.is_complex))
    basis = [_tensor(one, x._layout) for one in ones]
    if batched:
        together = transforms().vmap(tangents)(RuleNamespace.functional.stack(basis))
        return [_values(t).reshape(len(ones), -1) for t in together]
    rows = [[_values(t) for t in tangents(one)] for one in basis]
    return [np.stack(column) for column in zip(*rows, strict=True)]


def _together(output: Tensor, x: Tensor) -> Array:
    """The matrix from one backward pass for all output elements."""
    ones = np.eye(output._layout.numel * (1 + output._layout.dtype.is_complex))
    given = RuleNamespace.functional.stack([_tensor(one, output._layout) for one in ones])
    (g,) = grad(output, x, given, retain_graph=True, allow_unused=True, is_grads_batched=True)
    size = x._layout.numel * (1 + x._layout.dtype.is_complex)
    return np.zeros((size, len(ones))) if g is None else _values(g).reshape(len(ones), -1).T


def _compare(function: Callable[..., Any], inputs: Sequence[Any], eps: float, atol: float, rtol: float, ways: Sequence[str]) -> str:
    """ "" or a description of the first difference. `ways`: how derivatives are computed that are compared with differences."""
    outputs = _differentiable(function(*inputs))
    if not outputs:
        return ""
    for position, x in enumerate(inputs):
        if not (isinstance(x, Tensor) and x._requires_grad) or x._layout.numel == 0:
            continue
        numerical = _numerical(function, inputs, position, eps)
        for way in ways:
            forward = _forward(function, inputs, position, way == "batched forward") if "forward" in way else []
            for number, out in enumerate(outputs):
                if out._layout.numel == 0:
                    continue
                analytical = forward[number] if forward else _together(out, x) if way == "batched backward" else _analytical(out, x)
                if not np.allclose(analytical, numerical[number], rtol=rtol, atol=atol, equal_nan=True):
                    worst = np.unravel_index(np.argmax(np.abs(analytical - numerical[number])), analytical.shape)
                    return (
                        f"[gradcheck] Jacobian mismatch for output {number} with respect to input {position} (shape "
                        f"{tuple(x._layout.shape)}, {way} mode), worst at "
                        f"input element {worst[0]}, output element {worst[1]}: numerical {numerical[number][worst]:.8g}, analytical "
                        f"{analytical[worst]:.8g}\nnumerical:\n{numerical[number]}\nanalytical:\n{analytical}"
                    )
    return ""


def _ways(op: str, masked: bool | None, **wanted: bool) -> list[str]:
    """The modes that are asked for."""
    if masked:
        raise ArgumentError(f"[{op}] expected masked=False, got True; sparse inputs are checked as dense ones: convert them with .to_dense()")
    found = [name.replace("_", " ") for name, asked in wanted.items() if asked]
    if not {"backward", "forward"} & set(found):
        raise ValueError(f"[{op}] Expected at least one of check_forward_ad or check_backward_ad to be True, got neither; ask for one")
    if "batched backward" in found and "backward" not in found or "batched forward" in found and "forward" not in found:
        raise ValueError(f"[{op}] expected the plain check beside the batched one of the same mode, got {', '.join(found)}; ask for both")
    return found


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
    check_backward_ad, check_forward_ad: which modes are compared with the differences; check_batched_grad, check_batched_forward_grad: also for all
    elements at once (`is_grads_batched`, `vmap`).

    >>> import calque
    >>> x = calque.tensor([0.5, 1.5], dtype=calque.float64, requires_grad=True)
    >>> calque.autograd.gradcheck(lambda t: t.sin() * t, (x,))
    True
    """
    ways = _ways(
        "gradcheck", masked, backward=check_backward_ad, forward=check_forward_ad, batched_backward=check_batched_grad,
        batched_forward=check_batched_forward_grad,
    )  # fmt: skip
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
    message = _compare(func, arguments, eps, atol, rtol, ways)
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
    _ways("gradgradcheck", masked, backward=check_rev_over_rev, forward=check_fwd_over_rev, batched_backward=check_batched_grad)
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

    return gradcheck(
        first_order, (*arguments, *given), eps=eps, atol=atol, rtol=rtol, raise_exception=raise_exception, check_batched_grad=check_batched_grad,
        check_forward_ad=check_fwd_over_rev, check_backward_ad=check_rev_over_rev,
    )  # fmt: skip
