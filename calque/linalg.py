"""Linear algebra with the names of `torch.linalg`. Factorisations run in NumPy on the host; products are recorded."""

from typing import TYPE_CHECKING, Any

from calque.base.errors import LinAlgError
from calque.functional.blame import framed
from calque.functional.common import require_tensors
from calque.functional.complex import conj
from calque.functional.declared import takes_out
from calque.functional.decompositions import cholesky as _cholesky
from calque.functional.decompositions import (
    cond,
    eigh,
    eigvalsh,
    inv,
    lstsq,
    matrix_norm,
    matrix_rank,
    norm,
    pinv,
    qr,
    solve,
    svd,
    svdvals,
)
from calque.functional.decompositions import det as _det
from calque.functional.decompositions import slogdet as _slogdet
from calque.functional.distances import cross as _cross
from calque.functional.later import resolver
from calque.functional.linalg import matmul, matrix_power, multi_dot
from calque.functional.precision import lower_precision
from calque.functional.reductions import vector_norm
from calque.functional.windows import diagonal as _diagonal
from calque.tensor import Tensor

if TYPE_CHECKING:
    from calque.functional.eigen import eig, eigvals
    from calque.functional.lu import cholesky_ex, inv_ex, ldl_factor, ldl_factor_ex, ldl_solve, lu_factor, lu_factor_ex, solve_ex, solve_triangular
    from calque.functional.lu import linalg_lu as lu
    from calque.functional.lu import linalg_lu_solve as lu_solve
    from calque.functional.matrices import householder_product, tensorinv, tensorsolve
    from calque.functional.matrices import linalg_matrix_exp as matrix_exp
    from calque.functional.matrices import linalg_vander as vander

__all__ = [
    "LinAlgError", "cholesky", "cholesky_ex", "cond", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh",
    "householder_product", "inv", "inv_ex",
    "ldl_factor", "ldl_factor_ex", "ldl_solve", "lstsq", "lu", "lu_factor", "lu_factor_ex", "lu_solve", "matmul", "matrix_exp", "matrix_norm",
    "matrix_power", "matrix_rank", "multi_dot", "norm", "pinv", "qr", "slogdet", "solve", "solve_ex", "solve_triangular", "svd", "svdvals",
    "tensorinv", "tensorsolve", "vander", "vecdot", "vector_norm",
]  # fmt: skip


@takes_out
def cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    """Lower L with `L @ L^T = A` for symmetric positive-definite A (or the upper L^T): (*, n, n) -> (*, n, n)."""
    return _cholesky(A, upper)


@takes_out
def det(A: Tensor) -> Tensor:
    """Determinant: (*, n, n) -> (*)."""
    return _det(A)


@takes_out
def slogdet(A: Tensor) -> Any:
    """Sign and logarithm of the absolute determinant: (*, n, n) -> (*), (*)."""
    return _slogdet(A)


@takes_out
def cross(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """Vector product along a dim of size 3: (*), (*) -> (*), broadcast."""
    return _cross(input, other, dim)


def diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """View of the diagonals of the last two dims."""
    return _diagonal(A, offset, dim1, dim2)


@takes_out
@lower_precision
def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """Inner products along a dim: (*), (*) -> (* without dim), broadcast."""
    require_tensors("vecdot", x, y)
    return (conj(x) * y).sum(dim)


globals().update(framed({name: globals()[name] for name in __all__ if name in globals()}, __name__))
__getattr__ = resolver(
    globals(),
    {
        "calque.functional.eigen": "eig eigvals",
        "calque.functional.lu": "cholesky_ex inv_ex ldl_factor ldl_factor_ex ldl_solve lu=linalg_lu lu_factor lu_factor_ex lu_solve=linalg_lu_solve "
        "solve_ex solve_triangular",
        "calque.functional.matrices": "householder_product matrix_exp=linalg_matrix_exp tensorinv tensorsolve vander=linalg_vander",
    },
)
