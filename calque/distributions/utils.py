"""What distributions share: broadcasting of parameters, probabilities and logits, triangular matrices, values computed once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from calque import functional as T
from calque.autograd.host import for_all_slices
from calque.autograd.modes import enable_grad
from calque.base.dtypes import FInfo, get_default_dtype, int64
from calque.base.errors import ArgumentError, ShapeError
from calque.base.text import described
from calque.functional.common import is_number, is_tensor, prim
from calque.functional.lu import solve_triangular
from calque.nn import functional as F
from calque.record.recorder import add_check, local
from calque.tensor import Tensor, slot_of

__all__ = [
    "broadcast_all", "clamp_probs", "euler_constant", "lazy_property", "logits_to_probs", "probs_to_logits", "tril_matrix_to_vec",
    "vec_to_tril_matrix",
]  # fmt: skip

euler_constant = 0.5772156649015329


def broadcast_all(*values: Any) -> tuple[Tensor, ...]:
    """Tensors and numbers as Tensors of one shape; numbers take the dtype of the first Tensor, or the default one.

    >>> import calque
    >>> from calque.distributions.utils import broadcast_all
    >>> [tuple(x.shape) for x in broadcast_all(1.0, calque.zeros(3, 1), calque.zeros(2))]
    [(3, 2), (3, 2), (3, 2)]
    """
    first = None
    for v in values:
        if is_tensor(v):
            first = v if first is None else first
        elif not is_number(v):
            raise ArgumentError(f"[distributions] Input arguments must all be instances of Number or Tensor, got {described(v)}")
    dtype, device = (get_default_dtype(), None) if first is None else (first.dtype, first.device)
    return tuple(T.broadcast_tensors(*(v if is_tensor(v) else T.tensor(v, dtype=dtype, device=device) for v in values)))


def holds(flags: Tensor) -> bool:
    """Whether all flags are set; inside `vmap` those of all slices. In an export each call looks, as at indices."""
    trace = local.state.trace
    if trace.exports:
        found = prim("where", T.all(flags), (-1, int64), (0, int64))
        add_check(slot_of(trace, found), lambda position: ArgumentError("[distribution] expected values that its constraints allow"))
        return True
    return bool(for_all_slices(T.all, flags))


def sum_rightmost(value: Any, count: int) -> Any:
    """The sum over the last `count` dims."""
    return T.sum(T.reshape(value, (*value.shape[: value.dim() - count], -1)), -1) if count else value


def logits_to_probs(logits: Tensor, is_binary: bool = False) -> Tensor:
    """Probabilities of logits: their sigmoid, or softmax over the last dim.

    >>> import calque
    >>> calque.distributions.utils.logits_to_probs(calque.zeros(2)).tolist()
    [0.5, 0.5]
    """
    return T.sigmoid(logits) if is_binary else F.softmax(logits, -1)


def clamp_probs(probs: Tensor) -> Tensor:
    """Probabilities moved away from 0 and 1 by the `eps` of their dtype, so that logarithms are finite."""
    eps = FInfo(probs.dtype).eps
    return T.clamp(probs, eps, 1 - eps)


def probs_to_logits(probs: Tensor, is_binary: bool = False) -> Tensor:
    """Logits of probabilities, which are clamped: log(p) - log(1 - p), or log(p) if there are more than two.

    >>> import calque
    >>> calque.distributions.utils.probs_to_logits(calque.tensor(0.5), is_binary=True).item()
    0.0
    """
    inside = clamp_probs(probs)
    return T.log(inside) - T.log1p(-inside) if is_binary else T.log(inside)


class lazy_property:
    """A property that is computed once, with gradients, and then an attribute of the instance."""

    def __init__(self, wrapped: Callable[[Any], Any]) -> None:
        self.wrapped = wrapped
        functools.update_wrapper(self, wrapped)  # type: ignore[arg-type]

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return _LazyProperty(self.wrapped)
        with enable_grad():
            value = self.wrapped(instance)
        setattr(instance, self.wrapped.__name__, value)
        return value


class _LazyProperty(lazy_property, property):
    """What a class shows where an instance has the value: documentation tools know a property."""

    def __init__(self, wrapped: Callable[[Any], Any]) -> None:
        property.__init__(self, wrapped)


def tril_matrix_to_vec(mat: Tensor, diag: int = 0) -> Tensor:
    """The lower triangle of matrices, row by row: (..., n, n) -> (..., n (n + 1) / 2) for diag 0.

    >>> import calque
    >>> calque.distributions.utils.tril_matrix_to_vec(calque.arange(9.0).view(3, 3), diag=-1).tolist()
    [3.0, 6.0, 7.0]
    """
    n = mat.shape[-1]
    if not -n <= diag < n:
        raise ArgumentError(f"[tril_matrix_to_vec] diag ({diag}) provided is outside [{-n}, {n - 1}]")
    rows, columns = T.tril_indices(n, n, diag)
    return mat[..., rows, columns]


def vec_to_tril_matrix(vec: Tensor, diag: int = 0) -> Tensor:
    """Matrices whose lower triangle is given row by row, zeros elsewhere; the inverse of `tril_matrix_to_vec`.

    >>> import calque
    >>> calque.distributions.utils.vec_to_tril_matrix(calque.tensor([1.0, 2.0, 3.0])).tolist()
    [[1.0, 0.0], [2.0, 3.0]]
    """
    length = vec.shape[-1]
    n = max(1, -diag)
    while triangle(n, diag) < length:
        n += 1
    if triangle(n, diag) != length:
        raise ShapeError(
            f"[vec_to_tril_matrix] The size of last dimension is {length} which cannot be expressed as the lower triangular part of a square "
            "D x D matrix"
        )
    rows, columns = T.tril_indices(n, n, diag)
    places = T.expand(rows * n + columns, vec.shape)
    flat = T.zeros((*vec.shape[:-1], n * n), dtype=vec.dtype, device=vec.device)
    return T.reshape(T.scatter(flat, -1, places, vec), (*vec.shape[:-1], n, n))


def triangle(n: int, diag: int) -> int:
    """Number of elements of an n by n matrix up to the diagonal `diag`."""
    return sum(min(n, max(0, row + diag + 1)) for row in range(n))


def standard_normal(shape: Any, like: Tensor) -> Tensor:
    """Normal numbers in the dtype of `like`."""
    return T.randn(tuple(shape), dtype=like.dtype, device=like.device)


def uniform(shape: Any, like: Tensor) -> Tensor:
    """Uniform numbers of [0, 1) in the dtype of `like`."""
    return T.rand(tuple(shape), dtype=like.dtype, device=like.device)


def solve_lower(factor: Tensor, x: Tensor) -> Tensor:
    """L^-1 x for lower triangular L: (*, n, n), (*, n, m) -> (*, n, m)."""
    return solve_triangular(factor, x, upper=False)
