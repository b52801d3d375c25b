"""`torch.cuda.nvtx`: ranges are those of `calque.profiler.record_function`. Without a CUDA device they are refused, as in PyTorch."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from calque.base.device import Device, known
from calque.profiler import record_function

__all__ = ["mark", "range", "range_end", "range_pop", "range_push", "range_start"]


class _Open(threading.local):
    """The ranges of a thread that were pushed and not popped."""

    def __init__(self) -> None:
        self.ranges: list[record_function] = []


_OPEN = _Open()


def range_push(msg: str) -> int:
    """Begin a range inside the one that this thread has begun last; returns how many there were."""
    return _push(range_start(msg))


def _push(begun: record_function) -> int:
    _OPEN.ranges.append(begun)
    return len(_OPEN.ranges) - 1


def range_pop() -> int:
    """End the range that this thread has begun last; returns how many are left, -1 if there was none."""
    known(Device("cuda"))
    if not _OPEN.ranges:
        return -1
    range_end(_OPEN.ranges.pop())
    return len(_OPEN.ranges)


def range_start(msg: str) -> Any:
    """Begin a range; what comes back ends it (`range_end`)."""
    known(Device("cuda"))
    return record_function(msg).__enter__()


def range_end(range_id: Any) -> None:
    """End a range of `range_start`."""
    range_id.__exit__(None, None, None)


def mark(msg: str) -> None:
    """A range without length."""
    range_end(range_start(msg))


@contextlib.contextmanager
def range(msg: str, *args: Any, **keywords: Any) -> Iterator[None]:
    """A block that is a range; the text is formatted with what else is given."""
    begun = range_start(msg.format(*args, **keywords))
    try:
        yield
    finally:
        range_end(begun)
