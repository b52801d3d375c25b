"""The progress bar on a terminal, and its silence elsewhere."""

from __future__ import annotations

import io
import os
import pty
import sys
import time
from collections.abc import Callable, Iterable, Iterator

import pytest

from calque.monitor import ProgressBar, progress
from calque.monitor.progress import clock


class Terminal(io.StringIO):
    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


def test_silent_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar(3, "epoch") as bar:
        for _ in range(3):
            bar.update()
    assert list(progress(range(3), "epoch")) == [0, 1, 2]
    assert capsys.readouterr() == ("", "")


def test_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.get_terminal_size", lambda fallback=(80, 24): os.terminal_size((200, 24)))
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    file = Terminal()
    with ProgressBar(10, "epoch 1/2", initial=2, file=file) as bar:
        for loss in range(8):
            now[0] += 0.5
            bar.update(1, f"loss {loss}")
    lines = file.getvalue().split("\r")
    assert len(lines) == 10 and lines[0] == "" and file.getvalue().endswith("\x1b[K\n")
    assert lines[2] == "epoch 1/2  40% ████████░░░░░░░░░░░░ 4/10 [0:01<0:03, 2.0/s] loss 1\x1b[K"
    assert lines[-1] == "epoch 1/2 100% ████████████████████ 10/10 [0:04<0:00, 2.0/s] loss 7\x1b[K\n"


def iterate(count: int) -> Iterator[int]:
    return iter(range(count))


@pytest.mark.parametrize(("make", "total", "shown"), [(range, None, " 5/5 ["), (range, 20, " 5/20 ["), (iterate, None, "numbers 5 [")])
def test_the_total_of_a_loop(monkeypatch: pytest.MonkeyPatch, make: Callable[[int], Iterable[int]], total: int | None, shown: str) -> None:
    """Its length, another if one is given, none if nobody knows it."""
    monkeypatch.setattr("sys.stderr", Terminal())
    assert list(progress(make(5), "numbers", total)) == [0, 1, 2, 3, 4]
    assert shown in sys.stderr.getvalue().split("\r")[-1]  # type: ignore[attr-defined]


def test_drawn_at_most_ten_times_a_second() -> None:
    file = Terminal()
    with ProgressBar(100_000, file=file) as bar:
        began = time.monotonic()
        for _ in range(100_000):
            bar.update()
        elapsed = time.monotonic() - began
    assert file.getvalue().count("\r") <= 12 * elapsed + 2


def test_lines_fit_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.get_terminal_size", lambda fallback=(80, 24): os.terminal_size((40, 24)))
    file = Terminal()
    ProgressBar(10, "a" * 100, file=file).close()
    assert len(file.getvalue()) == 1 + 39 + len("\x1b[K\n")


def test_without_a_total_and_without_unicode() -> None:
    file = Terminal()
    file.encoding = "ascii"  # type: ignore[misc]
    with ProgressBar(None, "reading", file=file) as bar:
        bar.update(5)
    assert "reading 5 [0:00" in file.getvalue() and bar.text() == "reading 5"
    ProgressBar(4, file=file).close()
    assert "0% .................... 0/4" in file.getvalue()
    ProgressBar(0, "empty", file=file).close()
    assert "empty 0/0" in file.getvalue()


def test_disabled_and_failing_loops() -> None:
    file = Terminal()
    ProgressBar(3, file=file, disable=True).close()
    assert file.getvalue() == ""
    with pytest.raises(ZeroDivisionError), ProgressBar(3, file=file) as bar:
        bar.update()
        bar.count //= 0
    assert file.getvalue().endswith("\n")
    with pytest.raises(ValueError, match="expected total >= 0 or None, got -1"):
        ProgressBar(-1)


def test_on_a_real_pseudo_terminal() -> None:
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as file, ProgressBar(2, "real", file=file) as bar:
        bar.update(2)
    assert b"real 100%" in os.read(leader, 1000)
    os.close(leader)


def test_clock() -> None:
    assert [clock(s) for s in (0, 59.6, 3599, 3600, 90_061)] == ["0:00", "1:00", "59:59", "1:00:00", "25:01:01"]
