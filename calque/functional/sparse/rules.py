"""What public functions mean for sparse tensors: elementwise functions that keep zeros, sums, views, conversions."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from operator import index as as_int
from typing import Any

import numpy as np

from calque import functional as T
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, DTypeError, NotDense, OutOfRangeError, ShapeError
from calque.base.layout import strided
from calque.base.shapes import normalize_dim
from calque.functional.common import cast, dtype_of, is_scalar, is_tensor, prim
from calque.functional.printing import closed, contents
from calque.functional.sparse.tensor import (
    LAYOUTS,
    RULES,
    SparseTensor,
    as_coo,
    build,
    coalesced,
    compressed,
    dense,
    require_kind,
    rule,
    sparse_dim_of,
    take,
    uploaded,
)
from calque.tensor import Tensor, read

# --------------------------------------------------------------------------------------------------- elementwise, zero stays zero

KEEP_ZERO = (
    "abs absolute angle arcsin arcsinh arctan arctanh asin asinh atan atanh ceil conj conj_physical deg2rad erf erfinv expm1 floor frac isinf "
    "isnan isneginf isposinf log1p nan_to_num neg negative positive rad2deg relu round sgn sign signbit sin sinh sqrt square tan tanh trunc fix"
)


def _elementwise(name: str) -> Callable[..., Any]:
    function = getattr(T, name, None)

    def apply(input: SparseTensor, *arguments: Any, **keywords: Any) -> SparseTensor:
        x = coalesced(input)
        call = function or (lambda values: values.relu())
        return x._with(call(x._elements, *arguments, **keywords))

    apply.__name__ = name
    return apply


for _name in KEEP_ZERO.split():
    RULES[_name] = _elementwise(_name)


def _number(op: str, x: Any) -> Any:
    """A number, or a dense tensor of no dims, which scales all elements; None for anything else."""
    if is_scalar(x):
        return x
    return x if is_tensor(x) and not isinstance(x, SparseTensor) and not x._layout.ndim else None


def _same_shape(op: str, a: Any, b: Any) -> None:
    if tuple(a.shape) != tuple(b.shape):
        raise ShapeError(f"[{op}] expected operands of one shape, got {list(a.shape)} and {list(b.shape)}: sparse tensors are not broadcast")


@rule("mul", "multiply")
def mul(input: Any, other: Any) -> Any:
    """Scaled by a number, or the elements that both have."""
    a, b = (input, other) if isinstance(input, SparseTensor) else (other, input)
    factor = _number("mul", b)
    if factor is not None:
        return a._with(a._elements * factor)
    _same_shape("mul", a, b)
    if not isinstance(b, SparseTensor):
        return a._with(a._elements * _at(b, a))
    x, y = coalesced(as_coo(a)), coalesced(as_coo(b))
    if x.sparse != y.sparse:
        raise ShapeError(f"[mul] expected equal numbers of sparse dims, got {x.sparse} and {y.sparse}")
    _, mine, theirs = np.intersect1d(read(x.keys(), "mul"), read(y.keys(), "mul"), assume_unique=True, return_indices=True)
    first, second = uploaded(x._elements, mine), uploaded(x._elements, theirs)
    elements = take(x._elements, first) * take(y._elements, second)  # type: ignore[operator]
    return in_form(a, build("coo", (take(x._index[0], first, 1),), elements, x._extent))


def _at(values: Tensor, places: SparseTensor) -> Tensor:
    """The elements of a dense tensor at the places of a sparse one."""
    flat = T.reshape(values, (-1, *places._extent[places.sparse :])) if values._layout.numel else T.reshape(values, (0,))
    return take(flat, places.keys()) if values._layout.numel else places._elements


def in_form(like: SparseTensor, made: SparseTensor) -> SparseTensor:
    """A tensor in the form of another."""
    return made if like._kind == "coo" else compressed(made, like._kind)


@rule("div", "divide", "true_divide")
def div(input: Any, other: Any, *, rounding_mode: str | None = None) -> Any:
    """Divided by a number."""
    divisor = _number("div", other)
    if divisor is None or not isinstance(input, SparseTensor):
        shape = list(other.shape) if is_tensor(other) else other
        raise ArgumentError(f"[div] Sparse division requires a scalar or zero-dim dense tensor divisor (got shape {shape} for divisor)")
    x = input if rounding_mode is None else coalesced(input)
    return x._with(T.div(x._elements, divisor, rounding_mode=rounding_mode))


@rule()
def floor_divide(input: Any, other: Any) -> Any:
    """Divided by a number and rounded down."""
    return div(input, other, rounding_mode="floor")


@rule()
def pow(input: Any, exponent: Any) -> Any:
    """The power of each element: a positive number, so that zeros stay."""
    if not isinstance(input, SparseTensor) or not is_scalar(exponent) or isinstance(exponent, complex):
        raise ArgumentError("[pow] expected a sparse tensor and a number as its exponent; convert with .to_dense()")
    if exponent <= 0:
        raise ArgumentError(f"[pow] expected an exponent larger than 0, got {exponent}: zeros would not stay zeros; convert with .to_dense()")
    x = coalesced(input)
    return x._with(x._elements**exponent)  # type: ignore[operator]


@rule("add", "sub", "subtract", "_subtract")
def add(input: Any, other: Any, *, alpha: Any = 1) -> Any:
    """The sum of two sparse tensors of one shape, or of a dense and a sparse one."""
    if not isinstance(other, SparseTensor):
        raise ArgumentError("[add] add(sparse, dense) is not supported. Use add(dense, sparse) instead, or .to_dense()")
    if not is_tensor(input):
        raise DTypeError(f"[add] expected a Tensor, got {input!r}: a number added to a sparse tensor leaves no zeros; convert with .to_dense()")
    _same_shape("add", input, other)
    scaled = other if alpha.__class__ is int and alpha == 1 else other._with(other._elements * alpha)  # type: ignore[operator]
    if not isinstance(input, SparseTensor):
        return T.add(input, dense(scaled))
    if input._kind == scaled._kind and all(a is b for a, b in zip(input._index, scaled._index, strict=True)):  # the same places
        return input._with(T.add(input._elements, scaled._elements))
    x, y = as_coo(input), as_coo(scaled)
    if x.sparse != y.sparse:
        raise ShapeError(f"[add] expected equal numbers of sparse dims, got {x.sparse} and {y.sparse}")
    kind = T.result_type(x._elements, y._elements)
    elements = T.cat([cast(x._elements, kind), cast(y._elements, kind)])
    both = build("coo", (T.cat([x._index[0], y._index[0]], 1),), elements, x._extent, False)
    return in_form(input, coalesced(both) if x._unique and y._unique or input._kind != "coo" else both)


def sub(input: Any, other: Any, *, alpha: Any = 1) -> Any:
    """`add` of the negative."""
    return add(input, other, alpha=-alpha)


RULES.update({"sub": sub, "subtract": sub})


# --------------------------------------------------------------------------------------------------------------------- sums


@rule("sum")
def total(input: SparseTensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """The sum of all elements, or along dims; what is left of sparse dims stays sparse."""
    kind = dtype_of(dtype, "sum") if dtype is not None else dt.int64 if input.dtype.category < 2 else input.dtype
    elements = cast(input._elements, kind)
    if dim is None or (dim.__class__ is tuple and not dim):
        return T.sum(elements)
    if input._kind != "coo":
        made = total(as_coo(input), dim, keepdim, dtype=dtype)
        return in_form(input, made) if isinstance(made, SparseTensor) and made.sparse == 2 and len(made._extent) == 2 else made
    dims = sorted({sparse_dim_of("sum", input, d) for d in ((dim,) if hasattr(dim, "__index__") else dim)})
    shift = 1 - input.sparse
    inner = tuple(d + shift for d in dims if d >= input.sparse)
    if inner:
        elements = T.sum(elements, inner, keepdim)
    kept = [d for d in range(input.sparse) if d not in dims]
    extent = [1 if d in dims else n for d, n in enumerate(input._extent) if keepdim or d not in dims]
    if not kept and not keepdim:
        return T.sum(elements, 0)
    if keepdim:
        zero = prim("full", (0, dt.int64), (input.count,))
        index = T.stack([zero if d in dims else input.rows(d) for d in range(input.sparse)])
    else:
        index = take(input._index[0], uploaded(elements, np.array(kept, np.int64)))
    return coalesced(build("coo", (index,), elements, tuple(extent), input._unique and len(kept) == input.sparse))


@rule()
def norm(input: SparseTensor, p: Any = "fro", dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    """The norm of all elements."""
    if dim is not None and len(dim if isinstance(dim, tuple | list) else (dim,)) < len(input._extent):
        raise NotDense(input, "norm along a dim")
    return T.norm(coalesced(input)._elements, 2 if p == "fro" else p, dtype=dtype)


@rule("any")
def any_(input: SparseTensor) -> Tensor:
    """Whether an element is not zero."""
    return T.any(coalesced(input)._elements)


# -------------------------------------------------------------------------------------------------------------- conversions


@rule()
def to_dense(input: SparseTensor, dtype: Any = None, *, masked_grad: bool = True) -> Tensor:
    """All elements as an ordinary tensor."""
    return dense(input if dtype is None else input._with(cast(input._elements, dtype_of(dtype, "to_dense"))))


@rule("coalesce", "_coalesced_")
def coalesce(input: SparseTensor, *_: Any) -> SparseTensor:
    """The tensor with its places in order, each listed once."""
    return coalesced(require_kind("coalesce", input, ["coo"]))


@rule("to_sparse", "to_sparse_coo")
def to_sparse(input: SparseTensor, sparse_dim: Any = None, *, layout: Any = None, blocksize: Any = None, dense_dim: Any = None) -> SparseTensor:
    """The tensor in another sparse layout, coordinates without one."""
    if layout is not None and layout != LAYOUTS["coo"]:
        return compressed(input, _kind_of(layout))
    if sparse_dim is not None and as_int(sparse_dim) != input.sparse:
        raise NotDense(input, "to_sparse with another number of sparse dims")
    return as_coo(input)


def _kind_of(layout: Any) -> str:
    found = next((kind for kind, name in LAYOUTS.items() if name == layout), None)
    if found is None:
        raise ArgumentError(f"[to_sparse] expected layout torch.sparse_coo, torch.sparse_csr or torch.sparse_csc, got {layout!r}")
    return found


RULES["to_sparse_csr"] = lambda input, dense_dim=None: compressed(input, "csr")
RULES["to_sparse_csc"] = lambda input, dense_dim=None: compressed(input, "csc")


def _mapped(name: str, own: bool = False) -> Callable[..., Any]:
    """A method of the values that makes others of the same places."""

    def apply(input: SparseTensor, *arguments: Any, **keywords: Any) -> SparseTensor:
        elements = getattr(input._elements, name)(*arguments, **keywords)
        if elements is input._elements:
            return input
        made = input._with(elements)
        if made.device is not input.device or own:
            made._index, made._memo = tuple(x.clone() if own else x.to(made.device) for x in input._index), {}  # type: ignore[attr-defined]
        return made

    return apply


for _name in (
    "to", "float", "double", "half", "bfloat16", "int", "long", "short", "char", "byte", "bool", "cfloat", "cdouble", "cpu", "cuda", "detach",
    "pin_memory",
):  # fmt: skip
    RULES[_name] = _mapped(_name)
RULES["clone"] = _mapped("clone", own=True)


@rule("type")
def type_(input: SparseTensor, dtype: Any = None, non_blocking: bool = False) -> Any:
    """The name of the type, or the tensor converted to another."""
    if dtype is not None:
        return RULES["to"](input, dtype_of(dtype, "type") if not isinstance(dtype, str) else dtype)
    return input._elements.type().replace("torch.", "torch.sparse.")  # type: ignore[attr-defined]


@rule("type_as")
def type_as(input: SparseTensor, tensor: Any) -> SparseTensor:
    """The tensor with another one's element type."""
    return RULES["to"](input, tensor.dtype)  # type: ignore[no-any-return]


@rule("is_same_size")
def is_same_size(input: Any, other: Any) -> bool:
    """Whether both have one shape."""
    return tuple(input.shape) == tuple(other.shape)


for _name, _answer in {
    "is_floating_point": lambda x: x.dtype.is_floating_point, "is_complex": lambda x: x.dtype.is_complex, "is_signed": lambda x: x.dtype.is_signed,
    "element_size": lambda x: x.dtype.itemsize, "is_contiguous": lambda x, **_: False, "is_pinned": lambda x, **_: False,
    "numel": lambda x: x.numel(),
    "get_device": lambda x: -1, "is_conj": lambda x: False, "is_neg": lambda x: False, "resolve_conj": lambda x: x, "resolve_neg": lambda x: x,
    "is_nonzero": lambda x: NotDense(x, "is_nonzero"),
}.items():  # fmt: skip
    RULES[_name] = _answer


@rule()
def detach_(input: SparseTensor) -> SparseTensor:
    """The tensor itself without history."""
    input._elements = input._elements.detach()  # type: ignore[attr-defined]
    return input



# ------------------------------------------------------------------------------------------------------------- its parts


@rule()
def values(input: SparseTensor) -> Tensor:
    """The values (n, *dense dims)."""
    return _listed("values", input)._elements


@rule()
def indices(input: SparseTensor) -> Tensor:
    """The places (dims, n)."""
    return _listed("indices", require_kind("indices", input, ["coo"]))._index[0]


def _listed(op: str, input: SparseTensor) -> SparseTensor:
    if input._kind == "coo" and not input._unique:
        raise ArgumentError(f"[{op}] Cannot get {op} on an uncoalesced tensor, please call .coalesce() first")
    return input


RULES["_values"] = lambda input: input._elements
RULES["_indices"] = lambda input: require_kind("_indices", input, ["coo"])._index[0]
RULES["_nnz"] = lambda input: input.count
RULES["is_coalesced"] = lambda input: require_kind("is_coalesced", input, ["coo"])._unique
RULES["sparse_dim"] = lambda input: input.sparse
RULES["dense_dim"] = lambda input: len(input._extent) - input.sparse
RULES["crow_indices"] = lambda input: require_kind("crow_indices", input, ["csr"])._index[0]
RULES["col_indices"] = lambda input: require_kind("col_indices", input, ["csr"])._index[1]
RULES["ccol_indices"] = lambda input: require_kind("ccol_indices", input, ["csc"])._index[0]
RULES["row_indices"] = lambda input: require_kind("row_indices", input, ["csc"])._index[1]


# ------------------------------------------------------------------------------------------------------- dims and places


@rule()
def permute(input: SparseTensor, *order: Any, dims: Any = None) -> SparseTensor:
    """The dims in another order; sparse and dense ones are not mixed."""
    order = order or (dims,)
    order = tuple(order[0]) if len(order) == 1 and isinstance(order[0], tuple | list) else order
    wanted = [sparse_dim_of("permute", input, d) for d in order]
    if sorted(wanted) != list(range(len(input._extent))):
        raise ShapeError(f"[permute] expected each of {len(input._extent)} dims once, got {tuple(order)}")
    if input._kind != "coo":
        return input if wanted == [0, 1] else _flipped(input)
    count = input.sparse
    if any((d < count) != (k < count) for k, d in enumerate(wanted)):
        raise ShapeError(f"[permute] transpositions between sparse and dense dimensions are not allowed: got {tuple(order)} with {count} sparse dims")
    index = take(input._index[0], uploaded(input._elements, np.array(wanted[:count], np.int64)))
    elements = T.permute(input._elements, (0, *(d - count + 1 for d in wanted[count:]))) if len(wanted) > count else input._elements
    kept = input._unique and wanted[:count] == list(range(count))
    return build("coo", (index,), elements, tuple(input._extent[d] for d in wanted), kept)


def _flipped(x: SparseTensor) -> SparseTensor:
    """A compressed matrix transposed: the same parts in the other form."""
    return build("csc" if x._kind == "csr" else "csr", x._index, x._elements, x._extent[::-1])


@rule("transpose", "swapaxes", "swapdims")
def transpose(input: SparseTensor, dim0: int, dim1: int) -> SparseTensor:
    """Two dims exchanged."""
    first, second = sparse_dim_of("transpose", input, dim0), sparse_dim_of("transpose", input, dim1)
    order = list(range(len(input._extent)))
    order[first], order[second] = second, first
    return permute(input, *order)


@rule()
def adjoint(input: SparseTensor) -> SparseTensor:
    """The last two dims exchanged, and conjugated."""
    turned = transpose(input, -2, -1)
    return RULES["conj"](turned) if turned._elements._layout.dtype.is_complex else turned  # type: ignore[no-any-return]


@rule()
def t(input: SparseTensor) -> SparseTensor:
    """The transposed matrix; a vector itself."""
    if len(input._extent) > 2:
        raise ShapeError(f"[t] t() expects a tensor with <= 2 dims, got shape {list(input._extent)}")
    return input if len(input._extent) < 2 else transpose(input, 0, 1)


@rule()
def unsqueeze(input: SparseTensor, dim: int) -> SparseTensor:
    """A dim of size 1 more."""
    require_kind("unsqueeze", input, ["coo"])
    d = normalize_dim(dim, len(input._extent) + 1, "unsqueeze")
    extent = (*input._extent[:d], 1, *input._extent[d:])
    if d > input.sparse:
        return build("coo", input._index, T.unsqueeze(input._elements, d - input.sparse + 1), extent, input._unique)
    parts = [input.rows(k) for k in range(input.sparse)]
    parts.insert(d, prim("full", (0, dt.int64), (input.count,)))
    return build("coo", (T.stack(parts),), input._elements, extent, input._unique)


@rule()
def index_select(input: SparseTensor, dim: int, index: Tensor) -> SparseTensor:
    """The slices along `dim` at positions."""
    d, wanted = sparse_dim_of("index_select", input, dim), np.atleast_1d(read(index, "index_select"))
    size = input._extent[d]
    if wanted.size and (wanted.min() < 0 or wanted.max() >= size):
        raise OutOfRangeError(f"[index_select] expected positions in 0..{size - 1} along dim {d}, got {wanted.min()} to {wanted.max()}")
    x = coalesced(as_coo(input))
    extent = (*x._extent[:d], len(wanted), *x._extent[d + 1 :])
    if d >= x.sparse:
        return build("coo", x._index, T.index_select(x._elements, d - x.sparse + 1, index), extent)
    places = x.places()
    order = np.argsort(places[d], kind="stable")
    starts = np.searchsorted(places[d][order], np.arange(size + 1))
    entries, slices = expanded(starts[wanted], np.diff(starts)[wanted])
    chosen = order[entries]
    found = places[:, chosen].copy()
    found[d] = slices
    elements = take(x._elements, uploaded(x._elements, chosen))
    return in_form(input, coalesced(build("coo", (uploaded(elements, found),), elements, extent, False)))


def expanded(starts: Any, counts: Any) -> tuple[Any, Any]:
    """Ranges one after another: (the positions in them, the number of the range of each)."""
    owner = np.repeat(np.arange(len(counts)), counts)
    before = np.cumsum(counts) - counts
    return np.arange(len(owner)) - before[owner] + starts[owner], owner


@rule()
def select(input: SparseTensor, dim: int, index: Any) -> Any:
    """One slice along `dim`, which disappears; dense where no sparse dim is left."""
    d = sparse_dim_of("select", input, dim)
    size, place = input._extent[d], as_int(index)
    if not -size <= place < size:
        raise OutOfRangeError(f"[select] index {place} is out of bounds for dimension {d} with size {size}; expected {-size} to {size - 1}")
    x = as_coo(input)
    extent = (*x._extent[:d], *x._extent[d + 1 :])
    if d >= x.sparse:
        return build("coo", x._index, T.select(x._elements, d - x.sparse + 1, place), extent, x._unique)
    places = x.places()
    chosen = np.nonzero(places[d] == place % size)[0]
    elements = take(x._elements, uploaded(x._elements, chosen))
    if x.sparse == 1:
        return T.sum(elements, 0)
    return build("coo", (uploaded(elements, np.delete(places[:, chosen], d, 0)),), elements, extent, x._unique)


@rule()
def getitem(input: SparseTensor, index: Any) -> Any:
    """Integers, one after another, `None`, `...` and whole slices."""
    found: Any = input
    parts = list(index) if isinstance(index, tuple) else [index]
    used = len([p for p in parts if p is not None and p is not Ellipsis])
    if Ellipsis in [p for p in parts if not is_tensor(p)]:
        at = next(k for k, p in enumerate(parts) if p is Ellipsis)
        parts[at : at + 1] = [slice(None)] * (len(input._extent) - used)
    d = 0
    for part in parts:
        if part is None:
            found = found.unsqueeze(d)
        elif isinstance(part, slice) and part == slice(None):
            d += 1
            continue
        elif is_tensor(part) and part._layout.ndim == 1 and part._layout.dtype.category == 1:
            found = found.index_select(d, part)
        elif hasattr(part, "__index__") and not isinstance(part, bool):
            found = found.select(d, operator.index(part))
            continue
        else:
            raise NotDense(input, "indexing with slices or masks")
        d += 1
    return found


@rule("cat", "concat", "concatenate")
def cat(tensors: Sequence[Any], dim: int = 0) -> SparseTensor:
    """Sparse tensors joined along a dim."""
    parts = [as_coo(require_kind("cat", x, ["coo", "csr", "csc"])) for x in tensors]
    first = parts[0]
    d = sparse_dim_of("cat", first, dim)
    for x in parts:
        if x.sparse != first.sparse or x._extent[:d] != first._extent[:d] or x._extent[d + 1 :] != first._extent[d + 1 :]:
            raise ShapeError(f"[cat] expected shapes that are equal but in dim {d}, got {list(first._extent)} and {list(x._extent)}")
    kind = T.result_type(first._elements, first._elements)
    for x in parts[1:]:
        kind = dt.promote(kind, x.dtype)
    starts = np.cumsum([0, *(x._extent[d] for x in parts)])
    extent = (*first._extent[:d], int(starts[-1]), *first._extent[d + 1 :])
    values_ = [cast(x._elements, kind) for x in parts]
    if d >= first.sparse:
        values_ = [_widened(v, d - first.sparse + 1, int(starts[k]), extent[d]) for k, v in enumerate(values_)]
        shifted = [x._index[0] for x in parts]
    else:
        shift = np.zeros((first.sparse, 1), np.int64)
        shift[d] = 1
        shifted = [x._index[0] + uploaded(x._elements, shift * starts[k]) for k, x in enumerate(parts)]  # type: ignore[operator]
    whole = build("coo", (T.cat(shifted, 1),), T.cat(values_), extent, len(parts) == 1 and first._unique)
    return coalesced(whole) if d == 0 and all(x._unique for x in parts) else whole


def _widened(x: Tensor, dim: int, start: int, size: int) -> Tensor:
    """Zeros with the tensor in them from `start` on along a dim."""
    shape = tuple(x._layout.shape)
    before, after = ((*shape[:dim], n, *shape[dim + 1 :]) for n in (start, size - start - shape[dim]))
    kind = x._layout.dtype
    return T.cat([prim("full", (0, kind), before), x, prim("full", (0, kind), after)], dim)


@rule()
def stack(tensors: Sequence[Any], dim: int = 0) -> SparseTensor:
    """Sparse tensors of one shape joined along a new dim."""
    return cat([unsqueeze(as_coo(x), dim) for x in tensors], dim)


@rule()
def sparse_mask(input: Any, mask: Any) -> SparseTensor:
    """The elements of a tensor at the places of a sparse one."""
    require_kind("sparse_mask", mask, ["coo", "csr", "csc"])
    _same_shape("sparse_mask", input, mask)
    if not isinstance(input, SparseTensor):
        return mask._with(_at(input, mask))
    x = coalesced(as_coo(input))
    known, wanted = read(x.keys(), "sparse_mask"), read(mask.keys(), "sparse_mask")
    places = np.minimum(np.searchsorted(known, wanted), max(len(known) - 1, 0))
    if not len(known):
        return mask._with(mask._elements * 0)
    there = uploaded(x._elements, known[places] == wanted)
    rest = (1,) * (x._elements._layout.ndim - 1)
    chosen = take(x._elements, uploaded(x._elements, places))
    return mask._with(T.where(T.reshape(there, (-1, *rest)) != 0, chosen, 0).to(x.dtype))


# --------------------------------------------------------------------------------------------------------- changes, and text


@rule("zero_")
def zero_(input: SparseTensor) -> SparseTensor:
    """All elements forgotten."""
    return input._become(_nothing(input._extent, input.sparse, input), "zero_")



def _nothing(extent: Sequence[int], sparse: int, like: SparseTensor) -> SparseTensor:
    elements = prim("full", (0, like.dtype), (0, *extent[sparse:]))
    return build("coo", (prim("full", (0, dt.int64), (sparse, 0)),), elements, tuple(extent))


@rule("zeros_like", "empty_like")
def zeros_like(input: SparseTensor, *, dtype: Any = None, layout: Any = None, **_: Any) -> Any:
    """A sparse tensor of the same shape without elements."""
    if layout is not None and layout == strided:
        return T.zeros(input._extent, dtype=dtype or input.dtype)
    made = in_form(input, _nothing(input._extent, input.sparse, input))
    return made if dtype is None else RULES["to"](made, dtype)  # type: ignore[no-any-return]


@rule("copy_")
def copy_(input: Any, other: Any, non_blocking: bool = False) -> Any:
    """The elements of another sparse tensor; a dense one is refused, as is writing a sparse one into a dense."""
    if not isinstance(input, SparseTensor) or not isinstance(other, SparseTensor):
        raise NotDense(input if isinstance(input, SparseTensor) else other, "copy_")
    return input._become(RULES["to"](other, input.dtype), "copy_")


RULES["stride"] = lambda input, dim=None: (0,) * len(input._extent) if dim is None else 0


@rule("repr")
def text(input: SparseTensor) -> str:
    """As PyTorch prints it."""

    def part(name: str, x: Tensor) -> str:
        prefix, empty = f"{name}=tensor(", "" if x._layout.numel else f", size={tuple(x._layout.shape)}"
        return f"{prefix}{contents(x, indent + len(prefix))}{empty})"

    prefix, plain = "tensor(", input._elements.detach()  # type: ignore[attr-defined]
    indent, dtype = len(prefix), plain._layout.dtype
    names = {"coo": ("indices",), "csr": ("crow_indices", "col_indices"), "csc": ("ccol_indices", "row_indices")}[input._kind]
    parts = [part(name, x) for name, x in (*zip(names, input._index, strict=True), ("values", plain))]
    suffixes = [f"size={tuple(input._extent)}", f"nnz={input.count}"]
    if dtype not in (dt.get_default_dtype(), dt.default_complex(), dt.int64, dt.bool_):
        suffixes.append(f"dtype={dtype!r}")
    suffixes.append(f"layout={input.layout}")
    if input._grad_fn is not None:
        suffixes.append(f"grad_fn=<{input._grad_fn.name()}>")
    elif input._requires_grad:
        suffixes.append("requires_grad=True")
    return closed(prefix + (",\n" + " " * indent).join(parts), suffixes, indent, force_newline=input._kind == "coo")
