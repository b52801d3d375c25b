"""Random changes of objects between hybridized calls, beside PyTorch; `tests/fuzz/mutations.py` runs any number of them."""

from __future__ import annotations

import pytest

from tests.fuzz import mutations

pytest.importorskip("torch")


def test_calls_see_what_has_changed(seed: int) -> None:
    """The seed of a failure is printed with the line that repeats it."""
    for number in range(seed, seed + 20):
        text = mutations.check(number)
        assert not text, text
