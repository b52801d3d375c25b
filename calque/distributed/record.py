"""The flight recorder: the last calls of this process that others take part in, in order, with what they were and how far they got."""

from __future__ import annotations

import json
import os
import tempfile
import time
import zlib
from collections import deque
from typing import Any

from calque.base.cache import Cache

KEPT = 512  # calls
WAITING, MOVING, DONE, FAILED = "waits for the others", "moves data", "done", "failed"


class Kind:
    """What must be the same on every rank of a call. `detail`: what else must agree (the operation, the root). `shape` is None where ranks may bring
    different ones. `code`: all of it as a number of 32 bits."""

    __slots__ = ("op", "dtype", "shape", "detail", "code")

    def __init__(self, op: str, dtype: str, shape: tuple[int, ...] | None, detail: str) -> None:
        self.op, self.dtype, self.shape, self.detail = op, dtype, shape, detail
        self.code = zlib.crc32(str(self).encode())

    def __str__(self) -> str:
        shape = "" if self.shape is None else f" {self.shape}"
        return f"{self.op}({self.dtype}{shape}{', ' if self.detail else ''}{self.detail})"


_KINDS = Cache("descriptions of collectives", 500, 1 / 1024)


def kind_of(op: str, dtype: str, shape: tuple[int, ...] | None, detail: str) -> Kind:
    """The kind of a call."""
    key = (op, dtype, shape, detail)
    found = _KINDS.get(key)
    return _KINDS.keep(key, Kind(op, dtype, shape, detail)) if found is None else found  # type: ignore[no-any-return]


class Call:
    """One collective. `number`: its place among the calls of its group, the same on every rank; below 0 for messages."""

    __slots__ = ("group", "number", "kind", "line", "state", "asked", "begun", "ended")

    def __init__(self, group: int, number: int, kind: Kind, line: str) -> None:
        self.group, self.number, self.kind, self.line = group, number, kind, line
        self.state, self.asked, self.begun, self.ended = "queued", time.time(), 0.0, 0.0

    @property
    def op(self) -> str:
        """Its name."""
        return self.kind.op

    def word(self) -> int:
        """Its kind and place as one number."""
        return self.number << 32 | self.kind.code

    def place(self) -> str:
        """Which one of the group's."""
        return f"{'call number' if self.number > 0 else 'message'} {abs(self.number)} of group {self.group}"

    def __str__(self) -> str:
        return f"{self.kind} at {self.line or 'an unknown line'}"

    def as_dict(self) -> dict[str, Any]:
        """For the file."""
        kind = {name: getattr(self.kind, name) for name in ("op", "dtype", "shape", "detail")}
        return {"group": self.group, "number": self.number, **kind, **{name: getattr(self, name) for name in self.__slots__[3:]}}


class Recorder:
    """The last calls, oldest first."""

    def __init__(self) -> None:
        self.calls: deque[Call] = deque(maxlen=KEPT)

    def last(self) -> Call | None:
        """The one that was begun last."""
        return next((call for call in reversed(self.calls) if call.begun), None)

    def write(self, rank: int, reason: str, folder: str = "") -> str:
        """Write all to a file of this process; returns its path, or why there is none."""
        path = os.path.join(folder or tempfile.gettempdir(), f"calque-flight-{os.getpid()}-rank{rank}.json")
        rows = [call.as_dict() for call in list(self.calls)]
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump({"rank": rank, "pid": os.getpid(), "time": time.time(), "reason": reason, "calls": rows}, file, indent=1)
        except OSError as error:
            return f"no file ({error})"
        return path
