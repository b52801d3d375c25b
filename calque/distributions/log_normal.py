"""The log-normal distribution."""

from __future__ import annotations

from typing import Any

from calque import functional as T
from calque.distributions import constraints
from calque.distributions.normal import Normal
from calque.distributions.transformed_distribution import TransformedDistribution
from calque.distributions.transforms import ExpTransform
from calque.tensor import Tensor

__all__ = ["LogNormal"]


class LogNormal(TransformedDistribution):
    """exp(x) for x of `Normal(loc, scale)`.

    >>> import calque
    >>> d = calque.distributions.LogNormal(0.0, 1.0)
    >>> round(d.mean.item(), 4), round(d.mode.item(), 4)
    (1.6487, 0.3679)
    """

    arg_constraints: Any = {"loc": constraints.real, "scale": constraints.positive}
    support: Any = constraints.positive
    has_rsample: Any = True

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        super().__init__(Normal(loc, scale, validate_args=validate_args), ExpTransform(), validate_args=validate_args)

    @property
    def loc(self) -> Tensor:
        """Mean of the logarithm."""
        return self.base_dist.loc  # type: ignore[no-any-return]

    @property
    def scale(self) -> Tensor:
        """Standard deviation of the logarithm."""
        return self.base_dist.scale  # type: ignore[no-any-return]

    @property
    def mean(self) -> Tensor:
        return T.exp(self.loc + T.square(self.scale) / 2)

    @property
    def mode(self) -> Tensor:
        return T.exp(self.loc - T.square(self.scale))

    @property
    def variance(self) -> Tensor:
        square = T.square(self.scale)
        return T.expm1(square) * T.exp(2 * self.loc + square)

    def entropy(self) -> Tensor:
        return self.base_dist.entropy() + self.loc  # type: ignore[no-any-return]
