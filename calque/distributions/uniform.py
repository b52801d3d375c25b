"""The uniform distribution."""

from __future__ import annotations

import math
from typing import Any

from calque import functional as T
from calque.distributions import constraints
from calque.distributions.distribution import Distribution
from calque.distributions.utils import broadcast_all, uniform
from calque.tensor import Tensor

__all__ = ["Uniform"]


class Uniform(Distribution):
    """Numbers of [low, high), all as probable.

    >>> import calque
    >>> d = calque.distributions.Uniform(0.0, 4.0)
    >>> d.mean.item(), d.cdf(calque.tensor(1.0)).item(), d.icdf(calque.tensor(0.75)).item()
    (2.0, 0.25, 3.0)
    """

    has_rsample = True
    _expands = ("low", "high")

    def __init__(self, low: Any, high: Any, validate_args: bool | None = None) -> None:
        self.low, self.high = broadcast_all(low, high)
        super().__init__(self.low.shape, validate_args=validate_args)

    @property
    def arg_constraints(self) -> dict[str, Any]:
        return {"low": constraints.less_than(self.high), "high": constraints.greater_than(self.low)}

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Any:
        return constraints.interval(self.low, self.high)

    @property
    def mean(self) -> Tensor:
        return (self.high + self.low) / 2

    @property
    def mode(self) -> Tensor:
        return math.nan * self.high

    @property
    def stddev(self) -> Tensor:
        return (self.high - self.low) / math.sqrt(12)

    @property
    def variance(self) -> Tensor:
        return T.square(self.high - self.low) / 12

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.low + uniform(self._extended_shape(sample_shape), self.low) * (self.high - self.low)

    def log_prob(self, value: Tensor) -> Tensor:
        value = self._checked(value)
        inside = (self.low <= value) & (value < self.high)
        return T.log(inside.to(self.low.dtype)) - T.log(self.high - self.low)

    def cdf(self, value: Tensor) -> Tensor:
        return T.clamp((self._checked(value) - self.low) / (self.high - self.low), 0, 1)

    def icdf(self, value: Tensor) -> Tensor:
        return value * (self.high - self.low) + self.low

    def entropy(self) -> Tensor:
        return T.log(self.high - self.low)
