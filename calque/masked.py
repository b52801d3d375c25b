"""Reductions and normalisations of the elements that a mask selects, with the names of `torch.masked`: `mask` is True where an element counts.

A mask broadcasts to the input and has no more dims. What is left of a slice without any element is the operation's neutral element, or NaN.

>>> import calque
>>> x = calque.tensor([[1.0, 2.0], [3.0, 4.0]])
>>> calque.masked.sum(x, 1, mask=calque.tensor([[True, False], [True, True]]))
tensor([1., 7.])
"""

from typing import Any

from calque import functional as T
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, DTypeError, ShapeError
from calque.base.shapes import normalize_dim
from calque.functional.blame import framed
from calque.functional.common import cast, dtype_of
from calque.functional.formats import owned
from calque.functional.kinds import is_int
from calque.functional.reductions import vector_norm
from calque.nn.functional.softmax import log_softmax as _log_softmax
from calque.nn.functional.softmax import softmax as _softmax
from calque.tensor import Tensor

__all__ = [
    "amax", "amin", "argmax", "argmin", "cumprod", "cumsum", "log_softmax", "logaddexp", "logsumexp", "mean", "median", "norm", "normalize",
    "prod", "softmax", "softmin", "std", "sum", "var",
]  # fmt: skip

Dims = int | tuple[int, ...] | None
INF = float("inf")


def _dims(op: str, x: Tensor, dim: Any) -> tuple[int, ...]:
    """The dims that are reduced, all of them for None and ()."""
    n = x._layout.ndim
    if dim is None or (dim.__class__ is tuple and not dim):
        return tuple(range(n))
    found = tuple(normalize_dim(d, n, op) for d in ((dim,) if is_int(dim) else dim))
    if len(set(found)) < len(found):
        raise ArgumentError(f"[masked.{op}] expected dims that differ, got {dim}: dim appears multiple times in the list of dims")
    return found if n else ()


def _converted(input: Tensor, dtype: Any) -> Tensor:
    return input if dtype is None else cast(input, dtype_of(dtype, "masked"))


def _mask(op: str, x: Tensor, mask: Any) -> Tensor | None:
    """The mask as bool in the shape of the input."""
    if mask is None:
        return None
    if mask._layout.ndim > x._layout.ndim:
        raise ShapeError(
            f"[masked.{op}] expected a mask that broadcasts to {tuple(x._layout.shape)}, got shape {tuple(mask._layout.shape)}: mask "
            "dimensionality higher than of the input; index it first"
        )
    return T.expand(cast(mask, dt.bool_), tuple(x._layout.shape))


def _filled(op: str, x: Tensor, mask: Any, value: Any) -> Tensor:
    """The input with what does not count replaced."""
    chosen = _mask(op, x, mask)
    if chosen is None:
        return x
    kind = x._layout.dtype
    if kind.category == 0 and value in (INF, -INF):
        raise DTypeError(f"[masked.{op}] expected numbers, got {kind!r}: bool has no neutral element for {op}; convert with .int()")
    if kind.category == 1 and value in (INF, -INF):
        value = dt.IInfo(kind).max if value > 0 else dt.IInfo(kind).min
    return T.where(chosen, x, T.full((), value, dtype=kind))  # type: ignore[no-any-return]


def _summed(x: Tensor, dtype: Any) -> Any:
    return dtype_of(dtype, "masked") if dtype is not None else dt.int64 if x._layout.dtype.category < 2 else x._layout.dtype


def sum(input: Tensor, dim: Dims = None, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None) -> Tensor:
    """Sum over dims (default: all) of the elements that count, 0 of none: (*) -> (*). Integers give int64."""
    x = cast(input, _summed(input, dtype))
    dims = _dims("sum", x, dim)
    return T.sum(_filled("sum", x, mask, 0), dims, keepdim) if dims else owned(_filled("sum", x, mask, 0), input)


def prod(input: Tensor, dim: Dims = None, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None) -> Tensor:
    """Product over dims (default: all) of the elements that count, 1 of none: (*) -> (*). Integers give int64."""
    x = cast(input, _summed(input, dtype))
    dims = _dims("prod", x, dim)
    result = _filled("prod", x, mask, 1)
    for d in sorted(dims, reverse=True):
        result = T.prod(result, d, keepdim)
    return owned(result, input)


def cumsum(input: Tensor, dim: int, *, dtype: Any = None, mask: Tensor | None = None) -> Tensor:
    """Running sum of the elements that count along a dim: (*) -> (*)."""
    x = _converted(input, dtype)
    return cast(T.cumsum(_filled("cumsum", x, mask, 0), dim), x._layout.dtype)


def cumprod(input: Tensor, dim: int, *, dtype: Any = None, mask: Tensor | None = None) -> Tensor:
    """Running product of the elements that count along a dim: (*) -> (*)."""
    x = _converted(input, dtype)
    return cast(T.cumprod(_filled("cumprod", x, mask, 1), dim), x._layout.dtype)


def amax(input: Tensor, dim: Dims = None, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None) -> Tensor:
    """Largest element that counts over dims (default: all); the smallest value of the dtype of none: (*) -> (*)."""
    x = _converted(input, dtype)
    dims = _dims("amax", x, dim)
    return T.amax(_filled("amax", x, mask, -INF), dims, keepdim)


def amin(input: Tensor, dim: Dims = None, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None) -> Tensor:
    """Smallest element that counts over dims (default: all); the largest value of the dtype of none: (*) -> (*)."""
    x = _converted(input, dtype)
    dims = _dims("amin", x, dim)
    return T.amin(_filled("amin", x, mask, INF), dims, keepdim)


def argmax(input: Tensor, dim: int | None = None, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None) -> Tensor:
    """Position of the largest element that counts, in the input's dtype (or `dtype`), as PyTorch's: (*) -> (*)."""
    return _position("argmax", T.argmax, input, dim, keepdim, dtype, mask, -INF)


def argmin(input: Tensor, dim: int | None = None, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None) -> Tensor:
    """Position of the smallest element that counts, in the input's dtype (or `dtype`), as PyTorch's: (*) -> (*)."""
    return _position("argmin", T.argmin, input, dim, keepdim, dtype, mask, INF)


def _position(op: str, function: Any, input: Tensor, dim: Any, keepdim: bool, dtype: Any, mask: Any, fill: float) -> Tensor:
    kind = input._layout.dtype if dtype is None else dtype_of(dtype, "masked")
    return cast(function(_filled(op, input, mask, fill), dim, bool(keepdim)), kind)


def _count(op: str, x: Tensor, dims: tuple[int, ...], keepdim: bool, mask: Any) -> Tensor:
    """How many elements count, in the dtype of x."""
    chosen = _mask(op, x, mask)
    counted = cast(chosen, x._layout.dtype) if chosen is not None else T.ones_like(x.detach())  # type: ignore[attr-defined]
    return T.sum(counted, dims, keepdim) if dims else counted


def mean(input: Tensor, dim: Dims = None, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None) -> Tensor:
    """Mean over dims (default: all) of the elements that count, NaN of none: (*) -> (*)."""
    x = _converted(input, dtype)
    if x._layout.dtype.category < 2:
        raise DTypeError(f"[masked.mean] Could not infer output dtype: expected a floating point dtype, got {x._layout.dtype!r}; pass dtype=")
    dims = _dims("mean", x, dim)
    return sum(x, dims, keepdim=keepdim, mask=mask) / _count("mean", x, dims, keepdim, mask)


def median(input: Tensor, dim: int = -1, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None) -> Tensor:
    """Lower median along a dim of the elements that count, NaN of none: (*) -> (*)."""
    x = _converted(input, dtype)
    if mask is None:
        return T.median(x, dim, keepdim).values  # type: ignore[no-any-return]
    if x._layout.dtype.category < 2:
        chosen = _mask("median", x, mask)
        assert chosen is not None
        if not bool(T.all(T.any(chosen, dim))):
            raise ArgumentError("[masked.median] masked median expects no fully masked out rows if dtype is not floating point; got one")
        whole = T.nanmedian(_filled("median", cast(x, dt.float64), mask, float("nan")), dim, keepdim).values
        return cast(whole, x._layout.dtype)
    return T.nanmedian(_filled("median", x, mask, float("nan")), dim, keepdim).values  # type: ignore[no-any-return]


def norm(
    input: Tensor, ord: float | None = 2.0, dim: Dims = None, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None
) -> Tensor:
    """Vector norm over dims (default: all) of the elements that count: (*) -> (*)."""
    x = _converted(input, dtype)
    order = 2.0 if ord is None else ord
    return vector_norm(_filled("norm", x, mask, INF if order == -INF else 0), order, _dims("norm", x, dim), keepdim)


def _variance(
    op: str, input: Tensor, dim: Any, unbiased: bool | None, correction: float | None, keepdim: bool, dtype: Any, mask: Any
) -> tuple[Tensor, Any]:
    if unbiased is not None and correction is not None:
        raise AssertionError(f"[masked.{op}] Only one of unbiased and correction may be given: expected one, got both")
    wanted = None if dtype is None else dtype_of(dtype, "masked")
    kind = input._layout.dtype
    if kind is dt.bool_:
        raise DTypeError(f"[masked.{op}] expected numbers, got {kind!r}: Subtraction with a bool tensor is not supported; convert with .float()")
    x = input if kind.category >= 2 else cast(input, wanted if wanted is not None and wanted.category == 2 else dt.get_default_dtype())
    if wanted is not None:
        x = cast(x, wanted)
    dims = _dims(op, x, dim)
    count = _count(op, x, dims, True, mask)
    centre = sum(x, dims, keepdim=True, mask=mask) / count
    apart = x - centre
    squares = sum(apart * T.conj(apart), dims, keepdim=keepdim, mask=mask)
    freedom = correction if correction is not None else 1 if unbiased is None or unbiased else 0
    count = _count(op, x, dims, keepdim, mask)
    if freedom:
        count = T.clamp(T.real(count) - float(freedom), min=0.0)
    return squares / count, x._layout.dtype


def var(
    input: Tensor,
    dim: Dims = None,
    unbiased: bool | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
    dtype: Any = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Variance over dims (default: all) of the elements that count: (*) -> (*). `correction` (default 1, or 0 with unbiased=False) is subtracted from
    their number."""
    return _variance("var", input, dim, unbiased, correction, keepdim, dtype, mask)[0]


def std(
    input: Tensor,
    dim: Dims = None,
    unbiased: bool | None = None,
    *,
    correction: int | None = None,
    keepdim: bool = False,
    dtype: Any = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Square root of `var`: (*) -> (*)."""
    return T.sqrt(_variance("std", input, dim, unbiased, correction, keepdim, dtype, mask)[0])  # type: ignore[no-any-return]


def softmax(input: Tensor, dim: int, *, dtype: Any = None, mask: Tensor | None = None) -> Tensor:
    """`softmax` of the elements that count along a dim, 0 for the others; NaN where none counts: (*) -> (*)."""
    x = _converted(input, dtype)
    return _softmax(_filled("softmax", x, mask, -INF), dim)


def log_softmax(input: Tensor, dim: int, *, dtype: Any = None, mask: Tensor | None = None) -> Tensor:
    """Logarithm of `softmax`, -infinity for elements that do not count: (*) -> (*)."""
    x = _converted(input, dtype)
    return _log_softmax(_filled("log_softmax", x, mask, -INF), dim)


def softmin(input: Tensor, dim: int, *, dtype: Any = None, mask: Tensor | None = None) -> Tensor:
    """`softmax` of the negated input: (*) -> (*)."""
    x = _converted(input, dtype)
    return _softmax(-_filled("softmin", x, mask, INF), dim)


def normalize(input: Tensor, ord: float, dim: int, *, eps: float = 1e-12, dtype: Any = None, mask: Tensor | None = None) -> Tensor:
    """The elements that count divided by their norm along a dim (at least `eps`), 0 for the others: (*) -> (*)."""
    x = _converted(input, dtype)
    size = norm(x, ord, dim, keepdim=True, mask=mask)
    return _filled("normalize", x, mask, 0) / T.clamp(size, min=eps)


def logaddexp(
    input: Tensor, other: Tensor, *, dtype: Any = None, input_mask: Tensor | None = None, other_mask: Tensor | None = None
) -> Tensor:
    """`logaddexp` of two tensors of which elements that do not count are -infinity: (*), (*) -> (*)."""
    a, b = _converted(input, dtype), _converted(other, dtype)
    return T.logaddexp(_filled("logaddexp", a, input_mask, -INF), _filled("logaddexp", b, other_mask, -INF))


def logsumexp(input: Tensor, dim: Dims = None, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None) -> Tensor:
    """`logsumexp` over dims (default: all) of the elements that count: (*) -> (*)."""
    x = _converted(input, dtype)
    return cast(T.logsumexp(_filled("logsumexp", x, mask, -INF), _dims("logsumexp", x, dim), keepdim), x._layout.dtype)


globals().update(framed({name: globals()[name] for name in __all__}, __name__))
