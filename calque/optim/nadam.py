"""NAdam: Adam with Nesterov momentum (Dozat 2016)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from calque.optim.adam import moments
from calque.optim.kept import count_of, number_of
from calque.optim.methods import decayed, move_moments, state_of
from calque.optim.optimizer import Optimizer, check_betas, check_common, check_range, gradient, replace
from calque.tensor import Tensor


class NAdam(Optimizer):
    """Adam whose step also looks at the momentum of the next one, mu_t = beta1 (1 - 0.96^(t momentum_decay) / 2).

    p = p - lr ((1 - mu_t) / (1 - M_t) g + mu_(t+1) / (1 - M_(t+1)) m) / (sqrt(v / c2) + eps), where M_t is the product of all mu so far.

    params: tensors, `(name, tensor)` pairs or groups. lr: 0 or more. betas: shares of the old averages, each in [0, 1). eps: keeps the quotient
    finite. weight_decay: L2 penalty, or with `decoupled_weight_decay` a shrinking of the parameter as for `AdamW`. momentum_decay: 0 or more.
    `maximize` goes uphill. `foreach`, `capturable` and `differentiable` as for `SGD`.

    >>> import calque
    >>> w = calque.tensor([1.0, -2.0], requires_grad=True)
    >>> optimizer = calque.optim.NAdam([w], lr=0.1)
    >>> (w * w).sum().backward()
    >>> optimizer.step()
    >>> bool((w.abs() < calque.tensor([1.0, 2.0])).all())
    True
    """

    state_like_parameter = ("exp_avg", "exp_avg_sq")
    state_needed = ("step", "mu_product", "exp_avg", "exp_avg_sq")
    on_host = ("step", "mu_product")
    replays = True

    def __init__(
        self, params: Iterable[Any], lr: float = 2e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0,
        momentum_decay: float = 4e-3, decoupled_weight_decay: bool = False, *, foreach: bool | None = None, maximize: bool = False,
        capturable: bool = False, differentiable: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "momentum_decay": momentum_decay,
            "decoupled_weight_decay": decoupled_weight_decay, "maximize": maximize, "foreach": foreach, "capturable": capturable,
            "differentiable": differentiable,
        })  # fmt: skip

    def check_group(self, group: dict[str, Any]) -> None:
        check_common("NAdam", group)
        check_range("NAdam", "epsilon value", group["eps"], 0.0)
        check_betas("NAdam", group)
        check_range("NAdam", "momentum_decay value", group["momentum_decay"], 0.0)

    def step_numbers(self, group: dict[str, Any], parameters: list[Any]) -> list[float]:
        """Count a step of each parameter; what it shrinks by, 1 / sqrt(c2), and the factors of its gradient and of its momentum."""
        beta1, beta2 = map(float, group["betas"])
        lr, slower = float(group["lr"]), float(group["momentum_decay"])
        shrink = 1.0 - lr * float(group["weight_decay"])
        found: list[float] = []
        for p in parameters:
            t, state = self.count_step(p), self.state[p]
            mu, following = (beta1 * (1.0 - 0.5 * 0.96 ** (k * slower)) for k in (t, t + 1))
            state["mu_product"] = product = float(np.float32(number_of(state, "mu_product", 1.0)) * np.float32(mu))  # PyTorch keeps it in float32
            found += (shrink, 1.0 / math.sqrt(1.0 - beta2**t), lr * (1.0 - mu) / (1.0 - product), lr * following / (1.0 - product * following))
        return found

    def update_group(self, group: dict[str, Any]) -> None:
        (beta1, beta2), eps, decay = map(float, group["betas"]), float(group["eps"]), float(group["weight_decay"])
        decoupled = group["decoupled_weight_decay"]
        parameters = [p for p in group["params"] if p._grad is not None]
        found = iter(self.changing(group, parameters))
        for p in parameters:
            state = self.state[p]
            shrink, inverse, fresh, carried = next(found), next(found), next(found), next(found)
            g: Any = gradient(p, group, 0.0 if decoupled else decay)
            value: Any = p * shrink if decoupled and decay else p
            m, v = moments(state, p, g, beta1, beta2)
            replace(p, value - (g * fresh + m * carried) / (v.sqrt() * inverse + eps))

    def update_by_methods(self, group: dict[str, Any], p: Tensor, g: Tensor) -> None:
        """`update_group` in PyTorch's calls; see `optim.methods`."""
        state = self.state[p]
        shrink, _, fresh, carried = self.step_numbers(group, [p])
        mean, square = state_of(state, "exp_avg", p), state_of(state, "exp_avg_sq", p)
        g = decayed(group, p, g, shrink)
        move_moments(group, mean, square, g)
        spread = square.div(1.0 - float(group["betas"][1]) ** count_of(state)).sqrt().add_(float(group["eps"]))
        p.addcdiv_(g, spread, value=-fresh)
        p.addcdiv_(mean, spread, value=-carried)
