"""`GraphModule`: a module whose `forward` is the code of a graph."""

from __future__ import annotations

import copy
import linecache
import sys
from itertools import count
from typing import Any

from calque.base.errors import DTypeError
from calque.base.text import type_name
from calque.fx.graph import Graph
from calque.nn.module import Module
from calque.tensor import Tensor

_numbers = count()


class GraphModule(Module):
    """A module with the submodules, parameters and attributes that a graph names, and `forward` as the graph says.

    root: the module they are taken from, or a dict of them by their dotted names. graph: may be changed afterwards; `recompile()` makes the
    new code. code: the Python.

    >>> import calque
    >>> traced = calque.fx.symbolic_trace(calque.nn.Sequential(calque.nn.Linear(2, 2), calque.nn.ReLU()))
    >>> [node.op for node in traced.graph.nodes]
    ['placeholder', 'call_module', 'call_module', 'output']
    >>> traced(calque.ones(1, 2)).shape
    torch.Size([1, 2])
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        for base in cls.__mro__:  # each has a class of its own, for `forward` is found in the class
            if base.__name__ == "GraphModuleImpl":
                return super().__new__(cls)
        return super().__new__(type("GraphModuleImpl", (cls,), {}))

    def __init__(self, root: Any, graph: Graph, class_name: str = "GraphModule") -> None:
        super().__init__()
        type(self).__name__ = class_name
        self.training = getattr(root, "training", True)
        targets = {node.target: node for node in graph.nodes if node.op in ("get_attr", "call_module")}
        for target in sorted(targets, key=lambda name: name.count(".")):
            if isinstance(root, Module):
                found: Any = root
                for part in target.split("."):
                    found = getattr(found, part)
            elif isinstance(root, dict):
                if target not in root:
                    raise RuntimeError(f"[GraphModule] expected {target!r} in the dict, for {targets[target].op} names it; add it")
                found = root[target]
            else:
                raise DTypeError(f"[GraphModule] expected a Module or a dict as root, got {type_name(root)}; pass the module that was traced")
            assign_to(self, target, found)
        self.meta: dict[str, Any] = dict(getattr(root, "meta", {}) or {}) if isinstance(getattr(root, "meta", None), dict) else {}
        self.graph = graph

    @property
    def graph(self) -> Graph:
        """The graph; assigning another makes its code."""
        return self.__dict__["_graph"]  # type: ignore[no-any-return]

    @graph.setter
    def graph(self, g: Graph) -> None:
        if not isinstance(g, Graph):
            raise DTypeError(f"[GraphModule] expected a Graph, got {type_name(g)}; trace a module with symbolic_trace")
        self.__dict__["_graph"] = g
        g.owning_module = self
        self.recompile()

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "graph":
            type(self).graph.fset(self, value)  # type: ignore[attr-defined]
        else:
            super().__setattr__(name, value)

    @property
    def code(self) -> str:
        """The Python of `forward`."""
        return self.__dict__["_code"]  # type: ignore[no-any-return]

    def recompile(self) -> Any:
        """Make the code of the graph as it is now."""
        made = self.graph.python_code("self")
        self.__dict__["_code"] = made.src
        file = f"<fx graph {next(_numbers)}>"
        linecache.cache[file] = (len(made.src), None, made.src.splitlines(True), file)
        space: dict[str, Any] = dict(made.globals)
        exec(compile(made.src, file, "exec"), space)  # noqa: S102 - the code is the graph's, and names only what its nodes hold
        type(self).forward = space["forward"]  # type: ignore[method-assign]
        return made

    def add_submodule(self, target: str, m: Module) -> bool:
        """Add a module under a dotted name; what is missing above it becomes empty modules. False if something else stands there."""
        owner: Any = self
        *path, last = target.split(".")
        for part in path:
            if not hasattr(owner, part):
                owner.add_module(part, Module())
            owner = getattr(owner, part)
            if not isinstance(owner, Module):
                return False
        owner.add_module(last, m)
        return True

    def delete_submodule(self, target: str) -> bool:
        """Take out the module with a dotted name; whether there was one."""
        *path, last = target.split(".")
        owner: Any = self
        for part in path:
            owner = getattr(owner, part, None)
        if not isinstance(owner, Module) or not isinstance(getattr(owner, last, None), Module):
            return False
        delattr(owner, last)
        return True

    def delete_all_unused_submodules(self) -> None:
        """Take out the modules that no node uses."""
        used: set[str] = set()
        for node in self.graph.nodes:
            if node.op in ("call_module", "get_attr"):
                parts = node.target.split(".")
                used |= {".".join(parts[: k + 1]) for k in range(len(parts))}
                if node.op == "call_module":
                    used |= {f"{node.target}.{name}" for name, _ in self.get_submodule(node.target).named_modules() if name}
        for name in [name for name, _ in self.named_modules() if name and name not in used]:
            self.delete_submodule(name)

    def print_readable(self, print_output: bool = True, **options: Any) -> str:
        """The module as text, which is also written to the standard output."""
        lines = self.code.strip().splitlines()
        text = f"class {type(self).__name__}(torch.nn.Module):\n" + "\n".join(f"    {line}" for line in lines)
        if print_output:
            sys.stdout.write(text + "\n")
        return text

    def __deepcopy__(self, memo: dict[int, Any]) -> "GraphModule":
        state = {key: copy.deepcopy(value, memo) for key, value in self.__dict__.items() if key not in ("_graph", "_code", "_hybrid")}
        return _with_state(state, copy.deepcopy(self.graph, memo), type(self).__name__)

    def __reduce__(self) -> tuple[Any, ...]:
        state = {key: value for key, value in self.__dict__.items() if key not in ("_graph", "_code", "_hybrid")}
        return (_with_state, (state, self.graph, type(self).__name__))

    def __copy__(self) -> "GraphModule":
        return GraphModule(self, copy.deepcopy(self.graph), type(self).__name__)

    def __str__(self) -> str:
        return "\n".join([super().__repr__(), self.code])


def _with_state(state: dict[str, Any], graph: Graph, name: str) -> GraphModule:
    """The module with what another one had in its `__dict__`, and a graph."""
    plain = Module()
    plain.__dict__.update(state)
    made: GraphModule = GraphModule(plain, graph, name)
    for key, value in state.items():
        if key not in ("_modules", "_parameters", "_buffers"):
            made.__dict__.setdefault(key, value)
    made.__dict__.update({key: state[key] for key in ("_modules", "_parameters", "_buffers", "training")})
    return made


def assign_to(owner: Any, target: str, value: Any) -> None:
    """Set an attribute by a dotted name; what is missing above it becomes empty modules."""
    *path, last = target.split(".")
    for part in path:
        if not hasattr(owner, part):
            owner.add_module(part, Module())
        owner = getattr(owner, part)
    if isinstance(value, Tensor) and not hasattr(value, "_name") and type(value) is Tensor:
        owner.register_buffer(last, value)
    else:
        setattr(owner, last, value)
