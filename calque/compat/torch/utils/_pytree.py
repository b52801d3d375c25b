"""`torch.utils._pytree`: nested containers as a list of what they hold and a description of their structure."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from calque.nn.registry import Registry

__all__ = [
    "Context", "FlattenFunc", "GetAttrKey", "KeyPath", "LeafSpec", "MappingKey", "PyTree", "SUPPORTED_NODES", "SequenceKey", "TreeSpec",
    "UnflattenFunc", "_broadcast_to_and_flatten", "_dict_flatten", "_dict_flatten_with_keys", "_dict_unflatten", "_get_node_type", "_is_leaf",
    "_list_flatten", "_list_flatten_with_keys", "_list_unflatten", "_namedtuple_flatten", "_namedtuple_unflatten", "_register_pytree_node",
    "_tuple_flatten", "_tuple_unflatten", "arg_tree_leaves", "is_namedtuple", "is_namedtuple_class", "is_namedtuple_instance", "is_structseq",
    "is_structseq_class", "is_structseq_instance", "key_get", "keystr", "register_constant", "register_pytree_node", "tree_all", "tree_all_only",
    "tree_any", "tree_any_only", "tree_flatten", "tree_flatten_with_path", "tree_is_leaf", "tree_iter", "tree_leaves", "tree_leaves_with_path",
    "tree_map", "tree_map_", "tree_map_only", "tree_map_only_", "tree_map_with_path", "tree_structure", "tree_unflatten", "treespec_pprint",
]  # fmt: skip

PyTree = Context = KeyPath = Any
FlattenFunc = Callable[[Any], tuple[list[Any], Any]]
UnflattenFunc = Callable[[Iterable[Any], Any], Any]


class SequenceKey(NamedTuple):
    """A place in a list or tuple."""

    idx: int

    def __str__(self) -> str:
        return f"[{self.idx!r}]"

    def get(self, sequence: Any) -> Any:
        """What stands there."""
        return sequence[self.idx]


class MappingKey(NamedTuple):
    """A key of a dict."""

    key: Any

    def __str__(self) -> str:
        return f"[{self.key!r}]"

    def get(self, mapping: Any) -> Any:
        """What stands there."""
        return mapping[self.key]


class GetAttrKey(NamedTuple):
    """A field of a named tuple, or an attribute."""

    name: str

    def __str__(self) -> str:
        return f".{self.name}"

    def get(self, obj: Any) -> Any:
        """What stands there."""
        return getattr(obj, self.name)


class _Kind(NamedTuple):
    """How containers of a class are taken apart and put together."""

    flatten_fn: Any
    unflatten_fn: Any
    keys: Any


def _list_flatten(d: Any) -> tuple[list[Any], None]:
    return list(d), None


def _list_unflatten(values: Any, context: Any) -> list[Any]:
    return list(values)


def _dict_flatten(d: Any) -> tuple[list[Any], list[Any]]:
    return list(d.values()), list(d)


def _dict_unflatten(values: Any, context: Any) -> dict[Any, Any]:
    return dict(zip(context, values))


def _indices(d: Any, context: Any) -> list[Any]:
    return [SequenceKey(k) for k in range(len(d))]


def _mapping_keys(d: Any, context: Any) -> list[Any]:
    return [MappingKey(key) for key in d]


def _dict_flatten_with_keys(d: Any) -> tuple[list[tuple[Any, Any]], list[Any]]:
    return [(MappingKey(key), value) for key, value in d.items()], list(d)


def _list_flatten_with_keys(d: Any) -> tuple[list[tuple[Any, Any]], None]:
    return [(SequenceKey(k), value) for k, value in enumerate(d)], None


def _tuple_flatten(d: Any) -> tuple[list[Any], None]:
    return list(d), None


def _tuple_unflatten(values: Any, context: Any) -> tuple[Any, ...]:
    return tuple(values)


def _namedtuple_flatten(d: Any) -> tuple[list[Any], Any]:
    return list(d), type(d)


def _namedtuple_unflatten(values: Any, context: Any) -> Any:
    return context(*values)


_NAMED = _Kind(_namedtuple_flatten, _namedtuple_unflatten, lambda d, kind: [GetAttrKey(name) for name in kind._fields])
SUPPORTED_NODES: dict[Any, _Kind] = {
    list: _Kind(_list_flatten, _list_unflatten, _indices),
    tuple: _Kind(_tuple_flatten, _tuple_unflatten, _indices),
    dict: _Kind(_dict_flatten, _dict_unflatten, _mapping_keys),
    OrderedDict: _Kind(_dict_flatten, lambda values, keys: OrderedDict(zip(keys, values)), _mapping_keys),
    defaultdict: _Kind(
        lambda d: (list(d.values()), (d.default_factory, list(d))), lambda values, c: defaultdict(c[0], zip(c[1], values)), _mapping_keys
    ),
    deque: _Kind(lambda d: (list(d), d.maxlen), lambda values, most: deque(values, most), _indices),
    namedtuple: _NAMED,
}


def _get_node_type(tree: Any) -> Any:
    kind = type(tree)
    if kind is Registry:  # what a module keeps its parameters in, which is a dict in PyTorch
        return dict
    return namedtuple if issubclass(kind, tuple) and kind not in SUPPORTED_NODES and hasattr(kind, "_fields") else kind


def tree_is_leaf(tree: Any, is_leaf: Any = None) -> bool:
    """Whether something is not taken apart."""
    return _is_leaf(tree, is_leaf)


def is_namedtuple_class(cls: Any) -> bool:
    """Whether a class is a named tuple."""
    return isinstance(cls, type) and issubclass(cls, tuple) and isinstance(getattr(cls, "_fields", None), tuple)


def is_namedtuple(obj: Any) -> bool:
    """Whether a value, or a class, is a named tuple."""
    return is_namedtuple_class(obj if isinstance(obj, type) else type(obj))


def is_namedtuple_instance(obj: Any) -> bool:
    """Whether a value is one."""
    return is_namedtuple_class(type(obj))


def is_structseq_class(cls: Any) -> bool:
    """Whether a class is a tuple with fields that Python's own C code has made, such as `os.stat_result`, or what `x.max(0)` gives."""
    return isinstance(cls, type) and issubclass(cls, tuple) and isinstance(getattr(cls, "n_fields", None), int)


def is_structseq(obj: Any) -> bool:
    """Whether a value, or a class, is one."""
    return is_structseq_class(obj if isinstance(obj, type) else type(obj))


def is_structseq_instance(obj: Any) -> bool:
    """Whether a value is one."""
    return is_structseq_class(type(obj))


def _is_leaf(tree: Any, is_leaf: Any = None) -> bool:
    return (is_leaf is not None and is_leaf(tree)) or _get_node_type(tree) not in SUPPORTED_NODES


def register_pytree_node(
    cls: type, flatten_fn: Any, unflatten_fn: Any, *, serialized_type_name: str | None = None, to_dumpable_context: Any = None,
    from_dumpable_context: Any = None, flatten_with_keys_fn: Any = None,
) -> None:  # fmt: skip
    """Take containers of a class apart by `flatten_fn(x) -> (list, context)` and put them together by `unflatten_fn(values, context)`."""
    if cls in SUPPORTED_NODES:
        raise ValueError(f"[register_pytree_node] expected a class that is not registered yet, got {cls!r}; register it once")

    def keys(d: Any, context: Any) -> list[Any]:
        return [key for key, _ in flatten_with_keys_fn(d)[0]] if flatten_with_keys_fn is not None else _indices(flatten_fn(d)[0], context)

    SUPPORTED_NODES[cls] = _Kind(flatten_fn, unflatten_fn, keys)


_register_pytree_node = register_pytree_node


def register_constant(cls: type) -> None:
    """Take values of a class as part of the structure."""
    register_pytree_node(cls, lambda x: ([], x), lambda values, x: x)


class TreeSpec:
    """The structure of a nested container: its class, what it needs besides its contents, and the structures of these."""

    def __init__(self, type: Any, context: Any, children_specs: list["TreeSpec"]) -> None:
        self.type, self.context, self.children_specs = type, context, children_specs
        self.num_nodes: int = 1 + sum(child.num_nodes for child in children_specs)
        self.num_leaves: int = sum(child.num_leaves for child in children_specs) if type is not None else 1
        self.num_children = len(children_specs)

    def is_leaf(self) -> bool:
        """Whether it is something that is not taken apart."""
        return self.type is None

    def child(self, index: int) -> "TreeSpec":
        """The structure of one of the contents."""
        return self.children_specs[index]

    def children(self) -> list["TreeSpec"]:
        """The structures of the contents."""
        return list(self.children_specs)

    def unflatten(self, leaves: Iterable[Any]) -> Any:
        """The container with other contents."""
        leaves = list(leaves)
        if len(leaves) != self.num_leaves:
            raise ValueError(f"[tree_unflatten] expected {self.num_leaves} leaves, got {len(leaves)}; give one for each")
        return self._build(iter(leaves))

    def _build(self, leaves: Any) -> Any:
        if self.type is None:
            return next(leaves)
        return SUPPORTED_NODES[self.type].unflatten_fn([child._build(leaves) for child in self.children_specs], self.context)

    def flatten_up_to(self, tree: Any) -> list[Any]:
        """What stands in a container where this structure has its leaves."""
        if self.type is None:
            return [tree]
        if _get_node_type(tree) is not self.type:
            raise ValueError(f"[tree_map] expected a {self.type.__name__}, got a {type(tree).__name__}; give containers of one structure")
        values, context = SUPPORTED_NODES[self.type].flatten_fn(tree)
        if len(values) != len(self.children_specs) or (self.type in (dict, OrderedDict) and set(context) != set(self.context)):
            raise ValueError(f"[tree_map] expected {len(self.children_specs)} items with the same keys, got {len(values)}; give containers alike")
        if self.type in (dict, OrderedDict):
            values = [tree[key] for key in self.context]
        return [leaf for child, value in zip(self.children_specs, values) for leaf in child.flatten_up_to(value)]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TreeSpec) and (self.type, self.context, self.children_specs) == (other.type, other.context, other.children_specs)

    def __hash__(self) -> int:
        return hash((self.type, self.num_leaves, self.num_nodes))

    def __repr__(self) -> str:
        return "*" if self.type is None else f"TreeSpec({self.type.__name__}, {self.context!r}, {self.children_specs!r})"


def LeafSpec() -> TreeSpec:
    """The structure of something that is not taken apart."""
    return TreeSpec(None, None, [])


def tree_flatten_with_path(tree: Any, is_leaf: Any = None) -> tuple[list[tuple[Any, Any]], TreeSpec]:
    """([(path, leaf), ...], structure)."""
    found: list[tuple[Any, Any]] = []
    return found, _walked(tree, (), is_leaf, found)


def _walked(value: Any, path: tuple[Any, ...], is_leaf: Any, found: list[tuple[Any, Any]]) -> TreeSpec:
    """The structure, and its leaves with their paths in the list. A function inside of another one that refers to itself would keep them."""
    if _is_leaf(value, is_leaf):
        found.append((path, value))
        return LeafSpec()
    kind = _get_node_type(value)
    values, context = SUPPORTED_NODES[kind].flatten_fn(value)
    keys = SUPPORTED_NODES[kind].keys(value, context)
    return TreeSpec(kind, context, [_walked(inner, (*path, key), is_leaf, found) for inner, key in zip(values, keys)])


def tree_flatten(tree: Any, is_leaf: Any = None) -> tuple[list[Any], TreeSpec]:
    """(leaves, structure)."""
    leaves: list[Any] = []
    return leaves, _taken_apart(tree, is_leaf, leaves)


def _taken_apart(value: Any, is_leaf: Any, leaves: list[Any]) -> TreeSpec:
    if _is_leaf(value, is_leaf):
        leaves.append(value)
        return LeafSpec()
    kind = _get_node_type(value)
    values, context = SUPPORTED_NODES[kind].flatten_fn(value)
    return TreeSpec(kind, context, [_taken_apart(inner, is_leaf, leaves) for inner in values])


def tree_unflatten(leaves: Iterable[Any], treespec: TreeSpec) -> Any:
    """A container of a structure with these leaves."""
    return treespec.unflatten(leaves)


def tree_leaves(tree: Any, is_leaf: Any = None) -> list[Any]:
    """The leaves."""
    return tree_flatten(tree, is_leaf)[0]


def tree_iter(tree: Any, is_leaf: Any = None) -> Iterable[Any]:
    """The leaves, one after the other."""
    return iter(tree_leaves(tree, is_leaf))


def tree_leaves_with_path(tree: Any, is_leaf: Any = None) -> list[tuple[Any, Any]]:
    """(path, leaf) of every leaf."""
    return tree_flatten_with_path(tree, is_leaf)[0]


def tree_structure(tree: Any, is_leaf: Any = None) -> TreeSpec:
    """The structure."""
    return tree_flatten(tree, is_leaf)[1]


def arg_tree_leaves(*args: Any, **kwargs: Any) -> list[Any]:
    """The leaves of the arguments of a call."""
    return [leaf for value in (*args, *kwargs.values()) for leaf in tree_leaves(value)]


def tree_map(func: Any, tree: Any, *rests: Any, is_leaf: Any = None) -> Any:
    """A container of the same structure with `func` of each leaf, and of those at the same places of the others."""
    leaves, spec = tree_flatten(tree, is_leaf)
    return spec.unflatten([func(*values) for values in zip(leaves, *[spec.flatten_up_to(rest) for rest in rests])])


def tree_map_(func: Any, tree: Any, *rests: Any, is_leaf: Any = None) -> Any:
    """Call `func` with each leaf; the container itself."""
    tree_map(func, tree, *rests, is_leaf=is_leaf)
    return tree


def tree_map_with_path(func: Any, tree: Any, *rests: Any, is_leaf: Any = None) -> Any:
    """As `tree_map`, with the path in front of the arguments of `func`."""
    found, spec = tree_flatten_with_path(tree, is_leaf)
    others = [spec.flatten_up_to(rest) for rest in rests]
    return spec.unflatten([func(path, leaf, *values) for (path, leaf), *values in zip(found, *others)])


def _chosen(kind: Any) -> Callable[[Any], bool]:
    if isinstance(kind, (type, tuple)) or hasattr(kind, "__args__"):
        return lambda x: isinstance(x, kind)
    return kind  # type: ignore[no-any-return]


def tree_map_only(type_or_types_or_pred: Any, func: Any = None, tree: Any = None, is_leaf: Any = None) -> Any:
    """`tree_map` of the leaves of some types; others stay. Without `func`, a decorator of such a function."""
    chosen = _chosen(type_or_types_or_pred)
    if func is None:
        return lambda f: lambda x: f(x) if chosen(x) else x
    return tree_map(lambda x: func(x) if chosen(x) else x, tree, is_leaf=is_leaf)


def tree_map_only_(type_or_types_or_pred: Any, func: Any, tree: Any, is_leaf: Any = None) -> Any:
    """`tree_map_` of the leaves of some types."""
    chosen = _chosen(type_or_types_or_pred)
    return tree_map_(lambda x: func(x) if chosen(x) else x, tree, is_leaf=is_leaf)


def tree_all(pred: Any, tree: Any, is_leaf: Any = None) -> bool:
    """Whether `pred` holds for every leaf."""
    return all(map(pred, tree_leaves(tree, is_leaf)))


def tree_any(pred: Any, tree: Any, is_leaf: Any = None) -> bool:
    """Whether `pred` holds for a leaf."""
    return any(map(pred, tree_leaves(tree, is_leaf)))


def tree_all_only(type_or_types: Any, pred: Any, tree: Any, is_leaf: Any = None) -> bool:
    """Whether `pred` holds for every leaf of some types."""
    chosen = _chosen(type_or_types)
    return all(pred(x) for x in tree_leaves(tree, is_leaf) if chosen(x))


def tree_any_only(type_or_types: Any, pred: Any, tree: Any, is_leaf: Any = None) -> bool:
    """Whether `pred` holds for a leaf of some types."""
    chosen = _chosen(type_or_types)
    return any(pred(x) for x in tree_leaves(tree, is_leaf) if chosen(x))


def keystr(kp: Any) -> str:
    """A path as text: `['a'][0]`."""
    return "".join(map(str, kp))


def key_get(obj: Any, kp: Any) -> Any:
    """What stands at a path."""
    for key in kp:
        obj = key.get(obj)
    return obj


def treespec_pprint(treespec: TreeSpec) -> str:
    """The structure as text."""
    return repr(treespec.unflatten(["*"] * treespec.num_leaves)).replace("'*'", "*")


def _broadcast_to_and_flatten(tree: Any, treespec: TreeSpec, is_leaf: Any = None) -> list[Any] | None:
    """The leaves of a container whose structure is a beginning of another's, each repeated for all leaves below it; None if it is not."""
    if _is_leaf(tree, is_leaf):
        return [tree] * treespec.num_leaves
    if treespec.type is not _get_node_type(tree):
        return None
    values, context = SUPPORTED_NODES[treespec.type].flatten_fn(tree)
    if len(values) != treespec.num_children or context != treespec.context:
        return None
    parts = [_broadcast_to_and_flatten(value, child, is_leaf) for value, child in zip(values, treespec.children_specs)]
    return None if any(part is None for part in parts) else [leaf for part in parts for leaf in part]  # type: ignore[union-attr]
