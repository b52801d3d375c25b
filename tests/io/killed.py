"""A process that vanishes in the middle of a save."""

from __future__ import annotations

import fcntl
import os
import warnings
from collections.abc import Callable
from typing import Any

from calque.io import write

DIED = 9


def dies_before(point: int, save: Callable[[], Any]) -> bool:
    """Save in a child that vanishes without clean-up just before system call number `point`; False if it lived to the end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 warns of threads; the child does nothing but save
        child = os.fork()
    if child:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, DIED), code
        return code == DIED
    count = 0

    def counted(call: Any) -> Any:
        def wrapper(*args: Any, **keywords: Any) -> Any:
            nonlocal count
            if count == point:
                os._exit(DIED)
            count += 1
            return call(*args, **keywords)

        return wrapper

    try:
        for module, names in ((os, ("open", "fsync", "replace", "unlink", "close", "scandir", "stat")), (fcntl, ("flock",))):
            for name in names:
                setattr(module, name, counted(getattr(module, name)))
        write._Complete.write = counted(write._Complete.write)  # type: ignore[method-assign]
        save()
        os._exit(0)
    finally:
        os._exit(1)
