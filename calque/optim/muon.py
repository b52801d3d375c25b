"""Muon: momentum orthogonalised by Newton and Schulz's iteration (Jordan et al. 2024; rate of Liu et al. 2025)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from calque import functional as T
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError
from calque.base.text import shown
from calque.optim.methods import state_of
from calque.optim.optimizer import Optimizer, check_range, replace, slot
from calque.tensor import Tensor


def _orthogonal(x: Tensor, coefficients: tuple[float, ...], steps: int, eps: float) -> Tensor:
    """About U V^T of x = U S V^T, in bfloat16: `steps` times x = a x + (b x x^T + c (x x^T)^2) x."""
    a, b, c = map(float, coefficients)
    tall = x.shape[0] > x.shape[1]
    y = x.to(dt.bfloat16)
    y = y.T if tall else y
    y = y / y.norm().clamp(min=eps)
    for _ in range(steps):
        gram = y @ y.T
        y = T.addmm(y, T.addmm(gram, gram, gram, beta=b, alpha=c), y, beta=a)
    return y.T if tall else y  # type: ignore[no-any-return]


class Muon(Optimizer):
    """Momentum whose singular values are all made about 1, for the matrices inside of a network.

    params: matrices (2 dims); train embeddings, biases and the last layer with another optimizer. lr: 0 or more. weight_decay: the parameter is
    multiplied by 1 - lr * weight_decay first. momentum, nesterov: as for `SGD`, but averaged. ns_coefficients, ns_steps, eps: polynomial, steps (less
    than 100) and smallest norm of the iteration. adjust_lr_fn: "original" (or None) multiplies the rate by sqrt(max(1, rows / columns)),
    "match_rms_adamw" by 0.2 sqrt(max(rows, columns)), so that rates of `AdamW` can be kept.

    >>> import calque
    >>> w = calque.eye(2).requires_grad_()
    >>> optimizer = calque.optim.Muon([w], lr=0.1, weight_decay=0.0)
    >>> (w * w).sum().backward()
    >>> optimizer.step()
    >>> w.diagonal().lt(1).all().item(), w[0, 1].item()
    (True, 0.0)
    """

    by_element = False
    takes_complex = False
    state_like_parameter = ("momentum_buffer",)
    state_needed = ("momentum_buffer",)
    replays = True

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, weight_decay: float = 0.1, momentum: float = 0.95, nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315), eps: float = 1e-7, ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(params, {
            "lr": lr, "weight_decay": weight_decay, "momentum": momentum, "nesterov": nesterov, "ns_coefficients": ns_coefficients, "eps": eps,
            "ns_steps": ns_steps, "adjust_lr_fn": adjust_lr_fn,
        })  # fmt: skip

    def check_group(self, group: dict[str, Any]) -> None:
        for name, key in (("learning rate", "lr"), ("weight_decay value", "weight_decay"), ("momentum value", "momentum"), ("epsilon value", "eps")):
            check_range("Muon", name, group[key], 0.0)
        check_range("Muon", "ns_steps", group["ns_steps"], 0, 100)
        if len(group["ns_coefficients"]) != 3:
            raise ArgumentError(f"[Muon] expected three ns_coefficients, got {shown(group['ns_coefficients'])}")
        if group["adjust_lr_fn"] not in (None, "original", "match_rms_adamw"):
            raise ArgumentError(f"[Muon] expected adjust_lr_fn as None, 'original' or 'match_rms_adamw', got {shown(group['adjust_lr_fn'])}")
        wrong = [list(p.shape) for p in group["params"] if p._layout.ndim != 2]
        if wrong:
            raise ArgumentError(f"[Muon] Muon only supports 2D parameters, got shape {wrong[0]}; give the others to another optimizer, such as AdamW")

    def step_numbers(self, group: dict[str, Any], parameters: list[Any]) -> list[float]:
        """What all parameters shrink by, and the rate of each."""
        lr, kind = float(group["lr"]), group["adjust_lr_fn"]
        found = [1.0 - lr * float(group["weight_decay"])]
        for p in parameters:
            rows, columns = p._layout.shape
            found.append(lr * (0.2 * math.sqrt(max(rows, columns)) if kind == "match_rms_adamw" else math.sqrt(max(1.0, rows / columns))))
        return found

    def update_group(self, group: dict[str, Any]) -> None:
        momentum, eps, steps = float(group["momentum"]), float(group["eps"]), int(group["ns_steps"])
        parameters = [p for p in group["params"] if p._grad is not None]
        shrink, *rates = self.changing(group, parameters)
        for p, rate in zip(parameters, rates, strict=True):
            g: Any = p._grad
            buffer: Any = slot(self.state[p], "momentum_buffer", p)
            average = buffer + (g - buffer) * (1.0 - momentum)
            replace(buffer, average)
            update: Any = _orthogonal(g + (average - g) * momentum if group["nesterov"] else average, group["ns_coefficients"], steps, eps)
            replace(p, p * shrink - (update * rate).to(p._layout.dtype))

    def update_by_methods(self, group: dict[str, Any], p: Tensor, g: Tensor) -> None:
        """`update_group` in PyTorch's calls; see `optim.methods`."""
        momentum, buffer = float(group["momentum"]), state_of(self.state[p], "momentum_buffer", g)
        shrink, rate = self.step_numbers(group, [p])
        buffer.lerp_(g, 1.0 - momentum)
        update = g.lerp(buffer, momentum) if group["nesterov"] else buffer
        update = _orthogonal(update, group["ns_coefficients"], int(group["ns_steps"]), float(group["eps"]))
        p.mul_(shrink)
        p.add_(update, alpha=-rate)
