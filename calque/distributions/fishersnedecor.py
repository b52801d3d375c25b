"""The F distribution."""

from __future__ import annotations

import math
from typing import Any

from calque import functional as T
from calque.base.dtypes import FInfo
from calque.distributions import constraints
from calque.distributions.distribution import Distribution
from calque.distributions.gamma import Gamma
from calque.distributions.utils import broadcast_all
from calque.tensor import Tensor

__all__ = ["FisherSnedecor"]


class FisherSnedecor(Distribution):
    """The F distribution: the quotient of two chi-squared numbers, each divided by its degrees of freedom `df1` and `df2` > 0.

    >>> import calque
    >>> d = calque.distributions.FisherSnedecor(2.0, 4.0)
    >>> d.mean.item(), d.mode.item()
    (2.0, nan)
    """

    arg_constraints: Any = {"df1": constraints.positive, "df2": constraints.positive}
    support: Any = constraints.positive
    has_rsample = True
    _expands = ("df1", "df2", "_gamma1", "_gamma2")

    def __init__(self, df1: Any, df2: Any, validate_args: bool | None = None) -> None:
        self.df1, self.df2 = broadcast_all(df1, df2)
        self._gamma1 = Gamma(self.df1 * 0.5, self.df1, validate_args=validate_args)
        self._gamma2 = Gamma(self.df2 * 0.5, self.df2, validate_args=validate_args)
        super().__init__(self.df1.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return T.where(self.df2 <= 2, math.nan, self.df2 / (self.df2 - 2))

    @property
    def mode(self) -> Tensor:
        return T.where(self.df1 <= 2, math.nan, (self.df1 - 2) / self.df1 * self.df2 / (self.df2 + 2))

    @property
    def variance(self) -> Tensor:
        a, b = self.df1, self.df2
        return T.where(b <= 4, math.nan, 2 * T.square(b) * (a + b - 2) / (a * T.square(b - 2) * (b - 4)))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        tiny = FInfo(self.df1.dtype).tiny
        below = T.clamp(self._gamma2.rsample(sample_shape), min=tiny)
        return T.clamp(self._gamma1.rsample(sample_shape) / below, min=tiny)

    def log_prob(self, value: Tensor) -> Tensor:
        value = self._checked(value)
        a, b, ratio = self.df1 * 0.5, self.df2 * 0.5, self.df1 / self.df2
        norm = T.lgamma(a + b) - T.lgamma(a) - T.lgamma(b)
        return norm + a * T.log(ratio) + (a - 1) * T.log(value) - (a + b) * T.log1p(ratio * value)
