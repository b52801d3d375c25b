"""Updates of complex parameters, those of their parts, which no optimizer knows of; and of the rows that sparse gradients name."""

from __future__ import annotations

from typing import Any

from calque.autograd.assign import assign
from calque.base.asked import plainly
from calque.base.errors import ArgumentError
from calque.functional.common import is_tensor
from calque.functional.complex import view_as_complex, view_as_real
from calque.functional.selection import index_copy, index_select
from calque.optim.methods import Stepping, left_to_methods
from calque.replay.capture import abort
from calque.tensor import TENSOR_TYPES, Tensor


def update(optimizer: Stepping, group: dict[str, Any]) -> None:
    """`optimizer.update_group(group)`, for which complex parameters, gradients and states are real ones with a last dim of 2. They share memory."""
    whole, own = group["params"], left_to_methods(optimizer, group)
    if own:
        group["params"] = [p for p in whole if all(p is not other for other in own)]
    try:
        with plainly():
            _update(optimizer, group)
    finally:
        group["params"] = whole


def _update(optimizer: Stepping, group: dict[str, Any]) -> None:
    for p in group["params"]:
        if p._grad is not None and p._grad.__class__ not in TENSOR_TYPES:
            _update_rows(optimizer, group)
            return
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


def _update_rows(optimizer: Stepping, group: dict[str, Any]) -> None:
    """Update a group in which there are sparse gradients: what these name by `optimizer.update_rows`, the other parameters as ever."""
    abort("updates what a sparse gradient names")
    name, whole = type(optimizer).__name__, group["params"]
    sparse = [p for p in whole if p._grad is not None and p._grad.__class__ not in TENSOR_TYPES]
    for p in sparse:
        g = p._grad
        if not hasattr(optimizer, "update_rows"):
            raise ArgumentError(
                f"[{name}] {name} does not support sparse gradients, please consider SparseAdam instead (parameter of shape {list(p.shape)})"
            )
        if not g.is_sparse or p._layout.dtype.is_complex:
            raise ArgumentError(
                f"[{name}] expected a gradient of layout torch.sparse_coo and of real numbers, got {g.layout} of {g.dtype}; use to_dense()"
            )
    group["params"] = [p for p in whole if p not in set(sparse)]
    try:
        _update(optimizer, group)
    finally:
        group["params"] = whole
    for p in sparse:
        g = p._grad.coalesce()
        values = -g.values() if group["maximize"] else g.values()
        if values._layout.numel:
            optimizer.update_rows(group, p, SparseRows(g.keys(), g.sparse), values)  # type: ignore[attr-defined]  # seen above


class SparseRows:
    """What a sparse gradient names of a parameter, and of tensors of its shape."""

    def __init__(self, positions: Tensor, dims: int) -> None:
        self.positions, self.dims = positions, dims

    def of(self, x: Tensor) -> Any:
        """These parts of a tensor: (n, *dense dims)."""
        return index_select(self._flat(x), 0, self.positions)

    def put(self, x: Tensor, values: Tensor) -> None:
        """Overwrite them."""
        assign(x, index_copy(self._flat(x), 0, self.positions, values).reshape(tuple(x._layout.shape)))

    def _flat(self, x: Tensor) -> Any:
        return x.reshape(-1, *x._layout.shape[self.dims :])


class _Parts:
    """A complex parameter while it is updated: `tensor` has its parts, its gradient's, and a state with the parts of its state."""

    def __init__(self, states: Any, parameter: Tensor) -> None:
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
