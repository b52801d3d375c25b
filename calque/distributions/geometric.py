"""The geometric distribution."""

from __future__ import annotations

from typing import Any

from calque import functional as T
from calque.autograd.modes import no_grad
from calque.base.dtypes import FInfo
from calque.base.errors import ArgumentError
from calque.distributions import constraints
from calque.distributions.chances import Chances
from calque.distributions.utils import broadcast_all, holds, uniform
from calque.nn import functional as F
from calque.tensor import Tensor

__all__ = ["Geometric"]


class Geometric(Chances):
    """The number of failures before the first success, each try having probability `probs` > 0 (or their `logits`).

    >>> import calque
    >>> d = calque.distributions.Geometric(0.25)
    >>> d.mean.item(), d.variance.item(), round(d.log_prob(calque.tensor(1.0)).exp().item(), 4)
    (3.0, 12.0, 0.1875)
    """

    arg_constraints: Any = {"probs": constraints.unit_interval, "logits": constraints.real}
    support: Any = constraints.nonnegative_integer
    _expands = ("probs", "logits")
    _copies = ("_given",)

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        name, value = self._which(probs, logits)
        (self.__dict__[name],) = broadcast_all(value)
        super().__init__(self._param.shape, validate_args=validate_args)
        if self._validate_args and probs is not None and not holds(self.probs > 0):
            raise ArgumentError(
                f"[Geometric] Expected parameter probs (Tensor of shape {tuple(self.probs.shape)}) of distribution {self!r} to be positive but "
                f"found invalid values:\n{self.probs}"
            )

    @property
    def mean(self) -> Tensor:
        return 1.0 / self.probs - 1.0  # type: ignore[no-any-return]

    @property
    def mode(self) -> Tensor:
        return T.zeros_like(self.probs)

    @property
    def variance(self) -> Tensor:
        return (1.0 / self.probs - 1.0) / self.probs  # type: ignore[no-any-return]

    def sample(self, sample_shape: Any = ()) -> Tensor:
        with no_grad():
            u = T.clamp(uniform(self._extended_shape(sample_shape), self.probs), min=FInfo(self.probs.dtype).tiny)
            return T.floor(T.log(u) / T.log1p(-self.probs))

    def log_prob(self, value: Tensor) -> Tensor:
        value, probs = broadcast_all(self._checked(value), self.probs)
        certain = (probs == 1) & (value == 0)  # 0 * log(0) is 0 here
        return value * T.log1p(-T.where(certain, 0.0, probs)) + T.log(self.probs)

    def entropy(self) -> Tensor:
        return F.binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none") / self.probs
