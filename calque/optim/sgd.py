"""Stochastic gradient descent with momentum (Sutskever et al. 2013), as PyTorch defines it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from calque.base.errors import ArgumentError
from calque.optim.optimizer import Optimizer, check_common, check_range, cycles, gradient, replace
from calque.tensor import Tensor


class SGD(Optimizer):
    """v = momentum * v + (1 - dampening) * g;  p = p - lr * v   (nesterov: p = p - lr * (g + momentum * v)).

    The first v is g itself. `weight_decay` adds weight_decay * p to g. `foreach` and `fused` choose a kernel in PyTorch and
    change nothing here, where every step is one fused program.

    >>> import calque
    >>> w = calque.ones(2, requires_grad=True)
    >>> optimizer = calque.optim.SGD([w], lr=0.5)
    >>> (w * w).sum().backward(); optimizer.step(); w.tolist()
    [0.0, 0.0]
    """

    state_like_parameter = ("momentum_buffer",)
    replays = True

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, momentum: float = 0, dampening: float = 0, weight_decay: float = 0, nesterov: bool = False,
        *, maximize: bool = False, foreach: bool | None = None, differentiable: bool = False, fused: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__(params, {
            "lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay, "nesterov": nesterov,
            "maximize": maximize, "foreach": foreach, "differentiable": differentiable, "fused": fused,
        })  # fmt: skip
        if nesterov and (momentum <= 0 or dampening != 0):  # a group may have no momentum beside others that have
            raise ArgumentError(f"[SGD] Nesterov momentum requires a momentum and zero dampening, got momentum={momentum}, dampening={dampening}")

    def check_group(self, group: dict[str, Any]) -> None:
        check_common("SGD", group)
        check_range("SGD", "momentum value", group["momentum"], 0.0)

    def step_numbers(self, group: dict[str, Any], parameters: list[Any]) -> list[float]:
        """The rate; a momentum that a schedule moves."""
        return [float(group["lr"]), *([float(group["momentum"])] if cycles(group) else [])]

    def update_rows(self, group: dict[str, Any], parameter: Tensor, rows: Any, values: Tensor) -> None:
        """One step of what a sparse gradient names; the rest of the parameter stays."""
        if group["momentum"] or group["weight_decay"]:
            raise ArgumentError(
                f"[SGD] expected no momentum and no weight_decay with sparse gradients, got momentum={group['momentum']}, "
                f"weight_decay={group['weight_decay']}: both move every row; use sparse=False"
            )
        rows.put(parameter, rows.of(parameter) - values * float(group["lr"]))

    def update_group(self, group: dict[str, Any]) -> None:
        parameters = [p for p in group["params"] if p._grad is not None]
        lr, *moved = self.changing(group, parameters)
        momentum, decay = moved[0] if moved else float(group["momentum"]), float(group["weight_decay"])
        damping, moves = float(group["dampening"]), bool(momentum)
        for p in parameters:
            g: Any = gradient(p, group, decay)
            if moves:
                state = self.state[p]
                buffer = state.get("momentum_buffer")
                if buffer is None:
                    state["momentum_buffer"] = g.detach().clone()
                    velocity = g.detach() if g._requires_grad else g  # a first velocity has no history, as PyTorch's has none
                else:
                    velocity = buffer * momentum + (g * (1.0 - damping) if damping else g)
                    replace(buffer, velocity)
                g = g + velocity * momentum if group["nesterov"] else velocity
            replace(p, p - g * lr)

    def update_by_methods(self, group: dict[str, Any], p: Tensor, g: Tensor) -> None:
        """`update_group` in PyTorch's calls; see `optim.methods`."""
        lr, momentum, decay = (float(group[k]) for k in ("lr", "momentum", "weight_decay"))
        if decay:
            g = g.add(p, alpha=decay)
        if momentum:
            state = self.state[p]
            velocity = state.get("momentum_buffer")
            if velocity is None:
                velocity = state["momentum_buffer"] = g.detach().clone()
            else:
                velocity.mul_(momentum).add_(g, alpha=1.0 - float(group["dampening"]))
            g = g.add(velocity, alpha=momentum) if group["nesterov"] else velocity
        p.add_(g, alpha=-lr)
