"""Special functions with the names of `torch.special`: the gamma family, Bessel functions, orthogonal polynomials, the normal distribution.

>>> import calque
>>> calque.special.expit(calque.tensor([0.0]))
tensor([0.5000])
"""

from typing import Any

from calque.functional import bessel, gamma, polynomials, probability  # noqa: F401 - they declare functions of this namespace
from calque.functional.declared import public as _public
from calque.functional.later import namespace as _namespace
from calque.nn.functional.softmax import log_softmax as _log_softmax
from calque.nn.functional.softmax import softmax as _softmax
from calque.tensor import Tensor


@_public(of="special")
def softmax(input: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """exp(x) / sum(exp(x)) along `dim`: (*) -> (*)."""
    return _softmax(input, dim, dtype=dtype)


@_public(of="special")
def log_softmax(input: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """Logarithm of `softmax`: (*) -> (*)."""
    return _log_softmax(input, dim, dtype=dtype)


__getattr__ = _namespace(globals())
