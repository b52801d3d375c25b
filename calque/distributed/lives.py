"""Whether other processes of this machine still live. One that dies without a word (killed, by `os._exit`, by a crash of native code) tells nobody;
but the kernel knows it at once, whoever has started the process, and whether it was at fault.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Mapping


class Lives:
    """Those of the ranks whose process numbers are given. Where the system has no handles of processes (before Linux 5.3), nothing is known."""

    def __init__(self, numbers: Mapping[int, int]) -> None:
        self._ranks: dict[int, int] = {}  # by the handle of their process
        self._ended: list[int] = []
        if not hasattr(os, "pidfd_open"):
            return
        self._poll = select.poll()
        for rank, number in numbers.items():
            try:
                handle = os.pidfd_open(number)
            except ProcessLookupError:
                self._ended.append(rank)
                continue
            except OSError:  # the kernel has none, or a sandbox forbids them
                continue
            self._ranks[handle] = rank
            self._poll.register(handle, select.POLLIN)

    def ended(self) -> list[int]:
        """Ranks that have ended since. Never blocks."""
        found, self._ended = self._ended, []
        if self._ranks:
            for handle, _ in self._poll.poll(0):
                found.append(self._forget(handle))
        return found

    def close(self) -> None:
        """Give the handles back."""
        for handle in list(self._ranks):
            self._forget(handle)

    def _forget(self, handle: int) -> int:
        self._poll.unregister(handle)
        with contextlib.suppress(OSError):
            os.close(handle)
        return self._ranks.pop(handle)
