"""The normal distribution."""

from __future__ import annotations

import math
from typing import Any

from calque import functional as T
from calque.distributions import constraints
from calque.distributions.distribution import ExponentialFamily, located
from calque.distributions.utils import broadcast_all, standard_normal
from calque.tensor import Tensor

__all__ = ["Normal"]


class Normal(ExponentialFamily):
    """The normal distribution with mean `loc` and standard deviation `scale` > 0 (numbers or Tensors that broadcast).

    >>> import calque
    >>> d = calque.distributions.Normal(0.0, 2.0)
    >>> round(d.log_prob(calque.tensor(0.0)).item(), 4), d.cdf(calque.tensor(0.0)).item(), d.variance.item()
    (-1.6121, 0.5, 4.0)
    """

    arg_constraints: Any = {"loc": constraints.real, "scale": constraints.positive}
    support: Any = constraints.real
    has_rsample = True
    _mean_carrier_measure: Any = 0
    _expands = ("loc", "scale")

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast_all(loc, scale)
        super().__init__(self.loc.shape, validate_args=validate_args)

    mean: Any = located
    mode: Any = located

    @property
    def stddev(self) -> Tensor:
        return self.scale

    @property
    def variance(self) -> Tensor:
        return T.square(self.stddev)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.loc + standard_normal(self._extended_shape(sample_shape), self.loc) * self.scale

    def log_prob(self, value: Tensor) -> Tensor:
        z = (self._checked(value) - self.loc) / self.scale
        return -0.5 * T.square(z) - T.log(self.scale) - 0.5 * math.log(2 * math.pi)

    def cdf(self, value: Tensor) -> Tensor:
        return 0.5 * (1 + T.erf((self._checked(value) - self.loc) / self.scale * math.sqrt(0.5)))

    def icdf(self, value: Tensor) -> Tensor:
        return self.loc + self.scale * T.erfinv(2 * value - 1) * math.sqrt(2)

    def entropy(self) -> Tensor:
        return 0.5 + 0.5 * math.log(2 * math.pi) + T.log(self.scale)

    @property
    def _natural_params(self) -> tuple[Any, ...]:
        return (self.loc / T.square(self.scale), -0.5 / T.square(self.scale))

    def _log_normalizer(self, *natural_params: Any) -> Any:
        x, y = natural_params
        return -0.25 * T.square(x) / y + 0.5 * T.log(-math.pi / y)
