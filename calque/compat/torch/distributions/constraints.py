"""`torch.distributions.constraints`: the classes of constraints, by which libraries find out what they were given."""

from calque.distributions.constraints import (
    _Boolean,
    _Cat,
    _CorrCholesky,
    _Dependent,
    _DependentProperty,
    _GreaterThan,
    _GreaterThanEq,
    _HalfOpenInterval,
    _IndependentConstraint,
    _IntegerGreaterThan,
    _IntegerInterval,
    _Interval,
    _LessThan,
    _LowerCholesky,
    _LowerTriangular,
    _Multinomial,
    _OneHot,
    _PositiveDefinite,
    _PositiveSemidefinite,
    _Real,
    _Simplex,
    _Square,
    _Stack,
    _Symmetric,
)

__all__ = [
    "_Boolean", "_Cat", "_CorrCholesky", "_Dependent", "_DependentProperty", "_GreaterThan", "_GreaterThanEq", "_HalfOpenInterval",
    "_IndependentConstraint", "_IntegerGreaterThan", "_IntegerInterval", "_Interval", "_LessThan", "_LowerCholesky", "_LowerTriangular",
    "_Multinomial", "_OneHot", "_PositiveDefinite", "_PositiveSemidefinite", "_Real", "_Simplex", "_Square", "_Stack", "_Symmetric",
]  # fmt: skip
