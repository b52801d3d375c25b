"""The gamma distribution."""

from __future__ import annotations

from typing import Any

from calque import functional as T
from calque.base.dtypes import FInfo
from calque.distributions import constraints, sampling
from calque.distributions.distribution import ExponentialFamily
from calque.distributions.utils import broadcast_all
from calque.functional.gamma import igamma
from calque.tensor import Tensor

__all__ = ["Gamma"]


class Gamma(ExponentialFamily):
    """The gamma distribution with shape `concentration` > 0 and `rate` > 0: mean concentration / rate.

    Samples are drawn on the host; gradients reach the concentration by implicit reparametrisation (Figurnov et al. 2018).

    >>> import calque
    >>> d = calque.distributions.Gamma(3.0, 2.0)
    >>> d.mean.item(), d.mode.item(), d.variance.item()
    (1.5, 1.0, 0.75)
    """

    arg_constraints: Any = {"concentration": constraints.positive, "rate": constraints.positive}
    support: Any = constraints.nonnegative
    has_rsample = True
    _mean_carrier_measure: Any = 0
    _expands = ("concentration", "rate")

    def __init__(self, concentration: Any, rate: Any, validate_args: bool | None = None) -> None:
        self.concentration, self.rate = broadcast_all(concentration, rate)
        super().__init__(self.concentration.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.concentration / self.rate

    @property
    def mode(self) -> Tensor:
        return T.clamp((self.concentration - 1) / self.rate, min=0)

    @property
    def variance(self) -> Tensor:
        return self.concentration / T.square(self.rate)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        shape = tuple(self._extended_shape(sample_shape))
        drawn = T.exp(sampling.log_standard_gamma(T.expand(self.concentration, shape)))
        tiny = FInfo(drawn.dtype).tiny
        return sampling.kept_between(sampling.kept_between(drawn, tiny) / T.expand(self.rate, shape), tiny)

    def log_prob(self, value: Any) -> Tensor:
        value = self._checked(T.as_tensor(value, dtype=self.rate.dtype, device=self.rate.device))
        powers = T.xlogy(self.concentration, self.rate) + T.xlogy(self.concentration - 1, value)
        return powers - self.rate * value - T.lgamma(self.concentration)

    def cdf(self, value: Tensor) -> Tensor:
        return igamma(self.concentration, self.rate * self._checked(value))

    def entropy(self) -> Tensor:
        a = self.concentration
        return a - T.log(self.rate) + T.lgamma(a) + (1.0 - a) * T.digamma(a)

    @property
    def _natural_params(self) -> tuple[Any, ...]:
        return (self.concentration - 1, -self.rate)

    def _log_normalizer(self, *natural_params: Any) -> Any:
        x, y = natural_params
        return T.lgamma(x + 1) + (x + 1) * T.log(-T.reciprocal(y))
