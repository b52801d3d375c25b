"""Averaged SGD (Polyak & Juditsky 1992), with the rate of Bottou's "Stochastic gradient tricks" (2012)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from calque.optim.kept import number_of
from calque.optim.methods import state_of
from calque.optim.optimizer import Optimizer, check_common, check_range, gradient, replace, slot
from calque.tensor import Tensor


class ASGD(Optimizer):
    """p = p (1 - lambd eta) - eta g with eta = lr / (1 + lambd lr t)^alpha; `state[p]["ax"]` is the mean of p since step t0.

    params: tensors, `(name, tensor)` pairs or groups. lr: 0 or more. lambd: decay of the parameter. alpha: power of the rate's decay. t0: step at
    which averaging starts. weight_decay: L2 penalty. `maximize` goes uphill. `foreach`, `capturable` and `differentiable` as for `SGD`.

    >>> import calque
    >>> w = calque.tensor([1.0, -2.0], requires_grad=True)
    >>> optimizer = calque.optim.ASGD([w], lr=0.25, lambd=0.0, t0=0)
    >>> for _ in range(2):
    ...     optimizer.zero_grad()
    ...     (w * w).sum().backward()
    ...     optimizer.step()
    >>> w.tolist(), optimizer.state[w]["ax"].tolist()
    ([0.25, -0.5], [0.25, -0.5])
    """

    state_like_parameter = ("ax",)
    state_needed = ("step", "eta", "mu", "ax")
    on_host = ("step", "eta", "mu")
    replays = True

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-2, lambd: float = 1e-4, alpha: float = 0.75, t0: float = 1e6, weight_decay: float = 0,
        foreach: bool | None = None, maximize: bool = False, differentiable: bool = False, capturable: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, {
            "lr": lr, "lambd": lambd, "alpha": alpha, "t0": t0, "weight_decay": weight_decay, "foreach": foreach, "maximize": maximize,
            "differentiable": differentiable, "capturable": capturable,
        })  # fmt: skip

    def check_group(self, group: dict[str, Any]) -> None:
        check_common("ASGD", group)
        for key in ("lambd", "alpha", "t0"):
            check_range("ASGD", f"{key} value", group[key], float("-inf"))

    def step_numbers(self, group: dict[str, Any], parameters: list[Any]) -> list[float]:
        """Count a step of each parameter; its rate, what it shrinks by, and the shares of the old mean and of the parameter in the new mean."""
        lr, lambd, alpha, start = (float(group[k]) for k in ("lr", "lambd", "alpha", "t0"))
        found: list[float] = []
        for p in parameters:
            t, state = self.count_step(p), self.state[p]
            eta, mu = number_of(state, "eta", float(np.float32(lr))), number_of(state, "mu", 1.0)
            found += (eta, 1.0 - lambd * eta, 1.0 - mu, mu)
            state["eta"] = float(np.float32(lr / (1.0 + lambd * lr * t) ** alpha))  # PyTorch keeps both in float32
            state["mu"] = float(np.float32(1.0 / max(1.0, t - start)))
        return found

    def update_group(self, group: dict[str, Any]) -> None:
        decay = float(group["weight_decay"])
        parameters = [p for p in group["params"] if p._grad is not None]
        found = iter(self.changing(group, parameters))
        for p in parameters:
            eta, shrink, old, new = next(found), next(found), next(found), next(found)
            g: Any = gradient(p, group, decay)
            mean: Any = slot(self.state[p], "ax", p)
            value = p * shrink - g * eta
            replace(mean, mean * old + value * new)
            replace(p, value)

    def update_by_methods(self, group: dict[str, Any], p: Tensor, g: Tensor) -> None:
        """`update_group` in PyTorch's calls; see `optim.methods`."""
        decay, mean = float(group["weight_decay"]), state_of(self.state[p], "ax", p)
        eta, shrink, _, share = self.step_numbers(group, [p])
        if decay:
            g = g.add(p, alpha=decay)
        p.mul_(shrink)
        p.add_(g, alpha=-eta)
        if share != 1:
            mean.add_(p.sub(mean).mul_(share))
        else:
            mean.copy_(p)
