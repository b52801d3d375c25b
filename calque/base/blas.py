"""The threads of the BLAS and LAPACK that NumPy brings: its own pool, which knows nothing of ours.

For the time of a call that goes there it gets no more threads than the user gave us, and a single one for a short call beside other work: behind a
call of several those of OpenBLAS look for the next one for some 25 milliseconds, on a core that kernels or Python would have. The library is asked
through what NumPy has loaded already; one that cannot be asked is left alone.
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
THREADED = 1 << 18  # multiplications of a call below which the BLAS takes one thread by itself
LONG = 1 << 26  # multiplications from which on a call has several threads: about a millisecond of one
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
def limited(work: int = LONG) -> Iterator[None]:
    """No more threads than `set_num_threads` says for the calls in this block, and what was before behind it. The number is one for the whole
    process: of blocks that overlap, the first sets it and the last gives it back. `work`: multiplications of the longest call,
    roughly, if others work beside it."""
    global _calls, _before
    if work < THREADED:
        yield
        return
    most = settings.threads if work >= LONG else 1
    found = controls()
    if found is None:
        yield
        return
    ask, tell = found
    with _lock:
        if _calls == 0:
            _before = 0
            if (threads := ask()) > most:
                tell(most)
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
