"""Eigenvalues of matrices that need not be symmetric; they and the vectors are complex, of real matrices, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calque.functional.common import cast
from calque.functional.complex import conj, real
from calque.functional.creation import eye
from calque.functional.declared import public
from calque.functional.decompositions import Array, _h, _host, _matrix, _with_outputs, solve
from calque.functional.math import where
from calque.functional.placing import beside_input
from calque.functional.precision import full_precision
from calque.functional.results import named_result
from calque.functional.views import unsqueeze
from calque.tensor import Tensor

EigResult = named_result("linalg_eig", "eigenvalues", "eigenvectors")


def _of(x: Tensor, found: Tensor) -> Tensor:
    """A gradient for x, which may be real."""
    return found if x._layout.dtype.is_complex else real(found)


def _vectors(a: Array) -> tuple[Array, Array]:
    values, vectors = np.linalg.eig(a)
    kind = np.result_type(a.dtype, np.complex64)
    return values.astype(kind), vectors.astype(kind)


@public(of="linalg", out=True)
@full_precision
@beside_input
def eig(A: Tensor) -> Any:
    """Eigenvalues w, in no order, and eigenvectors of length 1 as columns of V: A V = V diag(w), (*, n, n) -> (*, n), (*, n, n), complex.

    The gradient of V needs distinct eigenvalues; a loss must not depend on the phase of a vector.

    >>> import calque
    >>> calque.linalg.eig(calque.tensor([[0.0, 1.0], [-1.0, 0.0]])).eigenvalues
    tensor([0.+1.j, 0.-1.j])
    """
    x = _matrix("eig", A, square=True)
    shape = tuple(x._layout.shape)
    arrays = _host("eig", x, _vectors, [shape[:-1], shape])

    def backward(outputs: Sequence[Tensor], grads: list[Any]) -> Tensor:
        w, v = outputs
        adjoint = _h(v)
        inner = None
        if grads[1] is not None:
            inside = adjoint @ grads[1]
            inside = inside - (adjoint @ v) * unsqueeze(real(inside.diagonal(0, -2, -1)), -2)
            gap = conj(unsqueeze(w, -2) - unsqueeze(w, -1))
            own = eye(shape[-1], dtype=w._layout.dtype) == 1
            inner = where(own, 0.0, inside / where(own, 1.0, gap))
        if grads[0] is not None:
            values = grads[0].diag_embed()
            inner = values if inner is None else inner + values
        return _of(x, solve(adjoint, inner @ adjoint))

    return EigResult(*_with_outputs("LinalgEigBackward0", x, arrays, lambda: eig(x), backward))


@public(of="linalg", out="exact")
@full_precision
@beside_input
def eigvals(A: Tensor) -> Tensor:
    """Eigenvalues, in no order: (*, n, n) -> (*, n), complex; their gradient needs distinct ones.

    >>> import calque
    >>> calque.linalg.eigvals(calque.tensor([[0.0, 1.0], [-1.0, 0.0]]))
    tensor([0.+1.j, 0.-1.j])
    """
    x = _matrix("eigvals", A, square=True)
    kind = x._layout.dtype.to_complex()
    arrays = _host("eigvals", x, lambda a: np.linalg.eigvals(a).astype(kind.np), [tuple(x._layout.shape[:-1])])

    def backward(outputs: Sequence[Tensor], grads: list[Any]) -> Tensor:
        adjoint = _h(eig(x).eigenvectors)
        return _of(x, solve(adjoint, cast(grads[0], kind).diag_embed() @ adjoint))  # type: ignore[attr-defined]

    return _with_outputs("LinalgEigvalsBackward0", x, arrays, lambda: [eigvals(x)], backward)[0]
