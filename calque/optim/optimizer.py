"""`Optimizer`: parameter groups, state, and one fused program per step.

`step()` records the whole update and flushes, so forward, backward and update of one iteration run as one program.
"""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

from calque.autograd.modes import enable_grad, no_grad
from calque.base.errors import ArgumentError, StateDictError
from calque.functional.common import is_tensor, prim
from calque.run import recorder
from calque.tensor import Tensor, assign

_hook_ids = count()


def check_range(owner: str, name: str, value: Any, low: float, high: float = math.inf, open_high: bool = True) -> None:
    """Raise unless `value` is a number in [low, high); NaN and infinities are refused."""
    number = value.item() if is_tensor(value) else value
    valid = isinstance(number, (int, float)) and not isinstance(number, bool) and math.isfinite(number)
    if not valid or number < low or (number >= high if open_high else number > high):
        bracket = ")" if open_high else "]"
        raise ArgumentError(f"[{owner}] Invalid {name}: expected a finite number in [{low:g}, {high:g}{bracket}, got {number!r}")


class Optimizer:
    """Base of all optimizers; same interface as `torch.optim.Optimizer`.

    params: tensors, `(name, tensor)` pairs, or dicts with key "params" and options of their own.
    """

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        if is_tensor(params):
            raise TypeError(
                f"[{type(self).__name__}] params argument given to the optimizer should be an iterable of Tensors or dicts, got one Tensor; "
                "put it in a list"
            )
        self.defaults = defaults
        self.state: defaultdict[Any, dict[str, Any]] = defaultdict(dict)
        self.param_groups: list[dict[str, Any]] = []
        self._pre_hooks: OrderedDict[int, Any] = OrderedDict()
        self._post_hooks: OrderedDict[int, Any] = OrderedDict()
        groups = list(params)
        if not groups:
            raise ArgumentError(f"[{type(self).__name__}] optimizer got an empty parameter list; was the iterator consumed already?")
        if not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        for group in groups:
            self.add_param_group(group)

    def add_param_group(self, group: dict[str, Any]) -> None:
        """Add parameters with options of their own."""
        if not isinstance(group, dict):
            raise TypeError(f"[add_param_group] param_group must be a dict, got {type(group).__name__}")
        group = dict(group)
        given = group["params"]
        items = [given] if is_tensor(given) else list(given)
        names = [item[0] for item in items if isinstance(item, tuple)]
        group["params"] = [item[1] if isinstance(item, tuple) else item for item in items]
        if names:
            group["param_names"] = names
        seen = {id(p): name for g in self.param_groups for p, name in zip(g["params"], self._names(g), strict=True)}
        for parameter, name in zip(group["params"], self._names(group), strict=True):
            self._check_parameter(parameter, name, seen)
            seen[id(parameter)] = name
        for key, value in self.defaults.items():
            group.setdefault(key, value)
        self.check_group(group)
        self.param_groups.append(group)

    @staticmethod
    def _names(group: dict[str, Any]) -> list[str]:
        known = group.get("param_names")
        return list(known) if known else [getattr(p, "_name", "") or f"of shape {list(getattr(p, 'shape', ()))}" for p in group["params"]]

    def _check_parameter(self, parameter: Any, name: str, seen: dict[int, str]) -> None:
        owner = type(self).__name__
        if not is_tensor(parameter):
            raise TypeError(f"[{owner}] optimizer can only optimize Tensors, got {type(parameter).__name__}")
        if parameter._grad_fn is not None:
            raise ArgumentError(f"[{owner}] can't optimize a non-leaf Tensor (parameter {name}); pass the leaf it was computed from")
        if id(parameter) in seen:
            raise ArgumentError(f"[{owner}] some parameters appear in more than one parameter group or twice: parameter {name}")

    def check_group(self, group: dict[str, Any]) -> None:
        """Validate a group's options; subclasses add their own."""
        check_range(type(self).__name__, "learning rate", group["lr"], 0.0)
        check_range(type(self).__name__, "weight_decay", group.get("weight_decay", 0.0), 0.0)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients (or fill them with zeros)."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter._grad is not None:
                    if set_to_none:
                        parameter._grad = None
                    else:
                        with no_grad():
                            parameter._grad.zero_()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient. `closure` re-evaluates the model and returns the loss."""
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        for hook in list(self._pre_hooks.values()):
            hook(self, (), {})
        state = recorder.local.state
        before, state.grad = state.grad, False
        try:
            for group in self.param_groups:
                self.update_group(group)
        finally:
            state.grad = before
        for hook in list(self._post_hooks.values()):
            hook(self, (), {})
        recorder.flush("optimizer.step")
        return loss

    def update_group(self, group: dict[str, Any]) -> None:
        """Record the update of one group."""
        raise NotImplementedError

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> Any:
        """Call `hook(optimizer, args, kwargs)` before each step; the result's `remove()` takes it away."""
        return _Handle(self._pre_hooks, hook)

    def register_step_post_hook(self, hook: Callable[..., Any]) -> Any:
        """Call `hook(optimizer, args, kwargs)` after each step."""
        return _Handle(self._post_hooks, hook)

    def state_dict(self) -> dict[str, Any]:
        """{"state": {index: ...}, "param_groups": [...]} with parameters replaced by their indices, as PyTorch."""
        index: dict[int, int] = {}
        groups = []
        for group in self.param_groups:
            for parameter in group["params"]:
                index.setdefault(id(parameter), len(index))
            packed = {k: v for k, v in group.items() if k != "params"}
            packed["params"] = [index[id(p)] for p in group["params"]]
            groups.append(packed)
        state = {index[id(p)]: dict(values) for p, values in self.state.items() if id(p) in index}
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; checks everything before changing anything."""
        groups, saved = self.param_groups, state_dict["param_groups"]
        if len(groups) != len(saved):
            raise StateDictError(
                f"[load_state_dict] loaded state dict has a different number of parameter groups: {len(saved)}, expected {len(groups)}"
            )
        for k, (group, other) in enumerate(zip(groups, saved, strict=True)):
            if len(group["params"]) != len(other["params"]):
                raise StateDictError(
                    f"[load_state_dict] loaded state dict contains a parameter group that doesn't match the size of optimizer's group: "
                    f"group {k} has {len(group['params'])} parameters, the loaded one {len(other['params'])}"
                )
        parameters = {i: p for g, s in zip(groups, saved, strict=True) for i, p in zip(s["params"], g["params"], strict=True)}
        loaded: defaultdict[Any, dict[str, Any]] = defaultdict(dict)
        for key, values in state_dict["state"].items():
            parameter = parameters.get(int(key)) if isinstance(key, (int, str)) else None
            if parameter is None:
                continue
            loaded[parameter] = {name: self._restored(value, parameter, name) for name, value in values.items()}
        for group, other in zip(groups, saved, strict=True):
            group.update({k: tuple(v) if isinstance(group.get(k), tuple) else v for k, v in other.items() if k != "params"})
        self.state = loaded

    @staticmethod
    def _restored(value: Any, parameter: Tensor, name: str) -> Any:
        if name == "step":
            return int(value.item() if is_tensor(value) else value)
        if not is_tensor(value):
            return value
        if value._layout.ndim and tuple(value._layout.shape) != tuple(parameter._layout.shape):
            raise StateDictError(
                f"[load_state_dict] state {name!r} has shape {list(value._layout.shape)}, "
                f"its parameter {list(parameter._layout.shape)}; nothing was loaded"
            )
        return value.detach().clone()

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for i, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {i}")
            lines += [f"    {k}: {group[k]}" for k in sorted(group) if k not in ("params", "param_names")]
        return "\n".join([*lines, ")"])


class _Handle:
    def __init__(self, hooks: OrderedDict[int, Any], hook: Any) -> None:
        self._hooks, self.id = hooks, next(_hook_ids)
        hooks[self.id] = hook

    def remove(self) -> None:
        """Take the hook away."""
        self._hooks.pop(self.id, None)


def gradient(parameter: Tensor, group: dict[str, Any], decay: float = 0.0) -> Tensor:
    """The gradient, negated for `maximize`, plus L2 weight decay."""
    g: Any = parameter._grad
    if group.get("maximize"):
        g = -g
    if decay:
        g = g + parameter * float(decay)
    return g  # type: ignore[no-any-return]


def zeros_like(parameter: Tensor) -> Tensor:
    """A zero state tensor of the parameter's shape and dtype."""
    lay = parameter._layout
    return prim("full", (0.0, lay.dtype), tuple(lay.shape))


def replace(target: Tensor, value: Tensor) -> None:
    """In-place update; the old buffer is donated to the new value."""
    assign(target, value)


__all__ = ["Optimizer", "check_range", "gradient", "replace", "zeros_like"]
