"""The Kumaraswamy distribution."""

from __future__ import annotations

import math
from typing import Any

from calque import functional as T
from calque.distributions import constraints
from calque.distributions.transformed_distribution import TransformedDistribution
from calque.distributions.transforms import AffineTransform, PowerTransform
from calque.distributions.uniform import Uniform
from calque.distributions.utils import broadcast_all, euler_constant
from calque.tensor import Tensor

__all__ = ["Kumaraswamy"]


def _moment(a: Tensor, b: Tensor, n: int) -> Tensor:
    """b B(1 + n / a, b)."""
    first = 1 + n / a
    return b * T.exp(T.lgamma(first) + T.lgamma(b) - T.lgamma(first + b))


class Kumaraswamy(TransformedDistribution):
    """Probabilities with cdf 1 - (1 - x^a)^b for a = concentration1, b = concentration0 > 0: like `Beta`, with simple samples.

    >>> import calque
    >>> d = calque.distributions.Kumaraswamy(1.0, 1.0)
    >>> round(d.mean.item(), 4), round(d.cdf(calque.tensor(0.25)).item(), 4)
    (0.5, 0.25)
    """

    arg_constraints: Any = {"concentration1": constraints.positive, "concentration0": constraints.positive}
    support: Any = constraints.unit_interval
    has_rsample: Any = True
    _expands = ("concentration1", "concentration0", "base_dist")

    def __init__(self, concentration1: Any, concentration0: Any, validate_args: bool | None = None) -> None:
        self.concentration1, self.concentration0 = broadcast_all(concentration1, concentration0)
        base = Uniform(T.zeros_like(self.concentration0), T.ones_like(self.concentration0), validate_args=validate_args)
        transforms = [
            PowerTransform(T.reciprocal(self.concentration0)), AffineTransform(1.0, -1.0), PowerTransform(T.reciprocal(self.concentration1))
        ]  # fmt: skip
        super().__init__(base, transforms, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return _moment(self.concentration1, self.concentration0, 1)

    @property
    def mode(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        log_mode = T.log1p(-b) / b - T.log1p(-b * a)
        return T.exp(T.where((b < 1) | (a < 1), math.nan, log_mode))

    @property
    def variance(self) -> Tensor:
        return _moment(self.concentration1, self.concentration0, 2) - T.square(self.mean)

    def entropy(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        harmonic = T.digamma(b + 1) + euler_constant
        return (1 - 1 / b) + (1 - 1 / a) * harmonic - T.log(a) - T.log(b)
