"""Operations that NumPy computes in Python, as others that have native code: a program is recorded again, with those in their place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from calque import functional as T
from calque.base.dtypes import bool_, int64
from calque.base.layout import dense_layout
from calque.base.shapes import broadcast_shapes
from calque.exported.frame import Again
from calque.functional.common import cast, prim
from calque.ir.program import Node, Program
from calque.tensor import Tensor, record


def rewritten(program: Program) -> Program:
    """A program of the same values whose sorts, sums of integers and the like have native code."""
    if not any(_instead_of(node, program) for node in program.nodes):
        return program
    frame = Again()
    values: list[Any] = [None] * len(program.nodes)
    with frame:
        for position in program.inputs:
            node = program.nodes[position]
            values[position] = frame.argument(dense_layout(tuple(node.shape), node.dtype), False)
        for position, node in enumerate(program.nodes):
            if node.op.role == "input":
                continue
            frame.line = node.line
            instead = _instead_of(node, program)
            operands = [values[k] for k in node.inputs]
            if node.op.role == "constant":
                values[position] = node.attrs
            else:
                values[position] = instead(node, operands) if instead else record(node.op, tuple(operands), node.attrs, True)
        places = [frame.of(x) if isinstance(x, Tensor) else frame.number(*x) for x in values]
    checks = tuple([replace(check, value=places[check.value]) for check in program.checks])
    return replace(program, nodes=tuple(frame.nodes), outputs=tuple([places[k] for k in program.outputs]), checks=checks, late=())


def _instead_of(node: Node, program: Program) -> Callable[[Node, Sequence[Any]], Any] | None:
    """What records a node in other operations; None if it has native code itself."""
    given = [program.nodes[k] for k in node.inputs]
    name = node.op.name
    if name in ("argsort", "ranked"):
        return _sorted if given[0].shape else None
    if name == "matmul" and node.dtype.category < 2 and len(node.shape) >= 2:
        return _product
    if name == "cumsum" and node.shape and node.dtype.compute is not node.dtype:
        return _sum_of_halves
    if name == "cumsum" and node.shape and node.dtype.category < 2:
        return _sum_of_integers
    return None


def _sorted(node: Node, operands: Sequence[Any]) -> Any:
    """A stable order: the rank of an element is how many come before it. That takes n * n comparisons and no memory."""
    (x,), (d, *ranks, descending) = operands, node.attrs
    shape = tuple(x._layout.shape)
    n = shape[d]
    a, b = (T.reshape(x, (*shape[:d], *side, *shape[d + 1 :])) for side in ((n, 1), (1, n)))
    i, j = (_along(n, d + k, len(shape) + 1) for k in range(2))
    before, same = (b > a if descending else b < a), b == a
    if x._layout.dtype.category == 2:  # NaN counts as largest
        first, second = T.isnan(a), T.isnan(b)
        before = before | (second & ~first if descending else first & ~second)
        same = same | (first & second)
    rank = prim("sum", cast(before | (same & (j < i)), int64), (d + 1,), False)
    numbers = T.expand(_along(n, d, len(shape)), shape)
    order = prim("scatter", prim("full", (0, int64), shape), rank, numbers, d)
    return T.narrow(order, d, ranks[0], ranks[1] - ranks[0]) if ranks else order


def _along(n: int, d: int, rank: int) -> Any:
    """0, 1, 2, ... along dim d."""
    return prim("view", prim("iota", (n,), int64), tuple(n if k == d else 1 for k in range(rank)), tuple(1 if k == d else 0 for k in range(rank)), 0)


def _product(node: Node, operands: Sequence[Any]) -> Any:
    """A matrix product of integers, or of bools, as a sum of products."""
    a, b = operands
    rows, columns = tuple(a._layout.shape), tuple(b._layout.shape)
    batch = broadcast_shapes(rows[:-2], columns[:-2], op="matmul")
    a = T.reshape(T.expand(a, (*batch, *rows[-2:])), (*batch, rows[-2], 1, rows[-1]))
    b = T.reshape(T.transpose(T.expand(b, (*batch, *columns[-2:])), -1, -2), (*batch, 1, columns[-1], columns[-2]))
    terms = prim("mul", a, b)
    if node.dtype is bool_:
        return prim("any", terms, (len(batch) + 2,), False)
    return cast(prim("sum", terms, (len(batch) + 2,), False), node.dtype)


def _sum_of_halves(node: Node, operands: Sequence[Any]) -> Any:
    """In float32, rounded once."""
    return cast(prim("cumsum", cast(operands[0], node.dtype.compute), *node.attrs), node.dtype)


def _sum_of_integers(node: Node, operands: Sequence[Any]) -> Any:
    """A running sum without rounding: each adds up all that are before it."""
    (x,), (d,) = operands, node.attrs
    shape = tuple(x._layout.shape)
    n = shape[d]
    i, j = (_along(n, d + k, len(shape) + 1) for k in range(2))
    terms = prim("where", j <= i, T.reshape(cast(x, node.dtype), (*shape[:d], 1, *shape[d:])), (0, node.dtype))
    return cast(prim("sum", terms, (d + 1,), False), node.dtype)
