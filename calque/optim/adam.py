"""Adam (Kingma & Ba 2015, algorithm 1) and AdamW (Loshchilov & Hutter 2019), in PyTorch's order of operations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from calque.functional.common import is_tensor
from calque.optim.kept import count_of
from calque.optim.methods import decayed, maximum, move_moments, state_of
from calque.optim.optimizer import Optimizer, check_betas, check_common, check_range, cycles, gradient, replace, root, slot
from calque.tensor import Tensor


def moments(state: dict[str, Any], p: Tensor, g: Any, beta1: float, beta2: float) -> tuple[Any, Any]:
    """Move the means of a parameter's gradient and of its square, which go into the state; the new ones."""
    mean: Any = slot(state, "exp_avg", p)
    square: Any = slot(state, "exp_avg_sq", p)
    m = mean + (g - mean) * (1.0 - beta1)
    v = square * beta2 + (g * g) * (1.0 - beta2)
    replace(mean, m)
    replace(square, v)
    return m, v


class Adam(Optimizer):
    """m = lerp(m, g, 1 - beta1);  v = beta2 v + (1 - beta2) g^2;  p = p - lr / c1 * m / (sqrt(v) / sqrt(c2) + eps).

    c1 = 1 - beta1^t and c2 = 1 - beta2^t correct the bias towards zero at the start. `amsgrad` (Reddi et al. 2018) divides by the
    largest v so far. `foreach`, `fused` and `capturable` change nothing here, where every step is one fused program.
    """

    state_like_parameter = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
    state_needed = ("step", "exp_avg", "exp_avg_sq")
    on_host = ("step",)
    replays = True

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0,
        amsgrad: bool = False, *, foreach: bool | None = None, maximize: bool = False, capturable: bool = False, differentiable: bool = False,
        fused: bool | None = None, decoupled_weight_decay: bool = False,
    ) -> None:  # fmt: skip
        pair: Any = betas
        if isinstance(pair, (tuple, list)):
            pair = tuple(b.item() if is_tensor(b) and b._layout.numel == 1 else b for b in pair)
        super().__init__(params, {
            "lr": lr, "betas": pair, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad, "maximize": maximize, "foreach": foreach,
            "capturable": capturable, "differentiable": differentiable, "fused": fused, "decoupled_weight_decay": decoupled_weight_decay,
        })  # fmt: skip

    def check_group(self, group: dict[str, Any]) -> None:
        name = type(self).__name__
        check_common(name, group)
        check_range(name, "epsilon value", group["eps"], 0.0)
        check_betas(name, group)

    def step_numbers(self, group: dict[str, Any], parameters: list[Any]) -> list[float]:
        """Count a step of each parameter; betas that a schedule moves; per parameter: what it shrinks by, 1 / sqrt(c2) and lr / c1."""
        beta1, beta2 = map(float, group["betas"])
        lr = float(group["lr"])
        shrink = 1.0 - lr * float(group["weight_decay"])
        found: list[float] = [beta1, beta2] if cycles(group) else []
        last = -1
        for p in parameters:
            state = self.state[p]
            state["step"] = t = count_of(state) + 1
            if t != last:
                last, inverse, rate = t, 1.0 / root(1.0 - beta2**t), lr / (1.0 - beta1**t)
            found += (shrink, inverse, rate)
        return found

    def update_group(self, group: dict[str, Any]) -> None:
        eps, decay = float(group["eps"]), float(group["weight_decay"])
        decoupled = group["decoupled_weight_decay"]
        parameters = [p for p in group["params"] if p._grad is not None]
        found = iter(self.changing(group, parameters))
        beta1, beta2 = (next(found), next(found)) if cycles(group) else (float(b) for b in group["betas"])
        for p in parameters:
            state = self.state[p]
            shrink, inverse, rate = next(found), next(found), next(found)
            g: Any = gradient(p, group, 0.0 if decoupled else decay)
            value: Any = p * shrink if decoupled and decay else p
            m, v = moments(state, p, g, beta1, beta2)
            if group["amsgrad"]:
                largest = slot(state, "max_exp_avg_sq", p)
                v = v.maximum(largest)
                replace(largest, v)
            denominator = v.sqrt() * inverse + eps  # a vector quotient by a number would be a third of the update's time
            replace(p, value - (m / denominator) * rate)

    def update_by_methods(self, group: dict[str, Any], p: Tensor, g: Tensor) -> None:
        """`update_group` in PyTorch's calls; see `optim.methods`."""
        lr, eps, decay = (float(group[k]) for k in ("lr", "eps", "weight_decay"))
        beta1, beta2 = map(float, group["betas"])
        state, t = self.state[p], self.count_step(p)
        mean, square = state_of(state, "exp_avg", p), state_of(state, "exp_avg_sq", p)
        largest = state_of(state, "max_exp_avg_sq", p) if group["amsgrad"] else None
        g = decayed(group, p, g, 1.0 - lr * decay)
        move_moments(group, mean, square, g)
        if largest is not None:
            square = maximum(largest, square, out=largest)
        denominator = (square.sqrt() / root(1.0 - beta2**t)).add_(eps)
        p.addcdiv_(mean, denominator, value=-lr / (1.0 - beta1**t))


class AdamW(Adam):
    """Adam with decoupled weight decay: p is first multiplied by 1 - lr * weight_decay."""

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 1e-2,
        amsgrad: bool = False, *, maximize: bool = False, foreach: bool | None = None, capturable: bool = False, differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            params, lr, betas, eps, weight_decay, amsgrad, foreach=foreach, maximize=maximize, capturable=capturable,
            differentiable=differentiable, fused=fused, decoupled_weight_decay=True,
        )  # fmt: skip

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group["decoupled_weight_decay"] = True
