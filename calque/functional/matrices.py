"""Matrices made of other factors: products of Householder reflections, what a Cholesky factor solves, the matrix exponential, equations of tensors,
and the singular values of large matrices by random projections (Halko et al. 2009)."""

from __future__ import annotations

from math import prod as product
from typing import Any

import numpy as np

from calque.autograd.host import for_all_slices
from calque.base import dtypes as dt
from calque.base.device import META
from calque.base.errors import ArgumentError, LinAlgError, ShapeError
from calque.base.shapes import listed, normalize_dim
from calque.functional.common import cast, linked, require_dims, require_fractions, require_numbers, require_one_dtype
from calque.functional.complex import conj
from calque.functional.creation import arange, eye, ones_like
from calque.functional.declared import public
from calque.functional.decompositions import Array, _h, _host, _matrix, doubled, inv, qr, solve, svd
from calque.functional.formats import columns, in_columns
from calque.functional.joining import cat, flip
from calque.functional.linalg import matmul
from calque.functional.lu import solve_triangular
from calque.functional.math import with_formula
from calque.functional.order import cumprod
from calque.functional.placing import beside_input
from calque.functional.precision import full_precision
from calque.functional.random import randn
from calque.functional.reductions import mean
from calque.functional.results import named_result
from calque.functional.views import expand, permute, reshape, sum_to_shape, unsqueeze
from calque.functional.windows import narrow
from calque.tensor import Tensor, read, upload

GeqrfResult = named_result("geqrf", "a", "tau")
OldQrResult = named_result("qr", "Q", "R")
OldSvdResult = named_result("svd", "U", "S", "V")


# ---------------------------------------------------------------------------------------------------------- Householder reflections


def _reflectors(op: str, input: Tensor, tau: Tensor) -> Tensor:
    x = _matrix(op, input)
    require_dims(op, tau, 1, None, "tau")
    m, n = x._layout.shape[-2:]
    k = tau._layout.shape[-1]
    if n > m or k > n or tuple(tau._layout.shape[:-1]) != tuple(x._layout.shape[:-2]):
        raise ShapeError(
            f"[{op}] expected (*, m, n) with m >= n and tau of shape (*, k) with k <= n, got {tuple(x._layout.shape)} and "
            f"{tuple(tau._layout.shape)}: input.shape[-1] must be greater than or equal to tau.shape[-1]"
        )
    return x.tril(-1) + eye(m, n, dtype=x._layout.dtype)  # type: ignore[attr-defined, no-any-return]


def _reflected(v: Tensor, tau: Tensor, other: Tensor, order: Any) -> Tensor:
    """The reflections I - tau_i v_i v_i^T applied to the rows of `other`, one after the other."""
    for i in order:
        column = narrow(v, -1, i, 1)
        other = other - (narrow(tau, -1, i, 1).unsqueeze(-1) * column) @ (_h(column) @ other)  # type: ignore[attr-defined]
    return other


@public(of="linalg", out=True, steps=True)
@full_precision
def householder_product(A: Tensor, tau: Tensor) -> Tensor:
    """The first n columns of the product of k reflections `I - tau_i v_i v_i^T`, v_i below the diagonal of A: (*, m, n), (*, k) -> (*, m, n).

    >>> import calque
    >>> calque.linalg.householder_product(*calque.geqrf(calque.tensor([[3.0], [4.0]])))
    tensor([[-0.6000],
            [-0.8000]])
    """
    require_one_dtype("householder_product", A, tau)
    v = _reflectors("householder_product", A, tau)
    start = expand(eye(*v._layout.shape[-2:], dtype=v._layout.dtype, device=v._layout.device), tuple(v._layout.shape))
    found = linked(_reflected(v, tau, start, range(tau._layout.shape[-1])[::-1]), A, tau)  # there may be no reflection
    return in_columns(found, "LinalgHouseholderProductBackward0")


@public(out=True)
def orgqr(input: Tensor, input2: Tensor) -> Tensor:
    """The same as `linalg.householder_product`: (*, m, n), (*, k) -> (*, m, n)."""
    return householder_product(input, input2)


@public(out="exact", steps=True)
@full_precision
def ormqr(input: Tensor, input2: Tensor, input3: Tensor, left: bool = True, transpose: bool = False) -> Tensor:
    """`Q @ input3` (`input3 @ Q` without `left`, Q transposed with `transpose`) for the m x m product Q of the reflections of `geqrf`:
    (*, m, n), (*, k), (*, m, p) -> (*, m, p).

    >>> import calque
    >>> a, tau = calque.geqrf(calque.tensor([[3.0], [4.0]]))
    >>> calque.ormqr(a, tau, calque.tensor([[3.0], [4.0]]), transpose=True).round(decimals=4)
    tensor([[-5.],
            [ 0.]])
    """
    v = _reflectors("ormqr", input, input2)
    if input3._layout.shape[:-2] != v._layout.shape[:-2]:
        batch, given = tuple(v._layout.shape[:-2]), tuple(input3._layout.shape)
        raise ShapeError(f"[ormqr] expected `other` with the batch dims of input, {batch}, got shape {given}; expand it")
    if not left:
        return in_columns(_h(ormqr(input, input2, _h(input3), True, not transpose)), "OrmqrBackward0")
    if input3._layout.ndim < 2 or input3._layout.shape[-2] != v._layout.shape[-2]:
        raise ShapeError(f"[ormqr] expected `other` with {v._layout.shape[-2]} rows, got shape {tuple(input3._layout.shape)}")
    order = range(input2._layout.shape[-1])
    found = _reflected(v, conj(input2) if transpose else input2, input3, order if transpose else order[::-1])
    return in_columns(found, "OrmqrBackward0")


@public(out=True)
@beside_input
def geqrf(input: Tensor) -> Any:
    """R on and above the diagonal, the reflections that give Q below it, and their factors: (*, m, n) -> (*, m, n), (*, min(m, n)). Without gradient.

    >>> import calque
    >>> calque.geqrf(calque.tensor([[3.0], [4.0]])).tau
    tensor([1.6000])
    """
    x = _matrix("geqrf", input)
    *batch, m, n = x._layout.shape

    def raw(a: Array) -> tuple[Array, Array]:
        if not a.size:
            return a, np.zeros((*batch, min(m, n)), a.dtype)
        h, tau = np.linalg.qr(a, mode="raw")
        return np.swapaxes(h, -1, -2), tau

    found, tau = _host("geqrf", x, raw, [(*batch, m, n), (*batch, min(m, n))])
    return GeqrfResult(columns(found, x._layout.dtype), upload(tau, x._layout.dtype))


@public("qr", own=False, out=True)
def old_qr(input: Tensor, some: bool = True) -> Any:
    """A = Q R, reduced or (without `some`) complete; see `linalg.qr`: (*, n, m) -> (*, n, k), (*, k, m)."""
    return OldQrResult(*qr(input, "reduced" if some else "complete"))


@public("svd", own=False, out=True)
def old_svd(input: Tensor, some: bool = True, compute_uv: bool = True) -> Any:
    """A = U diag(S) V^T; without `compute_uv` U and V are zeros. See `linalg.svd`: (*, n, m) -> (*, n, k), (*, k), (*, m, k)."""
    require_dims("svd", input, 2)
    if not compute_uv:
        *batch, n, m = input._layout.shape
        kind = input._layout.dtype
        nothing = np.zeros((*batch, n, n), kind.np), np.zeros((*batch, m, m), kind.np)
        return OldSvdResult(upload(nothing[0], kind), svd(input, full_matrices=False).S, columns(nothing[1], kind))
    u, s, vh = svd(input, full_matrices=not some)
    return OldSvdResult(u, s, _h(vh))


# ------------------------------------------------------------------------------------------------------------- with a Cholesky factor


def _by_factor(low: Tensor, right: Tensor) -> Tensor:
    return solve_triangular(_h(low), solve_triangular(low, right, upper=False), upper=True)


def _of_factor(g: Tensor, factor: Tensor, upper: bool) -> Tensor:
    """The gradient of a Cholesky factor from that of A. It is a full matrix, computed from all of the factor, as in PyTorch: whoever multiplies out
    A = L L^T gets the same."""
    both = g + _h(g)
    return sum_to_shape(factor @ both if upper else both @ factor, tuple(factor._layout.shape))


@public(out=True)
@full_precision
def cholesky_solve(input: Tensor, input2: Tensor, upper: bool = False) -> Tensor:
    """X with `A @ X = input` where A = L L^T (L^T L with `upper`) for L = input2: (*, n, k), (*, n, n) -> (*, n, k). The other half of L is not read;
    the gradient of L is that of a full matrix.

    >>> import calque
    >>> calque.cholesky_solve(calque.tensor([[4.0]]), calque.tensor([[2.0]]))
    tensor([[1.]])
    """
    require_one_dtype("cholesky_solve", input2, input)

    def value() -> Tensor:
        return _by_factor(_h(input2) if upper else input2, input)

    def backward(g: Tensor) -> tuple[Tensor, Tensor]:
        pulled = cholesky_solve(g, input2, upper)
        of_a = -(pulled @ _h(cholesky_solve(input, input2, upper)))
        return sum_to_shape(pulled, tuple(input._layout.shape)), _of_factor(of_a, input2, upper)

    return with_formula("CholeskySolveBackward0", (input, input2), value, backward)


def _require_pivots_of_factor(x: Tensor) -> None:
    for place in np.argwhere(read(x.diagonal(0, -2, -1), "cholesky_inverse") == 0)[:1]:  # type: ignore[attr-defined]
        raise LinAlgError(
            f"[cholesky_inverse] The diagonal element {place[-1] + 1} is zero, the inversion could not be completed: expected a factor without, got "
            f"one of shape {tuple(x._layout.shape)}; use linalg.pinv"
        )


@public(out=True)
@full_precision
@beside_input
def cholesky_inverse(input: Tensor, upper: bool = False) -> Tensor:
    """The inverse of L L^T (of L^T L with `upper`) for L = input: (*, n, n) -> (*, n, n).

    >>> import calque
    >>> calque.cholesky_inverse(calque.tensor([[2.0]]))
    tensor([[0.2500]])
    """
    x = _matrix("cholesky_inverse", input, square=True)
    if x._layout.device is not META:
        for_all_slices(_require_pivots_of_factor, x)

    def value() -> Tensor:
        return _by_factor(_h(x) if upper else x, expand(eye(x._layout.shape[-1], dtype=x._layout.dtype), tuple(x._layout.shape)))

    def backward(g: Tensor) -> tuple[Tensor]:
        found = cholesky_inverse(x, upper)
        return (_of_factor(-(found @ g @ found), x, upper),)

    return with_formula("CholeskyInverseBackward0", (x,), value, backward)


# ------------------------------------------------------------------------------------------------------------------ exponentials

_PADE = (64764752532480000, 32382376266240000, 7771770303897600, 1187353796428800, 129060195264000, 10559470521600, 670442572800, 33522128640,
         1323241920, 40840800, 960960, 16380, 182, 1)  # fmt: skip


def _exponential(a: Array) -> Array:
    """Scaling, Pade's approximation of degree 13, squaring. Source: N. Higham, "The scaling and squaring method revisited" (2005)."""
    x = doubled(a)
    size = np.abs(x).sum(-2).max(-1, initial=0.0)
    finite = np.where(np.isfinite(size), size, 1.0)
    halvings = np.ceil(np.log2(np.maximum(finite / 5.371920351148152, 1.0))).astype(np.int64)
    x = x / (2.0**halvings)[..., None, None]
    eye_ = np.broadcast_to(np.eye(x.shape[-1]), x.shape)
    x2 = x @ x
    x4 = x2 @ x2
    x6 = x4 @ x2
    b = [float(v) for v in _PADE]
    odd = x @ (x6 @ (b[13] * x6 + b[11] * x4 + b[9] * x2) + b[7] * x6 + b[5] * x4 + b[3] * x2 + b[1] * eye_)
    even = x6 @ (b[12] * x6 + b[10] * x4 + b[8] * x2) + b[6] * x6 + b[4] * x4 + b[2] * x2 + b[0] * eye_
    found = np.linalg.solve(even - odd, even + odd)
    for step in range(int(halvings.max(initial=0))):
        again = (halvings > step)[..., None, None]
        found = np.where(again, found @ found, found)
    return found.astype(a.dtype)


@public()
@full_precision
@beside_input
def matrix_exp(input: Tensor) -> Tensor:
    """`I + A + A @ A / 2 + ...`: (*, n, n) -> (*, n, n).

    >>> import calque
    >>> calque.matrix_exp(calque.zeros(2, 2))
    tensor([[1., 0.],
            [0., 1.]])
    """
    if input._layout.dtype.category == 2 and input._layout.dtype.itemsize == 2:  # products are all it takes: 16 bits do as well
        return cast(matrix_exp(cast(input, dt.float32)), input._layout.dtype)
    x = _matrix("matrix_exp", input, square=True)
    n = x._layout.shape[-1]

    def value() -> Tensor:
        return upload(_host("matrix_exp", x, _exponential, [tuple(x._layout.shape)])[0], x._layout.dtype)

    def backward(g: Tensor) -> tuple[Tensor]:
        turned = _h(x)
        nothing = turned * 0.0
        double = cat([cat([turned, g], -1), cat([nothing, turned], -1)], -2)  # its exponential has the derivative in the corner
        return (narrow(narrow(matrix_exp(double), -2, 0, n), -1, n, n),)

    return with_formula("LinalgMatrixExpBackward0", (x,), value, backward)


@public("linalg.matrix_exp", own=False)
def linalg_matrix_exp(A: Tensor) -> Tensor:
    """`I + A + A @ A / 2 + ...`: (*, n, n) -> (*, n, n)."""
    return matrix_exp(A)


# ---------------------------------------------------------------------------------------------------------- equations of tensors


@public(of="linalg", out=True)
@full_precision
def tensorinv(A: Tensor, ind: int = 2) -> Tensor:
    """B with `tensordot(B, A, ind)` the identity: A of shape (*s, *t) with `ind` dims in s and as many elements in s as in t -> (*t, *s)."""
    shape = tuple(A._layout.shape)
    if ind <= 0:
        raise ArgumentError(f"[linalg.tensorinv] Expected a strictly positive integer for 'ind', got {ind}")
    rows, columns = shape[:ind], shape[ind:]
    if product(rows) != product(columns):
        raise ShapeError(
            f"[linalg.tensorinv] Expected self to satisfy the requirement prod(A.shape[ind:]) == prod(A.shape[:ind]), but got "
            f"{product(columns)} != {product(rows)} for shape {shape}"
        )
    return reshape(inv(reshape(A, (product(rows), product(columns)))), (*columns, *rows))


@public(of="linalg", out=True)
@full_precision
def tensorsolve(A: Tensor, B: Tensor, dims: Any = None) -> Tensor:
    """X with `tensordot(A, X, X.ndim) == B`, after `dims` of A were moved to its end: -> X of shape A.shape[B.ndim:]."""
    if dims is not None:
        n = A._layout.ndim
        moved = [normalize_dim(d, n, "tensorsolve") for d in listed("tensorsolve", "dims", dims)]
        A = permute(A, *[d for d in range(n) if d not in moved], *moved)
    wanted = tuple(A._layout.shape[B._layout.ndim :])
    if product(wanted) != B._layout.numel or A._layout.numel != B._layout.numel**2:
        raise ShapeError(
            f"[linalg.tensorsolve] Expected self to satisfy the requirement prod(A.shape[B.ndim:]) == prod(A.shape[:B.ndim]), but got shapes "
            f"{tuple(A._layout.shape)} and {tuple(B._layout.shape)}"
        )
    flat = reshape(A, (B._layout.numel, product(wanted)))
    return reshape(solve(flat, reshape(B, (B._layout.numel,))), wanted)


@public("linalg.vander", own=False)
def linalg_vander(x: Tensor, N: int | None = None) -> Tensor:
    """Powers 0 to N - 1 (by default as many as elements) of each element, in a new last dim: (*, n) -> (*, n, N).

    >>> import calque
    >>> calque.linalg.vander(calque.tensor([2, 3]))
    tensor([[1, 2],
            [1, 3]])
    """
    count = (x._layout.shape[-1] if x._layout.ndim else 1) if N is None else N
    if count <= 1:
        raise ArgumentError(f"[linalg.vander] N must be greater than 1, expected at least 2, got {count}")
    require_numbers("linalg.vander", x)
    if x._layout.dtype.category == 2:
        require_fractions("linalg.vander", x, bits=32)
    x = cast(x, dt.int64) if x._layout.dtype.category < 2 else x
    rows = x if x._layout.ndim else unsqueeze(x, 0)
    columns = expand(unsqueeze(rows, -1), (*rows._layout.shape, count - 1))
    return cat([unsqueeze(ones_like(rows), -1), cumprod(columns, -1)], -1)


@public(method=False)
def vander(x: Tensor, N: int | None = None, increasing: bool = False) -> Tensor:
    """Powers N - 1 down to 0 (0 up to N - 1 with `increasing`) of each element of a vector: (n) -> (n, N).

    >>> import calque
    >>> calque.vander(calque.tensor([2, 3]), 3)
    tensor([[4, 2, 1],
            [9, 3, 1]])
    """
    if x._layout.ndim != 1:
        raise ShapeError(f"[vander] x must be a one-dimensional tensor, expected shape (n,), got {tuple(x._layout.shape)}")
    count = x._layout.shape[0] if N is None else N
    if count < 0:
        raise ArgumentError(f"[vander] N must be non-negative, expected N >= 0, got {count}")
    kind = dt.int64 if x._layout.dtype.category < 2 else x._layout.dtype
    powers = cast(arange(count), kind)
    found = cast(unsqueeze(x, -1), kind) ** powers
    return found if increasing else flip(found, (1,))


# -------------------------------------------------------------------------------------------------------------- random projections


def _range_of(A: Tensor, q: int, niter: int, M: Tensor | None) -> Tensor:
    """Orthonormal columns that span most of what A reaches."""

    def apply(x: Tensor) -> Tensor:
        return matmul(A, x) if M is None else matmul(A, x) - matmul(M, x)

    def pull(x: Tensor) -> Tensor:
        return matmul(_h(A), x) if M is None else matmul(_h(A), x) - matmul(_h(M), x)

    found = qr(apply(randn(A._layout.shape[-1], q, dtype=A._layout.dtype))).Q
    for _ in range(niter):
        found = qr(apply(qr(pull(found)).Q)).Q
    return found  # type: ignore[no-any-return]


@public(method=False)
def svd_lowrank(A: Tensor, q: int | None = 6, niter: int | None = 2, M: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """The q largest singular values of A (of A - M), or all where there are fewer, nearly, by random projections and `niter` rounds:
    (*, m, n) -> (*, m, q), (*, q), (*, n, q).

    >>> import calque
    >>> [tuple(part.shape) for part in calque.svd_lowrank(calque.ones(20, 9), q=2)]
    [(20, 2), (2,), (9, 2)]
    """
    x = _matrix("svd_lowrank", A)
    q, niter = 6 if q is None else q, 2 if niter is None else niter
    if q < 0:
        raise ArgumentError(f"[svd_lowrank] q must be non-negative, expected q >= 0, got {q}")
    q = min(q, *x._layout.shape[-2:])  # there are no more
    wide = x._layout.shape[-2] < x._layout.shape[-1]
    if M is not None:
        M = expand(M, tuple(x._layout.shape))
    if wide:
        x, M = _h(x), None if M is None else _h(M)
    basis = _range_of(x, q, niter, M)
    rest = x if M is None else x - M
    u, s, vh = svd(matmul(_h(basis), rest), full_matrices=False)
    u, v = matmul(basis, u), _h(vh)
    return (v, s, u) if wide else (u, s, v)


@public(method=False)
def pca_lowrank(A: Tensor, q: int | None = None, center: bool = True, niter: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """The q (by default at most 6) largest principal components of rows, nearly; see `svd_lowrank`: (*, m, n) -> (*, m, q), (*, q), (*, n, q)."""
    x = _matrix("pca_lowrank", A)
    m, n = x._layout.shape[-2:]
    q = min(6, m, n) if q is None else q
    if not 0 <= q <= min(m, n):
        raise ArgumentError(f"[pca_lowrank] q(={q}) must be non-negative integer and not greater than min(m, n)={min(m, n)}")
    if niter < 0:
        raise ArgumentError(f"[pca_lowrank] niter(={niter}) must be non-negative integer")
    return svd_lowrank(x - mean(x, -2, True) if center else x, q, niter)
