"""Parameters that the ranks share. Every start costs seconds, so one program does much."""

from __future__ import annotations

import pytest

from calque.base.errors import ArgumentError
from calque.distributed import fully_shard
from calque.nn import Linear
from tests.distributed.test_training import PROGRAMS, said


@pytest.mark.mpi
def test_parameters_that_are_shared_out_train_as_whole_ones_in_a_share_of_the_memory() -> None:
    found = said("-W", "ignore", "-m", "calque", "launch", "-n", "2", str(PROGRAMS / "sharded.py"), "memory")
    assert sorted(line for line in found if "times" not in line) == ["[0] all is well", "[1] all is well"]


@pytest.mark.mpi
@pytest.mark.slow
def test_three_ranks_and_everything_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALQUE_EAGER", "0")
    assert len(said("-W", "ignore", "-m", "calque", "launch", "-n", "3", str(PROGRAMS / "sharded.py"))) == 3


@pytest.mark.mpi
@pytest.mark.slow
def test_a_program_for_pytorch_that_shares_parameters_gives_the_losses_of_one_process() -> None:
    program = str(PROGRAMS / "fsdp.py")
    one = said("-m", "calque", "run", program)
    assert said("-m", "calque", "launch", "-n", "2", "--no-prefix", "-m", "calque", "run", program) == one and len(one) == 10


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_random_programs_do_what_one_process_does(seed: int) -> None:
    found = said("-W", "ignore", "-m", "calque", "launch", "-n", "2", str(PROGRAMS / "fuzz_sharded.py"), str(seed % 1_000_000_000), "40")
    assert sorted(found) == ["[0] all is well", "[1] all is well"]


def test_without_a_job_it_says_what_is_missing() -> None:
    with pytest.raises(Exception, match=r"\[fully_shard\] expected .*init_process_group"):
        fully_shard(Linear(2, 2))
    with pytest.raises(ArgumentError, match="expected a module, got int"):
        fully_shard(3)
