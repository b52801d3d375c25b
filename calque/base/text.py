"""Values in messages: however large, they take few characters."""

from __future__ import annotations

import reprlib
from typing import Any

_SHORT = reprlib.Repr()
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
    if module == "builtins" or package in ("calque", "__main__"):
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
    shape = None if isinstance(value, type) else getattr(value, "shape", None)
    if isinstance(shape, tuple) and shape and type(value).__module__ != "builtins":
        return clipped(f"{type_name(value)} of shape {tuple(shape)!r}", most)
    _SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = max(most, 8)
    try:
        return clipped(_SHORT.repr(value), most)
    except Exception:  # a `__repr__` that fails must not hide the message
        return clipped(f"an object of {type_name(value)}", most)


def clipped(text: str, most: int = 80) -> str:
    """A text in at most `most` characters, without its middle if need be, in one line."""
    text = " ".join(text.split())
    if len(text) <= most:
        return text
    head = (most - 3) // 2
    return f"{text[:head]}...{text[len(text) - (most - 3 - head):]}"


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
