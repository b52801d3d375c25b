"""The Bernoulli distribution."""

from __future__ import annotations

import math
from typing import Any

from calque import functional as T
from calque.autograd.modes import no_grad
from calque.distributions import constraints
from calque.distributions.chances import Chances
from calque.distributions.distribution import ExponentialFamily
from calque.distributions.utils import broadcast_all
from calque.nn import functional as F
from calque.tensor import Tensor

__all__ = ["Bernoulli"]


class Bernoulli(Chances, ExponentialFamily):
    """1 with probability `probs`, else 0; given by `probs` or by their `logits`.

    >>> import calque
    >>> d = calque.distributions.Bernoulli(calque.tensor([0.25, 0.5]))
    >>> d.mean.tolist(), d.enumerate_support().tolist(), round(d.log_prob(calque.tensor([0.0, 1.0])).sum().exp().item(), 4)
    ([0.25, 0.5], [[0.0, 0.0], [1.0, 1.0]], 0.375)
    """

    arg_constraints: Any = {"probs": constraints.unit_interval, "logits": constraints.real}
    support: Any = constraints.boolean
    has_enumerate_support = True
    _mean_carrier_measure: Any = 0
    _expands = ("probs", "logits")
    _copies = ("_given",)

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        name, value = self._which(probs, logits)
        (self.__dict__[name],) = broadcast_all(value)
        super().__init__(self._param.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.probs  # type: ignore[no-any-return]

    @property
    def mode(self) -> Tensor:
        return T.where(self.probs == 0.5, math.nan, (self.probs >= 0.5).to(self.probs.dtype))

    @property
    def variance(self) -> Tensor:
        return self.probs * (1 - self.probs)  # type: ignore[no-any-return]

    def sample(self, sample_shape: Any = ()) -> Tensor:
        with no_grad():
            return T.bernoulli(T.expand(self.probs, tuple(self._extended_shape(sample_shape))))

    def log_prob(self, value: Tensor) -> Tensor:
        logits, value = broadcast_all(self.logits, self._checked(value))
        return -F.binary_cross_entropy_with_logits(logits, value, reduction="none")

    def entropy(self) -> Tensor:
        return F.binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none")

    def enumerate_support(self, expand: bool = True) -> Tensor:
        values = T.arange(2, dtype=self._param.dtype, device=self._param.device)
        values = T.reshape(values, (-1, *(1,) * len(self._batch_shape)))
        return T.expand(values, (-1, *self._batch_shape)) if expand else values

    @property
    def _natural_params(self) -> tuple[Any, ...]:
        return (T.logit(self.probs),)

    def _log_normalizer(self, *natural_params: Any) -> Any:
        return T.log1p(T.exp(natural_params[0]))
