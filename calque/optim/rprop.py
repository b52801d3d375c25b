"""Resilient backpropagation (Riedmiller & Braun 1993)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from calque import functional as T
from calque.base.errors import ArgumentError
from calque.base.layout import preserve_format
from calque.base.text import shown
from calque.optim.methods import state_of
from calque.optim.optimizer import Optimizer, check_range, gradient, replace, slot
from calque.tensor import Tensor


class Rprop(Optimizer):
    """Every element moves by a step size of its own against the sign of its gradient; the size shrinks where the sign changed, else it grows.

    params: tensors, `(name, tensor)` pairs or groups. lr: the first step size, 0 or more. etas: factors by which sizes shrink and grow, 0 < a < 1 <
    b. step_sizes: smallest and largest size. `maximize` goes uphill. `foreach`, `capturable` and `differentiable` as for `SGD`.

    >>> import calque
    >>> w = calque.tensor([1.0, -2.0], requires_grad=True)
    >>> optimizer = calque.optim.Rprop([w], lr=0.5)
    >>> (w * w).sum().backward()
    >>> optimizer.step()
    >>> w.tolist()
    [0.5, -1.5]
    """

    state_like_parameter = ("prev", "step_size")
    state_needed = ("step", "prev", "step_size")
    on_host = ("step",)
    replays = True

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-2, etas: tuple[float, float] = (0.5, 1.2), step_sizes: tuple[float, float] = (1e-6, 50), *,
        capturable: bool = False, foreach: bool | None = None, maximize: bool = False, differentiable: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, {
            "lr": lr, "etas": etas, "step_sizes": step_sizes, "foreach": foreach, "maximize": maximize, "differentiable": differentiable,
            "capturable": capturable,
        })  # fmt: skip

    def check_group(self, group: dict[str, Any]) -> None:
        check_range("Rprop", "learning rate", group["lr"], 0.0)
        etas: Any = group["etas"]
        if not isinstance(etas, (tuple, list)) or len(etas) != 2 or not 0.0 < etas[0] < 1.0 < etas[1]:
            raise ArgumentError(f"[Rprop] Invalid eta values: expected a pair with 0 < etas[0] < 1 < etas[1], got {shown(etas)}")
        for k, size in enumerate(group["step_sizes"]):
            check_range("Rprop", f"step_sizes value at index {k}", size, 0.0)

    def step_numbers(self, group: dict[str, Any], parameters: list[Any]) -> list[float]:
        """Count a step of each parameter; nothing changes from step to step."""
        for p in parameters:
            self.count_step(p)
        return []

    def update_group(self, group: dict[str, Any]) -> None:
        (smaller, larger), (least, most) = map(float, group["etas"]), map(float, group["step_sizes"])
        first = float(group["lr"])
        parameters = [p for p in group["params"] if p._grad is not None]
        self.changing(group, parameters)
        for p in parameters:
            state = self.state[p]
            g: Any = gradient(p, group)
            before: Any = slot(state, "prev", p)
            size: Any = slot(state, "step_size", p, first)
            turn = (g * before).sign()
            back = turn < 0
            new = T.where(turn > 0, size * larger, T.where(back, size * smaller, size)).clamp(least, most)
            g = T.where(back, 0.0, g)  # where the sign changed, the element stays and the next step is taken as a first one
            replace(size, new)
            replace(p, p - g.sign() * new)
            replace(before, g)

    def update_by_methods(self, group: dict[str, Any], p: Tensor, g: Tensor) -> None:
        """`update_group` in PyTorch's calls; see `optim.methods`."""
        (smaller, larger), (least, most) = map(float, group["etas"]), map(float, group["step_sizes"])
        state = self.state[p]
        self.count_step(p)
        before = state_of(state, "prev", p)
        size = state.get("step_size")
        if size is None:
            size = state["step_size"] = T.full_like(g, float(group["lr"]))
        sign = g.mul(before).sign()
        sign[sign.gt(0)] = larger
        sign[sign.lt(0)] = smaller
        sign[sign.eq(0)] = 1
        size.mul_(sign).clamp_(least, most)
        g = g.clone(memory_format=preserve_format)
        g[sign.eq(smaller)] = 0
        p.addcmul_(g.sign(), size, value=-1)
        before.copy_(g)
