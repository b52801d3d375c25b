"""RMSprop (Hinton, lecture 6e of "Neural Networks for Machine Learning", 2012) and Adagrad (Duchi et al. 2011)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from calque.functional.common import prim
from calque.optim.optimizer import Optimizer, check_range, gradient, replace, zeros_like


class RMSprop(Optimizer):
    """v = alpha v + (1 - alpha) g^2;  p = p - lr * g / (sqrt(v) + eps), optionally centered and with momentum."""

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-2, alpha: float = 0.99, eps: float = 1e-8, weight_decay: float = 0, momentum: float = 0,
        centered: bool = False, capturable: bool = False, foreach: bool | None = None, maximize: bool = False, differentiable: bool = False,
    ) -> None:  # fmt: skip
        options = {"lr": lr, "alpha": alpha, "eps": eps, "weight_decay": weight_decay, "momentum": momentum, "centered": centered}
        super().__init__(params, {**options, "maximize": maximize})

    def check_group(self, group: dict[str, Any]) -> None:
        super().check_group(group)
        check_range("RMSprop", "epsilon value", group["eps"], 0.0)
        check_range("RMSprop", "momentum value", group["momentum"], 0.0)
        check_range("RMSprop", "alpha value", group["alpha"], 0.0)

    def update_group(self, group: dict[str, Any]) -> None:
        lr, alpha, eps, momentum = (float(group[k]) for k in ("lr", "alpha", "eps", "momentum"))
        for p in group["params"]:
            if p._grad is None:
                continue
            state = self.state[p]
            if not state:
                state["step"], state["square_avg"] = 0, zeros_like(p)
                if momentum:
                    state["momentum_buffer"] = zeros_like(p)
                if group["centered"]:
                    state["grad_avg"] = zeros_like(p)
            state["step"] = int(state["step"]) + 1
            g: Any = gradient(p, group, group["weight_decay"])
            v = state["square_avg"] * alpha + (g * g) * (1.0 - alpha)
            replace(state["square_avg"], v)
            spread = v
            if group["centered"]:
                average = state["grad_avg"] + (g - state["grad_avg"]) * (1.0 - alpha)
                replace(state["grad_avg"], average)
                spread = v - average * average
            update = g / (spread.sqrt() + eps)
            if momentum:
                update = state["momentum_buffer"] * momentum + update
                replace(state["momentum_buffer"], update)
            replace(p, p - update * lr)


class Adagrad(Optimizer):
    """s = s + g^2;  p = p - lr / (1 + (t - 1) lr_decay) * g / (sqrt(s) + eps)."""

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-2, lr_decay: float = 0, weight_decay: float = 0, initial_accumulator_value: float = 0,
        eps: float = 1e-10, foreach: bool | None = None, *, maximize: bool = False, differentiable: bool = False, fused: bool | None = None,
    ) -> None:  # fmt: skip
        options = {"lr": lr, "lr_decay": lr_decay, "eps": eps, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, {**options, "initial_accumulator_value": initial_accumulator_value})

    def check_group(self, group: dict[str, Any]) -> None:
        super().check_group(group)
        for key in ("lr_decay", "initial_accumulator_value", "eps"):
            check_range("Adagrad", key, group[key], 0.0)

    def update_group(self, group: dict[str, Any]) -> None:
        lr, eps = float(group["lr"]), float(group["eps"])
        for p in group["params"]:
            if p._grad is None:
                continue
            state = self.state[p]
            if not state:
                start = float(group["initial_accumulator_value"])
                state["step"], state["sum"] = 0, prim("full", (start, p._layout.dtype), tuple(p._layout.shape))
            state["step"] = t = int(state["step"]) + 1
            g: Any = gradient(p, group, group["weight_decay"])
            total = state["sum"] + g * g
            replace(state["sum"], total)
            rate = lr / (1.0 + (t - 1) * float(group["lr_decay"]))
            replace(p, p - (g / (total.sqrt() + eps)) * rate)
