"""How much a program has to compute, from its text alone."""

from __future__ import annotations

from math import prod
from typing import Any

from calque.base.dtypes import bool_, float32, float64, int64
from calque.base.layout import Layout
from calque.ir.program import Program
from calque.ops.opdef import OpDef
from calque.ops.recurrent import is_recurrent

FLOPS_PER_OPERATION = 16  # multiply-adds of a contraction that take as long as one elementwise operation from memory


def estimates(program: Program) -> tuple[int, int]:
    """Scalar operations of a program, roughly: elements times nodes; and multiply-adds of its contractions, from which those are apart."""
    nodes = program.nodes
    sizes: list[int] = []
    plain = products = 0
    shared: set[Any] = set()  # computations of several parts that were counted
    for node in nodes:
        op, size = node.op, prod(node.shape)
        sizes.append(size)
        if op.kind == "contract" and op.routine is not None:
            if op.parts:
                computation = (op, node.inputs, node.attrs[1:])
                if computation in shared:
                    products += size
                    continue
                shared.add(computation)
            products += op.routine.flops([nodes[k].shape for k in node.inputs], node.attrs, node.shape)
        elif op.kind != "leaf":
            for source in node.inputs:  # a loop: `max` over a list costs more than all else here
                if sizes[source] > size:
                    size = sizes[source]
            plain += size
    return plain, products


def in_operations(plain: int, products: int) -> int:
    """Their sum in units of elementwise operations: contractions do many more of theirs in the same time."""
    return plain + products // FLOPS_PER_OPERATION


def estimate_cost(program: Program) -> int:
    """The same of a program."""
    return in_operations(*estimates(program))


LOADING = 20_000  # microseconds to load what compiles
PLAN_NODE = 100  # microseconds to plan and link a node
SIZED_NODE = 20  # ... where that follows from others by arithmetic
INTERPRET_NODE = 2  # ... to interpret one, and one more for every...
INTERPRET_RATE = 1_000  # ... scalar operations


def interpreted_for(microseconds: int, program: Program, cost: int, more: int = 0) -> int:
    """How often a program is interpreted in so many microseconds for each of its nodes and some `more`. `cost`: see `in_operations`."""
    nodes = len(program.nodes)
    return (microseconds * nodes + more) // max(1, INTERPRET_NODE * nodes + cost // INTERPRET_RATE)


_USUAL = (float32, float64, int64, bool_)
ALIKE_WORK = 1 << 20
"""Scalar operations from which interpreting what rounds alike takes memory that counts: its results are arrays of their own, never in place."""


def rounds_alike(program: Program) -> bool:
    """Whether results are the same bits, whichever way it is computed: numbers of usual types, each rounded once and correctly (sums and functions
    are not). That is so for what optimizers do."""
    return all((node.op.exact or node.op.kind == "leaf" or node.op.role == "fill") and node.dtype in _USUAL for node in program.nodes)


LARGE = 1 << 14  # numbers in an operand or a result, from which on an operation is large
PRODUCTS = ("matmul", "addmm")  # the contractions that NumPy computes as fast
_PRODUCTS = 1 << 20  # multiplications of a matrix product
_RECURRENT = 1 << 22  # ... of all steps of a recurrent layer


def large(op: OpDef, layouts: tuple[Any, ...], result: Layout) -> bool:
    """Whether an operation gains from being compiled together with others: a small one takes no longer than recording and starting it. `layouts`: of
    its operands; of a number its dtype."""
    if op.kind == "contract":
        if is_recurrent(op.name):
            assert op.routine is not None, "a layer has a routine"
            return op.routine.flops([lay.shape for lay in layouts], (), ()) >= 2 * _RECURRENT
        return bool(op.name not in PRODUCTS or result.numel * layouts[0].shape[-1] >= _PRODUCTS)
    read = layouts[1:] if op.role == "lookup" else layouts  # of a table only what is looked up
    return max([result.numel, *[lay.numel for lay in read if hasattr(lay, "numel")]]) >= LARGE  # type: ignore[no-any-return]
