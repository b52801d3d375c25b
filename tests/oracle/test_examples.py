"""The programs of examples/ print the same under `calque run` as with PyTorch. NumPy makes their draws, so that every number can be compared."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.examples_runner import PROGRAMS, differences, printed

pytestmark = pytest.mark.oracle

STEPS = {"dqn": 25, "dcgan": 8, "time_series": 2}  # others: 10. Games are won or lost by rounding if they last


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_an_example_prints_what_it_prints_with_pytorch(name: str) -> None:
    words = ("--steps", str(STEPS.get(name, 10)), "--seed", "3")
    found, wanted = (printed(name, *words, by=by) for by in ("calque", "torch"))
    assert "step " in wanted
    assert not differences(found, wanted)


def test_another_seed_is_seen() -> None:
    wanted = printed("graph_attention", "--steps", "3", "--seed", "3", by="torch")
    assert not differences(printed("graph_attention", "--steps", "3", "--seed", "3", by="calque"), wanted)
    assert differences(printed("graph_attention", "--steps", "3", "--seed", "4", by="calque"), wanted)
