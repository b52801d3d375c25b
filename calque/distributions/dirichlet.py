"""The Dirichlet distribution."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from calque import functional as T
from calque.base.dtypes import DType, FInfo
from calque.base.errors import ShapeError
from calque.distributions import constraints, sampling
from calque.distributions.distribution import ExponentialFamily
from calque.nn import functional as F
from calque.tensor import Tensor

__all__ = ["Dirichlet"]


@lru_cache(maxsize=8)
def _between(dtype: DType) -> tuple[float, float]:
    """The smallest and the largest sample. Densities of the next number below 1 are finite."""
    kind = FInfo(dtype)
    return kind.tiny, 1.0 - kind.eps / 2


class Dirichlet(ExponentialFamily):
    """Probabilities that sum to 1, with means proportional to `concentration` > 0: (..., K).

    >>> import calque
    >>> d = calque.distributions.Dirichlet(calque.tensor([1.0, 3.0]))
    >>> d.mean.tolist(), round(d.sample().sum().item(), 5)
    ([0.25, 0.75], 1.0)
    """

    arg_constraints: Any = {"concentration": constraints.independent(constraints.positive, 1)}
    support: Any = constraints.simplex
    has_rsample = True
    _expands = ("concentration",)

    def __init__(self, concentration: Tensor, validate_args: bool | None = None) -> None:
        if concentration.dim() < 1:
            raise ShapeError("[Dirichlet] `concentration` parameter must be at least one-dimensional.")
        self.concentration = concentration
        super().__init__(concentration.shape[:-1], concentration.shape[-1:], validate_args=validate_args)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        shape, concentration = tuple(self._extended_shape(sample_shape)), self.concentration
        drawn = F.softmax(sampling.log_standard_gamma(concentration if concentration.shape == shape else T.expand(concentration, shape)), -1)
        return sampling.kept_between(drawn, *_between(drawn.dtype))

    def log_prob(self, value: Tensor) -> Tensor:
        a = self.concentration
        return T.sum(T.xlogy(a - 1.0, self._checked(value)), -1) + T.lgamma(T.sum(a, -1)) - T.sum(T.lgamma(a), -1)

    @property
    def mean(self) -> Tensor:
        return self.concentration / T.sum(self.concentration, -1, True)

    @property
    def mode(self) -> Tensor:
        above = T.clamp(self.concentration - 1, min=0.0)
        inside = above / T.sum(above, -1, True)
        corner = F.one_hot(T.argmax(inside, -1), above.shape[-1]).to(inside.dtype)
        return T.where(T.all(self.concentration < 1, -1, True), corner, inside)

    @property
    def variance(self) -> Tensor:
        total = T.sum(self.concentration, -1, True)
        return self.concentration * (total - self.concentration) / (T.square(total) * (total + 1))

    def entropy(self) -> Tensor:
        a, total = self.concentration, T.sum(self.concentration, -1)
        norm = T.sum(T.lgamma(a), -1) - T.lgamma(total)
        return norm - (a.shape[-1] - total) * T.digamma(total) - T.sum((a - 1.0) * T.digamma(a), -1)

    @property
    def _natural_params(self) -> tuple[Any, ...]:
        return (self.concentration,)

    def _log_normalizer(self, *natural_params: Any) -> Any:
        (x,) = natural_params
        return T.sum(T.lgamma(x), -1) - T.lgamma(T.sum(x, -1))
