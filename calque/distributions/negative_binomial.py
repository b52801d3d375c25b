"""The negative binomial distribution."""

from __future__ import annotations

from typing import Any

from calque import functional as T
from calque.autograd.modes import no_grad
from calque.distributions import constraints, sampling
from calque.distributions.chances import Chances
from calque.distributions.gamma import Gamma
from calque.distributions.utils import broadcast_all, lazy_property
from calque.nn import functional as F
from calque.tensor import Tensor

__all__ = ["NegativeBinomial"]


class NegativeBinomial(Chances):
    """The number of successes before `total_count` >= 0 failures (a real number), each try having probability `probs` < 1, or given by `logits`.

    >>> import calque
    >>> d = calque.distributions.NegativeBinomial(3.0, calque.tensor(0.5))
    >>> round(d.mean.item(), 4), round(d.variance.item(), 4)
    (3.0, 6.0)
    """

    arg_constraints: Any = {
        "total_count": constraints.greater_than_eq(0), "probs": constraints.half_open_interval(0.0, 1.0), "logits": constraints.real
    }  # fmt: skip
    support: Any = constraints.nonnegative_integer
    _expands = ("total_count", "probs", "logits")
    _copies = ("_given",)

    def __init__(self, total_count: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        name, value = self._which(probs, logits)
        count, self.__dict__[name] = broadcast_all(total_count, value)
        self.total_count = count.to(self._param.dtype)
        super().__init__(self._param.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.total_count * T.exp(self.logits)

    @property
    def mode(self) -> Tensor:
        return T.clamp(T.floor((self.total_count - 1) * T.exp(self.logits)), min=0.0)

    @property
    def variance(self) -> Tensor:
        return self.mean / T.sigmoid(-self.logits)

    @lazy_property
    def _gamma(self) -> Any:
        return Gamma(self.total_count, T.exp(-self.logits), validate_args=False)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        with no_grad():
            return sampling.poisson(self._gamma.sample(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        value, n = self._checked(value), self.total_count
        chance = n * F.logsigmoid(-self.logits) + value * F.logsigmoid(self.logits)
        ways = T.lgamma(n + value) - T.lgamma(1.0 + value) - T.lgamma(n)
        return chance + T.masked_fill(ways, n + value == 0.0, 0.0)
