"""Parts of packages that load when they are first asked for (PEP 562), so that nobody else's start pays for them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from calque.base.text import no_attribute


def on_first_use(package: str, homes: Mapping[str, str], then: Callable[[Any], Any] | None = None) -> Callable[[str], Any]:
    """The `__getattr__` of a package for what its modules define. `homes`: module -> names, "" for the module itself. What was found stays
    there. No name may be that of a module of the package, which Python puts in its place as soon as anybody imports it. `then` is told of each
    module. Names of public functions, which users may see in frames, are found by `functional.later.resolver` instead.

    >>> find = on_first_use("json", {"tool": "", "scanner": "py_make_scanner"})
    >>> find("tool").__name__, find("py_make_scanner").__name__
    ('json.tool', 'py_make_scanner')
    """
    of = {name: module for module, names in homes.items() for name in names.split() or [module]}
    modules = {module for module, names in homes.items() if not names}

    def find(name: str) -> Any:
        if name not in of:
            raise no_attribute(package, name)
        found = import_module(f"{package}.{of[name]}")
        if then is not None:
            then(found)
        if name not in modules:
            found = vars(sys.modules[package])[name] = getattr(found, name)
        return found

    find.__dict__["names"] = [name for name in of if name not in modules]
    return find
