"""Differentiable changes of variables: `t(x)`, `t.inv(y)` and the logarithm of |det dy/dx|. The base and transforms of transforms are in
`transform`, and listed here too."""

from __future__ import annotations

import math
from typing import Any

from calque import functional as T
from calque.base.dtypes import FInfo
from calque.base.errors import DTypeError, ShapeError
from calque.base.shapes import Size, broadcast_shapes
from calque.base.text import described
from calque.distributions import constraints
from calque.distributions.transform import (
    CatTransform,
    ComposeTransform,
    IndependentTransform,
    ReshapeTransform,
    StackTransform,
    Transform,
    identity_transform,
)
from calque.distributions.utils import broadcast_all, lazy_property, sum_rightmost, tril_matrix_to_vec, vec_to_tril_matrix
from calque.functional import decompositions as linalg
from calque.functional.common import is_number
from calque.nn import functional as F
from calque.tensor import Tensor

__all__ = [
    "AbsTransform", "AffineTransform", "CatTransform", "ComposeTransform", "CorrCholeskyTransform", "CumulativeDistributionTransform",
    "ExpTransform", "IndependentTransform", "LowerCholeskyTransform", "PositiveDefiniteTransform", "PowerTransform", "ReshapeTransform",
    "SigmoidTransform", "SoftmaxTransform", "SoftplusTransform", "StackTransform", "StickBreakingTransform", "TanhTransform", "Transform",
    "identity_transform",
]  # fmt: skip


class _Plain(Transform):
    """Transforms without settings: all of a kind are equal."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self))

    __hash__ = object.__hash__


class _OntoPositive(_Plain):
    domain = constraints.real
    codomain = constraints.positive
    bijective = True
    sign = +1  # type: ignore[assignment]


class ExpTransform(_OntoPositive):
    """y = exp(x).

    >>> import calque
    >>> calque.distributions.ExpTransform().log_abs_det_jacobian(calque.tensor(2.0), None).item()
    2.0
    """

    def _call(self, x: Any) -> Any:
        return T.exp(x)

    def _inverse(self, y: Any) -> Any:
        return T.log(y)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        return x


class PowerTransform(Transform):
    """y = x ** exponent, for positive numbers.

    >>> import calque
    >>> calque.distributions.PowerTransform(2.0)(calque.tensor([1.0, 3.0])).tolist()
    [1.0, 9.0]
    """

    domain = constraints.positive
    codomain = constraints.positive
    bijective = True

    def __init__(self, exponent: Any, cache_size: int = 0) -> None:
        super().__init__(cache_size=cache_size)
        (self.exponent,) = broadcast_all(exponent)

    def _again(self, cache_size: int) -> Any:
        return PowerTransform(self.exponent, cache_size)

    @lazy_property
    def sign(self) -> Any:
        return T.sign(self.exponent)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PowerTransform) and bool(T.all(self.exponent == other.exponent))

    __hash__ = object.__hash__

    def _call(self, x: Any) -> Any:
        return x**self.exponent

    def _inverse(self, y: Any) -> Any:
        return y ** (1 / self.exponent)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        return T.log(T.abs(self.exponent * y / x))

    def forward_shape(self, shape: tuple[int, ...]) -> Any:
        return Size(broadcast_shapes(tuple(shape), tuple(self.exponent.shape)))

    inverse_shape = forward_shape


def _clipped_sigmoid(x: Any) -> Any:
    limits = FInfo(x.dtype)
    return T.clamp(T.sigmoid(x), limits.tiny, 1.0 - limits.eps)


class SigmoidTransform(_Plain):
    """y = 1 / (1 + exp(-x)), kept inside of (0, 1); the inverse is the logit.

    >>> import calque
    >>> calque.distributions.SigmoidTransform()(calque.zeros(1)).item()
    0.5
    """

    domain = constraints.real
    codomain = constraints.unit_interval
    bijective = True
    sign = +1  # type: ignore[assignment]

    def _call(self, x: Any) -> Any:
        return _clipped_sigmoid(x)

    def _inverse(self, y: Any) -> Any:
        limits = FInfo(y.dtype)
        inside = T.clamp(y, limits.tiny, 1.0 - limits.eps)
        return T.log(inside) - T.log1p(-inside)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        return -F.softplus(-x) - F.softplus(x)


class SoftplusTransform(_OntoPositive):
    """y = log(1 + exp(x)).

    >>> import calque
    >>> t = calque.distributions.SoftplusTransform()
    >>> round(t.inv(t(calque.tensor(0.5))).item(), 5)
    0.5
    """

    def _call(self, x: Any) -> Any:
        return F.softplus(x)

    def _inverse(self, y: Any) -> Any:
        return T.log(-T.expm1(-y)) + y

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        return -F.softplus(-x)


class TanhTransform(_Plain):
    """y = tanh(x), with a log determinant that is exact far from 0 too.

    >>> import calque
    >>> calque.distributions.TanhTransform().log_abs_det_jacobian(calque.tensor(0.0), None).item()
    0.0
    """

    domain = constraints.real
    codomain = constraints.interval(-1.0, 1.0)
    bijective = True
    sign = +1  # type: ignore[assignment]

    def _call(self, x: Any) -> Any:
        return T.tanh(x)

    def _inverse(self, y: Any) -> Any:
        return T.atanh(y)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        return 2.0 * (math.log(2.0) - x - F.softplus(-2.0 * x))


class AbsTransform(_Plain):
    """y = |x|, which has no inverse: `inv` takes the positive one.

    >>> import calque
    >>> calque.distributions.AbsTransform()(calque.tensor([-2.0])).item()
    2.0
    """

    domain = constraints.real
    codomain = constraints.positive

    def _call(self, x: Any) -> Any:
        return T.abs(x)

    def _inverse(self, y: Any) -> Any:
        return y


def _equal(a: Any, b: Any) -> bool:
    same = a == b
    return bool(same) if is_number(a) and is_number(b) else bool(T.all(same))


class AffineTransform(Transform):
    """y = loc + scale * x. event_dim: dims of one value, over which the log determinant is summed.

    >>> import calque
    >>> t = calque.distributions.AffineTransform(1.0, 2.0)
    >>> t(calque.tensor(3.0)).item(), t.inv(calque.tensor(7.0)).item(), t.sign
    (7.0, 3.0, 1)
    """

    bijective = True

    def __init__(self, loc: Any, scale: Any, event_dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(cache_size=cache_size)
        self.loc, self.scale, self._event_dim = loc, scale, event_dim

    def _again(self, cache_size: int) -> Any:
        return AffineTransform(self.loc, self.scale, self._event_dim, cache_size)

    @property
    def event_dim(self) -> Any:
        return self._event_dim

    @constraints.dependent_property(is_discrete=False)
    def domain(self) -> Any:
        return constraints.independent(constraints.real, self._event_dim) if self._event_dim else constraints.real

    codomain = domain

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AffineTransform) and _equal(self.loc, other.loc) and _equal(self.scale, other.scale)

    __hash__ = object.__hash__

    @property
    def sign(self) -> Any:
        return (self.scale > 0) - (self.scale < 0) if is_number(self.scale) else T.sign(self.scale)

    def _call(self, x: Any) -> Any:
        return self.loc + self.scale * x

    def _inverse(self, y: Any) -> Any:
        return (y - self.loc) / self.scale

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        known = is_number(self.scale)
        slope = T.full_like(x, math.log(abs(self.scale))) if known else T.log(T.abs(self.scale))
        return T.expand(sum_rightmost(slope, self._event_dim), tuple(x.shape[: x.dim() - self._event_dim]))

    def forward_shape(self, shape: tuple[int, ...]) -> Any:
        others = [tuple(v.shape) for v in (self.loc, self.scale) if not is_number(v)]
        return Size(broadcast_shapes(tuple(shape), *others)) if others else shape

    inverse_shape = forward_shape


class CorrCholeskyTransform(Transform):
    """n (n - 1) / 2 numbers to the Cholesky factor of a correlation matrix (Stan reference manual, section 10.12).

    >>> import calque
    >>> factor = calque.distributions.CorrCholeskyTransform()(calque.zeros(3))
    >>> factor.tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """

    domain = constraints.real_vector
    codomain = constraints.corr_cholesky
    bijective = True

    def _call(self, x: Any) -> Any:
        eps = FInfo(x.dtype).eps
        partial = vec_to_tril_matrix(T.clamp(T.tanh(x), -1 + eps, 1 - eps), -1)  # partial correlations
        left = T.cumprod(T.sqrt(1 - T.square(partial)), -1)
        unit = T.eye(partial.shape[-1], dtype=partial.dtype, device=partial.device)
        return (partial + unit) * F.pad(left[..., :-1], [1, 0], value=1)

    def _inverse(self, y: Any) -> Any:
        left = F.pad((1 - T.cumsum(T.square(y), -1))[..., :-1], [1, 0], value=1)
        t = tril_matrix_to_vec(y, -1) / T.sqrt(tril_matrix_to_vec(left, -1))
        return (T.log1p(t) - T.log1p(-t)) / 2

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        left = tril_matrix_to_vec(1 - T.cumsum(T.square(y), -1), -2)
        slopes = -2 * T.sum(x + F.softplus(-2 * x) - math.log(2.0), -1)
        return 0.5 * T.sum(T.log(left), -1) + slopes

    def forward_shape(self, shape: tuple[int, ...]) -> Any:
        if len(shape) < 1:
            raise ShapeError("[CorrCholeskyTransform] Too few dimensions on input")
        count = shape[-1]
        n = round((0.25 + 2 * count) ** 0.5 + 0.5)
        if n * (n - 1) // 2 != count:
            raise ShapeError(f"[CorrCholeskyTransform] Input is not a flattened lower-diagonal number, got {count}")
        return Size((*shape[:-1], n, n))

    def inverse_shape(self, shape: tuple[int, ...]) -> Any:
        if len(shape) < 2:
            raise ShapeError("[CorrCholeskyTransform] Too few dimensions on input")
        if shape[-2] != shape[-1]:
            raise ShapeError(f"[CorrCholeskyTransform] Input is not square, got shape {tuple(shape)}")
        return Size((*shape[:-2], shape[-1] * (shape[-1] - 1) // 2))


def _needs_dim(owner: str, shape: Any) -> None:
    if len(shape) < 1:
        raise ShapeError(f"[{owner}] Too few dimensions on input")


class SoftmaxTransform(_Plain):
    """Numbers to probabilities that sum to 1; many inputs have one output, so there is no determinant.

    >>> import calque
    >>> calque.distributions.SoftmaxTransform()(calque.zeros(2)).tolist()
    [0.5, 0.5]
    """

    domain = constraints.real_vector
    codomain = constraints.simplex

    def _call(self, x: Any) -> Any:
        return F.softmax(x, -1)

    def _inverse(self, y: Any) -> Any:
        return T.log(y)

    def forward_shape(self, shape: tuple[int, ...]) -> Any:
        _needs_dim("SoftmaxTransform", shape)
        return shape

    inverse_shape = forward_shape


class StickBreakingTransform(_Plain):
    """n numbers to n + 1 probabilities that sum to 1: each says which share of the rest is taken (Stan reference manual, section 10.7).

    >>> import calque
    >>> t = calque.distributions.StickBreakingTransform()
    >>> round(t(calque.zeros(2)).sum().item(), 5), t.forward_shape((5, 2))
    (1.0, torch.Size([5, 3]))
    """

    domain = constraints.real_vector
    codomain = constraints.simplex
    bijective = True

    @staticmethod
    def _offset(x: Any, count: int) -> Any:
        return T.log(T.arange(count, 0, -1, dtype=x.dtype, device=x.device))

    def _call(self, x: Any) -> Any:
        share = _clipped_sigmoid(x - self._offset(x, x.shape[-1]))
        return F.pad(share, [0, 1], value=1) * F.pad(T.cumprod(1 - share, -1), [1, 0], value=1)

    def _inverse(self, y: Any) -> Any:
        taken = y[..., :-1]
        rest = T.clamp(1 - T.cumsum(taken, -1), min=FInfo(y.dtype).tiny)
        return T.log(taken) - T.log(rest) + self._offset(y, taken.shape[-1])

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        x = x - self._offset(x, x.shape[-1])
        return T.sum(-x + F.logsigmoid(x) + T.log(y[..., :-1]), -1)

    def forward_shape(self, shape: tuple[int, ...]) -> Any:
        _needs_dim("StickBreakingTransform", shape)
        return Size((*shape[:-1], shape[-1] + 1))

    def inverse_shape(self, shape: tuple[int, ...]) -> Any:
        _needs_dim("StickBreakingTransform", shape)
        return Size((*shape[:-1], shape[-1] - 1))


class LowerCholeskyTransform(_Plain):
    """Matrices to lower triangular ones with a positive diagonal, which is the exponential of theirs.

    >>> import calque
    >>> calque.distributions.LowerCholeskyTransform()(calque.zeros(2, 2)).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    domain = constraints.independent(constraints.real, 2)
    codomain = constraints.lower_cholesky

    def _call(self, x: Any) -> Any:
        return T.tril(x, -1) + T.diag_embed(T.exp(T.diagonal(x, 0, -2, -1)))

    def _inverse(self, y: Any) -> Any:
        return T.tril(y, -1) + T.diag_embed(T.log(T.diagonal(y, 0, -2, -1)))


class PositiveDefiniteTransform(_Plain):
    """Matrices to positive definite ones: L L^T with L of `LowerCholeskyTransform`.

    >>> import calque
    >>> calque.distributions.PositiveDefiniteTransform()(calque.zeros(2, 2)).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    domain = constraints.independent(constraints.real, 2)
    codomain = constraints.positive_definite

    def _call(self, x: Any) -> Any:
        factor = LowerCholeskyTransform()(x)
        return T.matmul(factor, factor.mT)

    def _inverse(self, y: Any) -> Any:
        return LowerCholeskyTransform().inv(linalg.cholesky(y))


class CumulativeDistributionTransform(Transform):
    """y = the `cdf` of a distribution: uniform in [0, 1] for its samples.

    >>> import calque
    >>> d = calque.distributions
    >>> d.CumulativeDistributionTransform(d.Normal(0.0, 1.0))(calque.tensor(0.0)).item()
    0.5
    """

    bijective = True
    codomain = constraints.unit_interval
    sign = +1  # type: ignore[assignment]

    def __init__(self, distribution: Any, cache_size: int = 0) -> None:
        super().__init__(cache_size=cache_size)
        if not all(hasattr(distribution, name) for name in ("support", "cdf", "icdf", "log_prob")):
            raise DTypeError(f"[CumulativeDistributionTransform] expected a distribution, got {described(distribution)}; pass Normal(0, 1)")
        self.distribution = distribution

    def _again(self, cache_size: int) -> Any:
        return CumulativeDistributionTransform(self.distribution, cache_size)

    @property
    def domain(self) -> Any:  # type: ignore[override]
        return self.distribution.support

    def _call(self, x: Any) -> Tensor:
        return self.distribution.cdf(x)  # type: ignore[no-any-return]

    def _inverse(self, y: Any) -> Tensor:
        return self.distribution.icdf(y)  # type: ignore[no-any-return]

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Tensor:
        return self.distribution.log_prob(x)  # type: ignore[no-any-return]
