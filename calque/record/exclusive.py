"""Which recorded values may overwrite the memory of the values that they replace."""

from __future__ import annotations

from sys import getrefcount

from calque.record.path import Trace
from calque.record.storage import Storage
from calque.run.buffer import Buffer
from calque.run.engine import ENGINE
from calque.run.prepacking import let_go


def judge(
    trace: Trace, live: list[Storage], numbers: dict[int, int], homes: dict[int, Buffer], before: dict[int, Buffer | None]
) -> None:
    """Decide which values may overwrite the buffers that they replace (`numbers`, `homes`); see `recorder._dispatch`."""
    with ENGINE.pins:
        for storage in live:
            home = storage.home
            if home is not None and home.trace is trace:
                # Whether only `storage.home`, `trace.inputs`, this variable and the argument refer to the buffer, so that it may be overwritten
                # (what tasks hold counts apart: they run before the program that overwrites).
                few = getrefcount(home) <= 4 + home.pins or (let_go(home) and getrefcount(home) <= 4 + home.pins)
                alone = few and ((home.owner is None and home.export is None) or not home.shared())
                if alone and homes.get(storage.slot) is None:
                    numbers[storage.slot], homes[storage.slot] = home.number, home
                    home.floating = False
                    continue
                before[storage.slot] = None if storage.slot in numbers else home
            elif storage.slot in before:
                before[storage.slot] = None  # also the value of a storage that held something else
            numbers.setdefault(storage.slot, -1)
