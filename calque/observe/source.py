"""The user's source line: the innermost frame outside the package."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from types import CodeType, FrameType

from calque.base.cache import Cache
from calque.base.native import hot

_PACKAGE = str(Path(__file__).resolve().parent.parent)


def inside_package(file: str) -> bool:
    """Whether a source file belongs to Calque (or to the import machinery)."""
    return file.startswith((_PACKAGE, "<frozen"))


_ours: set[str] = set()  # files that are
_others = Cache("source files", 250, 1 / 512)  # that are not


def user_site(frames: int = 1) -> tuple[CodeType | None, int]:
    """Where the code that called into Calque stands, as (code object, instruction); cheaper than a line, which `line_of` makes of it. `frames`:
    so many are ours for sure."""
    try:
        frame: FrameType | None = sys._getframe(frames)
    except ValueError:  # called by nobody's Python
        return None, 0
    while frame is not None:
        code = frame.f_code
        if code.co_filename not in _ours and _foreign(code.co_filename):
            return code, frame.f_lasti
        frame = frame.f_back
    return None, 0


def _foreign(file: str) -> bool:
    """Whether a source file is none of those in `_ours`, to which one of ours is added."""
    if _others.get(file) is not None:
        return True
    if inside_package(file):
        _ours.add(file)
        return False
    _others.keep(file, True)
    return True


_lines = Cache("lines of the user", 400, 1 / 256)  # (id of the code, instruction) -> code, what `user_line` has said of it


def line_of(code: CodeType | None, position: int) -> str:
    """`file:line` of an instruction, or "" without code."""
    if code is None:
        return ""
    for start, end, line in code.co_lines():
        if start <= position < end and line is not None:
            return f"{code.co_filename}:{line}"
    return f"{code.co_filename}:{code.co_firstlineno}"


def _user_line() -> str:
    """`file:line` of the code that called into Calque, or "" when there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        name = code.co_filename
        if name not in _ours and _foreign(name):
            place = (id(code), frame.f_lasti)  # not the code itself, whose hash goes over all of it
            found = _lines.get(place)
            if found is None or found[0] is not code:
                found = _lines.keep(place, (code, f"{name}:{frame.f_lineno}"))
            line: str = found[1]
            return line
        frame = frame.f_back
    return ""


user_line = _user_line
if hot is not None:
    hot.set_source(_ours, _others, _foreign, _lines, _user_line)
    user_line = hot.user_line


warned = 0  # how often `warn_user` has been called


def warn_user(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost line of the user, however many frames of ours lie between."""
    global warned
    warned += 1
    level, frame = 1, sys._getframe(0)
    while frame is not None and inside_package(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back  # type: ignore[assignment]
    warnings.warn(text, category, stacklevel=level)
