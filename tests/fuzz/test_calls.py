"""Random hybridized calls with poisoned memory (`python -m tests.fuzz.calls` runs many), and that the comparison finds what was wrong once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import calque
from calque.backend.cpu.team.memory import POOL
from calque.base.config import settings
from calque.hybrid import call
from tests.fuzz import calls
from tests.fuzz.calls import Text, mismatch, report

FAST = 30


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("verify", [False, True], ids=["", "verify"])
def test_hybridized_calls_do_what_they_do_as_written(verify: bool, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "verify", verify)
    first = seed + FAST * verify
    for number in range(first, first + FAST):
        assert not (text := report(number)), text


@pytest.mark.slow
def test_ten_thousand_programs(seed: int) -> None:
    """`python -m tests.fuzz.calls` does the same with progress."""
    for number in range(seed, seed + 10_000):
        assert not (text := report(number)), text


@pytest.mark.oracle
def test_hybridized_calls_do_what_pytorch_does(seed: int) -> None:
    import torch

    for number in range(seed, seed + 25):
        assert not (text := report(number, torch)), text


@pytest.mark.parametrize("verify", [False, True], ids=["", "verify"])
@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize(
    "number", [1803712, 1804014, 904558, 951524, 6001799, 6000190, 6000198, 770000045, 821003648, 821006921, 1700000211, 1701000534, 1701000969]
)
def test_programs_that_went_wrong_once(number: int, verify: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "verify", verify)
    assert not (text := report(number)), text


def _no_views(*_: Any) -> list[Any]:
    return []



@pytest.mark.parametrize("defect", ["views forget what they are views of", "arguments are not handed back"])
def test_the_comparison_finds_what_was_wrong(defect: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if defect.startswith("views"):
        monkeypatch.setattr(call, "views_among", _no_views)
    else:
        monkeypatch.setattr(call.StandIns, "hand_back", lambda self: "")
        monkeypatch.setattr(call, "differences", lambda *_: "")
    assert any(mismatch(Text(number), number) for number in range(seed, seed + 200))


def test_a_mismatch_that_does_not_come_again_is_reported_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may depend on what ran before, which making the program smaller has changed."""
    found = iter(["[as written] 1\n  but the reference has\n  2"])
    monkeypatch.setattr(calls, "mismatch", lambda *_: next(found, ""))
    assert "only from a state left by what ran before: [as written] 1\n  but the reference has\n  2" in report(3)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int64, np.int32, np.int16, np.int8, np.uint8])
def test_memory_is_poisoned_until_it_is_written(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh blocks, blocks that come back, and arenas."""
    monkeypatch.setattr(settings, "poison", True)
    kind = np.dtype(dtype)
    for _ in range(3):
        for count in (1, 7, 1000):
            for array in (POOL.empty(count, kind), POOL.arena(8 * count)[: kind.itemsize * count].view(kind)):
                assert np.isnan(array).all() if kind.kind == "f" else (np.abs(array.astype(np.float64)) >= 3).all()
                array[...] = 1


def test_a_view_that_leaves_its_memory_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "poison", True)
    x = calque.arange(6.0)
    v = x[4:]
    x.numpy()
    v._storage.buffer.array = v._storage.buffer.array[:5]
    with pytest.raises(RuntimeError, match="expected a value, got none"):
        v.tolist()
