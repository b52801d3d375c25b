"""`torch.fx.experimental.optimization`: modules that compute the same with fewer layers."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from calque import nn
from calque.compat.refused import refused
from calque.fx import Graph, GraphModule, Node, Transformer, symbolic_trace
from calque.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

__all__ = [
    "extract_subgraph", "fuse", "matches_module_pattern", "modules_to_mkldnn", "optimize_for_inference", "remove_dropout", "replace_node_module",
]  # fmt: skip

FUSED = ((nn.Conv1d, nn.BatchNorm1d), (nn.Conv2d, nn.BatchNorm2d), (nn.Conv3d, nn.BatchNorm3d), (nn.Linear, nn.BatchNorm1d))
optimize_for_inference = refused("torch.fx.experimental.optimization.optimize_for_inference")
modules_to_mkldnn = refused("torch.fx.experimental.optimization.modules_to_mkldnn")


def matches_module_pattern(pattern: Iterable[type], node: Node, modules: dict[str, Any]) -> bool:
    """Whether a node calls a module of the second class with what one of the first gives."""
    if not node.args:
        return False
    for kind, at in zip(pattern, (node.args[0], node)):
        if not isinstance(at, Node) or at.op != "call_module" or type(modules.get(at.target)) is not kind:
            return False
    return True


def replace_node_module(node: Node, modules: dict[str, Any], new_module: Any) -> None:
    """Let a node call another module."""
    above, _, name = node.target.rpartition(".")
    modules[node.target] = new_module
    setattr(modules[above], name, new_module)


def fuse(model: Any, inplace: bool = False, no_trace: bool = False) -> GraphModule:
    """A module in which convolutions and linear layers do what batch norms behind them did, which is for evaluation."""
    model = model if inplace else copy.deepcopy(model)
    traced = model if no_trace and isinstance(model, GraphModule) else symbolic_trace(model)
    modules = dict(traced.named_modules())
    graph = copy.deepcopy(traced.graph)
    for pattern in FUSED:
        for node in graph.nodes:
            if not matches_module_pattern(pattern, node, modules):
                continue
            before, norm = node.args[0], modules[node.target]
            if len(before.users) > 1 or not norm.track_running_stats:
                continue
            join = fuse_linear_bn_eval if pattern[0] is nn.Linear else fuse_conv_bn_eval
            replace_node_module(before, modules, join(modules[before.target], norm))
            node.replace_all_uses_with(before)
            graph.erase_node(node)
    return GraphModule(traced, graph)


class _WithoutDropout(Transformer):
    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        return args[0] if isinstance(self.submodules[target], nn.Dropout) else super().call_module(target, args, kwargs)


def remove_dropout(model: Any) -> GraphModule:
    """A module without its `Dropout` layers."""
    return _WithoutDropout(symbolic_trace(model)).transform()


def extract_subgraph(orig_module: Any, nodes: list[Node], inputs: list[Node], outputs: list[Node]) -> GraphModule:
    """A module of some nodes of a graph, from `inputs` to `outputs`."""
    graph, values = Graph(), {}
    for node in inputs:
        values[node] = graph.placeholder(node.name)
    for node in nodes:
        values[node] = graph.node_copy(node, lambda n: values[n])
    graph.output([values[node] for node in outputs])
    graph.lint()
    return GraphModule(orig_module, graph)
