"""The beta distribution."""

from __future__ import annotations

from typing import Any

from calque import functional as T
from calque.distributions import constraints
from calque.distributions.dirichlet import Dirichlet
from calque.distributions.distribution import ExponentialFamily
from calque.distributions.utils import broadcast_all
from calque.functional.common import is_number
from calque.tensor import Tensor

__all__ = ["Beta"]


class Beta(ExponentialFamily):
    """Probabilities, as after concentration1 - 1 successes and concentration0 - 1 failures (both > 0).

    >>> import calque
    >>> d = calque.distributions.Beta(2.0, 2.0)
    >>> d.mean.item(), round(d.log_prob(calque.tensor(0.5)).exp().item(), 4)
    (0.5, 1.5)
    """

    arg_constraints: Any = {"concentration1": constraints.positive, "concentration0": constraints.positive}
    support: Any = constraints.unit_interval
    has_rsample = True
    _expands = ("_dirichlet",)

    def __init__(self, concentration1: Any, concentration0: Any, validate_args: bool | None = None) -> None:
        if is_number(concentration1) and is_number(concentration0):
            both = T.tensor([float(concentration1), float(concentration0)])
        else:
            both = T.stack(broadcast_all(concentration1, concentration0), -1)
        self._dirichlet: Any = Dirichlet(both, validate_args=validate_args)
        super().__init__(self._dirichlet.batch_shape, validate_args=validate_args)

    def _check_parameters(self) -> None:
        if not self._dirichlet._validate_args or self.arg_constraints is not Beta.arg_constraints:  # else that has checked both
            super()._check_parameters()

    @property
    def concentration1(self) -> Tensor:
        """Concentration of 1."""
        return self._dirichlet.concentration[..., 0]  # type: ignore[no-any-return]

    @property
    def concentration0(self) -> Tensor:
        """Concentration of 0."""
        return self._dirichlet.concentration[..., 1]  # type: ignore[no-any-return]

    @property
    def mean(self) -> Tensor:
        return self.concentration1 / (self.concentration1 + self.concentration0)

    @property
    def mode(self) -> Tensor:
        return self._dirichlet.mode[..., 0]  # type: ignore[no-any-return]

    @property
    def variance(self) -> Tensor:
        total = self.concentration1 + self.concentration0
        return self.concentration1 * self.concentration0 / (T.square(total) * (total + 1))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self._dirichlet.rsample(sample_shape)[..., 0]  # type: ignore[no-any-return]

    def log_prob(self, value: Tensor) -> Tensor:
        value = self._checked(value)
        return self._dirichlet.log_prob(T.stack([value, 1.0 - value], -1))  # type: ignore[no-any-return]

    def entropy(self) -> Tensor:
        return self._dirichlet.entropy()  # type: ignore[no-any-return]

    @property
    def _natural_params(self) -> tuple[Any, ...]:
        return (self.concentration1, self.concentration0)

    def _log_normalizer(self, *natural_params: Any) -> Any:
        x, y = natural_params
        return T.lgamma(x) + T.lgamma(y) - T.lgamma(x + y)
