"""Nested containers of values: dicts, lists, tuples and named tuples, with everything else as a leaf."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from calque.base.asked import ordinary
from calque.base.errors import ArgumentError
from calque.base.text import type_name


class Leaf:
    """The structure of a leaf."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return other.__class__ is Leaf

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "*"


class Container:
    """The structure of a container: its class, its keys if it has any, and the structures of its values."""

    __slots__ = ("kind", "keys", "children")

    def __init__(self, kind: Any, keys: Any, children: tuple[Any, ...]) -> None:
        self.kind, self.keys, self.children = kind, keys, children

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not Container:
            return False
        return (self.kind, self.keys, self.children) == (other.kind, other.keys, other.children)  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash((self.kind, len(self.children)))

    def __repr__(self) -> str:
        inner = ", ".join(map(repr, self.children)) if self.keys is None else ", ".join(f"{k!r}: {c!r}" for k, c in zip(self.keys, self.children))
        return f"{self.kind.__name__}({inner})"


LEAF = Leaf()


def _open(x: Any) -> tuple[Any, Any] | None:
    """(keys, values) of a container; None for a leaf."""
    kind = x.__class__
    if kind is tuple or kind is list or (isinstance(x, tuple) and hasattr(x, "_fields")):
        return None, list(x)
    if kind is dict or kind is OrderedDict or kind is defaultdict:
        return tuple(x), list(x.values())
    return None


def flatten(x: Any) -> tuple[list[Any], Any]:
    """(leaves, structure). Transforms look at ordinary tensors: their handles have no room for the class of another."""
    leaves: list[Any] = []
    structure = _visited(x, leaves)
    return leaves, structure


def _visited(value: Any, leaves: list[Any]) -> Any:
    """The structure, and its leaves in the list. A function inside of `flatten` would refer to itself, and keep the leaves."""
    found = _open(value)
    if found is None:
        leaves.append(ordinary(value))
        return LEAF
    return Container(value.__class__, found[0], tuple([_visited(v, leaves) for v in found[1]]))


def unflatten(leaves: list[Any], structure: Any) -> Any:
    """The containers again, around other leaves."""
    return _built(structure, iter(leaves))


def _built(node: Any, rest: Iterator[Any]) -> Any:
    if node is LEAF:
        return next(rest)
    values = [_built(child, rest) for child in node.children]
    if node.keys is not None:
        pairs = zip(node.keys, values, strict=True)
        return defaultdict(None, pairs) if node.kind is defaultdict else node.kind(pairs)
    return node.kind(*values) if hasattr(node.kind, "_fields") else node.kind(values)


def mapped(function: Callable[[Any], Any], x: Any) -> Any:
    """The same containers around `function` of each leaf."""
    leaves, structure = flatten(x)
    return unflatten([function(leaf) for leaf in leaves], structure)


def broadcast(prefix: Any, structure: Any) -> list[Any] | None:
    """For every leaf of `structure` what stands in `prefix` at its place or above; None if the containers differ."""
    if structure is LEAF:
        return [prefix] if _open(prefix) is None else None
    found = _open(prefix)
    if found is None:
        return [prefix] * _count(structure)
    keys, values = found
    if prefix.__class__ is not structure.kind or len(values) != len(structure.children) or (keys is not None and set(keys) != set(structure.keys)):
        return None
    if keys is not None:
        values = [prefix[k] for k in structure.keys]
    result: list[Any] = []
    for value, child in zip(values, structure.children, strict=True):
        part = broadcast(value, child)
        if part is None:
            return None
        result += part
    return result


def _count(structure: Any) -> int:
    return 1 if structure is LEAF else sum(_count(child) for child in structure.children)


def require_tensors(op: str, leaves: list[Any], is_tensor: Callable[[Any], bool]) -> None:
    """Raise unless every leaf is a Tensor."""
    for leaf in leaves:
        if not is_tensor(leaf):
            raise ArgumentError(f"[{op}] expected Tensors, got {type_name(leaf)}: Thing passed to transform API must be Tensor; pass it by a closure")
