"""The binomial distribution."""

from __future__ import annotations

from typing import Any

from calque import functional as T
from calque.autograd.modes import no_grad
from calque.distributions import constraints, sampling
from calque.distributions.chances import Chances
from calque.distributions.utils import broadcast_all
from calque.tensor import Tensor

__all__ = ["Binomial"]


def _clamped_above_zero(x: Tensor) -> Tensor:
    """max(x, 0), with the gradient 1/2 at 0."""
    return (T.clamp(x, min=0) + x - T.clamp(x, max=0)) / 2


class Binomial(Chances):
    """The number of successes among `total_count` tries (a number or a Tensor) of probability `probs`, or given by `logits`.

    >>> import calque
    >>> d = calque.distributions.Binomial(4, calque.tensor([0.5, 0.25]))
    >>> d.mean.tolist(), round(d.log_prob(calque.tensor(2.0)).exp()[0].item(), 4)
    ([2.0, 1.0], 0.375)
    """

    arg_constraints: Any = {"total_count": constraints.nonnegative_integer, "probs": constraints.unit_interval, "logits": constraints.real}
    has_enumerate_support = True
    _expands = ("total_count", "probs", "logits")
    _copies = ("_given",)

    def __init__(self, total_count: Any = 1, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        name, value = self._which(probs, logits)
        count, self.__dict__[name] = broadcast_all(total_count, value)
        self.total_count = count.to(self._param.dtype)
        super().__init__(self._param.shape, validate_args=validate_args)

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self) -> Any:
        return constraints.integer_interval(0, self.total_count)

    @property
    def mean(self) -> Tensor:
        return self.total_count * self.probs  # type: ignore[no-any-return]

    @property
    def mode(self) -> Tensor:
        return T.minimum(T.floor((self.total_count + 1) * self.probs), self.total_count)

    @property
    def variance(self) -> Tensor:
        return self.total_count * self.probs * (1 - self.probs)  # type: ignore[no-any-return]

    def sample(self, sample_shape: Any = ()) -> Tensor:
        shape = tuple(self._extended_shape(sample_shape))
        with no_grad():
            return sampling.binomial(T.expand(self.total_count, shape), T.expand(self.probs, shape))

    def log_prob(self, value: Tensor) -> Tensor:
        value, n, logits = self._checked(value), self.total_count, self.logits
        ways = T.lgamma(n + 1) - T.lgamma(value + 1) - T.lgamma(n - value + 1)
        norm = n * _clamped_above_zero(logits) + n * T.log1p(T.exp(-T.abs(logits)))
        return value * logits + ways - norm

    def _one_count(self, what: str) -> int:
        count = int(T.max(self.total_count))
        if int(T.min(self.total_count)) != count:
            raise NotImplementedError(f"[Binomial] Inhomogeneous total count not supported by `{what}`.")
        return count

    def entropy(self) -> Tensor:
        self._one_count("entropy")
        logs = self.log_prob(self.enumerate_support(False))
        return -T.sum(T.exp(logs) * logs, 0)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        values = T.arange(1 + self._one_count("enumerate_support"), dtype=self._param.dtype, device=self._param.device)
        values = T.reshape(values, (-1, *(1,) * len(self._batch_shape)))
        return T.expand(values, (-1, *self._batch_shape)) if expand else values
