"""RAdam: Adam with the variance of its rate rectified (Liu et al. 2020, algorithm 2)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from calque.optim.adam import moments
from calque.optim.methods import decayed, move_moments, state_of
from calque.optim.optimizer import Optimizer, check_betas, check_common, check_range, gradient, replace
from calque.tensor import Tensor


class RAdam(Optimizer):
    """Adam that divides by sqrt(v) only once enough gradients were seen (rho_t > 5), and then with a smaller rate at first.

    params: tensors, `(name, tensor)` pairs or groups. lr: 0 or more. betas: shares of the old averages, each in [0, 1). eps: keeps the quotient
    finite. weight_decay: L2 penalty, or with `decoupled_weight_decay` a shrinking of the parameter as for `AdamW`. `maximize` goes uphill. `foreach`,
    `capturable` and `differentiable` as for `SGD`.

    >>> import calque
    >>> w = calque.tensor([1.0, -2.0], requires_grad=True)
    >>> optimizer = calque.optim.RAdam([w], lr=0.25)
    >>> (w * w).sum().backward()
    >>> optimizer.step()  # the first steps follow the average gradient itself
    >>> w.tolist()
    [0.5, -1.0]
    """

    state_like_parameter = ("exp_avg", "exp_avg_sq")
    state_needed = ("step", "exp_avg", "exp_avg_sq")
    on_host = ("step",)
    replays = True

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0,
        decoupled_weight_decay: bool = False, *, foreach: bool | None = None, maximize: bool = False, capturable: bool = False,
        differentiable: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "maximize": maximize, "foreach": foreach,
            "capturable": capturable, "decoupled_weight_decay": decoupled_weight_decay, "differentiable": differentiable,
        })  # fmt: skip

    def check_group(self, group: dict[str, Any]) -> None:
        check_common("RAdam", group)
        check_range("RAdam", "epsilon value", group["eps"], 0.0)
        check_betas("RAdam", group)

    def step_numbers(self, group: dict[str, Any], parameters: list[Any]) -> list[float]:
        """Count a step of each parameter; what it shrinks by, its rate, and factor and summand of the root it is divided by.

        A step that does not divide yet has the factor 0 and the summand 1, so that both kinds are the same program.
        """
        beta1, beta2 = map(float, group["betas"])
        lr, eps = float(group["lr"]), float(group["eps"])
        shrink, longest = 1.0 - lr * float(group["weight_decay"]), 2.0 / (1.0 - beta2) - 1.0
        found: list[float] = []
        for p in parameters:
            t = self.count_step(p)
            rate, correction = lr / (1.0 - beta1**t), 1.0 - beta2**t
            length = longest - 2.0 * t * beta2**t / correction
            if length > 5.0:
                rectified = (length - 4.0) * (length - 2.0) * longest / ((longest - 4.0) * (longest - 2.0) * length)
                found += (shrink, rate * math.sqrt(correction * rectified), 1.0, eps)
            else:
                found += (shrink, rate, 0.0, 1.0)
        return found

    def update_group(self, group: dict[str, Any]) -> None:
        (beta1, beta2), decay = map(float, group["betas"]), float(group["weight_decay"])
        decoupled = group["decoupled_weight_decay"]
        parameters = [p for p in group["params"] if p._grad is not None]
        found = iter(self.changing(group, parameters))
        for p in parameters:
            state = self.state[p]
            shrink, rate, factor, summand = next(found), next(found), next(found), next(found)
            g: Any = gradient(p, group, 0.0 if decoupled else decay)
            value: Any = p * shrink if decoupled and decay else p
            m, v = moments(state, p, g, beta1, beta2)
            replace(p, value - m * rate / (v.sqrt() * factor + summand))

    def update_by_methods(self, group: dict[str, Any], p: Tensor, g: Tensor) -> None:
        """`update_group` in PyTorch's calls; see `optim.methods`."""
        shrink, rate, divides, eps = self.step_numbers(group, [p])
        state = self.state[p]
        mean, square = state_of(state, "exp_avg", p), state_of(state, "exp_avg_sq", p)
        g = decayed(group, p, g, shrink)
        move_moments(group, mean, square, g)
        p.add_(mean * (rate / square.sqrt().add_(eps)) if divides else mean * rate, alpha=-1.0)
