"""A few seeds of `python -m tests.fuzz.pt_files` on every run; three thousand with --slow."""

from __future__ import annotations

import pytest

from tests.fuzz.pt_files import check, content_of, good_files, good_pickles


@pytest.mark.parametrize("first", [0, pytest.param(10_000, marks=pytest.mark.slow)])
def test_damaged_files_are_refused_or_load(first: int) -> None:
    pickles = good_pickles()
    files = good_files(pickles)
    count = 300 if first == 0 else 3000
    found = {seed: wrong for seed in range(first, first + count) if (wrong := check(content_of(seed, pickles, files), seed % 10 == 0))}
    assert not found
