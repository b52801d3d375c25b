"""A model file of the library, read as a program of PyTorch: what it imports from Calque's public surface comes from torch in its place.

The library's models use PyTorch's names alone, so their source is the same program for both: no second copy of eleven models is needed to compare
them, and names of parameters agree.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import sys
import types
from pathlib import Path

_PUBLIC = {"calque": "torch", "calque.functional": "torch", "calque.nn": "torch.nn", "calque.nn.functional": "torch.nn.functional",
           "calque.functional.common": "torch", "calque.tensor": "torch", "calque.autograd.modes": "torch"}  # fmt: skip
_MODELS = ("calque.vision.models.", "calque.vision.ops.", "calque.text.models.")
_SHARED = "calque.vision.models.weights"  # files of weights and the functions that make a model by its name: no tensor is made there


@functools.cache
def as_torch(name: str) -> types.ModuleType:
    """The module `name` on PyTorch."""
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.origin is not None
    module = types.ModuleType("as_torch_" + name.replace(".", "_"))
    sys.modules[module.__name__] = module  # torch.compile looks for it there
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    statements: list[ast.stmt] = []
    for statement in tree.body:
        if isinstance(statement, ast.ImportFrom) and statement.module is not None and statement.module.startswith("calque"):
            for alias in statement.names:
                vars(module)[alias.asname or alias.name] = _found(statement.module, alias.name)
        else:
            statements.append(statement)
    tree.body = statements
    exec(compile(tree, spec.origin, "exec"), vars(module))  # noqa: S102 - a file of the library
    return module


def _found(module: str, name: str) -> object:
    """What `from module import name` gives."""
    whole = f"{module}.{name}"
    if whole in _PUBLIC:
        return importlib.import_module(_PUBLIC[whole])
    if module in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[module]), name)
    if module.startswith(_MODELS) and module != _SHARED:
        return getattr(as_torch(module), name)
    return getattr(importlib.import_module(module), name)
