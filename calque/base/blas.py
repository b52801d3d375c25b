"""The threads of the BLAS and LAPACK that NumPy brings: its own pool, which knows nothing of ours.

Their number is one for the process, and the last bits of sums depend on it. So nothing sets it around a call: another thread's call, ours or the
user's own of NumPy, would get one number or the other by chance. It is told when the number of threads is (`set_threads`), and stays. It is asked
through the library that NumPy has loaded already; one that cannot be asked is left alone.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
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
_own = 0  # threads that the library has unless it is told otherwise by us
_told = 0  # what we told it last, or would have


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


def set_threads(threads: int) -> None:
    """The number of threads of later work, of the BLAS as well, which never gets more than it has on its own (by `OPENBLAS_NUM_THREADS`, or as the
    user's program told it since we did)."""
    global _own, _told
    settings.threads = threads
    found = controls()
    if found is None:
        return
    ask, tell = found
    with _lock:
        now = ask()
        if now != _told:
            _own = now
        _told = min(_own, threads)
        if now != _told:
            tell(_told)


set_threads(settings.threads)  # the environment may have said a number
