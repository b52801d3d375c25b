"""A progress bar for terminals that stays silent everywhere else."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sized
from types import TracebackType
from typing import TextIO, TypeVar

from calque.base.errors import ArgumentError, DTypeError
from calque.base.text import described

T = TypeVar("T")
_REDRAW_SECONDS = 0.1
_BAR_CELLS = 20


class ProgressBar:
    """A line that shows how far a loop is; it appears only on a terminal (log files and pipes get nothing).

    `total` is the number of steps or None, `initial` how many were done before (they do not count for the speed). Use it as a
    context manager, so that the line is completed also when the loop fails.

    >>> from calque.monitor import ProgressBar
    >>> with ProgressBar(3, "epoch 1/5") as bar:
    ...     for loss in (0.3, 0.2, 0.1):
    ...         bar.update(1, f"loss {loss:.1f}")
    >>> bar.text()
    'epoch 1/5 100% 3/3 loss 0.1'
    """

    def __init__(
        self,
        total: int | None = None,
        description: str = "",
        initial: int = 0,
        disable: bool = False,
        file: TextIO | None = None,
    ) -> None:
        if total is not None and not isinstance(total, int):
            raise DTypeError(f"[ProgressBar] expected total as an int or None, got {described(total)}")
        if total is not None and total < 0:
            raise ArgumentError(f"[ProgressBar] expected total >= 0 or None, got {total}")
        if file is not None and not hasattr(file, "write"):
            raise DTypeError(f"[ProgressBar] expected file as a text stream, got {described(file)}")
        self.total = total
        self.description = description
        self.count = self.initial = initial
        self.message = ""
        self.file = file if file is not None else sys.stderr
        self.shown = not disable and self.file is not None and getattr(self.file, "isatty", bool)()
        self.began = self.drawn = time.monotonic()
        self._closed = False

    def update(self, steps: int = 1, message: str | None = None) -> None:
        """Count `steps` more; `message` replaces the text at the end of the line."""
        self.count += steps
        if message is not None:
            self.message = message
        if self.shown and time.monotonic() - self.drawn >= _REDRAW_SECONDS:
            self._draw()

    def close(self) -> None:
        """Draw the last state and go to the next line."""
        if self.shown and not self._closed:
            self._draw()
            self.file.write("\n")
            self.file.flush()
        self._closed = True

    def text(self) -> str:
        """The line without bar and times."""
        parts = [self.description]
        if self.total:
            parts.append(f"{min(self.count / self.total, 1.0):4.0%}".strip())
        parts.append(f"{self.count}/{self.total}" if self.total is not None else f"{self.count}")
        return " ".join(part for part in (*parts, self.message) if part)

    def _draw(self) -> None:
        self.drawn = time.monotonic()
        elapsed, done = self.drawn - self.began, self.count - self.initial
        times = clock(elapsed)
        if done > 0 and self.total is not None:
            times += f"<{clock(max(self.total - self.count, 0) * elapsed / done)}"
        if done > 0 and elapsed > 0:
            times += f", {done / elapsed:.1f}/s"
        place = f"{self.count}" if self.total is None else f"{self.count}/{self.total}"
        line = f"{self.description} {self._bar()}{place} [{times}] {self.message}"
        self.file.write("\r" + line.strip()[: max(shutil.get_terminal_size().columns - 1, 10)] + "\x1b[K")
        self.file.flush()

    def _bar(self) -> str:
        if not self.total:
            return ""
        share = min(self.count / self.total, 1.0)
        full, empty = ("█", "░") if (getattr(self.file, "encoding", None) or "").lower().startswith("utf") else ("#", ".")
        cells = int(share * _BAR_CELLS)
        return f"{share:4.0%} {full * cells}{empty * (_BAR_CELLS - cells)} "

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def progress(iterable: Iterable[T], description: str = "", total: int | None = None, disable: bool = False) -> Iterator[T]:
    """Iterate with a progress bar; the total is `len(iterable)` where it has one.

    >>> from calque.monitor import progress
    >>> sum(progress([1, 2, 3], "adding"))
    6
    """
    if not isinstance(iterable, Iterable):
        raise DTypeError(f"[progress] expected something to walk through, got {described(iterable)}")
    if total is None and isinstance(iterable, Sized):
        total = len(iterable)
    return _walked(iterable, ProgressBar(total, description, disable=disable))


def _walked(iterable: Iterable[T], shown: ProgressBar) -> Iterator[T]:
    with shown as bar:
        for item in iterable:
            yield item
            bar.update()


def clock(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss.

    >>> clock(75), clock(3725)
    ('1:15', '1:02:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
