"""Products of sparse matrices, and softmax along their listed elements: gathers, products of elements and sums by place."""

from __future__ import annotations

from typing import Any

import numpy as np

from calque import functional as T
from calque.base.errors import ArgumentError, DTypeError, ShapeError, UnsupportedTypeError
from calque.base.text import shown
from calque.functional.common import cast, dtype_of, is_tensor, prim
from calque.functional.sparse.rules import expanded, in_form
from calque.functional.sparse.tensor import (
    RULES,
    SparseTensor,
    as_coo,
    build,
    coalesced,
    compressed,
    put_together,
    require_kind,
    rule,
    sparse_dim_of,
    take,
    uploaded,
)
from calque.tensor import Tensor, read


def _matrix(op: str, x: Any) -> Any:
    if not is_tensor(x) or len(x.shape) != 2 or isinstance(x, SparseTensor) and x.sparse != 2:
        raise ShapeError(f"[{op}] expected matrices, got {f'shape {list(x.shape)}' if is_tensor(x) else type(x).__name__}")
    return x


def _checked(op: str, a: Any, b: Any) -> None:
    if a.shape[-1] != b.shape[-2 if len(b.shape) > 1 else 0]:
        raise ShapeError(f"[{op}] mat1 and mat2 shapes cannot be multiplied: expected equal inner sizes, got {list(a.shape)} and {list(b.shape)}")
    if a.dtype is not b.dtype:
        raise DTypeError(f"[{op}] expected m1 and m2 to have the same dtype, but got: {a.dtype} != {b.dtype}; convert one with .to(dtype)")


def _by_dense(a: SparseTensor, b: Tensor) -> Tensor:
    """(n, k) sparse, (k, m) dense -> (n, m): each listed element times the row of its column, summed by its row."""
    weights = T.unsqueeze(a._elements, 1)
    return put_together(weights * take(b, a.rows(1)), a.rows(0), a._extent[0])  # type: ignore[operator]


def _by_sparse(a: SparseTensor, b: SparseTensor) -> SparseTensor:
    """(n, k), (k, m) -> (n, m), all sparse: each element of the first meets the elements of the row of the second that its column names."""
    x, y = coalesced(as_coo(a)), compressed(b, "csr")
    rows, columns = x.places()
    starts = read(y._index[0], "mm").astype(np.int64)
    theirs, mine = expanded(starts[columns], np.diff(starts)[columns])
    elements = take(x._elements, uploaded(x._elements, mine)) * take(y._elements, uploaded(x._elements, theirs))  # type: ignore[operator]
    index = np.stack([rows[mine], y.places()[1][theirs]])
    return coalesced(build("coo", (uploaded(elements, index),), elements, (x._extent[0], y._extent[1]), False))


@rule("mm", "spmm", "dsmm")
def mm(input: Any, mat2: Any) -> Any:
    """The product of two matrices; dense unless both are sparse."""
    _matrix("mm", input), _matrix("mm", mat2)
    _checked("mm", input, mat2)
    if not isinstance(input, SparseTensor):
        return T.t(_by_dense(RULES["t"](mat2), T.t(input)))
    if not isinstance(mat2, SparseTensor):
        return _by_dense(input, mat2)
    return in_form(input if input._kind == mat2._kind else as_coo(input), _by_sparse(input, mat2))


@rule("matmul", "__matmul__")
def matmul(input: Any, other: Any) -> Any:
    """`mm`, `mv` or `bmm`, by the dims of the operands."""
    if not is_tensor(input) or not is_tensor(other):
        raise DTypeError(f"[matmul] expected two Tensors, got {type(input).__name__} and {type(other).__name__}")
    m, n = len(input.shape), len(other.shape)
    if m == 2 and n == 2:
        return mm(input, other)
    if m == 2 and n == 1:
        return mv(input, other)
    if m == 1 and n == 2 and not isinstance(input, SparseTensor):
        return mv(RULES["t"](other), input)
    if m == 3 and n == 3:
        return bmm(input, other)
    raise ShapeError(f"[matmul] expected matrices or a matrix and a vector, got {list(input.shape)} and {list(other.shape)}; nothing is broadcast")


@rule()
def mv(input: Any, vec: Any) -> Any:
    """A matrix times a vector."""
    _matrix("mv", input)
    if len(vec.shape) != 1:
        raise ShapeError(f"[mv] expected a vector, got shape {list(vec.shape)}")
    _checked("mv", input, vec)
    column = RULES["to_dense"](vec) if isinstance(vec, SparseTensor) else vec
    return T.reshape(mm(input, T.unsqueeze(column, 1)), (input.shape[0],))


@rule()
def bmm(input: Any, mat2: Any) -> Tensor:
    """(b, n, k) sparse, (b, k, m) dense -> (b, n, m)."""
    if not isinstance(input, SparseTensor) or isinstance(mat2, SparseTensor) or len(input._extent) != 3 or len(mat2.shape) != 3 or input.sparse != 3:
        raise ShapeError("[bmm] expected a sparse and a dense batch of matrices, (b, n, k) and (b, k, m); convert others with .to_dense()")
    if input.shape[0] != mat2.shape[0]:
        raise ShapeError(f"[bmm] expected equal batch sizes, got shapes {list(input.shape)} and {list(mat2.shape)}")
    _checked("bmm", input, mat2)
    batch, rows, inner = input._extent
    where, columns = input.keys([0, 1]), input.keys([0, 2])
    flat = build("coo", (T.stack([where, columns]),), input._elements, (batch * rows, batch * inner), False)
    return T.reshape(_by_dense(flat, T.reshape(mat2, (batch * inner, -1))), (batch, rows, mat2.shape[2]))


@rule("addmm", "sspaddmm", "saddmm")
def addmm(input: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """beta * input + alpha * (mat1 @ mat2)."""
    product = mm(mat1, mat2)
    if isinstance(input, SparseTensor) and not isinstance(product, SparseTensor):
        raise ArgumentError("[addmm] expected a dense input for a dense product, got a sparse one; convert it with .to_dense()")
    base = input if beta.__class__ is int and beta == 1 else input * beta
    if not isinstance(product, SparseTensor):
        return T.add(base, product, alpha=alpha)
    return RULES["add"](base, product, alpha=alpha)


@rule()
def smm(input: Any, mat2: Any) -> SparseTensor:
    """The product of a sparse and a dense matrix, as a sparse one."""
    return RULES["to_sparse"](RULES["from_dense"](mm(require_kind("smm", input, ["coo"]), mat2)))  # type: ignore[no-any-return]


@rule()
def hspmm(mat1: Any, mat2: Any) -> SparseTensor:
    """The product of a sparse and a dense matrix, whose rows are the dense parts of a sparse tensor."""
    x = coalesced(require_kind("hspmm", mat1, ["coo"]))
    _matrix("hspmm", mat2)
    rows, where = np.unique(x.places()[0], return_inverse=True)
    elements = put_together(T.unsqueeze(x._elements, 1) * take(mat2, x.rows(1)), uploaded(x._elements, where), len(rows))  # type: ignore[operator]
    return build("coo", (uploaded(elements, rows[None]),), elements, (x._extent[0], mat2.shape[1]))


@rule()
def linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """input @ weight.T + bias."""
    turned = RULES["t"](weight) if isinstance(weight, SparseTensor) else T.t(weight)
    if isinstance(input, SparseTensor) or input._layout.ndim == 2:
        found = mm(input, turned)
    else:
        shape = tuple(input._layout.shape)
        found = T.reshape(mm(T.reshape(input, (-1, *shape[-1:])), turned), (*shape[:-1], weight.shape[0]))
    return found if bias is None else T.add(found, bias)


REDUCTIONS = ("sum", "mean", "amax", "amin")


def reduced_product(input: Any, mat2: Any, reduce: str = "sum") -> Any:
    """`mm` whose sums over the inner dim may be means or extremes of the listed elements (0 where a row lists none)."""
    if reduce not in REDUCTIONS:
        raise ArgumentError(f"[sparse.mm] reduce argument must be either sum, mean, amax or amin, got {shown(reduce)}")
    if reduce == "sum":
        return mm(input, mat2)
    x = require_kind("sparse.mm with reduce", input, ["csr"])
    _matrix("sparse.mm", mat2)
    _checked("sparse.mm", x, mat2)
    terms = T.unsqueeze(x._elements, 1) * take(mat2, x.rows(1))  # type: ignore[operator]
    zeros = prim("full", (0, terms._layout.dtype), (x._extent[0], mat2.shape[1]))
    where = T.expand(T.unsqueeze(x.rows(0), 1), tuple(terms._layout.shape))
    return T.scatter_reduce(zeros, 0, where, terms, reduce, include_self=False)


def sampled(input: Any, mat1: Tensor, mat2: Tensor, beta: Any = 1, alpha: Any = 1) -> SparseTensor:
    """beta * input + alpha * (mat1 @ mat2), at the places of `input` alone."""
    x = require_kind("sparse.sampled_addmm", input, ["csr", "coo", "csc"])
    _matrix("sparse.sampled_addmm", mat1), _matrix("sparse.sampled_addmm", mat2)
    _checked("sparse.sampled_addmm", mat1, mat2)
    if (mat1.shape[0], mat2.shape[1]) != x._extent:  # type: ignore[attr-defined]
        raise ShapeError(f"[sparse.sampled_addmm] expected a product of shape {list(x._extent)}, got {[mat1.shape[0], mat2.shape[1]]}")  # type: ignore[attr-defined]
    inner = T.sum(take(mat1, x.rows(0)) * take(T.t(mat2), x.rows(1)), 1)  # type: ignore[operator]
    return x._with(x._elements * beta + inner * alpha)  # type: ignore[operator]


def softmax(op: str, input: Any, dim: Any, dtype: Any, log: bool) -> SparseTensor:
    """Softmax along a dim over listed elements alone."""
    x = coalesced(as_coo(require_kind(f"sparse.{op}", input, ["coo", "csr", "csc"])))
    d = sparse_dim_of(op, x, dim)
    elements = x._elements if dtype is None else cast(x._elements, dtype_of(dtype, op))
    if elements._layout.dtype.category < 2:
        raise UnsupportedTypeError(f"[sparse.{op}] expected a floating dtype, got {elements._layout.dtype!r}; convert with .float()")
    if d >= x.sparse:
        inner = d - x.sparse + 1
        return x._with(elements.log_softmax(inner) if log else elements.softmax(inner))  # type: ignore[attr-defined]
    others = [k for k in range(x.sparse) if k != d]
    keys, groups = np.unique(read(x.keys(others), op), return_inverse=True)
    where = uploaded(elements, groups.reshape(-1))
    wide = T.expand(T.reshape(where, (-1, *(1,) * (elements._layout.ndim - 1))), tuple(elements._layout.shape))
    lowest = prim("full", (-np.inf, elements._layout.dtype), (len(keys), *elements._layout.shape[1:]))
    highest = T.scatter_reduce(lowest, 0, wide, elements.detach(), "amax") if x.count else lowest  # type: ignore[attr-defined]
    shifted = elements - take(highest, where)  # type: ignore[operator]
    sums = put_together(T.exp(shifted), where, len(keys))
    return in_form(input, x._with(shifted - take(T.log(sums), where) if log else T.exp(shifted) / take(sums, where)))

