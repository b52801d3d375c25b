"""`torch.fx.passes.split_module`: a graph as calls of several, each of which has the nodes that a function gives it."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from calque.fx import Graph, GraphModule, Node, Proxy, map_arg
from calque.nn.module import Module

__all__ = ["Partition", "split_module"]


class Partition:
    """The nodes of one submodule. What others need of it and it of others, by the names of nodes, in the order in which they are met."""

    def __init__(self, name: str) -> None:
        self.name, self.submod_name = name, f"submod_{name}"
        self.node_names: list[str] = []
        self.inputs: dict[str, None] = {}
        self.outputs: dict[str, None] = {}
        self.dependencies: dict[str, None] = {}
        self.dependents: dict[str, None] = {}
        self.graph = Graph()
        self.environment: dict[Node, Node] = {}
        self.targets: dict[str, Any] = {}


def _attribute(m: Any, name: str) -> Any:
    return reduce(getattr, name.split("."), m)


def _uses(nodes: list[Node], of: dict[Node, Partition]) -> None:
    """Write down what crosses from one partition into another."""
    for node in nodes:
        if node.op in ("placeholder", "get_attr"):
            continue
        here = of.get(node)
        for used in node.all_input_nodes:
            there = of.get(used)
            if there is here:
                continue
            if there is not None:
                there.outputs.setdefault(used.name)
            if here is not None:
                here.inputs.setdefault(used.name)
            if there is not None and here is not None:
                there.dependents.setdefault(here.name)
                here.dependencies.setdefault(there.name)


def _order(partitions: dict[str, Partition]) -> list[Partition]:
    """The partitions, each behind those that it needs."""
    ready, found = [p for p in partitions.values() if not p.dependencies], []
    while ready:
        found.append(ready.pop())
        for name in found[-1].dependents:
            partitions[name].dependencies.pop(found[-1].name)
            if not partitions[name].dependencies:
                ready.append(partitions[name])
    if len(found) != len(partitions):
        raise RuntimeError("[split_module] expected partitions of which none needs itself, got some: cycle exists between partitions!")
    return found


def _take_inputs(m: Any, partition: Partition, nodes: dict[str, Node], keep_names: bool) -> None:
    """A placeholder for each value that comes from elsewhere; modules are attributes."""
    modules = [n for n in partition.inputs if nodes[n].op == "get_attr" and isinstance(_attribute(m, nodes[n].target), Module)]
    values = [name for name in partition.inputs if name not in modules]
    for k, name in enumerate(values):
        made = partition.graph.placeholder(name if keep_names else f"arg_{k}", type_expr=nodes[name].type)
        partition.environment[nodes[name]] = made
    for name in modules:
        target = nodes[name].target
        partition.targets[target] = _attribute(m, target)
        partition.environment[nodes[name]] = partition.graph.get_attr(target)
    for name, made in zip([*values, *modules], [partition.environment[nodes[n]] for n in [*values, *modules]]):
        made.meta = dict(nodes[name].meta)
    partition.inputs = dict.fromkeys(values)


def _take_node(m: Any, partition: Partition, node: Node, keep_name: bool, qualnames: dict[str, str] | None) -> None:
    """A copy of a node; the modules that it calls are attributes with a name of one part."""
    target = node.target
    if node.op in ("call_module", "get_attr"):
        target = node.target.replace(".", "_")
        partition.targets[target] = _attribute(m, node.target)
        if qualnames is not None:
            qualnames[f"{partition.submod_name}.{target}"] = node.target
    args, kwargs = map_arg(node.args, partition.environment.__getitem__), map_arg(node.kwargs, partition.environment.__getitem__)
    made = partition.graph.create_node(node.op, target, args, kwargs, node.name if keep_name else None, node.type)
    made.meta = dict(node.meta)
    partition.environment[node] = made


class _Outer:
    """The graph that calls the partitions."""

    def __init__(self, m: Any, keep_names: bool) -> None:
        self.m, self.keep_names, self.graph = m, keep_names, Graph()
        self.values: dict[str, Node] = {}
        self.attributes: dict[str, Any] = {}

    def take(self, node: Node) -> None:
        """An argument or attribute of the whole."""
        if node.name in self.values:
            return
        if node.op == "placeholder":
            made = self.graph.placeholder(node.name if self.keep_names else node.target, node.type, *node.args)
        else:
            made = self.graph.get_attr(node.target)
            self.attributes[node.target] = _attribute(self.m, node.target)
        made.meta = dict(node.meta)
        self.values[node.name] = made

    def call(self, partition: Partition, in_tuples: bool) -> None:
        """A call of a partition, and what comes out of it."""
        by_name = {node.name: made for node, made in partition.environment.items()}
        results = tuple(by_name[name] for name in partition.outputs)
        single = len(results) == 1 and not in_tuples
        partition.graph.output(results[0] if single else results)
        self.attributes[partition.submod_name] = GraphModule(partition.targets, partition.graph)
        called = self.graph.call_module(partition.submod_name, tuple(self.values[name] for name in partition.inputs))
        for k, name in enumerate(partition.outputs):
            self.values[name] = called if single else Proxy(called)[k].node  # type: ignore[index]


def split_module(
    m: GraphModule, root_m: Any, split_callback: Callable[[Node], int], qualname_map: dict[str, str] | None = None, keep_original_order: bool = False,
    keep_original_node_name: bool = False, keep_original_input_name: bool = True, *, partition_affix: str | None = None, tuple_return: bool = False,
) -> GraphModule:  # fmt: skip
    """A module whose submodules `submod_0`, ... have the nodes for which `split_callback` gives that number."""
    partitions: dict[str, Partition] = {}
    of: dict[Node, Partition] = {}
    nodes = list(m.graph.nodes)
    for node in nodes:
        if node.op not in ("placeholder", "get_attr", "output"):
            name = "_".join([*([] if partition_affix is None else [partition_affix]), str(split_callback(node))])
            of[node] = partitions.setdefault(name, Partition(name))
            of[node].node_names.append(node.name)
    _uses(nodes, of)
    written = list(partitions.values())
    ordered = _order(partitions)
    by_name = {node.name: node for node in nodes}
    for partition in ordered:
        _take_inputs(m, partition, by_name, keep_original_input_name)
    for node, partition in of.items():
        _take_node(m, partition, node, keep_original_node_name, qualname_map)
    outer = _Outer(m, keep_original_node_name)
    ends = [node for node in nodes if node.op in ("placeholder", "get_attr")]
    for partition in written if keep_original_order else ordered:
        for node in ends if not keep_original_order else [n for n in ends if n.op == "placeholder" or n.name in partition.inputs]:
            outer.take(node)
        outer.call(partition, tuple_return)
    for node in [] if keep_original_order and partitions else ends:
        outer.take(node)
    outer.graph.output(map_arg(m.graph.output_node().args[0], lambda n: outer.values[n.name]))
    made: GraphModule = GraphModule(outer.attributes, outer.graph)
    made.meta["partition_names"] = {partition.submod_name for partition in written}
    return made
