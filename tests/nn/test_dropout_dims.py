"""Which values dropout of channels drops together, by the number of dims, as PyTorch has it: rows of features go to `Dropout2d` in many programs."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import calque
from calque.nn import functional as F

TOGETHER = {  # function -> number of dims -> how many leading dims are drawn for
    "dropout1d": {2: 1, 3: 2}, "dropout2d": {2: 2, 3: 2, 4: 2, 5: 2}, "dropout3d": {1: 1, 2: 1, 3: 1, 4: 1, 5: 2, 6: 1},
}  # fmt: skip
CASES = [(name, dims, lead) for name, found in TOGETHER.items() for dims, lead in found.items()]


@pytest.mark.parametrize(("name", "dims", "lead"), CASES)
def test_dropped_together(name: str, dims: int, lead: int) -> None:
    function: Any = getattr(F, name)
    n = int(name[-2])
    usual = dims in (n + 1, n + 2) and not (name == "dropout2d" and dims == 3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = function(calque.ones(*([16] * lead), *([3] * (dims - lead))), 0.5).numpy() != 0
    assert bool(caught) is not usual
    rows = found.reshape(16**lead, -1)
    assert (rows == rows[:, :1]).all()
    kept = rows[:, 0].reshape([16] * lead)
    assert 0.2 < kept.mean() < 0.8
    for axis in range(lead):  # and nothing more than that
        assert (np.diff(kept.astype(int), axis=axis) != 0).any()


@pytest.mark.parametrize(("name", "dims"), [("dropout1d", 1), ("dropout1d", 4), ("dropout2d", 1)])
def test_refused(name: str, dims: int) -> None:
    with pytest.raises(ValueError, match=rf"\[{name}\] expected an input with"):
        getattr(F, name)(calque.ones(*([2] * dims)))


def test_the_old_example_of_digits() -> None:
    """`Dropout2d` on (N, features) warns and drops features, as in programs that everybody has copied."""
    layer = calque.nn.Dropout2d(0.5)
    with pytest.warns(UserWarning, match="use dropout"):
        found = layer(calque.ones(64, 128))
    assert set(np.unique(found.numpy())) == {0.0, 2.0}
