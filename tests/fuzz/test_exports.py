"""Some mutants of exports, and random programs as exports, on every run; more with --slow."""

from __future__ import annotations

import pytest

from tests.fuzz.exported import mismatch
from tests.fuzz.exports import examples, wrong


@pytest.mark.parametrize("count", [100, pytest.param(5000, marks=pytest.mark.slow)])
def test_changed_exports_are_refused_or_run(count: int, seed: int) -> None:
    files = examples()
    found = {k: text for k in range(seed, seed + count) if (text := wrong(k, files[k % len(files)]))}
    assert not found


@pytest.mark.parametrize("count", [25, pytest.param(1000, marks=pytest.mark.slow)])
def test_exports_of_random_programs_give_what_the_programs_give(count: int, seed: int) -> None:
    found = {k: text for k in range(seed, seed + count) if (text := mismatch(k))}
    assert not found
