"""The von Mises distribution."""

from __future__ import annotations

import math
from typing import Any

from calque import functional as T
from calque.autograd.modes import no_grad
from calque.distributions import constraints, sampling
from calque.distributions.distribution import Distribution, located
from calque.distributions.utils import broadcast_all, lazy_property
from calque.tensor import Tensor

__all__ = ["VonMises"]


# Abramowitz & Stegun, 9.8.1 to 9.8.4: I0 and I1 below 3.75 as polynomials of (x / 3.75)**2, above times sqrt(x) exp(-x) as those of 3.75 / x.
_SMALL = (
    (1.0, 3.5156229, 3.0899424, 1.2067492, 0.2659732, 0.0360768, 0.0045813),
    (0.5, 0.87890594, 0.51498869, 0.15084934, 0.02658733, 0.00301532, 0.00032411),
)
_LARGE = (
    (0.39894228, 0.01328592, 0.00225319, -0.00157565, 0.00916281, -0.02057706, 0.02635537, -0.01647633, 0.00392377),
    (0.39894228, -0.03988024, -0.00362018, 0.00163801, -0.01031555, 0.02282967, -0.02895312, 0.01787654, -0.00420059),
)


def _polynomial(x: Tensor, coefficients: tuple[float, ...]) -> Any:
    value: Any = coefficients[-1]
    for coefficient in coefficients[-2::-1]:
        value = coefficient + x * value
    return value


def log_bessel(x: Tensor, order: int) -> Tensor:
    """The logarithm of the modified Bessel function I of order 0 or 1, to seven digits, for x > 0."""
    small = _polynomial(T.square(x / 3.75), _SMALL[order])
    small = T.log(T.abs(x) * small if order else small)
    large = x - 0.5 * T.log(x) + T.log(_polynomial(3.75 / x, _LARGE[order]))
    return T.where(x < 3.75, small, large)


class VonMises(Distribution):
    """Angles in [-pi, pi) around `loc`, closer the larger `concentration` > 0 is: the normal distribution of the circle.

    >>> import calque
    >>> d = calque.distributions.VonMises(0.0, 4.0)
    >>> d.mean.item(), bool((d.sample((100,)).abs() <= 3.1416).all())
    (0.0, True)
    """

    arg_constraints: Any = {"loc": constraints.real, "concentration": constraints.positive}
    support: Any = constraints.real
    has_rsample = False
    _expands = ("loc", "concentration")

    def __init__(self, loc: Any, concentration: Any, validate_args: bool | None = None) -> None:
        self.loc, self.concentration = broadcast_all(loc, concentration)
        super().__init__(self.loc.shape, validate_args=validate_args)

    def log_prob(self, value: Tensor) -> Tensor:
        along = self.concentration * T.cos(self._checked(value) - self.loc)
        return along - math.log(2 * math.pi) - log_bessel(self.concentration, 0)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        shape = tuple(self._extended_shape(sample_shape))
        with no_grad():
            return sampling.von_mises(T.expand(self.loc, shape), T.expand(self.concentration, shape))

    mean: Any = located
    mode: Any = located

    @lazy_property
    def variance(self) -> Any:
        """The circular variance, 1 - I1 / I0."""
        return 1 - T.exp(log_bessel(self.concentration, 1) - log_bessel(self.concentration, 0))
