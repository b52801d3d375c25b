"""Programs as the tutorials of PyTorch have them, by `calque run` and by torchrun's words: two ranks print what one process prints."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).resolve().parent / "programs" / "public"
pytestmark = pytest.mark.mpi


def free_port() -> str:
    """A port at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return str(found.getsockname()[1])


def printed(*words: str, **variables: str) -> list[str]:
    """What `python -m calque words` prints, if it ends well."""
    path = os.pathsep.join([str(PROGRAMS.parents[3]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "calque", *words], capture_output=True, text=True, timeout=400, env={**os.environ, "PYTHONPATH": path, **variables}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def by_torchrun(count: int, program: str, *words: str) -> list[str]:
    return printed("run", "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={count}", str(PROGRAMS / program), *words)


@pytest.mark.slow
@pytest.mark.parametrize(("program", "lines"), [("tutorial.py", 7), ("applications.py", 5), ("fsdp_tutorial.py", 6)])
def test_programs_that_start_their_processes(program: str, lines: int, tmp_path: Path) -> None:
    found = {n: printed("run", str(PROGRAMS / program), n, PORT=free_port(), SAVED=str(tmp_path / "saved.pt")) for n in ("1", "2")}
    assert found["1"] == found["2"] and len(found["1"]) == lines


@pytest.mark.slow
def test_a_trainer_with_snapshots_goes_on_where_it_was(tmp_path: Path) -> None:
    whole = by_torchrun(1, "snapshot.py", str(tmp_path / "whole.pt"), "2")
    first = by_torchrun(2, "snapshot.py", str(tmp_path / "snapshot.pt"), "1")
    assert len(whole) == 12 and first == whole[:6]
    assert by_torchrun(2, "snapshot.py", str(tmp_path / "snapshot.pt"), "2") == whole[6:]


@pytest.mark.slow
def test_checkpoints_of_a_job_and_states_by_name(tmp_path: Path) -> None:
    one, two = (by_torchrun(n, "checkpointing.py", str(tmp_path / str(n))) for n in (1, 2))
    assert one == two and [line.split()[0] for line in one[:3]] == ["ddp", "fsdp", "fully_shard"]
    assert one[3] == one[4]
    assert sorted(p.suffix for p in (tmp_path / "2" / "fsdp_async").iterdir()) == [".json", ".safetensors", ".safetensors"]


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_groups_meshes_and_other_names(count: int) -> None:
    found = printed("launch", "-n", str(count), "-m", "calque", "run", str(PROGRAMS / "groups.py"))
    assert sorted(found) == [f"[{rank}] all is well" for rank in range(count)]


@pytest.mark.parametrize("program", ["gradients", "uneven"])
def test_programs_print_what_they_print_with_pytorch(program: str) -> None:
    found = printed("launch", "-n", "2", "-m", "calque", "run", str(PROGRAMS / f"{program}.py"))
    assert sorted(line[4:] for line in found) == sorted((PROGRAMS / f"{program}.txt").read_text(encoding="utf-8").splitlines())
