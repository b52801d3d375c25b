"""The Laplace distribution."""

from __future__ import annotations

import math
from typing import Any

from calque import functional as T
from calque.base.dtypes import FInfo
from calque.distributions import constraints
from calque.distributions.distribution import Distribution, located
from calque.distributions.utils import broadcast_all, uniform
from calque.tensor import Tensor

__all__ = ["Laplace"]


class Laplace(Distribution):
    """The Laplace distribution: exponential on both sides of `loc`, with `scale` > 0.

    >>> import calque
    >>> d = calque.distributions.Laplace(0.0, 1.0)
    >>> round(d.entropy().item(), 4), d.cdf(calque.tensor(0.0)).item()
    (1.6931, 0.5)
    """

    arg_constraints: Any = {"loc": constraints.real, "scale": constraints.positive}
    support: Any = constraints.real
    has_rsample = True
    _expands = ("loc", "scale")

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast_all(loc, scale)
        super().__init__(self.loc.shape, validate_args=validate_args)

    mean: Any = located
    mode: Any = located

    @property
    def variance(self) -> Tensor:
        return 2 * T.square(self.scale)

    @property
    def stddev(self) -> Tensor:
        return math.sqrt(2) * self.scale

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        eps = FInfo(self.loc.dtype).eps
        u = uniform(self._extended_shape(sample_shape), self.loc) * (2 - eps) + (eps - 1)
        return self.loc - self.scale * T.sign(u) * T.log1p(-T.abs(u))

    def log_prob(self, value: Tensor) -> Tensor:
        return -T.log(2 * self.scale) - T.abs(self._checked(value) - self.loc) / self.scale

    def cdf(self, value: Tensor) -> Tensor:
        away = self._checked(value) - self.loc
        return 0.5 - 0.5 * T.sign(away) * T.expm1(-T.abs(away) / self.scale)

    def icdf(self, value: Tensor) -> Tensor:
        away = value - 0.5
        return self.loc - self.scale * T.sign(away) * T.log1p(-2 * T.abs(away))

    def entropy(self) -> Tensor:
        return 1 + T.log(2 * self.scale)
