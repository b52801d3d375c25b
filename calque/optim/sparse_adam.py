"""Adam for sparse gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from calque.base.errors import ArgumentError
from calque.optim.optimizer import Optimizer, check_betas, check_range


class SparseAdam(Optimizer):
    """Adam that updates only the rows a sparse gradient names. Gradients of Calque are dense, which this optimizer refuses, as PyTorch's does.

    params: tensors, `(name, tensor)` pairs or groups. lr, eps: larger than 0. betas: shares of the old averages, each in [0, 1). A program that lists
    its dense parameters elsewhere and has no sparse ones left may make this optimizer and step it; a parameter with a dense gradient raises a
    RuntimeError that names `Adam`.

    >>> import calque
    >>> w = calque.ones(3, requires_grad=True)
    >>> optimizer = calque.optim.SparseAdam([w])
    >>> w.sum().backward()
    >>> optimizer.step()
    Traceback (most recent call last):
    ...
    calque.base.errors.ArgumentError: [SparseAdam] SparseAdam does not support dense gradients, please consider Adam instead (parameter of shape [3])
    """

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
