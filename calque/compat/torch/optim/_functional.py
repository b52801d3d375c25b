"""`torch.optim._functional`: one step of an optimizer over lists of parameters, gradients and states, which are written in place.

The step is that of the optimizer's class. Gradients through steps (`differentiable`) and the scaling of gradients inside them are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import calque
from calque import optim
from calque.base.errors import ArgumentError

__all__ = ["adadelta", "adagrad", "adam", "adamax", "adamw", "asgd", "nadam", "radam", "rmsprop", "rprop", "sgd"]

_PAIRS = {"betas": ("beta1", "beta2"), "etas": ("etaminus", "etaplus"), "step_sizes": ("step_size_min", "step_size_max")}
_NOTHING_CHANGES = ("foreach", "capturable", "fused", "has_complex", "has_sparse_grad")  # every step is one program, which sees what it is given
_REFUSED = ("differentiable", "grad_scale", "found_inf")


def _options(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """The options of the class: pairs are one option there."""
    for key in _REFUSED:
        if given.pop(key, None):
            raise ArgumentError(f"[{name}] expected a plain step, got {key}; use the optimizer's class, or torch.amp.GradScaler")
    for key in _NOTHING_CHANGES:
        given.pop(key, None)
    for pair, (low, high) in _PAIRS.items():
        if low in given:
            given[pair] = (given.pop(low), given.pop(high))
    return given


def _step(name: str, kind: Any, names: tuple[str, ...], params: Any, grads: Any, states: tuple[Any, ...], given: dict[str, Any]) -> None:
    """A step of an optimizer that exists as long as the call, and finds the states of an earlier one."""
    options = _options(name, given)
    if not params:
        return
    optimizer = kind(params, **options)
    held = [p.grad for p in params]
    try:
        for k, p in enumerate(params):
            p.grad = grads[k]
            found = {key: values[k] for key, values in zip(names, states, strict=True) if values and values[k] is not None}
            optimizer.state[p] = {key: _number(key, value) if key in optimizer.on_host else value for key, value in found.items()}
        optimizer.step()
    finally:
        for p, grad in zip(params, held, strict=True):
            p.grad = grad
    for key, values in zip(names, states, strict=True):
        for k, p in enumerate(params if values else ()):
            now = optimizer.state[p].get(key)
            if values[k] is None:
                values[k] = now
            elif key in optimizer.on_host:
                values[k].fill_(now)


def _number(key: str, value: Any) -> Any:
    number = value.item() if isinstance(value, calque.Tensor) else value
    return int(number) if key == "step" else number


def _made(name: str, kind: Any, names: tuple[str, ...], flags: tuple[str, ...]) -> Callable[..., None]:
    """The function of a class. `names`: what its lists of states are called in the class; `flags`: arguments behind them, in PyTorch's order."""

    def call(params: Any, grads: Any, *more: Any, **options: Any) -> None:
        keys = [key for key in _LISTS[name] if key in options]
        lists = (*more[: len(names)], *[options.pop(key) for key in keys])
        if len(lists) != len(names):
            raise TypeError(f"[{name}] expected {len(names)} lists of states ({', '.join(_LISTS[name])}), got {len(lists)}")
        _step(name, kind, names, params, grads, lists, {**dict(zip(flags, more[len(names) :], strict=False)), **options})

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"One step of {kind.__name__}. Lists of states: {', '.join(_LISTS[name])}."
    return call


_LISTS = {
    "adadelta": ("square_avgs", "acc_deltas", "state_steps"), "adagrad": ("state_sums", "state_steps"),
    "adam": ("exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs", "state_steps"), "adamax": ("exp_avgs", "exp_infs", "state_steps"),
    "adamw": ("exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs", "state_steps"), "asgd": ("axs", "mus", "etas", "state_steps"),
    "nadam": ("exp_avgs", "exp_avg_sqs", "mu_products", "state_steps"), "radam": ("exp_avgs", "exp_avg_sqs", "state_steps"),
    "rmsprop": ("square_avgs", "grad_avgs", "momentum_buffer_list", "state_steps"), "rprop": ("prevs", "step_sizes", "state_steps"),
    "sgd": ("momentum_buffer_list",),
}  # fmt: skip
_ADAM = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "step")
_LATER = ("foreach", "capturable", "differentiable")
_SCALED = ("fused", "grad_scale", "found_inf")
_KINDS = ("foreach", "maximize", "differentiable", "capturable", "has_complex")

adadelta = _made("adadelta", optim.Adadelta, ("square_avg", "acc_delta", "step"), ("capturable", "foreach", "differentiable", "has_complex"))
adagrad = _made("adagrad", optim.Adagrad, ("sum", "step"), (*_SCALED, "has_sparse_grad", "foreach", "differentiable", "has_complex"))
adam = _made("adam", optim.Adam, _ADAM, (*_LATER, *_SCALED, "has_complex", "decoupled_weight_decay"))
adamax = _made("adamax", optim.Adamax, ("exp_avg", "exp_inf", "step"), _KINDS)
adamw = _made("adamw", optim.AdamW, _ADAM, (*_LATER, *_SCALED, "has_complex"))
asgd = _made("asgd", optim.ASGD, ("ax", "mu", "eta", "step"), _KINDS)
nadam = _made("nadam", optim.NAdam, ("exp_avg", "exp_avg_sq", "mu_product", "step"), ("decoupled_weight_decay", *_LATER, "has_complex", "maximize"))
radam = _made(
    "radam", optim.RAdam, ("exp_avg", "exp_avg_sq", "step"),
    ("decoupled_weight_decay", "foreach", "differentiable", "capturable", "has_complex", "maximize"),
)  # fmt: skip
rmsprop = _made("rmsprop", optim.RMSprop, ("square_avg", "grad_avg", "momentum_buffer", "step"), _KINDS)
rprop = _made("rprop", optim.Rprop, ("prev", "step_size", "step"), ("foreach", "capturable", "maximize", "differentiable", "has_complex"))
sgd = _made("sgd", optim.SGD, ("momentum_buffer",), ("has_sparse_grad", "foreach", *_SCALED))
