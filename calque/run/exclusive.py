"""Which recorded values may overwrite the memory of the values that they replace."""

from __future__ import annotations

from sys import getrefcount
from typing import Any

from calque.run.buffer import Buffer
from calque.run.engine import ENGINE


def judge(
    trace: Any, live: list[Any], numbers: dict[int, int], homes: dict[int, Buffer], before: dict[int, Buffer | None]
) -> None:
    """Decide which values may overwrite the buffers that they replace (`numbers`, `homes`); see `recorder._dispatch`."""
    with ENGINE.pins:
        for storage in live:
            home = storage.home
            if home is not None and home.trace is trace:
                if homes.get(storage.slot) is None and _exclusive(home):
                    numbers[storage.slot], homes[storage.slot] = home.number, home
                    home.floating = False
                    continue
                before[storage.slot] = None if storage.slot in numbers else home
            elif storage.slot in before:
                before[storage.slot] = None  # also the value of a storage that held something else
            numbers.setdefault(storage.slot, -1)


def _exclusive(buffer: Buffer) -> bool:
    """Whether only the storage and the trace refer to the buffer, so that it may be overwritten."""
    # storage.home, trace.inputs, the two arguments on the stack and getrefcount's own
    # (what tasks hold counts apart: they run before the program that overwrites)
    return getrefcount(buffer) <= 5 + buffer.pins and not buffer.shared()
