"""Other parameters and state for an optimizer, for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from calque.base.errors import StateDictError
from calque.functional.common import is_tensor
from calque.optim.optimizer import Optimizer

__all__ = ["swap_in_optimizer_params_and_state"]


@contextmanager
def swap_in_optimizer_params_and_state(
    optimizer: Optimizer, swapin_parameters: dict[str, Any], swapin_optim_state: dict[str, Any]
) -> Iterator[None]:
    """A block in which an optimizer has other parameters and another state; behind it, it has its own again.

    swapin_parameters: name -> Tensor, in the order of the optimizer's parameters. swapin_optim_state: what `state_dict()` of such an optimizer gives.
    Steps inside the block write into both; counts of steps, which are numbers here, stay as they were. StateDictError if groups do not fit.

    >>> import calque
    >>> w, other = calque.ones(2, requires_grad=True), calque.zeros(2, requires_grad=True)
    >>> optimizer = calque.optim.SGD([w], lr=0.5)
    >>> other.grad = calque.ones(2)
    >>> with calque.optim.swap_in_optimizer_params_and_state(optimizer, {"w": other}, optimizer.state_dict()):
    ...     optimizer.step()
    >>> w.tolist(), other.tolist(), optimizer.param_groups[0]["params"][0] is w
    ([1.0, 1.0], [-0.5, -0.5], True)
    """
    values, groups = list(swapin_parameters.values()), swapin_optim_state["param_groups"]
    sizes, wanted = [len(g["params"]) for g in optimizer.param_groups], [len(g["params"]) for g in groups]
    if sizes != wanted or len(values) != sum(sizes):
        raise StateDictError(
            f"[swap_in_optimizer_params_and_state] expected groups of {sizes} parameters, got a state for {wanted} and {len(values)} parameters"
        )
    before = optimizer.state, [dict(group) for group in optimizer.param_groups]
    try:
        state = optimizer._no_state()
        start = 0
        for group, other in zip(optimizer.param_groups, groups, strict=True):
            own = values[start : start + len(other["params"])]
            start += len(own)
            group.update({key: value for key, value in other.items() if key != "params"})
            group["params"] = own
            for parameter, number in zip(own, other["params"], strict=True):
                held = swapin_optim_state["state"].get(number, {})
                state[parameter] = {k: v.item() if k in optimizer.on_host and is_tensor(v) else v for k, v in held.items()}
                if "step" in optimizer.on_host and "step" in held:
                    state[parameter]["step"] = int(state[parameter]["step"])
        optimizer.state = state
        yield
    finally:
        for group, old in zip(optimizer.param_groups, before[1], strict=True):
            group.clear()
            group.update(old)
        optimizer.state = before[0]
