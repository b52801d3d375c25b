"""Whose code a class or a function is, and what Python calls of a class without its being named."""

from __future__ import annotations

import builtins
import gc
import sys
import types
from pathlib import Path
from typing import Any

from calque.observe.source import inside_package
from calque.tensor import TENSOR_TYPES

MISSING: Any = object()
MADE = ("__init__", "__new__", "__post_init__", "__init_subclass__")  # what making an object calls
_LIBRARY = str(Path(types.__file__).parent)
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE

# Python's own methods that are called for what code does without naming them, unless it is one of these: by whom they are called.
_CALLERS = {
    name: callers
    for names, callers in (
        (("__repr__", "__str__", "__format__"), {"repr", "str", "format", "ascii", "print", "join"}),
        (("__copy__", "__deepcopy__", "__getstate__", "__setstate__", "__reduce__", "__reduce_ex__"), {"copy", "deepcopy", "replace"}),
        (MADE, {"type", "__class__"}),
        (("__sizeof__", "__dir__", "__getnewargs__", "__getnewargs_ex__", "__fspath__", "__replace__"), {"getsizeof", "dir", "fspath", "replace"}),
        (("__del__", "__set_name__", "__prepare__", "__subclasshook__", "__mro_entries__"), set()),
    )
    for name in names
}


def unnamed(attributes: Any, name: str, named: set[str]) -> bool:
    """Whether code may call this function of a user's class without naming it: operators, conversions, look-ups, descriptors.

    `named`: what code names."""
    if not (name.startswith("__") and name.endswith("__")):
        return False
    value = attributes[name]
    code = getattr(getattr(value, "__func__", value), "__code__", None)
    if code is None:
        return callable(value) and not isinstance(value, type)
    if foreign(code.co_filename) or (code.co_filename == "<string>" and "__dataclass_fields__" in attributes):
        return False
    return name not in _CALLERS or not named.isdisjoint(_CALLERS[name])


def of_calque(kind: type) -> bool:
    return kind.__module__.split(".")[0] == "calque" or kind in TENSOR_TYPES


def foreign_class(kind: type) -> bool:
    """Whether a class is of the interpreter, the standard library, NumPy or Calque."""
    module = sys.modules.get(kind.__module__)
    if module is None or kind.__module__ == "__main__":  # None: code that runs in a dict (`exec`), or a module that was not registered
        return False
    file = getattr(module, "__file__", None)
    if file is not None:
        return foreign(file)
    if getattr(getattr(module, "__spec__", None), "origin", None) not in ("built-in", "frozen"):
        return False
    named_by_default = kind.__module__ == "builtins" and kind.__flags__ & _HEAP_TYPE  # the dict has no `__name__`
    return not named_by_default or getattr(builtins, kind.__name__, None) is kind


def user_class(kind: type) -> bool:
    """Whether a class is made by a class statement outside those."""
    if not kind.__flags__ & _HEAP_TYPE or foreign_class(kind):
        return False
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return file is None or kind.__module__ == "__main__" or file.endswith(".py")


def slots(kind: type) -> list[str]:
    """Attributes that instances of the user's class keep outside `__dict__`."""
    found: list[str] = []
    for base in kind.__mro__:
        if user_class(base):
            names = base.__dict__.get("__slots__", ())
            found += [names] if isinstance(names, str) else list(names)
    return [name for name in found if name not in ("__dict__", "__weakref__")]


def is_error(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException)


def foreign(file: str) -> bool:
    """Whether source of the standard library, of NumPy or of Calque: trusted to depend on its arguments alone."""
    installed = "site-packages" in file or "dist-packages" in file
    return inside_package(file) or (file.startswith(_LIBRARY) and not installed) or (installed and "/numpy/" in file)


def cached_results(function: Any) -> list[Any]:
    """What a function of `functools.lru_cache` remembers, in no order: it may be forgotten, or be older than what the function would compute now."""
    found = gc.get_referents(function)  # with a limit all keys and results, else a dict of them
    if function.cache_parameters()["maxsize"] is None:
        found += [x for held in found if held.__class__ is dict and held is not function.__dict__ for x in held.values()]
    return [x for x in found if x.__class__ not in (dict, object) and not isinstance(x, type)]  # objects mark where keyword arguments begin


def identities(function: Any) -> set[int]:
    """Which objects it remembers."""
    return {*map(id, cached_results(function))}


def contents(function: types.FunctionType) -> list[tuple[Any, Any]]:
    """Cells of a closure with what they hold."""
    return [(cell, content(cell)) for cell in function.__closure__ or ()]


def content(cell: types.CellType) -> Any:
    """What a variable of a closure holds; `MISSING` if it has not been assigned, or has been deleted."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING
