"""Training on two ranks. Every start costs seconds, so one program does much."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).resolve().parent / "programs"


def said(*words: str) -> list[str]:
    """What a command prints, if it ends well."""
    path = os.pathsep.join([str(PROGRAMS.parents[2]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=400, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split("\n")[:-1]


@pytest.mark.mpi
def test_two_ranks_train_as_one_process_with_all_samples() -> None:
    found = said("-m", "calque", "launch", "-n", "2", str(PROGRAMS / "training.py"))
    assert sorted(found) == ["[0] all is well", "[1] all is well"]


@pytest.mark.mpi
@pytest.mark.slow
def test_a_program_for_pytorch_gives_the_losses_of_one_process() -> None:
    program = str(PROGRAMS / "ddp.py")
    one = said("-m", "calque", "run", program)
    assert said("-m", "calque", "launch", "-n", "2", "--no-prefix", "-m", "calque", "run", program) == one and len(one) == 15


@pytest.mark.mpi
def test_nothing_is_wrong_without_a_word() -> None:
    found = said("-m", "calque", "launch", "-n", "2", str(PROGRAMS / "traps.py"))
    assert sorted(found) == ["[0] all is well", "[1] all is well"]


@pytest.mark.mpi
@pytest.mark.slow
def test_ordered_sums_have_the_same_bits_on_any_number_of_ranks() -> None:
    found = {n: said("-m", "calque", "launch", "-n", str(n), "--no-prefix", str(PROGRAMS / "ordered.py"), "4") for n in (1, 2, 4)}
    assert found[1] == found[2] == found[4] and len(found[1]) == 1


@pytest.mark.mpi
@pytest.mark.slow
def test_the_usual_program_runs_by_launch_and_by_torchrun() -> None:
    program = str(PROGRAMS / "main_worker.py")
    one = said("-m", "calque", "run", program)
    assert len(one) == 3 and len(set(one)) == 3
    assert said("-m", "calque", "launch", "-n", "2", "--no-prefix", "-m", "calque", "run", program) == one
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    assert said("-m", "calque", "run", *torchrun, program, "-b", "16") == one


def test_torchrun_says_what_it_does_not_do() -> None:
    from calque.compat.torch.distributed.run import main

    for words, text in ((["--nnodes=2", "x.py"], "expected 1, got 2"), (["--nproc_per_node=0", "x.py"], "expected a number, cpu, gpu or auto")):
        with pytest.raises(SystemExit) as caught, contextlib.redirect_stderr(io.StringIO()) as said_there:
            main(words)
        assert caught.value.code == 2 and text in said_there.getvalue()


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_random_programs_have_the_gradients_of_one_process(seed: int) -> None:
    found = said("-W", "ignore", "-m", "calque", "launch", "-n", "2", str(PROGRAMS / "fuzz.py"), str(seed % 1_000_000_000), "100")
    assert sorted(found) == ["[0] all is well", "[1] all is well"]
