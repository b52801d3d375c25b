"""LU factorisations, what is solved with them, and forms of other factorisations that report failures instead of raising. NumPy
computes factors on the host. The gradients are those of a square LU (Walter & Lehmann 2010) and of triangular equations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from calque.base import dtypes as dt
from calque.base.device import META
from calque.base.errors import ArgumentError, LinAlgError
from calque.base.shapes import broadcast_shapes
from calque.functional.checks import require_pivot_count, require_pivots, require_rows
from calque.functional.common import cast, require_one_dtype
from calque.functional.creation import eye, zeros
from calque.functional.declared import public
from calque.functional.decompositions import (
    Array,
    _extents,
    _h,
    _host,
    _matrix,
    _result,
    _t,
    _with_outputs,
    cholesky,
    doubled,
    factor,
    inv,
    solve,
)
from calque.functional.formats import in_columns
from calque.functional.joining import cat
from calque.functional.linalg import matmul
from calque.functional.math import where, with_formula
from calque.functional.placing import beside_input
from calque.functional.precision import full_precision
from calque.functional.results import named_result
from calque.functional.selection import diag_embed, take_along_dim
from calque.functional.views import expand, sum_to_shape, unsqueeze
from calque.functional.windows import narrow
from calque.functional.writing import kept_operand
from calque.tensor import Tensor, upload

LuResult = named_result("linalg_lu", "P", "L", "U")
LuFactorResult = named_result("linalg_lu_factor", "LU", "pivots")
LuFactorExResult = named_result("linalg_lu_factor_ex", "LU", "pivots", "info")
LuWithInfoResult = named_result("_lu_with_info", "LU", "pivots", "info")
LuUnpackResult = named_result("lu_unpack", "P", "L", "U")
InvExResult = named_result("linalg_inv_ex", "inverse", "info")
CholeskyExResult = named_result("linalg_cholesky_ex", "L", "info")
SolveExResult = named_result("linalg_solve_ex", "result", "info")
TriangularResult = named_result("triangular_solve", "solution", "cloned_coefficient")


def _sizes(a: Array) -> Array:
    """What LAPACK chooses pivots by: of complex numbers the sum of the parts, not the magnitude."""
    return np.abs(a.real) + np.abs(a.imag) if a.dtype.kind == "c" else np.abs(a)


def _eliminated(a: Array) -> tuple[Array, Array]:
    """(L and U in one matrix, pivots counted from 1) of a batch of matrices: elimination with partial pivoting."""
    m, n = a.shape[-2:]
    k = min(m, n)
    flat = doubled(a).reshape(math.prod(a.shape[:-2]), m, n)
    pivots = np.zeros((len(flat), k), np.int32)
    every = np.arange(len(flat))
    for j in range(k):
        best = j + np.argmax(_sizes(flat[:, j:, j]), axis=1)
        pivots[:, j] = best + 1
        flat[every, j], flat[every, best] = flat[every, best].copy(), flat[every, j].copy()
        pivot = flat[:, j, j]
        below = flat[:, j + 1 :, j]
        np.divide(below, pivot[:, None], out=below, where=(pivot != 0)[:, None])
        flat[:, j + 1 :, j + 1 :] -= below[:, :, None] * flat[:, j : j + 1, j + 1 :]
    return flat.reshape(a.shape).astype(a.dtype), pivots.reshape(*a.shape[:-2], k)


def _square_lu(x: Tensor) -> list[Tensor]:
    """L and U of square matrices whose rows are in the order of the pivots, with the gradient of Walter and Lehmann."""
    arrays = _host("lu", x, _without_pivots, [tuple(x._layout.shape)] * 2)

    def backward(outputs: Any, grads: list[Any]) -> Tensor:
        low, up = outputs
        inner = None
        if grads[0] is not None:
            inner = (_h(low) @ grads[0]).tril(-1)
        if grads[1] is not None:
            right = (grads[1] @ _h(up)).triu()
            inner = right if inner is None else inner + right
        left = solve_triangular(_h(low), inner, upper=True, unitriangular=True)  # type: ignore[arg-type]
        return solve_triangular(_h(up), left, upper=False, left=False)

    return _with_outputs("LinalgLuBackward0", x, arrays, lambda: _square_lu(x), backward, by_columns=False)


def _without_pivots(a: Array) -> tuple[Array, Array]:
    work = doubled(a)
    for j in range(a.shape[-1]):
        pivot = work[..., j, j][..., None]
        below = work[..., j + 1 :, j]
        np.divide(below, pivot, out=below, where=pivot != 0)
        work[..., j + 1 :, j + 1 :] -= below[..., :, None] * work[..., j : j + 1, j + 1 :]
    low = np.tril(work, -1) + np.eye(a.shape[-1])
    return low.astype(a.dtype), np.triu(work).astype(a.dtype)


def _factors(op: str, A: Tensor, pivot: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """(L, U, pivots); L and U with history."""
    x = _matrix(op, A)
    if not pivot:
        raise ArgumentError(f"[linalg.{op}] LU without pivoting is not implemented on the CPU: expected pivot=True, got False")
    batch, m, n = _extents(x)
    k = min(m, n)
    pivots = upload(_host(op, x, lambda a: _eliminated(a)[1], [(*batch, k)])[0], dt.int32)
    rows = upload(_host(op, pivots, lambda p: _order(p, m), [(*batch, m)])[0], dt.int64)
    ordered = take_along_dim(x, expand(unsqueeze(rows, -1), tuple(x._layout.shape)), -2)
    if not k:
        return narrow(ordered, -1, 0, k), narrow(ordered, -2, 0, k), pivots
    square = narrow(narrow(ordered, -2, 0, k), -1, 0, k)
    low, up = _square_lu(square)
    if m > k:
        rest = narrow(narrow(ordered, -2, k, m - k), -1, 0, k)
        zero = cast(up.diagonal(0, -2, -1) == 0, up._layout.dtype)  # type: ignore[attr-defined]
        low = cat([low, solve_triangular(up + diag_embed(zero), rest, upper=True, left=False)], -2)  # a pivot of 0 has zeros below it
    if n > k:
        rest = narrow(ordered, -1, k, n - k)
        up = cat([up, solve_triangular(narrow(low, -2, 0, k), rest, upper=False, unitriangular=True)], -1)
    return low, up, pivots


def _joined(low: Tensor, up: Tensor) -> Tensor:
    """L below the diagonal and U above it in one matrix."""
    m, n = low._layout.shape[-2], up._layout.shape[-1]
    k = min(m, n)
    low, up = low.tril(-1), up.triu()  # type: ignore[attr-defined]
    batch = tuple(low._layout.shape[:-2])
    if n > k:
        low = cat([low, zeros((*batch, m, n - k), dtype=low._layout.dtype)], -1)
    if m > k:
        up = cat([up, zeros((*batch, m - k, n), dtype=up._layout.dtype)], -2)
    return low + up


def _first_zero(up: Array) -> Array:
    """Where the diagonal of U is zero first, counted from 1; 0 for nowhere."""
    zero = np.diagonal(up, axis1=-2, axis2=-1) == 0
    return np.where(zero.any(-1), zero.argmax(-1) + 1, 0).astype(np.int32) if zero.shape[-1] else np.zeros(zero.shape[:-1], np.int32)


def _info(op: str, up: Tensor) -> Array:
    return _host(op, up, _first_zero, [_extents(up)[0]])[0]


def _permutation(op: str, pivots: Tensor, m: int, kind: dt.DType) -> Tensor:
    """P with A = P (A in the order of the rows that the pivots say)."""

    def table(given: Array) -> Array:
        rows = _order(require_pivots(op, given, m), m)
        found = np.zeros((*rows.shape, m), kind.np)
        np.put_along_axis(found, rows[..., None, :], 1, axis=-2)
        return found

    return upload(_host(op, pivots, table, [(*pivots._layout.shape[:-1], m, m)])[0], kind)


@public("linalg.lu", own=False, out=True)
@full_precision
@beside_input
def linalg_lu(A: Tensor, *, pivot: bool = True) -> Any:
    """A = P L U with a permutation P, L lower triangular with ones on the diagonal, U upper triangular: (*, m, n) -> (*, m, m), (*, m, k), (*, k, n),
    k = min(m, n).

    >>> import calque
    >>> P, L, U = calque.linalg.lu(calque.tensor([[1.0, 2.0], [4.0, 3.0]]))
    >>> L
    tensor([[1.0000, 0.0000],
            [0.2500, 1.0000]])
    """
    low, up, pivots = _factors("lu", A, pivot)
    return LuResult(_permutation("lu", pivots, A._layout.shape[-2], A._layout.dtype), low, up)


@public(of="linalg", out=True)
@full_precision
@beside_input
def lu_factor_ex(A: Tensor, *, pivot: bool = True, check_errors: bool = False) -> Any:
    """`lu_factor` that reports a zero on the diagonal of U (its position, from 1; 0 for none) instead of raising: (*, m, n) -> (*, m, n),
    (*, k) int32, (*) int32."""
    low, up, pivots = _factors("lu_factor_ex", A, pivot)
    info = _info("lu_factor_ex", up)
    if check_errors:
        _refuse_zero("lu_factor_ex", info)
    return LuFactorExResult(in_columns(_joined(low, up), "LinalgLuFactorExBackward0"), pivots, upload(info, dt.int32))


def _refuse_zero(op: str, info: Array) -> None:
    if info.any():
        at = int(info.ravel()[np.flatnonzero(info)[0]])
        raise LinAlgError(
            f"[linalg.{op}] U[{at},{at}] is zero and using it on lu_solve would result in a division by zero: expected a regular matrix, got a "
            "singular one; linalg.lu() and linalg.lu_factor_ex() still factorise it"
        )


@public(of="linalg", out=True)
@full_precision
@beside_input
def lu_factor(A: Tensor, *, pivot: bool = True) -> Any:
    """L (without its ones) and U in one matrix, and the row that each row was exchanged with, from 1: (*, m, n) -> (*, m, n), (*, k) int32.

    >>> import calque
    >>> calque.linalg.lu_factor(calque.tensor([[1.0, 2.0], [4.0, 3.0]])).pivots
    tensor([2, 2], dtype=torch.int32)
    """
    low, up, pivots = _factors("lu_factor", A, pivot)
    if min(A._layout.shape[-2:]) and A._layout.device is not META:
        _refuse_zero("lu_factor", _info("lu_factor", up))
    return LuFactorResult(in_columns(_joined(low, up), "LinalgLuFactorExBackward0"), pivots)


@public()
@full_precision
@beside_input
def lu(input: Tensor, pivot: bool = True, get_infos: bool = False) -> Any:
    """L and U in one matrix, the pivots, and (with `get_infos`) where U has a zero on its diagonal; see `linalg.lu_factor_ex`.

    >>> import calque
    >>> calque.lu(calque.tensor([[1.0, 2.0], [4.0, 3.0]]))[1]
    tensor([2, 2], dtype=torch.int32)
    """
    found = lu_factor_ex(input, pivot=pivot)
    if get_infos:
        return LuWithInfoResult(*found)
    if input._layout.device is not META:
        _refuse_zero("lu", _info("lu", found.LU))
    return found.LU, found.pivots


def _order(pivots: Array, m: int) -> Array:
    """The order of rows after the exchanges that pivots say."""
    flat = pivots.reshape(math.prod(pivots.shape[:-1]), pivots.shape[-1])
    rows = np.tile(np.arange(m), (len(flat), 1))
    every = np.arange(len(flat))
    for j in range(flat.shape[-1]):
        other = flat[:, j] - 1
        rows[every, j], rows[every, other] = rows[every, other].copy(), rows[every, j].copy()
    return rows.reshape(*pivots.shape[:-1], m)


@public(method=False, out=True)
@full_precision
@beside_input
def lu_unpack(LU_data: Tensor, LU_pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True) -> Any:
    """P, L and U of what `lu_factor` gives; what is not asked for is empty: (*, m, n), (*, k) -> (*, m, m), (*, m, k), (*, k, n).

    >>> import calque
    >>> A = calque.tensor([[1.0, 2.0], [4.0, 3.0]])
    >>> P, L, U = calque.lu_unpack(*calque.linalg.lu_factor(A))
    >>> calque.allclose(P @ L @ U, A)
    True
    """
    x = _matrix("lu_unpack", LU_data)
    _, m, n = _extents(x)
    k, kind = min(m, n), x._layout.dtype
    nothing = zeros((0,), dtype=kind)
    low = up = permutation = nothing
    if unpack_data:
        low = narrow(x, -1, 0, k).tril(-1) + eye(m, k, dtype=kind)  # type: ignore[attr-defined]
        up = narrow(x, -2, 0, k).triu()  # type: ignore[attr-defined]
    if unpack_pivots:
        permutation = _permutation("lu_unpack", LU_pivots, m, kind)
    return LuUnpackResult(permutation, low, up)


@public("linalg.lu_solve", own=False, out="exact")
@full_precision
@beside_input
def linalg_lu_solve(LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True, adjoint: bool = False) -> Tensor:
    """X with `A @ X = B` (`X @ A = B` without `left`, A transposed with `adjoint`), from what `lu_factor(A)` gives: (*, n, n), (*, n), (*, n, k) ->
    (*, n, k).

    >>> import calque
    >>> LU, pivots = calque.linalg.lu_factor(calque.tensor([[2.0, 0.0], [0.0, 4.0]]))
    >>> calque.linalg.lu_solve(LU, pivots, calque.ones(2, 1))
    tensor([[0.5000],
            [0.2500]])
    """
    require_pivot_count("lu_solve", pivots._layout.shape, _matrix("lu_solve", LU, square=True)._layout.shape[-1])
    if not left:
        return _h(linalg_lu_solve(LU, pivots, _h(B), adjoint=not adjoint))
    permutation, low, up = lu_unpack(LU, pivots)
    if adjoint:
        inner = solve_triangular(_h(up), B, upper=False)
        return in_columns(matmul(permutation, solve_triangular(_h(low), inner, upper=True, unitriangular=True)), "LinalgLuSolveBackward0")
    inner = solve_triangular(low, matmul(_h(permutation), B), upper=False, unitriangular=True)
    return solve_triangular(up, inner, upper=True)


@public(out="exact")
def lu_solve(input: Tensor, LU_data: Tensor, LU_pivots: Tensor) -> Tensor:
    """`linalg.lu_solve` with the right side first: (*, n, k), (*, n, n), (*, n) -> (*, n, k)."""
    return linalg_lu_solve(LU_data, LU_pivots, input)


def _substituted(a: Array, b: Array) -> Array:
    """Equations of triangular matrices: LAPACK solves those that are regular; others are substituted, and divide by zero."""
    try:
        return np.asarray(np.linalg.solve(a, b))
    except np.linalg.LinAlgError:
        pass
    upper = not np.tril(a, -1).any()
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    x = np.broadcast_to(b, (*batch, *b.shape[-2:])).copy()
    order = range(a.shape[-1])[::-1] if upper else range(a.shape[-1])
    with np.errstate(all="ignore"):
        for j in order:
            x[..., j, :] /= a[..., j, j, None]
            rest = slice(0, j) if upper else slice(j + 1, None)
            x[..., rest, :] -= a[..., rest, j, None] * x[..., None, j, :]
    return x


@public(of="linalg", out="exact")
@full_precision
@beside_input
def solve_triangular(A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    """X with `A @ X = B` (`X @ A = B` without `left`) for a triangular A, whose other half is not read, nor its diagonal with `unitriangular`:
    (*, n, n), (*, n, k) -> (*, n, k), broadcast.

    >>> import calque
    >>> calque.linalg.solve_triangular(calque.tensor([[2.0, 9.0], [1.0, 1.0]]), calque.tensor([[2.0], [3.0]]), upper=False)
    tensor([[1.],
            [2.]])
    """
    if not left:
        return in_columns(_t(solve_triangular(_t(A), _t(B), upper=not upper, unitriangular=unitriangular)), "LinalgSolveTriangularBackward0")
    x, _ = _matrix("solve_triangular", A, square=True), _matrix("solve_triangular", B if B._layout.ndim > 1 else A)
    require_rows("solve_triangular", x, B)
    half = x.triu(1 if unitriangular else 0) if upper else x.tril(-1 if unitriangular else 0)  # type: ignore[attr-defined]
    whole = half + eye(x._layout.shape[-1], dtype=x._layout.dtype) if unitriangular else half
    return _triangular(whole, B, upper)


def _triangular(half: Tensor, right: Tensor, upper: bool) -> Tensor:
    if right._requires_grad:
        right = kept_operand(right)

    def value() -> Tensor:
        batch = broadcast_shapes(_extents(half)[0], _extents(right)[0], op="linalg.solve_triangular")
        return _result("solve_triangular", half, _substituted, (*batch, *right._layout.shape[-2:]), right)

    def backward(g: Tensor) -> tuple[Tensor, Tensor]:
        pulled = solve_triangular(_h(half), g, upper=not upper)  # by the public function, which knows what to do in forward mode
        grad = -(pulled @ _h(solve_triangular(half, right, upper=upper)))
        grad = grad.triu() if upper else grad.tril()
        return sum_to_shape(grad, tuple(half._layout.shape)), sum_to_shape(pulled, tuple(right._layout.shape))

    return with_formula("LinalgSolveTriangularBackward0", (half, right), value, backward)


@public(out=True)
def triangular_solve(input: Tensor, A: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False) -> Any:
    """X with `A @ X = input` for a triangular A, and a copy of A: (*, n, k), (*, n, n) -> (*, n, k), (*, n, n). See `linalg.solve_triangular`."""
    require_one_dtype("triangular_solve", A, input)
    coefficients, half = (_t(A), not upper) if transpose else (A, upper)
    return TriangularResult(solve_triangular(coefficients, input, upper=half, unitriangular=unitriangular), in_columns(A.clone()))  # type: ignore[attr-defined]


def _regular(x: Tensor, info: Array) -> Tensor:
    """Singular matrices replaced by the identity, so that the others are factorised."""
    if not info.any():
        return x
    bad = unsqueeze(unsqueeze(upload(info != 0, dt.bool_), -1), -1)
    return where(bad, eye(x._layout.shape[-1], dtype=x._layout.dtype), x)  # type: ignore[no-any-return]


def _spoiled(found: Tensor, info: Array, extra: int = 2) -> Tensor:
    if not info.any():
        return found
    bad = upload(info != 0, dt.bool_)
    for _ in range(extra):
        bad = unsqueeze(bad, -1)
    return where(bad, math.nan, found)  # type: ignore[no-any-return]


def _singularity(op: str, x: Tensor, check_errors: bool) -> Array:
    info = _host(op, x, lambda a: _first_zero(_eliminated(a)[0]), [_extents(x)[0]])[0]
    if check_errors and info.any():
        at = int(info.ravel()[np.flatnonzero(info)[0]])
        raise LinAlgError(
            f"[linalg.{op}] The diagonal element {at} is zero, the inversion could not be completed because the input matrix is singular: expected "
            "a regular matrix; leave out check_errors"
        )
    return info


@public(of="linalg", out=True)
@full_precision
@beside_input
def inv_ex(A: Tensor, *, check_errors: bool = False) -> Any:
    """Inverse, and 0 or the position (from 1) of the zero that makes a matrix singular, whose inverse is NaN: (*, n, n) -> (*, n, n), (*) int32.

    >>> import calque
    >>> calque.linalg.inv_ex(calque.zeros(2, 2)).info
    tensor(1, dtype=torch.int32)
    """
    x = _matrix("inv_ex", A, square=True)
    info = _singularity("inv_ex", x, check_errors)
    return InvExResult(_spoiled(inv(_regular(x, info)), info), upload(info, dt.int32))


@public(of="linalg", out=True)
@full_precision
@beside_input
def solve_ex(A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False) -> Any:
    """`linalg.solve`, and 0 or the position (from 1) of the zero that makes a matrix singular, whose solution is NaN: -> like B, (*) int32."""
    x = _matrix("solve_ex", A, square=True)
    info = _singularity("solve_ex", x, check_errors)
    vector = B._layout.ndim == 1 or B._layout.shape == A._layout.shape[:-1]
    return SolveExResult(_spoiled(solve(_regular(x, info), B, left=left), info, 1 if vector else 2), upload(info, dt.int32))


def _indefinite(a: Array) -> Array:
    """The order of the first leading minor that is not positive, 0 for none."""
    info = np.zeros(a.shape[:-2], np.int32)
    for place in np.ndindex(*a.shape[:-2]):
        try:
            factor(a[place])
        except np.linalg.LinAlgError:
            for k in range(1, a.shape[-1] + 1):
                try:
                    factor(a[place][:k, :k])
                except np.linalg.LinAlgError:
                    info[place] = k
                    break
    return info


@public(of="linalg", out=True)
@full_precision
@beside_input
def cholesky_ex(A: Tensor, *, upper: bool = False, check_errors: bool = False) -> Any:
    """`linalg.cholesky`, and 0 or the order of the leading minor that is not positive; then the factor is NaN: (*, n, n) -> (*, n, n), (*) int32.

    >>> import calque
    >>> calque.linalg.cholesky_ex(-calque.eye(2)).info
    tensor(1, dtype=torch.int32)
    """
    x = _matrix("cholesky_ex", A, square=True)
    info = _host("cholesky_ex", x, _indefinite, [_extents(x)[0]])[0]
    if check_errors and info.any():
        at = int(info.ravel()[np.flatnonzero(info)[0]])
        raise LinAlgError(
            f"[linalg.cholesky_ex] The factorization could not be completed because the input is not positive-definite (the leading minor of order "
            f"{at} is not positive-definite): expected a positive-definite matrix"
        )
    return CholeskyExResult(_spoiled(cholesky(_regular(x, info), upper), info), upload(info, dt.int32))
