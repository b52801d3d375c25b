"""Batch dims taken as dims of one event."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from calque.base.errors import ShapeError
from calque.base.shapes import Size
from calque.distributions import constraints
from calque.distributions.distribution import Distribution
from calque.distributions.utils import sum_rightmost
from calque.tensor import Tensor

__all__ = ["Independent"]

D = TypeVar("D", bound=Distribution)


class Independent(Distribution, Generic[D]):
    """Another distribution whose last `reinterpreted_batch_ndims` batch dims belong to one sample: log-probabilities are summed over them.

    >>> import calque
    >>> d = calque.distributions
    >>> diagonal = d.Independent(d.Normal(calque.zeros(4, 3), 1.0), 1)
    >>> diagonal.batch_shape, diagonal.event_shape, tuple(diagonal.log_prob(calque.zeros(3)).shape)
    (torch.Size([4]), torch.Size([3]), (4,))
    """

    arg_constraints: Any = {}
    _expands = ("base_dist",)
    _copies = ("reinterpreted_batch_ndims",)

    def __init__(self, base_distribution: D, reinterpreted_batch_ndims: int, validate_args: bool | None = None) -> None:
        have = len(base_distribution.batch_shape)
        if reinterpreted_batch_ndims > have:
            raise ShapeError(
                f"[Independent] Expected reinterpreted_batch_ndims <= len(base_distribution.batch_shape), got {reinterpreted_batch_ndims} vs {have}"
            )
        self.base_dist, self.reinterpreted_batch_ndims = base_distribution, reinterpreted_batch_ndims
        shape, cut = Size(base_distribution.batch_shape + base_distribution.event_shape), have - reinterpreted_batch_ndims
        super().__init__(shape[:cut], shape[cut:], validate_args=validate_args)

    @property
    def has_rsample(self) -> Any:  # type: ignore[override]
        return self.base_dist.has_rsample

    @property
    def has_enumerate_support(self) -> Any:  # type: ignore[override]
        return not self.reinterpreted_batch_ndims and self.base_dist.has_enumerate_support

    @constraints.dependent_property
    def support(self) -> Any:
        found = self.base_dist.support
        return constraints.independent(found, self.reinterpreted_batch_ndims) if self.reinterpreted_batch_ndims else found

    @property
    def mean(self) -> Tensor:
        return self.base_dist.mean

    @property
    def mode(self) -> Tensor:
        return self.base_dist.mode

    @property
    def variance(self) -> Tensor:
        return self.base_dist.variance

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return self.base_dist.sample(sample_shape)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.base_dist.rsample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        return sum_rightmost(self.base_dist.log_prob(value), self.reinterpreted_batch_ndims)  # type: ignore[no-any-return]

    def entropy(self) -> Tensor:
        return sum_rightmost(self.base_dist.entropy(), self.reinterpreted_batch_ndims)  # type: ignore[no-any-return]

    def enumerate_support(self, expand: bool = True) -> Tensor:
        if self.reinterpreted_batch_ndims > 0:
            raise NotImplementedError("[Independent] Enumeration over cartesian product is not implemented")
        return self.base_dist.enumerate_support(expand=expand)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_dist}, {self.reinterpreted_batch_ndims})"
