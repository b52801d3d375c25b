"""Adamax: Adam with the infinity norm (Kingma & Ba 2015, section 7.1)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from calque.optim.methods import maximum, state_of
from calque.optim.optimizer import Optimizer, check_betas, check_common, check_range, gradient, replace, slot
from calque.tensor import Tensor


class Adamax(Optimizer):
    """m = lerp(m, g, 1 - beta1);  u = max(beta2 u, |g| + eps);  p = p - lr / (1 - beta1^t) * m / u.

    params: tensors, `(name, tensor)` pairs or groups. lr: 0 or more. betas: shares of the old averages, each in [0, 1). eps: keeps u away from 0.
    weight_decay: L2 penalty. `maximize` goes uphill. `foreach`, `capturable` and `differentiable` as for `SGD`.

    >>> import calque
    >>> w = calque.tensor([1.0, -2.0], requires_grad=True)
    >>> optimizer = calque.optim.Adamax([w], lr=0.5)
    >>> (w * w).sum().backward()
    >>> optimizer.step()
    >>> w.tolist()
    [0.5, -1.5]
    """

    state_like_parameter = ("exp_avg", "exp_inf")
    state_needed = ("step", "exp_avg", "exp_inf")
    on_host = ("step",)
    replays = True

    def __init__(
        self, params: Iterable[Any], lr: float = 2e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0,
        foreach: bool | None = None, *, maximize: bool = False, differentiable: bool = False, capturable: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "foreach": foreach, "maximize": maximize,
            "differentiable": differentiable, "capturable": capturable,
        })  # fmt: skip

    def check_group(self, group: dict[str, Any]) -> None:
        check_common("Adamax", group)
        check_range("Adamax", "epsilon value", group["eps"], 0.0)
        check_betas("Adamax", group)

    def step_numbers(self, group: dict[str, Any], parameters: list[Any]) -> list[float]:
        """Count a step of each parameter; its rate."""
        lr, beta1 = float(group["lr"]), float(group["betas"][0])
        return [lr / (1.0 - beta1 ** self.count_step(p)) for p in parameters]

    def update_group(self, group: dict[str, Any]) -> None:
        (beta1, beta2), eps, decay = map(float, group["betas"]), float(group["eps"]), float(group["weight_decay"])
        parameters = [p for p in group["params"] if p._grad is not None]
        for p, rate in zip(parameters, self.changing(group, parameters), strict=True):
            state = self.state[p]
            g: Any = gradient(p, group, decay)
            mean: Any = slot(state, "exp_avg", p)
            largest: Any = slot(state, "exp_inf", p)
            m = mean + (g - mean) * (1.0 - beta1)
            u = (largest * beta2).maximum(g.abs() + eps)
            replace(mean, m)
            replace(largest, u)
            replace(p, p - (m / u) * rate)

    def update_by_methods(self, group: dict[str, Any], p: Tensor, g: Tensor) -> None:
        """`update_group` in PyTorch's calls; see `optim.methods`."""
        lr, eps, decay = (float(group[k]) for k in ("lr", "eps", "weight_decay"))
        beta1, beta2 = map(float, group["betas"])
        state, t = self.state[p], self.count_step(p)
        if decay:
            g = g.add(p, alpha=decay)
        mean, largest = state_of(state, "exp_avg", p), state_of(state, "exp_inf", p)
        mean.lerp_(g, 1.0 - beta1)
        maximum(largest.mul_(beta2), g.abs().add_(eps), out=largest)
        p.addcdiv_(mean, largest, value=-lr / (1.0 - beta1**t))
