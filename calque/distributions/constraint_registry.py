"""Transforms of unconstrained numbers to those that a constraint accepts.

`biject_to(constraint)` is a bijection with a log determinant, as samplers need it; `transform_to(constraint)` may be anything smooth, as optimizers
like it: it may have more inputs than outputs.

>>> import calque
>>> from calque.distributions import biject_to, constraints, transform_to
>>> x = biject_to(constraints.simplex)(calque.zeros(2))
>>> [round(p, 4) for p in x.tolist()], tuple(transform_to(constraints.simplex)(calque.zeros(3)).shape)
([0.3333, 0.3333, 0.3333], (3,))
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from calque.base.text import described
from calque.distributions import constraints, transforms
from calque.functional.blame import publish as _publish
from calque.functional.common import is_number

__all__ = ["ConstraintRegistry", "biject_to", "transform_to"]


class ConstraintRegistry:
    """A table from kinds of constraints to functions that make a transform: `registry(constraint)` makes it.

    >>> from calque.distributions import constraints
    >>> from calque.distributions.constraint_registry import ConstraintRegistry
    >>> from calque.distributions.transforms import ExpTransform
    >>> registry = ConstraintRegistry()
    >>> f = registry.register(constraints.positive, lambda constraint: ExpTransform())
    >>> registry(constraints.greater_than(0.0))
    ExpTransform()
    """

    def __init__(self) -> None:
        self._registry: dict[type, Callable[[Any], Any]] = {}

    def register(self, constraint: Any, factory: Any = None) -> Any:
        """Use `factory(constraint)` for constraints of this kind; without a factory, a decorator."""
        if factory is None:
            return lambda made: self.register(constraint, made)
        kind = type(constraint) if isinstance(constraint, constraints.Constraint) else constraint
        if not isinstance(kind, type) or not issubclass(kind, constraints.Constraint):
            raise TypeError(f"[register] Expected constraint to be either a Constraint subclass or instance, but got {described(constraint)}")
        self._registry[kind] = factory
        return factory

    def __call__(self, constraint: Any) -> Any:
        factory = self._registry.get(type(constraint))
        if factory is None:
            raise NotImplementedError(f"Cannot transform {type(constraint).__name__} constraints")
        return factory(constraint)


biject_to = ConstraintRegistry()
transform_to = ConstraintRegistry()


def _independent(registry: ConstraintRegistry) -> Callable[[Any], Any]:
    return lambda c: transforms.IndependentTransform(registry(c.base_constraint), c.reinterpreted_batch_ndims)


def _cat(registry: ConstraintRegistry) -> Callable[[Any], Any]:
    return lambda c: transforms.CatTransform([registry(part) for part in c.cseq], c.dim, c.lengths)


def _stack(registry: ConstraintRegistry) -> Callable[[Any], Any]:
    return lambda c: transforms.StackTransform([registry(part) for part in c.cseq], c.dim)


def _above(constraint: Any) -> Any:
    return transforms.ComposeTransform([transforms.ExpTransform(), transforms.AffineTransform(constraint.lower_bound, 1)])


def _below(constraint: Any) -> Any:
    return transforms.ComposeTransform([transforms.ExpTransform(), transforms.AffineTransform(constraint.upper_bound, -1)])


def _between(constraint: Any) -> Any:
    low, high = constraint.lower_bound, constraint.upper_bound
    if is_number(low) and is_number(high) and low == 0 and high == 1:
        return transforms.SigmoidTransform()
    return transforms.ComposeTransform([transforms.SigmoidTransform(), transforms.AffineTransform(low, high - low)])


def _corr_cholesky(constraint: Any) -> Any:
    return transforms.CorrCholeskyTransform()


for _registry in (biject_to, transform_to):
    _registry.register(constraints.real, lambda constraint: transforms.identity_transform)
    _registry.register(constraints.independent, _independent(_registry))
    _registry.register(constraints.cat, _cat(_registry))
    _registry.register(constraints.stack, _stack(_registry))
    _registry.register(constraints.corr_cholesky, _corr_cholesky)
    for _kinds, _factory in (
        ((constraints.greater_than, constraints.greater_than_eq), _above),  # `positive` too
        ((constraints.less_than,), _below),
        ((constraints.interval, constraints.half_open_interval), _between),
    ):
        for _kind in _kinds:
            _registry.register(_kind, _factory)

biject_to.register(constraints.simplex, lambda constraint: transforms.StickBreakingTransform())
transform_to.register(constraints.simplex, lambda constraint: transforms.SoftmaxTransform())
transform_to.register(constraints.lower_cholesky, lambda constraint: transforms.LowerCholeskyTransform())
transform_to.register(constraints.positive_definite, lambda constraint: transforms.PositiveDefiniteTransform())
transform_to.register(constraints.positive_semidefinite, lambda constraint: transforms.PositiveDefiniteTransform())

_publish(sys.modules[__name__])
