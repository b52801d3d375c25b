"""The Cauchy distribution."""

from __future__ import annotations

import math
from typing import Any

from calque import functional as T
from calque.distributions import constraints
from calque.distributions.distribution import Distribution
from calque.distributions.utils import broadcast_all, clamp_probs, uniform
from calque.tensor import Tensor

__all__ = ["Cauchy"]


class Cauchy(Distribution):
    """The Cauchy (Lorentz) distribution around `loc` with half width `scale` > 0; it has no mean.

    >>> import calque
    >>> d = calque.distributions.Cauchy(0.0, 1.0)
    >>> d.mean.item(), d.variance.item(), d.cdf(calque.tensor(0.0)).item()
    (nan, inf, 0.5)
    """

    arg_constraints: Any = {"loc": constraints.real, "scale": constraints.positive}
    support: Any = constraints.real
    has_rsample = True
    _expands = ("loc", "scale")

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast_all(loc, scale)
        super().__init__(self.loc.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self._filled(math.nan, self.loc)

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return self._filled(math.inf, self.loc)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        u = clamp_probs(uniform(self._extended_shape(sample_shape), self.loc))
        return self.loc + T.tan(math.pi * (u - 0.5)) * self.scale

    def log_prob(self, value: Tensor) -> Tensor:
        z = (self._checked(value) - self.loc) / self.scale
        return -math.log(math.pi) - T.log(self.scale) - T.log1p(T.square(z))

    def cdf(self, value: Tensor) -> Tensor:
        return T.atan((self._checked(value) - self.loc) / self.scale) / math.pi + 0.5

    def icdf(self, value: Tensor) -> Tensor:
        return T.tan(math.pi * (value - 0.5)) * self.scale + self.loc

    def entropy(self) -> Tensor:
        return math.log(4 * math.pi) + T.log(self.scale)
