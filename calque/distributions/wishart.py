"""The Wishart distribution."""

from __future__ import annotations

import math
import warnings
from typing import Any

from calque import functional as T
from calque.base.dtypes import FInfo
from calque.base.errors import ArgumentError, ShapeError
from calque.base.shapes import broadcast_shapes
from calque.distributions import constraints
from calque.distributions.chi2 import Chi2
from calque.distributions.distribution import ExponentialFamily
from calque.distributions.multivariate_normal import precision_to_scale_tril
from calque.distributions.utils import lazy_property, solve_lower, standard_normal
from calque.functional import decompositions as linalg
from calque.functional.common import is_number
from calque.functional.gamma import mvlgamma
from calque.tensor import Tensor

__all__ = ["Wishart"]


class Wishart(ExponentialFamily):
    """The sum of `df` > n - 1 products x x^T of normal vectors, whose covariance is given as for `MultivariateNormal`: (..., n, n).

    Samples are drawn by Bartlett's decomposition, with gradients to all parameters; for df < n they are often singular, which is warned of.

    >>> import calque
    >>> d = calque.distributions.Wishart(calque.tensor(3.0), covariance_matrix=calque.eye(2))
    >>> d.mean.tolist(), tuple(d.sample((4,)).shape)
    ([[3.0, 0.0], [0.0, 3.0]], (4, 2, 2))
    """

    support: Any = constraints.positive_definite
    has_rsample = True
    _mean_carrier_measure: Any = 0
    _expands = ("df", "covariance_matrix", "scale_tril", "precision_matrix", "_unbroadcasted_scale_tril", "_dist_chi2")

    def __init__(
        self, df: Any, covariance_matrix: Any = None, precision_matrix: Any = None, scale_tril: Any = None, validate_args: bool | None = None
    ) -> None:
        given = {"covariance_matrix": covariance_matrix, "precision_matrix": precision_matrix, "scale_tril": scale_tril}
        held = {name: value for name, value in given.items() if value is not None}
        if len(held) != 1:
            raise AssertionError("[Wishart] Exactly one of covariance_matrix or precision_matrix or scale_tril may be specified.")
        ((name, matrix),) = held.items()
        if matrix.dim() < 2:
            raise ShapeError(f"[Wishart] {name} must be at least two-dimensional, with optional leading batch dimensions")
        if is_number(df):
            df = T.tensor(df, dtype=matrix.dtype, device=matrix.device)
        batch = broadcast_shapes(tuple(matrix.shape[:-2]), tuple(df.shape))
        self.df, n = T.expand(df, batch), matrix.shape[-1]
        if bool(T.any(self.df <= n - 1)):
            raise ArgumentError(f"[Wishart] Value of df={df} expected to be greater than ndim - 1 = {n - 1}.")
        self.__dict__[name] = T.expand(matrix, (*batch, -1, -1))
        if bool(T.any(self.df < n)):
            warnings.warn("Low df values detected. Singular samples are highly likely to occur for ndim - 1 < df < ndim.", stacklevel=2)
        super().__init__(batch, matrix.shape[-2:], validate_args=validate_args)
        if name != "scale_tril":
            matrix = linalg.cholesky(matrix) if name == "covariance_matrix" else precision_to_scale_tril(matrix)
        self._unbroadcasted_scale_tril = T.expand(matrix, (*batch, -1, -1))
        less = T.arange(n, dtype=matrix.dtype, device=matrix.device)
        self._dist_chi2: Any = Chi2(T.unsqueeze(self.df, -1) - less, validate_args=validate_args)

    @property
    def arg_constraints(self) -> dict[str, Any]:
        return {
            "covariance_matrix": constraints.positive_definite, "precision_matrix": constraints.positive_definite,
            "scale_tril": constraints.lower_cholesky, "df": constraints.greater_than(self._event_shape[-1] - 1),
        }  # fmt: skip

    @lazy_property
    def scale_tril(self) -> Any:
        """Lower Cholesky factor of the covariance."""
        return self._unbroadcasted_scale_tril

    @lazy_property
    def covariance_matrix(self) -> Any:
        """The covariance of the normal vectors."""
        return T.matmul(self._unbroadcasted_scale_tril, self._unbroadcasted_scale_tril.mT)

    @lazy_property
    def precision_matrix(self) -> Any:
        """Inverse of the covariance."""
        factor = self._unbroadcasted_scale_tril
        unit = T.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
        inverse = solve_lower(factor, T.expand(unit, tuple(factor.shape)))
        return T.matmul(inverse.mT, inverse)

    def _freedom(self) -> Tensor:
        return self.df[..., None, None]  # type: ignore[no-any-return]

    @property
    def mean(self) -> Tensor:
        return self._freedom() * self.covariance_matrix

    @property
    def mode(self) -> Tensor:
        factor = self._freedom() - self._event_shape[-1] - 1
        return T.where(factor <= 0, math.nan, factor) * self.covariance_matrix

    @property
    def variance(self) -> Tensor:
        diagonal = T.diagonal(self.covariance_matrix, 0, -2, -1)
        return self._freedom() * (T.square(self.covariance_matrix) + T.unsqueeze(diagonal, -1) * T.unsqueeze(diagonal, -2))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        scale = self._unbroadcasted_scale_tril
        diagonal = T.clamp(T.sqrt(self._dist_chi2.rsample(sample_shape)), min=FInfo(scale.dtype).eps)
        below = T.tril(standard_normal(self._extended_shape(sample_shape), scale), -1)
        factor = T.matmul(scale, below + T.diag_embed(diagonal))
        return T.matmul(factor, factor.mT)

    def _half_log_det(self) -> Tensor:
        return T.sum(T.log(T.diagonal(self._unbroadcasted_scale_tril, 0, -2, -1)), -1)

    def log_prob(self, value: Tensor) -> Tensor:
        value, n, df, factor = self._checked(value), self._event_shape[-1], self.df, self._unbroadcasted_scale_tril
        shape = (*broadcast_shapes(tuple(value.shape[:-2]), tuple(factor.shape[:-2])), n, n)
        whitened = linalg.solve(T.expand(T.matmul(factor, factor.mT), shape), T.expand(value, shape))
        norm = df * (n * math.log(2) / 2 + self._half_log_det()) + mvlgamma(df / 2, n)
        trace = T.sum(T.diagonal(whitened, 0, -2, -1), -1)
        return (df - n - 1) / 2 * linalg.slogdet(value)[1] - trace / 2 - norm  # type: ignore[no-any-return]

    def entropy(self) -> Tensor:
        n, df = self._event_shape[-1], self.df
        halves = T.arange(n, dtype=df.dtype, device=df.device) / 2
        slope = T.sum(T.digamma(T.unsqueeze(df / 2, -1) - halves), -1)
        norm = (n + 1) * (n * math.log(2) / 2 + self._half_log_det()) + mvlgamma(df / 2, n)
        return norm - (df - n - 1) / 2 * slope + df * n / 2

    @property
    def _natural_params(self) -> tuple[Any, ...]:
        return (-self.precision_matrix / 2, (self.df - self._event_shape[-1] - 1) / 2)

    def _log_normalizer(self, *natural_params: Any) -> Any:
        (x, y), n = natural_params, self._event_shape[-1]
        half = y + (n + 1) / 2
        return half * (math.log(2) * n - linalg.slogdet(-2 * x)[1]) + mvlgamma(half, n)
