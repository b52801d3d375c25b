"""The chi-squared distribution."""

from __future__ import annotations

from typing import Any

from calque.distributions import constraints
from calque.distributions.gamma import Gamma
from calque.tensor import Tensor

__all__ = ["Chi2"]


class Chi2(Gamma):
    """The sum of `df` squared standard normal numbers: a gamma distribution with concentration df / 2 and rate 1/2.

    >>> import calque
    >>> d = calque.distributions.Chi2(4.0)
    >>> d.mean.item(), d.variance.item(), d.df.item()
    (4.0, 8.0, 4.0)
    """

    arg_constraints: Any = {"df": constraints.positive}

    def __init__(self, df: Any, validate_args: bool | None = None) -> None:
        super().__init__(0.5 * df, 0.5, validate_args=validate_args)

    @property
    def df(self) -> Tensor:
        """Degrees of freedom."""
        return self.concentration * 2
