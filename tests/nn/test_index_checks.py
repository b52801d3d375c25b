"""Indices and labels are checked in one of three ways, which say the same."""

from __future__ import annotations

import numpy as np
import pytest

from calque.functional import checks as indexing
from calque.nn.functional import checks


def test_few_and_many_values_are_judged_alike(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(300):
        values = rng.integers(-1 if rng.random() < 0.3 else 0, 12, size=(int(rng.integers(1, 5)), int(rng.integers(1, 6))))
        size = int(rng.integers(8, 14))
        low, negative = (-size, True) if rng.random() < 0.5 else (0, False)
        found, verdicts = [], []
        for few in (0, 64):
            monkeypatch.setattr(checks, "_FEW", few)
            monkeypatch.setattr(indexing, "_FEW", few)
            found.append(checks._all_in(values, size))
            verdicts.append(indexing._verdict(values, size, low, negative))
        assert found == [bool(((values >= 0) & (values < size)).all())] * 2
        assert found[0] == (checks._first_bad(values, size, None) < 0)
        assert verdicts[0] == verdicts[1]
