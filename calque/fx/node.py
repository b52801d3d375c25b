"""`Node`: one step of a graph, and the values that its arguments may be."""

from __future__ import annotations

import builtins
import types
from collections.abc import Callable, Iterator
from typing import Any

from calque.base.errors import ArgumentError
from calque.base.text import shown

OPS = ("placeholder", "get_attr", "call_function", "call_method", "call_module", "output", "root")


class immutable_list(list[Any]):
    """A list among the arguments of a node. It cannot be written to: the users of nodes would not be known any more."""

    def _refuse(self, *args: Any, **keywords: Any) -> Any:
        raise NotImplementedError("[fx] expected the arguments of a node to be assigned as a whole, got a change in place; set node.args")

    append = extend = insert = pop = remove = clear = sort = reverse = __setitem__ = __delitem__ = __iadd__ = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return immutable_list, (tuple(self),)


class immutable_dict(dict[Any, Any]):
    """A dict among the arguments of a node; see `immutable_list`."""

    __setitem__ = __delitem__ = clear = pop = popitem = update = setdefault = immutable_list._refuse  # type: ignore[assignment]

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return immutable_dict, (dict(self),)


def map_aggregate(a: Any, fn: Callable[[Any], Any]) -> Any:
    """`fn` of everything in nested tuples, lists, dicts and slices; lists and dicts become immutable."""
    if isinstance(a, tuple):
        found = [map_aggregate(item, fn) for item in a]
        return type(a)(*found) if hasattr(a, "_fields") else tuple(found)
    if isinstance(a, list):
        return immutable_list([map_aggregate(item, fn) for item in a])
    if isinstance(a, dict):
        return immutable_dict({key: map_aggregate(item, fn) for key, item in a.items()})
    if isinstance(a, slice):
        return slice(map_aggregate(a.start, fn), map_aggregate(a.stop, fn), map_aggregate(a.step, fn))
    return fn(a)


def map_arg(a: Any, fn: Callable[["Node"], Any]) -> Any:
    """`fn` of every node in nested containers."""
    return map_aggregate(a, lambda item: fn(item) if isinstance(item, Node) else item)


class Node:
    """One step of a `Graph`.

    op: "placeholder" (an argument), "get_attr" (a parameter or attribute), "call_function", "call_method", "call_module" or "output".
    target: the name of the argument or attribute, the function, or the name of the method or module. args, kwargs: its arguments; other nodes
    stand for their results. users: the nodes that use its result (a dict, in order). meta: a dict for whoever works on the graph.
    """

    def __init__(self, graph: Any, name: str, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], return_type: Any = None) -> None:
        if op not in OPS:
            raise ArgumentError(f"[Node] expected op as one of {', '.join(OPS[:-1])}, got {shown(op)}; choose one")
        if op == "call_function" and not callable(target):
            raise ValueError(f"[Node] expected a function as the target of call_function, got {shown(target)}; names are for call_method")
        if op not in ("call_function", "root") and not isinstance(target, str):
            raise ValueError(f"[Node] expected a str as the target of {op}, got {shown(target)}; functions belong to call_function")
        self.graph, self.name, self.op, self.target, self.type = graph, name, op, target, return_type
        self.users: dict[Node, None] = {}
        self.meta: dict[str, Any] = {}
        self._inputs: dict[Node, None] = {}
        self._prev = self._next = self
        self._erased = False
        self._args: tuple[Any, ...] = ()
        self._kwargs: dict[str, Any] = {}
        self._assign(args, kwargs)

    # ------------------------------------------------------------------------------------------------------------ arguments

    def _assign(self, args: Any, kwargs: Any) -> None:
        for used in self._inputs:
            used.users.pop(self, None)
        self._inputs = {}

        def use(node: Node) -> Node:
            self._inputs[node] = None
            node.users[self] = None
            return node

        self._args, self._kwargs = map_arg(tuple(args), use), map_arg(dict(kwargs), use)

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments; assign a new tuple to change them."""
        return self._args

    @args.setter
    def args(self, values: Any) -> None:
        self._assign(values, self._kwargs)

    @property
    def kwargs(self) -> dict[str, Any]:
        """The keyword arguments; assign a new dict to change them."""
        return self._kwargs

    @kwargs.setter
    def kwargs(self, values: Any) -> None:
        self._assign(self._args, values)

    @property
    def all_input_nodes(self) -> list["Node"]:
        """The nodes among the arguments, each once."""
        return list(self._inputs)

    def update_arg(self, idx: int, arg: Any) -> None:
        """Replace one positional argument."""
        values = list(self._args)
        values[idx] = arg
        self.args = tuple(values)

    def insert_arg(self, idx: int, arg: Any) -> None:
        """Put in a positional argument."""
        if not 0 <= idx <= len(self._args):
            raise IndexError(f"[Node.insert_arg] expected 0 <= idx <= {len(self._args)}, got {idx}; count from 0")
        self.args = (*self._args[:idx], arg, *self._args[idx:])

    def update_kwarg(self, key: str, arg: Any) -> None:
        """Replace or add one keyword argument."""
        self.kwargs = {**self._kwargs, key: arg}

    def replace_input_with(self, old_input: "Node", new_input: "Node") -> None:
        """Use one node's result instead of another's."""
        self._assign(*(map_arg(values, lambda n: new_input if n is old_input else n) for values in (self._args, self._kwargs)))

    def replace_all_uses_with(
        self, replace_with: "Node", delete_user_cb: Callable[["Node"], bool] = lambda user: True, *, propagate_meta: bool = False
    ) -> list["Node"]:
        """Let all users (for which `delete_user_cb` is true) use another node's result; those that were changed."""
        if propagate_meta:
            replace_with.meta.update(self.meta)
        changed = [user for user in list(self.users) if delete_user_cb(user)]
        for user in changed:
            user.replace_input_with(self, replace_with)
        return changed

    # ------------------------------------------------------------------------------------------------------------ order

    @property
    def next(self) -> "Node":
        """The node behind this one."""
        return self._next

    @property
    def prev(self) -> "Node":
        """The node in front of this one."""
        return self._prev

    def _unlink(self) -> None:
        self._prev._next, self._next._prev = self._next, self._prev

    def prepend(self, x: "Node") -> None:
        """Move a node of the same graph in front of this one."""
        if x.graph is not self.graph:
            raise ArgumentError("[Node.prepend] expected a node of the same graph, got one of another; copy it with graph.node_copy(...)")
        if x is self:
            return
        x._unlink()
        before = self._prev
        before._next, x._prev, x._next, self._prev = x, before, self, x

    def append(self, x: "Node") -> None:
        """Move a node of the same graph behind this one."""
        self._next.prepend(x)

    def __lt__(self, other: "Node") -> bool:
        return self._position() < other._position()

    def _position(self) -> int:
        return next(k for k, node in enumerate(self.graph.nodes) if node is self)

    # ------------------------------------------------------------------------------------------------------------ text

    def is_impure(self, impure_random: bool = True) -> bool:
        """Whether the step may do something besides giving a result: it stays if nothing uses that."""
        if self.op in ("placeholder", "output"):
            return True
        if self.op == "call_function":
            return self.target in IMPURE or str(getattr(self.target, "__name__", "")).endswith("_") and not self.target.__name__.startswith("_")
        if self.op == "call_method":
            return self.target.endswith("_") and not self.target.startswith("__")
        if self.op == "call_module":
            owner = self.graph.owning_module
            return owner is None or not type(owner.get_submodule(self.target)).__module__.startswith("calque.nn")
        return False

    @property
    def stack_trace(self) -> str | None:
        """Where it came from, as text, if somebody has noted it in `meta`."""
        return self.meta.get("stack_trace")

    @stack_trace.setter
    def stack_trace(self, trace: str | None) -> None:
        self.meta["stack_trace"] = trace

    def format_node(self, placeholder_names: list[str] | None = None, maybe_return_typename: list[str] | None = None, **options: Any) -> str | None:
        """The step as a line of text."""
        if self.op == "placeholder":
            if placeholder_names is not None:
                placeholder_names.append(self.target)
                return None
            return f"%{self.name} : [num_users={len(self.users)}] = placeholder[target={self.target}]"
        if self.op == "output":
            return f"return {_shown(self.args[0] if self.args else None)}"
        if self.op == "get_attr":
            return f"%{self.name} : [num_users={len(self.users)}] = get_attr[target={self.target}]"
        target = self.target if isinstance(self.target, str) else qualified_name(self.target)
        arguments = f"args = {_shown(self.args)}, kwargs = {_shown(self.kwargs)}"
        return f"%{self.name} : [num_users={len(self.users)}] = {self.op}[target={target}]({arguments})"

    def __repr__(self) -> str:
        return self.name

    def __deepcopy__(self, memo: dict[int, Any]) -> "Node":
        return self  # a graph copies its own nodes


IMPURE: set[Any] = set()


def has_side_effect(fn: Any) -> Any:
    """Mark a function so that calls of it stay in a graph although nothing uses their results; also a decorator."""
    IMPURE.add(fn)
    return fn


def _shown(value: Any) -> str:
    if isinstance(value, Node):
        return f"%{value.name}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_shown, value))}{',' * (len(value) == 1)})"
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_shown(item)}" for key, item in value.items()) + "}"
    return str(value) if not isinstance(value, str) else value


class Names:
    """How functions are written in the code of a graph: those of Calque as `torch.relu`, which `functions.public_functions` tells."""

    known: Callable[[], dict[int, str]] = dict


def qualified_name(function: Any) -> str:
    """The dotted name of a function or class, as code would write it."""
    found = Names.known().get(id(function))
    if found is not None:
        return found
    name = str(getattr(function, "__qualname__", None) or getattr(function, "__name__", repr(function)))
    if getattr(builtins, name, None) is function:
        return name
    module = getattr(function, "__module__", None) or ""
    if isinstance(function, types.BuiltinFunctionType) and module == "_operator":
        module = "operator"
    return f"{module}.{name}" if module else name


class NodeList:
    """The nodes of a graph in order; nodes may be put in and taken out while it is walked through."""

    def __init__(self, graph: Any, direction: str = "_next") -> None:
        self.graph, self.direction = graph, direction

    def __iter__(self) -> Iterator[Node]:
        root, node = self.graph._root, getattr(self.graph._root, self.direction)
        while node is not root:
            if not node._erased:
                yield node
            node = getattr(node, self.direction)

    def __reversed__(self) -> "NodeList":
        return NodeList(self.graph, "_prev" if self.direction == "_next" else "_next")

    def __len__(self) -> int:
        return sum(1 for _ in self)
