"""Random hybridized functions that several threads call at once (see `threads.py`), and that the comparison finds what was wrong once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from calque.hybrid import call
from calque.record import threads
from tests.fuzz.threads import mismatch, report


@pytest.fixture(autouse=True)
def _alone_again() -> Iterator[None]:
    """Other tests count the programs of threads that share nothing."""
    yield
    threads.Sharing.left = 0


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("part", range(2))
def test_threads_leave_and_get_what_one_does(part: int, seed: int) -> None:
    for number in range(seed + 10 * part, seed + 10 * part + 10):
        assert not (text := report(number)), text


def test_the_comparison_finds_calls_that_come_in_between(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "SECTION", nullcontext())
    assert any(mismatch(number) for number in range(seed, seed + 60))
