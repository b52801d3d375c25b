"""Multivariate normal distributions whose covariance is of low rank plus a diagonal."""

from __future__ import annotations

import math
from typing import Any

from calque import functional as T
from calque.base.errors import ShapeError
from calque.base.shapes import broadcast_shapes
from calque.distributions import constraints
from calque.distributions.distribution import Distribution, located
from calque.distributions.multivariate_normal import batch_mahalanobis, batch_mv
from calque.distributions.utils import lazy_property, solve_lower, standard_normal
from calque.functional import decompositions as linalg
from calque.tensor import Tensor

__all__ = ["LowRankMultivariateNormal"]


def capacitance_tril(factor: Tensor, diagonal: Tensor) -> Tensor:
    """The Cholesky factor of I + W^T D^-1 W: (..., n, m), (..., n) -> (..., m, m)."""
    inner = T.matmul(factor.mT / T.unsqueeze(diagonal, -2), factor)
    return linalg.cholesky(inner + T.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device))


def lowrank_logdet(diagonal: Tensor, capacitance: Tensor) -> Tensor:
    """log det(W W^T + D), by the matrix determinant lemma."""
    return 2 * T.sum(T.log(T.diagonal(capacitance, 0, -2, -1)), -1) + T.sum(T.log(diagonal), -1)


def lowrank_mahalanobis(factor: Tensor, diagonal: Tensor, x: Tensor, capacitance: Tensor) -> Tensor:
    """x^T (W W^T + D)^-1 x, by Woodbury's identity."""
    inside = batch_mv(factor.mT / T.unsqueeze(diagonal, -2), x)
    return T.sum(T.square(x) / diagonal, -1) - batch_mahalanobis(capacitance, inside)


class LowRankMultivariateNormal(Distribution):
    """Normal vectors with mean `loc` (..., n) and covariance W W^T + D, W = `cov_factor` (..., n, m), D = diag(`cov_diag`) (..., n).

    Costs grow with n m^2 instead of n^3.

    >>> import calque
    >>> d = calque.distributions.LowRankMultivariateNormal(calque.zeros(2), calque.tensor([[1.0], [0.0]]), calque.ones(2))
    >>> d.covariance_matrix.tolist(), d.variance.tolist()
    ([[2.0, 0.0], [0.0, 1.0]], [2.0, 1.0])
    """

    arg_constraints: Any = {
        "loc": constraints.real_vector, "cov_factor": constraints.independent(constraints.real, 2),
        "cov_diag": constraints.independent(constraints.positive, 1),
    }  # fmt: skip
    support: Any = constraints.real_vector
    has_rsample = True
    _expands = ("loc", "cov_factor", "cov_diag")
    _copies = ("_unbroadcasted_cov_factor", "_unbroadcasted_cov_diag", "_capacitance_tril")

    def __init__(self, loc: Tensor, cov_factor: Tensor, cov_diag: Tensor, validate_args: bool | None = None) -> None:
        if loc.dim() < 1:
            raise ShapeError("[LowRankMultivariateNormal] loc must be at least one-dimensional.")
        event = loc.shape[-1:]
        if cov_factor.dim() < 2 or cov_factor.shape[-2:-1] != event:
            raise ShapeError(f"[LowRankMultivariateNormal] cov_factor must be a batch of matrices with shape {event[0]} x m, got {cov_factor.shape}")
        if cov_diag.shape[-1:] != event:
            raise ShapeError(f"[LowRankMultivariateNormal] cov_diag must be a batch of vectors with shape {event}, got {cov_diag.shape}")
        batch = broadcast_shapes(tuple(loc.shape[:-1]), tuple(cov_factor.shape[:-2]), tuple(cov_diag.shape[:-1]))
        self.loc, self.cov_diag = T.expand(loc, (*batch, -1)), T.expand(cov_diag, (*batch, -1))
        self.cov_factor = T.expand(cov_factor, (*batch, -1, -1))
        self._unbroadcasted_cov_factor, self._unbroadcasted_cov_diag = cov_factor, cov_diag
        self._capacitance_tril = capacitance_tril(cov_factor, cov_diag)
        super().__init__(batch, event, validate_args=validate_args)

    def _spread(self, matrix: Tensor) -> Tensor:
        return T.expand(matrix, tuple(self._batch_shape + self._event_shape + self._event_shape))

    mean: Any = located
    mode: Any = located

    @lazy_property
    def variance(self) -> Any:
        """The diagonal of the covariance."""
        found = T.sum(T.square(self._unbroadcasted_cov_factor), -1) + self._unbroadcasted_cov_diag
        return T.expand(found, tuple(self._batch_shape + self._event_shape))

    @lazy_property
    def scale_tril(self) -> Any:
        """Lower Cholesky factor of the covariance."""
        root = T.unsqueeze(T.sqrt(self._unbroadcasted_cov_diag), -1)
        scaled = self._unbroadcasted_cov_factor / root
        inner = T.matmul(scaled, scaled.mT) + T.eye(self._event_shape[0], dtype=root.dtype, device=root.device)
        return self._spread(root * linalg.cholesky(inner))

    @lazy_property
    def covariance_matrix(self) -> Any:
        """The covariance."""
        factor = self._unbroadcasted_cov_factor
        return self._spread(T.matmul(factor, factor.mT) + T.diag_embed(self._unbroadcasted_cov_diag))

    @lazy_property
    def precision_matrix(self) -> Any:
        """Inverse of the covariance."""
        inside = self._unbroadcasted_cov_factor.mT / T.unsqueeze(self._unbroadcasted_cov_diag, -2)
        part = solve_lower(self._capacitance_tril, inside)
        return self._spread(T.diag_embed(T.reciprocal(self._unbroadcasted_cov_diag)) - T.matmul(part.mT, part))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        low = standard_normal((*shape[:-1], self.cov_factor.shape[-1]), self.loc)
        own = T.sqrt(self._unbroadcasted_cov_diag) * standard_normal(shape, self.loc)
        return self.loc + batch_mv(self._unbroadcasted_cov_factor, low) + own

    def _log_det(self) -> Tensor:
        return lowrank_logdet(self._unbroadcasted_cov_diag, self._capacitance_tril)

    def log_prob(self, value: Tensor) -> Tensor:
        away = self._checked(value) - self.loc
        square = lowrank_mahalanobis(self._unbroadcasted_cov_factor, self._unbroadcasted_cov_diag, away, self._capacitance_tril)
        return -0.5 * (self._event_shape[0] * math.log(2 * math.pi) + self._log_det() + square)

    def entropy(self) -> Tensor:
        found = 0.5 * (self._event_shape[0] * (1.0 + math.log(2 * math.pi)) + self._log_det())
        return T.expand(found, tuple(self._batch_shape))
