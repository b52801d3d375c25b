"""Mixtures of distributions of one kind."""

from __future__ import annotations

from typing import Any

from calque import functional as T
from calque.autograd.modes import no_grad
from calque.base.errors import ArgumentError, ShapeError
from calque.distributions import constraints
from calque.distributions.categorical import Categorical
from calque.distributions.distribution import Distribution
from calque.nn import functional as F
from calque.tensor import Tensor

__all__ = ["MixtureSameFamily"]


class MixtureSameFamily(Distribution):
    """One of K distributions, chosen by a `Categorical`: the last batch dim of `component_distribution` are the components.

    >>> import calque
    >>> d = calque.distributions
    >>> two = d.MixtureSameFamily(d.Categorical(calque.tensor([0.5, 0.5])), d.Normal(calque.tensor([-1.0, 1.0]), 1.0))
    >>> two.mean.item(), two.variance.item(), two.cdf(calque.tensor(0.0)).item()
    (0.0, 2.0, 0.5)
    """

    arg_constraints: Any = {}
    has_rsample = False
    _expands = ("_component_distribution", "_mixture_distribution")
    _copies = ("_num_component", "_event_ndims")

    def __init__(self, mixture_distribution: Any, component_distribution: Any, validate_args: bool | None = None) -> None:
        if not isinstance(mixture_distribution, Categorical):
            raise ArgumentError("[MixtureSameFamily] The Mixture distribution needs to be an instance of distributions.Categorical")
        if not isinstance(component_distribution, Distribution):
            raise ArgumentError("[MixtureSameFamily] The Component distribution needs to be an instance of distributions.Distribution")
        mixed, parts = mixture_distribution.batch_shape, component_distribution.batch_shape
        if any(a != 1 and b != 1 and a != b for a, b in zip(reversed(mixed), reversed(parts[:-1]), strict=False)):
            raise ShapeError(
                f"[MixtureSameFamily] `mixture_distribution.batch_shape` ({mixed}) is not compatible with `component_distribution.batch_shape` "
                f"({parts[:-1]})"
            )
        count = mixture_distribution.param_shape[-1]
        if count != parts[-1]:
            raise ShapeError(
                f"[MixtureSameFamily] `mixture_distribution component` ({count}) does not equal the last of "
                f"`component_distribution.batch_shape` ({parts[-1]})"
            )
        self._mixture_distribution, self._component_distribution, self._num_component = mixture_distribution, component_distribution, count
        self._event_ndims = len(component_distribution.event_shape)
        super().__init__(parts[:-1], component_distribution.event_shape, validate_args=validate_args)

    @constraints.dependent_property
    def support(self) -> Any:
        return constraints.MixtureSameFamilyConstraint(self._component_distribution.support)

    @property
    def mixture_distribution(self) -> Any:
        """What chooses a component."""
        return self._mixture_distribution

    @property
    def component_distribution(self) -> Any:
        """The components."""
        return self._component_distribution

    def _weights(self) -> Tensor:
        """Probabilities of the components, with as many dims as their means."""
        probs = self._mixture_distribution.probs
        more = len(self._batch_shape) - len(self._mixture_distribution.batch_shape)
        return T.reshape(probs, (*probs.shape[:-1], *(1,) * more, probs.shape[-1], *(1,) * self._event_ndims))

    def _with_components(self, x: Tensor) -> Tensor:
        return T.unsqueeze(x, -1 - self._event_ndims)

    @property
    def mean(self) -> Tensor:
        return T.sum(self._weights() * self._component_distribution.mean, -1 - self._event_ndims)

    @property
    def variance(self) -> Tensor:
        parts = self._component_distribution
        between = T.square(parts.mean - self._with_components(self.mean))
        return T.sum(self._weights() * (parts.variance + between), -1 - self._event_ndims)

    def cdf(self, x: Tensor) -> Tensor:
        return T.sum(self._component_distribution.cdf(self._with_components(x)) * self._mixture_distribution.probs, -1)

    def log_prob(self, x: Tensor) -> Tensor:
        parts = self._component_distribution.log_prob(self._with_components(self._checked(x)))
        return T.logsumexp(parts + F.log_softmax(self._mixture_distribution.logits, -1), -1)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        with no_grad():
            dim = len(sample_shape) + len(self._batch_shape)
            chosen = self._mixture_distribution.sample(sample_shape)
            chosen = T.reshape(chosen, (*chosen.shape, *(1,) * (self._event_ndims + 1)))
            drawn = self._component_distribution.sample(sample_shape)
            places = T.expand(chosen, (*drawn.shape[:dim], 1, *self._event_shape))
            return T.squeeze(T.gather(drawn, dim, places), dim)

    def __repr__(self) -> str:
        return f"MixtureSameFamily(\n  {self._mixture_distribution},\n  {self._component_distribution})"
