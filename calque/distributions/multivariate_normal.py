"""The multivariate normal distribution."""

from __future__ import annotations

import math
from typing import Any

from calque import functional as T
from calque.base.errors import ArgumentError, ShapeError
from calque.base.shapes import broadcast_shapes
from calque.distributions import constraints
from calque.distributions.distribution import Distribution, located
from calque.distributions.utils import lazy_property, solve_lower, standard_normal
from calque.functional import decompositions as linalg
from calque.tensor import Tensor

__all__ = ["MultivariateNormal"]


def batch_mv(matrices: Tensor, vectors: Tensor) -> Tensor:
    """Matrix times vector, of batches that broadcast: (..., n, m), (..., m) -> (..., n)."""
    return T.squeeze(T.matmul(matrices, T.unsqueeze(vectors, -1)), -1)


def batch_mahalanobis(factor: Tensor, x: Tensor) -> Tensor:
    """x^T (L L^T)^-1 x for lower triangular L: (..., n, n), (..., n) -> (...)."""
    shape = broadcast_shapes(tuple(factor.shape[:-2]), tuple(x.shape[:-1]))
    columns = T.unsqueeze(T.expand(x, (*shape, x.shape[-1])), -1)
    return T.sum(T.square(solve_lower(T.expand(factor, (*shape, *factor.shape[-2:])), columns)), (-2, -1))


def precision_to_scale_tril(precision: Tensor) -> Tensor:
    """The Cholesky factor of the inverse, from that of the matrix with its rows and columns reversed."""
    flipped = linalg.cholesky(T.flip(precision, (-2, -1)))
    inverse = T.flip(flipped, (-2, -1)).mT
    unit = T.eye(precision.shape[-1], dtype=precision.dtype, device=precision.device)
    return solve_lower(inverse, T.expand(unit, tuple(inverse.shape)))


class MultivariateNormal(Distribution):
    """Normal vectors with mean `loc` (..., n) and a covariance, given as one of three matrices (..., n, n).

    covariance_matrix: positive definite. precision_matrix: its inverse. scale_tril: its lower Cholesky factor, the fastest, as nothing is factored.

    >>> import calque
    >>> d = calque.distributions.MultivariateNormal(calque.zeros(2), covariance_matrix=calque.tensor([[2.0, 1.0], [1.0, 2.0]]))
    >>> [round(v, 4) for v in d.variance.tolist()], round(d.log_prob(calque.zeros(2)).item(), 4)
    ([2.0, 2.0], -2.3872)
    """

    arg_constraints: Any = {
        "loc": constraints.real_vector, "covariance_matrix": constraints.positive_definite, "precision_matrix": constraints.positive_definite,
        "scale_tril": constraints.lower_cholesky,
    }  # fmt: skip
    support: Any = constraints.real_vector
    has_rsample = True
    _expands = ("loc", "covariance_matrix", "scale_tril", "precision_matrix")
    _copies = ("_unbroadcasted_scale_tril",)

    def __init__(
        self, loc: Tensor, covariance_matrix: Any = None, precision_matrix: Any = None, scale_tril: Any = None, validate_args: bool | None = None
    ) -> None:
        if loc.dim() < 1:
            raise ShapeError("[MultivariateNormal] loc must be at least one-dimensional.")
        given = {"covariance_matrix": covariance_matrix, "precision_matrix": precision_matrix, "scale_tril": scale_tril}
        held = {name: value for name, value in given.items() if value is not None}
        if len(held) != 1:
            raise ArgumentError("[MultivariateNormal] Exactly one of covariance_matrix or precision_matrix or scale_tril may be specified.")
        ((name, matrix),) = held.items()
        if matrix.dim() < 2:
            raise ShapeError(f"[MultivariateNormal] {name} must be at least two-dimensional, with optional leading batch dimensions")
        batch = broadcast_shapes(tuple(matrix.shape[:-2]), tuple(loc.shape[:-1]))
        self.__dict__[name] = T.expand(matrix, (*batch, -1, -1))
        self.loc = T.expand(loc, (*batch, -1))
        super().__init__(batch, self.loc.shape[-1:], validate_args=validate_args)
        if name == "scale_tril":
            self._unbroadcasted_scale_tril = matrix
        else:
            self._unbroadcasted_scale_tril = linalg.cholesky(matrix) if name == "covariance_matrix" else precision_to_scale_tril(matrix)

    def _spread(self, matrix: Tensor) -> Tensor:
        return T.expand(matrix, tuple(self._batch_shape + self._event_shape + self._event_shape))

    @lazy_property
    def scale_tril(self) -> Any:
        """Lower Cholesky factor of the covariance."""
        return self._spread(self._unbroadcasted_scale_tril)

    @lazy_property
    def covariance_matrix(self) -> Any:
        """The covariance."""
        factor = self._unbroadcasted_scale_tril
        return self._spread(T.matmul(factor, factor.mT))

    @lazy_property
    def precision_matrix(self) -> Any:
        """Inverse of the covariance."""
        factor = self._unbroadcasted_scale_tril
        unit = T.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
        inverse = solve_lower(factor, T.expand(unit, tuple(factor.shape)))
        return self._spread(T.matmul(inverse.mT, inverse))

    mean: Any = located
    mode: Any = located

    @property
    def variance(self) -> Tensor:
        return T.expand(T.sum(T.square(self._unbroadcasted_scale_tril), -1), tuple(self._batch_shape + self._event_shape))

    def _half_log_det(self) -> Tensor:
        return T.sum(T.log(T.diagonal(self._unbroadcasted_scale_tril, 0, -2, -1)), -1)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.loc + batch_mv(self._unbroadcasted_scale_tril, standard_normal(self._extended_shape(sample_shape), self.loc))

    def log_prob(self, value: Tensor) -> Tensor:
        away = batch_mahalanobis(self._unbroadcasted_scale_tril, self._checked(value) - self.loc)
        return -0.5 * (self._event_shape[0] * math.log(2 * math.pi) + away) - self._half_log_det()

    def entropy(self) -> Tensor:
        found = 0.5 * self._event_shape[0] * (1.0 + math.log(2 * math.pi)) + self._half_log_det()
        return T.expand(found, tuple(self._batch_shape))
