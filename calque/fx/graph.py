"""`Graph`: a function as a list of nodes, and the Python that it stands for."""

from __future__ import annotations

import builtins
import contextlib
import copy
import keyword
import operator
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import NoneType
from typing import Any, NamedTuple

from calque.autograd.transform.tree import flatten, unflatten
from calque.base.dataclass import dataclass
from calque.base.dtypes import DType
from calque.base.errors import ArgumentError, DTypeError
from calque.base.text import described
from calque.fx.node import Node, NodeList, map_aggregate, map_arg, qualified_name
from calque.fx.operators import INFIX, PREFIX
from calque.tensor import Tensor

RESERVED = {*dir(builtins), "self", "torch", "operator", "math"}  # generated code needs these names for what they mean


class PythonCode(NamedTuple):
    """Source text, and the names that it needs."""

    src: str
    globals: dict[str, Any]


class Flat:
    """Containers among the arguments and results of a function whose graph has their values: `names` of its arguments, their structure and that of
    the result. It is part of the code, as `tree_flatten_spec` and `tree_unflatten`."""

    def __init__(self, names: Sequence[str], in_spec: Any, out_spec: Any = None) -> None:
        self.names, self.in_spec, self.out_spec = list(names), in_spec, out_spec

    def values(self, args: Sequence[Any]) -> list[Any]:
        """What the arguments hold, as the graph takes it."""
        found, given = flatten(list(args))
        if given != self.in_spec:
            raise ArgumentError(f"[forward] expected arguments of the structure that was traced, {self.in_spec!r}, got {given!r}; trace it again")
        return found

    def result(self, values: Any) -> Any:
        """The result of the function, of what the graph gives."""
        return unflatten(list(values), self.out_spec)


class Graph:
    """Steps in order: placeholders, computations, one output.

    >>> import calque
    >>> graph = calque.fx.Graph()
    >>> x = graph.placeholder("x")
    >>> y = graph.call_function(calque.relu, (x,))
    >>> _ = graph.output(y)
    >>> print(graph.python_code("self").src.strip())
    def forward(self, x):
        relu = torch.relu(x)
        return relu
    """

    def __init__(self, owning_module: Any = None, tracer_cls: Any = None, tracer_extras: Any = None) -> None:
        self._root = Node(self, "", "root", "", (), {})
        self._names: set[str] = set()
        self._insert: Callable[[Node], None] = self._root.prepend
        self.owning_module, self._tracer_cls = owning_module, tracer_cls
        self.flat: Flat | None = None

    # ------------------------------------------------------------------------------------------------------------ reading

    @property
    def nodes(self) -> NodeList:
        """The nodes, in order."""
        return NodeList(self)

    def output_node(self) -> Node:
        """The output."""
        found = next((node for node in reversed(self.nodes) if node.op == "output"), None)
        if found is None:
            raise ArgumentError("[output_node] expected a graph with an output, got one without; call graph.output(value) first")
        return found

    def find_nodes(self, *, op: str, target: Any = None, sort: bool = True) -> list[Node]:
        """The nodes of a kind, and with a target if one is given."""
        if op == "call_function" and target is None:
            raise ArgumentError("[Graph.find_nodes] expected a target for op='call_function', got None; pass the function")
        return [node for node in self.nodes if node.op == op and (target is None or node.target == target)]

    # ------------------------------------------------------------------------------------------------------------ writing

    def _name(self, wanted: str) -> str:
        """A name that no other node of the graph has: `relu`, `relu_1`, ..."""
        base = re.sub(r"\W+", "_", wanted) or "_unnamed"
        if base[0].isdigit():
            base = f"_{base}"
        name, match = base, re.fullmatch(r"(.*)_(\d+)", base)
        count = 0 if match is None else int(match.group(2))
        stem = base if match is None else match.group(1)
        while name in self._names or keyword.iskeyword(name) or name in RESERVED:
            count += 1
            name = f"{stem}_{count}"
        self._names.add(name)
        return name

    def create_node(
        self, op: str, target: Any, args: Any = None, kwargs: Any = None, name: str | None = None, type_expr: Any = None
    ) -> Node:
        """Add a node where nodes are inserted at present (`inserting_before`); else at the end."""
        if not isinstance(args, (tuple, list, NoneType)) or not isinstance(kwargs, (Mapping, NoneType)):
            raise DTypeError(f"[{op}] expected args as a tuple and kwargs as a dict, got {described(args)} and {described(kwargs)}")
        if name is None:
            last = target if isinstance(target, str) else getattr(target, "__name__", type(target).__name__)
            name = "output" if op == "output" else _snake(last.rpartition(".")[2] if op in ("call_function", "call_method") else last)
        node = Node(self, self._name(name), op, target, tuple(args or ()), dict(kwargs or {}), type_expr)
        self._insert(node)
        return node

    def placeholder(self, name: str, type_expr: Any = None, default_value: Any = ...) -> Node:
        """Add an argument of the function; "*args" and "**kwargs" are what they are in Python."""
        return self.create_node("placeholder", name, () if default_value is ... else (default_value,), type_expr=type_expr)

    def get_attr(self, qualified_name: str, type_expr: Any = None) -> Node:
        """Add a reading of a parameter, buffer or other attribute of the module, by its dotted name."""
        return self.create_node("get_attr", qualified_name, type_expr=type_expr)

    def call_module(self, module_name: str, args: Any = None, kwargs: Any = None, type_expr: Any = None) -> Node:
        """Add a call of a submodule, by its dotted name."""
        return self.create_node("call_module", module_name, args, kwargs, type_expr=type_expr)

    def call_method(self, method_name: str, args: Any = None, kwargs: Any = None, type_expr: Any = None) -> Node:
        """Add a call of a method of the first argument."""
        return self.create_node("call_method", method_name, args, kwargs, type_expr=type_expr)

    def call_function(self, the_function: Any, args: Any = None, kwargs: Any = None, type_expr: Any = None, name: str | None = None) -> Node:
        """Add a call of a function."""
        return self.create_node("call_function", the_function, args, kwargs, name, type_expr)

    def output(self, result: Any, type_expr: Any = None) -> Node:
        """Add the output: a node, or nodes in tuples, lists and dicts."""
        return self.create_node("output", "output", (result,), type_expr=type_expr)

    def node_copy(self, node: Node, arg_transform: Callable[[Node], Any] = lambda x: x) -> Node:
        """Add a copy of a node of another graph; `arg_transform` gives what stands here for the nodes that it uses."""
        made = self.create_node(
            node.op, node.target, map_arg(node.args, arg_transform), map_arg(node.kwargs, arg_transform), node.name, node.type
        )
        made.meta = copy.copy(node.meta)
        return made

    def graph_copy(self, g: "Graph", val_map: dict[Node, Node], return_output_node: bool = False) -> Any:
        """Add copies of all nodes of another graph but its output; its result, in nodes of this one. `val_map` holds what stands for what."""
        for node in g.nodes:
            if node in val_map:
                continue
            if node.op == "output":
                found = map_arg(node.args[0], lambda n: val_map[n])
                return (found, node) if return_output_node else found
            val_map[node] = self.node_copy(node, lambda n: val_map[n])
        return None

    def erase_node(self, to_erase: Node) -> None:
        """Take out a node that nothing uses."""
        if to_erase.users:
            users = ", ".join(map(str, to_erase.users))
            raise RuntimeError(f"[Graph.erase_node] expected a node without users, got {to_erase} with users {users}; replace them first")
        if to_erase.graph is not self:
            raise RuntimeError(f"[Graph.erase_node] expected a node of this graph, got {to_erase} of another; call it there")
        if to_erase._erased:
            return
        to_erase._assign((), {})
        to_erase._unlink()
        to_erase._erased = True

    @contextlib.contextmanager
    def _inserting(self, insert: Callable[[Node], None]) -> Iterator[None]:
        before, self._insert = self._insert, insert
        try:
            yield
        finally:
            self._insert = before

    def inserting_before(self, n: Node | None = None) -> Any:
        """A block in which nodes are added in front of `n` (of all, without one)."""
        return self._inserting((n if n is not None else self._root._next).prepend)

    def inserting_after(self, n: Node | None = None) -> Any:
        """A block in which nodes are added behind `n` (in front of all, without one)."""
        last = [n if n is not None else self._root]

        def insert(node: Node) -> None:
            last[0].append(node)
            last[0] = node

        return self._inserting(insert)

    def eliminate_dead_code(self, is_impure_node: Callable[[Node], bool] | None = None) -> bool:
        """Take out computations whose results nothing uses and that do nothing else; whether there were any."""
        self.lint()
        impure, changed = is_impure_node or Node.is_impure, False
        for node in list(reversed(self.nodes)):
            if not node.users and not impure(node):
                self.erase_node(node)
                changed = True
        return changed

    # ------------------------------------------------------------------------------------------------------------ checking

    def lint(self) -> None:
        """Raise `RuntimeError` if a node is used before it is computed, belongs to another graph or names what the module has not."""
        seen: set[Node] = set()
        for node in self.nodes:
            for used in node.all_input_nodes:
                if used.graph is not self or used not in seen:
                    where = "of another graph" if used.graph is not self else "that comes later or was erased"
                    raise RuntimeError(f"[Graph.lint] expected that {node} uses nodes in front of it, got {used} {where}; move or replace it")
            seen.add(node)
            if self.owning_module is not None and node.op in ("get_attr", "call_module"):
                found = self.owning_module
                for part in node.target.split("."):
                    if not hasattr(found, part):
                        raise RuntimeError(f"[Graph.lint] expected an attribute of the module, got {node.op} of {node.target!r}; add it first")
                    found = getattr(found, part)

    def print_tabular(self) -> None:
        """Write the nodes to the standard output as a table."""
        rows = [("opcode", "name", "target", "args", "kwargs"), *(
            (n.op, n.name, n.target if isinstance(n.target, str) else qualified_name(n.target), str(n.args), str(n.kwargs)) for n in self.nodes
        )]  # fmt: skip
        widths = [max(len(row[k]) for row in rows) for k in range(5)]
        sys.stdout.write("\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows) + "\n")

    def __str__(self) -> str:
        names: list[str] = []
        lines = [line for node in self.nodes if (line := node.format_node(names)) is not None]
        return f"graph({', '.join(f'%{name}' for name in names)}):" + "".join(f"\n    {line}" for line in lines)

    # ------------------------------------------------------------------------------------------------------------ code

    def python_code(self, root_module: str = "self", *, verbose: bool = False, **options: Any) -> PythonCode:
        """The function `forward` as Python, and the globals that it needs."""
        names: dict[str, Any] = {}
        arguments: list[str] = []
        lines: list[str] = []
        for node in self.nodes:
            if node.op == "placeholder":
                target = node.target if self.flat is None else node.name
                given = f" = {_literal(node.args[0], names)}" if node.args else ""
                arguments.append(target + given)  # under the name that callers know, which may be one that code cannot use
                if target.lstrip("*") != node.name:
                    lines.append(f"{node.name} = {target.lstrip('*')}")
            else:
                lines.append(_line(node, root_module, names))
        if self.flat is not None:
            given = ", ".join(self.flat.names)
            lines.insert(0, f"{', '.join(argument.partition(' =')[0] for argument in arguments)}, = tree_flatten_spec([{given}])")
            arguments = list(self.flat.names)
            names["tree_flatten_spec"], names["tree_unflatten"] = self.flat.values, self.flat.result
            lines[-1] = f"return tree_unflatten({lines[-1].removeprefix('return ')})"
        body = "\n".join(f"    {line}" for line in lines) or "    pass"
        return PythonCode(f"\ndef forward({', '.join(['self', *arguments])}):\n{body}\n", names)

    def __reduce__(self) -> tuple[Any, ...]:
        """For a pickle: the steps as rows that name each other by number. Nodes that hold each other would be a recursion as deep as the graph."""
        place = {node: _Place(k) for k, node in enumerate(self.nodes)}
        rows = [
            (node.op, node.target, map_arg(node.args, place.__getitem__), map_arg(node.kwargs, place.__getitem__), node.name, node.type)
            for node in self.nodes
        ]
        return (_graph_of, (rows, self._tracer_cls, self.flat))

    def __deepcopy__(self, memo: dict[int, Any]) -> "Graph":
        made = Graph(tracer_cls=self._tracer_cls)
        made._names, made.flat = set(), self.flat
        memo[id(self)] = made
        values: dict[Node, Node] = {}
        result = made.graph_copy(self, values)
        if any(node.op == "output" for node in self.nodes):
            output = made.output(result, self.output_node().type)
            output.meta = copy.copy(self.output_node().meta)
        return made


@dataclass(frozen=True)
class _Place:
    """A node, by its number in the graph."""

    number: int


def _graph_of(rows: list[tuple[Any, ...]], tracer_cls: Any, flat: Flat | None = None) -> Graph:
    """The graph of the rows of a pickle."""
    made = Graph(tracer_cls=tracer_cls)
    made.flat = flat
    nodes: list[Node] = []

    def found(a: Any) -> Any:
        return map_aggregate(a, lambda item: nodes[item.number] if isinstance(item, _Place) else item)

    for op, target, args, kwargs, name, kind in rows:
        nodes.append(made.create_node(op, target, found(args), found(kwargs), name, kind))
    return made


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()


def _literal(value: Any, names: dict[str, Any]) -> str:
    """A value as code: nodes by their name, what has no text by a global name."""
    if isinstance(value, Node):
        return value.name
    if isinstance(value, tuple):
        inside = ", ".join(_literal(v, names) for v in value)
        if hasattr(value, "_fields"):
            return f"{_global(type(value), names)}({inside})"
        return f"({inside}{',' * (len(value) == 1)})"
    if isinstance(value, list):
        return f"[{', '.join(_literal(v, names) for v in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_literal(v, names)}" for key, v in value.items()) + "}"
    if isinstance(value, slice):
        return f"slice({_literal(value.start, names)}, {_literal(value.stop, names)}, {_literal(value.step, names)})"
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return f"float('{value}')"
    if value is None or value is Ellipsis or isinstance(value, (bool, int, float, complex, str, bytes)):
        return "..." if value is Ellipsis else repr(value)
    if isinstance(value, DType):
        names["torch"] = Code.torch
        return repr(value)
    return _global(value, names)


def _global(value: Any, names: dict[str, Any]) -> str:
    """The global name of a function, class or other object in the code."""
    named = isinstance(value, type) or callable(value)
    text = qualified_name(value) if named else f"_{type(value).__name__}"
    first, _, rest = text.partition(".")
    if first == "torch" and named:
        names["torch"] = Code.torch
        return text
    if not rest and vars(builtins).get(text) is value:
        return text
    base = re.sub(r"\W", "_", text)
    name, count = base, 0
    while name in names and names[name] is not value:
        count += 1
        name = f"{base}_{count}"
    names[name] = value
    return name


class Code:
    """`torch`: what stands behind that name in generated code."""

    torch: Any = None


def _attribute(root: str, path: str) -> str:
    """`self.layers.0.weight` as an expression."""
    parts = path.split(".")
    out = root
    for part in parts:
        out = f"{out}.{part}" if part.isidentifier() and not keyword.iskeyword(part) else f'getattr({out}, "{part}")'
    return out


def _line(node: Node, root: str, names: dict[str, Any]) -> str:
    if node.op == "output":
        return f"return {_literal(node.args[0] if node.args else None, names)}"
    if node.op == "get_attr":
        return f"{node.name} = {_attribute(root, node.target)}"
    args = [_literal(a, names) for a in node.args]
    given = ", ".join([*args, *(f"{key} = {_literal(value, names)}" for key, value in node.kwargs.items())])
    if node.op == "call_module":
        return f"{node.name} = {_attribute(root, node.target)}({given})"
    if node.op == "call_method":
        first = args[0] if isinstance(node.args[0], Node) else f"({args[0]})"
        return f"{node.name} = {first}.{node.target}({', '.join([*args[1:], *(f'{k} = {_literal(v, names)}' for k, v in node.kwargs.items())])})"
    function = node.target
    if not node.kwargs and len(args) == 2 and function in INFIX:
        return f"{node.name} = {args[0]} {INFIX[function]} {args[1]}"
    if not node.kwargs and len(args) == 1 and function in PREFIX:
        return f"{node.name} = {PREFIX[function]}{args[0]}"
    if function is operator.getitem and len(args) == 2:
        return f"{node.name} = {args[0]}[{args[1]}]"
    if function is getattr and len(args) == 2 and isinstance(node.args[1], str) and node.args[1].isidentifier():
        return f"{node.name} = {args[0]}.{node.args[1]}"
    return f"{node.name} = {_global(function, names)}({given})"


def is_constant(value: Any) -> bool:
    """Whether a value stands in a graph as it is."""
    return value is None or value is Ellipsis or isinstance(value, (str, int, float, bool, complex, bytes, DType, range, Tensor))
