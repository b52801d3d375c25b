"""What was worked out before and is kept for the next time: bounded in bytes, and counted by `calque.stats()`.

A program whose shapes, numbers or lines never end must not grow for ever, so whatever is kept by one of these is one of the caches here. All of them
together hold at most `settings.memo_bytes` (`CALQUE_MEMO_BYTES`), of which each has a fixed share. The bytes of an entry are an estimate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, wraps
from typing import Any, TypeVar

from calque.base.config import settings

F = TypeVar("F", bound=Callable[..., Any])
LEAST = 16


class Table:
    """One line of the list of caches. `share`: of `settings.memo_bytes`; `measure`: gives entries and bytes; `least`: bytes that it may hold however
    small its share is."""

    __slots__ = ("share", "measure", "least")

    def __init__(self, share: float, measure: Callable[[], tuple[int, int]], least: int = 0) -> None:
        self.share, self.measure, self.least = share, measure, least

    def limit(self) -> int:
        """Bytes that the cache may hold."""
        return max(self.least, int(self.share * settings.memo_bytes))


TABLES: dict[str, Table] = {}


def register(name: str, table: Table) -> Table:
    """Have a cache counted. Whoever keeps one that is none of the classes below sees to its bound."""
    assert name not in TABLES, name
    TABLES[name] = table
    return table


class Cache(dict[Any, Any]):
    """A dictionary that forgets what was used least recently. `entry`: bytes of an entry; `share`: see `Table`.

    The dictionary itself is the younger half. When that is full it becomes the older half, and what was in the older half is forgotten; what is
    found in the older half moves to the younger one. So a hit costs what it costs in a dictionary (`get`; `in` sees the younger half alone), and
    nothing goes that was used within the last half of the budget.
    """

    __slots__ = ("table", "entry", "older", "extra", "_more", "_older_more")

    def __init__(self, name: str, entry: int, share: float) -> None:
        super().__init__()
        self.entry, self.extra = entry, 0
        self.older: dict[Any, Any] = {}
        self._more: dict[Any, int] = {}  # bytes beyond `entry` of those that have any
        self._older_more: dict[Any, int] = {}
        self.table = register(name, Table(share, self.measured, 2 * LEAST * entry))

    get: Callable[[Any], Any] = dict.__getitem__  # type: ignore[assignment]  # native code, that calls what follows if the key is not there

    def __missing__(self, key: Any) -> Any:
        found = self.older.pop(key, None)
        return None if found is None else self.keep(key, found, self._older_more.pop(key, 0))

    def keep(self, key: Any, value: Any, more: int = 0) -> Any:
        """Put an entry in, which must not be None; gives its value. `more`: bytes that it has beyond those of an entry. What would fill half of the
        budget alone is not kept."""
        half, size = self.table.limit() // 2, self.entry + more
        if size > half:
            return value
        if len(self) * self.entry + self.extra + size > half:
            self.older, self._older_more, self._more, self.extra = dict(self), self._more, {}, 0
            super().clear()
        if more:
            self._more[key] = more
            self.extra += more
        self[key] = value
        return value

    def clear(self) -> None:
        """Forget everything."""
        super().clear()
        self.older, self._older_more, self._more, self.extra = {}, {}, {}, 0

    def measured(self) -> tuple[int, int]:
        """(entries, bytes)."""
        count = len(self) + len(self.older)
        return count, count * self.entry + self.extra + sum(self._older_more.values())


def memoised(name: str, entry: int, share: float) -> Callable[[F], F]:
    """`functools.lru_cache` for functions of shapes and numbers. The budget is that of the moment at which the function is defined."""

    def decorate(function: F) -> F:
        most = max(LEAST, int(share * settings.memo_bytes) // entry)
        cached = lru_cache(maxsize=most)(function)

        @wraps(function)
        def remembered(*args: Any, **named: Any) -> Any:
            return function(*args, **named) if _forgetful else cached(*args, **named)

        def measure() -> tuple[int, int]:
            count = cached.cache_info().currsize
            return count, count * entry

        register(name, Table(share, measure, most * entry))
        return remembered  # type: ignore[return-value]

    return decorate


_forgetful: list[None] = []  # as long as there is anything in it, nothing is looked up


@contextmanager
def forgetful() -> Iterator[None]:
    """Functions that are `memoised` are computed: their arguments are no numbers, and looking them up would mean something (see `ir/symint.py`)."""
    _forgetful.append(None)
    try:
        yield
    finally:
        _forgetful.pop()


def measured() -> dict[str, dict[str, int]]:
    """Entries, bytes and most bytes of every cache."""
    found = {}
    for name, table in sorted(TABLES.items()):
        entries, nbytes = table.measure()
        found[name] = {"entries": entries, "bytes": nbytes, "limit": table.limit()}
    return found
