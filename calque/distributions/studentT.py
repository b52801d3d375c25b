"""Student's t distribution, in a module of PyTorch's name."""  # noqa: N999

from __future__ import annotations

import math
from typing import Any

from calque import functional as T
from calque.distributions import constraints
from calque.distributions.chi2 import Chi2
from calque.distributions.distribution import Distribution
from calque.distributions.utils import broadcast_all, standard_normal
from calque.tensor import Tensor

__all__ = ["StudentT"]


class StudentT(Distribution):
    """Student's t distribution with `df` > 0 degrees of freedom, around `loc`, times `scale` > 0.

    >>> import calque
    >>> d = calque.distributions.StudentT(4.0)
    >>> d.mean.item(), d.variance.item()
    (0.0, 2.0)
    """

    arg_constraints: Any = {"df": constraints.positive, "loc": constraints.real, "scale": constraints.positive}
    support: Any = constraints.real
    has_rsample = True
    _expands = ("df", "loc", "scale", "_chi2")

    def __init__(self, df: Any, loc: Any = 0.0, scale: Any = 1.0, validate_args: bool | None = None) -> None:
        self.df, self.loc, self.scale = broadcast_all(df, loc, scale)
        self._chi2 = Chi2(self.df, validate_args=validate_args)
        super().__init__(self.df.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return T.where(self.df <= 1, math.nan, self.loc)

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        known = T.where(self.df > 2, T.square(self.scale) * self.df / (self.df - 2), math.inf)
        return T.where(self.df <= 1, math.nan, known)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        noise = standard_normal(self._extended_shape(sample_shape), self.df)
        return self.loc + self.scale * noise * T.rsqrt(self._chi2.rsample(sample_shape) / self.df)

    def log_prob(self, value: Tensor) -> Tensor:
        z, half = (self._checked(value) - self.loc) / self.scale, 0.5 * (self.df + 1.0)
        norm = T.log(self.scale) + 0.5 * T.log(self.df) + 0.5 * math.log(math.pi) + T.lgamma(0.5 * self.df) - T.lgamma(half)
        return -half * T.log1p(T.square(z) / self.df) - norm

    def entropy(self) -> Tensor:
        half, more = 0.5 * self.df, 0.5 * (self.df + 1)
        norm = T.lgamma(half) + math.lgamma(0.5) - T.lgamma(more)
        return T.log(self.scale) + more * (T.digamma(more) - T.digamma(half)) + 0.5 * T.log(self.df) + norm
