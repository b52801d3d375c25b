"""Distances and similarities between rows."""

from __future__ import annotations

from typing import Any

from calque import functional as T
from calque.base.errors import ArgumentError, DTypeError, ShapeError
from calque.functional.common import cast, require_fractions, require_real, require_tensors
from calque.functional.declared import public
from calque.functional.distances import row_distance
from calque.tensor import Tensor


@public(method=False, of="calque nn.functional", steps=True)
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """x1 . x2 / (max(|x1|, eps) max(|x2|, eps)) along `dim`, which disappears.

    >>> import calque
    >>> calque.nn.functional.cosine_similarity(calque.tensor([[1.0, 0.0]]), calque.tensor([[1.0, 1.0]]))
    tensor([0.7071])
    """
    require_real("cosine_similarity", x1, x2)
    require_tensors("cosine_similarity", x1, x2)
    kind = T.result_type(x1, x2)
    if not kind.is_floating_point:
        raise DTypeError(f"[cosine_similarity] expected common dtype to be floating point, yet common dtype is {kind!r}; convert with .float()")
    x1, x2 = cast(x1, kind), cast(x2, kind)
    if x1._layout.shape != x2._layout.shape:
        x1, x2 = T.broadcast_tensors(x1, x2)
    lengths = [T.clamp(T.norm(x, 2, dim, True), min=float(eps)) for x in (x1, x2)]
    return T.sum((x1 / lengths[0]) * (x2 / lengths[1]), dim)


@public(of="nn.functional", steps=True)
def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    """p-norm of x1 - x2 + eps over the last dim: (N, D), (N, D) -> (N)."""
    require_tensors("pairwise_distance", x1, x2)
    return T.norm(x1 - x2 + float(eps), p, -1, keepdim)


@public(method=False, of="calque nn.functional")
def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """Distances between all pairs of rows i < j: (N, D) -> (N (N - 1) / 2)."""
    require_real("pdist", input)
    require_tensors("pdist", input)
    require_fractions("pdist", input, bits=32)
    if input._layout.ndim != 2:
        raise ShapeError(f"[pdist] expected a 2-d tensor, rows of vectors, got shape {tuple(input._layout.shape)}; only supports 2D tensors")
    if not p >= 0:
        raise ArgumentError(f"[pdist] expected p >= 0, got {p}; pdist only supports non-negative p values")
    n = input._layout.shape[0]
    rows: Any = [(i, j) for i in range(n) for j in range(i + 1, n)]
    left, right = (T.tensor([pair[k] for pair in rows], dtype=T.tensor(0).dtype) for k in range(2))
    return row_distance(T.index_select(input, 0, left) - T.index_select(input, 0, right), p)
