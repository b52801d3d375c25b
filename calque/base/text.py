"""Values in messages: however large, they take few characters."""

from __future__ import annotations

import difflib
import reprlib
import sys
from collections.abc import Iterable
from typing import Any

LONGEST = 200  # characters of a name in a message
_SEARCHED = 750  # names among which Python looks for the one that is meant


class _Repr(reprlib.Repr):
    def repr_instance(self, x: Any, level: int) -> str:
        try:
            return _by_shape(x) or clipped(repr(x), self.maxother)
        except Exception:  # a `__repr__` that fails must not hide the message
            return f"an object of {type_name(x)}"


_SHORT = _Repr()
_SHORT.maxlevel = 3
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = _SHORT.maxset = _SHORT.maxfrozenset = _SHORT.maxdeque = _SHORT.maxarray = 6


def type_name(value: object) -> str:
    """The class of a value as its users write it: with its module if that is neither Python's nor ours.

    >>> type_name(3), type_name(reprlib.Repr())
    ('int', 'reprlib.Repr')
    """
    kind = type(value)
    module = str(kind.__module__)
    package = module.partition(".")[0]
    ours = getattr(sys.modules.get("calque"), "Tensor", ()) if package == "torch" else ()  # where they are PyTorch's by their module
    if module == "builtins" or package in ("calque", "__main__") or issubclass(kind, ours):
        return kind.__qualname__
    return f"{package if package in ('torch', 'numpy', 'pandas') else module}.{kind.__qualname__}"


def shown(value: Any, most: int = 80) -> str:
    """A value in at most `most` characters: what has a shape by class and shape, anything else by a shortened `repr`.

    >>> shown([1, 2, 3]), shown("x" * 1000, 20)
    ('[1, 2, 3]', "'xxxxxx...xxxxxxx'")
    >>> import numpy as np
    >>> shown(np.zeros((1000, 1000)))
    'numpy.ndarray of shape (1000, 1000)'
    """
    _SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = max(most, 8)
    return clipped(_SHORT.repr(value), most)


def _by_shape(value: Any) -> str:
    """A tensor, array or table without its values: to show them might have to compute them. "" for anything else."""
    kind = type(value)
    try:
        shape = getattr(value, "shape", None)
        if isinstance(value, type) or kind.__module__ == "builtins" or not isinstance(shape, tuple):
            return ""
        if not shape:
            return f"a {type_name(value)} of one element" if kind.__module__.startswith("calque.") else ""
        text = f"{type_name(value)} of shape {tuple(shape)!r}"
        if hasattr(kind, "columns"):  # a table
            text += f" with columns {_SHORT.repr(list(value.columns[:3]))[:-1]}{', ...' if len(value.columns) > 3 else ''}]"
        return text
    except Exception:  # a property of the user's
        return ""


def described(value: Any, most: int = 80) -> str:
    """A value with its class, for "got ...".

    >>> described(3), described("x")
    ('int 3', "str 'x'")
    """
    text, kind = shown(value, most), type_name(value)
    return text if kind in text.partition("(")[0] else f"{kind} {text}"


def function_name(function: object) -> str:
    """A function of the user's by its name and line.

    >>> function_name(print)
    'print'
    """
    code = getattr(function, "__code__", None)
    where = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
    return clipped(f"{getattr(function, '__qualname__', type_name(function))}{where}", 200)


def clipped(text: str, most: int = 80, one_line: bool = True) -> str:
    """A text in at most `most` characters, without its middle if need be."""
    if one_line:
        text = " ".join(text.split())
    if len(text) <= most:
        return text
    head = (most - 3) // 2
    return f"{text[:head]}...{text[len(text) - (most - 3 - head):]}"


def no_attribute(module: str, name: str) -> AttributeError:
    """Python's error about a name that a module does not have, however long the name is. Where it is shown Python says what may be meant, but among
    at most `_SEARCHED` names: of a larger module we do, and not of private names, which are asked for to find out what a module is."""
    found = sys.modules.get(module)
    near = nearest(name, known, 0.6) if not name.startswith("_") and len(known := dir(found)) > _SEARCHED else ""
    hint = f". Did you mean: {near!r}?" if near else ""
    return AttributeError(f"module {module!r} has no attribute {clipped(name, LONGEST)!r}{hint}", name=name, obj=found)


def nearest(name: str, known: Iterable[str], alike: float) -> str:
    """The known name that is most like this one, "" if none is: nor to a text too long for a name, for which the search would take long.

    >>> nearest("relo", ["relu", "sigmoid"], 0.6)
    'relu'
    """
    found = difflib.get_close_matches(name, [k for k in known if len(k) <= LONGEST], 1, alike) if len(name) <= LONGEST else []
    return found[0] if found else ""


def human(nbytes: int) -> str:
    """A byte count in readable units.

    >>> human(3 << 20)
    '3.0 MiB'
    """
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            return f"{int(size)} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} PiB"
