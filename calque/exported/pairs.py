"""Complex values as pairs of real ones: a program is recorded again without them, for what knows real numbers only (native libraries, ONNX).

Inputs, outputs and state of a complex type have one dim more, of size 2, as `view_as_real` shows them. Fourier transforms are products with matrices
of cosines and sines, in as many steps as their lengths have factors (Cooley & Tukey 1965).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isqrt, pi, prod
from typing import Any

from calque import functional as T
from calque.base.dtypes import DType, bool_, float64, int64
from calque.base.errors import ExportError
from calque.base.layout import dense_layout
from calque.base.shapes import contiguous_strides
from calque.exported.frame import Again
from calque.exported.graph import Spec
from calque.functional.common import cast, prim
from calque.ir.program import Node, Program
from calque.tensor import Tensor, record

Pair = tuple[Any, Any]
_LONGEST = 32  # numbers that are transformed by one matrix, where there is a choice
_BY_PARTS = (
    "view", "update", "update_add", "cat", "index_select", "gather", "index_put", "index_add", "scatter", "scatter_add", "copy", "kink", "still",
    "full", "where", "add", "sub", "neg", "sum", "cumsum",
)  # fmt: skip
"""What is done to both parts alike."""


def real_spec(spec: Spec) -> Spec:
    """What goes in or out, as a pair of real numbers if it is complex."""
    return replace(spec, dtype=spec.dtype.to_real(), shape=(*spec.shape, 2)) if spec.dtype.is_complex else spec


def in_pairs(program: Program, refused: Callable[[str, str], ExportError]) -> Program:
    """A program of the same values without complex ones. `refused`: makes the error about an operation (name, line) that there is no rule for."""
    if not any(node.dtype.is_complex for node in program.nodes):
        return program
    frame = Again()
    values: list[Any] = [None] * len(program.nodes)
    with frame:
        for position in program.inputs:
            node = program.nodes[position]
            whole = node.dtype.is_complex
            shape, dtype = ((*node.shape, 2), node.dtype.to_real()) if whole else (tuple(node.shape), node.dtype)
            given = frame.argument(dense_layout(shape, dtype), False)
            values[position] = _parts(given) if whole else given
        for position, node in enumerate(program.nodes):
            frame.line = node.line
            if node.op.role == "constant":
                values[position] = _number(node)
            elif node.op.role != "input":
                values[position] = _recorded(node, program, values, refused)
        values = [_together(x, program.nodes[k]) if program.nodes[k].dtype.is_complex and k in program.outputs else x for k, x in enumerate(values)]
        places = [frame.of(x) if isinstance(x, Tensor) else -1 for x in values]
        outputs = tuple([places[k] if places[k] >= 0 else frame.number(*values[k]) for k in program.outputs])
    checks = tuple([replace(check, value=places[check.value]) for check in program.checks])
    return replace(program, nodes=tuple(frame.nodes), outputs=outputs, checks=checks, late=())


def _number(node: Node) -> Any:
    value, dtype = node.attrs
    if not dtype.is_complex:
        return node.attrs
    return (complex(value).real, dtype.to_real()), (complex(value).imag, dtype.to_real())


def _recorded(node: Node, program: Program, values: list[Any], refused: Callable[[str, str], ExportError]) -> Any:
    """The value of a node, or both parts of it."""
    given, name = [program.nodes[k] for k in node.inputs], node.op.name
    operands = [values[k] for k in node.inputs]
    if not node.dtype.is_complex and not any(one.dtype.is_complex for one in given):
        return record(node.op, tuple(operands), node.attrs, True)
    if name in _BY_PARTS and node.dtype.is_complex:
        sides = [[x[k] if one.dtype.is_complex else x for x, one in zip(operands, given, strict=True)] for k in range(2)]
        return tuple([record(node.op, tuple(side), node.attrs, True) for side in sides])
    rule = _RULES.get(name)
    if rule is None:
        raise refused(name, node.line)
    return rule(node, operands, given)


# ------------------------------------------------------------------------------------------------------------------------- in memory


def _parts(x: Any) -> Pair:
    """The numbers at even and at odd places."""
    shape = tuple(x._layout.shape)[:-1]
    steps = tuple(2 * step for step in contiguous_strides(shape))
    return prim("view", x, shape, steps, 0), prim("view", x, shape, steps, 1)


def _together(x: Pair, node: Node) -> Any:
    shape = (*node.shape, 1)
    kind = node.dtype.to_real()
    return prim("cat", *[T.reshape(prim("full", part, tuple(node.shape)) if part.__class__ is tuple else cast(part, kind), shape) for part in x],
                len(shape) - 1)  # fmt: skip


def _view_as(node: Node, operands: Sequence[Any], given: Sequence[Node]) -> Any:
    shape, strides, offset, dtype = node.attrs
    if not given[0].dtype.is_complex:
        x, kind = operands[0], dtype.to_real()
        if given[0].dtype is not kind:
            count = prod(given[0].shape) * given[0].dtype.itemsize // kind.itemsize
            x = prim("view_as", x, (count,), (1,), 0, kind)
        return tuple([prim("view", x, shape, tuple(2 * s for s in strides), 2 * offset + k) for k in range(2)])
    whole = _together(operands[0], given[0])
    if dtype is given[0].dtype.to_real():
        return prim("view", whole, shape, strides, offset)
    if dtype.is_complex:
        return _view_as(node, [whole], [replace(given[0], shape=(*given[0].shape, 2), dtype=given[0].dtype.to_real())])
    return prim("view_as", whole, shape, strides, offset, dtype)


def _update_as(node: Node, operands: Sequence[Any], given: Sequence[Node]) -> Any:
    (shape, strides, offset), (base, value) = node.attrs, operands
    if given[0].dtype.is_complex:
        whole, kind = _together(base, given[0]), given[0].dtype.to_real()
        if given[1].dtype is kind:
            return _parts(prim("update", whole, value, shape, strides, offset))
        return _parts(prim("update_as", whole, value, shape, strides, offset))
    for k, part in enumerate(value):
        name = "update" if given[0].dtype is given[1].dtype.to_real() else "update_as"
        base = prim(name, base, part, shape, tuple(2 * s for s in strides), 2 * offset + k)
    return base


# -------------------------------------------------------------------------------------------------------------------------- arithmetic


def _plain(x: Any, like: Node) -> Any:
    """A part that may be a number, as a tensor."""
    return prim("full", x, tuple(like.shape)) if x.__class__ is tuple else x


def _times(a: Pair, b: Pair) -> Pair:
    return (
        prim("sub", prim("mul", a[0], b[0]), prim("mul", a[1], b[1])),
        prim("add", prim("mul", a[0], b[1]), prim("mul", a[1], b[0])),
    )


def _mul(node: Node, operands: Sequence[Any], given: Sequence[Node]) -> Pair:
    return _times(*operands)


def _divided(a: Pair, b: Pair) -> Pair:
    """By Smith's way (1962), as NumPy does: squares may leave the range."""
    steep = T.abs(b[0]) < T.abs(b[1])
    large, small = T.where(steep, b[1], b[0]), T.where(steep, b[0], b[1])
    ratio = T.where(large == 0, large + small, small / large)  # 0 / 0: whatever is divided by it is no number anyway
    below = large + small * ratio
    real = T.where(steep, a[0] * ratio + a[1], a[0] + a[1] * ratio)
    imaginary = T.where(steep, a[1] * ratio - a[0], a[1] - a[0] * ratio)
    return real / below, imaginary / below


def _div(node: Node, operands: Sequence[Any], given: Sequence[Node]) -> Pair:
    a, b = ([_plain(part, one) for part in x] for x, one in zip(operands, given, strict=True))
    return _divided((a[0], a[1]), (b[0], b[1]))


def _reciprocal(node: Node, operands: Sequence[Any], given: Sequence[Node]) -> Pair:
    (x,) = operands
    return _divided((T.ones_like(x[0]), T.zeros_like(x[0])), x)


def _size(x: Pair) -> Any:
    """The distance from 0, whose square may leave the range."""
    a, b = T.abs(x[0]), T.abs(x[1])
    large, small = T.maximum(a, b), T.minimum(a, b)
    ratio = T.where((large == 0) | (large == float("inf")), T.zeros_like(large), small / large)
    found = large * T.sqrt(ratio * ratio + 1)
    return T.where((a == float("inf")) | (b == float("inf")), T.full_like(found, float("inf")), found)


def _abs(node: Node, operands: Sequence[Any], given: Sequence[Node]) -> Any:
    return _size(operands[0])


def _sgn(node: Node, operands: Sequence[Any], given: Sequence[Node]) -> Pair:
    (x,) = operands
    size = _size(x)
    below = T.where(size == 0, T.ones_like(size), size)
    return x[0] / below, x[1] / below


def _conj(node: Node, operands: Sequence[Any], given: Sequence[Node]) -> Pair:
    (x,) = operands
    return x[0], prim("neg", x[1])


def _exp(node: Node, operands: Sequence[Any], given: Sequence[Node]) -> Pair:
    (x,) = operands
    size = T.exp(x[0])
    return size * T.cos(x[1]), T.where(x[1] == 0, x[1], size * T.sin(x[1]))


def _log(node: Node, operands: Sequence[Any], given: Sequence[Node]) -> Pair:
    (x,) = operands
    return T.log(_size(x)), T.atan2(x[1], x[0])


def _equal(node: Node, operands: Sequence[Any], given: Sequence[Node]) -> Any:
    a, b = operands
    same = prim("bitwise_and", prim("eq", a[0], b[0]), prim("eq", a[1], b[1]))
    return same if node.op.name == "eq" else prim("bitwise_not", same)


def _cast(node: Node, operands: Sequence[Any], given: Sequence[Node]) -> Any:
    (x,), dtype = operands, node.dtype
    if not given[0].dtype.is_complex:
        real = cast(_plain(x, given[0]), dtype.to_real())
        return real, T.zeros_like(real)
    parts = [_plain(part, given[0]) for part in x]
    if dtype is bool_:
        return (parts[0] != 0) | (parts[1] != 0)
    return tuple([cast(part, dtype.to_real()) for part in parts]) if dtype.is_complex else cast(parts[0], dtype)


def _complex(node: Node, operands: Sequence[Any], given: Sequence[Node]) -> Pair:
    parts = [T.expand(_plain(x, one), tuple(node.shape)) for x, one in zip(operands, given, strict=True)]
    return parts[0], parts[1]


def _matmul(node: Node, operands: Sequence[Any], given: Sequence[Node]) -> Pair:
    a, b = operands
    rows = [[prim("matmul", p, q) for q in b] for p in a]
    return prim("sub", rows[0][0], rows[1][1]), prim("add", rows[0][1], rows[1][0])


# ----------------------------------------------------------------------------------------------------------------------------- Fourier


def _turns(rows: int, columns: int, whole: int, kind: DType) -> Pair:
    """cos and sin of -2 pi j k / whole, j a row and k a column, from the exact remainder."""
    j, k = (T.reshape(prim("iota", (n,), int64), shape) for n, shape in ((rows, (rows, 1)), (columns, (1, columns))))
    angle = cast((j * k) % whole, float64) * (-2 * pi / whole)
    return cast(T.cos(angle), kind), cast(T.sin(angle), kind)


def _transformed(x: Pair, inverse: bool) -> Pair:
    """The transforms of rows, (rows, n)."""
    rows, n = x[0]._layout.shape
    kind, sign = x[0]._layout.dtype, -1 if inverse else 1
    first = next((f for f in range(isqrt(n), 1, -1) if n % f == 0), 1) if type(n) is int and n > _LONGEST else 1
    if first == 1:
        c, s = _turns(n, n, n, kind)
        s = s * sign
        products = [[prim("matmul", part, m) for m in (c, s)] for part in x]
        return products[0][0] - products[1][1], products[0][1] + products[1][0]
    second = n // first
    columns = [T.reshape(T.transpose(T.reshape(part, (rows, first, second)), 1, 2), (rows * second, first)) for part in x]
    inner = _transformed((columns[0], columns[1]), inverse)  # (rows, j2, k1)
    c, s = _turns(second, first, n, kind)
    turned = _times((T.reshape(inner[0], (rows, second, first)), T.reshape(inner[1], (rows, second, first))), (c, s * sign))
    lines = [T.reshape(T.transpose(part, 1, 2), (rows * first, second)) for part in turned]
    outer = _transformed((lines[0], lines[1]), inverse)  # (rows, k1, k2), of the frequency k1 + first * k2
    found = [T.reshape(T.transpose(T.reshape(part, (rows, first, second)), 1, 2), (rows, n)) for part in outer]
    return found[0], found[1]


def _along(x: Pair, dim: int, inverse: bool) -> Pair:
    moved = [T.movedim(part, dim, -1) for part in x]
    shape = tuple(moved[0]._layout.shape)
    flat = [T.reshape(part, (prod(shape[:-1]), shape[-1])) for part in moved]
    if not prod(shape):
        return x
    found = [T.movedim(T.reshape(part, shape), -1, dim) for part in _transformed((flat[0], flat[1]), inverse)]
    return found[0], found[1]


def _scaled(x: Any, scale: float) -> Any:
    return x if scale == 1.0 else x * scale


def _c2c(node: Node, operands: Sequence[Any], given: Sequence[Node]) -> Pair:
    (x,), (dims, inverse, scale) = operands, node.attrs
    for dim in dims:
        x = _along(x, dim, inverse)
    return _scaled(x[0], scale), _scaled(x[1], scale)


def _r2c(node: Node, operands: Sequence[Any], given: Sequence[Node]) -> Pair:
    (x,), (dim, scale) = operands, node.attrs
    found = _along((x, T.zeros_like(x)), dim, False)
    real, imaginary = (_scaled(T.narrow(part, dim, 0, node.shape[dim]), scale) for part in found)
    return real, imaginary


def _c2r(node: Node, operands: Sequence[Any], given: Sequence[Node]) -> Any:
    """The other half of a spectrum are the conjugates of this one."""
    (x,), (dim, n, scale) = operands, node.attrs
    mirrored = [T.flip(T.narrow(part, dim, 1, (n - 1) // 2), (dim,)) for part in x]
    here = [T.narrow(part, dim, 0, n // 2 + 1) for part in x]
    whole = T.cat([here[0], mirrored[0]], dim), T.cat([here[1], -mirrored[1]], dim)
    return _scaled(_along(whole, dim, True)[0], scale)


_RULES: dict[str, Callable[[Node, Sequence[Any], Sequence[Node]], Any]] = {
    "view_as": _view_as, "update_as": _update_as, "mul": _mul, "div": _div, "reciprocal": _reciprocal, "abs": _abs, "sgn": _sgn, "conj": _conj,
    "exp": _exp, "log": _log, "eq": _equal, "ne": _equal, "cast": _cast, "complex": _complex, "matmul": _matmul, "fft_c2c": _c2c, "fft_r2c": _r2c,
    "fft_c2r": _c2r,
}  # fmt: skip
