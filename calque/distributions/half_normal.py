"""The half-normal distribution, and what it shares with the half-Cauchy distribution."""

from __future__ import annotations

import math
from typing import Any

from calque import functional as T
from calque.distributions import constraints
from calque.distributions.normal import Normal
from calque.distributions.transformed_distribution import TransformedDistribution
from calque.distributions.transforms import AbsTransform
from calque.tensor import Tensor

__all__ = ["HalfNormal"]


class Folded(TransformedDistribution):
    """|x| for x of a distribution with a `scale` that is symmetric around 0: twice its density on one side."""

    arg_constraints: Any = {"scale": constraints.positive}
    support: Any = constraints.nonnegative
    has_rsample: Any = True

    @property
    def scale(self) -> Tensor:
        """Scale of the distribution of both sides."""
        return self.base_dist.scale  # type: ignore[no-any-return]

    @property
    def mode(self) -> Tensor:
        return T.zeros_like(self.scale)

    def log_prob(self, value: Any) -> Tensor:
        value = self._checked(value)
        return T.where(value >= 0, self.base_dist.log_prob(value) + math.log(2), -math.inf)

    def cdf(self, value: Tensor) -> Tensor:
        return 2 * self.base_dist.cdf(self._checked(value)) - 1  # type: ignore[no-any-return]

    def icdf(self, prob: Tensor) -> Tensor:
        return self.base_dist.icdf((prob + 1) / 2)  # type: ignore[no-any-return]

    def entropy(self) -> Tensor:
        return self.base_dist.entropy() - math.log(2)  # type: ignore[no-any-return]


class HalfNormal(Folded):
    """|x| for x of `Normal(0, scale)`.

    >>> import calque
    >>> d = calque.distributions.HalfNormal(1.0)
    >>> round(d.mean.item(), 4), d.log_prob(calque.tensor(0.5)).item() > -1
    (0.7979, True)
    """

    def __init__(self, scale: Any, validate_args: bool | None = None) -> None:
        super().__init__(Normal(0, scale, validate_args=False), AbsTransform(), validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.scale * math.sqrt(2 / math.pi)

    @property
    def variance(self) -> Tensor:
        return T.square(self.scale) * (1 - 2 / math.pi)
