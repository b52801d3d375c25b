"""Gradients that are appended without their rules are what the rules record."""

from __future__ import annotations

from tests.fuzz.templates import Pass, appended, mismatch

SAMPLES = 40


def test_paths_are_those_of_the_rules(seed: int) -> None:
    """`python -m tests.fuzz.templates` does the same with progress."""
    appended.clear()
    wrong = [f"seed {number}: {Pass(number)}\n    {text}" for number in range(seed, seed + SAMPLES) for text in [mismatch(number)] if text]
    assert not wrong, "\n".join(wrong[:5])
    assert sum(appended.values()) > SAMPLES
