"""Python's cyclic collector: while the compiler builds data that will stay, and while a graph waits for its backward pass."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

NEVER = 1 << 30
YOUNG = 10_000  # new objects behind which Python looks for cycles among them
MANY = 32  # blocks that ended while others ran: where programs are made one behind the other, on several threads, there is always one
_lock = threading.RLock()  # what is collected inside may make a program
_inside: list[weakref.ref[_Inside]] = []  # not a `WeakSet`: what a signal handler raised in its callbacks, which are Python, would be lost
_saved = 10
_ended = 0  # since there was no block


class _Inside:
    """A block that runs. One that Ctrl-C ended between two lines is gone with its frame: a count of blocks would never come back to 0."""

    __slots__ = ("__weakref__",)


@contextmanager
def without_full_collections() -> Iterator[None]:
    """No collection of the oldest generation inside: a new program is 100,000 objects that live on, and every quarter of growth walks all there are.

    Only the third threshold changes: young garbage is collected as always, `gc.disable()` and `gc.enable()` keep their meaning, and a
    threshold that somebody else sets meanwhile stays.

    >>> with without_full_collections():
    ...     parts = [object() for _ in range(3)]
    """
    global _saved, _ended
    block = _Inside()
    try:
        with _lock:
            _inside[:] = [ref for ref in _inside if ref() is not None]
            _inside.append(weakref.ref(block))
            young, middle, oldest = gc.get_threshold()
            if oldest != NEVER and len(_inside) == 1:
                _saved = oldest
                gc.set_threshold(young, middle, NEVER)
        yield
    finally:
        with _lock:
            _inside[:] = [ref for ref in _inside if ref() not in (None, block)]
            _ended = _ended + 1 if _inside else 0
            if not _inside or _ended == MANY:
                _restore()


def _restore() -> None:
    young, middle, oldest = gc.get_threshold()
    if oldest == NEVER:
        gc.set_threshold(young, middle, _saved)


def pause_collections() -> bool:
    """No collection until `gc.enable()`, which the caller owes if this is True: False if there are none anyway. For a moment only: that somebody else
    disables collections meanwhile would be lost.

    >>> if pause_collections():
    ...     gc.enable()
    """
    if gc.isenabled():
        gc.disable()
        return True
    return False


def let_graphs_grow() -> None:
    """Look for young cycles less often, unless somebody has chosen another threshold than Python's own.

    A step makes some thousands of objects (nodes, handles) that its backward pass frees again by counting references. With Python's 700 they outlive
    two rounds of the collector, count as old, and have everything walked through, trie and programs included, every few steps.
    """
    young, middle, oldest = gc.get_threshold()
    if young in _PYTHONS:
        gc.set_threshold(YOUNG, middle, oldest)


def count_as_old() -> None:
    """What there is by now stays: the collector need not walk through it as young or middle-aged. Garbage among it is found with the old. It takes
    as long whatever there is.

    Modules, classes and functions that an import has made are some thousands of objects, whose turn came in the middle of the first step.
    """
    if not gc.get_freeze_count():  # what somebody else has frozen would thaw
        gc.freeze()
        gc.unfreeze()


_PYTHONS = (700, 2000)  # the thresholds that versions of Python begin with


def _after_fork() -> None:
    """The child has none of the threads that were inside."""
    global _lock
    _lock = threading.RLock()
    if _inside:
        _inside.clear()
        _restore()


os.register_at_fork(after_in_child=_after_fork)
let_graphs_grow()
