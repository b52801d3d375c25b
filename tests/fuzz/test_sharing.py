"""Random programs on memory that tensors and NumPy arrays share, beside PyTorch; `tests/fuzz/sharing.py` runs any number of them."""

from __future__ import annotations

import pytest

from tests.fuzz import sharing

pytest.importorskip("torch")


def test_tensors_and_arrays_see_what_the_other_writes(seed: int) -> None:
    """The seed of a failure is printed with the line that repeats it."""
    for number in range(seed, seed + 40):
        text = sharing.check(number)
        assert not text, text
