"""Adadelta (Zeiler 2012, algorithm 1)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from calque.optim.methods import state_of
from calque.optim.optimizer import Optimizer, check_common, check_range, gradient, replace, slot
from calque.tensor import Tensor


class Adadelta(Optimizer):
    """v = rho v + (1 - rho) g^2;  d = g sqrt(u + eps) / sqrt(v + eps);  u = rho u + (1 - rho) d^2;  p = p - lr d.

    params: tensors, `(name, tensor)` pairs or groups. lr: factor of the update, 0 or more. rho: share of the old averages, 0 to 1. eps: keeps the
    roots away from 0. weight_decay: L2 penalty. `maximize` goes uphill. `foreach`, `capturable` and `differentiable` as for `SGD`.

    >>> import calque
    >>> w = calque.tensor([1.0, -2.0], requires_grad=True)
    >>> optimizer = calque.optim.Adadelta([w])
    >>> (w * w).sum().backward()
    >>> optimizer.step()
    >>> bool((w.abs() < calque.tensor([1.0, 2.0])).all())
    True
    """

    state_like_parameter = ("square_avg", "acc_delta")
    state_needed = ("step", "square_avg", "acc_delta")
    on_host = ("step",)
    replays = True

    def __init__(
        self, params: Iterable[Any], lr: float = 1.0, rho: float = 0.9, eps: float = 1e-6, weight_decay: float = 0, foreach: bool | None = None,
        *, capturable: bool = False, maximize: bool = False, differentiable: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, {
            "lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay, "maximize": maximize, "capturable": capturable, "foreach": foreach,
            "differentiable": differentiable,
        })  # fmt: skip

    def check_group(self, group: dict[str, Any]) -> None:
        check_common("Adadelta", group)
        check_range("Adadelta", "rho value", group["rho"], 0.0, 1.0 + 2.0**-52)
        check_range("Adadelta", "epsilon value", group["eps"], 0.0)

    def step_numbers(self, group: dict[str, Any], parameters: list[Any]) -> list[float]:
        """Count a step of each parameter; the rate."""
        for p in parameters:
            self.count_step(p)
        return [float(group["lr"])]

    def update_group(self, group: dict[str, Any]) -> None:
        rho, eps, decay = (float(group[k]) for k in ("rho", "eps", "weight_decay"))
        parameters = [p for p in group["params"] if p._grad is not None]
        (lr,) = self.changing(group, parameters)
        for p in parameters:
            state = self.state[p]
            g: Any = gradient(p, group, decay)
            square: Any = slot(state, "square_avg", p)
            moved: Any = slot(state, "acc_delta", p)
            v = square * rho + (g * g) * (1.0 - rho)
            delta = (moved + eps).sqrt() / (v + eps).sqrt() * g
            replace(square, v)
            replace(moved, moved * rho + (delta * delta) * (1.0 - rho))
            replace(p, p - delta * lr)

    def update_by_methods(self, group: dict[str, Any], p: Tensor, g: Tensor) -> None:
        """`update_group` in PyTorch's calls; see `optim.methods`."""
        lr, rho, eps, decay = (float(group[k]) for k in ("lr", "rho", "eps", "weight_decay"))
        state = self.state[p]
        self.count_step(p)
        if decay:
            g = g.add(p, alpha=decay)
        square, moved = state_of(state, "square_avg", p), state_of(state, "acc_delta", p)
        square.mul_(rho).addcmul_(g, g, value=1.0 - rho)
        spread = square.add(eps).sqrt_()
        delta = moved.add(eps).sqrt_()
        delta.div_(spread).mul_(g)
        moved.mul_(rho).addcmul_(delta, delta, value=1.0 - rho)
        p.add_(delta, alpha=-lr)
