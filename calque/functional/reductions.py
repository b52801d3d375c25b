"""Reductions: sums, means, extremes, moments, norms and truth values over one dim, several, or all.

`dim`: int, sequence of ints, or None for all; negative dims count from the end. `keepdim` keeps reduced dims with size 1.
`axis` and `keepdims` are accepted for `dim` and `keepdim`.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from math import prod as product
from typing import Any

import numpy as np

from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, DTypeError, OutOfRangeError, RankError, ShapeError, UnsupportedTypeError
from calque.base.shapes import Shape, broadcast_shapes, normalize_dim, normalize_dims, reduced_shape
from calque.base.text import shown, type_name
from calque.functional.arithmetic import maximum, minimum
from calque.functional.blame import NOTHING, answer, answering
from calque.functional.common import cast, is_number, is_tensor, linked, prim, require_real
from calque.functional.declared import public
from calque.functional.elementary import _float, exp, log, sqrt
from calque.functional.math import isnan, where, with_formula
from calque.functional.precision import full_precision
from calque.functional.results import MaxResult, MinMaxResult, MinResult
from calque.functional.views import detach, int_tuple, reshape, sum_to_shape
from calque.observe.source import warn_user
from calque.record.recorder import local
from calque.tensor import Tensor

Dims = Any


def flag(op: str, keepdim: Any) -> bool:
    """`keepdim` as Python's bool, as which it is part of keys: NumPy's equals it, but is no int."""
    if isinstance(keepdim, (bool, np.bool_)):
        return bool(keepdim)
    raise DTypeError(f"[{op}] expected keepdim as a bool, got {type_name(keepdim)}; several dims go into a tuple")


def numpy_names(function: Callable[..., Any], with_dim: bool = False) -> Callable[..., Any]:
    """Accept NumPy's `axis` and `keepdims` for `dim` and `keepdim`. `with_dim`: that dims are kept is said only beside `dim`."""

    names = list(inspect.signature(function).parameters)
    place = names.index("keepdim") if "keepdim" in names else len(names)

    @answering
    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        try:
            if keywords:
                if "axis" in keywords:
                    keywords["dim"] = keywords.pop("axis")
                if "keepdims" in keywords:
                    keywords["keepdim"] = keywords.pop("keepdims")
                if "keepdim" in keywords:
                    keywords["keepdim"] = flag(function.__name__, keywords["keepdim"])
                    if with_dim and "dim" not in keywords and len(args) < place:
                        raise DTypeError(f"[{function.__name__}] expected dim beside keepdim, got keepdim alone; name the dim to keep")
            if place < len(args) and args[place].__class__ is not bool:
                args = (*args[:place], flag(function.__name__, args[place]), *args[place + 1 :])
            return function(*args, **keywords)
        except Exception as error:
            if (meant := answer(function.__name__, function, args, keywords, error)) is not NOTHING:
                return meant
            raise

    return call


def dims_of(op: str, x: Tensor, dim: Dims) -> Shape:
    """Sorted dims to reduce."""
    ndim = x._layout.ndim
    if dim.__class__ is int:
        found = normalize_dim(dim, ndim, op)
        return (found,) if ndim else ()
    return normalize_dims(dim, ndim, op)


def _one_or_all(op: str, x: Tensor, dim: Any) -> Shape:
    """As `dims_of`, of functions that take no tuple of dims."""
    if isinstance(dim, (tuple, list)):
        raise DTypeError(f"[{op}] expected dim as an int or None, got {type_name(dim)}; reduce over one dim after the other")
    return dims_of(op, x, dim)


def require_elements(op: str, x: Tensor, dims: Shape) -> None:
    """Raise where a reduction without identity meets an empty range."""
    shape = tuple(x._layout.shape)
    empty = [d for d in dims if shape[d] == 0]
    if empty and len(dims) == len(shape):
        raise RankError(
            f"[{op}] expected a non-empty tensor, got shape {shape} with 0 elements over axis {empty[0]}: Expected reduction "
            "dim to be "
            "specified for input.numel() == 0; check the data or reduce over another dim"
        )
    if empty:
        raise OutOfRangeError(
            f"[{op}] Expected reduction dim {empty[0]} to have non-zero size, got shape {shape}; there is nothing to choose from"
        )


def _keep(x: Tensor, dims: Shape, keepdim: bool) -> Shape:
    return reduced_shape(tuple(x._layout.shape), dims, keepdim)


# ---------------------------------------------------------------------------------------------------------------- sums


def _summable(x: Tensor, dtype: dt.DType | None) -> Tensor:
    if dtype is not None:
        return cast(x, dtype)
    return cast(x, dt.int64) if x._layout.dtype.category < 2 else x


@public(out=True)
@functools.partial(numpy_names, with_dim=True)
def sum(input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: dt.DType | None = None) -> Tensor:
    """Sum over `dim`: (*) -> (* without dim). Integers and bool give int64 unless `dtype` says otherwise.

    >>> import calque
    >>> calque.sum(calque.tensor([[1.0, 2.0], [3.0, 4.0]]), dim=1)
    tensor([3., 7.])
    """
    x = _summable(input, dtype)
    return prim("sum", x, dims_of("sum", x, dim), keepdim)


@public(steps=True)
def sum_to_size(input: Tensor, *sizes: Any, size: Any = None) -> Tensor:
    """Sum the dims that were broadcast from `size`: the adjoint of `expand`."""
    shape = int_tuple("sum_to_size", sizes if size is None else (size,))
    own = tuple(input._layout.shape)
    if own == shape:
        if not own:  # a sum, of one element
            return sum(input)
        return input
    try:
        fits = broadcast_shapes(shape, own) == own
    except ShapeError:
        fits = False
    if not fits:
        raise ShapeError(
            f"[sum_to_size] expected a size that broadcasts to {own}, got {shape}: size {list(shape)} is not expandable to size "
            f"{list(own)}"
        )
    return sum_to_shape(cast(input, dt.int64) if input._layout.dtype.category < 2 else input, shape)


@public(out=True, steps=True)
@numpy_names
def nansum(input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: dt.DType | None = None) -> Tensor:
    """Sum that counts NaN as 0."""
    require_real("nansum", input)
    if input._layout.dtype.category == 2:
        input = where(isnan(input), 0.0, input)
    return sum(input, dim, keepdim, dtype=dtype)


@public(out=True, steps=True)
@functools.partial(numpy_names, with_dim=True)
def mean(input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: dt.DType | None = None) -> Tensor:
    """Arithmetic mean over `dim`: (*) -> (* without dim). Floating tensors only (or pass `dtype`). Of nothing: NaN, with a
    warning.

    >>> import calque
    >>> calque.mean(calque.tensor([[1.0, 2.0], [3.0, 4.0]]), dim=0)
    tensor([2., 3.])
    """
    x = input if dtype is None else cast(input, dtype)
    given = x._layout.dtype
    if given.category < 2:
        raise DTypeError(
            f"[mean] could not infer output dtype: Input dtype must be either a floating point or complex dtype, got {given!r}; "
            "convert with .float() or pass dtype="
        )
    dims = dims_of("mean", x, dim)
    shape = x._layout.shape
    count = product([shape[d] for d in dims])
    if count == 0:
        axis = next(d for d in dims if shape[d] == 0)
        warn_user(f"[mean] mean of an empty range is NaN: shape {tuple(shape)}, axis {axis}", RuntimeWarning)
    if given.itemsize == 2:  # one rounding, at the end
        return cast(prim("sum", cast(x, dt.float32), dims, keepdim) / (count * 1.0), given)
    return prim("sum", x, dims, keepdim) / (count * 1.0)


@public(out=True, steps=True)
@numpy_names
def nanmean(input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: dt.DType | None = None) -> Tensor:
    """Mean of the elements that are not NaN."""
    if input._layout.dtype.category < 2:
        raise DTypeError(
            f"[nanmean] expected input to have floating point or complex dtype but got {input._layout.dtype!r}; convert with "
            ".float()"
        )
    valid = cast(input == input, dtype or input._layout.dtype)
    return nansum(input, dim, keepdim, dtype=dtype) / prim("sum", valid, dims_of("nanmean", input, dim), keepdim)


@public(out=True, steps=True)
@functools.partial(numpy_names, with_dim=True)
@full_precision
def prod(input: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: dt.DType | None = None) -> Tensor:
    """Product over one `dim` or all: (*) -> (* without dim). Integers and bool give int64. The gradient is exact with zeros.

    >>> import calque
    >>> calque.prod(calque.tensor([2.0, 3.0, 4.0]))
    tensor(24.)
    """
    x = _summable(input, dtype)
    return prim("prod", x, _one_or_all("prod", x, dim), keepdim)


@public(steps=True)
@numpy_names
def count_nonzero(input: Tensor, dim: Dims = None) -> Tensor:
    """Number of non-zero elements over `dim`, int64."""
    return prim("sum", cast(prim("ne", input, _zero(input)), dt.int64), dims_of("count_nonzero", input, dim), False)


def _zero(x: Tensor) -> tuple[Any, dt.DType]:
    return (False if x._layout.dtype is dt.bool_ else 0, x._layout.dtype)


@public(out=True, of="calque special", steps=True)
@numpy_names
def logsumexp(input: Tensor, dim: Dims, keepdim: bool = False) -> Tensor:
    """`log(sum(exp(x)))` over `dim` without overflow: (*) -> (* without dim). Integers give the default floating type."""
    x = _float(input)
    dims = dims_of("logsumexp", x, dim)
    shape = x._layout.shape
    if 0 in [shape[d] for d in dims]:
        return log(prim("sum", exp(x), dims, keepdim))
    top = prim("amax", detach(x.real), dims, True)  # type: ignore[attr-defined]
    top = where(prim("abs", top) == math.inf, 0.0, top)
    total = log(prim("sum", exp(x - top), dims, keepdim))
    return total + (top if keepdim else reshape(top, _keep(x, dims, False)))


# ------------------------------------------------------------------------------------------------------------ extremes


def _extreme(name: str, x: Tensor, dims: Shape, keepdim: bool) -> Tensor:
    require_elements(name, x, dims)
    if x._layout.dtype is dt.bool_:
        return prim("any" if name.endswith("max") else "all", x, dims, keepdim)
    return prim("amax" if name.endswith("max") else "amin", x, dims, keepdim)


@public(out="exact", steps=True)
@numpy_names
def amax(input: Tensor, dim: Dims = (), keepdim: bool = False) -> Tensor:
    """Largest element over `dim` (default all); NaN wins; equal elements share the gradient: (*) -> (* without dim)."""
    return _extreme("amax", input, dims_of("amax", input, dim), keepdim)


@public(out="exact", steps=True)
@numpy_names
def amin(input: Tensor, dim: Dims = (), keepdim: bool = False) -> Tensor:
    """Smallest element over `dim` (default all); NaN wins; equal elements share the gradient: (*) -> (* without dim)."""
    return _extreme("amin", input, dims_of("amin", input, dim), keepdim)


@public(out=True, steps=True)
@numpy_names
def aminmax(input: Tensor, *, dim: int | None = None, keepdim: bool = False) -> Any:
    """Smallest and largest element over one `dim` or all, as a named tuple (min, max)."""
    dims = _one_or_all("aminmax", input, dim)
    return MinMaxResult(_extreme("amin", input, dims, keepdim), _extreme("amax", input, dims, keepdim))


def _position(name: str, x: Tensor, dims: Shape, keepdim: bool) -> Tensor:
    require_elements(name, x, dims)
    return prim(name, cast(x, dt.uint8) if x._layout.dtype is dt.bool_ else x, dims, keepdim)


def _arg(name: str, x: Tensor, dim: int | None, keepdim: bool) -> Tensor:
    if x._layout.dtype is dt.bool_:
        raise UnsupportedTypeError(f"[{name}] expected a number dtype, got torch.bool; convert with .int()")
    if dim is not None and not isinstance(dim, (int, np.integer)):
        raise DTypeError(f"[{name}] expected dim as an int or None, got {type_name(dim)}")
    return _position(name, x, dims_of(name, x, dim), keepdim)


@public(out="exact")
@numpy_names
def argmax(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Position (int64) of the first largest element along `dim`, or in the flattened tensor: (*) -> (* without dim).

    >>> import calque
    >>> calque.argmax(calque.tensor([1.0, 3.0, 2.0]))
    tensor(1)
    """
    return _arg("argmax", input, dim, keepdim)


@public(out="exact")
@numpy_names
def argmin(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Position (int64) of the first smallest element along `dim`, or in the flattened tensor: (*) -> (* without dim)."""
    return _arg("argmin", input, dim, keepdim)


def take_chosen(x: Tensor, indices: Tensor, dim: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    """(values, indices) for kept-dim indices along `dim`; the gradient goes to the chosen elements."""
    values = prim("gather", x, indices, dim) if x._layout.ndim else prim("copy", x)
    if not keepdim and x._layout.ndim:
        shape = _keep(x, (dim,), False)
        values, indices = reshape(values, shape), reshape(indices, shape)
    return values, indices


def _extreme_of_all(name: str, x: Tensor) -> Tensor:
    """The extreme of all elements. All that equal it share the gradient; unlike those of `amax`, NaNs equal NaN."""

    def value() -> Tensor:
        return _extreme(name, x, tuple(range(x._layout.ndim)), False)

    def backward(g: Tensor) -> tuple[Tensor]:
        top = value() if local.state.grad else found
        chosen = prim("eq", x, top) | (prim("ne", x, x) & prim("ne", top, top))
        return (where(chosen, g / cast(chosen.sum(), g._layout.dtype), 0.0),)

    if not (local.state.grad and x._requires_grad):
        return value()
    found = with_formula(f"{name.capitalize()}Backward1", (x,), value, backward, uses=True)
    return found


def _choose(name: str, kind: Any, input: Tensor, dim: Any, keepdim: bool, pair: Callable[[Any, Any], Tensor]) -> Any:
    if dim is None:
        return _extreme_of_all(name, input)
    if is_tensor(dim):
        return pair(input, dim)
    if not isinstance(dim, (int, np.integer)):
        raise DTypeError(f"[{name}] expected dim as an int or a second Tensor, got {type_name(dim)}")
    dims = dims_of(name, input, dim)
    indices = _position(f"arg{name}", input, dims, True)
    return kind(*take_chosen(input, indices, dims[0] if dims else 0, keepdim))


@public(out=True, steps=True)
@functools.partial(numpy_names, with_dim=True)
def max(input: Tensor, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Any:
    """Largest element of all; or along an int `dim` as a named tuple (values, indices); or of two tensors.

    >>> import calque
    >>> calque.max(calque.tensor([[1.0, 5.0], [4.0, 2.0]]), dim=1).indices
    tensor([1, 0])
    """
    return _choose("max", MaxResult, input, dim if other is None else other, keepdim, maximum)


@public(out=True, steps=True)
@functools.partial(numpy_names, with_dim=True)
def min(input: Tensor, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Any:
    """Smallest element of all; or along an int `dim` as a named tuple (values, indices); or of two tensors."""
    return _choose("min", MinResult, input, dim if other is None else other, keepdim, minimum)


# ------------------------------------------------------------------------------------------------------------- moments


def _moments(op: str, x: Tensor, dim: Dims, unbiased: Any, correction: Any, keepdim: bool) -> tuple[Tensor, Tensor]:
    """(variance, mean), both with reduced dims kept or not; in float32 for the 16-bit floats."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if unbiased is not None:
        correction = int(unbiased)
    elif correction is None:
        correction = 1
    if x._layout.dtype.category < 2:
        raise DTypeError(
            f"[{op}] std and var only support floating point and complex dtypes, got {x._layout.dtype!r}; convert with .float()"
        )
    dims = dims_of(op, x, dim)
    if x._layout.dtype.is_complex:
        parts = [_moments(op, part, dims, None, correction, keepdim) for part in (x.real, x.imag)]  # type: ignore[attr-defined]
        return parts[0][0] + parts[1][0], prim("complex", parts[0][1], parts[1][1])
    x = _wide(x)
    shape = tuple(x._layout.shape)
    count = product(shape[d] for d in dims)
    if count - correction <= 0:
        warn_user(
            f"[{op}] degrees of freedom is <= 0: {count} elements with correction {correction} (shape {shape}, dims {dims}) "
            "give NaN"
        )
    rest = (count - correction) * 1.0
    freedom = rest if rest > 0 else 0.0
    middle = prim("sum", x, dims, True) / (count * 1.0)

    def value() -> Tensor:
        apart = x - middle
        low = prim("sum", apart, dims, keepdim)  # not 0, because the mean is rounded: far from 0 that is most of the error
        return prim("abs", prim("sum", apart * apart, dims, keepdim) - low * low / (count * 1.0)) / freedom

    def backward(g: Tensor) -> tuple[Tensor]:
        centre = prim("sum", x, dims, True) / (count * 1.0) if local.state.grad else detach(middle)
        g = g if keepdim else reshape(g, _keep(x, dims, True))
        return (g * ((x - centre) * (2.0 / rest if rest else math.inf)),)

    variance = with_formula("VarBackward0", (x,), value, backward)
    return variance, middle if keepdim else reshape(middle, _keep(x, dims, False))


def _moments_of_user(op: str, x: Tensor, dim: Dims, unbiased: Any, correction: Any, keepdim: bool) -> tuple[Tensor, Tensor]:
    """`_moments` with a mean that may be written: the gradient of the variance reads the other one."""
    variance, middle = _moments(op, x, dim, unbiased, correction, keepdim)
    return variance, prim("copy", middle) if x._requires_grad else middle


def _wide(x: Tensor) -> Tensor:
    """x in the type its arithmetic is done in, so that what is made of several steps is rounded once."""
    return cast(x, x._layout.dtype.compute)


def safe_sqrt(x: Tensor) -> Tensor:
    """Square root whose gradient at 0 is 0."""
    at_zero = x == 0
    return where(at_zero, 0.0, sqrt(where(at_zero, 1.0, x)))


@public(out=True, steps=True)
@numpy_names
def var(
    input: Tensor, dim: Dims = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: Any = None
) -> Tensor:
    """Variance over `dim`: sum of squared deviations / (N - correction), correction 1 by default: (*) -> (* without dim).

    Two passes, the second corrected by what the mean lacks, so it does not cancel. Source: Chan, Golub & LeVeque 1983.

    >>> import calque
    >>> calque.var(calque.tensor([1.0, 2.0, 3.0, 4.0]), correction=0)
    tensor(1.2500)
    """
    return cast(_moments("var", input, dim, unbiased, correction, keepdim)[0], input._layout.dtype.to_real())


@public(out=True, steps=True)
@numpy_names
def std(
    input: Tensor, dim: Dims = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: Any = None
) -> Tensor:
    """Standard deviation over `dim`, the root of `var`: (*) -> (* without dim). Its gradient is 0 where it is 0."""
    return cast(safe_sqrt(_moments("std", input, dim, unbiased, correction, keepdim)[0]), input._layout.dtype.to_real())


@public(method=False, out=True, steps=True)
@numpy_names
def var_mean(
    input: Tensor, dim: Dims = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: Any = None
) -> tuple[Tensor, Tensor]:
    """(variance, mean) over `dim`."""
    variance, middle = _moments_of_user("var_mean", input, dim, unbiased, correction, keepdim)
    return cast(variance, input._layout.dtype.to_real()), cast(middle, input._layout.dtype)


@public(method=False, out=True, steps=True)
@numpy_names
def std_mean(
    input: Tensor, dim: Dims = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: Any = None
) -> tuple[Tensor, Tensor]:
    """(standard deviation, mean) over `dim`."""
    variance, middle = _moments_of_user("std_mean", input, dim, unbiased, correction, keepdim)
    return cast(safe_sqrt(variance), input._layout.dtype.to_real()), cast(middle, input._layout.dtype)


# --------------------------------------------------------------------------------------------------------------- norms


def for_norm(op: str, x: Tensor, dtype: dt.DType | None) -> Tensor:
    """The operand of a norm, in the dtype that the caller wants: of the same kind, and no narrower."""
    given = x._layout.dtype
    if given.category < 2:
        raise DTypeError(f"[{op}] Expected a floating point or complex tensor as input, got {given!r}; convert with .float()")
    if dtype is None or dtype is given:
        return x
    if dtype.category != given.category or dt.promote(given, dtype) is not dtype:
        kind = "complex" if given.is_complex else "real floating"
        raise DTypeError(f"[{op}] expected dtype as a {kind} one that {given!r} becomes without narrowing, got {dtype!r}; convert the result")
    return cast(x, dtype)


def _largest_size(name: str, size: Tensor, dims: Shape, keepdim: bool) -> Tensor:
    """The extreme of absolute values, which has gradient 0 where it is NaN."""
    if local.state.grad and size._requires_grad:
        still = detach(size)
        top = _extreme(name, still, dims, True)
        size = where(prim("eq", top, top), size, still)
    return _extreme(name, size, dims, keepdim)


@public(method=False, out="exact", of="calque linalg", steps=True)
@numpy_names
def vector_norm(x: Tensor, ord: float = 2, dim: Dims = None, keepdim: bool = False, *, dtype: dt.DType | None = None) -> Tensor:
    """`sum(|x|**ord)**(1 / ord)` over `dim` (all by default), also for ord inf, -inf and 0 (the number of non-zeros).

    The gradient at a zero norm is 0.
    """
    x = for_norm("vector_norm", x, dtype)
    x = prim("abs", x) if x._layout.dtype.is_complex else x
    dims, keepdim = dims_of("vector_norm", x, dim), bool(keepdim)
    if ord in (math.inf, -math.inf):
        return _largest_size("amax" if ord > 0 else "amin", prim("abs", x), dims, keepdim)
    if ord < 0:
        require_elements("vector_norm", x, dims)
    if ord == 0:
        return linked(prim("sum", cast(x != 0, x._layout.dtype), dims, keepdim), x)
    if ord == 1:
        return prim("sum", prim("abs", x), dims, keepdim)
    kind, x = x._layout.dtype, _wide(x)
    if ord == 2:
        return cast(safe_sqrt(prim("sum", prim("mul", x, x), dims, keepdim)), kind)
    size = prim("abs", x)
    if ord < 1:  # the power has no derivative at 0, the norm has gradient 0 there
        size = where(x == 0, 0.0 if ord > 0 else math.inf, where(x == 0, 1.0, size) ** float(ord))
    else:
        size = size ** float(ord)
    total = prim("sum", size, dims, keepdim)
    at_zero = total == 0
    root = where(at_zero, 1.0, total) ** (1.0 / ord)
    return cast(where(at_zero, 0.0 if ord > 0 else math.inf, root), kind)


@public(out="exact", steps=True)
@numpy_names
def norm(input: Tensor, p: Any = "fro", dim: Dims = None, keepdim: bool = False, *, dtype: dt.DType | None = None) -> Tensor:
    """Norm of order `p` over `dim` (all by default): a number, inf, -inf, "fro" (the same as 2), or "nuc": the sum of the singular values of
    matrices (of two dims).

    >>> import calque
    >>> calque.norm(calque.tensor([3.0, 4.0]))
    tensor(5.)
    """
    if p is None or p == "fro":
        p = 2
    if p == "nuc":
        return _nuclear(for_norm("norm", input, dtype), dim, keepdim)
    if not is_number(p):
        raise ArgumentError(f"[norm] expected p as a number, 'fro' or 'nuc', got {shown(p)}; other norms are in linalg.matrix_norm")
    return vector_norm(input, float(p), dim, keepdim, dtype=dtype)


def _nuclear(x: Tensor, dim: Dims, keepdim: bool) -> Tensor:
    if (x._layout.ndim if dim is None else len(dim) if isinstance(dim, (tuple, list)) else 1) != 2:
        raise ArgumentError(f"[norm] dim must be a 2-tuple for p='nuc': expected two dims, got {dim} of shape {tuple(x._layout.shape)}")
    first, second = dims_of("norm", x, dim)
    values = x.movedim((first, second), (-2, -1)).svd(compute_uv=False).S  # type: ignore[attr-defined]
    result = prim("sum", values, (values._layout.ndim - 1,), False)
    return reshape(result, _keep(x, (first, second), True)) if keepdim else result


# ---------------------------------------------------------------------------------------------------------------- truth


def _truth(name: str, x: Tensor, dim: Dims, keepdim: bool) -> Tensor:
    dims = () if isinstance(dim, (tuple, list)) and not dim else dims_of(name, x, dim)  # no dims: element by element, unlike the other reductions
    result = prim(name, cast(x, dt.bool_), dims, keepdim)
    return cast(result, dt.uint8) if x._layout.dtype is dt.uint8 else result


@public(out="exact", steps=True)
@numpy_names
def any(input: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """Whether any element over `dim` is non-zero; bool (uint8 for uint8): (*) -> (* without dim). Of nothing: False."""
    return _truth("any", input, dim, keepdim)


@public(out="exact", steps=True)
@numpy_names
def all(input: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """Whether all elements over `dim` are non-zero; bool (uint8 for uint8): (*) -> (* without dim). Of nothing: True."""
    return _truth("all", input, dim, keepdim)
