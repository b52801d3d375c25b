"""The threads of the BLAS and LAPACK that NumPy brings: its own pool, which knows nothing of ours.

For the time of a call that goes there it gets no more threads than the user gave us. It is asked through the library that NumPy has loaded already;
one that cannot be asked is left alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np

from calque.base.config import settings

# Wheels of NumPy rename the functions of OpenBLAS, so that two copies may live in one process; systems have the plain names or MKL.
_NAMES = [
    *((f"{name}_get_num_threads{bits}", f"{name}_set_num_threads{bits}") for name in ("scipy_openblas", "openblas") for bits in ("64_", "")),
    ("MKL_Get_Max_Threads", "MKL_Set_Num_Threads"),
]
_lock = threading.Lock()
_calls = 0  # that are under way
_before = 0  # threads that the library had when the first of them began, if it was told otherwise; else 0


@cache
def controls() -> tuple[Callable[[], int], Callable[[int], Any]] | None:
    """How to ask for and how to set the number of threads behind `numpy.linalg`; None if it cannot be asked."""
    try:
        library = ctypes.CDLL(np.linalg._umath_linalg.__file__)
    except (AttributeError, OSError, TypeError):
        return None
    for getter, setter in _NAMES:  # a name is looked up in what that module was linked with, too
        if hasattr(library, getter) and hasattr(library, setter):
            return library[getter], library[setter]
    return None


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """No more threads than `set_num_threads` says for the calls in this block, and what was before behind it. The number is one for the whole
    process: of blocks that overlap, the first sets it and the last gives it back."""
    global _calls, _before
    found = controls()
    if found is None:
        yield
        return
    ask, tell = found
    with _lock:
        if _calls == 0:
            _before = 0
            if (threads := ask()) > settings.threads:
                tell(settings.threads)
                _before = threads
        _calls += 1
    try:
        yield
    finally:
        with _lock:
            _calls -= 1
            if _calls == 0 and _before:
                tell(_before)


def _forget() -> None:
    """In a forked child: what other threads had under way is gone."""
    global _lock, _calls
    _lock, _calls = threading.Lock(), 0
    found = controls() if _before else None
    if found is not None:
        found[1](_before)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
