"""Random compositions of function transforms agree with reverse mode and loops."""

from __future__ import annotations

import pytest

from tests.fuzz import nested

pytestmark = pytest.mark.filterwarnings("ignore::calque.base.errors.RepetitionWarning")


@pytest.mark.parametrize("block", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 10))])
def test_transforms_of_transforms(block: int, seed: int) -> None:
    """The seed of a failure is printed with the line that repeats it."""
    for number in range(seed + 60 * block, seed + 60 * block + 60):
        text = nested.check(number)
        assert not text, text
