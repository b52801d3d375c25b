"""`torch.optim.optimizer`: names that optimizers written for PyTorch import beside `Optimizer`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import calque

__all__ = [
    "ParamsT", "_default_to_fused_or_foreach", "_get_value", "_stack_if_compiling", "_to_scalar", "_use_grad_for_differentiable",
    "_view_as_real", "params_t",
]  # fmt: skip

ParamsT: TypeAlias = Iterable[Any]
params_t = ParamsT


def _use_grad_for_differentiable(step: Callable[..., Any]) -> Callable[..., Any]:
    """`step` with gradients if the optimizer is `differentiable`, without otherwise."""

    @functools.wraps(step)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with calque.set_grad_enabled(bool(self.defaults.get("differentiable"))):
            return step(self, *args, **kwargs)

    return call


def _get_value(x: Any) -> Any:
    return x.item() if isinstance(x, calque.Tensor) else x


_to_scalar = _get_value


def _stack_if_compiling(x: Any) -> Any:
    return x


def _default_to_fused_or_foreach(params: Any, differentiable: bool, use_fused: bool = False) -> tuple[bool, bool]:
    return False, False


def _view_as_real(params: Any, *state_and_grads: Any) -> None:
    """Real views in the place of complex parameters and their state, in their lists."""
    for i, p in enumerate(params):
        if p.is_complex():
            for values in (params, *state_and_grads):
                values[i] = calque.view_as_real(values[i])
