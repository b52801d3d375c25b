"""Reading and writing at index tensors and masks by name: index_select, gather, scatter, masked_fill, take, nonzero, tril,
diag."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from calque.autograd.assign import assign
from calque.autograd.host import for_all_slices
from calque.base import dtypes as dt
from calque.base.device import META
from calque.base.errors import ArgumentError, DTypeError, IndexTypeError, OutOfRangeError, OverlapError, ShapeError, how_to_pass
from calque.base.layout import dense_layout
from calque.base.shapes import Shape, broadcast_shapes, normalize_dim, whole
from calque.base.text import described, shown, type_name
from calque.functional.checks import check_index, index_tensors
from calque.functional.common import (
    Operand,
    cast,
    is_tensor,
    linked,
    method,
    operand,
    prim,
    require_operands,
    require_positions,
    require_real,
    require_tensors,
)
from calque.functional.declared import public
from calque.functional.formats import columns, contiguous
from calque.functional.indexing import fitted, positions_of, put_values
from calque.functional.math import with_formula
from calque.functional.options import fill_number, held, marked, resolve_dtype, size_of
from calque.functional.placing import beside_input, placed
from calque.functional.views import expand, movedim, reshape
from calque.functional.windows import diagonal as _diagonal
from calque.functional.writing import write_back
from calque.ops.opdef import get
from calque.record.recorder import local
from calque.tensor import Tensor, read, record, upload, upload_known


def _flat_index(op: str, index: Any) -> Tensor:
    if not is_tensor(index):
        raise TypeError(f"[{op}] expected a Tensor as index, got {type_name(index)}; {how_to_pass(index)}")
    if index._layout.dtype not in (dt.int64, dt.int32):
        raise IndexTypeError(f"[{op}] Expected dtype int32/int64 for index, got {index._layout.dtype}; convert with .long()")
    if index._layout.ndim > 1:
        raise OutOfRangeError(f"[{op}] Index is supposed to be a vector, got shape {tuple(index._layout.shape)}")
    return index if index._layout.ndim else reshape(index, (1,))


@public(out="exact", steps=True)
def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """Slices along `dim` at the positions `index`: (A, B), (K,) -> (K, B) for dim=0.

    >>> import calque
    >>> calque.tensor([10, 20, 30]).index_select(0, calque.tensor([2, 0]))
    tensor([30, 10])
    """
    where = _flat_index("index_select", index)
    source = input if input._layout.ndim else reshape(input, (1,))
    d = normalize_dim(dim, source._layout.ndim, "index_select")
    result = prim("index_select", source, check_index("index_select", where, source._layout.shape[d], negative=False), d)
    return result if input._layout.ndim else reshape(result, ())


def _index_write(op: str, primitive: str, input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    where = _flat_index(op, index)
    base = input if input._layout.ndim else reshape(input, (1,))
    d = normalize_dim(dim, base._layout.ndim, op)
    shape = tuple(base._layout.shape)
    expected = (*shape[:d], where._layout.shape[0], *shape[d + 1 :])
    if source._layout.dtype is not input._layout.dtype:
        raise DTypeError(
            f"[{op}] self ({input._layout.dtype}) and source ({source._layout.dtype}) expected to have the same dtype"
        )
    if not source._layout.ndim:
        source = reshape(source, (1,) * len(shape))
    if tuple(source._layout.shape) != expected:
        raise (OutOfRangeError if op == "index_copy" else ShapeError)(
            f"[{op}] expected a source of shape {expected} for an index of {where._layout.shape[0]} positions along dim {d} of "
            f"shape {shape}, "
            f"got {tuple(source._layout.shape)}"
        )
    result = prim(primitive, base, check_index(op, where, shape[d], negative=False), source, d)
    return result if input._layout.ndim else reshape(result, ())


@public(in_place="method", out="exact", steps=True)
def index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> Tensor:
    """`input` with the slices of `source` added at the positions `index` along `dim`."""
    return _index_write("index_add", "index_add", input, dim, index, source if alpha == 1 else source * alpha)  # type: ignore[operator]


@public(in_place="method", out="exact", steps=True)
def index_copy(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """`input` with its slices at the positions `index` along `dim` replaced by those of `source`."""
    return _index_write("index_copy", "index_put", input, dim, index, source)


@public(in_place="method", steps=True)
def index_fill(input: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """`input` with the slices at the positions `index` along `dim` set to one value."""
    where = _flat_index("index_fill", index)
    base = input if input._layout.ndim else reshape(input, (1,))
    d = normalize_dim(dim, base._layout.ndim, "index_fill")
    shape = tuple(base._layout.shape)
    positions = check_index("index_fill", where, shape[d])
    if is_tensor(value) and value._layout.ndim:
        raise ShapeError(f"[index_fill] only supports a 0-dimensional value tensor, got shape {tuple(value._layout.shape)}; use index_copy()")
    if (value._layout.dtype.is_complex if is_tensor(value) else isinstance(value, complex)) and not input._layout.dtype.is_complex:
        raise DTypeError(f"[index_fill] Converting complex Scalar to non-complex type is not supported: expected a real value, got {shown(value)}")
    value = held("index_fill", value, input._layout.dtype)
    hit = prim("full", (True, dt.bool_), tuple(where._layout.shape))  # a mask: what is named twice is filled once
    mask = reshape(prim("index_put", prim("full", (False, dt.bool_), (shape[d],)), positions, hit, 0), (shape[d], *(1,) * (len(shape) - d - 1)))
    result = prim("where", mask, operand("index_fill", value, input._layout.dtype), base)
    return result if input._layout.ndim else reshape(result, ())


@public(in_place="method")
def index_put(input: Tensor, indices: Any, values: Tensor, accumulate: bool = False) -> Tensor:
    """A copy of `input` with `copy[indices] = values`, or `+=` with `accumulate`."""
    _same_dtype("index_put", input, values)
    places = index_tensors("index_put", indices)
    result = prim("copy", input)
    put_values(result, places, values, accumulate)
    return result


@public()
def index_put_(input: Tensor, indices: Any, values: Tensor, accumulate: bool = False) -> Tensor:
    """`input[indices] = values`, or `+=` with `accumulate` (repeated indices add up)."""
    _same_dtype("index_put_", input, values)
    places = index_tensors("index_put_", indices)
    try:
        put_values(input, places, values, accumulate)
    except OverlapError as error:
        return error.again("index_put_", index_put_, index_put_, (input, places, values, accumulate), {})  # type: ignore[no-any-return]
    return input


def _same_dtype(op: str, input: Tensor, source: Any) -> None:
    require_tensors(op, source)
    wanted, found = input._layout.dtype, source._layout.dtype
    if wanted is not found:
        raise DTypeError(f"[{op}] expected values of the tensor's dtype {wanted!r}, got {found!r}; convert them with .to({wanted!r})")


# --------------------------------------------------------------------------------------------------- gather and scatter


def _aligned(op: str, input: Tensor, dim: int, index: Tensor) -> tuple[Tensor, Tensor, int]:
    """(input, index, dim) with 0-d tensors as 1-d and the index checked."""
    if index._layout.dtype not in (dt.int64, dt.int32) and index._layout.numel:
        raise DTypeError(f"[{op}] Expected dtype int64 for index, got {index._layout.dtype}; convert with .long()")
    base = input if input._layout.ndim else reshape(input, (1,))
    where = index if index._layout.ndim else reshape(index, (1,))
    d = normalize_dim(dim, base._layout.ndim, op)
    if where._layout.numel and where._layout.ndim != base._layout.ndim:
        raise ShapeError(
            f"[{op}] Index tensor must have the same number of dimensions as input tensor, got shapes "
            f"{tuple(index._layout.shape)} and "
            f"{tuple(input._layout.shape)}"
        )
    return base, check_index(op, where, base._layout.shape[d], negative=False), d


@public(out="exact", steps=True)
@beside_input
def gather(input: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    """Elements along `dim`: out[i, j] = input[index[i, j], j] for dim=0; the result has the shape of `index`.

    >>> import calque
    >>> calque.tensor([[1, 2], [3, 4]]).gather(1, calque.tensor([[0, 0], [1, 0]]))
    tensor([[1, 1],
            [4, 3]])
    """
    base, where, d = _aligned("gather", input, dim, index)
    if not where._layout.numel:
        return linked(prim("full", (0, input._layout.dtype), tuple(index._layout.shape)), input)
    return reshape(prim("gather", base, where, d), tuple(index._layout.shape))


def _scatter_dtypes(op: str, input: Tensor, source: Tensor) -> None:
    if source._layout.dtype is not input._layout.dtype:
        raise DTypeError(f"[{op}] Expected self.dtype to be equal to src.dtype, got {input._layout.dtype} and {source._layout.dtype}")


def _scatter_sizes(op: str, shape: tuple[int, ...], source: Tensor) -> None:
    have = tuple(source._layout.shape)
    if len(have) != len(shape) or any(h < w for h, w in zip(have, shape, strict=True)):
        raise ShapeError(f"[{op}] Expected index {shape} to be no larger than src {have} in every dimension")


def _scattered(op: str, primitive: str, input: Tensor, dim: int, index: Tensor, src: Any) -> Tensor:
    base, where, d = _aligned(op, input, dim, index)
    if not where._layout.numel:
        return linked(prim("copy", input), src)
    shape = tuple(where._layout.shape)
    if is_tensor(src):
        source = src if src._layout.ndim else reshape(src, (1,))
        _scatter_dtypes(op, input, source)
        _scatter_sizes(op, shape, source)
        if tuple(source._layout.shape) != shape:
            source = source[tuple(slice(0, extent) for extent in shape)]  # type: ignore[index]
    else:
        source = fitted(op, src, dense_layout(shape, input._layout.dtype))
    return reshape(prim(primitive, base, where, source, d), tuple(input._layout.shape))


@public(in_place="method", out="exact", steps=True)
def scatter(input: Tensor, dim: int, index: Tensor, src: Operand | None = None, *, value: Any = None, reduce: str | None = None) -> Tensor:
    """`input` with out[index[i, j], j] = src[i, j] for dim=0; `src` may be one number."""
    given = value if src is None else src
    require_operands("scatter", given)
    if not is_tensor(given):
        given = fill_number(given, input._layout.dtype, "scatter")
    if reduce == "add":
        if not is_tensor(given):
            given = fitted("scatter", given, dense_layout(tuple(index._layout.shape), input._layout.dtype))
        return _scattered("scatter", "scatter_add", input, dim, index, given)
    if reduce is not None:
        if not is_tensor(given):
            given = fitted("scatter", given, dense_layout(tuple(index._layout.shape), input._layout.dtype))
        return scatter_reduce(input, dim, index, given, {"multiply": "prod"}.get(reduce, reduce))
    return _scattered("scatter", "scatter", input, dim, index, given)


@public(in_place="method", out="exact", steps=True)
def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """`input` with out[index[i, j], j] += src[i, j] for dim=0."""
    require_tensors("scatter_add", src)
    return _scattered("scatter_add", "scatter_add", input, dim, index, src)


@public(in_place="method", out="exact", steps=True)
def scatter_reduce(input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True) -> Tensor:
    """`input` combined with the elements of `src` that go to the same place: sum, mean, prod, amax or amin. Equal extremes share the gradient."""
    require_tensors("scatter_reduce", src)
    if reduce not in ("sum", "mean", "prod", "amax", "amin"):
        raise ArgumentError(f"[scatter_reduce] reduce argument must be either sum, prod, mean, amax or amin, got {shown(reduce)}")
    if reduce in ("sum", "mean"):
        base = input if include_self else scatter(input, dim, index, 0)
        total = scatter_add(base, dim, index, src)
        if reduce == "sum":
            return total
        ones = prim("full", (1, input._layout.dtype), tuple(input._layout.shape))
        counts = ones if include_self else scatter(ones, dim, index, 0)
        counts = scatter_add(counts, dim, index, prim("full", (1, input._layout.dtype), tuple(src._layout.shape)))
        counts = prim("maximum", counts, (1, input._layout.dtype))
        return prim("div" if input._layout.dtype.category >= 2 else "floor_divide", total, counts)
    _scatter_dtypes("scatter_reduce", input, src)
    if reduce != "prod":
        require_real(f"scatter_reduce with reduce={reduce!r}", input)
    base, where_, d = _aligned("scatter_reduce", input, dim, index)
    if not where_._layout.numel:
        return linked(prim("copy", input), src)
    part = src if src._layout.ndim else reshape(src, (1,))
    _scatter_sizes("scatter_reduce", tuple(where_._layout.shape), part)
    if tuple(part._layout.shape) != tuple(where_._layout.shape):
        part = part[tuple(slice(0, extent) for extent in where_._layout.shape)]  # type: ignore[index]
    return reshape(_combined(base, d, where_, part, reduce, include_self), tuple(input._layout.shape))


def _combined(base: Tensor, d: int, index: Tensor, part: Tensor, reduce: str, include_self: bool) -> Tensor:
    """`scatter_reduce` of what has dims and fits, by prod, amax or amin."""
    plain = None

    def value() -> Tensor:
        nonlocal plain
        plain = _written_together(base, d, index, part, reduce, include_self)
        return plain

    def backward(g: Tensor) -> tuple[Tensor, Tensor]:
        result = _combined(base, d, index, part, reduce, include_self) if local.state.grad else plain
        grads = (_prod_gradient if reduce == "prod" else _extreme_gradient)(g, base, d, index, part, result, include_self)
        return grads if include_self else (_scattered("scatter", "scatter", grads[0], d, index, 0), grads[1])

    straight = not include_self and reduce != "prod"  # extremes that the base equals share with it: it is no operand of the last operation
    return with_formula("ScatterReduceBackward0", (base, part), value, backward, straight, uses=True)


def _extreme_gradient(g: Tensor, base: Tensor, d: int, index: Tensor, part: Tensor, result: Any, include_self: bool) -> tuple[Tensor, Tensor]:
    """All that equal the extreme share the gradient: PyTorch counts the base among them even if it took no part. Where it is NaN none does: 0 / 0."""
    kind = base._layout.dtype
    own, theirs = cast(base == result, kind), cast(part == prim("gather", result, index, d), kind)
    share = g / prim("scatter_add", own, index, theirs, d)
    return own * share, theirs * prim("gather", share, index, d)


def _prod_gradient(g: Tensor, base: Tensor, d: int, index: Tensor, part: Tensor, result: Any, include_self: bool) -> tuple[Tensor, Tensor]:
    """The product of all the others: the result divided by the element, or the product without it where it is the only zero."""
    kind = base._layout.dtype
    nonzero_base = prim("where", base == 0, (1, kind), base)
    without_base = _combined(nonzero_base, d, index, part, "prod", include_self) / nonzero_base
    zero = part == 0
    zeros = prim("scatter_add", prim("full", (0, kind), tuple(base._layout.shape)), index, cast(zero, kind), d)
    single = zero & (prim("gather", zeros, index, d) == 1)
    replaced = _combined(base, d, index, prim("where", single, (1, kind), part), "prod", include_self)
    divided = prim("gather", g * result, index, d) / prim("where", zero, (1, kind), part)
    found = prim("where", single, prim("gather", g * replaced, index, d), divided)
    if local.state.grad and for_all_slices(lambda counts: (read(counts, "scatter_reduce") > 1).any(), zeros):
        found = with_formula("DelayedError", (found,), lambda: prim("copy", found), _several_zeros)
    return g * without_base, found


def _several_zeros(g: Tensor) -> tuple[Tensor]:
    raise ArgumentError(
        "[scatter_reduce] Double backward is unsupported for src when >1 zeros in src are scattered to the same position in self: expected at most "
        "one zero per position, got several; use index positions that keep them apart"
    )


def _written_together(base: Tensor, d: int, index: Tensor, part: Tensor, reduce: str, include_self: bool) -> Tensor:
    """The values of `_combined`, by the primitive that writes them; without the base its places begin with what changes nothing."""
    kind = base._layout.dtype
    if not include_self:
        low, high = (False, True) if kind is dt.bool_ else (-np.inf, np.inf)
        if kind.category == 1:
            low, high = int(np.iinfo(kind.np).min), int(np.iinfo(kind.np).max)
        nothing = {"prod": 1, "amax": low, "amin": high}[reduce]
        base = prim("scatter", base, index, prim("full", (nothing, kind), tuple(index._layout.shape)), d)
    name = {"prod": "scatter_prod", "amax": "scatter_max", "amin": "scatter_min"}["amin" if kind is dt.bool_ and reduce == "prod" else reduce]
    return prim(name, base, index, part, d)


@public(out="exact", steps=True)
def take(input: Tensor, index: Tensor) -> Tensor:
    """Elements of the flattened tensor at the positions `index`."""
    require_positions("take", index)
    flat = reshape(input, (-1,)) if input._layout.numel else reshape(input, (0,))
    return prim("index_select", flat, check_index("take", index, flat._layout.numel), 0)


@public(out="exact", steps=True)
def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """`gather` with broadcasting of the other dims."""
    require_positions("take_along_dim", indices)
    if dim is None:
        return gather(reshape(input, (-1,)), 0, reshape(indices, (-1,)))
    d = normalize_dim(dim, input._layout.ndim, "take_along_dim")
    if input._layout.ndim != indices._layout.ndim:
        raise ShapeError(
            "[take_along_dim] input and indices should have the same number of dimensions, got shapes "
            f"{tuple(input._layout.shape)} and "
            f"{tuple(indices._layout.shape)}"
        )
    one = lambda shape: (*shape[:d], 1, *shape[d + 1 :])  # noqa: E731
    common = broadcast_shapes(one(tuple(input._layout.shape)), one(tuple(indices._layout.shape)), op="take_along_dim")
    sized = lambda x: expand(x, (*common[:d], x._layout.shape[d], *common[d + 1 :]))  # noqa: E731
    index = check_index("take_along_dim", indices, input._layout.shape[d])
    return gather(sized(input), d, sized(index))


@public(in_place="method", steps=True)
def put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """`input` with the elements of its flattened form at the positions `index` replaced (or added to)."""
    _same_dtype("put", input, source)
    require_positions("put", index)
    if source._layout.numel != index._layout.numel:
        raise OutOfRangeError(
            f"[put] Expected source and index to have the same number of elements, got {source._layout.numel} and {index._layout.numel}"
        )
    flat = reshape(input, (-1,))
    where = reshape(check_index("put", index, flat._layout.numel), (-1,))
    result = prim("index_add" if accumulate else "index_put", flat, where, cast(reshape(source, (-1,)), input._layout.dtype), 0)
    return reshape(result, tuple(input._layout.shape))


# ------------------------------------------------------------------------------------------------------------------ masks


def _mask(op: str, mask: Any) -> Tensor:
    if not is_tensor(mask):
        raise TypeError(f"[{op}] expected a Tensor as mask, got {type_name(mask)}; {how_to_pass(mask)}")
    if mask._layout.dtype is not dt.bool_:
        raise DTypeError(
            f"[{op}] only supports boolean masks, but got mask with dtype {mask._layout.dtype}; compare first, e.g. mask != 0"
        )
    found: Tensor = mask
    return found


@public(in_place="method", steps=True)
def masked_fill(input: Tensor, mask: Tensor, value: Any) -> Tensor:
    """`input` with one value where the mask is true.

    >>> import calque
    >>> calque.tensor([1., 2.]).masked_fill(calque.tensor([True, False]), 0)
    tensor([0., 2.])
    """
    condition = _mask("masked_fill", mask)
    if is_tensor(value) and value._layout.ndim:
        raise ShapeError(
            f"[masked_fill] only supports a 0-dimensional value tensor, but got tensor with {value._layout.ndim} dimension(s): "
            "shape "
            f"{tuple(value._layout.shape)}; use where()"
        )
    value = held("masked_fill", value, input._layout.dtype)
    return record(get("where"), (condition, operand("masked_fill", value, input._layout.dtype), input), row_major=True)


@public(out="exact")
@beside_input
def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """The elements where the mask is true, in one dimension. Reads the mask."""
    condition = _mask("masked_select", mask)
    shape = broadcast_shapes(tuple(input._layout.shape), tuple(condition._layout.shape), op="masked_select")
    where = np.flatnonzero(np.broadcast_to(read(condition, "masked_select"), shape))
    return prim("index_select", reshape(expand(input, shape), (prod(shape),)), upload(where, dt.int64), 0)


@public(in_place="method")
@beside_input
def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """`input` with the elements where the mask is true replaced by the first elements of `source`, in order. Reads the mask."""
    condition = _mask("masked_scatter", mask)
    _same_dtype("masked_scatter", input, source)
    shape = tuple(input._layout.shape)
    target = broadcast_shapes(shape, tuple(condition._layout.shape), op="masked_scatter")
    if local.state.trace.exports:
        return _filled_in_order(expand(input, target), expand(condition, target), source)
    if input._layout.device is META:  # how many are replaced is unknown, but not the shape
        where = np.broadcast_to(np.int64(0), (min(prod(target), source._layout.numel),))
    else:
        where = np.flatnonzero(np.broadcast_to(read(condition, "masked_scatter"), target))
    if where.size > source._layout.numel:
        raise ShapeError(
            f"[masked_scatter] expected self and source to have enough elements: {where.size} needed, got {source._layout.numel}"
        )
    flat = reshape(expand(input, target), (prod(target),))
    chosen = reshape(source, (-1,))[: where.size]  # type: ignore[index]
    return reshape(prim("index_put", flat, upload(where, dt.int64), cast(chosen, input._layout.dtype), 0), target)


def _filled_in_order(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """`masked_scatter` as operations of a program: every place takes the element of its number among the true ones."""
    shape, count = tuple(x._layout.shape), source._layout.numel
    if not prod(shape):
        return x
    flat = reshape(mask, (prod(shape),))
    if not count:
        source, count = prim("full", (0, source._layout.dtype), (1,)), 1
    at = prim("where", flat, prim("cumsum", cast(flat, dt.int64), 0) - 1, (0, dt.int64))  # type: ignore[operator]
    at = check_index("masked_scatter", at, count, negative=False)
    return prim("where", mask, reshape(prim("index_select", reshape(source, (count,)), at, 0), shape), x)


@public(out="exact")
@beside_input
def nonzero(input: Tensor, *, as_tuple: bool = False) -> Any:
    """Coordinates of the elements that are not zero: (K, ndim), or one tensor per dim. Reads the tensor."""
    if as_tuple:
        return positions_of(input)
    return columns(np.argwhere(read(input, "nonzero")), dt.int64)


@public()
def argwhere(input: Tensor) -> Tensor:
    """`nonzero(input)`."""
    return nonzero(input)  # type: ignore[no-any-return]


# -------------------------------------------------------------------------------------------------- triangles, diagonals


def _triangle(op: str, comparison: str, input: Tensor, offset: int) -> Tensor:
    shape = input._layout.shape
    if len(shape) < 2:
        raise ShapeError(f"[{op}] input tensor must have at least 2 dimensions, got shape {tuple(shape)}")
    distance = prim("sub", prim("iota", (1, shape[-1]), dt.int64), prim("iota", (shape[-2], 1), dt.int64))
    kept = prim(comparison, distance, (whole(op, "diagonal", offset), dt.int64))
    return prim("where", kept, contiguous(input), (False if input._layout.dtype is dt.bool_ else 0, input._layout.dtype))


@public(in_place="method", out="exact", steps=True)
def tril(input: Tensor, diagonal: int = 0) -> Tensor:
    """Zeros above a diagonal of the last two dims.

    >>> import calque
    >>> calque.ones(2, 2).tril()
    tensor([[1., 0.],
            [1., 1.]])
    """
    return _triangle("tril", "le", input, diagonal)


@public(in_place="method", out="exact", steps=True)
def triu(input: Tensor, diagonal: int = 0) -> Tensor:
    """Zeros below a diagonal of the last two dims."""
    return _triangle("triu", "ge", input, diagonal)


def _indices(op: str, of: Any, row: int, col: int, offset: int, dtype: Any, requires_grad: bool) -> Tensor:
    rows, columns = size_of(op, (row, col))
    places = np.stack(of(rows, whole(op, "offset", offset), columns))
    return marked(upload_known(places, resolve_dtype(dtype, dt.int64, op)), requires_grad, op)


@public(method=False, out=True)
@placed
def tril_indices(row: int, col: int, offset: int = 0, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Coordinates of the lower triangle: (2, K)."""
    return _indices("tril_indices", np.tril_indices, row, col, offset, dtype, requires_grad)


@public(method=False, out=True)
@placed
def triu_indices(row: int, col: int, offset: int = 0, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Coordinates of the upper triangle: (2, K)."""
    return _indices("triu_indices", np.triu_indices, row, col, offset, dtype, requires_grad)


@public(steps=True)
def diag_embed(input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """The last dim as a diagonal of new dims: (N, A) -> (N, A, A)."""
    shape, offset = tuple(input._layout.shape), whole("diag_embed", "offset", offset)
    first, second = normalize_dim(dim1, len(shape) + 1, "diag_embed"), normalize_dim(dim2, len(shape) + 1, "diag_embed")
    side = shape[-1] + abs(offset)
    lead: Shape = shape[:-1]
    strides = []
    step = side * side
    for extent in reversed(lead):
        strides.append(step)
        step *= extent
    start = offset if offset >= 0 else -offset * side
    zeros = prim("full", (0, input._layout.dtype), (*lead, side, side))
    square = prim("update", zeros, input, shape, (*reversed(strides), side + 1), start)
    return square if (first, second) == (len(shape) - 1, len(shape)) else movedim(square, (-2, -1), (first, second))


@public(out="exact", steps=True)
def diag(input: Tensor, diagonal: int = 0) -> Tensor:
    """A vector as a diagonal matrix, or the diagonal of a matrix (a copy)."""
    if input._layout.ndim not in (1, 2):
        raise ShapeError(
            f"[diag] Supports 1D or 2D tensors, got shape {tuple(input._layout.shape)}; use diagonal() or diag_embed()"
        )
    return diag_embed(input, diagonal) if input._layout.ndim == 1 else prim("copy", _diagonal(input, diagonal))


@public(steps=True)
def diagflat(input: Tensor, offset: int = 0) -> Tensor:
    """The flattened tensor as a diagonal matrix."""
    return diag_embed(reshape(input, (-1,)), offset)


def _written(view: Tensor, copy: Tensor, src: Tensor, op: str) -> Tensor:
    require_tensors(op, src)
    if tuple(src._layout.shape) != tuple(view._layout.shape):
        raise ShapeError(
            f"[{op}] expected src to have a size equal to the slice of self: {tuple(view._layout.shape)}, got {tuple(src._layout.shape)}; "
            "expand it first"
        )
    assign(view, fitted(op, src, view._layout))
    return copy


@public()
def select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """A copy of `input` with `copy.select(dim, index)` set to `src`."""
    copy = prim("copy", input)
    return _written(copy.select(dim, index), copy, src, "select_scatter")  # type: ignore[attr-defined]


@public(out="exact")
def slice_scatter(
    input: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """A copy of `input` with a slice along `dim` set to `src`."""
    copy = prim("copy", input)
    d = normalize_dim(dim, input._layout.ndim, "slice_scatter")
    return _written(copy[(slice(None),) * d + (slice(start, end, step),)], copy, src, "slice_scatter")  # type: ignore[index]


@public()
def diagonal_scatter(input: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """A copy of `input` with a diagonal set to `src`."""
    copy = prim("copy", input)
    return _written(_diagonal(copy, offset, dim1, dim2), copy, src, "diagonal_scatter")


@method("map_")
def map_(input: Tensor, other: Tensor, callable: Any) -> Tensor:
    """Every element replaced by callable(own, other's), on Python numbers."""
    if not hasattr(callable, "__call__"):  # noqa: B004 - the argument's name hides the function
        raise DTypeError(f"[map_] expected a function of two numbers, got {described(callable)}")
    theirs = read(expand(other, tuple(input._layout.shape)), "map_")
    values = np.vectorize(callable)(read(input, "map_"), theirs)
    return write_back("map_", input, upload(values, input._layout.dtype))
