"""The Pareto distribution of type 1."""

from __future__ import annotations

from typing import Any

from calque import functional as T
from calque.distributions import constraints
from calque.distributions.exponential import Exponential
from calque.distributions.transformed_distribution import TransformedDistribution
from calque.distributions.transforms import AffineTransform, ExpTransform
from calque.distributions.utils import broadcast_all
from calque.tensor import Tensor

__all__ = ["Pareto"]


class Pareto(TransformedDistribution):
    """Numbers from `scale` on whose density falls with the power alpha + 1 (both > 0).

    >>> import calque
    >>> d = calque.distributions.Pareto(1.0, 3.0)
    >>> d.mean.item(), d.mode.item(), round(d.cdf(calque.tensor(2.0)).item(), 4)
    (1.5, 1.0, 0.875)
    """

    arg_constraints: Any = {"alpha": constraints.positive, "scale": constraints.positive}
    _expands = ("scale", "alpha", "base_dist")

    def __init__(self, scale: Any, alpha: Any, validate_args: bool | None = None) -> None:
        self.scale, self.alpha = broadcast_all(scale, alpha)
        base = Exponential(self.alpha, validate_args=validate_args)
        super().__init__(base, [ExpTransform(), AffineTransform(0, self.scale)], validate_args=validate_args)

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Any:
        return constraints.greater_than_eq(self.scale)

    @property
    def mean(self) -> Tensor:
        a = T.clamp(self.alpha, min=1)
        return a * self.scale / (a - 1)

    @property
    def mode(self) -> Tensor:
        return self.scale

    @property
    def variance(self) -> Tensor:
        a = T.clamp(self.alpha, min=2)
        return T.square(self.scale) * a / (T.square(a - 1) * (a - 2))

    def entropy(self) -> Tensor:
        return T.log(self.scale / self.alpha) + (1 + T.reciprocal(self.alpha))
