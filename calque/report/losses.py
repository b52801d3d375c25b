"""The warning at the first loss that is NaN or infinite. Nothing waits for it: a loss is looked at when a later backward finds it computed."""

from __future__ import annotations

import weakref
from collections import deque
from itertools import count
from typing import Any

import numpy as np

from calque.base.cache import Cache
from calque.base.errors import NonFiniteWarning
from calque.observe.source import warn_user
from calque.record.recorder import local
from calque.record.storage import Storage

_passes = count(1)
_pending: deque[tuple[int, str, Any]] = deque(maxlen=64)  # (number of the backward pass, its line, storage of the loss)
_told = Cache("lines with bad losses", 200, 1 / 512)


def watch_loss(t: Any, line: str) -> None:
    """A backward starts at `t` on this line: remember its value (one number), and look at those of earlier passes that are computed by now."""
    storage = t._storage
    single = storage.layout.numel == 1 and storage.layout.dtype.is_floating_point
    capture = local.state.capture
    if capture is not None:  # its replays look: a reference here would make the loss outlive the call
        if single:
            capture.losses.append((weakref.ref(storage), line))
        return
    number = next(_passes)
    while _pending and (found := _taken()) is not None:
        _inspect(*found)
    if single and line not in _told:
        _pending.append((number, line, storage))


class ReplayedLoss:
    """The losses from which replays of one call start a backward: each is looked at at once if it is computed, else when the next is made."""

    __slots__ = ("line", "held", "number")

    def __init__(self, line: str) -> None:
        self.line, self.number = line, 0
        self.held: Any = None

    def next(self, storage: Storage) -> None:
        """A replay has made another one."""
        if self.held is not None:
            self._look(self.held)
        self.number = next(_passes)
        buffer = storage.buffer
        if buffer is None or buffer.task is not None or buffer.array is None:
            self.held = storage
        else:  # a reference would keep its memory from the next step
            self.held = None
            self._look(storage)

    def _look(self, storage: Storage) -> None:
        if _computed(storage):
            _inspect(self.number, self.line, storage)
        else:
            _pending.append((self.number, self.line, storage))  # some later backward looks at it


def watch_value(value: float, line: str) -> None:
    """A replayed call has run a backward from this number, which it has read."""
    number = next(_passes)
    if value - value != 0.0:
        _tell(number, line, value)


def _computed(storage: Storage) -> bool:
    buffer = storage.buffer
    return buffer is not None and (buffer.task is None or buffer.task.done)


def _taken() -> tuple[int, str, Any] | None:
    """The oldest loss if it is computed. Other threads look, too: what was first may be gone before it is taken."""
    try:
        if not _computed(_pending[0][2]):
            return None
        found = _pending.popleft()
    except IndexError:
        return None
    if _computed(found[2]):
        return found
    _pending.appendleft(found)
    return None


def _inspect(number: int, line: str, storage: Storage) -> None:
    buffer = storage.buffer
    array = None if buffer is None else buffer.array
    if array.__class__ is not np.ndarray or line in _told:  # nobody waits for a device that computes by itself
        return
    value = array.item(0)
    if value - value != 0.0:
        _tell(number, line, float(value))


def _tell(number: int, line: str, value: float) -> None:
    if _told.get(line):
        return
    _told.keep(line, True)
    warn_user(
        f"[backward] expected a finite loss, got {value} in backward pass {number} of this process ({line}), the first such; lower the learning "
        "rate, clip the gradients or check the data, or run with CALQUE_CHECKED=1 to be told the first operation that made it",
        NonFiniteWarning,
    )
