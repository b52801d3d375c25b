"""How primitives run on many operands at once: what stands in `OpDef.batch`, and what follows from the kind where nothing stands there.

A rule is `rule(F, op, operands, mapped, attrs, size)`. `operands` are Tensors, or `(number, dtype)` pairs; those that are `mapped` have a first dim
of `size` that the operation is to be done for, one slice after the other; the others are the same for every slice. `attrs` are those of
one slice. The result has the slices in its first dim. `F` is the functional namespace, as in `Vjp`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from calque.base.dtypes import int64
from calque.base.shapes import Shape
from calque.ops.opdef import Attrs, BatchRule, OpDef

Operands = Sequence[Any]
Mapped = Sequence[bool]


def _shape(x: Any) -> Shape:
    return () if x.__class__ is tuple else tuple(x._layout.shape)


def slice_shape(x: Any, mapped: bool) -> Shape:
    """Shape of an operand as one slice sees it."""
    return _shape(x)[1:] if mapped else _shape(x)


def spread(F: Any, x: Any, mapped: bool, size: int) -> Any:
    """An operand with the slices in its first dim, also if all are the same."""
    if mapped:
        return x
    shape = _shape(x)
    if x.__class__ is tuple:
        x = F.prim("full", x, ())
    return F.expand(x, (size, *shape))


def _spread_all(F: Any, operands: Operands, mapped: Mapped, size: int) -> list[Any]:
    return [spread(F, x, m, size) for x, m in zip(operands, mapped, strict=True)]


def _aligned(F: Any, operands: Operands, mapped: Mapped) -> list[Any]:
    """Operands whose dims broadcast from the right, with the slices in front of all of them."""
    rank = max(len(slice_shape(x, m)) for x, m in zip(operands, mapped, strict=True))
    found = []
    for x, m in zip(operands, mapped, strict=True):
        shape = slice_shape(x, m)
        found.append(F.reshape(x, (_shape(x)[0], *(1,) * (rank - len(shape)), *shape)) if m and len(shape) < rank else x)
    return found


def per_slice(F: Any, op: OpDef, operands: Operands, mapped: Mapped, attrs: Attrs, size: int) -> Any:
    """Any primitive: one node per slice, joined. What has no better rule is right, and takes a node for each slice."""
    rows = [
        F.prim(op.name, *[F.select(x, 0, k) if m else x for x, m in zip(operands, mapped, strict=True)], *attrs) for k in range(size)
    ]
    if rows:
        return F.stack(rows)
    shapes = [slice_shape(x, m) for x, m in zip(operands, mapped, strict=True)]
    dtypes = [x[1] if x.__class__ is tuple else x._layout.dtype for x in operands]
    return F.zeros((0, *op.shape(shapes, attrs)), dtype=op.dtype(dtypes, attrs))


def elementwise(F: Any, op: OpDef, operands: Operands, mapped: Mapped, attrs: Attrs, size: int) -> Any:
    """Functions of one element broadcast."""
    return F.prim(op.name, *_aligned(F, operands, mapped), *attrs)


def reduction(F: Any, op: OpDef, operands: Operands, mapped: Mapped, attrs: Attrs, size: int) -> Any:
    """Reductions, whose attributes are `dims, keepdim`: one dim further on."""
    return F.prim(op.name, operands[0], tuple(d + 1 for d in attrs[0]), *attrs[1:])


def along(F: Any, op: OpDef, operands: Operands, mapped: Mapped, attrs: Attrs, size: int) -> Any:
    """Primitives of one operand whose first attribute is the dim that they work along, the only one of a 0-d slice included."""
    x = operands[0]
    if x._layout.ndim == 1:
        return F.reshape(F.prim(op.name, F.reshape(x, (size, 1)), 1, *attrs[1:]), (size,))
    return F.prim(op.name, x, attrs[0] + 1, *attrs[1:])


def leading(F: Any, op: OpDef, operands: Operands, mapped: Mapped, attrs: Attrs, size: int) -> Any:
    """Primitives that treat all dims before their last ones alike, with broadcasting: the slices are one more of those."""
    return F.prim(op.name, *_aligned(F, operands, mapped), *attrs)


def fill(F: Any, op: OpDef, operands: Operands, mapped: Mapped, attrs: Attrs, size: int) -> Any:
    """`full` of one number per slice."""
    shape = tuple(attrs[0])
    return F.expand(F.reshape(operands[0], (size, *(1,) * len(shape))), (size, *shape))


# ------------------------------------------------------------------------------------------------------------------- movement


def windowed(F: Any, op: OpDef, operands: Operands, mapped: Mapped, attrs: Attrs, size: int) -> Any:
    """Views: the same window of every slice. A window that is elsewhere in each of them has no stride."""
    if any(mapped[1:]):
        return per_slice(F, op, operands, mapped, attrs, size)
    shape, strides, *offset = attrs
    step = prod(slice_shape(operands[0], True))
    return F.prim(op.name, *operands, (size, *shape), (step, *strides), *offset)


def written(F: Any, op: OpDef, operands: Operands, mapped: Mapped, attrs: Attrs, size: int) -> Any:
    """Writes through a window."""
    if any(mapped[2:]):
        return per_slice(F, op, operands, mapped, attrs, size)
    shape, strides, *offset = attrs
    step = prod(slice_shape(operands[0], mapped[0]))
    whole = _spread_all(F, operands[:2], mapped[:2], size)
    return F.prim(op.name, *whole, *operands[2:], (size, *shape), (step, *strides), *offset)


def reinterpreted(F: Any, op: OpDef, operands: Operands, mapped: Mapped, attrs: Attrs, size: int) -> Any:
    """`view_as` and `update_as`, whose strides count elements of another type."""
    shape, strides, offset, *dtype = attrs
    whole = _spread_all(F, operands, mapped, size)
    held, item = prod(slice_shape(operands[0], mapped[0])) * operands[0]._layout.dtype.itemsize, (dtype or [operands[-1]._layout.dtype])[0].itemsize
    if held % item:
        return per_slice(F, op, operands, mapped, attrs, size)
    return F.prim(op.name, *whole, (size, *shape), (held // item, *strides), offset, *dtype)


def joined(F: Any, op: OpDef, operands: Operands, mapped: Mapped, attrs: Attrs, size: int) -> Any:
    """`cat`."""
    return F.prim(op.name, *_spread_all(F, operands, mapped, size), attrs[0] + 1)


# --------------------------------------------------------------------------------------------------------------- contractions


def product(F: Any, op: OpDef, operands: Operands, mapped: Mapped, attrs: Attrs, size: int) -> Any:
    """`matmul` and `int8_matmul`: the slices are a batch dim; rows of many slices times one matrix are the rows of one product, and products of a
    column and a row of floats are no contraction at all, but fuse with what reads them."""
    (a, b), (first, second) = operands, mapped
    if first and second and _shape(a)[-1] == 1 and op.name == "matmul":
        return F.prim("mul", *_aligned(F, operands, mapped))
    if first and not second and b._layout.ndim == 2:
        shape = _shape(a)
        return F.reshape(F.prim(op.name, F.reshape(a, (prod(shape[:-1]), shape[-1])), b), (*shape[:-1], _shape(b)[-1]))
    if second and not first and a._layout.ndim == 2 and b._layout.ndim == 3 and _shape(b)[-1] == 1:  # one matrix times many vectors
        columns = F.reshape(b, _shape(b)[:2])
        return F.unsqueeze(F.prim(op.name, columns, F.transpose(a, 0, 1)), -1)
    return F.prim(op.name, *_aligned(F, operands, mapped))


def added_product(F: Any, op: OpDef, operands: Operands, mapped: Mapped, attrs: Attrs, size: int) -> Any:
    """`addmm`: the slices are a batch dim; rows of many slices times one matrix, plus one row, are the rows of one product."""
    a, b, added = operands
    if mapped[0] and not any(mapped[1:]) and b._layout.ndim == 2 and prod(_shape(added)[:-1]) == 1:
        shape = _shape(a)
        rows = F.prim(op.name, F.reshape(a, (prod(shape[:-1]), shape[-1])), b, F.reshape(added, _shape(added)[-1:]), *attrs)
        return F.reshape(rows, (*shape[:-1], _shape(b)[-1]))
    if not any(mapped[:2]):  # the result has the batch of the product
        a, mapped = spread(F, a, False, size), (True, *mapped[1:])
    return F.prim(op.name, *_aligned(F, (a, b, added), mapped), *attrs)


def _merged(F: Any, x: Any) -> Any:
    """(B, N, ...) as (B N, ...)."""
    shape = _shape(x)
    return F.reshape(x, (shape[0] * shape[1], *shape[2:]))


def _split(F: Any, x: Any, size: int) -> Any:
    """(B N, ...) as (B, N, ...)."""
    shape = _shape(x)
    return F.reshape(x, (size, shape[0] // max(size, 1), *shape[1:]))


def _channels(F: Any, x: Any) -> Any:
    """(B, N, C, ...) as (N, B C, ...)."""
    return F.flatten(F.movedim(x, 0, 1), 1, 2)


def _apart(F: Any, x: Any, size: int) -> Any:
    """(N, B C, ...) as (B, N, C, ...)."""
    shape = _shape(x)
    return F.movedim(F.reshape(x, (shape[0], size, shape[1] // max(size, 1), *shape[2:])), 1, 0)


def convolution(F: Any, op: OpDef, operands: Operands, mapped: Mapped, attrs: Attrs, size: int) -> Any:
    """`conv2d` and `conv2d_input_grad`: images of all slices are one batch; slices with weights of their own are groups."""
    (x, w), (images, weights) = operands, mapped
    if not size:
        return per_slice(F, op, operands, mapped, attrs, size)
    *geometry, groups = attrs
    if not weights:
        return _split(F, F.prim(op.name, _merged(F, x), w, *attrs), size)
    if not images and groups == 1 and op.name == "conv2d":
        return _apart(F, F.prim(op.name, x, _merged(F, w), *attrs), size)
    x = _channels(F, spread(F, x, images, size))
    return _apart(F, F.prim(op.name, x, _merged(F, w), *geometry, size * groups), size)


def biased_convolution(F: Any, op: OpDef, operands: Operands, mapped: Mapped, attrs: Attrs, size: int) -> Any:
    """`biased_conv2d` and `biased_conv2d_input_grad`: images of all slices are one batch."""
    x, w, bias = operands
    if any(mapped[1:]) or not size:
        return per_slice(F, op, operands, mapped, attrs, size)
    return _split(F, F.prim(op.name, _merged(F, x), w, bias, *attrs), size)


def weight_gradient(F: Any, op: OpDef, operands: Operands, mapped: Mapped, attrs: Attrs, size: int) -> Any:
    """`conv2d_weight_grad`: slices are groups of channels."""
    (x, g), (images, gradients) = operands, mapped
    if not size:
        return per_slice(F, op, operands, mapped, attrs, size)
    *geometry, groups = attrs
    if groups == 1 and not images:
        return _split(F, F.prim(op.name, x, _channels(F, g), *attrs), size)
    if groups == 1 and not gradients:
        return _apart(F, F.prim(op.name, _channels(F, x), g, *attrs), size)
    x, g = (_channels(F, t) for t in _spread_all(F, operands, mapped, size))
    return _split(F, F.prim(op.name, x, g, *geometry, size * groups), size)


def attention_gradient(F: Any, op: OpDef, operands: Operands, mapped: Mapped, attrs: Attrs, size: int) -> Any:
    """`attention_grad`, whose gradient and row statistics have every batch dim of the others."""
    q, k, v, g, lse, delta, *mask = operands
    of_q, of_k, of_v, *rows, of_mask = mapped if mask else (*mapped, False)
    rank = len(slice_shape(g, rows[0]))

    def raised(x: Any, m: bool) -> Any:
        shape = slice_shape(x, m)
        return F.reshape(x, (_shape(x)[0], *(1,) * (rank - len(shape)), *shape)) if m and len(shape) < rank else x

    if not (of_q or of_k or of_v or of_mask):
        q, of_q = spread(F, q, False, size), True
    given = [spread(F, x, m, size) for x, m in zip((g, lse, delta), rows, strict=True)]
    return F.prim(op.name, raised(q, of_q), raised(k, of_k), raised(v, of_v), *given, *[raised(m, of_mask) for m in mask], *attrs)


def recurrence(letters: str, results: Callable[[Attrs], str]) -> BatchRule:
    """Recurrent layers and their gradients: the slices are rows of the batch, unless they have weights of their own. `letters`: for each operand
    the dim that is the batch, or `-` for a weight."""

    def rule(F: Any, op: OpDef, operands: Operands, mapped: Mapped, attrs: Attrs, size: int) -> Any:
        if not size or any(m and letter == "-" for m, letter in zip(mapped, letters, strict=True)):
            return per_slice(F, op, operands, mapped, attrs, size)
        flat = []
        for x, m, letter in zip(operands, mapped, letters, strict=True):
            if letter != "-":
                d = int(letter)
                x = F.flatten(F.movedim(spread(F, x, m, size), 0, d), d, d + 1)
            flat.append(x)
        found, d = F.prim(op.name, *flat, *attrs), int(results(attrs))
        shape = _shape(found)
        return F.movedim(F.reshape(found, (*shape[:d], size, shape[d] // size, *shape[d + 1 :])), d, 0)

    return rule


# --------------------------------------------------------------------------------------------------------------------- indices


def _rows(F: Any, x: Any, dim: int) -> Any:
    """(B, ...) with `dim` of its slices behind the slices, and both as one: (B n, ...)."""
    return _merged(F, F.movedim(x, dim + 1, 1))


def _own_rows(F: Any, index: Any, extent: int, size: int) -> Any:
    """An index into `extent` positions of each slice, as one into all of them."""
    first = F.prim("mul", F.prim("iota", (size, *(1,) * (index._layout.ndim - 1)), int64), (extent, int64))
    return F.prim("add", index, first)


def picked(F: Any, op: OpDef, operands: Operands, mapped: Mapped, attrs: Attrs, size: int) -> Any:
    """`index_select`."""
    (x, index), (of_x, of_index), dim = operands, mapped, attrs[0]
    if not of_index:
        return F.prim(op.name, x, index, dim + 1)
    if not of_x:
        return F.movedim(F.prim(op.name, x, index, dim), dim, 0)
    extent, rank = _shape(x)[dim + 1], index._layout.ndim
    if not extent or not size:
        return per_slice(F, op, operands, mapped, attrs, size)
    found = F.prim(op.name, _rows(F, x, dim), _own_rows(F, index, extent, size), 0)
    return F.movedim(found, tuple(range(1, rank)), tuple(range(dim + 1, dim + rank)))


def put(F: Any, op: OpDef, operands: Operands, mapped: Mapped, attrs: Attrs, size: int) -> Any:
    """`index_put` and `index_add`."""
    (base, index, source), dim = operands, attrs[0]
    base, source = spread(F, base, mapped[0], size), spread(F, source, mapped[2], size)
    if not mapped[1]:
        return F.prim(op.name, base, index, source, dim + 1)
    extent, rank = _shape(base)[dim + 1], index._layout.ndim
    if not extent or not size:
        return per_slice(F, op, (base, index, source), (True, True, True), attrs, size)
    source = F.movedim(source, tuple(range(dim + 1, dim + rank)), tuple(range(1, rank)))
    rows = F.prim(op.name, _rows(F, base, dim), _own_rows(F, index, extent, size), source, 0)
    return F.movedim(_split(F, rows, size), 1, dim + 1)


def aligned_index(F: Any, op: OpDef, operands: Operands, mapped: Mapped, attrs: Attrs, size: int) -> Any:
    """`gather`, `scatter` and `scatter_add`: operands of one rank, position by position."""
    return F.prim(op.name, *_spread_all(F, operands, mapped, size), attrs[0] + 1)


_OF_KIND: dict[str, BatchRule] = {"elementwise": elementwise, "reduce": reduction}


def batch_rule(op: OpDef) -> BatchRule:
    """The rule of a primitive: its own, else what follows from its kind, else `per_slice`."""
    return op.batch or _OF_KIND.get(op.kind, per_slice)
