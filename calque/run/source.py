"""The user's source line: the innermost frame outside the package."""

from __future__ import annotations

import sys
from pathlib import Path

_PACKAGE = str(Path(__file__).resolve().parent.parent)


def inside_package(file: str) -> bool:
    """Whether a source file belongs to Calque (or to the import machinery)."""
    return file.startswith((_PACKAGE, "<frozen"))


def user_line() -> str:
    """`file:line` of the code that called into Calque, or "" when there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not inside_package(name):
            return f"{name}:{frame.f_lineno}"
        back = frame.f_back
        if back is None:
            break
        frame = back
    return ""
