"""The generalised Pareto distribution."""

from __future__ import annotations

import math
from typing import Any

from calque import functional as T
from calque.distributions import constraints
from calque.distributions.distribution import Distribution
from calque.distributions.utils import broadcast_all, uniform
from calque.tensor import Tensor

__all__ = ["GeneralizedPareto"]


class GeneralizedPareto(Distribution):
    """Excesses over a threshold `loc`, with `scale` > 0 and any `concentration`: 0 is exponential, above the tail is heavy, below it ends.

    >>> import calque
    >>> d = calque.distributions.GeneralizedPareto(0.0, 1.0, 0.0)
    >>> round(d.cdf(calque.tensor(1.0)).item(), 4), d.mean.item()
    (0.6321, 1.0)
    """

    arg_constraints: Any = {"loc": constraints.real, "scale": constraints.positive, "concentration": constraints.real}
    has_rsample = True
    _expands = ("loc", "scale", "concentration")

    def __init__(self, loc: Any, scale: Any, concentration: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale, self.concentration = broadcast_all(loc, scale, concentration)
        super().__init__(self.loc.shape, validate_args=validate_args)

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Any:
        c = self.concentration
        return constraints.interval(self.loc, T.where(c < 0, self.loc - self.scale / c, math.inf))

    def _parts(self) -> tuple[Any, Any]:
        """Where the concentration is as good as zero, and a concentration to divide by."""
        zero = T.isclose(self.concentration, T.zeros_like(self.concentration))
        return zero, T.where(zero, T.ones_like(self.concentration), self.concentration)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.icdf(uniform(self._extended_shape(sample_shape), self.loc))

    def log_prob(self, value: Tensor) -> Tensor:
        z = (self._checked(value) - self.loc) / self.scale
        zero, c = self._parts()
        power = 1 / c + T.ones_like(z)
        return -T.log(self.scale) - T.where(zero, z, T.where(power == 0, power, power * T.log1p(c * z)))

    def log_survival_function(self, value: Tensor) -> Tensor:
        """log(1 - cdf)."""
        z = (self._checked(value) - self.loc) / self.scale
        zero, c = self._parts()
        return T.where(zero, -z, -T.log1p(c * z) / c)

    def log_cdf(self, value: Tensor) -> Tensor:
        """The logarithm of the cdf."""
        return T.log1p(-T.exp(self.log_survival_function(value)))

    def cdf(self, value: Tensor) -> Tensor:
        return T.exp(self.log_cdf(value))

    def icdf(self, value: Tensor) -> Tensor:
        zero, c = self._parts()
        left = T.log1p(-value)
        return T.where(zero, self.loc - self.scale * left, self.loc + self.scale / c * T.expm1(-c * left))

    @property
    def mean(self) -> Tensor:
        known = self.concentration < 1
        return T.where(known, self.loc + self.scale / (1 - T.where(known, self.concentration, 0.5)), math.nan)

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        known = self.concentration < 0.5
        c = T.where(known, self.concentration, 0.25)
        return T.where(known, T.square(self.scale) / (T.square(1 - c) * (1 - 2 * c)), math.nan)

    def entropy(self) -> Tensor:
        return T.log(self.scale) + self.concentration + 1
