"""A session in the Trace Event Format that Perfetto and chrome://tracing open.

One row per kind and thread, arrows from a flush to the run that it started, counters for the memory and for the queues. Times are microseconds
since the session began. Source: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

from calque.observe.events import COMPILE, COPIES, KERNELS, LOADER, RANGES, RECORDING, Event, Session

_FIRST = (RANGES, RECORDING, COMPILE)  # then the device queues by name
_LAST = (KERNELS, COPIES, LOADER)


def rows(events: list[Event]) -> list[tuple[str, str]]:
    """(row, thread) of every row in the order in which they are shown."""

    def place(row: str) -> int:
        return _FIRST.index(row) if row in _FIRST else 100 + _LAST.index(row) if row in _LAST else 50

    return sorted({(e.row, e.thread) for e in events}, key=lambda r: (place(r[0]), *r))


def chrome_trace(session: Session, metadata: dict[str, str] | None = None) -> dict[str, Any]:
    """The session as the dictionary of its JSON file."""
    pid = os.getpid()
    events = sorted(session.events, key=lambda e: (e.start, -e.seconds))
    numbers = {row: k for k, row in enumerate(rows(events), start=1)}
    found: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": "calque"}}]
    for (row, thread), tid in numbers.items():
        found.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": f"{row} ({thread})"}})
        found.append({"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}})

    def at(moment: float) -> float:
        return max(0.0, round((moment - session.began) * 1e6, 3))

    flushed: dict[int, Event] = {}
    for e in events:
        place = {"pid": pid, "tid": numbers[e.row, e.thread]}
        found.append({"ph": "X", "name": e.name, "cat": e.row, "ts": at(e.start), "dur": round(e.seconds * 1e6, 3), **place, "args": e.facts})
        if not e.flow:
            continue
        if e.row == RECORDING:
            flushed[e.flow] = e
        elif (origin := flushed.get(e.flow)) is not None:
            arrow = {"cat": "flush", "name": "starts", "id": e.flow, "pid": pid}
            where = numbers[origin.row, origin.thread]
            found.append({"ph": "s", **arrow, "tid": where, "ts": at(origin.start)})
            found.append({"ph": "f", "bp": "e", **arrow, "tid": place["tid"], "ts": at(max(e.start, origin.start))})
    for moment, held in sorted(session.memory):
        found.append({"ph": "C", "name": "memory", "ts": at(moment), "pid": pid, "tid": 0, "args": {"bytes in use": held}})
    for moment, queue, tasks in sorted(session.depths):
        found.append({"ph": "C", "name": f"{queue} queue depth", "ts": at(moment), "pid": pid, "tid": 0, "args": {"tasks": tasks}})
    return {"traceEvents": found, "displayTimeUnit": "ms", "otherData": {"events left out": str(session.dropped), **(metadata or {})}}


def export(session: Session, path: str | Path, metadata: dict[str, str] | None = None) -> None:
    """Write the session as JSON; compressed if the name ends in .gz. The folder is made if it is not there."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(chrome_trace(session, metadata)).encode()
    Path(path).write_bytes(gzip.compress(text) if str(path).endswith(".gz") else text)
