"""Stochastic gradient descent with momentum (Sutskever et al. 2013), as PyTorch defines it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from calque.base.errors import ArgumentError
from calque.optim.optimizer import Optimizer, check_range, gradient, replace


class SGD(Optimizer):
    """v = momentum * v + (1 - dampening) * g;  p = p - lr * v   (nesterov: p = p - lr * (g + momentum * v)).

    >>> import calque
    >>> w = calque.ones(2, requires_grad=True)
    >>> optimizer = calque.optim.SGD([w], lr=0.5)
    >>> (w * w).sum().backward(); optimizer.step(); w.tolist()
    [0.0, 0.0]
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, momentum: float = 0, dampening: float = 0, weight_decay: float = 0, nesterov: bool = False,
        *, maximize: bool = False, foreach: bool | None = None, differentiable: bool = False, fused: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            params,
            {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay, "nesterov": nesterov, "maximize": maximize},
        )

    def check_group(self, group: dict[str, Any]) -> None:
        super().check_group(group)
        check_range("SGD", "momentum", group["momentum"], 0.0)
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise ArgumentError(
                f"[SGD] Nesterov momentum requires a momentum and zero dampening, got momentum={group['momentum']}, dampening={group['dampening']}"
            )

    def update_group(self, group: dict[str, Any]) -> None:
        lr, momentum = float(group["lr"]), float(group["momentum"])
        for p in group["params"]:
            if p._grad is None:
                continue
            g: Any = gradient(p, group, group["weight_decay"])
            if momentum:
                state = self.state[p]
                buffer = state.get("momentum_buffer")
                if buffer is None:
                    buffer = state["momentum_buffer"] = g.clone()
                    velocity = g
                else:
                    velocity = buffer * momentum + (g * (1.0 - float(group["dampening"])) if group["dampening"] else g)
                    replace(buffer, velocity)
                g = g + velocity * momentum if group["nesterov"] else velocity
            replace(p, p - g * lr)
