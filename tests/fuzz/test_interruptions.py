"""Random training loops that signal handlers interrupt (see `interruptions.py`)."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.fuzz.interruptions import mismatch


@pytest.fixture(autouse=True)
def _no_callbacks_of_others() -> Iterator[None]:
    """What a handler raises while a collection runs a callback of somebody else (hypothesis has one) is written out by Python and lost, whoever is
    interrupted."""
    before = list(gc.callbacks)
    gc.callbacks[:] = [found for found in before if found.__module__.startswith("calque")]
    yield
    gc.callbacks[:] = before


@pytest.mark.parametrize("part", range(6))
def test_what_a_handler_raises_comes_out_and_loses_nothing(part: int, seed: int) -> None:
    text = mismatch(seed + part, 4, "raising")
    assert not text, f"python -m tests.fuzz.interruptions --only raising --count 1 --seed {seed + part}: {text}"


@pytest.mark.parametrize("part", range(6))
def test_what_two_signals_in_quick_succession_raise_comes_out(part: int, seed: int) -> None:
    text = mismatch(seed + part, 4, "twice")
    assert not text, f"python -m tests.fuzz.interruptions --only twice --count 1 --seed {seed + part}: {text}"


@pytest.mark.parametrize("part", range(6))
def test_a_handler_reads_and_records_without_a_trace(part: int, seed: int) -> None:
    text = mismatch(seed + part, 4, "handler")
    assert not text, f"python -m tests.fuzz.interruptions --only handler --count 1 --seed {seed + part}: {text}"


@pytest.mark.parametrize("part", range(6))
def test_what_the_collector_runs_reads_and_records_without_a_trace(part: int, seed: int) -> None:
    text = mismatch(seed + part, 4, "collector")
    assert not text, f"python -m tests.fuzz.interruptions --only collector --count 1 --seed {seed + part}: {text}"
