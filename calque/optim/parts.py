"""Updates of complex parameters: those of their parts, as PyTorch does it. No optimizer knows of it."""

from __future__ import annotations

from typing import Any

from calque.base.errors import ArgumentError
from calque.functional.common import is_tensor
from calque.functional.complex import view_as_complex, view_as_real


def update(optimizer: Any, group: dict[str, Any]) -> None:
    """`optimizer.update_group(group)`, for which complex parameters, gradients and states are real ones with a last dim of 2. They share memory."""
    for p in group["params"]:
        if p._layout.dtype.category == 3:
            break
    else:
        optimizer.update_group(group)
        return
    if not optimizer.takes_complex:
        name = type(optimizer).__name__
        raise ArgumentError(f"[{name}] {name} does not support complex parameters: expected real ones, got {group['params'][0].dtype}; use another")
    views = [_Parts(optimizer.state, p) if p._layout.dtype.is_complex else None for p in group["params"]]
    whole = group["params"]
    group["params"] = [p if view is None else view.tensor for p, view in zip(whole, views, strict=True)]
    try:
        optimizer.update_group(group)
    finally:
        group["params"] = whole
        for view in filter(None, views):
            view.give_back()


class _Parts:
    """A complex parameter while it is updated: `tensor` has its parts, its gradient's, and a state with the parts of its state."""

    def __init__(self, states: Any, parameter: Any) -> None:
        self.states, self.parameter, self.tensor = states, parameter, view_as_real(parameter)
        if parameter._grad is not None:
            self.tensor._grad = view_as_real(parameter._grad)
        self.given = {name: _real(value) for name, value in states.get(parameter, {}).items()}
        if self.given:
            states[self.tensor] = dict(self.given)

    def give_back(self) -> None:
        """Keep what the update has put into the state."""
        found = self.states.pop(self.tensor, {})
        for name, value in found.items():
            if value is not self.given.get(name):
                of_elements = is_tensor(value) and value._layout.shape == self.tensor._layout.shape
                self.states[self.parameter][name] = view_as_complex(value) if of_elements else value


def _real(value: Any) -> Any:
    return view_as_real(value) if is_tensor(value) and value._layout.dtype.is_complex else value
