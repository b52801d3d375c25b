"""Adafactor (Shazeer & Stern 2018, algorithms 4 and 5)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from calque.base.dtypes import FInfo
from calque.base.errors import ArgumentError
from calque.base.text import shown
from calque.functional.reductions import norm
from calque.optim.methods import state_of
from calque.optim.optimizer import Optimizer, check_common, check_range, gradient, replace, slot
from calque.tensor import Tensor, constant


def _mean_of(state: dict[str, Any], name: str, p: Tensor, dim: int) -> Any:
    """The state tensor that holds a mean over one dim of the parameter's shape."""
    found = state.get(name)
    if found is None:
        found = state[name] = constant(0.0, p._layout).narrow(dim, 0, 1).clone()
    return found


class Adafactor(Optimizer):
    """Adam whose second moments of a matrix are the product of a mean over its rows and one over its columns, without first moments.

    The rate is relative: min(lr, 1 / sqrt(t)) times the root mean square of the parameter (at least eps[1]), and an update whose root mean square is
    above `d` is scaled down to it.

    params: tensors, `(name, tensor)` pairs or groups. lr: largest relative rate, 0 or more. beta2_decay: 0 or less; the averages forget with t to
    this power. eps: limits of the second moment (None: the `eps` of the dtype) and of the parameter's root mean square. d: 1 or more. weight_decay:
    the parameter is multiplied by 1 - lr * weight_decay first. `maximize` goes uphill. `foreach` changes nothing.

    >>> import calque
    >>> w = calque.ones(3, 4, requires_grad=True)
    >>> optimizer = calque.optim.Adafactor([w], lr=0.5)
    >>> (w * w).sum().backward()
    >>> optimizer.step()
    >>> w[0].tolist(), tuple(optimizer.state[w]["row_var"].shape), tuple(optimizer.state[w]["col_var"].shape)
    ([0.5, 0.5, 0.5, 0.5], (3, 1), (1, 4))
    """

    by_element = False
    takes_complex = False
    state_like_parameter = ("variance",)
    state_needed = ("step",)
    on_host = ("step",)
    replays = True

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-2, beta2_decay: float = -0.8, eps: tuple[float | None, float] = (None, 1e-3), d: float = 1.0,
        weight_decay: float = 0.0, *, foreach: bool | None = None, maximize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, {
            "lr": lr, "beta2_decay": beta2_decay, "eps": eps, "d": d, "weight_decay": weight_decay, "foreach": foreach, "maximize": maximize,
        })  # fmt: skip

    def check_group(self, group: dict[str, Any]) -> None:
        check_common("Adafactor", group)
        check_range("Adafactor", "beta2_decay", group["beta2_decay"], float("-inf"), 5e-324)
        if not isinstance(group["eps"], (tuple, list)) or len(group["eps"]) != 2:
            raise ArgumentError(f"[Adafactor] expected eps as a pair of (a number or None, a number), got {shown(group['eps'])}")
        if group["eps"][0] is not None:
            check_range("Adafactor", "epsilon1", group["eps"][0], 0.0)
        check_range("Adafactor", "epsilon2", group["eps"][1], 0.0)
        check_range("Adafactor", "clipping threshold d", group["d"], 1.0)

    def step_numbers(self, group: dict[str, Any], parameters: list[Any]) -> list[float]:
        """Count a step of each parameter; what all shrink by; per parameter: the share of the new second moment, and its relative rate."""
        lr, power = float(group["lr"]), float(group["beta2_decay"])
        found = [1.0 - lr * float(group["weight_decay"])]
        for p in parameters:
            t = float(self.count_step(p))
            found += (t**power, min(lr, 1.0 / math.sqrt(t)))
        return found

    def update_group(self, group: dict[str, Any]) -> None:
        least, d, decay = float(group["eps"][1]), float(group["d"]), float(group["weight_decay"])
        parameters = [p for p in group["params"] if p._grad is not None]
        shrink, *numbers = self.changing(group, parameters)
        found = iter(numbers)
        for p in parameters:
            share, relative = next(found), next(found)
            g: Any = gradient(p, group)
            count = p._layout.numel
            smallest = FInfo(p._layout.dtype).eps if group["eps"][0] is None else float(group["eps"][0])
            rate = (p.norm(2) * count**-0.5).clamp(min=least) * relative
            update = g * self._second_moment(p, g, share, smallest).clamp(min=smallest * smallest).rsqrt()
            limit = (update.norm(2) * (1.0 / (count**0.5 * d))).clamp(min=1.0)
            replace(p, (p * shrink if decay else p) - update * (rate / limit))

    def _second_moment(self, p: Tensor, g: Tensor, share: float, smallest: float) -> Any:
        state = self.state[p]
        square = g * g
        if p._layout.ndim < 2:
            variance: Any = slot(state, "variance", p)
            v = variance + (square - variance) * share
            replace(variance, v)
            return v
        means = []
        for name, dim in (("row_var", -1), ("col_var", -2)):
            held = _mean_of(state, name, p, dim)
            means.append(held + (square.mean(dim, keepdim=True) - held) * share)
            replace(held, means[-1])
        rows, columns = means
        return rows * columns / rows.mean(-2, keepdim=True).clamp(min=smallest)

    def update_by_methods(self, group: dict[str, Any], p: Tensor, g: Tensor) -> None:
        """`update_group` in PyTorch's calls, which read two norms; see `optim.methods`."""
        least, d, count = float(group["eps"][1]), float(group["d"]), p.numel()
        smallest = FInfo(p.dtype).eps if group["eps"][0] is None else float(group["eps"][0])
        shrink, share, relative = self.step_numbers(group, [p])
        rate = max(least, p.norm(2).item() / count**0.5) * relative
        if group["weight_decay"]:
            p.mul_(shrink)
        update = self._second_moment_by_methods(p, g, share, smallest).clamp_(min=smallest * smallest).rsqrt_()
        update.mul_(g)
        p.add_(update, alpha=-rate / max(1.0, update.norm(2).item() / (count**0.5 * d)))

    def _second_moment_by_methods(self, p: Tensor, g: Tensor, share: float, smallest: float) -> Any:
        state = self.state[p]
        if g.dim() < 2:
            variance = state_of(state, "variance", g)
            variance.lerp_(g * g, share)
            return variance.clone()
        for name, dim in (("row_var", -1), ("col_var", -2)):
            if name not in state:
                extents = list(g.shape)
                extents[dim] = 1
                state[name] = g.new_zeros(extents)
            state[name].lerp_(norm(g, dim=dim, keepdim=True).square_().div_(g.size(dim)), share)
        rows, columns = state["row_var"], state["col_var"]
        return (rows @ columns).div_(rows.mean(dim=-2, keepdim=True).clamp_(min=smallest))
