"""Classes of tensors that are asked what functions mean (`__torch_function__`), for the parts of the library that need the values all the same."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from calque.base.unbroken import unbroken

T = TypeVar("T")
ASKED: dict[type, Callable[[Any], Any]] = {}  # such a class -> what makes an ordinary tensor of one of its objects, of the same memory and history


class _Local(threading.local):
    off = 0


LOCAL = _Local()


class plainly:
    """A `with` block in which objects of such classes are ordinary tensors: calls inside of it ask nobody."""

    def __enter__(self) -> None:
        LOCAL.off += 1

    @unbroken
    def __exit__(self, *_: object) -> None:
        LOCAL.off -= 1


class asking:
    """A `with` block inside of such a block in which they are asked again: around a function of the program's own."""

    def __enter__(self) -> None:
        self.before, LOCAL.off = LOCAL.off, 0

    @unbroken
    def __exit__(self, *_: object) -> None:
        LOCAL.off = self.before


def called(function: Callable[..., Any], args: Any, keywords: Any) -> Any:
    """A call that a public function makes for the program: classes are asked about what it calls in turn, although all of it may be the library's."""
    return function(*args, **keywords)


def ordinary(x: T) -> T:
    """An object of such a class as an ordinary tensor; anything else as it is."""
    made = ASKED.get(x.__class__)
    return x if made is None else made(x)
