"""Python's cyclic collector while the compiler builds data that will stay."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

NEVER = 1 << 30
_lock = threading.Lock()
_open = 0
_saved = 10


@contextmanager
def without_full_collections() -> Iterator[None]:
    """No collection of the oldest generation inside: a new program is 100,000 objects that live on, and every quarter of growth walks all there are.

    Only the third threshold changes: young garbage is collected as always, `gc.disable()` and `gc.enable()` keep their meaning, and a
    threshold that somebody else sets meanwhile stays.

    >>> with without_full_collections():
    ...     parts = [object() for _ in range(3)]
    """
    global _open, _saved
    with _lock:
        _open += 1
        if _open == 1:
            young, middle, _saved = gc.get_threshold()
            gc.set_threshold(young, middle, NEVER)
    try:
        yield
    finally:
        with _lock:
            _open -= 1
            if not _open:
                young, middle, oldest = gc.get_threshold()
                if oldest == NEVER:
                    gc.set_threshold(young, middle, _saved)


def _after_fork() -> None:
    """The child has none of the threads that were inside."""
    global _lock, _open
    _lock, held, _open = threading.Lock(), _open, 0
    young, middle, oldest = gc.get_threshold()
    if held and oldest == NEVER:
        gc.set_threshold(young, middle, _saved)


os.register_at_fork(after_in_child=_after_fork)
