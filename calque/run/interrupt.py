"""Ctrl-C waits while values change hands: between taking a trace and handing out its buffers it would lose the values of both.

Python runs signal handlers between two instructions of the main thread, wherever that is. The functions of the C module are used because
those of `signal` turn every result into an enumeration, which takes longer than recording an operation.
"""

from __future__ import annotations

import os
from _signal import getsignal  # type: ignore[import-not-found]
from _signal import signal as set_handler
from collections.abc import Callable
from signal import SIGINT, default_int_handler
from threading import get_ident, main_thread
from types import CodeType, FrameType
from typing import Any


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
        self._before: Any = default_int_handler

    def hold(self) -> bool:
        """From now on a Ctrl-C is only noted. False, and nothing changes, outside the main thread or with a handler of the program's own."""
        before = getsignal(SIGINT)
        if (before is not default_int_handler and before is not EXITS.handler) or get_ident() != _main.ident:
            return False
        self._asked, self._before = False, before
        set_handler(SIGINT, self._note)
        return True

    @property
    def asked(self) -> bool:
        """Whether Ctrl-C came since it was held off."""
        return self._asked

    def release(self) -> None:
        """Back to normal; raises `KeyboardInterrupt` if Ctrl-C came meanwhile."""
        set_handler(SIGINT, self._before)
        if self._asked:
            raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._asked = True


class Exits:
    """Ends of `with` blocks that must not be cut off: Python calls `__exit__` like any function, so Ctrl-C can come before its first line has run.

    While such a block runs in the main thread, Ctrl-C asks where it came: at the end of the block it waits for that, elsewhere it is Python's own.
    """

    def __init__(self) -> None:
        self.handler = self._handle  # one object, to know it again
        self._codes: set[CodeType] = {Exits.left.__code__}
        self._depth = 0
        self._asked = False

    def whole(self, function: Callable[..., None]) -> Callable[..., None]:
        """Decorate an `__exit__`, which calls `left` at its end if `entered` said so. The function stays what it is."""
        self._codes.add(function.__code__)
        return function

    def entered(self) -> bool:
        """A block begins. False, and nothing changes, outside the main thread or with a handler of the program's own."""
        if get_ident() != _main.ident:
            return False
        before = getsignal(SIGINT)
        if before is default_int_handler:
            self._depth = 1
            set_handler(SIGINT, self.handler)
            return True
        self._depth += before is self.handler
        return before is self.handler

    def left(self) -> None:
        """A block has ended; raises the `KeyboardInterrupt` that was asked for while it did."""
        if get_ident() == _main.ident:
            self._depth -= 1
            if self._depth <= 0 and getsignal(SIGINT) is self.handler:
                set_handler(SIGINT, default_int_handler)
            if self._asked:
                self._asked = False
                raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code in self._codes:
            self._asked = True
        else:
            default_int_handler(number, frame)


EXITS = Exits()
SHIELD = Shield()
