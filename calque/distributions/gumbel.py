"""The Gumbel distribution."""

from __future__ import annotations

import math
from typing import Any

from calque import functional as T
from calque.base.dtypes import FInfo
from calque.distributions import constraints
from calque.distributions.transformed_distribution import TransformedDistribution
from calque.distributions.transforms import AffineTransform, ExpTransform
from calque.distributions.uniform import Uniform
from calque.distributions.utils import broadcast_all, euler_constant
from calque.tensor import Tensor

__all__ = ["Gumbel"]


class Gumbel(TransformedDistribution):
    """The distribution of largest values: loc - scale log(-log(u)) for uniform u, scale > 0.

    >>> import calque
    >>> d = calque.distributions.Gumbel(0.0, 1.0)
    >>> round(d.mean.item(), 4), round(d.cdf(calque.tensor(0.0)).item(), 4)
    (0.5772, 0.3679)
    """

    arg_constraints: Any = {"loc": constraints.real, "scale": constraints.positive}
    support: Any = constraints.real
    _expands = ("loc", "scale", "base_dist")

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast_all(loc, scale)
        limits = FInfo(self.loc.dtype)
        base = Uniform(T.full_like(self.loc, limits.tiny), T.full_like(self.loc, 1 - limits.eps), validate_args=validate_args)
        transforms = [
            ExpTransform().inv, AffineTransform(0, -T.ones_like(self.scale)), ExpTransform().inv, AffineTransform(self.loc, -self.scale)
        ]  # fmt: skip
        super().__init__(base, transforms, validate_args=validate_args)

    def log_prob(self, value: Tensor) -> Tensor:
        z = (self.loc - self._checked(value)) / self.scale
        return z - T.exp(z) - T.log(self.scale)

    @property
    def mean(self) -> Tensor:
        return self.loc + self.scale * euler_constant

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def stddev(self) -> Tensor:
        return math.pi / math.sqrt(6) * self.scale

    @property
    def variance(self) -> Tensor:
        return T.square(self.stddev)

    def entropy(self) -> Tensor:
        return T.log(self.scale) + (1 + euler_constant)
