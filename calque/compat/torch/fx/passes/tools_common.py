"""`torch.fx.passes.tools_common`: what passes ask of nodes, and graphs whose nodes are put in order again."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from calque.compat.torch import typename
from calque.fx import Graph, GraphModule, Node
from calque.fx.node import qualified_name
from calque.nn.module import Module
from calque.tensor import Tensor

__all__ = ["get_node_target", "is_node_output_tensor", "legalize_graph", "stable_topological_sort"]


def get_node_target(submodules: Mapping[str, Module], node: Node) -> str:
    """The class of the module that a node calls, or the name of its function or method."""
    kinds = ("call_module", "call_function", "call_method")
    assert node.op in kinds, f"Expect op types of {', '.join(kinds)}, but found {node.op}"
    if node.op == "call_module":
        return typename(submodules[node.target])
    return qualified_name(node.target) if node.op == "call_function" else str(node.target)


def is_node_output_tensor(node: Node) -> bool:
    """Whether a node gives a tensor, as `ShapeProp` has seen it."""
    kind = node.meta.get("type")
    return kind is not None and issubclass(kind, Tensor)


def _ordered(gm: GraphModule, order: list[Node]) -> GraphModule:
    """The module with its nodes in this order."""
    made = Graph(tracer_cls=gm.graph._tracer_cls)
    values: dict[Node, Node] = {}
    made.flat = gm.graph.flat
    for node in order:
        values[node] = made.node_copy(node, lambda n: values[n])
    gm.graph = made
    return gm


def legalize_graph(gm: GraphModule) -> GraphModule:
    """The module, changed so that every node stands behind those that it uses, as early as these allow."""
    missing = {node: len(node.all_input_nodes) for node in gm.graph.nodes}
    ready, order = deque(node for node in missing if not missing[node]), []
    while ready:
        order.append(ready.popleft())
        for user in order[-1].users:
            missing[user] -= 1
            if not missing[user]:
                ready.append(user)
    if len(order) < len(missing):
        raise RuntimeError(f"[legalize_graph] Input graph has cycles, unable to add {[node for node in missing if missing[node]]}")
    return _ordered(gm, order)


def stable_topological_sort(gm: GraphModule) -> GraphModule:
    """The module, changed so that every node stands behind those that it uses; where that leaves a choice the nodes stay as they are."""
    order: dict[Node, None] = {}
    waiting = list(gm.graph.nodes)
    while waiting:
        free = next((node for node in waiting if all(used in order for used in node.all_input_nodes)), None)
        if free is None:
            raise RuntimeError(f"[stable_topological_sort] Input graph has cycles, unable to add {waiting}")
        order.setdefault(free)
        waiting.remove(free)
    return _ordered(gm, list(order))
