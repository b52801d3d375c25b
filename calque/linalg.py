"""Linear algebra with the names of `torch.linalg`. Factorisations run in NumPy on the host; products are recorded."""

from typing import Any

from calque.base.errors import LinAlgError
from calque.functional.common import require_fractions as _require_fractions
from calque.functional.common import require_one_dtype as _require_one_dtype
from calque.functional.common import require_tensors as _require_tensors
from calque.functional.complex import conj as _conj
from calque.functional.declared import public as _public
from calque.functional.decompositions import cholesky as _cholesky
from calque.functional.decompositions import det as _det
from calque.functional.decompositions import slogdet as _slogdet
from calque.functional.distances import cross as _cross
from calque.functional.later import namespace as _namespace
from calque.functional.precision import lower_precision as _lower_precision
from calque.functional.windows import diagonal as _diagonal
from calque.tensor import Tensor

__all__ = ["LinAlgError"]  # what is declared comes to it


@_public(of="linalg", out="exact")
def cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    """Lower L with `L @ L^T = A` for symmetric positive-definite A (or the upper L^T): (*, n, n) -> (*, n, n)."""
    return _cholesky(A, upper)


@_public(of="linalg", out="exact")
def det(A: Tensor) -> Tensor:
    """Determinant: (*, n, n) -> (*)."""
    return _det(A)


@_public(of="linalg", out=True)
def slogdet(A: Tensor) -> Any:
    """Sign and logarithm of the absolute determinant: (*, n, n) -> (*), (*)."""
    return _slogdet(A)


@_public(of="linalg", out="exact")
def cross(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """Vector product along a dim of size 3: (*), (*) -> (*), broadcast."""
    return _cross(input, other, dim)


@_public(of="linalg")
def diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """View of the diagonals of the last two dims."""
    return _diagonal(A, offset, dim1, dim2)


@_public(of="linalg", out="exact")
@_lower_precision
def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """Inner products along a dim: (*), (*) -> (* without dim), broadcast."""
    _require_tensors("vecdot", x, y)
    _require_fractions("vecdot", x, y)
    _require_one_dtype("vecdot", x, y)
    return (_conj(x) * y).sum(dim)


__getattr__ = _namespace(globals())
