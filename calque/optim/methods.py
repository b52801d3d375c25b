"""Updates of parameters whose class says itself what a method of a tensor means: a step on a manifold, say, for `add_`.

Such a class expects that a step is taken through its methods, those that PyTorch's optimizers call. An optimizer that knows these has an
`update_by_methods(group, parameter, g)`; it is the same update as that of `update_group`, written in PyTorch's calls.
"""

from __future__ import annotations

from typing import Any, Protocol

from calque.base.errors import ArgumentError
from calque.base.layout import preserve_format
from calque.functional.creation import full_like, zeros_like
from calque.functional.subclasses import ASKING, gradient_of, public_function
from calque.replay.capture import abort
from calque.tensor import Tensor


class Stepping(Protocol):
    """An `Optimizer` during a step, as the modules below it know it."""

    state: Any
    param_groups: list[dict[str, Any]]
    takes_complex: bool
    replays: bool
    on_host: tuple[str, ...]
    _updates: Any
    _pieces: Any
    _by_methods: list[Any]
    _given: list[list[float]] | None

    def update_group(self, group: dict[str, Any]) -> None: ...

    def step_numbers(self, group: dict[str, Any], parameters: list[Any]) -> list[float]: ...


# What PyTorch's optimizers call of a parameter, and what the updates of this package do instead.
_CALLED = {f"{name}_" for name in ("add", "sub", "mul", "div", "addcmul", "addcdiv", "copy")}
_CALLED |= {f"__{side}{name}__" for name in ("add", "sub", "mul", "truediv") for side in ("", "r", "i")}
_known: dict[type, bool] = {}


def has_methods(kind: type) -> bool:
    """Whether a class of parameters has something to say about an update: a `__torch_function__` of its own, or one of the methods."""
    found = _known.get(kind)
    if found is None:
        above = [base for base in kind.__mro__[: kind.__mro__.index(Tensor)] if not base.__module__.startswith("calque.")]
        # The methods of a class behind the protocol ask it; they are put into it when it is made.
        found = kind in ASKING or any(name in vars(base) and not getattr(vars(base)[name], "asks", False) for base in above for name in _CALLED)
        _known[kind] = found
    return found


def left_to_methods(optimizer: Stepping, group: dict[str, Any]) -> list[Any]:
    """The parameters of a group that are updated by their methods, after all others."""
    own = [p for p in group["params"] if has_methods(p.__class__)]
    if own:
        abort("updates parameters by the methods of their class")
        for p in own:
            _check(optimizer, p, p._grad)
        optimizer._by_methods = [*optimizer._by_methods, (group, own)]
    return own


def update_by_methods(optimizer: Stepping) -> None:
    """Update what `left_to_methods` has left. The methods are the program's: this is done where no other thread waits for the optimizer."""
    pending, optimizer._by_methods = optimizer._by_methods, []
    for group, parameters in pending:
        for p in parameters:
            g: Any = gradient_of(p)
            if g is not None:
                _check(optimizer, p, g)
                optimizer.update_by_methods(group, p, -g if group.get("maximize") else g)  # type: ignore[attr-defined]  # `_check` has seen it


def _check(optimizer: Stepping, p: Tensor, g: Tensor) -> None:
    """Raise if an optimizer has no update by methods, or none for a gradient of this kind."""
    if g is None:
        return
    kind = type(optimizer)
    first, second = (next((base for base in kind.__mro__ if name in vars(base)), None) for name in ("update_by_methods", "update_group"))
    if first is None or first is not second:
        raise ArgumentError(
            f"[{kind.__name__}] expected parameters of an ordinary class, got one of {type(p).__name__}, whose own methods an update has to call: "
            f"{kind.__name__} does not say which; define {kind.__name__}.update_by_methods, or use one of the optimizers of this package but "
            "SparseAdam, LARS and LAMB"
        )
    if g.is_sparse or g.is_complex():
        raise ArgumentError(
            f"[{kind.__name__}] expected a real, dense gradient of a parameter of {type(p).__name__}, which is updated by its own methods, got a "
            f"{'sparse' if g.is_sparse else 'complex'} one; use an ordinary parameter"
        )


def state_of(state: dict[str, Any], name: str, parameter: Tensor, value: float = 0.0) -> Any:
    """The state tensor of this name; a new one is of the class that functions make of the parameter."""
    if name not in state:
        state[name] = full_like(parameter, value, memory_format=preserve_format) if value else zeros_like(parameter, memory_format=preserve_format)
    return state[name]


def maximum(first: Tensor, second: Tensor, out: Tensor) -> Any:
    """The larger of each two elements, in the place of `out`: as a program calls it, so that classes are asked."""
    return public_function("maximum")(first, second, out=out)


def decayed(group: dict[str, Any], p: Tensor, g: Tensor, shrink: float) -> Any:
    """The gradient with the decay of the weights, unless that is decoupled: then the parameter is shrunk."""
    decay = float(group["weight_decay"])
    if decay and group["decoupled_weight_decay"]:
        p.mul_(shrink)
        return g
    return g.add(p, alpha=decay) if decay else g


def move_moments(group: dict[str, Any], mean: Tensor, square: Tensor, g: Tensor) -> None:
    """Move the running means of the gradient and of its square."""
    beta1, beta2 = map(float, group["betas"])
    mean.lerp_(g, 1.0 - beta1)
    square.mul_(beta2).addcmul_(g, g, value=1.0 - beta2)
