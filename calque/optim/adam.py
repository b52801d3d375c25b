"""Adam (Kingma & Ba 2015, algorithm 1) and AdamW (Loshchilov & Hutter 2019), in PyTorch's order of operations."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from calque.base.errors import ArgumentError
from calque.optim.optimizer import Optimizer, check_range, gradient, replace, zeros_like


class Adam(Optimizer):
    """m = lerp(m, g, 1 - beta1);  v = beta2 v + (1 - beta2) g^2;  p = p - lr / c1 * m / (sqrt(v) / sqrt(c2) + eps).

    c1 = 1 - beta1^t and c2 = 1 - beta2^t correct the bias towards zero at the start.
    """

    decoupled = False

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0,
        amsgrad: bool = False, *, foreach: bool | None = None, maximize: bool = False, capturable: bool = False, differentiable: bool = False,
        fused: bool | None = None, decoupled_weight_decay: bool = False,
    ) -> None:  # fmt: skip
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad, "maximize": maximize}
        super().__init__(params, {**defaults, "decoupled_weight_decay": decoupled_weight_decay or self.decoupled})

    def check_group(self, group: dict[str, Any]) -> None:
        name = type(self).__name__
        super().check_group(group)
        check_range(name, "epsilon value", group["eps"], 0.0)
        if not isinstance(group["betas"], (tuple, list)) or len(group["betas"]) != 2:
            raise ArgumentError(f"[{name}] expected betas as a pair of numbers in [0, 1), got {group['betas']!r}")
        for k, beta in enumerate(group["betas"]):
            check_range(name, f"beta parameter at index {k}", beta, 0.0, 1.0)

    def update_group(self, group: dict[str, Any]) -> None:
        beta1, beta2 = (float(b) for b in group["betas"])
        lr, eps, decay = float(group["lr"]), float(group["eps"]), float(group["weight_decay"])
        decoupled = group.get("decoupled_weight_decay", self.decoupled)
        for p in group["params"]:
            if p._grad is None:
                continue
            state = self.state[p]
            if not state:
                state["step"] = 0
                state["exp_avg"], state["exp_avg_sq"] = zeros_like(p), zeros_like(p)
                if group["amsgrad"]:
                    state["max_exp_avg_sq"] = zeros_like(p)
            state["step"] = t = int(state["step"]) + 1
            g: Any = gradient(p, group, 0.0 if decoupled else decay)
            value: Any = p * (1.0 - lr * decay) if decoupled and decay else p
            mean, square = state["exp_avg"], state["exp_avg_sq"]
            m: Any = mean + (g - mean) * (1.0 - beta1)
            v: Any = square * beta2 + (g * g) * (1.0 - beta2)
            replace(mean, m)
            replace(square, v)
            if group["amsgrad"]:
                v = v.maximum(state["max_exp_avg_sq"])
                replace(state["max_exp_avg_sq"], v)
            denominator = v.sqrt() / math.sqrt(1.0 - beta2**t) + eps
            replace(p, value - (m / denominator) * (lr / (1.0 - beta1**t)))


class AdamW(Adam):
    """Adam with decoupled weight decay: p is first multiplied by 1 - lr * weight_decay."""

    decoupled = True

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 1e-2, amsgrad: bool = False, **options: Any) -> None:  # fmt: skip
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, **options)
