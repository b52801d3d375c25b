"""The containers that modules of Calque hold for as long as the process lives, with a name and a size for each: all but those that have a bound
(caches that are counted, bounded `functools` caches and deques)."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

from calque.base.cache import Cache
from calque.base.layout import _INTERNED

CONTAINERS = (dict, list, set, deque, WeakKeyDictionary, WeakSet, WeakValueDictionary)
_DEEP = 5  # attributes of attributes


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object of ours, a class or a thread's state holds."""
    yield from [(name, held) for name, held in list(getattr(value, "__dict__", {}).items()) if not name.startswith("__")]
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__weakref__", "__dict__"):
                private = f"_{kind.__name__.lstrip('_')}{name}" if name.startswith("__") else name
                held = getattr(value, private, None)
                if held is not None:
                    yield name, held


def _ours(value: Any) -> bool:
    kind = value if isinstance(value, type) else type(value)
    return str(getattr(kind, "__module__", "")).split(".")[0] == "calque"


def _walk(name: str, value: Any, deep: int, seen: set[int], found: dict[str, int]) -> None:
    """Add the containers behind a value."""
    if id(value) in seen or isinstance(value, ModuleType):
        return
    seen.add(id(value))
    information = getattr(value, "cache_info", None)
    if information is not None and callable(information) and information().maxsize is None:
        found[name] = information().currsize
    if isinstance(value, CONTAINERS) and getattr(value, "maxlen", None) is None:
        if isinstance(value, (Cache, type(_INTERNED))):
            return
        found[name] = len(value)
        inner = list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, (list, deque)) else []
        if len(inner) <= 16:
            for key, item in inner:
                if _ours(item) or isinstance(item, CONTAINERS):
                    _walk(f"{name}[{key!r:.40}]", item, deep - 1, seen, found)
        return
    if isinstance(value, MethodType):
        value = value.__self__
    if isinstance(value, FunctionType):
        for cell in value.__closure__ or ():
            try:
                _walk(f"{name}.<cell>", cell.cell_contents, deep - 1, seen, found)
            except ValueError:  # not filled yet
                continue
    if deep > 0 and (_ours(value) or isinstance(value, FunctionType)):
        for attribute, held in _attributes(value):
            _walk(f"{name}.{attribute}", held, deep - 1, seen, found)


def containers() -> dict[str, int]:
    """Name -> number of entries, of all containers that are reached from the names of Calque's modules."""
    found: dict[str, int] = {}
    seen: set[int] = set()
    for place, module in sorted(sys.modules.items()):
        if place.split(".")[0] == "calque" and module is not None:
            for name, value in list(vars(module).items()):
                if not name.startswith("__") and not isinstance(value, type(sys)):
                    _walk(f"{place}.{name}", value, _DEEP, seen, found)
    return found
