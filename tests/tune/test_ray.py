"""The same search here and on Ray: same configurations, same numbers, same resumed trials. Skips where Ray Tune is not installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import calque
from calque import tune
from calque.base.errors import MissingExtraError
from calque.base.extras import there

PROGRAMS = Path(__file__).parent / "programs"


def _run(name: str, folder: Path) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("ray.tune", exc_type=ImportError)
    environment = {**os.environ, "PYTHONPATH": str(Path(calque.__file__).parents[1])}
    return subprocess.run(
        [sys.executable, str(PROGRAMS / name), str(folder)], capture_output=True, text=True, timeout=300, env=environment, cwd=folder, check=False
    )


@pytest.mark.slow
def test_ray_finds_what_the_local_runner_finds_and_killed_trials_resume(tmp_path: Path) -> None:
    done = _run("both.py", tmp_path)
    found = [json.loads(line.removeprefix("found ")) for line in done.stdout.splitlines() if line.startswith("found ")]
    assert len(found) == 2 and found[0] == found[1], done.stdout + done.stderr
    trials, epochs, _ = found[0]
    for _, config, status, failures, *results in trials:
        assert status == "TERMINATED" and failures == config["dies"] and [r["start"] for r in results] == [0, 0, *([2] * 2 if failures else [0] * 2)]
    assert epochs == [3] * 4
    assert "== Trials on this machine, 2 at a time: 4 TERMINATED ==" in done.stdout and " machine, 2 CPUs: 4 TERMINATED ==" in done.stdout


@pytest.mark.slow
def test_a_function_that_trains_runs_under_ray_as_it_is(tmp_path: Path) -> None:
    """Without `calque.tune`: Ray's own functions around a loop of ours, and a killed trial that resumes."""
    done = _run("ray_tune.py", tmp_path)
    found = [line for line in done.stdout.splitlines() if line.startswith("trial ")]
    assert sorted(found) == ["trial False TERMINATED 0 4", "trial True TERMINATED 2 4"], done.stdout + done.stderr


@pytest.mark.slow
def test_what_goes_wrong_on_ray_is_said(tmp_path: Path) -> None:
    done = _run("ray_wrong.py", tmp_path)
    assert done.returncode == 0 and done.stdout.rstrip().endswith("all said"), done.stdout + done.stderr


@pytest.mark.skipif(there("ray"), reason="Ray is installed")
def test_without_ray_there_is_one_error() -> None:
    with pytest.raises(MissingExtraError, match=r"\[tune.run\] needs ray\[tune\], which is not installed; run: pip install ray\[tune\]"):
        tune.run(lambda config: {"loss": 0.0}, runner="ray", verbose=0)
