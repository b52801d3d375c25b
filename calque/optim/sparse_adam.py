"""Adam for sparse gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from calque.base.errors import ArgumentError
from calque.optim.optimizer import Optimizer, check_betas, check_range, slot
from calque.tensor import Tensor


class SparseAdam(Optimizer):
    """Adam (Kingma and Ba 2015) of the rows that a sparse gradient names: their averages and numbers move, all others stay as they are.

    params: tensors, `(name, tensor)` pairs or groups. lr, eps: larger than 0. betas: shares of the old averages, each in [0, 1). Raises a
    RuntimeError that names `Adam` for a parameter with a dense gradient.

    >>> import calque
    >>> table = calque.nn.Embedding(4, 2, sparse=True)
    >>> optimizer = calque.optim.SparseAdam(table.parameters(), lr=0.5)
    >>> before = table.weight.detach().clone()
    >>> table(calque.tensor([1, 1])).sum().backward()
    >>> optimizer.step()
    >>> before - table.weight.detach()
    tensor([[0.0000, 0.0000],
            [0.5000, 0.5000],
            [0.0000, 0.0000],
            [0.0000, 0.0000]])
    """

    state_like_parameter = ("exp_avg", "exp_avg_sq")
    state_needed = ("step", "exp_avg", "exp_avg_sq")
    takes_complex = False

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, maximize: bool = False
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "maximize": maximize})

    def check_group(self, group: dict[str, Any]) -> None:
        for name, key in (("learning rate", "lr"), ("epsilon value", "eps")):
            check_range("SparseAdam", name, group[key], 0.0)
            if not float(group[key]):
                raise ArgumentError(f"[SparseAdam] Invalid {name}: expected a number larger than 0, got {group[key]}")
        check_betas("SparseAdam", group)

    def update_group(self, group: dict[str, Any]) -> None:
        for p in group["params"]:
            if p._grad is not None:
                raise ArgumentError(
                    f"[SparseAdam] SparseAdam does not support dense gradients, please consider Adam instead (parameter of shape {list(p.shape)})"
                )

    def update_rows(self, group: dict[str, Any], parameter: Tensor, rows: Any, values: Tensor) -> None:
        """One step of what a sparse gradient names."""
        state, (first, second) = self.state[parameter], map(float, group["betas"])
        mean: Any = slot(state, "exp_avg", parameter)
        spread: Any = slot(state, "exp_avg_sq", parameter)
        t = self.count_step(parameter)
        m, v = rows.of(mean), rows.of(spread)
        m, v = m + (values - m) * (1.0 - first), v + (values * values - v) * (1.0 - second)
        rows.put(mean, m)
        rows.put(spread, v)
        size = float(group["lr"]) * math.sqrt(1.0 - second**t) / (1.0 - first**t)
        rows.put(parameter, rows.of(parameter) - m / (v.sqrt() + float(group["eps"])) * size)
