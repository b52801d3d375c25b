"""Functions of sampled data: differences, running integrals, histograms with edges, the parts of floating numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from calque.autograd.host import on_host
from calque.base import dtypes as dt
from calque.base.device import META
from calque.base.errors import ArgumentError, DTypeError, ShapeError, UnsupportedTypeError
from calque.base.shapes import broadcast_shapes, normalize_dim, whole
from calque.functional.common import cast, is_number, is_tensor, method, prim, require_dims, require_tensors
from calque.functional.declared import takes_out
from calque.functional.elementary import _float
from calque.functional.joining import cat
from calque.functional.kinds import is_int
from calque.functional.math import _both_float, where, with_formula
from calque.functional.order import cumsum
from calque.functional.placing import beside_input
from calque.functional.results import named_result
from calque.functional.views import reshape, sum_to_shape
from calque.functional.windows import narrow
from calque.functional.writing import in_place_form
from calque.tensor import Tensor, read, upload

FrexpResult = named_result("frexp", "mantissa", "exponent")
HistogramResult = named_result("histogram", "hist", "bin_edges")
HistogramddResult = named_result("histogramdd", "hist", "bin_edges")
Array = np.ndarray[Any, Any]


# ------------------------------------------------------------------------------------------------------------- differences


def _along(x: Tensor, d: int, n: int) -> Tensor:
    """A vector as a tensor of n dims that lies along d."""
    return reshape(x, tuple(-1 if k == d else 1 for k in range(n)))


def _spacings(input: Tensor, spacing: Any, dims: list[int]) -> list[Any]:
    """A number, or a vector of coordinates, for each dim."""
    if spacing is None or is_number(spacing):
        return [1.0 if spacing is None else float(spacing)] * len(dims)
    given = list(spacing)
    if len(given) != len(dims):
        raise ArgumentError(
            f"[gradient] torch.gradient expected spacing to be unspecified, a scalar or a list of length equal to the number of dims {len(dims)}, "
            f"got {len(given)}"
        )
    for d, s in zip(dims, given, strict=True):
        if is_tensor(s) and tuple(s._layout.shape) != (input._layout.shape[d],):
            raise ShapeError(f"[gradient] expected coordinates of shape ({input._layout.shape[d]},) for dim {d}, got {tuple(s._layout.shape)}")
    return [s if is_tensor(s) else float(s) for s in given]


def _slope(x: Tensor, d: int, spacing: Any, edge_order: int) -> Tensor:
    size, n = x._layout.shape[d], x._layout.ndim
    at = lambda start, count=1: narrow(x, d, start, count)  # noqa: E731
    if not is_tensor(spacing):
        middle = (at(2, size - 2) - at(0, size - 2)) / (2 * spacing)
        if edge_order == 1:
            first, last = (at(1) - at(0)) / spacing, (at(size - 1) - at(size - 2)) / spacing
        else:
            first = (at(0) * -1.5 + at(1) * 2.0 - at(2) * 0.5) / spacing
            last = (at(size - 1) * 1.5 - at(size - 2) * 2.0 + at(size - 3) * 0.5) / spacing
        return cat([first, middle, last], d)
    places = cast(spacing, x._layout.dtype)
    steps = narrow(places, 0, 1, size - 1) - narrow(places, 0, 0, size - 1)
    a, b = (_along(narrow(steps, 0, start, size - 2), d, n) for start in (0, 1))
    left, centre, right = -b / (a * (a + b)), (b - a) / (a * b), a / (b * (a + b))
    middle = left * at(0, size - 2) + centre * at(1, size - 2) + right * at(2, size - 2)
    h = lambda k: _along(narrow(steps, 0, k, 1), d, n)  # noqa: E731
    if edge_order == 1:
        first, last = (at(1) - at(0)) / h(0), (at(size - 1) - at(size - 2)) / h(size - 2)
    else:
        u, v = h(0), h(1)
        first = at(0) * (-(u * 2.0 + v) / (u * (u + v))) + at(1) * ((u + v) / (u * v)) - at(2) * (u / (v * (u + v)))
        u, v = h(size - 3), h(size - 2)
        last = at(size - 3) * (v / (u * (u + v))) - at(size - 2) * ((u + v) / (u * v)) + at(size - 1) * ((v * 2.0 + u) / (v * (u + v)))
    return cat([first, middle, last], d)


def gradient(input: Tensor, *, spacing: Any = 1, dim: Any = None, edge_order: int = 1) -> list[Tensor]:
    """Derivatives of samples along dims (default: all) by central differences, of the first or second order at the ends: (*) -> one (*) for each
    dim.

    spacing: a number, or for each dim a number or the coordinates of its samples.

    >>> import calque
    >>> calque.gradient(calque.tensor([1.0, 4.0, 9.0]))
    [tensor([3., 4., 5.])]
    """
    x = _float(input)
    n = x._layout.ndim
    one = isinstance(spacing, (tuple, list)) and dim is None and len(spacing) == 1
    wanted = range(n) if dim is None else [dim] if is_int(dim) else dim
    dims = [normalize_dim(d, n, "gradient") for d in wanted]
    if one:
        spacing = list(spacing) * len(dims) if not is_tensor(spacing[0]) else spacing
    if len(set(dims)) < len(dims):
        raise ArgumentError(f"[gradient] expected dims that differ, got {dim}: dim appears multiple times in the list of dims")
    if edge_order not in (1, 2):
        raise ArgumentError(f"[gradient] torch.gradient only supports edge_order=1 and edge_order=2, got {edge_order}")
    for d in dims:
        if x._layout.shape[d] <= edge_order:
            raise ShapeError(
                f"[gradient] torch.gradient expected each dimension size to be at least edge_order+1, got {x._layout.shape[d]} for dim {d} and "
                f"edge_order={edge_order}"
            )
    return [_slope(x, d, s, edge_order) for d, s in zip(dims, _spacings(x, spacing, dims), strict=True)]


def cumulative_trapezoid(y: Tensor, x: Tensor | None = None, *, dx: float | None = None, dim: int = -1) -> Tensor:
    """Running integral of samples by the trapezoidal rule along `dim`, at places `x` or `dx` (default 1) apart: (*, n, *) -> (*, n - 1, *).

    >>> import calque
    >>> calque.cumulative_trapezoid(calque.tensor([1.0, 5.0, 10.0]))
    tensor([ 3.0000, 10.5000])
    """
    if x is not None and dx is not None:
        raise ArgumentError(f"[cumulative_trapezoid] expected x or dx, got both: x of shape {tuple(x._layout.shape)} and dx={dx}")
    require_dims("cumulative_trapezoid", y, 1, name="y")
    n = y._layout.ndim
    d = normalize_dim(dim, n, "cumulative_trapezoid")
    count = y._layout.shape[d]
    means = narrow(y, d, 0, count - 1) + narrow(y, d, 1, count - 1)
    if x is None:
        return cumsum(means, d) * ((1.0 if dx is None else float(dx)) / 2)
    if x._layout.ndim == 1:
        if x._layout.numel != count:
            raise ShapeError(f"[cumulative_trapezoid] expected one x value for each of the {count} samples of dim {dim}, got {x._layout.numel}")
        x = _along(x, d, n)
    axis = d - n
    steps = narrow(x, axis, 1, x._layout.shape[axis] - 1) - narrow(x, axis, 0, x._layout.shape[axis] - 1)
    return cumsum(means * steps, d) / 2.0


# --------------------------------------------------------------------------------------------------------------- histograms


def _edges(op: str, column: Array, bins: Any, low_high: Any) -> Array:
    """Ascending edges of bins, in the dtype of the values."""
    if is_tensor(bins):
        found = read(bins, op)
        if found.ndim != 1 or len(found) < 1:
            raise ShapeError(f"[{op}] bins tensor should have one dimension, and at least one edge, got shape {found.shape}")
        return found.astype(column.dtype)
    if whole("histogram", "bins", bins) < 1:
        raise ArgumentError(f"[{op}] bins must be > 0, but got {bins}")
    if low_high is not None:
        low, high = (float(v) for v in low_high)
    else:
        low, high = (float(column.min()), float(column.max())) if column.size else (0.0, 1.0)
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ArgumentError(f"[{op}] range of [{low}, {high}] is not finite: expected finite values, or range=")
    if low > high:
        raise ArgumentError(f"[{op}] min should not exceed max, but got min {low} max {high}")
    if low == high:
        low, high = low - 0.5, high + 0.5
    return np.linspace(low, high, int(bins) + 1).astype(column.dtype)


def _counted(points: Array, edges: list[Array], weight: Array | None, density: bool) -> Array:
    """How many points (or how much weight) each cell holds; the last bins hold their upper edges, too."""
    shape = tuple(len(e) - 1 for e in edges)
    place, inside = np.zeros(len(points), np.int64), np.ones(len(points), bool)
    for d, edge in enumerate(edges):
        column = points[:, d]
        at = np.searchsorted(edge, column, side="right") - 1
        at = np.where(column == edge[-1], len(edge) - 2, at)
        inside &= (column >= edge[0]) & (column <= edge[-1])
        place = place * shape[d] + np.clip(at, 0, max(shape[d] - 1, 0))
    weights = np.ones(len(points)) if weight is None else weight.astype(np.float64)
    found = np.bincount(place[inside], weights[inside], minlength=math.prod(shape))[: math.prod(shape)].reshape(shape)
    if density:
        with np.errstate(all="ignore"):
            found = found / found.sum()
            for d, edge in enumerate(edges):
                found = found / np.diff(edge.astype(np.float64)).reshape([-1 if k == d else 1 for k in range(len(edges))])
    return found


def _given(op: str, input: Tensor, weight: Tensor | None, shape: Sequence[int]) -> Array | None:
    if input._layout.dtype not in (dt.float32, dt.float64):
        raise UnsupportedTypeError(f"[{op}] expected a float32 or float64 input, got {input._layout.dtype!r}: not implemented; convert with .float()")
    if weight is None:
        return None
    if weight._layout.dtype is not input._layout.dtype or tuple(weight._layout.shape) != tuple(shape):
        raise ShapeError(
            f"[{op}] if weight tensor is provided it should have the same dtype and shape {tuple(shape)} as the values, got {weight._layout.dtype!r} "
            f"{tuple(weight._layout.shape)}"
        )
    return read(weight, op).reshape(-1)


@method()
@takes_out
@beside_input
def histogram(
    input: Tensor, bins: Any = 100, *, range: Sequence[float] | None = None, weight: Tensor | None = None, density: bool = False
) -> Any:
    """How many elements (how much `weight`) lie in each of `bins` equal bins of `range` (default: of all values) or between ascending edges, and the
    edges: (*) -> (bins), (bins + 1). With `density` the counts integrate to 1. Reads the values; no gradient.

    >>> import calque
    >>> calque.histogram(calque.tensor([1.0, 2.0, 1.0]), bins=4, range=(0.0, 3.0)).hist
    tensor([0., 2., 1., 0.])
    """
    kind = input._layout.dtype
    weights = _given("histogram", input, weight, input._layout.shape)
    values = read(input, "histogram").reshape(-1, 1)
    edges = _edges("histogram", values[:, 0], bins, range)
    return HistogramResult(upload(_counted(values, [edges], weights, density).astype(kind.np), kind), upload(edges, kind))


@takes_out
@beside_input
def histogramdd(
    input: Tensor, bins: Any, *, range: Sequence[float] | None = None, weight: Tensor | None = None, density: bool = False
) -> Any:
    """`histogram` of points with D coordinates: (*, D) -> (bins_1, ..., bins_D), D tensors of edges. `bins`: one int, or an int or edges for each
    coordinate; `range`: its ends one after the other.

    >>> import calque
    >>> calque.histogramdd(calque.tensor([[0.0, 1.0], [1.0, 0.0], [2.0, 0.0]]), [2, 2]).hist
    tensor([[0., 1.],
            [2., 0.]])
    """
    kind = input._layout.dtype
    if input._layout.ndim < 2:
        raise ShapeError(f"[histogramdd] input tensor should have at least 2 dimensions, but got shape {tuple(input._layout.shape)}")
    weights = _given("histogramdd", input, weight, input._layout.shape[:-1])
    width = input._layout.shape[-1]
    points = read(input, "histogramdd").reshape(math.prod(input._layout.shape[:-1]), width)
    several = list(bins) if isinstance(bins, (tuple, list)) else [bins] * width
    if len(several) != width:
        raise ArgumentError(f"[histogramdd] expected bin edges or a count for each of {width} coordinates, but got {len(several)} of them")
    if range is not None and len(range) != 2 * width:
        raise ArgumentError(f"[histogramdd] for a {width}-dimensional histogram range should have {2 * width} elements, but got {len(range)}")
    limits = [None] * width if range is None else _pairs(range)
    edges = [_edges("histogramdd", points[:, d], b, limits[d]) for d, b in enumerate(several)]
    found = _counted(points, edges, weights, density).astype(kind.np)
    return HistogramddResult(upload(found, kind), tuple([upload(e, kind) for e in edges]))


def _pairs(values: Sequence[float]) -> list[Any]:
    return list(zip(values[::2], values[1::2], strict=True))


# ------------------------------------------------------------------------------------------------------- parts of numbers


@method()
@takes_out
@beside_input
def frexp(input: Tensor) -> Any:
    """mantissa in [0.5, 1) and int32 exponent with `input = mantissa * 2**exponent`: (*) -> (*), (*). Reads the values.

    >>> import calque
    >>> calque.frexp(calque.tensor([3.0, 0.25])).mantissa
    tensor([0.7500, 0.5000])
    """
    kind = input._layout.dtype
    if kind.category != 2:
        raise DTypeError(f"[frexp] torch.frexp() only supports floating-point dtypes, expected one, got {kind!r}; convert with .float()")

    def parts(values: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        mantissa, exponent = np.frexp(values if values.dtype.kind == "f" else values.astype(np.float32))
        return mantissa.astype(kind.np), np.where(np.isfinite(mantissa), exponent, 0).astype(np.int32)

    mantissa, exponent = on_host("frexp", parts, (input,), [tuple(input._layout.shape)] * 2)
    powers, returned = upload(exponent, dt.int32), upload(exponent, dt.int32)  # what is returned may be written
    found = with_formula("FrexpBackward0", (input,), lambda: upload(mantissa, kind), lambda g: (g / cast(powers, kind).exp2(),))
    return FrexpResult(found, returned)


@method()
@partial(takes_out, how=True)
@beside_input
def nextafter(input: Tensor, other: Tensor) -> Tensor:
    """The next floating number after `input` towards `other`, broadcast: (*), (*) -> (*). Reads the values; the
    gradient is that of `input` itself, and 0 where there is no next number because both are equal.

    >>> import calque
    >>> calque.nextafter(calque.tensor(1.0), calque.tensor(2.0)).item() == 1 + 2**-23
    True
    """
    require_tensors("nextafter", input, other)
    a, b = _both_float("nextafter", input, other, promote=False)
    shape = broadcast_shapes(tuple(a._layout.shape), tuple(b._layout.shape), op="nextafter")
    kind = a._layout.dtype

    def value() -> Tensor:
        if META in (a._layout.device, b._layout.device):
            return prim("full", (0, kind), shape)
        return upload(on_host("nextafter", lambda p, q: np.nextafter(p, q).astype(kind.np), (a, b), [shape])[0], kind)

    def backward(g: Tensor) -> tuple[Tensor, Tensor]:
        moved = where(prim("ne", a, b), g, 0.0)
        return sum_to_shape(moved, tuple(a._layout.shape)), sum_to_shape(g * 0.0, tuple(b._layout.shape))

    return with_formula("NextafterBackward0", (a, b), value, backward)


nextafter_ = method("nextafter_")(in_place_form("nextafter_", nextafter))
