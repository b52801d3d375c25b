"""Look-up tables and one-hot codes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calque import functional as T
from calque.autograd.assign import assign
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, DTypeError, OutOfRangeError, ShapeError
from calque.base.shapes import whole
from calque.base.text import shown
from calque.functional.common import cast, prim, require_dims, require_fractions, require_real
from calque.functional.declared import public
from calque.functional.later import loaded
from calque.nn.functional.checks import check_indices, values_of
from calque.nn.functional.rows import SELECT_ROWS, choose, constant, positions
from calque.nn.gradient import Saved, with_gradient
from calque.observe.source import user_line, warn_user
from calque.record.nodes import GradNode
from calque.record.recorder import Trace, local
from calque.replay.capture import abort
from calque.tensor import Tensor, function_node, read, record


def _bad_index(op: str, size: int) -> Callable[[tuple[int, ...], int], Exception]:
    def error(where: tuple[int, ...], value: int) -> Exception:
        return OutOfRangeError(
            f"[{op}] index out of range: expected indices in 0..{size - 1} (a table of {size} rows), got {value} at "
            f"position {where}; "
            "enlarge num_embeddings or map unknown tokens to one row"
        )

    return error


def _table(op: str, input: Tensor, weight: Tensor, padding_idx: int | None) -> tuple[int, int | None]:
    if input._layout.dtype not in (dt.int32, dt.int64):
        raise DTypeError(f"[{op}] expected integer indices of int64 or int32, got dtype {input._layout.dtype!r}; convert with .long()")
    if weight._layout.ndim != 2:
        raise ShapeError(f"[{op}] expected a table (rows, width): 'weight' must be 2-D, got shape {tuple(weight._layout.shape)}")
    rows = weight._layout.shape[0]
    if padding_idx is not None:
        if not -rows <= padding_idx < rows:
            raise OutOfRangeError(f"[{op}] Padding_idx must be within num_embeddings: expected {-rows}..{rows - 1}, got {padding_idx}")
        padding_idx %= rows
    return rows, padding_idx


def _renormalise(weight: Tensor, index: Tensor, max_norm: float, norm_type: float) -> None:
    """Scale the rows in use down to `max_norm`, in place and without history."""
    state = local.state
    before, state.grad = state.grad, False
    try:
        rows = weight._layout.shape[0]
        kind = weight._layout.dtype
        flat = T.reshape(index, (-1,))
        used = prim("index_put", constant(0.0, kind, (rows,)), flat, constant(1.0, kind, tuple(flat._layout.shape)), 0)
        length = T.norm(weight.detach(), norm_type, 1)
        scale = choose(T.gt(length * used, float(max_norm)), float(max_norm) / (length + 1e-7), 1.0, kind)
        assign(weight.detach(), weight.detach() * T.unsqueeze(scale, 1))
    finally:
        state.grad = before


def _bags(offsets: Tensor | None, count: int, include_last_offset: bool) -> tuple[Tensor, int]:
    """The bag of each of `count` indices, by counting which bags have begun, and how many bags there are. Behind a last offset is no bag."""
    if offsets is None:
        raise ArgumentError("[embedding_bag] offsets has to be a 1D Tensor but got None for 1-d input")
    if offsets._layout.dtype.category != 1:
        raise DTypeError(f"[embedding_bag] expected offsets as integers, got {offsets._layout.dtype!r}; convert with .long()")
    if offsets._layout.ndim != 1:
        raise ShapeError(f"[embedding_bag] offsets has to be a 1D Tensor, got shape {tuple(offsets._layout.shape)}")
    found = values_of(offsets)
    if found is not None and found.size and (found[0] != 0 or (found[1:] < found[:-1]).any()):
        raise ArgumentError(f"[embedding_bag] offsets[0] has to be 0 and none smaller than the one before, got {shown(found.tolist())}")

    def error(where: tuple[int, ...], value: int) -> Exception:
        return OutOfRangeError(f"[embedding_bag] offsets can not be greater than input's length {count}, got {value} at position {where}")

    check_indices(offsets, count + 1, None, error)
    begun = prim("index_add", constant(0, dt.int64, (count + 1,)), cast(offsets, dt.int64), constant(1, dt.int64, tuple(offsets._layout.shape)), 0)
    bags = offsets._layout.shape[0]
    return T.cumsum(begun[:count], 0) - 1, max(bags - 1, 0) if include_last_offset else bags


def _over_bags(rows: Tensor, kept: Tensor, bag: Tensor, bags: int, mode: str) -> Tensor:
    """Sum, mean or maximum of the rows of each bag: (n, width) rows of which (n, 1) are kept, their bags -> (bags, width)."""
    kind, (count, width) = rows._layout.dtype, rows._layout.shape
    room = bags + 1  # one for what lies behind a last offset
    if mode == "max":  # the first of equal ones has the gradient
        wide = T.expand(T.unsqueeze(bag, 1), (count, width))
        values = choose(kept, rows.detach(), float("-inf"), kind)
        best = T.scatter_reduce(constant(float("-inf"), kind, (room, width)), 0, wide, values, "amax")
        at = choose(T.logical_and(T.ge(values, T.gather(best, 0, wide)), kept), T.unsqueeze(positions((count,), dt.int64), 1), count, dt.int64)
        first = T.scatter_reduce(constant(count, dt.int64, (room, width)), 0, wide, at, "amin")[:bags]
        padded = T.cat([rows, T.zeros((1, width), dtype=kind)], 0)
        return T.gather(padded, 0, first)
    summed = T.index_add(constant(0.0, kind, (room, width)), 0, bag, choose(kept, rows, 0.0, kind))[:bags]
    if mode == "sum":
        return summed
    return summed / T.clamp(T.index_add(constant(0.0, kind, (room, 1)), 0, bag, cast(kept, kind))[:bags], min=1.0)


@public(of="nn.functional", steps=True)
def embedding(
    input: Tensor, weight: Tensor, padding_idx: int | None = None, max_norm: float | None = None, norm_type: float = 2.0,
    scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Tensor:  # fmt: skip
    """Rows of a table: (*) indices, (rows, width) -> (*, width). Row `padding_idx` gets no gradient. With `sparse` the gradient of a leaf is a sparse
    tensor that names the rows in use, for `SparseAdam`, `SGD` and `Adagrad`.

    >>> import calque
    >>> table = calque.tensor([[0.0, 0.0], [1.0, 2.0]])
    >>> calque.nn.functional.embedding(calque.tensor([1, 0]), table)
    tensor([[1., 2.],
            [0., 0.]])
    """
    rows, skip = _table("embedding", input, weight, padding_idx)
    check_indices(input, rows, None, _bad_index("embedding", rows))
    index = cast(input, dt.int64)
    if max_norm is not None:
        _renormalise(weight, index, max_norm, norm_type)
    state = local.state
    if sparse and weight._requires_grad and state.grad and (state.plain or state.trace.__class__ is Trace):
        if scale_grad_by_freq:
            raise ArgumentError(
                "[embedding] scale_grad_by_freq not supported with sparse gradients: expected one of scale_grad_by_freq and sparse; leave one out"
            )
        return _named_rows(weight, index, skip)
    if skip is None and not scale_grad_by_freq:
        return record(SELECT_ROWS, (weight, index), (0,))

    def forward(w: Tensor) -> tuple[Any, ...]:
        chosen = record(SELECT_ROWS, (w, index), (0,))
        return (_for_export(w, index, chosen, skip, scale_grad_by_freq) if state.trace.exports else chosen,)

    def backward(saved: Saved, g: Tensor) -> tuple[Any, ...]:
        kind = g._layout.dtype
        if skip is not None:
            g = choose(T.unsqueeze(T.eq(index, skip), -1), 0.0, g, kind)
        if scale_grad_by_freq:
            ones = constant(1.0, kind, tuple(index._layout.shape))
            counts = prim("index_add", constant(0.0, kind, (rows,)), index, ones, 0)
            g = g / T.unsqueeze(record(SELECT_ROWS, (counts, index), (0,)), -1)
        return (prim("index_add", constant(0.0, kind, tuple(weight._layout.shape)), index, g, 0),)

    return with_gradient("EmbeddingBackward0", forward, backward, (weight,))  # type: ignore[no-any-return]


def _for_export(weight: Tensor, index: Tensor, chosen: Tensor, skip: int | None, by_frequency: bool) -> Tensor:
    """The rows as operations whose own gradients are those of `embedding`: a program has no others. Where there are none, training it is refused."""
    trace: Any = local.state.trace
    if by_frequency:
        trace.by_formula((weight,), chosen, None, True)
    if skip is None:
        return chosen
    return choose(T.unsqueeze(T.eq(index, skip), -1), prim("still", chosen), chosen, chosen._layout.dtype)


def _named_rows(weight: Tensor, index: Tensor, skip: int | None) -> Tensor:
    """Rows of a table whose gradient is a sparse tensor, uncoalesced as PyTorch's; a dense one where the table is no leaf."""
    abort("makes a sparse gradient")
    extent = tuple(weight._layout.shape)
    state = local.state
    state.grad = False
    try:
        out = record(SELECT_ROWS, (weight, index), (0,))
    finally:
        state.grad = True

    def rule(node: GradNode, grads: Any) -> tuple[Any, ...]:
        abort("makes a sparse gradient")
        rows, values = T.reshape(node.saved[0], (-1,)), T.reshape(grads[0], (-1, extent[1]))
        if skip is not None:
            kept = T.nonzero(T.ne(rows, skip))[:, 0]
            rows, values = T.index_select(rows, 0, kept), T.index_select(values, 0, kept)
        parts = loaded("calque.functional.sparse.tensor")
        made = parts.build("coo", (T.unsqueeze(rows, 0),), values, extent, False)
        return (made if isinstance(node.next[0], Tensor) else parts.dense(made),)

    node = function_node("EmbeddingBackward0", (weight,), (out._layout,), rule)
    node.where, node.saved, node.versions = user_line(), {0: index}, [index._storage.version]
    if state.trace.transforms:
        state.trace.saving(node)
    out._grad_fn, out._requires_grad = node, True
    return out


def _check_mode(mode: str, sparse: bool, weighted: bool) -> None:
    if mode not in ("sum", "mean", "max"):
        raise ArgumentError(f"[embedding_bag] mode has to be one of sum, mean or max, got {shown(mode)}")
    if sparse and mode == "max":
        raise ArgumentError("[embedding_bag] max mode does not support sparse weights: expected mode='sum' or 'mean'; use sparse=False")
    if weighted and mode != "sum":
        raise ArgumentError(f"[embedding_bag] per_sample_weights is only supported with mode='sum', got mode={shown(mode)}")


@public(of="nn.functional")
def embedding_bag(
    input: Tensor, weight: Tensor, offsets: Tensor | None = None, max_norm: float | None = None, norm_type: float = 2.0,
    scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False, per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False, padding_idx: int | None = None,
) -> Tensor:  # fmt: skip
    """Sum, mean or maximum of the rows of each bag: (bags, n) indices, or a flat list with `offsets` -> (bags, width)."""
    _check_mode(mode, sparse, per_sample_weights is not None)
    if weight._layout.dtype is dt.int64 and input._layout.dtype.category == 2:
        warn_user("[embedding_bag] expected (indices, weight), got them in the order of old programs: Argument order of nn.functional.embedding_bag "
                  "was changed; exchange them")  # fmt: skip
        input, weight = weight, input
    require_dims("embedding_bag", weight, 2, 2, "weight")
    require_real("embedding_bag", weight)
    require_fractions("embedding_bag", weight)
    if input._layout.ndim not in (1, 2):
        raise ShapeError(f"[embedding_bag] expected an input with 1 or 2 dims, got shape {tuple(input._layout.shape)}; reshape it")
    if scale_grad_by_freq and mode == "max":
        raise ArgumentError("[embedding_bag] max mode does not support scaling the gradient by the frequency: expected mode='sum' or 'mean'")
    rows = embedding(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
    if per_sample_weights is not None:
        if per_sample_weights._layout.shape != input._layout.shape:
            raise ShapeError(f"[embedding_bag] expected per_sample_weights of the shape of input {tuple(input._layout.shape)}, got "
                             f"{tuple(per_sample_weights._layout.shape)}; there is one for each index")  # fmt: skip
        if per_sample_weights._layout.dtype is not weight._layout.dtype:
            raise DTypeError(f"[embedding_bag] expected per_sample_weights to have the same type as weight, {weight._layout.dtype!r}, got "
                             f"{per_sample_weights._layout.dtype!r}; convert them")  # fmt: skip
        rows = rows * T.unsqueeze(per_sample_weights, -1)
    if input._layout.ndim == 1:
        bag, bags = _bags(offsets, input._layout.shape[0], include_last_offset)
        wanted = T.ones_like(input, dtype=dt.bool_) if padding_idx is None else T.ne(input, padding_idx % weight._layout.shape[0])
        return _over_bags(rows, T.unsqueeze(wanted, 1), bag, bags, mode)
    if offsets is not None:
        raise ArgumentError("[embedding_bag] if input is 2D, then offsets has to be None, as its rows are bags of one length; leave it out")
    if padding_idx is None:
        return T.max(rows, 1).values if mode == "max" else T.sum(rows, 1) if mode == "sum" else T.mean(rows, 1)
    kept = T.unsqueeze(T.ne(input, padding_idx % weight._layout.shape[0]), -1)
    kind = rows._layout.dtype
    if mode == "max":
        best = T.max(choose(kept, rows, float("-inf"), kind), 1).values  # the first of equal ones has the gradient
        return choose(T.any(kept, 1), best, 0.0, kind)  # an empty bag
    summed = T.sum(choose(kept, rows, 0.0, kind), 1)
    return summed if mode == "sum" else summed / T.clamp(T.sum(cast(kept, kind), 1), min=1.0)


@public(of="nn.functional", steps=True)
def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """int64 codes with a single 1: (*) -> (*, num_classes). With -1 the largest value decides (read at once).

    >>> import calque
    >>> calque.nn.functional.one_hot(calque.tensor([0, 2]))
    tensor([[1, 0, 0],
            [0, 0, 1]])
    """
    if tensor._layout.dtype not in (dt.int64, dt.int32):
        raise DTypeError(
            f"[one_hot] one_hot is only applicable to index tensor: expected int64 or int32, got {tensor._layout.dtype!r}; convert with .long()"
        )
    num_classes = whole("one_hot", "num_classes", num_classes)
    if num_classes == -1:
        found = values_of(tensor)
        found = read(tensor, "one_hot") if found is None else found
        if found.size == 0:
            raise ArgumentError("[one_hot] Can not infer total number of classes from empty tensor; pass num_classes")
        num_classes = int(found.max()) + 1
    if num_classes < 1:
        raise ArgumentError(f"[one_hot] num_classes should be positive, got {num_classes}")

    def error(where: tuple[int, ...], value: int) -> Exception:
        return OutOfRangeError(
            f"[one_hot] Class values must be smaller than num_classes and non-negative: expected 0..{num_classes - 1}, "
            f"got {value} at position {where}"
        )

    check_indices(tensor, num_classes, None, error)
    return cast(T.eq(T.unsqueeze(tensor, -1), positions((num_classes,), tensor._layout.dtype)), dt.int64)
