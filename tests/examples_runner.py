"""Runs the programs of examples/ as a user does, with Calque or with PyTorch, and compares what they print."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "examples"
TEXTS = {file.stem: file.read_text(encoding="utf-8") for file in FOLDER.glob("*.py")}
# The others are imported by these, or Calque's own.
PROGRAMS = sorted(name for name, text in TEXTS.items() if "\nimport torch\n" in text and "__main__" in text)
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e-?\d+)?(?![\w.])")


def printed(name: str, *words: str, by: str) -> str:
    """What `examples/name.py words` prints under `python` ("torch") or under `calque run` ("calque")."""
    start = {"calque": [sys.executable, "-m", "calque", "run"], "torch": [sys.executable]}[by]
    # Two PyTorch threads that wait for each other on busy cores take minutes for what one does in a second.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **({"OMP_NUM_THREADS": "1"} if by == "torch" else {})}
    done = subprocess.run(
        [*start, str(FOLDER / f"{name}.py"), *words], capture_output=True, text=True, timeout=300, check=False, env=environment, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def differences(found: str, wanted: str, rel: float = 1e-3, absolute: float = 2e-4) -> list[str]:
    """Lines that differ: words exactly, whole numbers exactly, other numbers by more than rounding and its growth over a few steps."""
    ours, theirs = found.splitlines(), wanted.splitlines()
    if len(ours) != len(theirs):
        return [f"{len(ours)} lines instead of {len(theirs)}"]
    return [f"{a!r} instead of {b!r}" for a, b in zip(ours, theirs) if not _alike(a, b, rel, absolute)]


def _alike(a: str, b: str, rel: float, absolute: float) -> bool:
    numbers = list(zip(NUMBER.findall(a), NUMBER.findall(b)))
    if NUMBER.split(a) != NUMBER.split(b):
        return False
    return all(x == y if "." not in y else math.isclose(float(x), float(y), rel_tol=rel, abs_tol=absolute) for x, y in numbers)


def losses(text: str) -> list[float]:
    """The numbers behind the word `loss`, in the order of the lines."""
    return [float(number) for number in re.findall(r"\bloss (-?[\w.]+)", text)]
