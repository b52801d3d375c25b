"""RMSprop (Hinton, lecture 6e of "Neural Networks for Machine Learning", 2012) and Adagrad (Duchi et al. 2011)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from calque.base.errors import ArgumentError
from calque.optim.kept import count_of
from calque.optim.methods import has_methods, state_of
from calque.optim.optimizer import Optimizer, check_common, check_range, cycles, gradient, replace, slot
from calque.tensor import Tensor


class RMSprop(Optimizer):
    """v = alpha v + (1 - alpha) g^2;  p = p - lr * g / (sqrt(v) + eps), optionally centered (Graves 2013) and with momentum."""

    state_like_parameter = ("square_avg", "momentum_buffer", "grad_avg")
    state_needed = ("step", "square_avg")
    on_host = ("step",)
    replays = True

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-2, alpha: float = 0.99, eps: float = 1e-8, weight_decay: float = 0, momentum: float = 0,
        centered: bool = False, capturable: bool = False, foreach: bool | None = None, maximize: bool = False, differentiable: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, {
            "lr": lr, "momentum": momentum, "alpha": alpha, "eps": eps, "centered": centered, "weight_decay": weight_decay,
            "capturable": capturable, "foreach": foreach, "maximize": maximize, "differentiable": differentiable,
        })  # fmt: skip

    def check_group(self, group: dict[str, Any]) -> None:
        check_common("RMSprop", group)
        check_range("RMSprop", "epsilon value", group["eps"], 0.0)
        check_range("RMSprop", "momentum value", group["momentum"], 0.0)
        check_range("RMSprop", "alpha value", group["alpha"], 0.0)

    def step_numbers(self, group: dict[str, Any], parameters: list[Any]) -> list[float]:
        """Count a step of each parameter; the rate, and a momentum that a schedule moves."""
        for p in parameters:
            state = self.state[p]
            state["step"] = count_of(state) + 1
        return [float(group["lr"]), *([float(group["momentum"])] if cycles(group) else [])]

    def update_group(self, group: dict[str, Any]) -> None:
        alpha, eps, momentum = (float(group[k]) for k in ("alpha", "eps", "momentum"))
        decay = float(group["weight_decay"])
        parameters = [p for p in group["params"] if p._grad is not None]
        lr, *moved = self.changing(group, parameters)
        momentum = moved[0] if moved else momentum
        moves = bool(momentum)
        for p in parameters:
            state = self.state[p]
            g: Any = gradient(p, group, decay)
            square: Any = slot(state, "square_avg", p)
            v = square * alpha + (g * g) * (1.0 - alpha)
            replace(square, v)
            spread = v
            if moves:
                buffer: Any = slot(state, "momentum_buffer", p)
            if group["centered"]:
                mean: Any = slot(state, "grad_avg", p)
                average = mean + (g - mean) * (1.0 - alpha)
                replace(mean, average)
                spread = v - average * average
            update = g / (spread.sqrt() + eps)
            if moves:
                update = buffer * momentum + update
                replace(buffer, update)
            replace(p, p - update * lr)

    def update_by_methods(self, group: dict[str, Any], p: Tensor, g: Tensor) -> None:
        """`update_group` in PyTorch's calls; see `optim.methods`."""
        lr, alpha, eps, momentum, decay = (float(group[k]) for k in ("lr", "alpha", "eps", "momentum", "weight_decay"))
        state = self.state[p]
        self.count_step(p)
        square = state_of(state, "square_avg", p)
        buffer = state_of(state, "momentum_buffer", p) if momentum else None
        mean = state_of(state, "grad_avg", p) if group["centered"] else None
        if decay:
            g = g.add(p, alpha=decay)
        square.mul_(alpha).addcmul_(g, g, value=1.0 - alpha)
        if mean is not None:
            mean.lerp_(g, 1.0 - alpha)
            spread = square.addcmul(mean, mean, value=-1).sqrt_().add_(eps)
        else:
            spread = square.sqrt().add_(eps)
        if buffer is not None:
            buffer.mul_(momentum).addcdiv_(g, spread)
            p.add_(buffer, alpha=-lr)
        else:
            p.addcdiv_(g, spread, value=-lr)


class Adagrad(Optimizer):
    """s = s + g^2;  p = p - lr / (1 + (t - 1) lr_decay) * g / (sqrt(s) + eps)."""

    state_like_parameter = ("sum",)
    state_needed = ("step", "sum")
    on_host = ("step",)
    replays = True

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-2, lr_decay: float = 0, weight_decay: float = 0, initial_accumulator_value: float = 0,
        eps: float = 1e-10, foreach: bool | None = None, *, maximize: bool = False, differentiable: bool = False, fused: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__(params, {
            "lr": lr, "lr_decay": lr_decay, "eps": eps, "weight_decay": weight_decay, "initial_accumulator_value": initial_accumulator_value,
            "foreach": foreach, "maximize": maximize, "differentiable": differentiable, "fused": fused,
        })  # fmt: skip
        for group in self.param_groups:
            for p in group["params"]:
                self._state_of(p, group)

    def _state_of(self, p: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        state = self.state[p]
        state.setdefault("step", 0)
        (state_of if has_methods(p.__class__) else slot)(state, "sum", p, float(group["initial_accumulator_value"]))
        return state

    def check_group(self, group: dict[str, Any]) -> None:
        check_common("Adagrad", group)
        for key in ("lr_decay", "initial_accumulator_value"):
            check_range("Adagrad", f"{key} value", group[key], 0.0)
        check_range("Adagrad", "epsilon value", group["eps"], 0.0)

    def step_numbers(self, group: dict[str, Any], parameters: list[Any]) -> list[float]:
        """Count a step of each parameter; its rate."""
        lr, decay = float(group["lr"]), float(group["lr_decay"])
        found: list[float] = []
        for p in parameters:
            state = self._state_of(p, group)
            state["step"] = t = count_of(state) + 1
            found.append(lr / (1.0 + (t - 1) * decay))
        return found

    def update_rows(self, group: dict[str, Any], parameter: Tensor, rows: Any, values: Tensor) -> None:
        """One step of what a sparse gradient names; the rest of the parameter and of its sums stays."""
        if group["weight_decay"]:
            raise ArgumentError("[Adagrad] weight_decay option is not compatible with sparse gradients: expected 0; use sparse=False")
        state = self._state_of(parameter, group)
        (rate,) = self.step_numbers(group, [parameter])
        total = rows.of(state["sum"]) + values * values
        rows.put(state["sum"], total)
        rows.put(parameter, rows.of(parameter) - values / (total.sqrt() + float(group["eps"])) * rate)

    def update_group(self, group: dict[str, Any]) -> None:
        eps, decay = float(group["eps"]), float(group["weight_decay"])
        parameters = [p for p in group["params"] if p._grad is not None]
        for p, rate in zip(parameters, self.changing(group, parameters), strict=True):
            state = self.state[p]
            g: Any = gradient(p, group, decay)
            total = state["sum"] + g * g
            replace(state["sum"], total)
            replace(p, p - (g / (total.sqrt() + eps)) * rate)

    def update_by_methods(self, group: dict[str, Any], p: Tensor, g: Tensor) -> None:
        """`update_group` in PyTorch's calls; see `optim.methods`."""
        if group["weight_decay"]:
            g = g.add(p, alpha=float(group["weight_decay"]))
        (rate,) = self.step_numbers(group, [p])
        total = self.state[p]["sum"]
        total.addcmul_(g, g, value=1)
        p.addcdiv_(g, total.sqrt().add_(float(group["eps"])), value=-rate)
