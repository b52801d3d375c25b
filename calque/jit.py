"""`calque.jit`: names of TorchScript for `calque.compile`, so that code written for it runs. Nothing is frozen: branches stay branches."""

from __future__ import annotations

from typing import Any

from calque.base.errors import ArgumentError
from calque.base.text import type_name
from calque.hybrid import Symbol
from calque.hybrid import compile as _compile

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
    """`calque.compile(func)`. The example inputs are not needed: a call of new shapes, or one that takes another branch, is recorded by itself.
    Options of `torch.jit.trace` are accepted and change nothing."""
    return _compile(func)


def save(m: Any, f: Any) -> None:
    """Write a program that `calque.compile("...")` made. Modules and functions are Python: save their `state_dict()` with `calque.save`.

    >>> import calque, os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     calque.jit.save(calque.compile("c = a + b"), os.path.join(folder, "sum.json"))
    ...     print(calque.jit.load(os.path.join(folder, "sum.json")))
    program(a, b) -> c:
        c = a + b
    """
    if not isinstance(m, Symbol):
        raise ArgumentError(
            f"[jit.save] expected a program made by compile() from a text, got {type_name(m)}, whose code is Python and is not saved; "
            "save its state_dict() with calque.save and make it anew from its source"
        )
    m.save(f)


def load(f: Any) -> Symbol:
    """Read a program that `save` wrote; nothing of the file is run as Python."""
    return Symbol.load(f)
