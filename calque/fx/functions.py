"""The functions of Calque that become nodes, and the names under which code has them."""

from __future__ import annotations

import functools
import sys
from types import FunctionType
from typing import Any

from calque import functional, nn
from calque.fx.graph import Code
from calque.fx.node import Names

SPACES = {f"calque.{name}": f"torch.{name}" for name in ("nn.functional", "linalg", "special", "fft")}


def public_functions() -> dict[int, Any]:
    """id -> function of every public function that takes tensors."""
    return _functions()


@functools.cache
def _functions() -> dict[int, Any]:
    return {id(value): value for _, value in _all()}


@functools.cache
def _names() -> dict[int, str]:
    found: dict[int, str] = {}
    for name, value in _all():
        found.setdefault(id(value), name)
    return found


def _all() -> list[tuple[str, Any]]:
    """(dotted name, function) of the facade and its namespaces. The facade stands above this layer, and is there when somebody traces."""
    facade = sys.modules["calque"]
    Code.torch = facade
    listed = [(f"torch.{name}", getattr(facade, name)) for name in {*dir(functional), *dir(facade)} if hasattr(facade, name)]
    listed += [(f"torch.nn.functional.{name}", getattr(nn.functional, name)) for name in dir(nn.functional)]
    for module, shown in SPACES.items():
        if module in sys.modules:
            listed += [(f"{shown}.{name}", value) for name, value in vars(sys.modules[module]).items()]
    found = {}
    for name, value in listed:
        last = name.rpartition(".")[2]
        if isinstance(value, FunctionType) and value.__module__.startswith("calque") and not last.startswith("_") and last != "is_tensor":
            found[name] = value
    return sorted(found.items(), key=lambda item: (item[0].count("."), item[0]))  # the shortest name is the one that code has


Names.known = _names
