"""The inverse gamma distribution."""

from __future__ import annotations

import math
from typing import Any

from calque import functional as T
from calque.distributions import constraints
from calque.distributions.gamma import Gamma
from calque.distributions.transformed_distribution import TransformedDistribution
from calque.distributions.transforms import PowerTransform
from calque.tensor import Tensor

__all__ = ["InverseGamma"]


class InverseGamma(TransformedDistribution):
    """1 / x for x of `Gamma(concentration, rate)`.

    >>> import calque
    >>> d = calque.distributions.InverseGamma(3.0, 4.0)
    >>> d.mean.item(), d.mode.item(), d.variance.item()
    (2.0, 1.0, 4.0)
    """

    arg_constraints: Any = {"concentration": constraints.positive, "rate": constraints.positive}
    support: Any = constraints.positive
    has_rsample: Any = True

    def __init__(self, concentration: Any, rate: Any, validate_args: bool | None = None) -> None:
        base = Gamma(concentration, rate, validate_args=validate_args)
        super().__init__(base, PowerTransform(T.full((), -1.0, dtype=base.rate.dtype, device=base.rate.device)), validate_args=validate_args)

    @property
    def concentration(self) -> Tensor:
        """Shape of the gamma distribution."""
        return self.base_dist.concentration  # type: ignore[no-any-return]

    @property
    def rate(self) -> Tensor:
        """Rate of the gamma distribution: the scale of this one."""
        return self.base_dist.rate  # type: ignore[no-any-return]

    @property
    def mean(self) -> Tensor:
        return T.where(self.concentration > 1, self.rate / (self.concentration - 1), math.inf)

    @property
    def mode(self) -> Tensor:
        return self.rate / (self.concentration + 1)

    @property
    def variance(self) -> Tensor:
        a = self.concentration
        return T.where(a > 2, T.square(self.rate) / (T.square(a - 1) * (a - 2)), math.inf)

    def entropy(self) -> Tensor:
        a = self.concentration
        return a + T.log(self.rate) + T.lgamma(a) - (1 + a) * T.digamma(a)
