"""`Interpreter` and `Transformer`: walk through a graph with values, or with proxies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from calque.base.errors import ArgumentError, DTypeError
from calque.base.text import type_name
from calque.fx.graph import Graph
from calque.fx.module import GraphModule
from calque.fx.node import Node, map_arg
from calque.fx.proxy import Proxy
from calque.fx.tracer import Tracer
from calque.nn.module import Module


class Interpreter:
    """Runs a graph node by node; subclasses change what a kind of node does by its method (`call_function`, `call_module`, ...).

    >>> import calque
    >>> class Shapes(calque.fx.Interpreter):
    ...     def run_node(self, n):
    ...         value = super().run_node(n)
    ...         n.meta["shape"] = getattr(value, "shape", None)
    ...         return value
    >>> traced = calque.fx.symbolic_trace(calque.nn.Sequential(calque.nn.Linear(2, 3), calque.nn.ReLU()))
    >>> _ = Shapes(traced).run(calque.ones(4, 2))
    >>> [tuple(node.meta["shape"]) for node in traced.graph.nodes]
    [(4, 2), (4, 3), (4, 3), (4, 3)]
    """

    def __init__(self, module: Module, garbage_collect_values: bool = True, graph: Graph | None = None) -> None:
        if graph is None and not hasattr(module, "graph"):
            raise DTypeError(f"[{type(self).__name__}] expected a GraphModule, got {type_name(module)}; make one with symbolic_trace, or give graph=")
        self.module, self.graph = module, graph if graph is not None else module.graph
        self.submodules = dict(module.named_modules())
        self.env: dict[Node, Any] = {}
        self.args_iter: Iterator[Any] = iter(())
        self.garbage_collect_values = garbage_collect_values
        self.extra_traceback = True

    def run(self, *args: Any, initial_env: dict[Node, Any] | None = None, enable_io_processing: bool = True) -> Any:
        """The result for these arguments. initial_env: results of nodes that are not run."""
        self.env = dict(initial_env or {})
        flat = self.graph.flat if enable_io_processing else None
        self.args_iter = iter(args if flat is None else flat.values(args))
        left = {node: len(node.users) for node in self.graph.nodes}
        for node in self.graph.nodes:
            if node not in self.env:
                self.env[node] = self.run_node(node)
            if node.op == "output":
                return self.env[node] if flat is None else flat.result(self.env[node])
            for used in node.all_input_nodes if self.garbage_collect_values else ():
                left[used] -= 1
                if not left[used]:
                    self.env.pop(used, None)
        return None

    def run_node(self, n: Node) -> Any:
        """The result of one node."""
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        return getattr(self, n.op)(n.target, args, kwargs)

    def placeholder(self, target: Any, args: Any, kwargs: Any) -> Any:
        """The next argument, all that are left for "*args", or the default."""
        if target.startswith("*"):
            return list(self.args_iter)
        try:
            return next(self.args_iter)
        except StopIteration:
            if args:
                return args[0]
            raise RuntimeError(f"[Interpreter] expected a value for the argument {target!r}, got none; pass one to run()") from None

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        """An attribute of the module."""
        return self.fetch_attr(target)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """A call of a function."""
        return target(*args, **kwargs)

    def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
        """A call of a method of the first argument."""
        return getattr(args[0], target)(*args[1:], **kwargs)

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        """A call of a submodule."""
        return self.fetch_attr(target)(*args, **kwargs)

    def output(self, target: Any, args: Any, kwargs: Any) -> Any:
        """The result."""
        return args[0]

    def fetch_attr(self, target: str) -> Any:
        """An attribute of the module by its dotted name."""
        found: Any = self.module
        for k, part in enumerate(target.split(".")):
            if not hasattr(found, part):
                raise RuntimeError(f"[Interpreter] expected an attribute {'.'.join(target.split('.')[: k + 1])!r} of the module; the node names it")
            found = getattr(found, part)
        return found

    def fetch_args_kwargs_from_env(self, n: Node) -> tuple[Any, Any]:
        """The arguments of a node, with the results of others in their places."""
        return self.map_nodes_to_values(n.args, n), self.map_nodes_to_values(n.kwargs, n)

    def map_nodes_to_values(self, args: Any, n: Node) -> Any:
        """Results in the places of nodes. (Lists and dicts are ordinary ones again.)"""

        def value(node: Node) -> Any:
            if node not in self.env:
                raise RuntimeError(f"[Interpreter] expected that {n} uses nodes in front of it, got {node}; graph.lint() says more")
            return self.env[node]

        return _plain(map_arg(args, value))


def _plain(value: Any) -> Any:
    """Ordinary lists and dicts in the places of those that cannot be written to."""
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, tuple):
        return type(value)(*map(_plain, value)) if hasattr(value, "_fields") else tuple(map(_plain, value))
    return value


class _Again(Tracer):
    """Traces what a `Transformer` does: every module is one node."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph

    def is_leaf_module(self, m: Module, module_qualified_name: str) -> bool:
        """True."""
        return True


class Transformer(Interpreter):
    """Makes a new module of an old one: the methods of `Interpreter` get proxies, and `transform()` gives the result."""

    def __init__(self, module: Module) -> None:
        super().__init__(module)
        self.new_graph = Graph(tracer_cls=getattr(module.graph, "_tracer_cls", None))
        self.tracer = _Again(self.new_graph)
        self.tracer.root = module

    def placeholder(self, target: Any, args: Any, kwargs: Any) -> Any:
        """A proxy for an argument."""
        return Proxy(self.new_graph.placeholder(target, default_value=args[0] if args else ...), self.tracer)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        """A proxy for an attribute."""
        return self.tracer.create_proxy("get_attr", target, args, kwargs)

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        """A node that calls a submodule."""
        return self.tracer.create_proxy("call_module", target, args, kwargs)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """A node that calls a function."""
        return self.tracer.create_proxy("call_function", target, args, kwargs)

    def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
        """A node that calls a method."""
        return self.tracer.create_proxy("call_method", target, args, kwargs)

    def transform(self) -> GraphModule:
        """The new module."""
        result = super().run()
        self.new_graph.output(self.tracer.create_arg(result))
        if not isinstance(self.module, Module):
            raise ArgumentError("[Transformer] expected a GraphModule, got something else; trace it first")
        return GraphModule(self.module, self.new_graph, type(self.module).__name__)
