"""A few seeds of `python -m tests.fuzz.checkpoints` on every run; a thousand with --slow."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.checkpoints import check_counting, check_saving


@pytest.mark.parametrize("first", [0, pytest.param(1000, marks=pytest.mark.slow)])
def test_what_is_saved_can_be_loaded_and_refusals_change_nothing(tmp_path: Path, first: int) -> None:
    found = {seed: wrong for seed in range(first, first + (100 if first == 0 else 1000)) if (wrong := check_saving(seed, tmp_path))}
    assert not found


@pytest.mark.parametrize("first", [0, pytest.param(1000, marks=pytest.mark.slow)])
def test_no_text_takes_more_memory_than_is_counted(first: int) -> None:
    found = {seed: wrong for seed in range(first, first + (60 if first == 0 else 1000)) if (wrong := check_counting(seed))}
    assert not found
