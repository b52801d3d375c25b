"""Bernoulli distributions with differentiable samples."""

from __future__ import annotations

from typing import Any

from calque import functional as T
from calque.distributions import constraints
from calque.distributions.chances import Chances
from calque.distributions.transformed_distribution import Relaxed
from calque.distributions.transforms import SigmoidTransform
from calque.distributions.utils import broadcast_all, clamp_probs, uniform
from calque.tensor import Tensor

__all__ = ["LogitRelaxedBernoulli", "RelaxedBernoulli"]


class LogitRelaxedBernoulli(Chances):
    """The logit of `RelaxedBernoulli`.

    >>> import calque
    >>> d = calque.distributions.relaxed_bernoulli.LogitRelaxedBernoulli(calque.tensor(1.0), probs=0.5)
    >>> round(d.log_prob(calque.tensor(0.0)).exp().item(), 4)
    0.25
    """

    arg_constraints: Any = {"probs": constraints.unit_interval, "logits": constraints.real}
    support: Any = constraints.real
    _expands = ("probs", "logits")
    _copies = ("_given", "temperature")

    def __init__(self, temperature: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        self.temperature = temperature
        name, value = self._which(probs, logits)
        (self.__dict__[name],) = broadcast_all(value)
        super().__init__(self._param.shape, validate_args=validate_args)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        shape = tuple(self._extended_shape(sample_shape))
        p, u = clamp_probs(T.expand(self.probs, shape)), clamp_probs(uniform(shape, self.probs))
        return (T.log(u) - T.log1p(-u) + T.log(p) - T.log1p(-p)) / self.temperature  # type: ignore[no-any-return]

    def log_prob(self, value: Tensor) -> Tensor:
        logits, value = broadcast_all(self.logits, self._checked(value))
        away = logits - value * self.temperature
        return T.log(self.temperature) + away - 2 * T.log1p(T.exp(away))


class RelaxedBernoulli(Relaxed):
    """Numbers of (0, 1) that are nearly 0 or 1 where `temperature` > 0 (a Tensor) is small: differentiable samples of a Bernoulli choice.

    >>> import calque
    >>> d = calque.distributions.RelaxedBernoulli(calque.tensor(0.1), probs=calque.tensor(0.9))
    >>> d.has_rsample, 0 <= d.rsample().item() <= 1
    (True, True)
    """

    arg_constraints: Any = {"probs": constraints.unit_interval, "logits": constraints.real}
    support: Any = constraints.unit_interval
    has_rsample: Any = True

    def __init__(self, temperature: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        super().__init__(LogitRelaxedBernoulli(temperature, probs, logits), SigmoidTransform(), validate_args=validate_args)
