"""Rates of each parameter relative to its norm, for large batches: LARS (You et al. 2017) and LAMB (You et al. 2020)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from calque import functional as T
from calque.optim.adam import moments
from calque.optim.optimizer import Optimizer, check_betas, check_common, check_range, gradient, replace, root, slot
from calque.tensor import Tensor


def _trust(parameter: Tensor, update: Tensor, ratio: Tensor) -> Any:
    """The ratio, or 1 where the parameter or the update is all zeros."""
    return T.where((parameter > 0) & (update > 0), ratio, 1.0)


class LARS(Optimizer):
    """SGD whose gradient is scaled per parameter: g = (g + weight_decay p) * trust_coefficient |p| / (|g| + weight_decay |p| + eps).

    A parameter or gradient of zeros alone is not scaled. PyTorch has no such optimizer.

    params: tensors, `(name, tensor)` pairs or groups. lr: 0 or more. momentum, dampening 0 and `nesterov` as for `SGD`. weight_decay: L2 penalty.
    trust_coefficient: largest relative change of a parameter at lr = 1. eps: keeps the ratio finite. `maximize` goes uphill.

    >>> import calque
    >>> w = calque.tensor([3.0, 4.0], requires_grad=True)
    >>> optimizer = calque.optim.LARS([w], lr=1.0, trust_coefficient=0.5)
    >>> (w * w).sum().backward()
    >>> optimizer.step()
    >>> w.tolist()
    [1.5, 2.0]
    """

    by_element = False
    state_like_parameter = ("momentum_buffer",)
    replays = True

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, momentum: float = 0.9, weight_decay: float = 0, trust_coefficient: float = 1e-3,
        eps: float = 1e-8, nesterov: bool = False, *, maximize: bool = False, differentiable: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, {
            "lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust_coefficient": trust_coefficient, "eps": eps,
            "nesterov": nesterov, "maximize": maximize, "differentiable": differentiable,
        })  # fmt: skip

    def check_group(self, group: dict[str, Any]) -> None:
        check_common("LARS", group)
        for name, key in (("momentum value", "momentum"), ("trust coefficient", "trust_coefficient"), ("epsilon value", "eps")):
            check_range("LARS", name, group[key], 0.0)

    def step_numbers(self, group: dict[str, Any], parameters: list[Any]) -> list[float]:
        """The rate."""
        return [float(group["lr"])]

    def update_group(self, group: dict[str, Any]) -> None:
        momentum, decay, trust, eps = (float(group[k]) for k in ("momentum", "weight_decay", "trust_coefficient", "eps"))
        parameters = [p for p in group["params"] if p._grad is not None]
        (lr,) = self.changing(group, parameters)
        for p in parameters:
            g: Any = gradient(p, group)
            size, slope = p.norm(2), g.norm(2)
            g = (g + p * decay) * _trust(size, slope, trust * size / (slope + decay * size + eps))
            if momentum:
                buffer: Any = slot(self.state[p], "momentum_buffer", p)
                moved = buffer * momentum + g
                replace(buffer, moved)
                g = g + moved * momentum if group["nesterov"] else moved
            replace(p, p - g * lr)


class LAMB(Optimizer):
    """Adam whose update (with decoupled decay) is scaled per parameter to the norm of the parameter: p = p - lr |p| / |u| u.

    u = (m / c1) / (sqrt(v / c2) + eps) + weight_decay p. A parameter or update of zeros alone is not scaled. PyTorch has no such optimizer.

    params: tensors, `(name, tensor)` pairs or groups. lr: 0 or more. betas: shares of the old averages, each in [0, 1). eps: keeps the quotient
    finite. weight_decay: 0 or more. `maximize` goes uphill.

    >>> import calque
    >>> w = calque.tensor([3.0, 4.0], requires_grad=True)
    >>> optimizer = calque.optim.LAMB([w], lr=0.1)
    >>> w.sum().backward()
    >>> optimizer.step()  # the norm of w is 5, that of the update sqrt(2)
    >>> [round(value, 3) for value in w.tolist()]
    [2.646, 3.646]
    """

    by_element = False
    state_like_parameter = ("exp_avg", "exp_avg_sq")
    state_needed = ("step", "exp_avg", "exp_avg_sq")
    on_host = ("step",)
    replays = True

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-6, weight_decay: float = 0, *,
        maximize: bool = False, differentiable: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "maximize": maximize, "differentiable": differentiable,
        })  # fmt: skip

    def check_group(self, group: dict[str, Any]) -> None:
        check_common("LAMB", group)
        check_range("LAMB", "epsilon value", group["eps"], 0.0)
        check_betas("LAMB", group)

    def step_numbers(self, group: dict[str, Any], parameters: list[Any]) -> list[float]:
        """Count a step of each parameter; the rate; per parameter: 1 / c1 and 1 / sqrt(c2)."""
        beta1, beta2 = map(float, group["betas"])
        found = [float(group["lr"])]
        for p in parameters:
            t = self.count_step(p)
            found += (1.0 / (1.0 - beta1**t), 1.0 / root(1.0 - beta2**t))
        return found

    def update_group(self, group: dict[str, Any]) -> None:
        (beta1, beta2), eps, decay = map(float, group["betas"]), float(group["eps"]), float(group["weight_decay"])
        parameters = [p for p in group["params"] if p._grad is not None]
        lr, *numbers = self.changing(group, parameters)
        found = iter(numbers)
        for p in parameters:
            first, second = next(found), next(found)
            state = self.state[p]
            g: Any = gradient(p, group)
            m, v = moments(state, p, g, beta1, beta2)
            update = (m * first) / (v.sqrt() * second + eps) + p * decay
            size, length = p.norm(2), update.norm(2)
            replace(p, p - update * (_trust(size, length, size / length) * lr))
