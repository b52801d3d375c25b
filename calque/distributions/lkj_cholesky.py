"""Random correlation matrices."""

from __future__ import annotations

import math
from typing import Any

from calque import functional as T
from calque.autograd.modes import no_grad
from calque.base.dtypes import FInfo
from calque.base.errors import ArgumentError
from calque.distributions import constraints
from calque.distributions.beta import Beta
from calque.distributions.distribution import Distribution
from calque.distributions.utils import broadcast_all, standard_normal
from calque.functional.gamma import mvlgamma
from calque.tensor import Tensor

__all__ = ["LKJCholesky"]


class LKJCholesky(Distribution):
    """Cholesky factors of correlation matrices (dim, dim) with density |det|^(`concentration` - 1) (Lewandowski et al. 2009).

    dim: 2 or more. concentration: 1 is uniform, more is closer to the identity. Samples are drawn by the onion method.

    >>> import calque
    >>> factor = calque.distributions.LKJCholesky(3, 0.5).sample()
    >>> [round(x, 4) for x in (factor @ factor.T).diagonal().tolist()]
    [1.0, 1.0, 1.0]
    """

    arg_constraints: Any = {"concentration": constraints.positive}
    support: Any = constraints.corr_cholesky
    _expands = ("concentration", "_beta")
    _copies = ("dim",)

    def __init__(self, dim: int, concentration: Any = 1.0, validate_args: bool | None = None) -> None:
        if dim < 2:
            raise ArgumentError(f"[LKJCholesky] Expected dim to be an integer greater than or equal to 2. Found dim={dim}.")
        self.dim = dim
        (self.concentration,) = broadcast_all(concentration)
        rows = T.clamp(T.arange(dim, dtype=self.concentration.dtype, device=self.concentration.device) - 1, min=0)
        marginal = T.unsqueeze(self.concentration + 0.5 * (dim - 2), -1)
        self._beta: Any = Beta(rows + 0.5, marginal - 0.5 * rows, validate_args=validate_args)
        super().__init__(self.concentration.shape, (dim, dim), validate_args)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        with no_grad():
            square = T.unsqueeze(self._beta.sample(sample_shape), -1)
            below = T.tril(standard_normal(self._extended_shape(sample_shape), square), -1)
            length = T.sqrt(T.sum(T.square(below), -1, True))
            rows = T.sqrt(square) * below / T.where(length == 0, 1.0, length)  # the first row has nothing below the diagonal
            rest = T.clamp(1 - T.sum(T.square(rows), -1), min=FInfo(rows.dtype).tiny)
            return rows + T.diag_embed(T.sqrt(rest))

    def log_prob(self, value: Tensor) -> Tensor:
        diagonal = T.diagonal(self._checked(value), 0, -2, -1)[..., 1:]
        order = T.arange(2, self.dim + 1, device=self.concentration.device)
        power = 2 * T.unsqueeze(self.concentration - 1, -1) + self.dim - order
        less = self.dim - 1
        alpha = self.concentration + 0.5 * less
        norm = 0.5 * less * math.log(math.pi) + mvlgamma(alpha - 0.5, less) - T.lgamma(alpha) * less
        return T.sum(power * T.log(diagonal), -1) - norm
