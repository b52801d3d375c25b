"""The user's own ranges in a profile."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from calque.base.text import shown
from calque.observe import events
from calque.observe.events import RANGES

F = TypeVar("F", bound=Callable[..., Any])


class record_function:
    """A named range of the thread that runs it, as context manager or decorator; nothing happens unless a profile is active.

    The range is the time in which Python ran: work recorded in it may run later, on the row of its device. What a hybridized call replays runs no
    Python, so ranges inside of it do not appear then.

    >>> import calque
    >>> with calque.profiler.profile() as p:
    ...     with calque.profiler.record_function("square"):
    ...         _ = (calque.ones(3) ** 2).sum().item()
    >>> [e.name for e in p.events() if e.row == "ranges"]
    ['square']
    """

    def __init__(self, name: str, args: str | None = None) -> None:
        if not isinstance(name, str) or not name:
            raise TypeError(f"[record_function] expected a name that is not empty, got {shown(name)}; write record_function('forward')")
        self.name, self.args = name, args
        self._starts: list[tuple[events.Session | None, float]] = []

    def __enter__(self) -> record_function:
        self._starts.append((events.active, events.clock()))
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None) -> None:
        session, start = self._starts.pop()
        if session is not None and session is events.active:
            facts: dict[str, Any] = {} if self.args is None else {"args": str(self.args)}
            session.span(self.name, RANGES, start, **facts)

    def __call__(self, function: F) -> F:
        """Every call of the function is a range."""

        @functools.wraps(function)
        def ranged(*args: Any, **kwargs: Any) -> Any:
            with record_function(self.name, self.args):
                return function(*args, **kwargs)

        return ranged  # type: ignore[return-value]
