"""The user's source line: the innermost frame outside the package."""

from __future__ import annotations

import sys
import warnings
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


def warn_user(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost line of the user, however many frames of ours lie between."""
    level, frame = 1, sys._getframe(0)
    while frame is not None and inside_package(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back  # type: ignore[assignment]
    warnings.warn(text, category, stacklevel=level)
