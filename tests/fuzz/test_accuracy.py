"""A few random cases of `tests/fuzz/accuracy.py`, which does the same with progress."""

from __future__ import annotations

import pytest

CASES = 12


@pytest.mark.oracle
def test_no_random_case_is_much_farther_from_float64_than_pytorch(seed: int) -> None:
    pytest.importorskip("torch")
    from tests.fuzz.accuracy import farther

    wrong = [(number, case.name, text) for number in range(seed, seed + CASES) for case, text in [farther(number)] if text]
    assert not wrong, wrong
