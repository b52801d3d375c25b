"""A `Trainer` on the ranks of a job does what it does on one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import calque
from calque.base.errors import ArgumentError
from calque.data import DataLoader, TensorDataset
from calque.train import digits
from calque.train.ranks import Ranks, ShareOfBatches

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "distributed" / "programs" / "trainer.py"


def run(ranks: int, folder: Path, *numbers: int, code: int = 0) -> Any:
    """What the first rank prints."""
    command = [sys.executable] if ranks == 1 else [sys.executable, "-m", "calque", "launch", "-n", str(ranks), "--no-prefix"]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    words = [*command, str(PROGRAM), str(folder), *map(str, numbers)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout) if code == 0 else None


def assert_same(found: Any, wanted: Any) -> None:
    for name, numbers in wanted.items():
        assert found[name] == pytest.approx(numbers, rel=1e-11, abs=1e-11), name


@pytest.mark.mpi
def test_two_ranks_train_as_one_process_and_go_on_as_another_number(tmp_path: Path) -> None:
    """13 samples in batches of 4: the last one has a sample for one rank alone. Ended inside an epoch on two ranks, it goes on on one, and back."""
    case = (2, 2, 13, 4)
    wanted = run(1, tmp_path / "one", *case)
    assert_same(run(2, tmp_path / "two", *case), wanted)
    run(2, tmp_path / "cut", *case, 0, 1, code=143)
    assert_same(run(1, tmp_path / "cut", *case), wanted)


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("case", [(2, 1, 12, 4), (2, 1, 13, 4, 2), (2, 3, 13, 4), (2, 2, 17, 3), (2, 4, 9, 2)])
def test_any_number_of_ranks_is_one_process(tmp_path: Path, case: tuple[int, ...]) -> None:
    wanted = run(1, tmp_path / "one", *case)
    for ranks in (2, 3):
        assert_same(run(ranks, tmp_path / str(ranks), *case), wanted)


@pytest.mark.mpi
@pytest.mark.slow
def test_a_job_that_was_ended_goes_on_bit_for_bit(tmp_path: Path) -> None:
    case = (3, 2, 13, 3)
    wanted = run(2, tmp_path / "whole", *case, 0, -1, 3)
    for cut in (1, 3, 4):
        run(2, tmp_path / str(cut), *case, 0, cut, 3, code=143)
        assert run(2, tmp_path / str(cut), *case, 0, -1, 3) == wanted
    run(1, tmp_path / "fewer", *case, 0, 2, code=143)
    assert_same(run(3, tmp_path / "fewer", *case), run(1, tmp_path / "one", *case))


def test_shares_are_of_each_batch() -> None:
    batches = [[0, 1, 2, 3], [4, 5, 6], [7]]
    shares = [ShareOfBatches(batches, rank, 2) for rank in range(2)]
    assert [list(share) for share in shares] == [[[0, 2], [4, 6], [7]], [[1, 3], [5], [7]]]
    assert [share.sizes for share in shares] == [[2, 2, 1], [2, 1, 0]] and len(shares[0]) == 3


def test_what_cannot_be_shared_out_is_refused() -> None:
    ranks = Ranks()
    assert (ranks.rank, ranks.size, ranks.first) == (0, 1, True)
    loader = DataLoader(TensorDataset(calque.arange(6)), 4)
    assert ranks.share(loader) is loader and ranks.share([1]) == [1]
    ranks.size = 2
    shared = ranks.share(loader)
    assert ranks.share(loader) is shared and ranks.share(shared) is shared and [batch[0].tolist() for batch in shared] == [[0, 2], [4]]
    for other in ([1, 2], DataLoader(TensorDataset(calque.arange(6)), None), DataLoader(TensorDataset(calque.arange(6)), 4, in_order=False)):
        with pytest.raises(TypeError, match=r"\[Trainer\] expected a DataLoader that makes batches .* among 2 ranks, got \w+; or one with a"):
            ranks.share(other)


def test_a_recipe_is_of_one_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ArgumentError, match=r"\[train\] expected one process for `calque train`, got a job of 2; write a script"):
        digits.main(digits.Config(), tmp_path, None)
    assert list(tmp_path.iterdir()) == []
