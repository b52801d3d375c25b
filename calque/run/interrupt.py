"""Signal handlers run where they do no harm.

Python runs them between two instructions of the main thread, wherever that is: between taking a trace and handing out its buffers, where what they
raise would lose the values of both; and in the middle of an operation, where what they read and record would become part of it. So `Shield.came`
stands before every handler written in Python. While values change hands it only notes which signal came; else the handler runs with a recording of
its own (see `aside`).

It is there all the time: looking which signals have a handler, and setting others, took longer than recording ten operations. Programs see
nothing of it, as `signal.signal` and `signal.getsignal`, which both ask the C module below them, speak of the handlers that stand behind it.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from functools import wraps
from types import FrameType
from typing import Any, ParamSpec, TypeVar

from calque.base.unbroken import unbroken

P = ParamSpec("P")
R = TypeVar("R")


class _Here(threading.local):
    """`main`: whether this is the main thread, the only one that handles signals; None if nobody has asked yet. Looking here is no call."""

    main: bool | None = None

    def ask(self) -> bool:
        """Find out."""
        self.main = main = threading.current_thread() is threading.main_thread()
        return main

    def forked(self) -> None:
        """The thread that forks is the main thread of the child."""
        self.main = True


_here = _Here()
os.register_at_fork(after_in_child=_here.forked)


def _call(handler: Any, number: int, frame: FrameType | None) -> None:
    handler(number, frame)


class Shield:
    """`held = hold()`, then in a `finally` `if held: release()`, which calls the handlers whose signals came in between.

    All handlers in Python are held off, the program's own too: whatever one of them raises would be taken for a failure of the work that it
    interrupts, or lose the values that change hands there.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Any] = {}  # the program's, which `came` stands before
        self._held = False
        self._noted: dict[int, FrameType | None] = {}  # signals that came, and what they have interrupted
        self._front = self.came  # one object, to know it again
        self._ready = False  # whether handlers are known that were set before this module was imported
        self.call = _call  # calls a handler, see `aside`

    @unbroken
    def hold(self) -> bool:
        """From now on signals are only noted. False, and nothing changes, outside the main thread and inside another hold."""
        main = _here.main
        if main is None:
            main = _here.ask()
        if self._held or not main:
            return False
        if not self._ready:
            self.adopt()
        self._held = True  # once everything is known there was no call before this
        return True

    @property
    def asked(self) -> bool:
        """Whether a signal came since they were held off."""
        return bool(self._noted)

    @unbroken
    def release(self) -> None:
        """Back to normal; calls the handlers whose signals came meanwhile, which may raise. A handler that was set meanwhile is the one."""
        noted = self._noted
        if noted:
            self._noted = {}
        self._held = False  # no call since nothing more is noted: what comes from here on is handled where it comes
        if noted:
            self.late(noted)

    @unbroken
    def late(self, noted: dict[int, FrameType | None]) -> None:
        """Call the handlers of signals; every one of them, as Python does, whatever those before it raise."""
        for number in noted:
            frame = noted[number]
            del noted[number]
            try:
                if number in self._handlers:
                    self.call(self._handlers[number], number, frame)
            finally:
                if noted:
                    self.late(noted)
            break

    @unbroken
    def came(self, number: int, frame: FrameType | None) -> None:
        """What Python calls when a signal came."""
        if self._held:
            self._noted[number] = frame
        else:
            self.call(self._handlers[number], number, frame)

    # ------------------------------------------------------------------------------------------------------ handlers that programs set and see

    def adopt(self) -> None:
        """Stand before the handlers that there are. Python lets nobody but the main thread do that: in another one nothing happens yet."""
        if not _here.ask():
            return
        self._ready = True
        for number in sorted(_BELOW.valid_signals()):
            handler = _BELOW.getsignal(number)
            if callable(handler) and handler is not self._front:
                self.set(number, handler)

    def set(self, number: int, handler: Any) -> Any:
        """`signal.signal`: the handler that was there before."""
        behind = self._handlers
        if not callable(handler) or not _here.ask():  # the latter is refused by Python
            before = _BELOW.signal(number, handler)
            return behind.pop(number, None) if before is self._front else before
        known = behind.get(number)
        if handler is not self._front:
            behind[number] = handler
        try:
            before = _BELOW.signal(number, self._front)
        except BaseException:  # no signal of this system, or one that came before raises
            if known is None:
                behind.pop(number, None)
            else:
                behind[number] = known
            raise
        return known if before is self._front else before

    def get(self, number: int) -> Any:
        """`signal.getsignal`."""
        handler = _BELOW.getsignal(number)
        return self._handlers.get(number) if handler is self._front else handler

    def forked(self) -> None:
        """In the child of another thread nobody would ever release what the main thread holds."""
        self._held, self._noted = False, {}


def shielded(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function during which signals wait: one that says what is wrong, for instance, and catches errors while it does."""

    @wraps(function)
    @unbroken
    def call(*args: P.args, **keywords: P.kwargs) -> R:
        held = SHIELD.hold()
        try:
            return function(*args, **keywords)
        finally:
            if held:
                SHIELD.release()

    return call


class _Between:
    """Stands between `signal` and the C module below it, whose two functions about handlers are ours."""

    def __init__(self, shield: Shield) -> None:
        self.signal, self.getsignal = shield.set, shield.get

    def __getattr__(self, name: str) -> Any:
        return getattr(_BELOW, name)


def of_handler(error: BaseException) -> bool:
    """Whether a signal handler has raised the error: it went through what calls them."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in _CALLERS:
            return True
        trace = trace.tb_next
    return isinstance(error, KeyboardInterrupt)


_BELOW: Any = signal._signal  # type: ignore[attr-defined]
_CALLERS = (Shield.came.__code__, Shield.late.__code__)
SHIELD = Shield()
signal._signal = _Between(SHIELD)  # type: ignore[attr-defined]
SHIELD.adopt()
os.register_at_fork(after_in_child=SHIELD.forked)
