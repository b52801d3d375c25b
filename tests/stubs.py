"""What editors and type checkers know of `Tensor`, of `calque.*` and of namespaces: `python -m tests.stubs` writes calque/base/attached.pyi,
calque/__init__.pyi and those of `SPACES`.

Methods and functions are declared where they are defined; they are attached to `Tensor`, and many are made from a table, when their modules are
imported, which no type checker follows. `attached.pyi` stands for the base class of `Tensor`. A test holds both stubs to the tree.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import calque
from calque import Tensor
from calque.base.attached import Attached

PACKAGE = Path(calque.__file__).parent
STUB, FACADE = PACKAGE / "base" / "attached.pyi", PACKAGE / "__init__.pyi"
SPACES = {"fft": "fft.pyi", "linalg": "linalg.pyi", "nn.functional": "nn/functional/__init__.pyi", "special": "special.pyi"}
KEPT = {Tensor: "Tensor", calque.dtype: "DType", calque.device: "Device", calque.Size: "Size", np.ndarray: "np.ndarray[Any, Any]", type(None): "None",
        inspect.Parameter.empty: "Any"}  # fmt: skip
NOTES = {"__eq__": "  # type: ignore[override]", "__ne__": "  # type: ignore[override]", "__ipow__": "  # type: ignore[misc]"}
VARIES = {"grad", "grad_fn", "imag", "real", "mH", "H", "names"}  # not the same type for every tensor, or not there for some
OPERATORS = {"__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"}
IMPORTS = '''from builtins import bool as _bool
from builtins import complex as _complex
from builtins import float as _float
from builtins import int as _int
from typing import Any

import numpy as np

from calque.base.device import Device
from calque.base.dtypes import DType
from calque.base.shapes import Size
from calque.tensor import Tensor
'''
HEADER = '''"""Methods of `Tensor`, for editors and type checkers; made by `python -m tests.stubs`, and held to the tree by a test."""

IMPORTS
class Attached:
    """Base of `Tensor`: what `calque.functional`, `calque.nn` and `calque.autograd` attach to it."""

    __slots__ = ()
    __weakref__: Any
'''.replace("IMPORTS", IMPORTS)
FACADE_HEADER = '''"""PyTorch's names, for editors and type checkers; made by `python -m tests.stubs`, and held to the tree by a test."""

IMPORTS
'''.replace("IMPORTS", "\n".join(line for line in IMPORTS.splitlines() if not line.endswith((" Tensor", " Size"))))


def spelled(annotation: Any) -> str:
    """An annotation in names that the stub imports; `Any` for what has no name there."""
    if isinstance(annotation, type) and annotation in KEPT:
        return KEPT[annotation]
    if annotation is None:
        return "None"
    origin = typing.get_origin(annotation)
    if origin in (types.UnionType, typing.Union):
        parts = [spelled(part) for part in typing.get_args(annotation)]
        return "Any" if "Any" in parts else " | ".join(dict.fromkeys(parts))
    if origin in (list, tuple, dict):
        inner = ["..." if part is Ellipsis else spelled(part) for part in typing.get_args(annotation)]
        return f"{origin.__name__}[{', '.join(inner)}]" if inner else origin.__name__
    if annotation in (bool, int, float, complex):  # `Tensor` has methods of these names
        return f"_{annotation.__name__}"
    if annotation in (str, bytes, list, tuple, dict):
        return str(annotation.__name__)
    return "Any"


def resolved(function: Any, parameter: Any) -> str:
    """The annotation of a parameter or of the result, which stands in the source as text."""
    annotation = parameter
    if isinstance(annotation, str):
        scope = getattr(inspect.unwrap(function), "__globals__", {})
        try:
            annotation = eval(annotation, {**vars(typing), **scope})  # our own annotations
        except (NameError, TypeError, SyntaxError):
            return "Any"
    return spelled(annotation)


def declared(name: str, function: Any, method: bool = True) -> str:
    """The line of one function, or of one method."""
    start = f"    def {name}(self, " if method else f"def {name}("
    unknown = f"{start}*args: Any, **kwargs: Any) -> Any: ..."
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return unknown
    parts, starred, before = ["self"] if method else [], False, None
    parameters = list(signature.parameters.values())
    if method and (not parameters or parameters[0].kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.KEYWORD_ONLY)):
        return unknown
    for p in parameters[method:]:
        if before is inspect.Parameter.POSITIONAL_ONLY and p.kind is not before:
            parts.append("/")
        if p.kind is inspect.Parameter.KEYWORD_ONLY and not starred:
            parts.append("*")
            starred = True
        starred = starred or p.kind is inspect.Parameter.VAR_POSITIONAL
        mark = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(p.kind, "")
        text = "object" if name in OPERATORS and p.name in ("b", "other") else resolved(function, p.annotation)
        default = "" if p.default is inspect.Parameter.empty else " = ..."
        parts.append(f"{mark}{p.name}: {text}{default}")
        before = p.kind
    if before is inspect.Parameter.POSITIONAL_ONLY:
        parts.append("/")
    result = resolved(function, signature.return_annotation)
    note = NOTES.get(name, "")
    return f"{'    ' if method else ''}def {name}({', '.join(parts)}) -> {result}: ...{note}"


def members() -> Iterator[tuple[str, Any]]:
    """What is attached, by name."""
    for name, value in sorted(vars(Tensor).items()):
        hidden = name.startswith("_") and not (name.startswith("__") and name.endswith("__"))
        if hidden or isinstance(value, types.MemberDescriptorType | types.GetSetDescriptorType) or name in OWN:
            continue
        yield name, value


OWN = {"__doc__", "__module__", "__slots__", "__annotations__", "__hash__", "__dict__", "__weakref__", "__array_priority__", "__init__", "__new__",
       "__getattr__", "__setattr__", "__getattribute__", "__class__", "__reduce_ex__", "__dir__", "__firstlineno__",
       "__static_attributes__"}  # fmt: skip


def page() -> str:
    """The text of the stub."""
    lines = []
    for name, value in members():
        if isinstance(value, property):
            kind = "Any"
            if value.fget:
                kind = resolved(value.fget, inspect.signature(value.fget).return_annotation)
            if kind == "Any" and name not in VARIES:
                kind = spelled(type(getattr(calque.zeros(2, 2), name)))
            lines += ["    @property", f"    def {name}(self) -> {kind}: ..."]
            if value.fset is not None:
                lines += [f"    @{name}.setter", f"    def {name}(self, value: Any) -> None: ..."]
        elif isinstance(value, classmethod | staticmethod):
            lines.append(f"    {name}: Any")
        elif callable(value) or hasattr(value, "__get__"):
            lines.append(declared(name, getattr(Tensor, name)))
        else:
            lines.append(f"    {name}: Any")
    return HEADER + "\n".join(lines) + "\n"


def facade() -> str:
    """The text of the stub of `calque`."""
    lines: list[str] = []
    # Those that this process has imported are in dir(calque), no others; a function of the same name hides its module (`calque.tensor`).
    modules = {module.name for module in pkgutil.iter_modules(calque.__path__) if inspect.ismodule(vars(calque).get(module.name, calque))}
    first = [f"from calque import {name} as {name}" for name in modules if not name.startswith("_")]
    for name in sorted(set(dir(calque)) - modules):
        if name.startswith("_") and name != "__version__":
            continue
        value = getattr(calque, name)
        home = "calque.tensor" if value is Tensor else getattr(value, "__module__", "")  # under PyTorch's name it is shown as of "torch"
        if inspect.ismodule(value):
            first.append(f"import {value.__name__} as {name}")
        elif isinstance(value, type) and home.startswith("calque"):
            if home == "calque":
                lines.append(f"{name}: Any")
            elif value.__name__ == name:
                first.append(f"from {home} import {name} as {name}")
            else:
                first.append(f"from {home} import {value.__name__} as _{value.__name__}")
                lines.append(f"{name} = _{value.__name__}")
        elif isinstance(value, type):
            lines.append(f"{name}: Any")
        elif inspect.isroutine(value):
            lines.append(declared(name, value, method=False))
        else:
            lines.append(f"{name}: {spelled(type(value))}")
    return FACADE_HEADER + "\n".join([*sorted(first), "", *lines]) + "\n"


def space(of: str) -> str:
    """The text of the stub of a namespace, whose functions are declared where they are defined."""
    module = importlib.import_module(f"calque.{of}")
    lines = []
    for name in sorted(module.__all__):
        value = getattr(module, name)
        if isinstance(value, type):
            lines.append(f"from {value.__module__} import {name} as {name}\n")
        else:
            lines.append(declared(name, value, method=False))
    return FACADE_HEADER.replace("from calque.base.device", "from calque.tensor import Tensor\nfrom calque.base.device") + "\n".join(lines) + "\n"


if __name__ == "__main__":
    assert Attached in Tensor.__mro__
    STUB.write_text(page())
    FACADE.write_text(facade())
    for of, file in SPACES.items():
        (PACKAGE / file).write_text(space(of))
    print(f"{STUB}: {sum(1 for _ in members())} names")
