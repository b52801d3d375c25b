"""Ray Tune needs no adapter: a function that trains by Calque runs under it as it is. Skips where Ray is not installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import calque


@pytest.mark.slow
def test_the_snippet_runs_under_ray_and_a_killed_trial_resumes(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    program = Path(__file__).parent / "programs" / "ray_tune.py"
    environment = {**os.environ, "PYTHONPATH": str(Path(calque.__file__).parents[1])}
    done = subprocess.run([sys.executable, str(program), str(tmp_path)], capture_output=True, text=True, timeout=300, env=environment)
    found = [line for line in done.stdout.splitlines() if line.startswith("trial ")]
    assert sorted(found) == ["trial False TERMINATED 0 4", "trial True TERMINATED 2 4"], done.stdout + done.stderr
