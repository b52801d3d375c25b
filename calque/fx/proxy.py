"""`Proxy`: stands for a value while a function is traced; whatever is done with it becomes a node."""

from __future__ import annotations

import dis
import operator
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from calque.base.errors import DTypeError
from calque.base.text import described, type_name
from calque.fx.graph import is_constant
from calque.fx.node import Node, immutable_dict, immutable_list
from calque.fx.operators import ORDINARY, REFLECTED


class TraceError(ValueError):
    """What cannot be traced: Python that depends on a value which is not there yet."""


def node_of(name: str, value: Any) -> Node:
    """The node of a proxy; raises for anything else, as what it is given is no proxy only if a program asks a tracer itself."""
    if not isinstance(value, Proxy):
        raise DTypeError(f"[{name}] expected a Proxy, got {described(value)}; pass what stands for a value of the graph")
    return value.node


class TracerBase:
    """Makes nodes of what is done with proxies."""

    graph: Any

    def create_node(
        self, kind: str, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str | None = None, type_expr: Any = None
    ) -> Node:
        """Add a node to the graph."""
        return self.graph.create_node(kind, target, args, kwargs, name, type_expr)  # type: ignore[no-any-return]

    def proxy(self, node: Node) -> "Proxy":
        """What stands for the result of a node."""
        if not isinstance(node, Node):
            raise DTypeError(f"[proxy] expected a Node, got {described(node)}; pass one of the graph's")
        return Proxy(node, self)

    def create_proxy(
        self, kind: str, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str | None = None, type_expr: Any = None,
        proxy_factory_fn: Any = None,
    ) -> Any:  # fmt: skip
        """Add a node for arguments with proxies inside; what stands for its result."""
        if getattr(target, "__name__", "") == "einsum" and len(args) == 2 and isinstance(args[1], (list, tuple)):
            args = (args[0], *args[1])  # as PyTorch's function hands them on
        node = self.create_node(kind, target, self.create_arg(tuple(args)), self.create_arg(dict(kwargs)), name, type_expr)
        return proxy_factory_fn(node) if proxy_factory_fn is not None else self.proxy(node)

    def create_arg(self, a: Any) -> Any:
        """An argument as a node can have it: proxies become their nodes."""
        if isinstance(a, Proxy):
            return a.node
        if isinstance(a, tuple):
            inside = [self.create_arg(v) for v in a]
            return type(a)(*inside) if hasattr(a, "_fields") else tuple(inside)
        if isinstance(a, list):
            return immutable_list([self.create_arg(v) for v in a])
        if isinstance(a, dict):
            return immutable_dict({key: self.create_arg(v) for key, v in a.items()})
        if isinstance(a, slice):
            return slice(self.create_arg(a.start), self.create_arg(a.stop), self.create_arg(a.step))
        if isinstance(a, Node) or is_constant(a) or callable(a):
            return a
        return self.constant(a)

    def constant(self, a: Any) -> Any:
        """An argument of another kind."""
        if type(a).__module__.startswith("calque."):  # a device, a memory format
            return a
        raise NotImplementedError(f"[fx] expected tensors, numbers, texts and containers of them as arguments, got {type_name(a)}; pass its parts")

    def to_bool(self, obj: "Proxy") -> bool:
        """The truth of a value, where Python asks for it."""
        node = node_of("to_bool", obj)
        raise TraceError(
            f"[symbolic_trace] expected a function without branches on values, got one that asks whether {node} is true (symbolically traced "
            "variables cannot be used as inputs to control flow); make the module that does so a leaf, or use torch.where"
        )

    def iter(self, obj: Any) -> Any:
        """The parts of a value: where it is unpacked into names, as many as there are."""
        node = node_of("iter", obj)
        frame = sys._getframe(2)
        code = list(dis.get_instructions(frame.f_code))
        at = next(k for k, instruction in enumerate(code) if instruction.offset == frame.f_lasti)
        if code[at].opname == "UNPACK_SEQUENCE":
            return (obj[k] for k in range(code[at].argval))
        raise TraceError(
            f"[symbolic_trace] expected a function without loops over values, got one that walks through {node} (Proxy object cannot be "
            "iterated); use a number of steps that does not depend on it"
        )

    def keys(self, obj: "Proxy") -> Any:
        """The keys of a value."""
        node_of("keys", obj)
        return Attribute(obj, "keys")()


class GraphAppendingTracer(TracerBase):
    """Adds to an existing graph."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph


class Proxy:
    """Stands for the value of `node`."""

    def __init__(self, node: Node, tracer: TracerBase | None = None) -> None:
        self.node = node
        self.tracer = tracer if tracer is not None else GraphAppendingTracer(node.graph)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in INSIDE:
            raise AttributeError(f"'Proxy' object has no attribute {name!r}", name=name, obj=self)
        return Attribute(self, name)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The node of a function that was given a proxy while nobody traces: graphs are also written by hand."""
        keywords = dict(kwargs or {})
        [first, *_] = [x for a in (*args, *keywords.values()) for x in (a if isinstance(a, (tuple, list)) else (a,)) if isinstance(x, Proxy)]
        return first.tracer.create_proxy("call_function", func, tuple(args), keywords)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.tracer.create_proxy("call_method", "__call__", (self, *args), kwargs)

    def __iter__(self) -> Any:
        return self.tracer.iter(self)

    def __bool__(self) -> bool:
        return self.tracer.to_bool(self)

    def __len__(self) -> int:
        raise RuntimeError(f"[symbolic_trace] expected a function that does not need the length of {self.node}, got len() of it; use .size(0)")

    def __index__(self) -> int:
        raise TraceError(f"[symbolic_trace] expected a function that does not need the number {self.node}, got one that does; pass it to functions")

    __int__ = __float__ = __index__

    def __setitem__(self, key: Any, value: Any) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, key, value), {})

    def __contains__(self, item: Any) -> bool:
        return self.tracer.to_bool(self)

    def keys(self) -> Any:
        """The keys, for `f(**proxy)`."""
        return self.tracer.keys(self)

    def __repr__(self) -> str:
        return f"Proxy({self.node.name})"

    def __hash__(self) -> int:
        return id(self)


# What our own functions look for in a tensor: a proxy has none of it, and is refused by name where it reaches one.
INSIDE = ("_layout", "_storage", "_requires_grad", "_grad_fn")


class Attribute(Proxy):
    """An attribute of a proxy: a method if it is called, else a node that reads it."""

    def __init__(self, root: Proxy, attr: str) -> None:
        self.root, self.attr, self.tracer = root, attr, root.tracer

    @property
    def node(self) -> Node:  # type: ignore[override]
        """The node that reads it, made when somebody needs it."""
        found = self.__dict__.get("_node")
        if found is None:
            found = self.__dict__["_node"] = self.tracer.create_proxy("call_function", getattr, (self.root, self.attr), {}).node
        return found  # type: ignore[no-any-return]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.tracer.create_proxy("call_method", self.attr, (self.root, *args), kwargs)


def _ordinary(function: Any) -> Any:
    def call(self: Proxy, *others: Any) -> Any:
        return self.tracer.create_proxy("call_function", function, (self, *others), {})

    return call


def _reflected(function: Any) -> Any:
    def call(self: Proxy, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", function, (other, self), {})

    return call


for _name, _function in ORDINARY.items():
    setattr(Proxy, _name, _ordinary(_function))
for _name, _function in REFLECTED.items():
    setattr(Proxy, _name, _reflected(_function))
