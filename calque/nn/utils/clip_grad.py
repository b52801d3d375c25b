"""Limits on gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable
from types import GeneratorType
from typing import Any

from calque import functional as T
from calque.autograd.assign import assign
from calque.autograd.modes import no_grad
from calque.base.device import Device
from calque.base.errors import ArgumentError, DTypeError, NonFiniteError, how_to_pass
from calque.base.text import type_name
from calque.functional.common import cast, is_tensor
from calque.functional.subclasses import ASKING, gradient_of
from calque.nn.shares import share_of
from calque.observe.source import warn_user
from calque.replay.effects import gradients_matter
from calque.tensor import Tensor

__all__ = ["clip_grad_norm", "clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm"]


def _tensors(parameters: Any) -> list[Tensor]:
    """One tensor or several, looked at one by one: the first that is none ends it."""
    listed: list[Tensor] = []
    for p in (parameters,) if is_tensor(parameters) else parameters:
        if not is_tensor(p):
            hint = how_to_pass(p) if hasattr(p, "__dlpack__") else "pass model.parameters()"
            raise DTypeError(f"[clip_grad] expected Tensors as parameters, got {type_name(p)}; {hint}")
        listed.append(p)
    return listed


def _grads(parameters: Any) -> list[Tensor]:
    gradients_matter()
    if ASKING:
        return [g for p in _tensors(parameters) if (g := gradient_of(p)) is not None]
    return [p._grad for p in _tensors(parameters) if p._grad is not None]


def _on(device: Device, value: Tensor) -> Tensor:
    return value if value._layout.device is device else value.to(device)  # type: ignore[attr-defined, no-any-return]


@no_grad()
def _norm(grads: list[Any], p: float) -> Tensor:
    first = grads[0]._layout.device  # gradients may live on several devices
    if p == 2.0:
        sums = [_on(first, T.sum(g * g)) for g in grads]
        return T.sqrt(sums[0] if len(sums) == 1 else T.sum(T.stack(sums, 0)))
    return T.norm(T.stack([_on(first, T.norm(g, p)) for g in grads], 0), p)


@no_grad()
def _norm_everywhere(parameters: list[Any], shared: list[Any], p: float, error_if_nonfinite: bool) -> Tensor:
    """The norm of gradients some of which every process has a part of. All processes that do call this."""
    known = {id(q) for q in shared}
    groups: dict[Any, list[Any]] = {}
    for q in shared:
        groups.setdefault(share_of(q).group, []).append(q)  # type: ignore[union-attr]
    norms = [get_total_norm(_grads([q for q in parameters if id(q) not in known]), p)]
    for members in groups.values():
        own = get_total_norm([g for g in _grads(members) if g._layout.numel], p)
        norms.append(share_of(members[0]).norm(own.to(members[0].dtype), p))  # type: ignore[union-attr]
    return get_total_norm([n.to(norms[-1].dtype) for n in norms], p, error_if_nonfinite)


def get_total_norm(tensors: Iterable[Tensor], norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: bool | None = None) -> Tensor:
    """Norm of all elements of all tensors together, as a 0-d tensor."""
    grads: list[Any] = _tensors(tensors)
    p = float(norm_type)
    if not grads:
        return T.zeros(())
    total = _norm(grads, p)
    if error_if_nonfinite and not math.isfinite(total.item()):
        raise NonFiniteError(
            f"[clip_grad_norm_] The total norm of order {p} for gradients from `parameters` is non-finite "
            f"({total.item()}), so it cannot be "
            "clipped. To disable this error and scale the gradients by the non-finite norm anyway, set `error_if_nonfinite=False`"
        )
    return total


@no_grad()
def clip_grads_with_norm_(parameters: Any, max_norm: float, total_norm: Tensor, foreach: bool | None = None) -> None:
    """Scale gradients in place by max_norm / total_norm if that is below 1."""
    factor = T.clamp(float(max_norm) / (total_norm + 1e-6), max=1.0)
    for g in _grads(parameters):
        assign(g, g * cast(_on(g._layout.device, factor), g._layout.dtype))


def clip_grad_norm_(
    parameters: Any, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: bool | None = None
) -> Tensor:
    """Scale the gradients of all parameters together so that their norm is at most `max_norm`; returns the norm before.

    >>> import calque
    >>> w = calque.tensor([3.0, 4.0], requires_grad=True)
    >>> (w * w / 2).sum().backward()
    >>> calque.nn.utils.clip_grad_norm_([w], 1.0)
    tensor(5.)
    >>> w.grad
    tensor([0.6000, 0.8000])
    """
    if isinstance(max_norm, (int, float)) and not max_norm >= 0:
        raise ArgumentError(f"[clip_grad_norm_] expected max_norm >= 0, got {max_norm}")
    used_up = isinstance(parameters, GeneratorType)
    parameters = _tensors(parameters)
    if used_up and not parameters:
        warn_user("`parameters` is an empty generator, no gradient clipping will occur.")
    shared = [p for p in parameters if is_tensor(p) and share_of(p) is not None]
    if shared:
        total = _norm_everywhere(parameters, shared, float(norm_type), error_if_nonfinite)
    else:
        total = get_total_norm(_grads(parameters), norm_type, error_if_nonfinite)
    clip_grads_with_norm_(parameters, max_norm, total)
    return total


def clip_grad_norm(
    parameters: Any, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: bool | None = None
) -> Tensor:
    """`clip_grad_norm_`, under its old name."""
    warn_user("`clip_grad_norm` is now deprecated in favor of `clip_grad_norm_`.", FutureWarning)
    return clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite)


@no_grad()
def clip_grad_value_(parameters: Any, clip_value: float, foreach: bool | None = None) -> None:
    """Limit every element of every gradient to [-clip_value, clip_value]."""
    bound = float(clip_value)
    for g in _grads(parameters):
        assign(g, T.clamp(g, -bound, bound))
