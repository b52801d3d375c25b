"""Functions inside of which no signal is handled."""

from __future__ import annotations

from collections.abc import Callable
from opcode import opmap
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
_BEHIND_YIELD_FROM = 2


def unbroken(function: F) -> F:
    """Decorate an `__exit__` or `__del__` without calls and loops: no signal is handled inside.

    Python calls `__exit__` like any function, and a function that begins looks for signals first, so Ctrl-C could come before its first line has run,
    and what it was to restore would stay. Only those that go on behind `yield from` do not look, which the instruction `RESUME` says.
    """
    code = function.__code__
    instructions = bytearray(code.co_code)
    instructions[instructions[::2].index(opmap["RESUME"]) * 2 + 1] = _BEHIND_YIELD_FROM
    function.__code__ = code.replace(co_code=bytes(instructions))
    return function
