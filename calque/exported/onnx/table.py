"""What each primitive is in ONNX: one table, from the name of a primitive to the function that makes its nodes. Where both are the same thing the
row is a pair of names, which `operators.py` reads the other way."""

from __future__ import annotations

from collections.abc import Callable
from math import log, prod
from typing import Any

import numpy as np

from calque.base.dtypes import DType, bfloat16, bool_, float32, float64, int8, int16, int32, int64, uint8
from calque.exported.onnx.builder import Builder
from calque.exported.onnx.views import seen_as, updated, view
from calque.ir.program import Node

Maker = Callable[[Builder, Node, list[str], list[Node]], str]  # (builder, node, names of its operands, their nodes) -> name of the result


def _plain(op: str, **attrs: Any) -> Maker:
    return lambda b, node, x, _: b.add(op, *x, **attrs)  # type: ignore[no-any-return]


_WIDER: dict[DType, DType] = {int8: int32, int16: int32, uint8: int32, bfloat16: float32}
"""By type: where the operator of a primitive is computed that the standard does not have for it."""


def _widened(maker: Maker) -> Maker:
    """Computed in a wider type, where the standard's operator does not take the type of the first operand."""

    def make(b: Builder, node: Node, x: list[str], given: list[Node]) -> str:
        narrow, wide = given[0].dtype, _WIDER.get(given[0].dtype)
        if wide is None:
            return maker(b, node, x, given)
        names = [b.add("Cast", name, to=b.kind(wide)) if g.dtype is narrow else name for name, g in zip(x, given, strict=True)]
        like, *operands = [Node(g.op, g.inputs, g.attrs, g.shape, wide, g.line) if g.dtype is narrow else g for g in (node, *given)]
        found = maker(b, like, names, operands)
        return b.add("Cast", found, to=b.kind(narrow)) if like is not node else found  # type: ignore[no-any-return]

    return make


def _by_type(for_bool: str, others: str) -> Maker:
    return lambda b, node, x, given: b.add(for_bool if given[0].dtype is bool_ else others, *x)  # type: ignore[no-any-return]


def _rounded(op: str) -> Maker:
    """Integers are round already."""
    return lambda b, node, x, _: b.add(op, x[0]) if node.dtype.category == 2 else x[0]  # type: ignore[no-any-return]


def _compared(op: str) -> Maker:
    """Sizes of bools are those of integers."""

    def make(b: Builder, node: Node, x: list[str], given: list[Node]) -> str:
        return b.add(op, *[b.add("Cast", one, to=6) if given[0].dtype is bool_ else one for one in x])  # type: ignore[no-any-return]

    return make


def _where(b: Builder, node: Node, x: list[str], given: list[Node]) -> str:
    """ONNX Runtime has none of bools."""
    if node.dtype is not bool_:
        return b.add("Where", *x)  # type: ignore[no-any-return]
    return b.add("Or", b.add("And", x[0], x[1]), b.add("And", b.add("Not", x[0]), x[2]))  # type: ignore[no-any-return]


def _in_double(function: Callable[[Builder, str], str]) -> Maker:
    """What loses digits in single precision is computed in double."""

    def make(b: Builder, node: Node, x: list[str], given: list[Node]) -> str:
        found = function(b, b.add("Cast", x[0], to=b.kind(float64)))
        return b.add("Cast", found, to=b.kind(node.dtype))  # type: ignore[no-any-return]

    return make


def _one(b: Builder) -> str:
    return b.scalar(1.0, float64)


def _floor_divide(b: Builder, node: Node, x: list[str], given: list[Node]) -> str:
    """Of floats, from the exact remainder: 1 // 0.1 is 9, and the quotient is rounded to 10. a / b where b is 0."""
    if node.dtype.category != 2:
        return b.add("Div", b.add("Sub", x[0], b.add("Mod", *x)), x[1])  # type: ignore[no-any-return]
    dtype = node.dtype.compute
    x = [b.add("Cast", name, to=b.kind(dtype)) for name in x] if dtype is not node.dtype else x
    left, other_sign = _remains(b, dtype, x)
    exact = b.add("Div", b.add("Sub", x[0], left), x[1])
    exact = b.add("Where", other_sign, b.add("Sub", exact, b.scalar(1, dtype)), exact)
    whole = b.add("Floor", exact)
    up = b.add("Greater", b.add("Sub", exact, whole), b.scalar(0.5, dtype))
    whole = b.add("Where", up, b.add("Add", whole, b.scalar(1, dtype)), whole)
    found = b.add("Where", b.add("Equal", x[1], b.scalar(0, dtype)), b.add("Div", *x), whole)
    return found if dtype is node.dtype else b.add("Cast", found, to=b.kind(node.dtype))  # type: ignore[no-any-return]


def _remainder(b: Builder, node: Node, x: list[str], given: list[Node]) -> str:
    """With the sign of the divisor."""
    if node.dtype.category != 2:
        return b.add("Mod", *x)  # type: ignore[no-any-return]
    dtype = node.dtype.compute
    x = [b.add("Cast", name, to=b.kind(dtype)) for name in x] if dtype is not node.dtype else x
    left, other_sign = _remains(b, dtype, x)
    found = b.add("Where", other_sign, b.add("Add", left, x[1]), left)
    return found if dtype is node.dtype else b.add("Cast", found, to=b.kind(node.dtype))  # type: ignore[no-any-return]


def _remains(b: Builder, dtype: DType, x: list[str]) -> tuple[str, str]:
    """What is left of x[0] with its own sign, and whether that is another one than that of x[1]."""
    left, zero = b.add("Mod", *x, fmod=1), b.scalar(0, dtype)
    differs = b.add("Xor", b.add("Less", left, zero), b.add("Less", x[1], zero))
    return left, b.add("And", b.add("Not", b.add("Equal", left, zero)), differs)


def _trunc(b: Builder, node: Node, x: list[str], given: list[Node]) -> str:
    if node.dtype.category != 2:
        return x[0]
    below = b.add("Less", x[0], b.scalar(0, node.dtype))
    return b.add("Where", below, b.add("Ceil", x[0]), b.add("Floor", x[0]))  # type: ignore[no-any-return]


def constant(b: Builder, node: Node) -> str:
    """A number, or one that is computed from free sizes."""
    value, dtype = node.attrs
    if type(value) in (int, float, bool):
        return b.scalar(value, dtype)
    return b.add("Cast", b.reshape(b.size(value), ()), to=b.kind(dtype))  # type: ignore[no-any-return]


def _full(b: Builder, node: Node, x: list[str], given: list[Node]) -> str:
    return b.expand(x[0], (), node.attrs[0]) if node.attrs[0] else x[0]


def _iota(b: Builder, node: Node, x: list[str], given: list[Node]) -> str:
    shape, dtype = node.attrs
    return b.add("Cast", b.reshape(b.range(prod(shape)), shape), to=b.kind(dtype))  # type: ignore[no-any-return]


def _cast(b: Builder, node: Node, x: list[str], given: list[Node]) -> str:
    return b.add("Cast", x[0], to=b.kind(node.dtype))  # type: ignore[no-any-return]


def _view(b: Builder, node: Node, x: list[str], given: list[Node]) -> str:
    return view(b, x[0], given[0].shape, *node.attrs)


def _update(reduction: str) -> Maker:
    return lambda b, node, x, given: updated(b, x[0], given[0].shape, x[1], node.attrs, reduction)


def _view_as(b: Builder, node: Node, x: list[str], given: list[Node]) -> str:
    *window, dtype = node.attrs
    seen, shape = seen_as(b, x[0], given[0].shape, given[0].dtype, dtype)
    return view(b, seen, shape, *window)


def _update_as(b: Builder, node: Node, x: list[str], given: list[Node]) -> str:
    """Of elements of the other type, which are those of the first one again."""
    base, value = given
    seen, shape = seen_as(b, x[0], base.shape, base.dtype, value.dtype)
    return b.reshape(seen_as(b, updated(b, seen, shape, x[1], node.attrs, "none"), shape, value.dtype, base.dtype)[0], base.shape)


def _reduce(op: str, through: Any = None) -> Maker:
    """A reduction; bools go `through` integers."""

    def make(b: Builder, node: Node, x: list[str], given: list[Node]) -> str:
        dims, keepdim = node.attrs
        if not dims:
            return x[0]
        source = b.add("Cast", x[0], to=6) if given[0].dtype is bool_ or through else x[0]
        found = b.add(op, source, b.constant(dims), keepdims=int(keepdim))
        return b.add("Cast", found, to=b.kind(node.dtype)) if source != x[0] else found  # type: ignore[no-any-return]

    return make


def _any(b: Builder, node: Node, x: list[str], given: list[Node]) -> str:
    """The maximum of nothing is the least integer, which is another bool than 0."""
    dims, keepdim = node.attrs
    found = b.add("Cast", x[0], to=b.kind(int32))
    if dims:
        found = b.add("ReduceMax", found, b.constant(dims), keepdims=int(keepdim))
    return b.add("Greater", found, b.scalar(0, int32))  # type: ignore[no-any-return]


def _position(op: str) -> Maker:
    def make(b: Builder, node: Node, x: list[str], given: list[Node]) -> str:
        dims, keepdim = node.attrs
        source = b.add("Cast", x[0], to=6) if given[0].dtype is bool_ else x[0]
        if len(dims) == 1 and given[0].shape:
            return b.add(op, source, axis=dims[0], keepdims=int(keepdim))  # type: ignore[no-any-return]
        shape = given[0].shape
        kept = [d for d in range(len(shape)) if dims and d not in dims]
        gone = [d for d in range(len(shape)) if d not in kept]
        if [*kept, *gone] != list(range(len(shape))):
            source = b.add("Transpose", source, perm=[*kept, *gone])
        flat = b.reshape(source, (*[shape[d] for d in kept], prod(shape[d] for d in gone)))
        return b.reshape(b.add(op, flat, axis=len(kept), keepdims=0), node.shape)

    return make


def _write(name: str, reduction: str) -> Maker:
    """Writes at positions along a dim; `index_...` have one position for a whole slice."""

    def make(b: Builder, node: Node, x: list[str], given: list[Node]) -> str:
        (dim,), index, source = node.attrs, x[1], x[2]
        if name.startswith("index"):
            count = prod(given[1].shape)
            whole = (*node.shape[:dim], count, *node.shape[dim + 1 :])
            lined = tuple(count if d == dim else 1 for d in range(len(node.shape)))
            index, source = b.expand(b.reshape(index, lined), lined, whole), b.reshape(source, whole)
        return b.add("ScatterElements", x[0], index, source, axis=dim, reduction=reduction)  # type: ignore[no-any-return]

    return make


def _joined(name: str, reduction: str) -> Maker:
    """Products and extremes at positions. ONNX Runtime takes numbers before NaN, has neither bools nor halves, and rounds products each time."""
    write, mark = _write(name, reduction), _write(name, "max")

    def make(b: Builder, node: Node, x: list[str], given: list[Node]) -> str:
        kind = node.dtype
        wide = int32 if kind is bool_ else kind.compute
        base, source = (b.add("Cast", t, to=b.kind(wide)) if wide is not kind else t for t in (x[0], x[2]))
        found = write(b, node, [base, x[1], source], given)
        if reduction != "mul" and kind.category == 2:
            none = b.expand(b.scalar(0, int32), (), node.shape) if node.shape else b.scalar(0, int32)
            count = mark(b, node, [none, x[1], b.add("Cast", b.add("IsNaN", source), to=b.kind(int32))], given)
            seen = b.add("Or", b.add("IsNaN", base), b.add("Greater", count, b.scalar(0, int32)))
            found = b.add("Where", seen, b.scalar(np.nan, wide), found)
        return b.add("Cast", found, to=b.kind(kind)) if wide is not kind else found  # type: ignore[no-any-return]

    return make


def _conv(b: Builder, node: Node, x: list[str], given: list[Node]) -> str:
    stride, padding, dilation, groups = node.attrs
    return b.add("Conv", *x, strides=list(stride), pads=[*padding, *padding], dilations=list(dilation), group=groups)  # type: ignore[no-any-return]


def _conv_transpose(b: Builder, node: Node, x: list[str], given: list[Node]) -> str:
    hw, stride, padding, dilation, groups = node.attrs
    sizes = zip(hw, given[0].shape[2:], given[1].shape[2:], stride, padding, dilation, strict=True)
    more = [h - ((n - 1) * s - 2 * p + d * (k - 1) + 1) for h, n, k, s, p, d in sizes]
    if any(type(m) is not int for m in more):
        raise b.refused("has an output padding that depends on a free size")
    return b.add(  # type: ignore[no-any-return]
        "ConvTranspose", *x, strides=list(stride), pads=[*padding, *padding], dilations=list(dilation), group=groups, output_padding=more
    )


def _addmm(b: Builder, node: Node, x: list[str], given: list[Node]) -> str:
    """In float32, if the numbers have 16 bits, and rounded once."""
    dtype = node.dtype.compute
    a, c, added = (b.add("Cast", name, to=b.kind(dtype)) for name in x) if dtype is not node.dtype else x
    terms = [b.add("MatMul", a, c), added]
    terms = [term if factor == 1 else b.add("Mul", term, b.scalar(factor, dtype)) for term, factor in zip(terms, node.attrs, strict=True)]
    total = b.add("Add", *terms)
    return total if dtype is node.dtype else b.add("Cast", total, to=b.kind(node.dtype))  # type: ignore[no-any-return]


def _int4_matmul(b: Builder, node: Node, x: list[str], given: list[Node]) -> str:
    """In floats, which hold all integers that occur: there is no operator for bits of signed integers."""
    dtype, (rows, groups), depth = node.dtype, given[2].shape, given[0].shape[1]
    pairs = b.add("Cast", b.reshape(x[1], (rows, groups, depth // (2 * groups))), to=b.kind(dtype))
    high = b.add("Floor", b.add("Div", pairs, b.scalar(16, dtype)))
    low = b.add("Sub", b.add("Sub", pairs, b.add("Mul", high, b.scalar(16, dtype))), b.scalar(8, dtype))
    weight = b.add("Mul", b.add("Concat", low, high, axis=2), b.reshape(x[2], (rows, groups, 1)))
    return b.add("MatMul", x[0], b.add("Transpose", b.reshape(weight, (rows, depth)), perm=[1, 0]))  # type: ignore[no-any-return]


def _attention(b: Builder, node: Node, x: list[str], given: list[Node]) -> str:
    part, scale, causal, turned = node.attrs
    q, k, v = x[:3]
    dtype, rank = node.dtype, len(given[1].shape)
    k = b.add("Transpose", k, perm=[*range(rank - 2), rank - 1, rank - 2])
    scores = b.add("Mul", b.add("MatMul", q, k), b.scalar(scale, dtype))
    for mask in x[3:]:
        scores = b.add("Add", scores, mask)
    if causal:
        rows, columns = (b.range(given[n].shape[-2]) for n in (0, 1))
        seen = b.add("LessOrEqual", columns, b.reshape(rows, (given[0].shape[-2], 1)))
        scores = b.add("Where", seen, scores, b.scalar(-np.inf, dtype))
    top = b.add("ReduceMax", scores, b.constant([-1]), keepdims=1)
    top = b.add("Where", b.add("Equal", top, b.scalar(-np.inf, dtype)), b.scalar(0, dtype), top)
    weights = b.add("Exp", b.add("Sub", scores, top))
    total = b.add("ReduceSum", weights, b.constant([-1]), keepdims=1)
    alive = b.add("Where", b.add("Equal", total, b.scalar(0, dtype)), b.scalar(1, dtype), total)
    if part == "lse":
        raise b.refused("is half of a gradient")
    out = b.add("MatMul", b.add("Div", weights, alive), v)
    rank = len(node.shape)
    return b.add("Transpose", out, perm=[*range(rank - 3), rank - 2, rank - 3, rank - 1]) if turned else out  # type: ignore[no-any-return]


def _finite(b: Builder, name: str, gates: Node) -> str:
    """Gate inputs without infinities, by which steps behind the end of a packed sequence keep their state: as the input weight is an identity,
    0 * inf would be NaN."""
    most = float(np.finfo(gates.dtype.np).max) / 2
    return b.add("Clip", name, b.scalar(-most, gates.dtype), b.scalar(most, gates.dtype))  # type: ignore[no-any-return]


def lstm(b: Builder, x: list[str], given: list[Node]) -> list[str]:
    """[all outputs (L, 1, N, H), the last cell (1, N, H)] of an LSTM whose gate inputs are computed already: its input weight only reorders them."""
    hidden = given[1].shape[-1]
    order = np.concatenate([np.arange(hidden) + k * hidden for k in (0, 3, 1, 2)])  # ONNX's gates: i, o, f, c
    kind = given[0].dtype.np
    w = b.constant(np.eye(4 * hidden)[order][None], kind)
    r = b.reshape(b.add("Gather", x[3], b.constant(order), axis=0), (1, 4 * hidden, hidden))
    first = [b.add("Unsqueeze", t, b.constant([0])) for t in x[1:3]]
    y, _, last = b.add("LSTM", _finite(b, x[0], given[0]), w, r, "", "", *first, outputs=3, hidden_size=int(hidden))
    return [y, last]


def _lstm(b: Builder, node: Node, x: list[str], given: list[Node]) -> str:
    if node.attrs[0] != "out":
        raise b.refused("is read at others than its last cell state")
    return b.add("Squeeze", lstm(b, x, given)[0], b.constant([1]))  # type: ignore[no-any-return]


def _gru(b: Builder, node: Node, x: list[str], given: list[Node]) -> str:
    if node.attrs[0] != "out":
        raise b.refused("is half of a gradient")
    hidden, kind = int(given[1].shape[-1]), given[0].dtype.np
    order = np.concatenate([np.arange(hidden) + k * hidden for k in (1, 0, 2)])  # ONNX's gates: z, r, h
    w = b.constant(np.eye(3 * hidden)[order][None], kind)
    r = b.reshape(b.add("Gather", x[2], b.constant(order), axis=0), (1, 3 * hidden, hidden))
    bias = b.add("Concat", b.constant(np.zeros(3 * hidden), kind), b.add("Gather", x[3], b.constant(order), axis=0), axis=0)
    first = b.add("Unsqueeze", x[1], b.constant([0]))
    y = b.add("GRU", _finite(b, x[0], given[0]), w, r, b.reshape(bias, (1, 6 * hidden)), "", first, hidden_size=hidden, linear_before_reset=1)
    return b.add("Squeeze", y, b.constant([1]))  # type: ignore[no-any-return]


def _rnn(b: Builder, node: Node, x: list[str], given: list[Node]) -> str:
    hidden = int(given[1].shape[-1])
    h, r = (b.add("Unsqueeze", t, b.constant([0])) for t in x[1:])
    act = "Relu" if node.op.name == "rnn_relu" else "Tanh"
    w = b.constant(np.eye(hidden)[None], given[0].dtype.np)
    y = b.add("RNN", _finite(b, x[0], given[0]), w, r, "", "", h, hidden_size=hidden, activations=[act])
    return b.add("Squeeze", y, b.constant([1]))  # type: ignore[no-any-return]


def _sorted(b: Builder, node: Node, x: list[str], given: list[Node]) -> str:
    dim, *rest, descending = node.attrs
    if not node.shape:
        return b.scalar(0, node.dtype)
    count = rest[1] if rest else given[0].shape[dim]
    found = b.add("TopK", x[0], b.size(count), outputs=2, axis=dim, largest=int(descending), sorted=1)[1]
    if not rest or rest[0] == 0:
        return found  # type: ignore[no-any-return]
    return b.add("Slice", found, b.size(rest[0]), b.size(rest[1]), b.constant([dim]))  # type: ignore[no-any-return]


def _cumsum(b: Builder, node: Node, x: list[str], given: list[Node]) -> str:
    if not node.shape:
        return x[0]
    narrow, wide = node.dtype, node.dtype.compute  # in float32, rounded once
    source = x[0] if narrow is wide else b.add("Cast", x[0], to=b.kind(wide))
    found = b.add("CumSum", source, b.constant(np.asarray(node.attrs[0])))
    return found if narrow is wide else b.add("Cast", found, to=b.kind(narrow))  # type: ignore[no-any-return]


def _atan2(b: Builder, node: Node, x: list[str], given: list[Node]) -> str:
    """The angle of (x[1], x[0]), from the quotient of the smaller by the larger, which is exact for zeros and infinities with their signs."""
    dtype = node.dtype.compute
    y, x0 = (b.add("Cast", name, to=b.kind(dtype)) if dtype is not node.dtype else name for name in x)
    zero, one, pi = b.scalar(0, dtype), b.scalar(1, dtype), b.scalar(np.pi, dtype)
    height, width = b.add("Abs", y), b.add("Abs", x0)
    steep = b.add("Greater", height, width)
    low, high = b.add("Where", steep, width, height), b.add("Where", steep, height, width)
    ratio = b.add("Where", b.add("Equal", low, high), b.add("Where", b.add("Equal", low, zero), zero, one), b.add("Div", low, high))
    ratio = b.add("Where", b.add("Or", b.add("IsNaN", y), b.add("IsNaN", x0)), b.add("Add", y, x0), ratio)
    angle = b.add("Atan", ratio)
    angle = b.add("Where", steep, b.add("Sub", b.scalar(np.pi / 2, dtype), angle), angle)
    angle = b.add("Where", _negative(b, x0, dtype), b.add("Sub", pi, angle), angle)
    found = b.add("Where", _negative(b, y, dtype), b.add("Neg", angle), angle)
    return found if dtype is node.dtype else b.add("Cast", found, to=b.kind(node.dtype))  # type: ignore[no-any-return]


def _negative(b: Builder, x: str, dtype: DType) -> str:
    """Whether a number has a sign, which zeros may have as well: 1 / -0 is -inf."""
    zero = b.scalar(0, dtype)
    return b.add("Or", b.add("Less", x, zero), b.add("Less", b.add("Reciprocal", x), zero))  # type: ignore[no-any-return]


def _shifted(left: bool) -> Maker:
    """By a power of two from a table: BitShift itself is for integers without a sign."""

    def make(b: Builder, node: Node, x: list[str], given: list[Node]) -> str:
        value, count = (b.add("Cast", name, to=b.kind(int64)) for name in x)
        power = b.add("Gather", b.constant(np.left_shift(1, np.arange(64))), count, axis=0)
        if left:
            return b.add("Cast", b.add("Mul", value, power), to=b.kind(node.dtype))  # type: ignore[no-any-return]
        far = b.add("Less", power, b.scalar(0, int64))  # 2 ** 63 is none of these numbers: the sign is left
        whole = b.add("Where", far, b.scalar(1, int64), power)
        down = b.add("Div", b.add("Sub", value, b.add("Mod", value, whole)), whole)
        sign = b.add("Where", b.add("Less", value, b.scalar(0, int64)), b.scalar(-1, int64), b.scalar(0, int64))
        return b.add("Cast", b.add("Where", far, sign, down), to=b.kind(node.dtype))  # type: ignore[no-any-return]

    return make


def _outside(b: Builder, node: Node, x: list[str], given: list[Node]) -> str:
    raise b.refused("checks values, and its result is used")


SAME = {
    "sub": "Sub", "pow": "Pow", "neg": "Neg", "abs": "Abs", "sign": "Sign", "reciprocal": "Reciprocal", "sqrt": "Sqrt", "exp": "Exp", "log": "Log",
    "sigmoid": "Sigmoid", "sin": "Sin", "cos": "Cos", "tan": "Tan", "asin": "Asin", "acos": "Acos", "atan": "Atan", "sinh": "Sinh", "cosh": "Cosh",
    "tanh": "Tanh", "asinh": "Asinh", "acosh": "Acosh", "atanh": "Atanh", "relu": "Relu", "erf": "Erf", "eq": "Equal", "matmul": "MatMul",
}  # fmt: skip
"""Primitives that are one operator, whatever the types: read from left to right when a model is written, the other way when one is loaded."""
ROUNDED = {"floor": "Floor", "ceil": "Ceil", "round": "Round"}
BY_TYPE = {
    "add": ("Or", "Add"), "mul": ("And", "Mul"), "maximum": ("Or", "Max"), "minimum": ("And", "Min"), "bitwise_and": ("And", "BitwiseAnd"),
    "bitwise_or": ("Or", "BitwiseOr"), "bitwise_xor": ("Xor", "BitwiseXor"), "bitwise_not": ("Not", "BitwiseNot"),
}  # fmt: skip
"""Primitives that are an operator for bools and another one for numbers; also read both ways."""
COMPARED = {"lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual"}
REDUCED = {"sum": "ReduceSum", "prod": "ReduceProd", "amax": "ReduceMax", "amin": "ReduceMin"}

TABLE: dict[str, Maker] = {
    **{name: _plain(op) for name, op in SAME.items()}, **{name: _rounded(op) for name, op in ROUNDED.items()},
    **{name: _by_type(*ops) for name, ops in BY_TYPE.items()}, **{name: _compared(op) for name, op in COMPARED.items()},
    **{name: _reduce(op) for name, op in REDUCED.items()},
    "div": _plain("Div"), "ne": lambda b, node, x, _: b.add("Not", b.add("Equal", *x)), "where": _where, "floor_divide": _floor_divide,
    "remainder": _remainder, "fmod": _plain("Mod", fmod=1), "rsqrt": lambda b, node, x, _: b.add("Reciprocal", b.add("Sqrt", x[0])),
    "exp_shifted": _plain("Exp"), "expm1": _in_double(lambda b, x: b.add("Sub", b.add("Exp", x), _one(b))),
    "log1p": _in_double(lambda b, x: b.add("Log", b.add("Add", x, _one(b)))),
    "log2": _in_double(lambda b, x: b.add("Div", b.add("Log", x), b.scalar(log(2.0), float64))),
    "log10": _in_double(lambda b, x: b.add("Div", b.add("Log", x), b.scalar(log(10.0), float64))), "trunc": _trunc,
    "logical_not": lambda b, node, x, given: b.add("Not", x[0] if given[0].dtype is bool_ else b.add("Cast", x[0], to=9)),
    **dict.fromkeys(("copy", "kink", "still"), lambda b, node, x, _: x[0]), "cast": _cast, "full": _full, "iota": _iota,
    "view": _view, "view_as": _view_as, "update_as": _update_as,
    "update": _update("none"), "update_add": _update("add"), "cat": lambda b, node, x, _: b.add("Concat", *x, axis=node.attrs[0]),
    "any": _any, "all": _reduce("ReduceMin", "int32"), "argmax": _position("ArgMax"), "argmin": _position("ArgMin"),
    "index_select": lambda b, node, x, _: b.add("Gather", *x, axis=node.attrs[0]),
    "gather": lambda b, node, x, _: b.add("GatherElements", *x, axis=node.attrs[0]),
    "index_put": _write("index_put", "none"), "index_add": _write("index_add", "add"), "scatter": _write("scatter", "none"),
    "scatter_add": _write("scatter_add", "add"), "scatter_prod": _joined("scatter_prod", "mul"), "scatter_max": _joined("scatter_max", "max"),
    "scatter_min": _joined("scatter_min", "min"), "conv2d": _conv, "biased_conv2d": _conv,
    "conv2d_input_grad": _conv_transpose, "biased_conv2d_input_grad": _conv_transpose,
    "attention": _attention, "attention_masked": _attention, "lstm": _lstm, "gru": _gru, "rnn_tanh": _rnn, "rnn_relu": _rnn,
    "atan2": _atan2, "shift_left": _shifted(True), "shift_right": _shifted(False), "argsort": _sorted, "ranked": _sorted, "cumsum": _cumsum,
    "outside": _outside, "int8_matmul": _plain("MatMulInteger"), "int4_matmul": _int4_matmul, "addmm": _addmm,
}  # fmt: skip

_TRIGONOMETRIC = ("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh")
_CONVOLUTIONS = ("conv2d", "biased_conv2d", "conv2d_input_grad", "biased_conv2d_input_grad")
_NOT_OF_ALL_TYPES = (
    "neg", "relu", "pow", "matmul", "sum", "prod", "cumsum", "amax", "amin", "round", "gru", "rnn_tanh", "rnn_relu", "argsort", "ranked",
)  # fmt: skip
TABLE |= {name: _widened(TABLE[name]) for name in (*_NOT_OF_ALL_TYPES, *_TRIGONOMETRIC, *_CONVOLUTIONS)}
