"""Rewriting by named rules: one forward pass that rebuilds a program, applies rules to every node and shares equal nodes.

A rule looks at one node whose operands are already rewritten and answers with the position of an equal value, or None. Rules are
data, so that a test can apply one alone and a trace can say which fired where.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from calque.base.dataclass import dataclass
from calque.base.dtypes import DType
from calque.base.shapes import Shape
from calque.ir.program import Check, Node, Program


@dataclass(frozen=True, slots=True)
class Rule:
    """`apply(graph, node)` for nodes of primitives that `ops` names, or of which it says so; `identity` states the law in words or symbols."""

    name: str
    ops: tuple[str, ...] | Callable[[Any], bool]
    identity: str
    apply: Callable[["Graph", Node], int | None]

    def takes(self, op: Any) -> bool:
        """Whether it is for nodes of this primitive."""
        return self.ops(op) if callable(self.ops) else op.name in self.ops


class Rules(tuple[Rule, ...]):
    """Rules in order. `known`: those for each primitive that was met."""

    known: dict[Any, tuple[Rule, ...]]

    def __new__(cls, rules: Iterable[Rule]) -> "Rules":
        found = super().__new__(cls, rules)
        found.known = {}
        return found

    def of(self, op: Any) -> tuple[Rule, ...]:
        """The rules for nodes of a primitive."""
        found = self.known.get(op)
        if found is None:
            found = self.known[op] = tuple([rule for rule in self if rule.takes(op)])
        return found


class Graph:
    """A program under construction: nodes in topological order, each value once."""

    def __init__(self, rules: Iterable[Rule] = (), trace: list[tuple[str, int]] | None = None) -> None:
        self.nodes: list[Node] = []
        self.known: dict[Any, int] = {}  # where a node's value is, whatever a rule has made of it
        self.depth = 0  # of rules whose results are being added
        self.rules = rules if isinstance(rules, Rules) else Rules(rules)
        self.trace = trace
        self.line = ""

    def add(self, op: Any, inputs: tuple[int, ...], attrs: tuple[Any, ...], shape: Shape, dtype: DType) -> int:
        """Position of a node that has this value."""
        return self.insert(Node(op, inputs, attrs, shape, dtype, self.line))

    def insert(self, node: Node) -> int:
        """Position of an equal value: by a rule, an equal node, or the node itself."""
        op, inputs = node.op, node.inputs
        if op.commutative and inputs[0] > inputs[1]:
            inputs = (inputs[1], inputs[0])
        attrs: Any = node.attrs
        if op.role == "constant":
            attrs = (repr(attrs[0]), *attrs[1:])  # constants: 0.0 and -0.0, 1 and True are different
        key = (op.name, inputs, attrs, node.dtype)
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self._by_rule(node)
        return found

    def _by_rule(self, node: Node) -> int:
        self.depth += 1
        for rule in self.rules.of(node.op):
            found = rule.apply(self, node)
            if found is not None:
                if self.trace is not None:
                    self.trace.append((rule.name, found))
                break
        else:
            found = len(self.nodes)
            self.nodes.append(node)
        self.depth -= 1
        return found


def rewrite(program: Program, rules: Iterable[Rule], trace: list[tuple[str, int]] | None = None) -> Program:
    """The program after one pass of the rules, without dead nodes. Equal nodes become one (common subexpressions)."""
    graph = Graph(rules, trace)
    place: list[int] = []
    for node in program.nodes:
        inputs = tuple([place[i] for i in node.inputs])
        if inputs != node.inputs:
            node = Node(node.op, inputs, node.attrs, node.shape, node.dtype, node.line)
        graph.line = node.line
        place.append(graph.insert(node))
    return finish(program, graph.nodes, place)


def finish(program: Program, nodes: list[Node], place: list[int]) -> Program:
    """The program with new nodes; `place` maps old positions to new ones. Dead nodes go; leaves stay, because callers number
    them."""
    outputs = [place[o] for o in program.outputs]
    checks = [place[c.value] for c in program.checks]
    alive = [n.op.kind == "leaf" and n.op.role != "constant" for n in nodes]
    for o in outputs + checks:
        alive[o] = True
    for i in range(len(nodes) - 1, -1, -1):
        if alive[i]:
            for source in nodes[i].inputs:
                alive[source] = True
    kept: list[Node] = []
    final = [-1] * len(nodes)
    for i, node in enumerate(nodes):
        if alive[i]:
            inputs = tuple([final[s] for s in node.inputs])
            if inputs != node.inputs:
                node = Node(node.op, inputs, node.attrs, node.shape, node.dtype, node.line)
            final[i] = len(kept)
            kept.append(node)
    return Program(
        tuple(kept), tuple([final[o] for o in outputs]), program.donated, program.updates,
        tuple([Check(final[at], c.make_error, c.line) for at, c in zip(checks, program.checks, strict=True)]), program.name,
    )  # fmt: skip
