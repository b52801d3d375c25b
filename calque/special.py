"""Special functions with the names of `torch.special`: the gamma family, Bessel functions, orthogonal polynomials, the normal distribution.

>>> import calque
>>> calque.special.expit(calque.tensor([0.0]))
tensor([0.5000])
"""

from typing import Any

from calque.functional.bessel import (
    airy_ai,
    bessel_j0,
    bessel_j1,
    bessel_y0,
    bessel_y1,
    i0,
    i0e,
    i1,
    i1e,
    modified_bessel_i0,
    modified_bessel_i1,
    modified_bessel_k0,
    modified_bessel_k1,
    scaled_modified_bessel_k0,
    scaled_modified_bessel_k1,
    spherical_bessel_j0,
)
from calque.functional.blame import framed
from calque.functional.elementary import digamma, erf, erfinv, expm1, lgamma, log1p, sigmoid
from calque.functional.gamma import gammainc, gammaincc, multigammaln, polygamma, zeta
from calque.functional.math import erfc, exp2, logit, round, sinc, xlogy
from calque.functional.polynomials import (
    chebyshev_polynomial_t,
    chebyshev_polynomial_u,
    chebyshev_polynomial_v,
    chebyshev_polynomial_w,
    hermite_polynomial_h,
    hermite_polynomial_he,
    laguerre_polynomial_l,
    legendre_polynomial_p,
    shifted_chebyshev_polynomial_t,
    shifted_chebyshev_polynomial_u,
    shifted_chebyshev_polynomial_v,
    shifted_chebyshev_polynomial_w,
)
from calque.functional.probability import entr, erfcx, log_ndtr, ndtr, ndtri, xlog1py
from calque.functional.reductions import logsumexp
from calque.nn.functional.softmax import log_softmax as _log_softmax
from calque.nn.functional.softmax import softmax as _softmax
from calque.tensor import Tensor

expit, psi, gammaln = sigmoid, digamma, lgamma

__all__ = [
    "airy_ai", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "chebyshev_polynomial_t", "chebyshev_polynomial_u", "chebyshev_polynomial_v",
    "chebyshev_polynomial_w", "digamma", "entr", "erf", "erfc", "erfcx", "erfinv", "exp2", "expit", "expm1", "gammainc", "gammaincc", "gammaln",
    "hermite_polynomial_h", "hermite_polynomial_he", "i0", "i0e", "i1", "i1e", "laguerre_polynomial_l", "legendre_polynomial_p", "log1p",
    "log_ndtr", "log_softmax", "logit", "logsumexp", "modified_bessel_i0", "modified_bessel_i1", "modified_bessel_k0", "modified_bessel_k1",
    "multigammaln", "ndtr", "ndtri", "polygamma", "psi", "round", "scaled_modified_bessel_k0", "scaled_modified_bessel_k1",
    "shifted_chebyshev_polynomial_t", "shifted_chebyshev_polynomial_u", "shifted_chebyshev_polynomial_v", "shifted_chebyshev_polynomial_w",
    "sinc", "softmax", "spherical_bessel_j0", "xlog1py", "xlogy", "zeta",
]  # fmt: skip


def softmax(input: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """exp(x) / sum(exp(x)) along `dim`: (*) -> (*)."""
    return _softmax(input, dim, dtype=dtype)


def log_softmax(input: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """Logarithm of `softmax`: (*) -> (*)."""
    return _log_softmax(input, dim, dtype=dtype)


globals().update(framed({name: globals()[name] for name in __all__}, __name__))
