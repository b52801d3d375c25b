"""Gradients that are appended without their rules are what the rules record."""

from __future__ import annotations

import pytest

from calque.run import dispatch
from tests.fuzz.templates import Pass, appended, mismatch

SAMPLES = 40


def test_paths_are_those_of_the_rules(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m tests.fuzz.templates` does the same with progress, and compiles: here, where paths are looked at, that took most of the time."""
    monkeypatch.setattr(dispatch, "INTERPRET_TIMES", 1000)
    monkeypatch.setattr(dispatch, "INTERPRET_WORK", 1 << 60)
    appended.clear()
    wrong = [f"seed {number}: {Pass(number)}\n    {text}" for number in range(seed, seed + SAMPLES) for text in [mismatch(number)] if text]
    assert not wrong, "\n".join(wrong[:5])
    assert sum(appended.values()) > SAMPLES
