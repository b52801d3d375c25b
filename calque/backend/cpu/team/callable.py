"""Native code that Python calls like one of its own builtin functions: ten times cheaper than through `ctypes`.

What `calque_step` reads and returns depends on how CPython lays out lists, floats and arrays, so `supported` tries it once.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

_METH_FASTCALL = 0x80


class _Definition(ctypes.Structure):
    """CPython's `PyMethodDef`."""

    _fields_ = [("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p)]


_definitions: dict[int, _Definition] = {}  # functions refer to them for ever


def bound(function: int, owner: Any) -> Callable[..., Any]:
    """A builtin function made of native code at an address, whose first argument is `owner`, an object that it keeps alive."""
    definition = _definitions.get(function)
    if definition is None:
        definition = _definitions.setdefault(function, _Definition(b"run", function, _METH_FASTCALL, None))
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.py_object, ctypes.py_object)
    made: Callable[..., Any] = make(ctypes.addressof(definition), owner, None)
    return made


@lru_cache(maxsize=1)
def lock_functions() -> tuple[int, int]:
    """Addresses of what gives the interpreter's lock away and what takes it back."""
    api = ctypes.pythonapi
    save, restore = (ctypes.cast(f, ctypes.c_void_p).value for f in (api.PyEval_SaveThread, api.PyEval_RestoreThread))
    assert save is not None and restore is not None
    return save, restore


@lru_cache(maxsize=1)
def data_pointer_is_at_16() -> bool:
    """Whether NumPy keeps an array's data pointer where `calque_patch` reads it (true of CPython with a global lock)."""
    probe = np.zeros(3, np.int64)
    return ctypes.c_int64.from_address(id(probe) + 16).value == probe.ctypes.data


@lru_cache(maxsize=1)
def supported() -> bool:
    """Whether lists, floats and reference counts look the way `calque_step` reads them."""
    if sys.implementation.name != "cpython" or not data_pointer_is_at_16():
        return False
    probe = [2.5]
    items = ctypes.c_int64.from_address(id(probe) + 24).value
    number = ctypes.c_int64.from_address(items).value if items else 0
    return (
        number == id(probe[0])
        and ctypes.c_int64.from_address(number + 8).value == id(float)
        and ctypes.c_double.from_address(number + 16).value == 2.5
        and ctypes.c_int64.from_address(id(probe)).value == sys.getrefcount(probe) - 1
    )
