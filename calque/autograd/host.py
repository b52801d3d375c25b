"""What NumPy computes on the host from the values of tensors, inside function transforms as well."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from calque.base.shapes import Shape
from calque.record.recorder import local
from calque.tensor import Tensor, read

Array = np.ndarray[Any, Any]


class Whole(Exception):
    """Raised where what NumPy computes has no forward-mode rule: the function around it has a gradient formula, and the frame where it was called
    asks that one twice (`transform/whole.py`)."""


def for_all_slices(function: Callable[[Tensor], Any], x: Tensor) -> Any:
    """`function` of what a tensor is for all slices together, inside `vmap`: for what Python decides on once."""
    trace = local.state.trace
    if not trace.transforms:
        return function(x)
    return trace.below(for_all_slices, function, trace.unwrapped(x) if trace.mine(x) else x)


class Slices(Array):
    """Arrays with the results for all slices in the first dim; `upload` gives them back to their frame. `under`: as what the level below has them."""

    frame: Any = None
    under: Any = None

    def __array_finalize__(self, source: Any) -> None:
        self.frame, self.under = getattr(source, "frame", None), getattr(source, "under", None)


def slices(values: Array, frame: Any) -> Slices:
    """Results of a frame, which the level below may have by slices of its own."""
    made = np.asarray(values).view(Slices)
    made.frame, made.under = frame, values if isinstance(values, Slices) else None
    return made


def on_host(op: str, function: Callable[..., Any], arguments: Sequence[Any], shapes: Sequence[Shape]) -> list[Array]:
    """The results of a NumPy routine, of these shapes: `function(*arguments)` with the values of tensors. A sync point."""
    trace = local.state.trace
    if trace.transforms:
        return trace.on_host(op, function, arguments, shapes)  # type: ignore[no-any-return]
    values = [read(a, op) if isinstance(a, Tensor) else a for a in arguments]
    found = function(*values)
    return [np.asarray(a) for a in (found if isinstance(found, tuple) else (found,))]
