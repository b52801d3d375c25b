"""Parameters as one vector and back."""

from __future__ import annotations

from collections.abc import Iterable

from calque import functional as T
from calque.autograd.modes import no_grad
from calque.base.errors import ShapeError
from calque.tensor import Tensor

__all__ = ["parameters_to_vector", "vector_to_parameters"]


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """All elements of all parameters, in order."""
    return T.cat([T.reshape(p, (-1,)) for p in parameters], 0)


@no_grad()
def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Copy consecutive pieces of a vector into the parameters."""
    listed = list(parameters)
    needed = sum(p._layout.numel for p in listed)
    if vec._layout.numel < needed:
        raise ShapeError(f"[vector_to_parameters] expected a vector of {needed} elements, got {vec._layout.numel}")
    start = 0
    for p in listed:
        p.copy_(T.reshape(T.narrow(vec, 0, start, p._layout.numel), tuple(p._layout.shape)))
        start += p._layout.numel
