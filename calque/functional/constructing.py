"""Frames of constructors that users call with more arguments than a frame with places for them has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

Answer = Callable[[Sequence[Any], Mapping[str, Any], Exception], Any]


def constructing(function: FunctionType, answer: Answer, nothing: object) -> Any:
    """`function`, a constructor; `answer` says what its errors mean, or gives `nothing`. The code of the frame names the arguments of the function
    among its variables: libraries look there for what a constructor takes, and leave out what they do not find."""

    def call(*args: Any, **keywords: Any) -> Any:
        if False:  # variables that are never there, in whose places the names stand
            _1 = _2 = _3 = _4 = _5 = _6 = _7 = _8 = _9 = _10 = _11 = _12 = _13 = _14 = _15 = _16 = _17 = _18 = _19 = _20 = None
        try:
            return function(*args, **keywords)
        except Exception as error:
            if (meant := answer(args, keywords, error)) is not nothing:
                return meant
            raise

    code, variables = function.__code__, call.__code__.co_varnames
    names = iter([name for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if name not in variables])
    call.__code__ = call.__code__.replace(co_varnames=tuple([next(names, v) if v[1:].isdigit() else v for v in variables]))
    return call
