"""Jobs that cannot begin: one clear error on every live rank, soon, and nobody is left."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PROGRAM = str(HERE / "programs" / "starts.py")
pytestmark = pytest.mark.mpi

SAME = "expected the same parameters on every rank, but rank 0 has {} and rank 1 has {}; the first that differs is {}; build the same model"
EVERY = {  # what each live rank says
    "size": r"\[init_process_group\] expected world_size=2, as WORLD_SIZE says, got 3; leave world_size out",
    "twice": r"\[init_process_group\] expected no process group, but this process has joined one; call destroy_process_group\(\) first",
    "shape": SAME.format(4, 4, r"1.weight \(6, 4\) float32 on rank 0, 1.weight \(5, 4\) float32 on rank 1"),
    "count": SAME.format(4, 6, r"nothing more on rank 0, 2.weight \(3, 3\) float32 on rank 1"),
    "dtype": SAME.format(2, 2, r"weight \(3, 3\) float32 on rank 0, weight \(3, 3\) float64 on rank 1"),
    "frozen": SAME.format(2, 2, r"bias \(3,\) float32 on rank 0, bias \(3,\) float32 without gradient on rank 1"),
    "once": r"rank 0: all_gather_object\(object\) at .*starts\.py:\d+; rank 1: all_reduce\(float32 \(1,\), SUM\) at .*starts\.py:\d+",
    "groups": r"different ones as call number 1 of group 0: rank 0: new_group\(, ranks \[0, 1\]\) at .*; rank 1: new_group\(, ranks \[0\]\) at",
}
FIRST = {  # what the first rank says where the other one is not there
    "dies": r"expected 2 processes at .*, but rank 1 of 2 ended with exit code 1 before it came",
    "returns": r"expected 2 processes at .*, but rank 1 of 2 ended with exit code 0 before it came",
    "late": r"expected 2 processes at .*, but after 4 s rank 1 of 2 had not come",
    "ends": r"\[all_reduce\] expected rank 1 to take part, but it has ended; this rank 0 waits in call number 2",
}
FAST = {"shape", "returns"}


def launched(mode: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    words = [sys.executable, "-m", "calque", "launch", "-n", "2", PROGRAM, mode]
    return subprocess.run(words, capture_output=True, text=True, timeout=100, env={**os.environ, "PYTHONPATH": path}, check=False)


def left_over(mode: str) -> list[str]:
    """Processes of the program that are still there."""
    found = []
    for place in Path("/proc").iterdir():
        try:
            words = (place / "cmdline").read_bytes().split(b"\0") if place.name.isdecimal() else []
        except OSError:
            continue
        if PROGRAM.encode() in words and mode.encode() in words:
            found.append(place.name)
    return found


@pytest.mark.parametrize("mode", [mode if mode in FAST else pytest.param(mode, marks=pytest.mark.slow) for mode in [*EVERY, *FIRST]])
def test_every_live_rank_says_what_is_wrong_and_nobody_is_left(mode: str) -> None:
    done = launched(mode)
    assert done.returncode == 1, done.stdout + done.stderr
    for rank in range(2 if mode in EVERY else 1):
        said = "\n".join(line for line in done.stderr.split("\n") if line.startswith(f"[{rank}]"))
        errors = [line for line in said.split("\n") if "calque.base.errors." in line or "nobody has read" in line]
        assert len(errors) == 1 and re.search({**EVERY, **FIRST}[mode], errors[0]), done.stderr
    assert "; the others were ended" in done.stderr and not left_over(mode)


@pytest.mark.slow
def test_the_mpiexec_of_another_mpi_is_named() -> None:
    """Of the system, beside an environment with an MPI of its own: every rank believes that it is alone, and none waits for the others."""
    other = next((place for place in ("/usr/bin/mpiexec", "/usr/local/bin/mpiexec") if os.access(place, os.X_OK)), None)
    if other is None or not (Path(sys.executable).parent / "mpiexec").exists():
        pytest.skip("there are no two implementations of MPI here")
    path = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    words = [other, "-n", "2", sys.executable, "-c", "import calque.distributed as dist; dist.init_process_group('mpi', timeout=20)"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, env={**os.environ, **root, "PYTHONPATH": path}, check=False)
    assert done.returncode != 0, done.stdout + done.stderr
    named = "says 0 of 1: they were started by the mpiexec of another MPI", "got one that Open MPI has started; use calque launch"
    assert any(words in done.stderr for words in named), done.stderr
