"""Signals wait while values change hands: between taking a trace and handing out its buffers their handlers would lose the values of both.

Python runs signal handlers between two instructions of the main thread, wherever that is. The functions of the C module are used because
those of `signal` turn every result into an enumeration, which takes longer than recording an operation.
"""

from __future__ import annotations

import os
from _signal import getsignal  # type: ignore[import-not-found]
from _signal import signal as set_handler
from collections.abc import Callable
from opcode import opmap
from signal import valid_signals
from threading import get_ident, main_thread
from types import FrameType
from typing import Any

_SIGNALS = sorted(int(number) for number in valid_signals())


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
    """`if hold():`, then in a `finally` `release()`, which calls the handlers whose signals came in between.

    All handlers in Python are held off, the program's own too: whatever one of them raises would be taken for a failure of the work that it
    interrupts, or lose the values that change hands there.
    """

    def __init__(self) -> None:
        self._seen: list[Any] = []  # handlers of all signals at the last look...
        self._python: list[tuple[int, Any]] = []  # ... and those among them that are Python's
        self._held: list[tuple[int, Any]] = []
        self._noted: dict[int, FrameType | None] = {}  # signals that came, and what they have interrupted
        self._handler = self._note  # one object, to know it again

    def hold(self) -> bool:
        """From now on signals are only noted. False, and nothing changes, outside the main thread, inside another hold, and without handlers."""
        if get_ident() != _main.ident or self._held:
            return False
        handlers = list(map(getsignal, _SIGNALS))
        if handlers != self._seen:
            self._seen, self._python = handlers, [(n, h) for n, h in zip(_SIGNALS, handlers, strict=True) if h is not None and h.__class__ is not int]
        if not self._python:
            return False
        self._held = list(self._python)
        try:
            for number, _ in self._python:
                set_handler(number, self._handler)
        except BaseException:  # of a signal that came before its turn
            self.release()
            raise
        return True

    @property
    def asked(self) -> bool:
        """Whether a signal came since they were held off."""
        return bool(self._noted)

    def release(self) -> None:
        """Back to normal; calls the handlers whose signals came meanwhile, which may raise. A handler that was set meanwhile stays."""
        try:
            self._back()
        finally:
            if self._noted:
                noted, self._noted = self._noted, {}
                _call([(handler, number, noted[number]) for number, handler in self._python if number in noted])

    def _back(self) -> None:
        """Whatever a handler raises that is back already, the others come back too."""
        held = self._held
        try:
            while held:
                number, handler = held[-1]
                if getsignal(number) is self._handler:
                    set_handler(number, handler)
                del held[-1]
        finally:
            if held:
                self._back()

    def forked(self) -> None:
        """In the child of another thread nobody would ever release what the main thread holds."""
        self._back()
        self._noted = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted[number] = frame


def _call(waiting: list[tuple[Any, int, FrameType | None]]) -> None:
    """Call handlers; every one of them, as Python does, whatever those before it raise."""
    handler, number, frame = waiting.pop()
    try:
        handler(number, frame)
    finally:
        if waiting:
            _call(waiting)


def of_handler(error: BaseException) -> bool:
    """Whether a signal handler has raised the error: some frame that it went through was given the frame that called it, as handlers are."""
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        caller = frame.f_back
        if caller is not None:
            for value in frame.f_locals.values():
                if value is caller or (value.__class__ is tuple and any(item is caller for item in value)):
                    return True
        trace = trace.tb_next
    return isinstance(error, KeyboardInterrupt)


def whole(function: Callable[..., None]) -> Callable[..., None]:
    """Decorate an `__exit__` or `__del__` without calls and loops: no signal is handled inside.

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
