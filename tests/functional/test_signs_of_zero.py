"""A sum of negative zeros is 0.0, as in PyTorch, whichever way it is computed: 1 / x tells the two apart."""

from __future__ import annotations

import math

import pytest

import calque
from calque.run import dispatch

SHAPES = ((1,), (2,), (9,), (3, 2), (17, 3), (5, 1, 2), (300, 70))


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("compiled", [False, True], ids=["", "compiled"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["sum", "mean", "nansum", "cumsum"])
def test_sums_of_negative_zeros(name: str, dtype: str, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if compiled:
        monkeypatch.setattr(dispatch, "INTERPRET_WORK", 0)
    for shape in SHAPES if not compiled else SHAPES[1::3]:
        x = calque.full(shape, -0.0, dtype=getattr(calque, dtype))
        for dim in range(len(shape)):
            found = getattr(calque, name)(x, dim).flatten().tolist()
            assert all(v == 0 and math.copysign(1, v) == 1 for v in found), (shape, dim)


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("compiled", [False, True], ids=["", "compiled"])
def test_extremes_at_one_place_keep_the_first_zero(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As PyTorch's do; NumPy's maximum takes the second."""
    if compiled:
        monkeypatch.setattr(dispatch, "INTERPRET_WORK", 0)
    index = calque.tensor([0, 1, 1, 2, 2])
    for how in ("amax", "amin"):
        base, source = calque.tensor([0.0, math.nan, -1.0 if how == "amax" else 1.0]), calque.tensor([-0.0, 1.0, 0.0, -0.0, 0.0])
        found = base.scatter_reduce(0, index, source, how)
        assert [str(x) for x in found.tolist()] == ["0.0", "nan", "-0.0"]
