"""Sobol sequences are those that PyTorch draws."""

from __future__ import annotations

import numpy as np
import pytest

import calque
from calque.quasirandom import SobolEngine

pytest.importorskip("scipy")

FIRST = [[0, 0, 0, 0, 0], [0.5, 0.5, 0.5, 0.5, 0.5], [0.75, 0.25, 0.25, 0.25, 0.75], [0.25, 0.75, 0.75, 0.75, 0.25]]  # PyTorch's


def test_a_sequence_goes_on_from_draw_to_draw() -> None:
    engine = SobolEngine(5)
    assert engine.draw(3).tolist() == FIRST[:3] and engine.draw().tolist() == FIRST[3:] and engine.num_generated == 4
    rest = engine.draw(4, dtype=calque.float64)
    assert rest.dtype is calque.float64 and engine.reset().fast_forward(4).draw(4).tolist() == rest.tolist()
    out = calque.empty(0)
    assert engine.reset().draw(2, out=out) is out and out.tolist() == FIRST[:2]
    assert repr(SobolEngine(2, True, 3)) == "SobolEngine(dimension=2, scramble=True, seed=3)"


def test_all_that_is_drawn_by_powers_of_two_is_balanced() -> None:
    engine = SobolEngine(3)
    points = calque.cat([engine.draw_base2(3), engine.draw_base2(3)]).numpy()
    assert all((np.histogram(column, 16, (0, 1))[0] == 1).all() for column in points.T)
    with pytest.raises(ValueError, match=r"\[SobolEngine.draw_base2\] The balance properties"):
        engine.draw_base2(3)


def test_scrambled_sequences_are_those_of_their_seed() -> None:
    first, again, other = (SobolEngine(4, True, seed).draw(256) for seed in (1, 1, 2))
    assert calque.equal(first, again) and not calque.equal(first, other)
    assert ((first >= 0) & (first < 1)).all() and float((first.mean(0) - 0.5).abs().max()) < 0.01
    calque.manual_seed(5)
    a = SobolEngine(4, True).draw(2)
    calque.manual_seed(5)
    assert calque.equal(a, SobolEngine(4, True).draw(2))


@pytest.mark.parametrize("dimension", [0, 21202])
def test_there_are_numbers_for_so_many_dimensions(dimension: int) -> None:
    with pytest.raises(ValueError, match="Supported range of dimensionality"):
        SobolEngine(dimension)
