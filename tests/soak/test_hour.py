"""R17: training under faults for an hour holds what it held at the beginning, and its losses are those of a run that nobody disturbed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import calque

ROOT = Path(calque.__file__).parents[1]
COUNTS = ("files", "shm", "children", "threads", "bytes")
WARM = 600.0  # seconds after which memory has found its size


@pytest.mark.parametrize("seconds", [1, pytest.param(3600, marks=pytest.mark.slow)])
def test_r17_training_under_faults(tmp_path: Path, seed: int, seconds: int) -> None:
    seconds = int(os.environ.get("CALQUE_SOAK_SECONDS", "3600")) if seconds > 1 else seconds
    command = [sys.executable, "-m", "tests.soak.hour", str(seconds), str(tmp_path), str(seed), "3" if seconds > 1 else "1"]
    before = set(os.listdir("/dev/shm"))
    done = subprocess.run(command, stdout=subprocess.PIPE, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=2 * seconds + 600, text=True)
    assert done.returncode == 0
    found = json.loads(done.stdout)
    samples = found["samples"]
    assert found["runs"] >= 1 and {*os.listdir("/dev/shm")} <= before
    if len(samples) < 9:
        return  # too short to tell what grows
    third = len(samples) // 3
    early, late = samples[third : 2 * third], samples[-third:]  # the first third is warm-up: programs keep small results for their next run
    settled = [s for s in samples if s["seconds"] > min(WARM, samples[-1]["seconds"] / 3)]
    hours, sizes = np.array([s["seconds"] for s in settled]) / 3600, np.array([s["rss"] for s in settled])
    slope = float(np.polyfit(hours, sizes, 1)[0])
    ranges = {what: [(min(part), max(part)) for part in ([s[what] for s in early], [s[what] for s in late])] for what in COUNTS}
    print(
        f"{found['runs']} runs in {samples[-1]['seconds']:.0f} s, each with the losses and weights of the first; cut off {found['cuts']} times, "
        f"begun again after an error {found['told']} times; faults {found['faults']}; memory {sizes[0] / 2**20:.1f} -> {sizes[-1] / 2**20:.1f} MiB, "
        f"{100 * slope / sizes.mean():+.2f} % an hour; least and most in the second and the last third: {ranges}"
    )
    for what, (first, last) in ranges.items():
        assert last[0] <= first[1], (what, first, last)
    if samples[-1]["seconds"] > WARM:
        assert slope <= 0.01 * sizes.mean() or sizes[-1] - sizes[0] < 1 << 20, "at most 1 % an hour, or less than can be told"
