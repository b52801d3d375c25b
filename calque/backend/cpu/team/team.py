"""Teams of native threads: one of all cores, and one for the share of every logical device. What runs on a thread uses the team of the place where it
works (`place.py`); teams load with the first program that is compiled."""

from __future__ import annotations

import atexit
import os
import threading

from calque.backend.cpu.team import place
from calque.backend.cpu.team.runtime import RUNTIME, Runtime
from calque.base import config

_TEAMS: dict[int, Runtime] = {}
_LOCK = threading.Lock()


def share(index: int) -> int:
    """Threads of a logical device: the threads divided among the devices, the first ones get what is left over, each has at least one."""
    devices = max(1, config.settings.logical_devices)
    whole, rest = divmod(config.settings.threads, devices)
    return max(1, whole + (index < rest))


def team(index: int | None) -> Runtime:
    """The team of a logical device, or (None) of the CPU as a whole; its threads start with its first large job."""
    if index is None:
        return RUNTIME
    found = _TEAMS.get(index)
    if found is None:
        with _LOCK:
            found = _TEAMS.get(index) or _TEAMS.setdefault(index, Runtime(lambda: share(index)))
    return found


class Team(threading.local):
    """The team of the calling thread, which may have gone to its place before teams were loaded."""

    def __init__(self) -> None:
        self.runtime = team(place.HERE.index)


TEAM = Team()


def _follow(index: int | None) -> None:
    TEAM.runtime = team(index)


def _forget() -> None:
    for found in _TEAMS.values():
        found.forget()


def _shut_down() -> None:
    for found in _TEAMS.values():
        found.shut_down()


place.FOLLOWERS.append(_follow)
os.register_at_fork(after_in_child=_forget)
atexit.register(_shut_down)
