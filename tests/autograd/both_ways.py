"""Library code as it is written and recorded again (`settings.macros` off and on): both ways give the same values, trie and programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import calque
from calque.base.config import settings
from calque.record import recorder
from calque.record.recorder import Counters
from calque.replay.stretches import StretchCounts
from calque.run import dispatch


@pytest.fixture(autouse=True, name="_fresh")
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    recorder.flush("test")
    monkeypatch.setattr(dispatch, "INTERPRET_WORK", 0)  # programs met for the first time are not interpreted: both ways run the same code
    monkeypatch.setattr(dispatch, "INTERPRET_TIMES", 0)
    yield
    settings.macros = True
    recorder.flush("test")
    calque.synchronize()


def compare(run: Callable[[], list[np.ndarray]], least: int) -> None:
    """Both ways, in this order: whatever the second way records must be in the trie already, and its programs must exist."""
    settings.macros = False
    run()  # a place that meets a second number forgets the path behind the first one
    recorder.flush("test")
    expected = run()
    recorder.flush("test")
    edges, programs, replays = Counters.edges, Counters.plan_misses, StretchCounts.replays
    settings.macros = True
    got = run()
    recorder.flush("test")
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(a, b)
    assert (Counters.edges, Counters.plan_misses) == (edges, programs)
    assert StretchCounts.replays - replays >= least
