"""Least squares, through the pseudo-inverse; LAPACK's driver gelsy chooses columns where a matrix is not of full rank."""

from __future__ import annotations

from typing import Any

import numpy as np

from calque.autograd.host import for_all_slices
from calque.base import dtypes as dt
from calque.base.device import META
from calque.base.errors import ArgumentError, ShapeError
from calque.base.text import shown
from calque.functional.arithmetic import abs as magnitude
from calque.functional.creation import zeros
from calque.functional.declared import public
from calque.functional.decompositions import Array, _extents, _host, _least, _matrix, doubled, pinv, svdvals
from calque.functional.formats import in_columns
from calque.functional.linalg import matmul
from calque.functional.math import with_formula
from calque.functional.placing import beside_input
from calque.functional.precision import full_precision
from calque.functional.reductions import sum as total
from calque.functional.results import named_result
from calque.functional.views import squeeze, unsqueeze
from calque.tensor import Tensor, read, upload

LstsqResult = named_result("linalg_lstsq", "solution", "residuals", "rank", "singular_values")


def _triangular(a: Array) -> tuple[Array, Array, Array]:
    """Q and R of a with its columns in an order in which each is the longest that is left, and that order. Source: Golub & Van Loan, 5.4.2."""
    r, (m, n) = a.copy(), a.shape
    q, order = np.eye(m, dtype=a.dtype), np.arange(n)
    for j in range(min(m, n)):
        best = j + int(np.argmax(np.linalg.norm(r[j:, j:], axis=0)))
        r[:, [j, best]], order[[j, best]] = r[:, [best, j]], order[[best, j]]
        v = r[j:, j].copy()
        length = np.linalg.norm(v)
        if not length:
            break
        v[0] += length * (v[0] / abs(v[0]) if v[0] else 1.0)
        v /= np.linalg.norm(v)
        r[j:, j:] -= 2.0 * np.outer(v, v.conj() @ r[j:, j:])
        q[:, j:] -= 2.0 * np.outer(q[:, j:] @ v, v.conj())
    return q, np.triu(r), order


def _known_rank(r: Array, rcond: float) -> int:
    """How many leading columns of R have an estimated condition below 1 / rcond. The estimates of the extreme singular values grow by a column at a
    time. Source: C. Bischof, "Incremental condition estimation" (1990)."""
    size = abs(r[0, 0]) if r.size else 0.0
    if not size:
        return 0
    least = most = size
    low = high = np.ones(1, r.dtype)
    for j in range(1, min(r.shape)):
        column, corner = r[:j, j], r[j, j]
        found = []
        for vector, value, which in ((low, least, -1), (high, most, 0)):
            u, sizes, _ = np.linalg.svd(np.array([[value, vector.conj() @ column], [0.0, corner]]))
            found.append((np.append(vector * u[0, which], u[1, which]), sizes[which]))
        (low, least), (high, most) = found
        if most * rcond > least:
            return j
    return min(r.shape)


def _surely_full(sizes: Array, rcond: float, wide: bool) -> bool:
    """Whether gelsy finds matrices of these singular values to be of full rank. The columns that it chooses of a wide one may be worse than the
    whole, in practice by a small factor."""
    return bool((sizes[..., -1] > (1e4 if wide else 1.0) * rcond * sizes[..., 0]).all())


def _of_known_rank(a: Array, rcond: float) -> tuple[Array, Array]:
    """Matrices without what gelsy neglects, and their ranks."""
    flat = doubled(a).reshape(-1, *a.shape[-2:])
    ranks = np.zeros(len(flat), np.int64)
    for k, matrix in enumerate(flat):
        q, r, order = _triangular(matrix)
        ranks[k] = rank = _known_rank(r, rcond)
        if rank < min(matrix.shape):
            r[rank:] = 0.0
            flat[k][:, order] = q @ r
    return flat.reshape(a.shape).astype(a.dtype), ranks.reshape(a.shape[:-2])


@public(of="linalg")
@full_precision
@beside_input
def lstsq(A: Tensor, B: Tensor, rcond: float | None = None, *, driver: str | None = None) -> Any:
    """X that minimises ||A X - B||, of least norm, through the pseudo-inverse: (*, n, m), (*, n, k) -> (*, m, k). With it the squared residuals
    (*, k) (for n > m and full rank, as the driver says), the rank (*), and the singular values (drivers gelsd and gelss). Singular values below rcond
    times the largest count as 0; gelsy drops columns of the triangular factor instead, and gels takes A to be of full rank."""
    driver = "gelsy" if driver is None else driver
    if driver not in ("gels", "gelsy", "gelsd", "gelss"):
        raise ArgumentError(f"[linalg.lstsq] expected driver 'gels', 'gelsy', 'gelsd' or 'gelss', got {shown(driver)}; leave it out")
    x = _matrix("lstsq", A)
    vector = B._layout.ndim == 1 or B._layout.ndim == x._layout.ndim - 1 and B._layout.shape == x._layout.shape[:-1]
    right = unsqueeze(B, -1) if vector else B
    batch, n, m = _extents(x)
    if right._layout.ndim < 2 or right._layout.shape[-2] != n:
        raise ShapeError(
            f"[linalg.lstsq] expected B with as many rows as A, input.size(-2) should match other.size(-2): got {tuple(A._layout.shape)} and "
            f"{tuple(B._layout.shape)}; one row for each equation"
        )
    bound = None if driver == "gels" else rcond
    sizes = svdvals(x.detach())
    rank = total(sizes > _least("lstsq", x, sizes, None, bound), -1)
    known = x._layout.device is not META
    least = max(n, m) * dt.FInfo(x._layout.dtype).eps if rcond is None else float(rcond)
    surely_full = known and min(n, m) and for_all_slices(lambda s: _surely_full(read(s, "lstsq"), least, n < m), sizes)
    if driver == "gelsy" and known and min(n, m) and not surely_full:
        plain, ranks = _host("lstsq", x.detach(), _of_known_rank, [(*batch, n, m), batch], least)
        rank, kept = upload(ranks, dt.int64), upload(plain, x._layout.dtype)
        x, bound = with_formula("LinalgLstsqBackward0", (x,), lambda: kept, lambda g: (g,), straight=True), None
    solution = matmul(pinv(x, rtol=bound), right)
    nothing = zeros((0,), dtype=x._layout.dtype.to_real())
    residuals = nothing
    if n > m and driver != "gelsy" and known and (driver == "gels" or for_all_slices(lambda r: bool((r == m).all()), rank)):
        residuals = total(magnitude(matmul(A, solution) - right) ** 2, -2)
    return LstsqResult(
        squeeze(solution, -1) if vector else in_columns(solution, "LinalgLstsqBackward0"),
        residuals,
        zeros((0,), dtype=dt.int64) if driver == "gels" else rank,
        sizes if driver in ("gelsd", "gelss") else nothing,
    )
