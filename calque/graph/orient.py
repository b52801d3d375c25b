"""Matrix products whose result is only read transposed are computed transposed.

`linear` multiplies by `weight.T`, so the gradient of the weight arrives as the transpose of a product. A contraction reads operands of any
strides at no cost, while an optimizer that reads its gradient across rows walks in blocks: (a b)^T = b^T a^T moves the transposition
to where it is free.
"""

from __future__ import annotations

from calque.base.shapes import Shape, contiguous_strides, is_contiguous
from calque.graph.algebra import RULES, compose, view_of
from calque.ir.program import Node, Program
from calque.ir.rewrite import Graph, finish
from calque.ops.contract import MATMUL


def orient(program: Program) -> Program:
    """Turn the products (and the elementwise sums of products) all of whose readers want them transposed."""
    turned = _turned(program)
    if not turned:
        return program
    graph = Graph(RULES)
    place: list[int] = []
    for i, node in enumerate(program.nodes):
        inputs = tuple([place[k] for k in node.inputs])
        graph.line = node.line
        if i not in turned:
            place.append(graph.insert(Node(node.op, inputs, node.attrs, node.shape, node.dtype, node.line)))
            continue
        operands = [_transposed(graph, k) for k in inputs]
        if node.op is MATMUL:
            operands.reverse()
        result = graph.add(node.op, tuple(operands), node.attrs, _swapped(node.shape), node.dtype)
        place.append(_transposed(graph, result))
    return finish(program, graph.nodes, place)


def _turned(program: Program) -> set[int]:
    """Products and elementwise nodes over them that are only read transposed."""
    nodes, users = program.nodes, program.users()
    kept = {*program.outputs, *(c.value for c in program.checks)}
    found: set[int] = set()
    for i in range(len(nodes) - 1, -1, -1):
        node = nodes[i]
        product = node.op is MATMUL and len(node.shape) >= 2
        if not users[i] or i in kept or not (product or _same_everywhere(nodes, node)):
            continue
        if all(u in found or _untwists(node.shape, nodes[u]) for u in users[i]):
            found.add(i)
    # An elementwise node turns only when every operand does: nothing else may become a strided read.
    for i in range(len(nodes)):
        if i in found and nodes[i].op is not MATMUL and any(k not in found for k in nodes[i].inputs if nodes[k].shape):
            found.discard(i)
    while True:  # a product read by an elementwise node that does not turn must not turn either
        wrong = {i for i in found if any(u not in found and nodes[u].op.role != "view" for u in users[i])}
        wrong |= {i for i in found - wrong if nodes[i].op is not MATMUL and any(k in wrong for k in nodes[i].inputs)}
        if not wrong:
            return found
        found -= wrong


def _same_everywhere(nodes: tuple[Node, ...], node: Node) -> bool:
    """An elementwise node whose operands are of its shape or numbers."""
    if node.op.kind != "elementwise" or node.op.body is None or len(node.shape) < 2 or not node.inputs or node.attrs:
        return False
    return all(nodes[k].shape in ((), node.shape) for k in node.inputs)


def _untwists(shape: Shape, user: Node) -> bool:
    """Whether a view of a value of `shape` becomes a plain reshape when the value is stored with its last two dims swapped."""
    if user.op.role != "view" or shape[-2] < 2 or shape[-1] < 2:
        return False
    back = (shape, _swap_strides(shape), 0)
    found = compose(user.attrs, back)
    return found is not None and found[1] == 0 and is_contiguous(user.shape, found[0])


def _swapped(shape: Shape) -> Shape:
    return (*shape[:-2], shape[-1], shape[-2])


def _swap_strides(shape: Shape) -> Shape:
    """Strides that show a dense value of the swapped shape under `shape`."""
    strides = contiguous_strides(_swapped(shape))
    return (*strides[:-2], strides[-1], strides[-2])


def _transposed(g: Graph, source: int) -> int:
    """A value with its last two dims swapped; numbers as they are."""
    shape = g.nodes[source].shape
    if not shape:
        return source
    turned = _swapped(shape)
    return view_of(g, source, turned, _swap_strides(turned), 0)
