"""What a model computes on its way, as results of another model. Names as in `torchvision.models.feature_extraction`."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from calque import nn
from calque.base.errors import ArgumentError
from calque.base.text import described, shown
from calque.fx.graph import Graph
from calque.fx.module import GraphModule, assign_to
from calque.fx.node import Node
from calque.fx.tracer import Tracer
from calque.vision import ops

__all__ = ["create_feature_extractor", "get_graph_node_names"]

Names = dict[str, str]  # what a node is called -> what its result is called


def _leaves() -> list[type]:
    return [kind for _, kind in inspect.getmembers(ops, inspect.isclass) if issubclass(kind, nn.Module)]


class _Namer(Tracer):
    """Calls every node after the module in which it is computed: "layer1.0.conv1" what a module gives, "layer1.0.add" what an operation does. The
    second of the same name is "layer1.0.relu_1"."""

    def __init__(self, leaf_modules: Sequence[type] = (), **options: Any) -> None:
        super().__init__(**options)
        self.leaf_modules = (*_leaves(), *leaf_modules)
        self.names: dict[Node, str] = {}
        self._at = ""
        self._met: dict[str, int] = {}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether a module becomes one node."""
        return isinstance(m, self.leaf_modules) or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """As in `Tracer`, within the name of the module."""
        before, self._at = self._at, self.path_of_module(m)
        try:
            return super().call_module(m, forward, args, kwargs)
        finally:
            self._at = before

    def create_proxy(self, *args: Any, **options: Any) -> Any:
        """As in `Tracer`; the node gets its name."""
        made = super().create_proxy(*args, **options)
        node = made.node
        name = self._at if node.op == "call_module" else f"{self._at}.{_plain(node)}" if self._at else _plain(node)
        count = self._met[name] = self._met.get(name, -1) + 1
        self.names[node] = f"{name}_{count}" if count else name
        return made


def _plain(node: Node) -> str:
    """The name of a node without the number that tells it from others of its graph."""
    return re.sub(r"_\d+$", "", str(node))


def _traced(model: nn.Module, options: Mapping[str, Any] | None, concrete_args: dict[str, Any] | None = None) -> tuple[Graph, dict[Node, str]]:
    tracer = _Namer(**(options or {}))
    return tracer.trace(model, concrete_args), tracer.names


def _both(model: nn.Module, *args: Any) -> dict[bool, tuple[Graph, dict[Node, str]]]:
    """By whether it trains: how a model computes then."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        return {mode: _traced(model.train(mode), *args) for mode in (True, False)}
    finally:
        for module, mode in modes:
            module.training = mode


def get_graph_node_names(
    model: nn.Module, tracer_kwargs: Mapping[str, Any] | None = None, suppress_diff_warning: bool = False,
    concrete_args: dict[str, Any] | None = None,
) -> tuple[list[str], list[str]]:  # fmt: skip
    """(names of what the model computes when it trains, the same when it does not), in their order. See `create_feature_extractor`.

    >>> import calque
    >>> from calque.vision.models.feature_extraction import get_graph_node_names
    >>> get_graph_node_names(calque.nn.Sequential(calque.nn.Linear(2, 2), calque.nn.ReLU()))[0]
    ['input', '0', '1']
    """
    found = _both(_module("get_graph_node_names", model), tracer_kwargs, concrete_args)
    train, evaluating = (list(found[mode][1].values()) for mode in (True, False))
    return train, evaluating


def _module(op: str, model: Any) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"[{op}] expected a Module, got {described(model)}; pass the model itself")
    return model


def _asked(what: str, given: Any) -> Names:
    names = given if isinstance(given, Mapping) else {name: name for name in given} if isinstance(given, (list, tuple)) else None
    if not names or not all(isinstance(name, str) for name in (*names, *names.values())):
        raise ArgumentError(
            f"[create_feature_extractor] expected {what} as names, or a dict of names and what results are called, got {shown(given)}"
        )
    return dict(names)


def _ending_there(graph: Graph, names: dict[Node, str], wanted: Names) -> Graph:
    """A graph that gives what was asked for, and computes nothing behind it."""
    results: dict[str, Node] = {}
    for name, called in wanted.items():
        inside = [node for node, own in names.items() if own == name or own.startswith(f"{name}.")]
        if not inside:
            known = ", ".join(list(names.values())[:12])
            raise ArgumentError(f"[create_feature_extractor] node: '{name}' is not present in model: expected one of {known}, ...")
        results[called] = inside[-1]  # of a module that is no node itself: the last thing computed in it
    (end,) = graph.find_nodes(op="output")
    graph.erase_node(end)
    graph.output(results)
    graph.eliminate_dead_code(lambda node: node.op != "call_module" and node.is_impure())
    return graph


def _targets(graph: Graph) -> set[str]:
    return {node.target for node in graph.nodes if node.op in ("get_attr", "call_module")}


class _Extractor(GraphModule):
    """A model that computes by one graph when it trains, and by another when it does not."""

    _graphs: dict[bool, Graph]

    def __init__(self, root: nn.Module, graphs: dict[bool, Graph], name: str) -> None:
        super().__init__(root, graphs[root.training], name)
        used, other = (_targets(graphs[mode]) for mode in (root.training, not root.training))
        for target in sorted(other - used, key=lambda t: t.count(".")):
            assign_to(self, target, attrgetter(target)(root))
        self.__dict__["_graphs"] = graphs

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Extractor":
        root = super().__deepcopy__(memo)
        return _Extractor(root, {mode: copy.deepcopy(graph, memo) for mode, graph in self._graphs.items()}, type(self).__name__)

    def train(self, mode: bool = True) -> Any:
        """As in `Module`, with the graph that belongs to the mode."""
        if bool(mode) is not self.training or self.graph is not self._graphs[bool(mode)]:
            self.graph = self._graphs[bool(mode)]
        return super().train(mode)


def create_feature_extractor(
    model: nn.Module, return_nodes: Sequence[str] | Mapping[str, str] | None = None, train_return_nodes: Any = None, eval_return_nodes: Any = None,
    tracer_kwargs: Mapping[str, Any] | None = None, suppress_diff_warning: bool = False, concrete_args: dict[str, Any] | None = None,
) -> GraphModule:  # fmt: skip
    """A module with the weights of a model that gives a dict of what the model computes on its way, and computes nothing behind that.

    return_nodes: names as of `get_graph_node_names`, or of modules, which stand for the last thing that they compute; or a dict of such names and
    what their results are called. train_return_nodes, eval_return_nodes: others for a model that trains and one that does not, both in the place of
    `return_nodes`. tracer_kwargs: of `calque.fx.Tracer`, and `leaf_modules`, classes of modules that are one node each. concrete_args: see
    `Tracer.trace`. suppress_diff_warning: changes nothing, for two graphs that differ are no reason to warn here.

    >>> import calque
    >>> model = calque.nn.Sequential(calque.nn.Linear(2, 3), calque.nn.ReLU(), calque.nn.Linear(3, 1))
    >>> extract = calque.vision.models.feature_extraction.create_feature_extractor(model, {"1": "hidden"})
    >>> {name: tuple(value.shape) for name, value in extract(calque.ones(4, 2)).items()}
    {'hidden': (4, 3)}
    """
    _module("create_feature_extractor", model)
    if (return_nodes is None) is (train_return_nodes is None) or (train_return_nodes is None) is not (eval_return_nodes is None):
        raise ArgumentError("[create_feature_extractor] expected return_nodes, or train_return_nodes and eval_return_nodes, and not both")
    found = _both(model, tracer_kwargs, concrete_args)
    asked = {
        True: _asked("train_return_nodes" if return_nodes is None else "return_nodes", train_return_nodes if return_nodes is None else return_nodes),
        False: _asked("eval_return_nodes" if return_nodes is None else "return_nodes", eval_return_nodes if return_nodes is None else return_nodes),
    }
    graphs = {mode: _ending_there(*found[mode], asked[mode]) for mode in (True, False)}
    return _Extractor(model, graphs, type(model).__name__)
