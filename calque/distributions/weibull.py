"""The Weibull distribution."""

from __future__ import annotations

from typing import Any

from calque import functional as T
from calque.distributions import constraints
from calque.distributions.exponential import Exponential
from calque.distributions.transformed_distribution import TransformedDistribution
from calque.distributions.transforms import AffineTransform, PowerTransform
from calque.distributions.utils import broadcast_all, euler_constant
from calque.tensor import Tensor

__all__ = ["Weibull"]


class Weibull(TransformedDistribution):
    """`scale` times an exponential number to the power 1 / `concentration` (both > 0).

    >>> import calque
    >>> d = calque.distributions.Weibull(2.0, 1.0)
    >>> round(d.mean.item(), 4), round(d.variance.item(), 4)
    (2.0, 4.0)
    """

    arg_constraints: Any = {"scale": constraints.positive, "concentration": constraints.positive}
    support: Any = constraints.positive
    _expands = ("scale", "concentration", "concentration_reciprocal", "base_dist")

    def __init__(self, scale: Any, concentration: Any, validate_args: bool | None = None) -> None:
        self.scale, self.concentration = broadcast_all(scale, concentration)
        self.concentration_reciprocal = T.reciprocal(self.concentration)
        base = Exponential(T.ones_like(self.scale), validate_args=validate_args)
        transforms = [PowerTransform(self.concentration_reciprocal), AffineTransform(0, self.scale)]
        super().__init__(base, transforms, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.scale * T.exp(T.lgamma(1 + self.concentration_reciprocal))

    @property
    def mode(self) -> Tensor:
        return self.scale * ((self.concentration - 1) / self.concentration) ** self.concentration_reciprocal

    @property
    def variance(self) -> Tensor:
        second = T.exp(T.lgamma(1 + 2 * self.concentration_reciprocal))
        return T.square(self.scale) * (second - T.exp(2 * T.lgamma(1 + self.concentration_reciprocal)))

    def entropy(self) -> Tensor:
        return euler_constant * (1 - self.concentration_reciprocal) + T.log(self.scale * self.concentration_reciprocal) + 1
