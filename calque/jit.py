"""`calque.jit`: names of TorchScript for `calque.compile`, so that code written for it runs. Nothing is frozen: branches stay branches."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from calque.base.errors import ArgumentError
from calque.base.text import type_name
from calque.hybrid import Symbol
from calque.hybrid import compile as _compile
from calque.io.read import open_regular

__all__ = ["load", "save", "script", "trace"]


def script(obj: Any, optimize: Any = None, _frames_up: int = 0, _rcb: Any = None, example_inputs: Any = None) -> Any:
    """`calque.compile(obj)`: calls of a function or module are recorded and replayed; also a decorator. A class stays as it is.

    >>> import calque
    >>> double = calque.jit.script(lambda x: x * 2)
    >>> [double(calque.ones(1)).item() for _ in range(4)]
    [2.0, 2.0, 2.0, 2.0]
    """
    return obj if isinstance(obj, type) else _compile(obj)  # a class is made of functions that are Python's


def trace(func: Any, example_inputs: Any = None, **options: Any) -> Any:
    """`calque.compile(func)`. A call of new shapes, or one that takes another branch, is recorded by itself; the example inputs are what `save`
    exports it with. Options of `torch.jit.trace` are accepted and change nothing."""
    made = _compile(func)
    if example_inputs is not None and hasattr(made, "__dict__"):
        made.__dict__[_EXAMPLE] = example_inputs
    return made


def save(m: Any, f: Any) -> None:
    """Write something that needs no source: what `trace` was given with example inputs, as `calque.export` exports it (for their sizes; for others,
    export it with `dynamic`), an `Exported`, or a program that `calque.compile("...")` made.

    >>> import calque, os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     calque.jit.save(calque.compile("c = a + b"), os.path.join(folder, "sum.json"))
    ...     print(calque.jit.load(os.path.join(folder, "sum.json")))
    program(a, b) -> c:
        c = a + b
    """
    if not isinstance(m, Symbol):
        exported = import_module("calque.exported")
        if not isinstance(m, exported.Exported):
            if _EXAMPLE not in getattr(m, "__dict__", {}):
                raise ArgumentError(
                    f"[jit.save] expected what trace() gave with example inputs, an export, or a program made by compile() from a text, got "
                    f"{type_name(m)}, whose code is Python; save calque.export(model, inputs), or the state_dict() with calque.save"
                )
            m = exported.export(m, m.__dict__[_EXAMPLE])
    m.save(f)


def load(f: Any) -> Any:
    """Read what `save` wrote, an `Exported` or a program made from a text; nothing of the file is run as Python."""
    if isinstance(f, str | os.PathLike):
        with os.fdopen(open_regular(os.fspath(f), "jit.load", "a file that jit.save wrote"), "rb") as file:
            if b"\0" not in file.read(8):  # the length of a header
                return Symbol.load(f)  # type: ignore[arg-type]
    return import_module("calque.exported").load_exported(f)


_EXAMPLE = "_traced_with"
