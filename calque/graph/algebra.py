"""Simplification rules. Every rule keeps the bits of floating results (NaN payloads excepted); its identity stands beside it."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from calque.base.cache import memoised
from calque.base.dtypes import DType, bool_
from calque.base.shapes import Shape, contiguous_strides, is_contiguous
from calque.ir.index import NeedsSplit, canonical, flatten, unflatten
from calque.ir.program import Node
from calque.ir.rewrite import Graph, Rule, Rules
from calque.ops import opdef

GATHERED_THROUGH = 6  # elementwise operations in a row


def constant_of(g: Graph, position: int) -> Any:
    """The number that every element of a value equals, or None."""
    node = g.nodes[position]
    while node.op.role in ("fill", "view"):
        node = g.nodes[node.inputs[0]]
    return node.attrs[0] if node.op.role == "constant" else None


def view_of(g: Graph, source: int, shape: Shape, strides: Shape, offset: int) -> int:
    """A view node (simplified)."""
    return g.add(opdef.get("view"), (source,), (tuple(shape), tuple(strides), offset), tuple(shape), g.nodes[source].dtype)


def reshaped(g: Graph, source: int, shape: Shape) -> int:
    """The same elements under another shape."""
    return source if g.nodes[source].shape == shape else view_of(g, source, shape, contiguous_strides(shape), 0)


def holds(narrow: DType, wide: DType) -> bool:
    """Whether every value of `narrow` is a value of `wide`."""
    if narrow is wide:
        return True
    if narrow.category == 0:
        return True
    if wide.category == 2:
        if narrow.category == 2:
            return {narrow.name, wide.name} != {"float16", "bfloat16"} and wide.bits >= narrow.bits
        return wide.name in ("float32", "float64", "bfloat16") and narrow.digits <= wide.digits
    if narrow.category == 1 and wide.category == 1:
        return (wide.bits > narrow.bits and (wide.is_signed or not narrow.is_signed)) or False
    return False


# ------------------------------------------------------------------------------------------------------------------ elementwise


def _same_shape(g: Graph, n: Node, kept: int) -> int | None:
    return n.inputs[kept] if g.nodes[n.inputs[kept]].shape == n.shape else None


def _times_one(g: Graph, n: Node) -> int | None:
    for k in (0, 1):
        value = constant_of(g, n.inputs[1 - k])
        if value is not None and value == 1:
            return _same_shape(g, n, k)
    return None


def _divide_by_one(g: Graph, n: Node) -> int | None:
    value = constant_of(g, n.inputs[1])
    return _same_shape(g, n, 0) if value is not None and value == 1 else None


def _plus_zero(g: Graph, n: Node) -> int | None:
    for k in (0, 1):
        value = constant_of(g, n.inputs[1 - k])
        if value is None or value != 0:
            continue
        if n.dtype.category != 2 or str(float(value))[0] == "-":
            return _same_shape(g, n, k)
    return None


def _minus_zero(g: Graph, n: Node) -> int | None:
    value = constant_of(g, n.inputs[1])
    if value is None or value != 0 or (n.dtype.category == 2 and str(float(value))[0] == "-"):
        return None
    return _same_shape(g, n, 0)


def _twice(g: Graph, n: Node) -> int | None:
    """Only where x is of the type of the result: `logical_not` of a number is a bool."""
    inner = g.nodes[n.inputs[0]]
    return inner.inputs[0] if inner.op is n.op and g.nodes[inner.inputs[0]].dtype is n.dtype else None


def _idempotent(g: Graph, n: Node) -> int | None:
    return n.inputs[0] if g.nodes[n.inputs[0]].op is n.op else None


def _abs_of_neg(g: Graph, n: Node) -> int | None:
    """Not of unsigned integers, where -x is a number of its own."""
    inner = g.nodes[n.inputs[0]]
    return g.add(n.op, inner.inputs, (), n.shape, n.dtype) if inner.op.name == "neg" and n.dtype.is_signed else None


def _copy(g: Graph, n: Node) -> int | None:
    return n.inputs[0]


def _equal_branches(g: Graph, n: Node) -> int | None:
    return _same_shape(g, n, 1) if n.inputs[1] == n.inputs[2] else None


def _cast(g: Graph, n: Node) -> int | None:
    source = g.nodes[n.inputs[0]]
    if source.dtype is n.dtype:
        return n.inputs[0]
    if source.op.name == "cast":
        first = g.nodes[source.inputs[0]]
        if holds(first.dtype, source.dtype):
            return source.inputs[0] if first.dtype is n.dtype else g.add(n.op, source.inputs, n.attrs, n.shape, n.dtype)
    return None


def _fold(g: Graph, n: Node) -> int | None:
    if n.shape or not n.inputs:
        return None
    operands = [g.nodes[i] for i in n.inputs]
    if any(o.op.role != "constant" for o in operands):
        return None
    arrays = [np.asarray(_exact(o)).astype(o.dtype.np).astype(o.dtype.compute.np) for o in operands]
    with np.errstate(all="ignore"):
        value = np.asarray(n.op.ref(*arrays, *n.attrs)).astype(n.dtype.np)
    return g.add(opdef.get("constant"), (), (value.astype(n.dtype.compute.np).item(), n.dtype), (), n.dtype)


def _exact(o: Node) -> Any:
    return int(o.attrs[0]) if o.dtype.category == 1 else o.attrs[0]


# ------------------------------------------------------------------------------------------------------------------ movement


@memoised("views of views", 600, 1 / 128)
def compose(outer: tuple[Shape, Shape, int], inner: tuple[Shape, Shape, int]) -> tuple[Shape, int] | None:
    """(strides, offset) of the view `outer` of the dense value of the view `inner`, directly over inner's base; None if no
    strides do it."""
    shape, strides, offset = outer
    if 0 in shape:
        return None
    if is_contiguous(inner[0], inner[1]):
        return strides, offset + inner[2]
    extents, coords = canonical(shape)
    try:
        at = unflatten(flatten(coords, strides, offset), tuple(extents), inner[0], contiguous_strides(inner[0]))
    except NeedsSplit:
        return None
    if at is None:
        return None
    start, terms = flatten(at, inner[1], inner[2])
    steps = dict(terms)
    found = []
    for k, e in enumerate(shape):
        found.append(0 if e == 1 else steps.get(coords[k][1][0][0], 0))
    return tuple(found), start


def _view(g: Graph, n: Node) -> int | None:
    source = g.nodes[n.inputs[0]]
    shape, strides, offset = n.attrs
    if offset == 0 and shape == source.shape and is_contiguous(shape, strides):  # the offset first: where it is not, nothing is asked about sizes
        return n.inputs[0]
    if source.op.role == "view":
        found = compose((shape, strides, offset), source.attrs)
        if found is not None:
            return view_of(g, source.inputs[0], shape, *found)
    return None


def _view_of_full(g: Graph, n: Node) -> int | None:
    source = g.nodes[n.inputs[0]]
    if source.op.role != "fill":
        return None
    return g.add(source.op, source.inputs, (n.shape,), n.shape, n.dtype) if n.shape else source.inputs[0]


def _full_of_nothing(g: Graph, n: Node) -> int | None:
    return n.inputs[0] if n.shape == () else None


def _read_back(g: Graph, n: Node) -> int | None:
    source = g.nodes[n.inputs[0]]
    return source.inputs[1] if source.op.role == "update" and source.attrs == n.attrs else None


def _whole_update(g: Graph, n: Node) -> int | None:
    shape, strides, offset = n.attrs
    if offset == 0 and prod(shape) == n.numel and is_contiguous(shape, strides):
        return reshaped(g, n.inputs[1], n.shape)
    return None


def _overwritten(g: Graph, n: Node) -> int | None:
    base = g.nodes[n.inputs[0]]
    if base.op is n.op and base.attrs == n.attrs:
        return g.add(n.op, (base.inputs[0], n.inputs[1]), n.attrs, n.shape, n.dtype)
    return None


Slices = tuple[int, int, list[tuple[int, int, int]]]  # zeros, dim, (start, stop, value) of every written slice


def _slices(g: Graph, position: int) -> Slices | None:
    """A value made of zeros by writing slices along one dim, or None."""
    node = g.nodes[position]
    shape = node.shape
    strides = contiguous_strides(shape)
    found: list[tuple[int, int, int]] = []
    dim = -1
    while node.op.role == "update" and len(found) < 64:
        part, steps, offset = node.attrs
        if steps != strides or len(part) != len(shape):
            return None
        cut = [d for d in range(len(shape)) if part[d] != shape[d]]
        if len(cut) != 1 or (dim >= 0 and cut[0] != dim) or offset % strides[cut[0]]:
            return None
        dim = cut[0]
        start = offset // strides[dim]
        found.append((start, start + part[dim], node.inputs[1]))
        position = node.inputs[0]
        node = g.nodes[position]
    zero = constant_of(g, position)
    if not found or zero is None or zero != 0 or str(zero)[0] == "-":
        return None
    return position, dim, found


def _add_slices(g: Graph, n: Node) -> int | None:
    """The gradients of the slices of one value. Adding +0.0 turns -0.0 into 0.0 as the sum does."""
    a, b = _slices(g, n.inputs[0]), _slices(g, n.inputs[1])
    if a is None or b is None or a[1] != b[1] or g.nodes[n.inputs[0]].shape != g.nodes[n.inputs[1]].shape:
        return None
    parts = sorted(a[2] + b[2])
    if any(before[1] > after[0] for before, after in pairwise(parts)):
        return None
    dim, strides = a[1], contiguous_strides(n.shape)
    pieces = [_plus_positive_zero(g, value) for _, _, value in parts]
    if parts[0][0] == 0 and parts[-1][1] == n.shape[dim] and all(x[1] == y[0] for x, y in pairwise(parts)):
        return g.add(opdef.get("cat"), tuple(pieces), (dim,), n.shape, n.dtype)
    result = a[0]
    for (start, _, _), value in zip(parts, pieces, strict=True):
        attrs = (g.nodes[value].shape, strides, start * strides[dim])
        result = g.add(opdef.get("update"), (result, value), attrs, n.shape, n.dtype)
    return result


def _plus_positive_zero(g: Graph, value: int) -> int:
    node = g.nodes[value]
    if node.dtype.category != 2 or (node.op.name == "add" and any(constant_of(g, i) == 0 for i in node.inputs)):
        return value
    zero = g.add(opdef.get("constant"), (), (0.0, node.dtype), (), node.dtype)
    return g.add(opdef.get("add"), (value, zero), (), node.shape, node.dtype)


def _single_piece(g: Graph, n: Node) -> int | None:
    return n.inputs[0] if len(n.inputs) == 1 else None


def _gather_inside(g: Graph, n: Node) -> int | None:
    """Only when far fewer elements are picked than there are, and through few operations: a loop that picks at every turn would repeat all turns
    before it at each."""
    source = g.nodes[n.inputs[0]]
    dim = n.attrs[0]
    if g.depth > GATHERED_THROUGH:
        return None
    if source.op.kind != "elementwise" or source.op.body is None or not source.inputs or n.numel * 4 > source.numel:
        return None
    if n.shape[:dim] + n.shape[dim + 1 :] != source.shape[:dim] + source.shape[dim + 1 :] or source.op.creates:
        return None
    operands = []
    for operand in source.inputs:
        o = g.nodes[operand]
        if o.shape == source.shape:
            operands.append(g.add(n.op, (operand, n.inputs[1]), n.attrs, n.shape, o.dtype))
        elif len(o.shape) < len(source.shape) - dim or o.shape[dim - len(source.shape)] == 1:
            operands.append(operand)
        elif len(o.shape) == 1 and dim == len(source.shape) - 1:
            operands.append(g.add(opdef.get("index_select"), (operand, n.inputs[1]), (0,), n.shape, o.dtype))
        else:
            return None
    return g.add(source.op, tuple(operands), source.attrs, n.shape, n.dtype)


def _scatter_one(g: Graph, n: Node) -> int | None:
    """The gradient of picking one element per row (cross entropy). Adding +0.0 turns -0.0 into 0.0 as accumulation does."""
    base, index, source = n.inputs
    dim = n.attrs[0]
    zero = constant_of(g, base)
    at = g.nodes[index]
    if zero is None or zero != 0 or str(zero)[0] == "-" or at.shape[dim] != 1 or n.shape[dim] == 1:
        return None
    if at.shape[:dim] + at.shape[dim + 1 :] != n.shape[:dim] + n.shape[dim + 1 :]:
        return None
    line = (n.shape[dim],) + (1,) * (len(n.shape) - dim - 1)
    numbers = g.add(opdef.get("iota"), (), (line, at.dtype), line, at.dtype)
    hit = g.add(opdef.get("eq"), (numbers, index), (), n.shape, bool_)
    nothing = g.add(opdef.get("constant"), (), (zero, n.dtype), (), n.dtype)
    if n.op.combine == "sum" and n.dtype.category == 2:
        source = g.add(opdef.get("add"), (source, nothing), (), g.nodes[source].shape, n.dtype)
    return g.add(opdef.get("where"), (hit, source, nothing), (), n.shape, n.dtype)


# ------------------------------------------------------------------------------------------------------------------ reductions


def _reduce_nothing(g: Graph, n: Node) -> int | None:
    source = g.nodes[n.inputs[0]]
    if any(source.shape[d] != 1 for d in n.attr("dims")):
        return None
    if n.op.combine.startswith("arg"):
        zero = g.add(opdef.get("constant"), (), (0, n.dtype), (), n.dtype)
        return g.add(opdef.get("full"), (zero,), (n.shape,), n.shape, n.dtype)
    value = _plus_positive_zero(g, n.inputs[0]) if n.op.combine == "sum" else n.inputs[0]  # 0 + -0.0 = 0.0
    return reshaped(g, value, n.shape)


RULES = Rules((
    Rule("fold", lambda op: op.exact, "f(constants) = constant", _fold),
    Rule("times_one", ("mul",), "x * 1 = x", _times_one),
    Rule("divide_by_one", ("div",), "x / 1 = x", _divide_by_one),
    Rule("plus_zero", ("add",), "x + 0 = x for integers; x + (-0.0) = x for floats (x + 0.0 turns -0.0 into 0.0)", _plus_zero),
    Rule("minus_zero", ("sub",), "x - 0 = x; not x - (-0.0)", _minus_zero),
    Rule("twice", lambda op: op.involution, "f(f(x)) = x", _twice),
    Rule("idempotent", lambda op: op.idempotent, "f(f(x)) = f(x)", _idempotent),
    Rule("abs_of_neg", ("abs",), "|-x| = |x|", _abs_of_neg),
    Rule("copy", lambda op: op.identity, "a value is its own copy", _copy),
    Rule("equal_branches", ("where",), "where(c, x, x) = x", _equal_branches),
    Rule("cast", ("cast",), "(T)(x: T) = x; (U)(T)x = (U)x when T holds every x", _cast),
    Rule("view", ("view",), "the whole view is the value; a view of a view is a view", _view),
    Rule("view_of_full", ("view",), "a view of equal elements has equal elements", _view_of_full),
    Rule("full_of_nothing", ("full",), "a 0-d fill is its value", _full_of_nothing),
    Rule("read_back", ("view",), "reading where was just written gives the written value", _read_back),
    Rule("whole_update", ("update",), "writing every element replaces the value", _whole_update),
    Rule("overwritten", ("update",), "of two writes to one place the second stays", _overwritten),
    Rule("add_slices", ("add",), "zeros with x at i + zeros with y at j = zeros with both, for disjoint slices", _add_slices),
    Rule("single_piece", ("cat",), "cat(x) = x", _single_piece),
    Rule("gather_inside", ("gather",), "f(x, y)[i] = f(x[i], y[i]) for elementwise f", _gather_inside),
    Rule("scatter_one", ("scatter", "scatter_add"), "zeros with x once per row = where(position = index, x, 0)", _scatter_one),
    Rule("reduce_nothing", lambda op: op.kind == "reduce", "a reduction over one element is that element (a sum adds 0)", _reduce_nothing),
))  # fmt: skip
