"""Which values a parameter or a sample may have. `check` gives True per event: `event_dim` counts the last dims that are judged as one.

>>> import calque
>>> from calque.distributions import constraints
>>> constraints.positive.check(calque.tensor([-1.0, 2.0])).tolist(), constraints.interval(0, 3)
([False, True], Interval(lower_bound=0, upper_bound=3))
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from calque import functional as T
from calque.base.dtypes import FInfo, bool_
from calque.base.errors import ArgumentError
from calque.base.text import type_name
from calque.functional import decompositions as linalg
from calque.functional.blame import publish as _publish
from calque.functional.lu import cholesky_ex
from calque.tensor import Tensor

__all__ = [
    "Constraint", "MixtureSameFamilyConstraint", "boolean", "cat", "corr_cholesky", "dependent", "dependent_property", "greater_than",
    "greater_than_eq", "half_open_interval", "independent", "integer_interval", "interval", "is_dependent", "less_than", "lower_cholesky",
    "lower_triangular", "multinomial", "nonnegative", "nonnegative_integer", "one_hot", "positive", "positive_definite", "positive_integer",
    "positive_semidefinite", "real", "real_vector", "simplex", "square", "stack", "symmetric", "unit_interval",
]  # fmt: skip


class Constraint:
    """Base of all constraints. `is_discrete`: whether values are whole or chosen from a list; `event_dim`: dims of one value."""

    is_discrete: Any = False
    event_dim: Any = 0

    def check(self, value: Tensor) -> Any:
        """Whether each value satisfies the constraint: a bool Tensor of the shape without the event dims."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__[1:]}()"


class _Dependent(Constraint):
    """What depends on other parameters: it is only known for a distribution."""

    def __init__(self, *, is_discrete: Any = NotImplemented, event_dim: Any = NotImplemented) -> None:
        self._is_discrete, self._event_dim = is_discrete, event_dim

    def _known(self, name: str) -> Any:
        found = getattr(self, f"_{name}")
        if found is NotImplemented:
            raise NotImplementedError(f"[constraints] .{name} cannot be determined statically; ask an instance of the distribution")
        return found

    @property
    def is_discrete(self) -> Any:  # type: ignore[override]
        return self._known("is_discrete")

    @property
    def event_dim(self) -> Any:  # type: ignore[override]
        return self._known("event_dim")

    def __call__(self, *, is_discrete: Any = NotImplemented, event_dim: Any = NotImplemented) -> Any:
        """The same with some facts known."""
        return _Dependent(
            is_discrete=self._is_discrete if is_discrete is NotImplemented else is_discrete,
            event_dim=self._event_dim if event_dim is NotImplemented else event_dim,
        )

    def check(self, value: Tensor) -> Any:
        raise ArgumentError("[constraints] Cannot determine validity of dependent constraint; ask an instance of the distribution")


def is_dependent(constraint: Any) -> bool:
    """Whether a constraint depends on parameters, so that it has no `check`."""
    return isinstance(constraint, _Dependent)


class _DependentProperty(property, _Dependent):
    """A property that is a constraint of the instance, and a dependent one of the class. Also used as `@dependent_property(event_dim=1)`."""

    def __init__(self, fn: Any = None, *, is_discrete: Any = NotImplemented, event_dim: Any = NotImplemented) -> None:
        property.__init__(self, fn)
        self._is_discrete, self._event_dim = is_discrete, event_dim

    def __call__(self, fn: Any) -> Any:  # type: ignore[override]
        return _DependentProperty(fn, is_discrete=self._is_discrete, event_dim=self._event_dim)


def _last_dims(checked: Tensor, count: int) -> Tensor:
    """Whether all of the last `count` dims are true."""
    if count > 1:
        checked = T.reshape(checked, (*checked.shape[: checked.dim() - count], -1))
    return T.all(checked, -1) if count else checked


class _IndependentConstraint(Constraint):
    """Another constraint, with more of its batch dims taken as part of one value."""

    def __init__(self, base_constraint: Constraint, reinterpreted_batch_ndims: int) -> None:
        if not isinstance(base_constraint, Constraint) or not isinstance(reinterpreted_batch_ndims, int) or reinterpreted_batch_ndims < 0:
            raise AssertionError(f"[constraints] expected a Constraint and a count of dims, got {base_constraint} and {reinterpreted_batch_ndims}")
        self.base_constraint, self.reinterpreted_batch_ndims = base_constraint, reinterpreted_batch_ndims

    @property
    def is_discrete(self) -> Any:  # type: ignore[override]
        return self.base_constraint.is_discrete

    @property
    def event_dim(self) -> Any:  # type: ignore[override]
        return self.base_constraint.event_dim + self.reinterpreted_batch_ndims

    def check(self, value: Tensor) -> Any:
        checked = self.base_constraint.check(value)
        if checked.dim() < self.reinterpreted_batch_ndims:
            raise ArgumentError(f"[constraints] Expected value.dim() >= {self.event_dim} but got {value.dim()}")
        return _last_dims(checked, self.reinterpreted_batch_ndims)

    def __repr__(self) -> str:
        return f"{type(self).__name__[1:]}({self.base_constraint!r}, {self.reinterpreted_batch_ndims})"


class MixtureSameFamilyConstraint(Constraint):
    """What a mixture accepts: whatever all of its components accept."""

    def __init__(self, base_constraint: Constraint) -> None:
        if not isinstance(base_constraint, Constraint):
            raise AssertionError(f"[constraints] expected a Constraint, got {type_name(base_constraint)}")
        self.base_constraint = base_constraint

    @property
    def is_discrete(self) -> Any:  # type: ignore[override]
        return self.base_constraint.is_discrete

    @property
    def event_dim(self) -> Any:  # type: ignore[override]
        return self.base_constraint.event_dim

    def check(self, value: Tensor) -> Any:
        if value.dim() < self.event_dim:
            raise ArgumentError(f"[constraints] Expected value.dim() >= {self.event_dim} but got {value.dim()}")
        checked = self.base_constraint.check(T.unsqueeze(value, -1 - self.event_dim))
        return _last_dims(checked, checked.dim() - value.dim() + self.event_dim)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_constraint!r})"


def _zero_or_one(value: Tensor) -> Any:
    return (value == 0) | (value == 1)


class _Boolean(Constraint):
    is_discrete = True

    def check(self, value: Tensor) -> Any:
        return _zero_or_one(value)


class _OneHot(Constraint):
    is_discrete = True
    event_dim = 1

    def check(self, value: Tensor) -> Any:
        return T.all(_zero_or_one(value), -1) & (T.sum(value, -1) == 1)


class _Bounded(Constraint):
    """Constraints that are told by one or two bounds, which may be tensors."""

    bounds: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__[1:]}({', '.join(f'{name}={getattr(self, name)}' for name in self.bounds)})"


class _Lower(_Bounded):
    bounds = ("lower_bound",)

    def __init__(self, lower_bound: Any) -> None:
        self.lower_bound = lower_bound


class _Upper(_Bounded):
    bounds = ("upper_bound",)

    def __init__(self, upper_bound: Any) -> None:
        self.upper_bound = upper_bound


class _Both(_Bounded):
    bounds = ("lower_bound", "upper_bound")

    def __init__(self, lower_bound: Any, upper_bound: Any) -> None:
        self.lower_bound, self.upper_bound = lower_bound, upper_bound


class _IntegerInterval(_Both):
    is_discrete = True

    def check(self, value: Tensor) -> Any:
        return (value % 1 == 0) & (self.lower_bound <= value) & (value <= self.upper_bound)


class _IntegerGreaterThan(_Lower):
    is_discrete = True

    def check(self, value: Tensor) -> Any:
        return (value % 1 == 0) & (value >= self.lower_bound)


class _Real(Constraint):
    def check(self, value: Tensor) -> Any:
        return value == value  # False for NaN alone


class _GreaterThan(_Lower):
    def check(self, value: Tensor) -> Any:
        return self.lower_bound < value


class _GreaterThanEq(_Lower):
    def check(self, value: Tensor) -> Any:
        return self.lower_bound <= value


class _LessThan(_Upper):
    def check(self, value: Tensor) -> Any:
        return value < self.upper_bound


class _Interval(_Both):
    def check(self, value: Tensor) -> Any:
        return (self.lower_bound <= value) & (value <= self.upper_bound)


class _HalfOpenInterval(_Both):
    def check(self, value: Tensor) -> Any:
        return (self.lower_bound <= value) & (value < self.upper_bound)


class _Simplex(Constraint):
    event_dim = 1

    def check(self, value: Tensor) -> Any:
        return T.all(value >= 0, -1) & (T.abs(T.sum(value, -1) - 1) < 1e-6)


class _Multinomial(_Upper):
    is_discrete = True
    event_dim = 1

    def check(self, value: Tensor) -> Any:
        return T.all(value >= 0, -1) & (T.sum(value, -1) <= self.upper_bound)


class _LowerTriangular(Constraint):
    event_dim = 2

    def check(self, value: Tensor) -> Any:
        return _last_dims(T.tril(value) == value, 2)


class _LowerCholesky(Constraint):
    event_dim = 2

    def check(self, value: Tensor) -> Any:
        return _last_dims(T.tril(value) == value, 2) & T.all(T.diagonal(value, 0, -2, -1) > 0, -1)


class _CorrCholesky(Constraint):
    event_dim = 2

    def check(self, value: Tensor) -> Any:
        limit = FInfo(value.dtype).eps * value.size(-1) * 10  # rounding grows with the dimension
        length = T.sqrt(T.sum(T.square(value.detach()), -1))
        return _LowerCholesky().check(value) & T.all(T.abs(length - 1) <= limit, -1)


class _Square(Constraint):
    event_dim = 2

    def check(self, value: Tensor) -> Any:
        return T.full(value.shape[:-2], value.shape[-2] == value.shape[-1], dtype=bool_, device=value.device)


class _Symmetric(_Square):
    def check(self, value: Tensor) -> Any:
        if value.shape[-2] != value.shape[-1]:
            return super().check(value)
        return _last_dims(T.isclose(value, value.mT, atol=1e-6), 2)


class _PositiveSemidefinite(_Symmetric):
    def check(self, value: Tensor) -> Any:
        symmetric = super().check(value)
        return T.all(linalg.eigvalsh(value) >= 0, -1) if bool(T.all(symmetric)) else symmetric


class _PositiveDefinite(_Symmetric):
    def check(self, value: Tensor) -> Any:
        symmetric = super().check(value)
        if not bool(T.all(symmetric)):
            return symmetric
        return cholesky_ex(value)[1] == 0


class _Sequence(Constraint):
    """Other constraints side by side along `dim`."""

    def __init__(self, cseq: Sequence[Constraint], dim: int = 0) -> None:
        if not all(isinstance(c, Constraint) for c in cseq):
            raise AssertionError(f"[constraints] expected a sequence of Constraints, got {cseq}")
        self.cseq, self.dim = list(cseq), dim

    @property
    def is_discrete(self) -> Any:  # type: ignore[override]
        return any(c.is_discrete for c in self.cseq)

    def _check_dim(self, value: Tensor) -> None:
        if not -value.dim() <= self.dim < value.dim():
            raise AssertionError(f"[constraints] dim {self.dim} out of range for value with {value.dim()} dimensions")


class _Cat(_Sequence):
    """Constraints of parts of a tensor, `lengths` long, one behind the other."""

    def __init__(self, cseq: Sequence[Constraint], dim: int = 0, lengths: Sequence[int] | None = None) -> None:
        super().__init__(cseq, dim)
        self.lengths = [1] * len(self.cseq) if lengths is None else list(lengths)
        if len(self.lengths) != len(self.cseq):
            raise AssertionError(f"[constraints] expected a length per constraint, got {len(self.lengths)} for {len(self.cseq)}")

    @property
    def event_dim(self) -> Any:  # type: ignore[override]
        return max(c.event_dim for c in self.cseq)

    def check(self, value: Tensor) -> Any:
        self._check_dim(value)
        parts = T.split(value, self.lengths, self.dim)
        return T.cat([c.check(part) for c, part in zip(self.cseq, parts, strict=True)], self.dim)


class _Stack(_Sequence):
    """Constraints of the slices of a tensor along a dim."""

    @property
    def event_dim(self) -> Any:  # type: ignore[override]
        dim = max(c.event_dim for c in self.cseq)
        return dim + (self.dim + dim < 0)

    def check(self, value: Tensor) -> Any:
        self._check_dim(value)
        return T.stack([c.check(part) for c, part in zip(self.cseq, T.unbind(value, self.dim), strict=False)], self.dim)


dependent = _Dependent()
dependent_property = _DependentProperty
independent = _IndependentConstraint
boolean = _Boolean()
one_hot = _OneHot()
nonnegative_integer = _IntegerGreaterThan(0)
positive_integer = _IntegerGreaterThan(1)
integer_interval = _IntegerInterval
real = _Real()
real_vector = independent(real, 1)
positive = _GreaterThan(0.0)
nonnegative = _GreaterThanEq(0.0)
greater_than = _GreaterThan
greater_than_eq = _GreaterThanEq
less_than = _LessThan
multinomial = _Multinomial
unit_interval = _Interval(0.0, 1.0)
interval = _Interval
half_open_interval = _HalfOpenInterval
simplex = _Simplex()
lower_triangular = _LowerTriangular()
lower_cholesky = _LowerCholesky()
corr_cholesky = _CorrCholesky()
square = _Square()
symmetric = _Symmetric()
positive_semidefinite = _PositiveSemidefinite()
positive_definite = _PositiveDefinite()
cat = _Cat
stack = _Stack

_publish(sys.modules[__name__])
