"""Ctrl-C waits while values change hands: between taking a trace and handing out its buffers it would lose the values of both.

Python runs signal handlers between two instructions of the main thread, wherever that is. The functions of the C module are used because
those of `signal` turn every result into an enumeration, which takes longer than recording an operation.
"""

from __future__ import annotations

import os
from _signal import getsignal  # type: ignore[import-not-found]
from _signal import signal as set_handler
from collections.abc import Callable
from opcode import opmap
from signal import SIGINT, default_int_handler
from threading import get_ident, main_thread
from types import FrameType


class _Main:
    """The main thread: its number, kept because asking for it takes two calls."""

    def __init__(self) -> None:
        self.ident = main_thread().ident

    def forked(self) -> None:
        """The thread that forks is the main thread of the child."""
        self.ident = get_ident()


_main = _Main()
os.register_at_fork(after_in_child=_main.forked)


class Shield:
    """`if hold():`, then in a `finally` `release()`, which raises the `KeyboardInterrupt` that was asked for in between.

    Only Python's own handler is held off: a program that has set another one decides for itself.
    """

    def __init__(self) -> None:
        self._asked = False
        self._handler = self._note  # one object, to know it again

    def hold(self) -> bool:
        """From now on a Ctrl-C is only noted. False, and nothing changes, outside the main thread or with a handler of the program's own."""
        if getsignal(SIGINT) is not default_int_handler or get_ident() != _main.ident:
            return False
        self._asked = False
        set_handler(SIGINT, self._handler)
        return True

    @property
    def asked(self) -> bool:
        """Whether Ctrl-C came since it was held off."""
        return self._asked

    def release(self) -> None:
        """Back to normal; raises `KeyboardInterrupt` if Ctrl-C came meanwhile. A handler that the program has set meanwhile stays."""
        self._back()
        if self._asked:
            raise KeyboardInterrupt

    def _back(self) -> None:
        if getsignal(SIGINT) is self._handler:
            set_handler(SIGINT, default_int_handler)

    def forked(self) -> None:
        """In the child of another thread nobody would ever release what the main thread holds."""
        self._back()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._asked = True


def whole(function: Callable[..., None]) -> Callable[..., None]:
    """Decorate an `__exit__` without calls and loops: no Ctrl-C comes inside.

    Python calls `__exit__` like any function, and a function that begins looks for signals first, so Ctrl-C could come before its first line has run,
    and what it was to restore would stay. Only those that go on behind `yield from` do not look, which the instruction `RESUME` says.
    """
    code = function.__code__
    instructions = bytearray(code.co_code)
    instructions[instructions[::2].index(opmap["RESUME"]) * 2 + 1] = _BEHIND_YIELD_FROM
    function.__code__ = code.replace(co_code=bytes(instructions))
    return function


_BEHIND_YIELD_FROM = 2
SHIELD = Shield()
os.register_at_fork(after_in_child=SHIELD.forked)
