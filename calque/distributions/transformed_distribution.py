"""Samples of another distribution, transformed."""

from __future__ import annotations

from typing import Any

from calque.autograd.modes import no_grad
from calque.base.errors import ArgumentError, ShapeError
from calque.base.shapes import Size
from calque.base.text import described
from calque.distributions import constraints
from calque.distributions.distribution import Distribution
from calque.distributions.independent import Independent
from calque.distributions.transform import ComposeTransform, Transform
from calque.distributions.utils import sum_rightmost
from calque.tensor import Tensor

__all__ = ["TransformedDistribution"]


class TransformedDistribution(Distribution):
    """The distribution of t(x) for x of `base_distribution`.

    transforms: one or a list, applied in order. Densities follow from their log determinants, `cdf` and `icdf` from those of the base if all are
    monotone.

    >>> import calque
    >>> d = calque.distributions
    >>> log_normal = d.TransformedDistribution(d.Normal(0.0, 1.0), [d.ExpTransform()])
    >>> round(log_normal.log_prob(calque.tensor(1.0)).item(), 4), round(log_normal.cdf(calque.tensor(1.0)).item(), 4)
    (-0.9189, 0.5)
    """

    arg_constraints: Any = {}
    _expands: tuple[str, ...] | None = ("base_dist",)
    _copies = ("transforms",)

    def __init__(self, base_distribution: Distribution, transforms: Any, validate_args: bool | None = None) -> None:
        listed = [transforms] if isinstance(transforms, Transform) else transforms
        if not isinstance(listed, list) or not all(isinstance(t, Transform) for t in listed):
            raise ArgumentError(f"[TransformedDistribution] transforms must be a Transform or a list of Transforms, but was {described(transforms)}")
        self.transforms = listed
        shape, own = Size(base_distribution.batch_shape + base_distribution.event_shape), len(base_distribution.event_shape)
        transform = ComposeTransform(listed)
        needed, made = transform.domain.event_dim, transform.codomain.event_dim
        if len(shape) < needed:
            raise ShapeError(f"[TransformedDistribution] base_distribution needs to have shape with size at least {needed}, but got {shape}.")
        after = transform.forward_shape(shape)
        before = transform.inverse_shape(after)
        if tuple(shape) != tuple(before):  # the parameters of a transform have more batch dims than the base
            base_distribution = base_distribution.expand(before[: len(before) - own])
        if needed > own:
            base_distribution = Independent(base_distribution, needed - own)
        self.base_dist: Any = base_distribution
        cut = len(after) - max(made, own + made - needed)
        super().__init__(after[:cut], after[cut:], validate_args=validate_args)

    @constraints.dependent_property(is_discrete=False)
    def support(self) -> Any:
        if not self.transforms:
            return self.base_dist.support
        found = self.transforms[-1].codomain
        more = len(self._event_shape) - found.event_dim
        return constraints.independent(found, more) if more > 0 else found

    @property
    def has_rsample(self) -> Any:  # type: ignore[override]
        return self.base_dist.has_rsample

    def _transformed(self, x: Any) -> Any:
        for transform in self.transforms:
            x = transform(x)
        return x

    def sample(self, sample_shape: Any = ()) -> Tensor:
        with no_grad():
            return self._transformed(self.base_dist.sample(sample_shape))  # type: ignore[no-any-return]

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self._transformed(self.base_dist.rsample(sample_shape))  # type: ignore[no-any-return]

    def log_prob(self, value: Tensor) -> Tensor:
        y: Any = self._checked(value)
        dims, total = len(self._event_shape), 0.0
        for transform in reversed(self.transforms):
            x = transform.inv(y)
            dims += transform.domain.event_dim - transform.codomain.event_dim
            total = total - sum_rightmost(transform.log_abs_det_jacobian(x, y), dims - transform.domain.event_dim)
            y = x
        return total + sum_rightmost(self.base_dist.log_prob(y), dims - len(self.base_dist.event_shape))  # type: ignore[no-any-return]

    def _mirrored(self, value: Any) -> Any:
        """Probabilities from the other side where the transforms together fall."""
        sign: Any = 1
        for transform in self.transforms:
            sign = sign * transform.sign
        return value if isinstance(sign, int) and sign == 1 else sign * (value - 0.5) + 0.5

    def cdf(self, value: Tensor) -> Tensor:
        x: Any = value
        for transform in reversed(self.transforms):
            x = transform.inv(x)
        if self._validate_args:
            self.base_dist._validate_sample(x)
        return self._mirrored(self.base_dist.cdf(x))  # type: ignore[no-any-return]

    def icdf(self, value: Tensor) -> Tensor:
        return self._transformed(self.base_dist.icdf(self._mirrored(value)))  # type: ignore[no-any-return]


class Relaxed(TransformedDistribution):
    """What the relaxed distributions share: they are transformed ones, with the parameters of what is transformed."""

    @property
    def temperature(self) -> Any:
        """How far samples are from those of a choice."""
        return self.base_dist.temperature

    @property
    def logits(self) -> Tensor:
        """Logarithms of the odds, or of the probabilities of classes."""
        return self.base_dist.logits  # type: ignore[no-any-return]

    @property
    def probs(self) -> Tensor:
        """Probabilities."""
        return self.base_dist.probs  # type: ignore[no-any-return]
