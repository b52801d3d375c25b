"""Categorical distributions with differentiable samples (Jang et al. 2017; Maddison et al. 2017)."""

from __future__ import annotations

import math
from typing import Any

from calque import functional as T
from calque.distributions import constraints
from calque.distributions.categorical import Categorical
from calque.distributions.chances import ByCategories
from calque.distributions.transformed_distribution import Relaxed
from calque.distributions.transforms import ExpTransform
from calque.distributions.utils import broadcast_all, clamp_probs, uniform
from calque.tensor import Tensor

__all__ = ["ExpRelaxedCategorical", "RelaxedOneHotCategorical"]


class ExpRelaxedCategorical(ByCategories):
    """The logarithm of `RelaxedOneHotCategorical`.

    >>> import calque
    >>> d = calque.distributions.relaxed_categorical.ExpRelaxedCategorical(calque.tensor(1.0), probs=calque.ones(3))
    >>> round(d.rsample().exp().sum().item(), 4)
    1.0
    """

    arg_constraints: Any = {"probs": constraints.simplex, "logits": constraints.real_vector}
    support: Any = constraints.real_vector
    has_rsample = True
    _expands = ("_categorical",)
    _copies = ("temperature",)

    def __init__(self, temperature: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        self._categorical = Categorical(probs, logits, validate_args=validate_args)
        self.temperature = temperature
        super().__init__(self._categorical.batch_shape, self._categorical.param_shape[-1:], validate_args=validate_args)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        gumbels = -T.log(-T.log(clamp_probs(uniform(self._extended_shape(sample_shape), self.logits))))
        scores = (self.logits + gumbels) / self.temperature
        return scores - T.logsumexp(scores, -1, True)

    def log_prob(self, value: Tensor) -> Tensor:
        count = self._event_shape[0]
        logits, value = broadcast_all(self.logits, self._checked(value))
        score = logits - value * self.temperature
        score = T.sum(score - T.logsumexp(score, -1, True), -1)
        return score + math.lgamma(count) + (count - 1) * T.log(self.temperature)


class RelaxedOneHotCategorical(Relaxed):
    """Vectors of the simplex that are nearly one-hot where `temperature` > 0 (a Tensor) is small: differentiable samples of a class.

    >>> import calque
    >>> d = calque.distributions.RelaxedOneHotCategorical(calque.tensor(0.5), probs=calque.tensor([0.2, 0.8]))
    >>> round(d.rsample().sum().item(), 4)
    1.0
    """

    arg_constraints: Any = {"probs": constraints.simplex, "logits": constraints.real_vector}
    support: Any = constraints.simplex
    has_rsample: Any = True

    def __init__(self, temperature: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        base = ExpRelaxedCategorical(temperature, probs, logits, validate_args=validate_args)
        super().__init__(base, ExpTransform(), validate_args=validate_args)
