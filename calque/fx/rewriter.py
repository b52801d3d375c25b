"""`replace_pattern`: find a piece of a graph and put another in its place."""

from __future__ import annotations

from typing import Any, NamedTuple

from calque.fx.graph import Graph
from calque.fx.module import GraphModule
from calque.fx.node import Node
from calque.fx.tracer import symbolic_trace
from calque.nn.module import Module


class Match(NamedTuple):
    """A place where the pattern was found: the last node of it, and which node stands for which of the pattern."""

    anchor: Node
    nodes_map: dict[Node, Any]


def _graph_of(pattern: Any) -> Graph:
    return pattern if isinstance(pattern, Graph) else pattern.graph if isinstance(pattern, GraphModule) else symbolic_trace(pattern).graph


def _match(wanted: Any, found: Any, pairs: dict[Node, Any]) -> bool:
    """Whether a value of the graph looks like one of the pattern; `pairs` is filled in."""
    if isinstance(wanted, Node):
        if wanted in pairs:
            return bool(pairs[wanted] is found or pairs[wanted] == found)
        if wanted.op == "placeholder":
            pairs[wanted] = found
            return True
        if not isinstance(found, Node) or (wanted.op, len(wanted.args), set(wanted.kwargs)) != (found.op, len(found.args), set(found.kwargs)):
            return False
        if wanted.target != found.target:
            return False
        pairs[wanted] = found
        return _match(wanted.args, found.args, pairs) and all(_match(wanted.kwargs[key], found.kwargs[key], pairs) for key in wanted.kwargs)
    if isinstance(wanted, (tuple, list)) and isinstance(found, (tuple, list)):
        return len(wanted) == len(found) and all(_match(w, f, pairs) for w, f in zip(wanted, found))
    return type(wanted) is type(found) and bool(wanted == found)


def replace_pattern(gm: GraphModule, pattern: Any, replacement: Any) -> list[Match]:
    """Replace every piece of the graph that looks like `pattern` (a function, module or graph with one result) by `replacement`, whose arguments
    stand for the same values. Pieces whose inner results are used elsewhere stay. The code is made again; the places are returned.

    >>> import calque
    >>> traced = calque.fx.symbolic_trace(lambda x: calque.relu(x) + 1)
    >>> len(calque.fx.replace_pattern(traced, lambda x: calque.relu(x), lambda x: calque.sigmoid(x)))
    1
    >>> traced(calque.zeros(1))
    tensor([1.5000])
    """
    wanted, new = _graph_of(pattern), _graph_of(replacement)
    last = wanted.output_node().args[0]
    matches: list[Match] = []
    used: set[Node] = set()
    for node in list(gm.graph.nodes):
        pairs: dict[Node, Any] = {}
        if not isinstance(last, Node) or not _match(last, node, pairs):
            continue
        inner = {f for w, f in pairs.items() if w.op != "placeholder" and f is not node}
        if inner & used or node in used or any(user not in inner and user is not node for f in inner for user in f.users):
            continue
        used |= {*inner, node}
        matches.append(Match(node, pairs))
    replaced: dict[Node, Node] = {}
    for match in matches:
        _put(gm, match, wanted, new, replaced)
    if isinstance(replacement, Module):
        for name, module in replacement.named_children():
            if not hasattr(gm, name):
                gm.add_submodule(name, module)
    gm.recompile()
    return matches


def _put(gm: GraphModule, match: Match, wanted: Graph, new: Graph, replaced: dict[Node, Node]) -> None:
    """Replace one piece. What an earlier piece has replaced is found in `replaced`."""
    node, values = match.anchor, {}
    given = [match.nodes_map[p] for p in wanted.nodes if p.op == "placeholder" and p in match.nodes_map]
    for p, value in zip([p for p in new.nodes if p.op == "placeholder"], given):
        values[p] = replaced.get(value, value) if isinstance(value, Node) else value
    with gm.graph.inserting_before(node):
        result = gm.graph.graph_copy(new, values)
    node.replace_all_uses_with(result)
    replaced[node] = result
    pieces = {f for w, f in match.nodes_map.items() if w.op != "placeholder"}
    for piece in [n for n in reversed(gm.graph.nodes) if n in pieces]:
        if not piece.users:
            gm.graph.erase_node(piece)
