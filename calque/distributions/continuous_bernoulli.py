"""The continuous Bernoulli distribution."""

from __future__ import annotations

import math
from typing import Any

from calque import functional as T
from calque.base.errors import ArgumentError
from calque.distributions import constraints
from calque.distributions.chances import Chances
from calque.distributions.distribution import ExponentialFamily
from calque.distributions.utils import broadcast_all, clamp_probs, holds, lazy_property, uniform
from calque.nn import functional as F
from calque.tensor import Tensor

__all__ = ["ContinuousBernoulli"]


class ContinuousBernoulli(Chances, ExponentialFamily):
    """Numbers of [0, 1] with density proportional to p^x (1 - p)^(1 - x) (Loaiza-Ganem & Cunningham 2019): a likelihood of grey pixels.

    probs or logits: p. lims: where p is so close to 1/2 that series are used.

    >>> import calque
    >>> d = calque.distributions.ContinuousBernoulli(0.5)
    >>> round(d.mean.item(), 4), round(d.log_prob(calque.tensor(0.3)).item(), 4)
    (0.5, 0.0)
    """

    arg_constraints: Any = {"probs": constraints.unit_interval, "logits": constraints.real}
    support: Any = constraints.unit_interval
    _mean_carrier_measure: Any = 0
    has_rsample = True
    _expands = ("probs", "logits")
    _copies = ("_given", "_lims")

    def __init__(
        self, probs: Any = None, logits: Any = None, lims: tuple[float, float] = (0.499, 0.501), validate_args: bool | None = None
    ) -> None:
        name, value = self._which(probs, logits)
        (value,) = broadcast_all(value)
        if name == "probs":
            if validate_args is not None and not holds(self.arg_constraints["probs"].check(value)):
                raise ArgumentError(f"[ContinuousBernoulli] The parameter probs has invalid values, expected numbers of [0, 1]:\n{value}")
            value = clamp_probs(value)
        self.__dict__[name] = value
        self._lims = lims
        super().__init__(value.shape, validate_args=validate_args)

    @lazy_property
    def probs(self) -> Any:
        """Probabilities, away from 0 and 1."""
        return clamp_probs(T.sigmoid(self.logits))

    def _away(self, x: Any, shift: float = 0.0) -> Any:
        """Where the formulas without series hold."""
        return (x <= self._lims[0] - shift) | (x > self._lims[1] - shift)

    def _cut(self) -> Any:
        return T.where(self._away(self.probs), self.probs, self._lims[0] * T.ones_like(self.probs))

    def _cont_bern_log_norm(self) -> Any:
        """The logarithm of the factor that makes the density integrate to 1."""
        p = self._cut()
        low = T.log1p(-2.0 * T.where(p <= 0.5, p, T.zeros_like(p)))
        high = T.log(2.0 * T.where(p >= 0.5, p, T.ones_like(p)) - 1.0)
        norm = T.log(T.abs(T.log1p(-p) - T.log(p))) - T.where(p <= 0.5, low, high)
        x = T.square(self.probs - 0.5)
        return T.where(self._away(self.probs), norm, math.log(2.0) + (4.0 / 3.0 + 104.0 / 45.0 * x) * x)

    @property
    def mean(self) -> Tensor:
        p, x = self._cut(), self.probs - 0.5
        known = p / (2.0 * p - 1.0) + 1.0 / (T.log1p(-p) - T.log(p))
        return T.where(self._away(self.probs), known, 0.5 + (1.0 / 3.0 + 16.0 / 45.0 * T.square(x)) * x)

    @property
    def variance(self) -> Tensor:
        p, x = self._cut(), T.square(self.probs - 0.5)
        known = p * (p - 1.0) / T.square(1.0 - 2.0 * p) + 1.0 / T.square(T.log1p(-p) - T.log(p))
        return T.where(self._away(self.probs), known, 1.0 / 12.0 - (1.0 / 15.0 - 128.0 / 945.0 * x) * x)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.icdf(uniform(self._extended_shape(sample_shape), self.probs))

    def log_prob(self, value: Tensor) -> Tensor:
        logits, value = broadcast_all(self.logits, self._checked(value))
        return self._cont_bern_log_norm() - F.binary_cross_entropy_with_logits(logits, value, reduction="none")  # type: ignore[no-any-return]

    def cdf(self, value: Tensor) -> Tensor:
        value, p = self._checked(value), self._cut()
        known = (p**value * (1.0 - p) ** (1.0 - value) + p - 1.0) / (2.0 * p - 1.0)
        inside = T.where(self._away(self.probs), known, value)
        return T.where(value <= 0.0, T.zeros_like(value), T.where(value >= 1.0, T.ones_like(value), inside))

    def icdf(self, value: Tensor) -> Tensor:
        p = self._cut()
        known = (T.log1p(-p + value * (2.0 * p - 1.0)) - T.log1p(-p)) / (T.log(p) - T.log1p(-p))
        return T.where(self._away(self.probs), known, value)

    def entropy(self) -> Tensor:
        zero, one = T.log1p(-self.probs), T.log(self.probs)
        return self.mean * (zero - one) - self._cont_bern_log_norm() - zero

    @property
    def _natural_params(self) -> tuple[Any, ...]:
        return (self.logits,)

    def _log_normalizer(self, *natural_params: Any) -> Any:
        (x,) = natural_params
        away = self._away(x, 0.5)
        cut = T.where(away, x, (self._lims[0] - 0.5) * T.ones_like(x))
        series = 0.5 * x + T.square(x) / 24.0 - x**4 / 2880.0
        return T.where(away, T.log(T.abs(T.expm1(cut))) - T.log(T.abs(cut)), series)
