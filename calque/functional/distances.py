"""Distances and vector products: dist, cdist, cross, pairwise differences along a dim."""

from __future__ import annotations

import math
from typing import Any

from calque.base.errors import ArgumentError, ShapeError
from calque.base.shapes import broadcast_shapes, normalize_dim
from calque.base.text import shown
from calque.functional.arithmetic import sub
from calque.functional.common import linked, prim, require_fractions, require_numbers, require_one_dtype, require_real, require_tensors
from calque.functional.declared import public
from calque.functional.math import where, with_formula
from calque.functional.precision import full_precision
from calque.functional.reductions import vector_norm
from calque.functional.views import expand, unsqueeze
from calque.functional.windows import narrow
from calque.tensor import Tensor

MODES = ("use_mm_for_euclid_dist_if_necessary", "use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist")


@public(steps=True)
def dist(input: Tensor, other: Tensor, p: float = 2) -> Tensor:
    """Norm of order `p` of `input - other`: (*), (*) -> ()."""
    require_tensors("dist", input, other)
    return vector_norm(sub(input, other), p)


@public(method=False, steps=True)
@full_precision
def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str = MODES[0]) -> Tensor:
    """Distances of order `p` between all pairs of rows: (*, n, d), (*, m, d) -> (*, n, m). `compute_mode` says how PyTorch computes them; here
    always by their differences.

    >>> import calque
    >>> calque.cdist(calque.tensor([[0.0, 0.0]]), calque.tensor([[3.0, 4.0], [0.0, 1.0]]))
    tensor([[5., 1.]])
    """
    require_real("cdist", x1, x2)
    require_fractions("cdist", x1, x2, bits=32)
    require_one_dtype("cdist", x1, x2)
    if x1._layout.ndim < 2 or x2._layout.ndim < 2 or x1._layout.shape[-1] != x2._layout.shape[-1]:
        raise ShapeError(
            "[cdist] X1 and X2 must have the same number of columns and at least two dimensions, got shapes "
            f"{tuple(x1._layout.shape)} and "
            f"{tuple(x2._layout.shape)}"
        )
    if compute_mode not in MODES:
        raise ArgumentError(f"[cdist] expected compute_mode as one of {', '.join(MODES)}, got {shown(compute_mode)}: no valid value for compute_mode")
    if p < 0:
        raise ArgumentError(f"[cdist] cdist only supports non-negative p values, got {p}")
    return row_distance(sub(unsqueeze(x1, -2), unsqueeze(x2, -3)), p)


def row_distance(apart: Tensor, p: float) -> Tensor:
    """Norm of order `p` along the last dim, for `cdist` and `pdist`: for p=inf every coordinate that is farthest apart has the whole gradient, as in
    PyTorch, where those of `vector_norm` share it."""
    if not apart._layout.shape[-1]:
        return prim("sum", apart, (apart._layout.ndim - 1,), False)
    if p != math.inf:
        return vector_norm(apart, p, -1)

    def backward(g: Tensor) -> tuple[Tensor]:
        size = prim("abs", apart)
        farthest = size == prim("amax", size, (size._layout.ndim - 1,), True)
        return (linked(where(farthest, unsqueeze(g, -1) * prim("sign", apart), 0.0), apart),)

    return with_formula("CdistBackward0", (apart,), lambda: vector_norm(apart, p, -1), backward)


@public(method=False)
def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    """Distances of order `p` between corresponding rows, `eps` added to the differences: (*, d), (*, d) -> (*)."""
    require_tensors("pairwise_distance", x1, x2)
    return vector_norm(sub(x1, x2) + eps, p, -1, keepdim)


@public(out="exact", steps=True)
def cross(input: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    """Vector product along a dim of size 3 (default: the first such dim): (*), (*) -> (*), broadcast.

    >>> import calque
    >>> calque.cross(calque.tensor([1, 0, 0]), calque.tensor([0, 1, 0]))
    tensor([0, 0, 1])
    """
    if input._layout.ndim != other._layout.ndim:
        raise ShapeError(
            f"[cross] expected inputs with the same number of dimensions, got shapes {tuple(input._layout.shape)} and "
            f"{tuple(other._layout.shape)}; add dimensions with unsqueeze(...)"
        )
    shape = broadcast_shapes(tuple(input._layout.shape), tuple(other._layout.shape), op="cross")
    if dim is None:
        dim = next((d for d, extent in enumerate(shape) if extent == 3), None)
        if dim is None:
            raise ShapeError(f"[cross] no dimension of size 3 in input: got shape {shape}")
    d = normalize_dim(dim, len(shape), "cross")
    if not shape or not input._layout.shape[d] == other._layout.shape[d] == 3:
        raise ShapeError(
            f"[cross] inputs dimension {d} must have length 3, got shapes {tuple(input._layout.shape)} and "
            f"{tuple(other._layout.shape)}"
        )
    require_numbers("cross", input, other)
    require_one_dtype("cross", input, other)
    a, b = expand(input, shape), expand(other, shape)
    left = [narrow(a, d, k, 1) for k in range(3)]
    right = [narrow(b, d, k, 1) for k in range(3)]
    parts = [left[i] * right[j] - left[j] * right[i] for i, j in ((1, 2), (2, 0), (0, 1))]
    return prim("cat", *parts, d)


@public(out="exact")
def diff(input: Tensor, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Tensor:
    """Differences of neighbours along `dim`, taken `n` times: (*, k, *) -> (*, k - n, *). Of bool: whether they differ.

    >>> import calque
    >>> calque.diff(calque.tensor([1, 4, 9]))
    tensor([3, 5])
    """
    if not input._layout.ndim:
        raise ShapeError("[diff] diff expects input to be at least one-dimensional, got a 0-d tensor")
    if n < 0:
        raise ArgumentError(f"[diff] order must be non-negative but got {n}")
    d = normalize_dim(dim, input._layout.ndim, "diff")
    parts = [x for x in (prepend, input, append) if x is not None]
    result = prim("cat", *parts, d) if n and len(parts) > 1 else input
    for _ in range(n):
        size = result._layout.shape[d]
        if size == 0:
            break
        high, low = narrow(result, d, 1, size - 1), narrow(result, d, 0, size - 1)
        result = high ^ low if result._layout.dtype.name == "bool" else sub(high, low)
    return prim("copy", result) if result is input else result
