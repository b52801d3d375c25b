"""Tracebacks of a program that runs on Calque under PyTorch's name: its own frames, not ours.

An error leaves a process through four exits: the hook of the main thread, that of other threads, the one for errors that nobody can catch, and the
class by which the standard library shows all others (`traceback.print_exc`, `logging`, child processes of `multiprocessing`). We stand at each.
An error that the program catches costs nothing. `CALQUE_TRACEBACK=full` shows everything.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable
from dis import opmap
from types import FrameType, TracebackType
from typing import Any

import numpy as np

from calque.base.config import settings
from calque.base.errors import CalqueError
from calque.compat import missing
from calque.functional.blame import OF_A_CALL, is_guess, said
from calque.observe.source import inside_package

_PYTHON = (os.path.dirname(os.__file__), "<frozen")
_NUMPY = os.path.dirname(np.__file__)
_OTHERS = os.path.join(os.path.dirname(_NUMPY), "")  # where the program's libraries lie, which are the program


def _ours(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return inside_package(file) and not file.startswith("<frozen")


def _served(frame: FrameType) -> bool:
    """Whether a frame is Python's or NumPy's: ours as well, where we have called it."""
    file = frame.f_code.co_filename
    return file.startswith(_NUMPY) or file.startswith(_PYTHON) and not file.startswith(_OTHERS)


def _frames(trace: TracebackType | None) -> list[TracebackType]:
    found = []
    while trace is not None:
        found.append(trace)
        trace = trace.tb_next
    return found


def _on_purpose(error: BaseException, place: TracebackType) -> bool:
    """Whether a `raise` statement made the error, or a call from outside that a function of the program's does not take."""
    if place.tb_frame.f_code.co_code[place.tb_lasti] == opmap["RAISE_VARARGS"]:
        return True
    return isinstance(error, TypeError) and OF_A_CALL.search(str(error)) is not None


def _is_bug(error: BaseException, frames: list[TracebackType]) -> bool:
    """Whether an error that nobody raised on purpose comes from inside Calque: whoever mends it needs our frames."""
    if isinstance(error, (CalqueError, Warning, StopIteration)) or not isinstance(error, Exception) or said(error):
        return False
    while frames and _served(frames[-1].tb_frame):
        frames = frames[:-1]
    inner = 0
    while inner < len(frames) and _ours(frames[-1 - inner].tb_frame):
        inner += 1
    if inner == 0 or inner == len(frames) or isinstance(error, LookupError) and inner == 1:  # the program's; that of `calque run`; a container's
        return False
    return not _on_purpose(error, frames[-1])


def without_ours(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of Calque, and without those of Python and NumPy that it has called."""
    kept, inside = [], False
    for step in _frames(trace):
        inside = _ours(step.tb_frame) or inside and _served(step.tb_frame)
        if not inside:
            kept.append(step)
    rest: TracebackType | None = None
    for step in reversed(kept):
        rest = step if step.tb_next is rest else TracebackType(rest, step.tb_frame, step.tb_lasti, step.tb_lineno)
    return rest


def _from_the_program(trace: TracebackType | None) -> TracebackType | None:
    """A traceback from the program's first frame on: `calque run` itself stands above it."""
    while trace is not None and _ours(trace.tb_frame) and trace.tb_next is not None:
        trace = trace.tb_next
    return trace


def clean(error: BaseException | None, seen: set[int] | None = None) -> None:
    """Take our frames out of an error, of those that led to it and of those in a group. One that was handled inside of Calque led to nothing that the
    program knows of: it is left out of the chain. An error that is a bug of Calque keeps its frames."""
    seen = set() if seen is None else seen
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        frames = _frames(error.__traceback__)
        error.__traceback__ = _from_the_program(error.__traceback__) if _is_bug(error, frames) else without_ours(error.__traceback__)
        for inner in getattr(error, "exceptions", ()):
            clean(inner, seen)
        error.__context__ = _known(error.__context__)
        if is_guess(error):  # its cause is all that there is to find the bug by
            return
        if error.__cause__ is not None:
            error.__cause__, hidden = _known(error.__cause__), error.__suppress_context__
            error.__suppress_context__ = hidden and error.__cause__ is not None or error.__context__ is None
        clean(error.__context__, seen)
        error = error.__cause__


def _known(error: BaseException | None) -> BaseException | None:
    """The first error of a chain that did not begin and end inside of Calque."""
    seen: set[int] = set()
    while error is not None and error.__traceback__ is not None and id(error) not in seen:
        seen.add(id(error))
        if not all(_ours(step.tb_frame) or _served(step.tb_frame) for step in _frames(error.__traceback__)):
            break
        error = error.__context__
    return error


def prepare(error: BaseException | None) -> None:
    """What an error looks like when it is shown: notes about missing names, and (unless all is to be seen) the program's frames alone."""
    if error is None:
        return
    try:
        missing.explain(error)
        if settings.traceback != "full":
            clean(error)
    except Exception:  # an error must be shown, whatever is strange about it
        return


class _Before:
    """What showed errors before."""

    main: Callable[..., Any] = sys.__excepthook__
    thread: Callable[..., Any] = threading.__excepthook__
    unraisable: Callable[..., Any] = sys.__unraisablehook__
    text: Callable[..., Any] = traceback.TracebackException.__init__


def _main(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    prepare(error)
    _Before.main(kind, error, error.__traceback__ if error is not None else trace)


def _thread(args: Any) -> None:
    prepare(args.exc_value)
    trace = args.exc_value.__traceback__ if args.exc_value is not None else args.exc_traceback
    _Before.thread(threading.ExceptHookArgs((args.exc_type, args.exc_value, trace, args.thread)))


def _unraisable(args: Any) -> None:
    prepare(args.exc_value)
    trace = args.exc_value.__traceback__ if args.exc_value is not None else args.exc_traceback
    _Before.unraisable(type(args)((args.exc_type, args.exc_value, trace, args.err_msg, args.object)))


def _text(self: Any, kind: Any, error: Any, trace: Any, **options: Any) -> None:
    if trace is not None and error is not None and trace is error.__traceback__:
        prepare(error)
        trace = error.__traceback__
    _Before.text(self, kind, error, trace, **options)


def install() -> None:
    """Stand at the exits of this process, behind whatever the program puts there later."""
    if traceback.TracebackException.__init__ is _text:
        return
    _Before.main, sys.excepthook = sys.excepthook, _main
    _Before.thread, threading.excepthook = threading.excepthook, _thread
    _Before.unraisable, sys.unraisablehook = sys.unraisablehook, _unraisable
    _Before.text = traceback.TracebackException.__init__
    traceback.TracebackException.__init__ = _text  # type: ignore[method-assign, assignment]
