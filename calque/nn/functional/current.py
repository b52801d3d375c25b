"""Functions of `nn.functional` that others call by name, as PyTorch's do: a program may have put its own in their place, to count calls."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from calque.functional.declared import SPACES
from calque.observe.source import inside_package

HERE = "calque.nn.functional"
CALLED = ("bmm",)  # functions of `calque` itself that are called by name


def is_own(function: Any) -> bool:
    """Whether a function is one of the library's, rather than one of a program that stands in its place."""
    return function.__class__ is FunctionType and inside_package(function.__code__.co_filename)


def current(name: str, own: Callable[..., Any], module: str = HERE) -> Callable[..., Any]:
    """What stands in `nn.functional` (or another module) under a name: `own`, the library's, if no program has replaced it."""
    found = sys.modules[module].__dict__.get(name, own)
    return own if is_own(found) else found  # type: ignore[no-any-return]


def there(name: str) -> Callable[..., Any]:
    """What users find in `nn.functional` under a name."""
    return getattr(sys.modules[HERE], name)  # type: ignore[no-any-return]


Found = tuple[dict[str, Any], str, Any]  # names of a module, name, value
_known: dict[CodeType, frozenset[tuple[str, str]]] = {}  # the library's code -> (module, name)


def looked_up(function: Callable[..., Any]) -> list[Found]:
    """What a function of the library, and those of `nn` that it calls, take from modules of the library by name when they are called."""
    while hasattr(function, "__wrapped__") and is_own(function):
        function = function.__wrapped__
    code = getattr(function, "__code__", None)
    if code is None:
        return []
    found = _known.get(code)
    if found is None:  # code of the library does not change, and is looked at once
        names: set[tuple[str, str]] = set()
        _look(function, names, set())
        found = _known[code] = frozenset(names)
    return [(vars(sys.modules[module]), name, getattr(sys.modules[module], name)) for module, name in found]


def _look(function: Any, found: set[tuple[str, str]], seen: set[Any]) -> None:
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    if not is_own(function) or function in seen:
        return
    seen.add(function)
    offered = sys.modules[HERE].__all__
    for value, names in _globals(function):
        if value.__class__ is ModuleType and value.__name__.startswith("calque."):
            here = offered if value.__name__ == HERE else vars(value)
            read = {(value.__name__, name) for name in names if name in here}
        elif value is current:
            read = {(HERE, name) for name in names if name in offered} | {("calque", name) for name in CALLED if name in names}
        elif is_own(value) and value.__module__.startswith(HERE):
            read = set()
            _look(value, found, seen)
        else:
            continue
        found |= read
        for module, name in read:
            if module == HERE:
                _look(SPACES["nn.functional"].get(name), found, seen)


def _globals(function: FunctionType) -> Iterator[tuple[Any, set[str]]]:
    """(value, names and words of the code) of the global names that the code of a function, and of those inside it, uses."""
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        codes += [part for part in code.co_consts if isinstance(part, CodeType)]
        names = {*code.co_names, *(part for part in code.co_consts if isinstance(part, str))}
        yield from ((function.__globals__[name], names) for name in code.co_names if name in function.__globals__)
