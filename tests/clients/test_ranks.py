"""Libraries for PyTorch's processes train on two ranks with the losses of one process."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def losses(*words: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "calque", *words], capture_output=True, text=True, timeout=600, check=False, cwd=HERE.parents[1]
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return [line for line in done.stdout.split("\n") if re.fullmatch(r"-?\d\.\d{11}", line)]


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.parametrize(("library", "count"), [("accelerate", 16), ("lightning", 15)])
def test_two_ranks_give_the_losses_of_one_process(library: str, count: int) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed; make clients runs these tests")
    program = ["run", str(HERE / "ranks.py"), library]
    one = losses(*program)
    assert losses("launch", "-n", "2", "--no-prefix", "-m", "calque", *program) == one and len(one) == count
    assert losses("run", "-m", "torch.distributed.run", "--nproc_per_node", "2", *program[1:]) == one
