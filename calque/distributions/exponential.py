"""The exponential distribution."""

from __future__ import annotations

from typing import Any

from calque import functional as T
from calque.distributions import constraints
from calque.distributions.distribution import ExponentialFamily
from calque.distributions.utils import broadcast_all, uniform
from calque.tensor import Tensor

__all__ = ["Exponential"]


class Exponential(ExponentialFamily):
    """Waiting times of events that come at `rate` > 0.

    >>> import calque
    >>> d = calque.distributions.Exponential(2.0)
    >>> d.mean.item(), round(d.cdf(calque.tensor(0.5)).item(), 4)
    (0.5, 0.6321)
    """

    arg_constraints: Any = {"rate": constraints.positive}
    support: Any = constraints.nonnegative
    has_rsample = True
    _mean_carrier_measure: Any = 0
    _expands = ("rate",)

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        (self.rate,) = broadcast_all(rate)
        super().__init__(self.rate.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return T.reciprocal(self.rate)

    @property
    def mode(self) -> Tensor:
        return T.zeros_like(self.rate)

    @property
    def stddev(self) -> Tensor:
        return T.reciprocal(self.rate)

    @property
    def variance(self) -> Tensor:
        return self.rate**-2

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return -T.log1p(-uniform(self._extended_shape(sample_shape), self.rate)) / self.rate

    def log_prob(self, value: Tensor) -> Tensor:
        return T.log(self.rate) - self.rate * self._checked(value)

    def cdf(self, value: Tensor) -> Tensor:
        return 1 - T.exp(-self.rate * self._checked(value))

    def icdf(self, value: Tensor) -> Tensor:
        return -T.log1p(-value) / self.rate

    def entropy(self) -> Tensor:
        return 1.0 - T.log(self.rate)

    @property
    def _natural_params(self) -> tuple[Any, ...]:
        return (-self.rate,)

    def _log_normalizer(self, *natural_params: Any) -> Any:
        return -T.log(-natural_params[0])
