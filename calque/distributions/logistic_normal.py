"""The logistic normal distribution."""

from __future__ import annotations

from typing import Any

from calque.distributions import constraints
from calque.distributions.normal import Normal
from calque.distributions.transformed_distribution import TransformedDistribution
from calque.distributions.transforms import StickBreakingTransform
from calque.tensor import Tensor

__all__ = ["LogisticNormal"]


class LogisticNormal(TransformedDistribution):
    """Probabilities (..., K + 1) made by stick breaking from K independent numbers of `Normal(loc, scale)`.

    >>> import calque
    >>> d = calque.distributions.LogisticNormal(calque.zeros(2), calque.ones(2))
    >>> round(d.sample().sum().item(), 5), d.event_shape
    (1.0, torch.Size([3]))
    """

    arg_constraints: Any = {"loc": constraints.real, "scale": constraints.positive}
    support: Any = constraints.simplex
    has_rsample: Any = True

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        base = Normal(loc, scale, validate_args=validate_args)
        base = base if base.batch_shape else base.expand([1])
        super().__init__(base, StickBreakingTransform(), validate_args=validate_args)

    @property
    def loc(self) -> Tensor:
        """Means of the normal numbers."""
        return self.base_dist.base_dist.loc  # type: ignore[no-any-return]

    @property
    def scale(self) -> Tensor:
        """Standard deviations of the normal numbers."""
        return self.base_dist.base_dist.scale  # type: ignore[no-any-return]
