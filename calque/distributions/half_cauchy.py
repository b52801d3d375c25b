"""The half-Cauchy distribution."""

from __future__ import annotations

import math
from typing import Any

from calque.distributions.cauchy import Cauchy
from calque.distributions.half_normal import Folded
from calque.distributions.transforms import AbsTransform
from calque.tensor import Tensor

__all__ = ["HalfCauchy"]


class HalfCauchy(Folded):
    """|x| for x of `Cauchy(0, scale)`.

    >>> import calque
    >>> d = calque.distributions.HalfCauchy(1.0)
    >>> d.mean.item(), d.cdf(calque.tensor(1.0)).item()
    (inf, 0.5)
    """

    def __init__(self, scale: Any, validate_args: bool | None = None) -> None:
        super().__init__(Cauchy(0, scale, validate_args=False), AbsTransform(), validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self._filled(math.inf, self.scale)

    @property
    def variance(self) -> Tensor:
        return self.base_dist.variance  # type: ignore[no-any-return]
