"""How much a program has to compute, from its text alone."""

from __future__ import annotations

from math import prod

from calque.ir.program import Node, Program

FLOPS_PER_OPERATION = 16  # multiply-adds of a contraction that take as long as one elementwise operation from memory


def estimates(program: Program) -> tuple[int, int]:
    """Scalar operations of a program, roughly: elements times nodes; and multiply-adds of its contractions, from which those are apart."""
    nodes = program.nodes
    sizes: list[int] = []
    plain = products = 0
    for node in nodes:
        op, size = node.op, prod(node.shape)
        sizes.append(size)
        if op.kind == "contract":
            products += _products(program, node)
        elif op.kind != "leaf":
            for source in node.inputs:  # a loop: `max` over a list costs more than all else here
                if sizes[source] > size:
                    size = sizes[source]
            plain += size
    return plain, products


def _products(program: Program, node: Node) -> int:
    """Multiply-adds of a contraction, each counted as two."""
    nodes, name = program.nodes, node.op.name
    if name == "matmul":
        return 2 * node.numel * int(nodes[node.inputs[0]].shape[-1])
    if name in ("lstm", "lstm_grad"):
        gates, weight = (nodes[node.inputs[k]] for k in ((0, 3) if name == "lstm" else (1, 0)))
        return 2 * gates.numel * int(weight.shape[1]) if node.attrs[0] == node.op.parts[0] else node.numel
    if name.startswith("attention"):
        return _attention_work(program, node)
    inner = max((nodes[i].numel for i in node.inputs), default=1)
    return 2 * node.numel * max(1, inner // max(1, node.shape[-1] if node.shape else 1))


def _attention_work(program: Program, node: Node) -> int:
    """Operations of one part: of the five products of a gradient each part has about two, as the result has."""
    queries, keys = (program.nodes[node.inputs[k]].shape[-2] for k in (0, 1))
    part = node.attrs[0]
    return node.numel if part == "lse" else 4 * node.numel * (keys if part in ("out", "q") else queries)


def in_operations(plain: int, products: int) -> int:
    """Their sum in units of elementwise operations: contractions do many more of theirs in the same time."""
    return plain + products // FLOPS_PER_OPERATION


def estimate_cost(program: Program) -> int:
    """The same of a program."""
    return in_operations(*estimates(program))
