"""Values beyond JSON's that checkpoints of training programs hold: `argparse.Namespace`, sets, complex numbers, sizes, dtypes, devices, paths.

Each is a tag with plain parts: a text, a list or a dict. The set is closed, as all of the structure is; it loads when the first such value comes.
"""

from __future__ import annotations

from argparse import Namespace
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

from calque.base.device import Device
from calque.base.dtypes import DType, dtype_by_name
from calque.base.shapes import Size

_FACTORIES: dict[str, Any] = {kind.__name__: kind for kind in (list, dict, set, int, float, bool, str, tuple)} | {"": None}


def _factory(value: defaultdict[Any, Any]) -> str:
    for name, kind in _FACTORIES.items():
        if value.default_factory is kind:
            return name
    known = ", ".join(filter(None, _FACTORIES))
    raise TypeError(f"[save] expected a defaultdict of {known}, got one of {value.default_factory!r}; convert it with dict(...)")


def _members(value: Any) -> list[tuple[Any]]:
    """A tuple for each member: in a set it takes more memory than an item of a list."""
    try:
        return [(_member(item),) for item in value]
    except ValueError:
        raise TypeError("[save] expected members of sets that are strings, numbers, None or tuples of them; got another one") from None


# Class -> its tag, and its parts.
_APART: dict[type, tuple[str, Callable[[Any], Any]]] = {
    Namespace: ("namespace", lambda value: dict(vars(value))),
    set: ("set", _members),
    frozenset: ("frozenset", _members),
    complex: ("complex", repr),
    Size: ("size", list),
    DType: ("dtype", lambda value: value.name),
    Device: ("device", str),
    Counter: ("counter", dict),
    defaultdict: ("defaultdict", lambda value: [_factory(value), dict(value)]),
}


def taken_apart(value: object) -> tuple[str, Any] | None:
    """Tag and parts of a value; None for one that is not in the set."""
    if isinstance(value, PurePath):
        return "path", str(value)
    found = _APART.get(type(value))
    return None if found is None else (found[0], found[1](value))


def put_together(tag: str, parts: Any) -> object:
    """The value of a tag. Raises ValueError for parts that no value has."""
    if tag in ("complex", "dtype", "device", "path"):
        if not isinstance(parts, str):
            raise ValueError(f"a {tag} is no text")
        return _of_text(tag, parts)
    if tag in ("set", "frozenset"):
        if not isinstance(parts, list) or not all(type(item) is tuple and len(item) == 1 for item in parts):
            raise ValueError(f"a {tag} has no members")
        return (set if tag == "set" else frozenset)([_member(item[0]) for item in parts])
    if tag == "size":
        if not isinstance(parts, list) or not all(type(n) is int for n in parts):
            raise ValueError("a size is no list of integers")
        return Size(parts)
    if tag == "defaultdict":
        kind, items = parts if isinstance(parts, list) and len(parts) == 2 else (None, None)
        if not isinstance(kind, str) or kind not in _FACTORIES or type(items) is not dict:
            raise ValueError("a defaultdict is not of a known kind")
        return defaultdict(_FACTORIES[kind], items)
    if type(parts) is not dict or tag == "namespace" and not all(isinstance(name, str) for name in parts):
        raise ValueError(f"a {tag} has no items")
    return Namespace(**parts) if tag == "namespace" else Counter(parts)


def _of_text(tag: str, text: str) -> object:
    if tag == "complex":
        return complex(text)
    if tag == "path":
        return Path(text)
    try:
        return dtype_by_name(text) if tag == "dtype" else Device(text)
    except (KeyError, RuntimeError):
        raise ValueError(f"there is no {tag} {text[:40]!r}") from None


def _member(value: Any) -> Any:
    """What may stand in a set."""
    if isinstance(value, tuple):
        return tuple([_member(item) for item in value])
    if value is None or isinstance(value, str | int | float | complex | bytes):
        return value
    raise ValueError("a member of a set cannot be hashed")
