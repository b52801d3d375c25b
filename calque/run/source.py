"""The user's source line: the innermost frame outside the package."""

from __future__ import annotations

import sys
from pathlib import Path

_PACKAGE = str(Path(__file__).resolve().parent.parent)


def user_line() -> str:
    """`file:line` of the code that called into Calque, or "" when there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_PACKAGE) and not name.startswith("<frozen"):
            return f"{name}:{frame.f_lineno}"
        back = frame.f_back
        if back is None:
            break
        frame = back
    return ""
