"""The Poisson distribution."""

from __future__ import annotations

from typing import Any

from calque import functional as T
from calque.autograd.modes import no_grad
from calque.distributions import constraints, sampling
from calque.distributions.distribution import ExponentialFamily
from calque.distributions.utils import broadcast_all
from calque.tensor import Tensor

__all__ = ["Poisson"]


class Poisson(ExponentialFamily):
    """The number of events where `rate` >= 0 are expected.

    >>> import calque
    >>> d = calque.distributions.Poisson(2.0)
    >>> d.mean.item(), round(d.log_prob(calque.tensor(0.0)).item(), 4)
    (2.0, -2.0)
    """

    arg_constraints: Any = {"rate": constraints.nonnegative}
    support: Any = constraints.nonnegative_integer
    _expands = ("rate",)

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        (self.rate,) = broadcast_all(rate)
        super().__init__(self.rate.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.rate

    @property
    def mode(self) -> Tensor:
        return T.floor(self.rate)

    @property
    def variance(self) -> Tensor:
        return self.rate

    def sample(self, sample_shape: Any = ()) -> Tensor:
        with no_grad():
            return sampling.poisson(T.expand(self.rate, tuple(self._extended_shape(sample_shape))))

    def log_prob(self, value: Tensor) -> Tensor:
        rate, value = broadcast_all(self.rate, self._checked(value))
        return T.xlogy(value, rate) - rate - T.lgamma(value + 1)

    @property
    def _natural_params(self) -> tuple[Any, ...]:
        return (T.log(self.rate),)

    def _log_normalizer(self, *natural_params: Any) -> Any:
        return T.exp(natural_params[0])
