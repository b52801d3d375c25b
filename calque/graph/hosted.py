"""Complex numbers, float8 and the wide unsigned integers leave the sight of the passes: what computes with them becomes a step on the host.

Passes and kernels know the types of `dtypes.ALL`. A node with an operand or result of another one becomes the opaque primitive
`hosted`, which holds the reference of what it was and is like a sort to everybody: operands in memory, one launch. It runs before all other
passes, so that no rule about numbers is asked.
"""

from __future__ import annotations

from dataclasses import replace

from calque.base.dtypes import float64, int64
from calque.ir.program import Node, Program
from calque.ops.opdef import get


def needs_host(program: Program) -> bool:
    """Whether any value of a program has a type that kernels do not know."""
    return any(n.dtype.hosted for n in program.nodes)


def hosted(program: Program) -> Program:
    """The program with its nodes of such types as steps on the host; numbers among their operands have a wide type, and are converted there."""
    if not needs_host(program):
        return program
    op, old, nodes = get("hosted"), program.nodes, []
    for n in old:
        if n.op.kind == "leaf":
            number, wide = n.dtype.hosted and n.op.role != "input", int64 if n.dtype.category == 1 else float64
            nodes.append(Node(n.op, (), (n.attrs[0], wide), n.shape, wide, n.line) if number else n)
        elif n.dtype.hosted or any(old[i].dtype.hosted for i in n.inputs):
            operands = tuple([old[i].dtype.name for i in n.inputs])
            nodes.append(Node(op, n.inputs, (n.op.name, n.attrs, operands, n.dtype, tuple(n.shape)), n.shape, n.dtype, n.line))
        else:
            nodes.append(n)
    return replace(program, nodes=tuple(nodes))
