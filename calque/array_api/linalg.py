"""Linear algebra of the standard, the extension `linalg` included."""

from __future__ import annotations

from typing import Any, NamedTuple

import calque
from calque.array_api.helpers import Axis, checked, dims, require, together
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, ShapeError
from calque.base.text import shown
from calque.tensor import Tensor

_L = calque.linalg


class EighResult(NamedTuple):
    """Eigenvalues in rising order, and eigenvectors as columns."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class QRResult(NamedTuple):
    """An orthonormal and an upper triangular matrix."""

    Q: Tensor
    R: Tensor


class SlogdetResult(NamedTuple):
    """Sign and logarithm of the size of a determinant."""

    sign: Tensor
    logabsdet: Tensor


class SVDResult(NamedTuple):
    """Singular vectors and values."""

    U: Tensor
    S: Tensor
    Vh: Tensor


def matmul(x1: Tensor, x2: Tensor, /) -> Tensor:
    """The matrix product."""
    if 0 in (require("matmul", x1).ndim, require("matmul", x2).ndim):
        raise ShapeError("[matmul] expected arrays with axes, got one of no dims; use multiply")
    return calque.matmul(*together("matmul", x1, x2))


def matrix_transpose(x: Tensor, /) -> Tensor:
    """Matrices with rows and columns exchanged."""
    if require("matrix_transpose", x).ndim < 2:
        raise ShapeError(f"[matrix_transpose] expected at least 2 dims, got {x.ndim}")
    return calque.transpose(x, -1, -2)


def tensordot(x1: Tensor, x2: Tensor, /, *, axes: Any = 2) -> Tensor:
    """The sum of products over pairs of axes."""
    a, b = together("tensordot", x1, x2)
    return calque.tensordot(a, b, axes)


def vecdot(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """The sum of products along an axis, conjugates of x1 with x2."""
    a, b = together("vecdot", x1, x2)
    if not -min(a.ndim, b.ndim) <= axis < 0:
        raise IndexError(f"[vecdot] expected axis in {-min(a.ndim, b.ndim)}..-1, got {axis}")
    if a.shape[axis] != b.shape[axis]:
        raise ShapeError(f"[vecdot] expected equal lengths along the axis, got {a.shape[axis]} and {b.shape[axis]}")
    total = calque.sum(calque.conj(a) * b, axis)
    return total if a._layout.dtype.category >= 2 else total.to(a._layout.dtype)  # type: ignore[attr-defined, no-any-return]


def cholesky(x: Tensor, /, *, upper: bool = False) -> Tensor:
    """The triangular root of positive definite matrices."""
    return _L.cholesky(require("cholesky", x), upper=upper)


def cross(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """The vector product along an axis of length 3."""
    a, b = together("cross", x1, x2)
    if not -min(a.ndim, b.ndim) <= axis < max(a.ndim, b.ndim):
        raise IndexError(f"[cross] expected an axis of both arrays, got {axis}")
    if a.shape[axis] != 3 or b.shape[axis] != 3:
        raise ArgumentError(f"[cross] expected an axis of length 3, got {a.shape[axis]} and {b.shape[axis]}")
    a, b = calque.broadcast_tensors(a, b)
    return _L.cross(a, b, dim=axis)


def det(x: Tensor, /) -> Tensor:
    """Determinants."""
    return _L.det(require("det", x))


def diagonal(x: Tensor, /, *, offset: int = 0) -> Tensor:
    """The diagonals of matrices."""
    return calque.diagonal(require("diagonal", x), offset, -2, -1)


def eigh(x: Tensor, /) -> EighResult:
    """Eigenvalues and eigenvectors of symmetric matrices."""
    return EighResult(*_L.eigh(require("eigh", x)))


def eigvalsh(x: Tensor, /) -> Tensor:
    """Eigenvalues of symmetric matrices."""
    return _L.eigvalsh(require("eigvalsh", x))


def inv(x: Tensor, /) -> Tensor:
    """Inverses."""
    return _L.inv(require("inv", x))


def matrix_norm(x: Tensor, /, *, keepdims: bool = False, ord: Any = "fro") -> Tensor:
    """Norms of matrices."""
    return _L.matrix_norm(require("matrix_norm", x), ord, (-2, -1), keepdims)


def matrix_power(x: Tensor, n: int, /) -> Tensor:
    """Whole powers of matrices."""
    return _L.matrix_power(require("matrix_power", x), n)


def matrix_rank(x: Tensor, /, *, rtol: Any = None) -> Tensor:
    """How many singular values are larger than `rtol` times the largest."""
    if require("matrix_rank", x).ndim < 2:
        raise ShapeError(f"[matrix_rank] expected at least 2 dims, got {x.ndim}")
    values = svdvals(x)
    limit = max(x.shape[-2:]) * calque.finfo(x._layout.dtype).eps if rtol is None else rtol
    limit = limit.unsqueeze(-1) if hasattr(limit, "unsqueeze") else limit
    if not values.shape[-1]:
        return calque.zeros(x.shape[:-2], dtype=dt.int64)
    return calque.sum((values > calque.amax(values, [-1], True) * limit).to(dt.int64), -1)


def outer(x1: Tensor, x2: Tensor, /) -> Tensor:
    """All products of two vectors."""
    if require("outer", x1).ndim != 1 or require("outer", x2).ndim != 1:
        raise ShapeError(f"[outer] expected two vectors, got {x1.ndim} and {x2.ndim} dims")
    return calque.outer(*together("outer", x1, x2))


def pinv(x: Tensor, /, *, rtol: Any = None) -> Tensor:
    """Pseudo-inverses."""
    return _L.pinv(require("pinv", x), rtol=max(x.shape[-2:]) * calque.finfo(x._layout.dtype).eps if rtol is None else rtol)


def qr(x: Tensor, /, *, mode: str = "reduced") -> QRResult:
    """An orthonormal times an upper triangular matrix."""
    if mode not in ("reduced", "complete"):
        raise ArgumentError(f"[qr] expected mode 'reduced' or 'complete', got {shown(mode)}")
    return QRResult(*_L.qr(require("qr", x), mode))


def slogdet(x: Tensor, /) -> SlogdetResult:
    """Sign and logarithm of determinants."""
    return SlogdetResult(*_L.slogdet(require("slogdet", x)))


def solve(x1: Tensor, x2: Tensor, /) -> Tensor:
    """What x1 has to be multiplied with to give x2: a vector if x2 has one dim, else matrices."""
    a, b = together("solve", x1, x2)
    if b.ndim == 1:
        return _L.solve(a, b.unsqueeze(-1)).squeeze(-1)  # type: ignore[attr-defined, no-any-return]
    shape = calque.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return _L.solve(a.expand((*shape, *a.shape[-2:])), b.expand((*shape, *b.shape[-2:])))  # type: ignore[attr-defined]


def svd(x: Tensor, /, *, full_matrices: bool = True) -> SVDResult:
    """Singular values with their vectors."""
    return SVDResult(*_L.svd(require("svd", x), full_matrices))


def svdvals(x: Tensor, /) -> Tensor:
    """Singular values."""
    return _L.svdvals(require("svdvals", x))


def trace(x: Tensor, /, *, offset: int = 0, dtype: Any = None) -> Tensor:
    """Sums of diagonals."""
    found = diagonal(x, offset=offset)
    own = found._layout.dtype
    return calque.sum(found.to(checked("trace", dtype) or (own if own.category >= 2 else dt.int64)), -1)  # type: ignore[attr-defined]


def vector_norm(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False, ord: Any = 2) -> Tensor:
    """Norms along axes, of which several count as one."""
    axes = dims("vector_norm", require("vector_norm", x), axis)
    if x.ndim == 0:
        return calque.abs(x)
    return _L.vector_norm(x, ord, tuple(axes), keepdims)
