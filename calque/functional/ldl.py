"""LDL factorisations of symmetric matrices and what is solved with them, computed by NumPy on the host, without gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from calque.autograd.host import Whole
from calque.base import dtypes as dt
from calque.base.device import META
from calque.base.errors import ForwardModeError, LinAlgError
from calque.base.shapes import broadcast_shapes
from calque.functional.checks import require_pivot_dims, require_pivots, require_rows
from calque.functional.common import require_one_dtype
from calque.functional.creation import zeros
from calque.functional.declared import public
from calque.functional.decompositions import Array, _extents, _host, _matrix, _symmetric, doubled
from calque.functional.formats import columns
from calque.functional.lu import _sizes
from calque.functional.placing import beside_input
from calque.functional.results import named_result
from calque.tensor import Tensor, upload

LdlResult = named_result("linalg_ldl_factor", "LD", "pivots")
LdlExResult = named_result("linalg_ldl_factor_ex", "LD", "pivots", "info")
ALPHA = (1 + math.sqrt(17)) / 8


def _unmoved(op: str, x: Tensor, function: Any, shapes: list[Any], *more: Any) -> list[Array]:
    """`_host` for what has no gradient, so no derivative in forward mode either."""
    try:
        return _host(op, x, function, shapes, *more)
    except Whole:
        raise ForwardModeError(f"[{op}] Trying to use forward AD with {op} that does not support it: expected no operand that moves") from None


def _bunch_kaufman(given: Array) -> tuple[Array, Array, int]:
    """(L and D in the lower half, pivots as LAPACK's `sytrf` gives them, position of a zero of D) of one symmetric matrix. Source: Bunch & Kaufman
    1977."""
    a = doubled(np.tril(given))
    n, k, info = a.shape[-1], 0, 0
    pivots = np.zeros(n, np.int32)
    while k < n:
        width, at = 1, k
        own = float(_sizes(a[k, k]))
        below = _sizes(a[k + 1 :, k])
        row = k + 1 + int(below.argmax()) if below.size else k
        largest = float(below.max()) if below.size else 0.0
        if max(own, largest) == 0.0:
            info = info or k + 1
        elif own < ALPHA * largest:
            others = max(_sizes(a[row, k:row]).max(initial=0.0), _sizes(a[row + 1 :, row]).max(initial=0.0))
            if own >= ALPHA * largest * (largest / others):
                at = k
            elif _sizes(a[row, row]) >= ALPHA * others:
                at = row
            else:
                at, width = row, 2
        first = k + width - 1
        if at != first:
            _exchange(a, first, at, k, width)
        _reduce(a, k, width)
        pivots[k : k + width] = at + 1 if width == 1 else -(at + 1)
        k += width
    return a, pivots, info


def _exchange(a: Array, first: int, at: int, k: int, width: int) -> None:
    """Exchange rows and columns of the trailing matrix, of which the lower half is there."""
    a[at + 1 :, [first, at]] = a[at + 1 :, [at, first]]
    between = a[first + 1 : at, first].copy()
    a[first + 1 : at, first] = a[at, first + 1 : at]
    a[at, first + 1 : at] = between
    a[first, first], a[at, at] = a[at, at], a[first, first]
    if width == 2:
        a[first, k], a[at, k] = a[at, k], a[first, k]


def _reduce(a: Array, k: int, width: int) -> None:
    end = k + width
    columns = a[end:, k:end].copy()
    block = a[k:end, k:end]
    whole = np.tril(block) + np.tril(block, -1).T
    if width == 1:
        if whole[0, 0] == 0:
            return
        low = columns / whole[0, 0]
    else:
        low = columns @ np.linalg.inv(whole)
    a[end:, end:] -= np.tril(low @ columns.T)
    a[end:, k:end] = low


@public(of="linalg", out=True)
@beside_input
def ldl_factor_ex(A: Tensor, *, hermitian: bool = False, check_errors: bool = False) -> Any:
    """L and D of a symmetric matrix A (of which the lower half is read) in one matrix, the pivots of Bunch and Kaufman's method, and 0 or the
    position of a zero block of D: (*, n, n) -> (*, n, n), (*, n) int32, (*) int32. Without gradient."""
    x = _matrix("ldl_factor_ex", A, square=True)
    _symmetric("ldl_factor_ex", x, hermitian)
    batch, n, _ = _extents(x)

    def factors(a: Array) -> tuple[Array, Array, Array]:
        table, pivots, info = np.zeros(a.shape, a.dtype), np.zeros(a.shape[:-1], np.int32), np.zeros(a.shape[:-2], np.int32)
        for place in np.ndindex(*info.shape):
            table[place], pivots[place], info[place] = _bunch_kaufman(a[place])
        return table, pivots, info

    table, pivots, info = _unmoved("ldl_factor_ex", x, factors, [(*batch, n, n), (*batch, n), batch])
    if check_errors and info.any():
        raise LinAlgError(f"[linalg.ldl_factor] Found a block of D that is singular at {int(info.max())}: expected a regular matrix")
    return LdlExResult(columns(table, x._layout.dtype), upload(pivots, dt.int32), upload(info, dt.int32))


@public(of="linalg", out=True)
def ldl_factor(A: Tensor, *, hermitian: bool = False) -> Any:
    """`ldl_factor_ex` that raises where D has a zero block: (*, n, n) -> (*, n, n), (*, n) int32.

    >>> import calque
    >>> calque.linalg.ldl_factor(calque.tensor([[4.0, 0.0], [2.0, 3.0]])).LD
    tensor([[4.0000, 0.0000],
            [0.5000, 2.0000]])
    """
    found = ldl_factor_ex(A, hermitian=hermitian, check_errors=True)
    return LdlResult(found.LD, found.pivots)


def _solved(table: Array, pivots: Array, b: Array) -> Array:
    """One right side of one factorised matrix: forward, the blocks of D, backward."""
    x, n, k = doubled(b), len(pivots), 0
    steps = []
    while k < n:
        width = 1 if pivots[k] > 0 else 2
        steps.append((k, width, abs(int(pivots[k])) - 1))
        k += width
    for k, width, at in steps:
        first, end = k + width - 1, k + width
        x[[first, at]] = x[[at, first]]
        x[end:] -= table[end:, k:end] @ x[k:end]
    for k, width, _ in steps:
        block = np.tril(table[k : k + width, k : k + width])
        x[k : k + width] = np.linalg.solve(block + np.tril(block, -1).T, x[k : k + width])
    for k, width, at in reversed(steps):
        first, end = k + width - 1, k + width
        x[k:end] -= table[end:, k:end].T @ x[end:]
        x[[first, at]] = x[[at, first]]
    return x


@public(of="linalg", out="exact")
@beside_input
def ldl_solve(LD: Tensor, pivots: Tensor, B: Tensor, *, hermitian: bool = False) -> Tensor:
    """X with `A @ X = B` from what `ldl_factor(A)` gives: (*, n, n), (*, n), (*, n, k) -> (*, n, k). Without gradient.

    >>> import calque
    >>> calque.linalg.ldl_solve(*calque.linalg.ldl_factor(calque.tensor([[4.0, 2.0], [2.0, 3.0]])), calque.tensor([[8.0], [8.0]]))
    tensor([[1.],
            [2.]])
    """
    x = _matrix("ldl_solve", LD, square=True)
    _symmetric("ldl_solve", x, hermitian)
    require_pivot_dims("ldl_solve", tuple(x._layout.shape), tuple(pivots._layout.shape))
    require_rows("ldl_solve", x, B)
    require_one_dtype("ldl_solve", x, B)
    batch = broadcast_shapes(_extents(x)[0], tuple(B._layout.shape[:-2]), op="linalg.ldl_solve")
    shape = (*batch, *B._layout.shape[-2:])
    if x._layout.device is META:
        return zeros(shape, dtype=x._layout.dtype)

    def solutions(table: Array, numbers: Array, right: Array) -> Array:
        tables, right = np.broadcast_to(table, (*batch, *table.shape[-2:])), np.broadcast_to(right, shape)
        rows = np.broadcast_to(require_pivots("ldl_solve", numbers, table.shape[-1], True), (*batch, table.shape[-1]))
        out = np.zeros(shape, table.dtype)
        for place in np.ndindex(*batch):
            out[place] = _solved(tables[place], rows[place], right[place])
        return out

    return columns(_unmoved("ldl_solve", x, solutions, [shape], pivots, B)[0], x._layout.dtype)
