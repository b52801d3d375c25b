"""The same program on two ranks of PyTorch and on two of Calque."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("mpi4py")
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = str(ROOT / "tests" / "distributed" / "programs" / "ddp.py")


@pytest.mark.slow
def test_losses_are_those_of_pytorch() -> None:
    words = ["-m", "calque", "launch", "-n", "2", "--no-prefix"]
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    ours = subprocess.run([sys.executable, *words, "-m", "calque", "run", PROGRAM], capture_output=True, text=True, env=variables, timeout=300)
    from calque.distributed.rendezvous import Rendezvous

    free = Rendezvous(1)
    free._listener.close()
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.port), "WORLD_SIZE": "2"}
    ranks = [subprocess.Popen([sys.executable, PROGRAM], stdout=subprocess.PIPE, text=True, env={**variables, "RANK": str(r)}) for r in range(2)]
    theirs, _ = (rank.communicate(timeout=300)[0] for rank in ranks)
    assert ours.returncode == 0 and len(theirs.split()) == 15, ours.stderr
    assert [float(x) for x in ours.stdout.split()] == pytest.approx([float(x) for x in theirs.split()], rel=1e-9)
