"""The multinomial distribution."""

from __future__ import annotations

import math
from typing import Any

from calque import functional as T
from calque.base.text import shown
from calque.distributions import constraints
from calque.distributions.binomial import Binomial
from calque.distributions.categorical import Categorical
from calque.distributions.chances import ByCategories
from calque.distributions.utils import broadcast_all
from calque.tensor import Tensor

__all__ = ["Multinomial"]


class Multinomial(ByCategories):
    """How often each of K classes was drawn in `total_count` tries (an int); `probs` (..., K) or `logits` as for `Categorical`.

    >>> import calque
    >>> d = calque.distributions.Multinomial(10, calque.tensor([1.0, 3.0]))
    >>> d.mean.tolist(), d.sample().sum().item()
    ([2.5, 7.5], 10.0)
    """

    arg_constraints: Any = {"probs": constraints.simplex, "logits": constraints.real_vector}
    _expands = ("_categorical",)
    _copies = ("total_count",)

    def __init__(self, total_count: int = 1, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        if not isinstance(total_count, int):
            raise NotImplementedError(f"[Multinomial] inhomogeneous total_count is not supported, got {shown(total_count)}; pass one int")
        self.total_count = total_count
        self._categorical = Categorical(probs, logits, validate_args=validate_args)
        super().__init__(self._categorical.batch_shape, self._categorical.param_shape[-1:], validate_args=validate_args)

    @constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self) -> Any:
        return constraints.multinomial(self.total_count)

    @property
    def mean(self) -> Tensor:
        return self.probs * self.total_count

    @property
    def variance(self) -> Tensor:
        return self.total_count * self.probs * (1 - self.probs)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        drawn = T.movedim(self._categorical.sample((self.total_count, *sample_shape)), 0, -1)
        counts = T.zeros(tuple(self._extended_shape(sample_shape)), dtype=self.probs.dtype, device=self.probs.device)
        return T.scatter_add(counts, -1, drawn, T.ones_like(drawn, dtype=counts.dtype))

    def entropy(self) -> Tensor:
        n = self.total_count
        one = Binomial(n, self.probs, validate_args=False)
        counts = one.enumerate_support(expand=False)[1:]
        more = T.exp(one.log_prob(counts)) * T.lgamma(counts + 1)
        return n * self._categorical.entropy() - math.lgamma(n + 1) + T.sum(more, (0, -1))  # type: ignore[no-any-return]

    def log_prob(self, value: Tensor) -> Tensor:
        logits, value = broadcast_all(self.logits, self._checked(value))
        powers = T.where((value == 0) & (logits == -math.inf), 0.0, logits) * value
        return T.lgamma(T.sum(value, -1) + 1) - T.sum(T.lgamma(value + 1), -1) + T.sum(powers, -1)
